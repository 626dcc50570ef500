"""Following what the agents' own spaces say: boards, collected windows, erased and banned members.

A row is acted upon whether it is news or not, so that what a crash or a failover of Redis undid is
done again when the log is followed again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

from agent.crdt.cell import Row
from agent.crdt.space import BANS_SPACE, BOARD_NAME, BOARDS_SPACE, ERASED_SPACE, MARKS_SPACE
from agent.projection.keys import COUNTER_PREFIX
from agent.projection.knowledge import ban_in, collects, is_tombstone
from agent.projection.link import Link
from agent.projection.place import Included
from agent.projection.places import Places
from agent.projection.scripts import Change
from agent.projection.source import Home, read_projected
from agent.store.readers import Readers
from agent.store.snapshot import SqliteSnapshot

HOMES_MAX = 1_000  # read at a time: ten milliseconds


class Rulings:
    """Does what changed cells of own spaces say, over one adopted watermark."""

    def __init__(self, link: Link, readers: Readers, places: Places) -> None:
        self._link = link
        self._readers = readers
        self._places = places

    async def follow(self, rows: Sequence[Row], before: Included) -> None:
        """Take over changed cells: what goes before the members that changed with them.

        Args:
            before: what all sets include without them.
        """
        places, nonce = self._places, f"{self._link.watermark.batch:x}"
        known = places.knowledge.erased
        places.knowledge = places.knowledge.with_rows(rows)
        change = Change()
        names = _names_of(row for row in rows if row.space == BOARDS_SPACE)
        if names:
            read = partial(_spaces_of, names=names)
            spaces = await self._link.keep(partial(self._readers.read, read))
            # Members read by an older definition may still be written: the scan, which begins
            # after this, writes all of them again.
            places.follow(names, spaces, nonce, change)
        for row in rows:
            if row.space == MARKS_SPACE and collects(row):
                places.collect(row, change)
        nameless = False
        for row in rows:
            if row.space == ERASED_SPACE and is_tombstone(row):
                name = row.body if row.major == 1 else known.get(row.member)
                nameless = nameless or not name
                if name:
                    change = await self._erase(name, before, change)
        if nameless:
            change = await self._fill_all(nonce, change)
        if change:
            await self._link.write(change)

    async def _erase(self, name: bytes, before: Included, change: Change) -> Change:
        """Take a name out of everything; returns the change to go on with."""
        for place in self._places.of(""):
            self._places.take_out(place, name, change)
            if place.derivation is not None:
                self._places.fall_behind(place, before, change)
            change = await self._flushed(change)
        change.unlink(COUNTER_PREFIX + name)
        return change

    async def _fill_all(self, nonce: str, change: Change) -> Change:
        """Fill everything anew; returns the change to go on with.

        A tombstone that has dropped its name already, before it was followed here, does not say
        whom to take out. What is on its way to a place may have him as well.
        """
        for place in self._places.of(""):
            if not self._places.turns.restart(place, change):
                self._places.refill(place, nonce, change, serve=True)
            change = await self._flushed(change)
        return change

    async def judge(self, rows: Iterable[Row], before: Included, change: Change) -> Change:
        """Take out whom changed bans hide now, and put back whom they hide no more.

        Goes after the members that changed with them. Returns the change to go on with.
        """
        homes: list[Home] = []
        places = self._places
        for ban in map(ban_in, (row for row in rows if row.space == BANS_SPACE)):
            if ban is None:
                continue
            member, board = ban
            for place in places.of(board):
                if places.knowledge.hides(member, place.id[0]):
                    places.take_out(place, member, change)
                elif place.derivation is None:
                    homes.append(Home(place.placed, member))
                if place.derivation is not None:
                    places.fall_behind(place, before, change)
                change = await self._flushed(change)
        for start in range(0, len(homes), HOMES_MAX):
            read = partial(read_projected, homes=homes[start : start + HOMES_MAX])
            members = await self._link.keep(partial(self._readers.read, read))
            places.put(change, members)
            change = await self._flushed(change)
        return change

    async def _flushed(self, change: Change) -> Change:
        """Make a change that is full; returns the one to go on with."""
        if not change.full:
            return change
        await self._link.write(change)
        return Change()


def _names_of(rows: Iterable[Row]) -> list[str]:
    """The boards whose cells these are; others are nobody's."""
    names = {row.member.decode(errors="replace") for row in rows}
    return sorted(name for name in names if BOARD_NAME.fullmatch(name))


def _spaces_of(snapshot: SqliteSnapshot, names: Sequence[str]) -> dict[str, list[bytes]]:
    """By board, all spaces of it that hold cells."""
    return {name: snapshot.spaces_of(bytes([len(name)]) + name.encode()) for name in names}
