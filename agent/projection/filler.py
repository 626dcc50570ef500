"""Filling windows: one slice of work at a time, so that the log is followed meanwhile."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial

from agent.boards.catalog import Placed
from agent.projection.derived import Deriving, read_trend, scan_of
from agent.projection.keys import BOARDS_PATTERN, COUNTER_PREFIX, COUNTERS_PATTERN
from agent.projection.link import Link
from agent.projection.place import Clock, Filling, Included, Place, PlaceId
from agent.projection.places import Places
from agent.projection.scripts import Change
from agent.projection.source import Members, count_scanned, derivation_of, read_members
from agent.projection.status import Counts
from agent.store.readers import Readers
from agent.store.snapshot import SqliteSnapshot

SCAN_CELLS_MAX = 2_000  # read at a time, while the ones before are written
SCAN_CHUNKS = 6  # in one turn: about 100 ms between two looks at the log
COUNT_WINDOWS_MAX = 1_000  # in one turn, as far as time allows
COUNT_S = 0.05  # then the log is looked at again
FILL_MEMBERS_MAX = 1_000  # of one script call: stalls Redis for 2 to 3 ms


class Filler:
    """Fills windows and removes leftover keys, over one adopted or begun watermark.

    Methods raise what `Link.write` raises; then this filler is void, and another one is made from
    what is found in Redis.

    Args:
        deriving: told of each computed window that was put in place.
        included: what is stored now.
        in_place: told of each window that was put in place, and how many members were written.
    """

    def __init__(
        self,
        link: Link,
        readers: Readers,
        places: Places,
        counts: Counts,
        deriving: Deriving,
        clock: Clock,
        included: Callable[[], Included],
        in_place: Callable[[PlaceId, int], None],
    ) -> None:
        self._link = link
        self._readers = readers
        self._counts = counts
        self._deriving = deriving
        self._clock = clock
        self._included = included
        self._in_place = in_place
        self._sweep_at: int | None = 0
        self._swept = False
        self.places = places

    async def fill(self) -> bool:
        """Give one slice to a window that is being filled; returns whether there was one."""
        turns = self.places.turns
        uncounted = turns.uncounted(COUNT_WINDOWS_MAX)
        if uncounted:
            await self._count(uncounted)
            return True
        filling = turns.next_turn()
        if filling is None:
            if not self._link.holding:
                return False
            await self._swap(turns.fillings())
            return True
        if not filling.scanned:
            await self._scan(filling)
        elif filling.strings_at is not None:
            await self._drop_strings(filling, filling.strings_at)
        if filling.ready and not self._link.holding:
            await self._swap([filling])
        return True

    async def _count(self, fillings: list[Filling]) -> None:
        """Learn how many members the next windows have, so that all can be told from the start."""
        read = partial(_counts_of, placed=[filling.placed for filling in fillings])
        totals = await self._link.keep(partial(self._readers.read, read))
        for filling, total in zip(fillings, totals, strict=False):  # the rest: in the next slice
            filling.total = total

    def _place_of(self, filling: Filling) -> Place:
        place = self.places.find(filling.id)
        assert place is not None, filling.id
        return place

    async def _scan(self, filling: Filling) -> None:
        """Write the next members of a window into its new key, reading ahead while writing.

        Nothing that is read here is written after the log was looked at again: by then it might
        be older than what the log says. (Of a computed window it may be: see derived.py.)
        """
        if filling.since is None and derivation_of(filling.placed) is not None:
            place = self._place_of(filling)
            place.dirty, place.begun_s = False, asyncio.get_running_loop().time()
            filling.since = self._included()
            filling.at_ms = self._clock.now_ms()
            filling.scan = scan_of(filling)
        chunk = await self._link.keep(partial(self._read, filling, filling.after))
        for left in range(SCAN_CHUNKS, 0, -1):
            if chunk.last is None:
                filling.scanned = True
                filling.strings_at = 0 if filling.counts else None
                return
            if left == 1:
                await self._put(filling, chunk)
            else:
                reading = partial(self._read, filling, chunk.last)
                chunk = await self._link.keep(reading, partial(self._put, filling, chunk))

    async def _read(self, filling: Filling, after: bytes) -> Members:
        hides = self.places.knowledge.hides
        if filling.scan is not None:
            read = partial(filling.scan.next, cells_max=SCAN_CELLS_MAX, hides=hides)
        elif derivation_of(filling.placed) == "trend":
            read = partial(read_trend, filling=filling, after=after, hides=hides)
        else:
            read = partial(
                read_members,
                placed=filling.placed,
                after=after,
                cells_max=SCAN_CELLS_MAX,
                hides=hides,
            )
        return await self._readers.read(read)

    async def _put(self, filling: Filling, chunk: Members) -> None:
        assert chunk.last is not None
        pairs, size = chunk.scores_and_members, 2 * FILL_MEMBERS_MAX
        strings = chunk.counters
        place = self._place_of(filling)
        for start in range(0, max(len(pairs), len(strings)), size):
            part = pairs[start : start + size]
            change = Change()
            if part:
                self.places.turns.add(place, filling.key, part, change)
            its = iter(strings[start : start + size])
            for name, value in zip(its, its, strict=True):
                if not self.places.knowledge.gone(name):
                    change.put(COUNTER_PREFIX + name, value)
            await self._link.write(change)
            filling.filled = filling.filled or bool(part)
            filling.members += len(part) // 2
            self._counts.refilled += len(part) // 2
        self._counts.clamped += chunk.clamped
        filling.after = chunk.last

    async def _drop_strings(self, filling: Filling, cursor: int) -> None:
        """Remove strings of counters that are no more: of an old generation."""
        cursor, keys = await self._link.keys(cursor, COUNTERS_PATTERN)
        names = [key.removeprefix(COUNTER_PREFIX) for key in keys]
        # Banned ones are in no set, and their values are served all the same.
        knowledge, board = self.places.knowledge, filling.id[0]
        hidden = [n for n in names if knowledge.hides(n, board) and not knowledge.gone(n)]
        counted = frozenset[bytes]()
        if hidden:
            counted = await self._readers.read(partial(_counted, filling=filling, names=hidden))
        change = Change()
        for name, key in zip(names, keys, strict=True):
            if name not in counted:
                change.drop_unless_in(filling.key, name, key)
        if change:
            await self._link.write(change)
        filling.strings_at = cursor or None

    async def _swap(self, fillings: list[Filling]) -> None:
        """Put filled windows in their places; at the end of a rebuild, all of them at once."""
        change = Change()
        places = [self._place_of(filling) for filling in fillings]
        for place in places:
            self.places.turns.swap(place, change)
        if self._link.holding:
            await self._link.finish(change)
        else:
            await self._link.write(change)
        for place, filling in zip(places, fillings, strict=True):
            self.places.turns.swapped(place)
            self._in_place(place.id, filling.members)
            if place.derivation is not None:
                self._counts.computed += 1
                self._deriving.computed(place, filling.at_ms)

    def sweep_again(self) -> None:
        """Begin to look through all keys once more, unless that is going on."""
        if self._sweep_at is None:
            self._sweep_at = 0

    async def sweep(self) -> bool:
        """Look through one slice of the keys for leftovers.

        Returns whether the next one is wanted at once: in the first pass, which looks for what a
        crash has left. Later ones take a slice a turn, however many keys there are.
        """
        if self._sweep_at is None:
            return False
        cursor, keys = await self._link.keys(self._sweep_at, BOARDS_PATTERN)
        own = self._link.own_keys()
        change = Change()
        for key in keys:
            if key not in own and not self.places.known(key):
                change.unlink(key)
                self._counts.leftovers += 1
        if change:
            await self._link.write(change)
        self._sweep_at = cursor or None
        self._swept = self._swept or not cursor
        return not self._swept


def _counts_of(snapshot: SqliteSnapshot, placed: list[Placed]) -> list[int]:
    """How many members the first of these windows have: as many as there is time for."""
    began_s, found = time.monotonic(), list[int]()
    for each in placed:
        found.append(count_scanned(snapshot, each))
        if time.monotonic() - began_s >= COUNT_S:
            break
    return found


def _counted(snapshot: SqliteSnapshot, filling: Filling, names: list[bytes]) -> frozenset[bytes]:
    """Which of these counters there are."""
    space = filling.placed.space
    return frozenset(member for _, member in snapshot.totals_of((space, name) for name in names))
