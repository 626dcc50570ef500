"""Filling boards: one slice of work at a time, so that the log is followed meanwhile."""

from __future__ import annotations

from functools import partial

from agent.projection.keys import BOARDS_PATTERN, COUNTER_PREFIX, COUNTERS_PATTERN
from agent.projection.link import Link
from agent.projection.refill import Filling, Places
from agent.projection.scripts import Change
from agent.projection.source import Members, read_members
from agent.projection.status import Counts
from agent.store.readers import Readers

SCAN_CELLS_MAX = 2_000  # read at a time, while the ones before are written
SCAN_CHUNKS = 6  # in one turn: about 100 ms between two looks at the log
FILL_MEMBERS_MAX = 1_000  # of one script call: stalls Redis for 2 to 3 ms


class Filler:
    """Fills boards and removes leftover keys, over one adopted or begun watermark.

    Methods raise what `Link.write` raises; then this filler is void, and another one is made from
    what is found in Redis.
    """

    def __init__(self, link: Link, readers: Readers, places: Places, counts: Counts) -> None:
        self._link = link
        self._readers = readers
        self._counts = counts
        self._sweep_at: int | None = 0
        self.places = places

    async def fill(self) -> bool:
        """Give one slice to a board that is being filled; returns whether there was one."""
        filling = self.places.next_turn()
        if filling is None:
            if not self._link.holding:
                return False
            await self._swap(self.places.fillings())
            return True
        if not filling.scanned:
            await self._scan(filling)
        elif filling.strings_at is not None:
            await self._drop_strings(filling, filling.strings_at)
        if filling.ready and not self._link.holding:
            await self._swap([filling])
        return True

    async def _scan(self, filling: Filling) -> None:
        """Write the next members of a board into its new key, reading ahead while writing.

        Nothing that is read here is written after the log was looked at again: by then it might
        be older than what the log says.
        """
        chunk = await self._link.keep(partial(self._read, filling, filling.after))
        for left in range(SCAN_CHUNKS, 0, -1):
            if filling.total is None:
                filling.total = chunk.total
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
        read = partial(
            read_members,
            board=filling.board,
            after=after,
            cells_max=SCAN_CELLS_MAX,
            count=filling.total is None and not after,
        )
        return await self._readers.read(read)

    async def _put(self, filling: Filling, chunk: Members) -> None:
        assert chunk.last is not None
        pairs, size = chunk.scores_and_members, 2 * FILL_MEMBERS_MAX
        for start in range(0, len(pairs), size):
            part = pairs[start : start + size]
            change = Change()
            change.add(filling.key, part)
            strings = iter(chunk.counters[start : start + size])
            for name, value in zip(strings, strings, strict=True):
                change.put(COUNTER_PREFIX + name, value)
            await self._link.write(change)
            filling.filled = True
            filling.members += len(part) // 2
            self._counts.refilled += len(part) // 2
        self._counts.clamped += chunk.clamped
        filling.after = chunk.last

    async def _drop_strings(self, filling: Filling, cursor: int) -> None:
        """Remove strings of counters that the new key does not have: of an old generation."""
        cursor, keys = await self._link.keys(cursor, COUNTERS_PATTERN)
        change = Change()
        for key in keys:
            change.drop_unless_in(filling.key, key.removeprefix(COUNTER_PREFIX), key)
        if change:
            await self._link.write(change)
        filling.strings_at = cursor or None

    async def _swap(self, fillings: list[Filling]) -> None:
        """Put filled boards in their places; at the end of a rebuild, all of them at once."""
        change = Change()
        for filling in fillings:
            self.places.swap(filling, change)
        if self._link.holding:
            await self._link.finish(change)
        else:
            await self._link.write(change)
        for filling in fillings:
            self.places.swapped(filling)

    async def sweep(self) -> bool:
        """Look through one slice of the keys for leftovers; returns whether there was one."""
        if self._sweep_at is None:
            return False
        cursor, keys = await self._link.keys(self._sweep_at, BOARDS_PATTERN)
        known = self.places.known_keys() | self._link.own_keys()
        change = Change()
        for key in keys:
            if key not in known:
                change.unlink(key)
        if change:
            await self._link.write(change)
        self._sweep_at = cursor or None
        return True
