"""Following the log over one adopted watermark, and what the ranks include by it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial

import structlog

from agent.config import ProjectionSection
from agent.projection.derived import Deriving
from agent.projection.filler import Filler
from agent.projection.link import Link
from agent.projection.place import Clock, Included, PlaceId
from agent.projection.places import Places
from agent.projection.recent import Recent
from agent.projection.rulings import Rulings
from agent.projection.scripts import Change
from agent.projection.source import (
    Changes,
    Home,
    changes_of,
    read_changes,
    read_projected,
)
from agent.projection.status import Counts
from agent.projection.upkeep import Upkeep
from agent.state import State
from agent.store.readers import Readers

logger = structlog.get_logger()

RECENT_ENTRIES_MAX = 500  # from memory, on the event loop: two milliseconds of it
READ_ENTRIES_MAX = 5_000  # of the log, at a time: bounds how old a batch is when it is written


@dataclass(frozen=True, slots=True)
class Log:
    """My log as it is followed, and the durable state that it leads to."""

    readers: Readers
    recent: Recent
    state: Callable[[], State]
    now_ms: Callable[[], int]


@dataclass(frozen=True, slots=True)
class Terms:
    """How a log is followed.

    touch_s: how often the watermark moves while nothing changes.
    announce: told when the ranks include more.
    in_place: told of each window that was filled, with how many members.
    """

    section: ProjectionSection
    clock: Clock
    touch_s: float
    announce: Callable[[], None]
    in_place: Callable[[PlaceId, int], None]


class Follower:
    """Keeps Redis equal to the log, from the watermark that `link` has adopted or begun.

    Methods raise what `Link.write` raises; then this follower is void, and another one is made from
    what is found in Redis.
    """

    def __init__(self, link: Link, log: Log, places: Places, counts: Counts, terms: Terms) -> None:
        self._link = link
        self._log = log
        self._counts = counts
        self._terms = terms
        self._touched_s = 0.0
        self._upkeep = Upkeep(link, log.readers, places)
        self._rulings = Rulings(link, log.readers, places)
        self._deriving = Deriving(places, terms.clock, terms.section)
        self.places = places
        self.filler = Filler(
            link,
            log.readers,
            places,
            counts,
            self._deriving,
            terms.clock,
            self._stored,
            terms.in_place,
        )
        # What complete windows include: this version vector, and my log up to this lsn. Those that
        # were taken over include the watermark's, and what my log got above another lsn.
        self._vv: Mapping[int, int] = {}
        self._head_lsn = -1
        self._adopted_lsn = link.watermark.lsn
        self._doubted = False

    def includes(self, place: PlaceId, lsn: int | None, stamp: tuple[int, int] | None) -> bool:
        """Whether a served window's ranks include a write; by its lsn, or by its stamp.

        A window without a place has no members, up to where all others are complete.
        """
        if self._doubted:
            return False
        vv, above_lsn, upto_lsn = self._vv, -1, self._head_lsn
        found = self.places.find(place)
        if found is not None and found.derivation is not None:
            if found.included is not None:
                vv, upto_lsn = found.included.vv, found.included.lsn
        elif found is not None and found.filling is not None:
            vv, above_lsn = self._link.watermark.vv, self._adopted_lsn
        if stamp is not None and vv.get(stamp[0], 0) >= stamp[1]:
            return True
        return lsn is not None and above_lsn < lsn <= upto_lsn

    def doubt(self) -> None:
        """Redis is not what it was taken for: nothing is known of what it includes."""
        self._doubted = True

    def _stored(self) -> Included:
        """What is stored now, and so included in whatever is read from now on."""
        # The time goes first: what it claims is in the state.
        now_ms = self._log.now_ms()
        state = self._log.state()
        return Included(state.vv, state.lsn, state.as_of(now_ms))

    def _projected(self) -> Included:
        """What all sets include now."""
        watermark = self._link.watermark
        return Included(watermark.vv, watermark.lsn, watermark.as_of)

    def _nonce(self) -> str:
        return f"{self._link.watermark.batch:x}"

    async def repair(self, boards: Iterable[str], windows: Iterable[PlaceId] = ()) -> None:
        """Begin to fill windows, and all windows of boards, anew; they are served meanwhile."""
        change = Change()
        wanted = [*map(self.places.find, windows)]
        for name in boards:
            wanted += self.places.of(name)
        for place in wanted:
            if place is not None:
                self.places.refill(place, self._nonce(), change, serve=True)
        if change:
            await self._link.write(change)

    async def mend(
        self, wanted: Mapping[PlaceId, Iterable[bytes]], keys: Iterable[PlaceId] = ()
    ) -> None:
        """Write members of windows anew, as SQLite has them now.

        Args:
            keys: windows whose meta is written anew, and the end of their keys.
        """
        change = Change()
        for id_ in keys:
            place = self.places.find(id_)
            if place is not None and place.filling is None:
                self.places.turns.describe(place, change)
        homes: list[Home] = []
        for id_, members in wanted.items():
            place = self.places.find(id_)
            if place is None or place.derivation is not None:
                continue
            for member in members:
                if self.places.knowledge.hides(member, id_[0]):
                    self.places.take_out(place, member, change)
                else:
                    homes.append(Home(place.placed, member))
        read = partial(read_projected, homes=homes)
        found = await self._link.keep(partial(self._log.readers.read, read))
        self.places.put(change, found)
        if change:
            await self._link.write(change)

    async def look_for_lost(self) -> None:
        """Look whether the next windows still stand in Redis; fill anew those that do not."""
        change = Change()
        for place in await self._upkeep.lost():
            if self.places.refill(place, self._nonce(), change, serve=False):
                self._counts.lost += 1
                logger.warning("projection_window_lost", board=place.id[0], window=place.id[1])
        if change:
            await self._link.write(change)

    async def look_at_clock(self) -> bool:
        """Begin and end the windows whose time has come, and begin to compute what is due.

        Returns whether that was all.
        """
        change = Change()
        done = self.places.look(self._nonce(), change)
        if change:
            await self._link.write(change)
        if not self._link.holding:
            self._deriving.begin_due(self._nonce(), asyncio.get_running_loop().time())
        return done

    async def catch_up(self) -> bool:
        """Read the log once above the watermark, project it; returns whether that was all."""
        # Both are taken before the snapshot, so what they claim is in it.
        state, now_ms = self._log.state(), self._log.now_ms()
        after, catalog = self._link.watermark.lsn, self.places.knowledge.catalog
        recent = self._log.recent.after(after, state.lsn, RECENT_ENTRIES_MAX)
        if recent is not None:
            changes = changes_of(recent, after, state.lsn, state.vv, catalog)
        else:
            read = partial(read_changes, after=after, limit=READ_ENTRIES_MAX, catalog=catalog)
            changes = await self._link.keep(partial(self._log.readers.read, read))
        await self._project(changes, state.as_of(now_ms))
        return changes.head

    async def _project(self, changes: Changes, as_of: Mapping[str, int | None]) -> None:
        """Write what was read, in batches; the last one moves the watermark."""
        places = self.places
        if changes.to == self._link.watermark.lsn:
            if asyncio.get_running_loop().time() - self._touched_s >= self._terms.touch_s:
                await self._write_through(Change(), changes, as_of)
            # The vector may have grown without a row.
            self._vv, self._head_lsn = changes.vv, changes.to
            self._terms.announce()
            return
        before = self._projected()
        if changes.own:
            await self._rulings.follow(changes.own, before)
        change = Change()
        places.touch(changes.spaces, before, change)
        size = self._terms.section.batch_members_max
        last = max(0, len(changes.members) - 1) // size * size
        for start in range(0, last, size):
            self._counts.members += places.put(change, changes.members[start : start + size])
            await self._link.write(change)
            change = Change()
        self._counts.members += places.put(change, changes.members[last:])
        if changes.own:
            change = await self._rulings.judge(changes.own, before, change)
        await self._write_through(change, changes, as_of)
        self._counts.clamped += changes.clamped

    async def _write_through(
        self, change: Change, changes: Changes, as_of: Mapping[str, int | None]
    ) -> None:
        """Write the last of some changes, and what Redis includes with them.

        While windows are served that were taken over, Redis includes no more than it did then.
        """
        moved = replace(self._link.next(), lsn=changes.to)
        if changes.head:
            self._touched_s = asyncio.get_running_loop().time()
        head = changes.head and not self.places.turns.owing
        if head:
            moved = replace(moved, vv=changes.vv, as_of=as_of)
        await self._link.write(change, moved, head=head)
        if changes.head:
            self._vv, self._head_lsn = changes.vv, changes.to
            self._terms.announce()
