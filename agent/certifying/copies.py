"""Copies of standings: made of this agent's own cells, or fetched, and what came after them.

Everything large is done on threads and kept in chunks, each an operation of its own, so that no
write waits long.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterator
from dataclasses import replace
from itertools import islice

import structlog

from agent.boards.catalog import Placed
from agent.boards.erasures import Erasures
from agent.boards.final_rows import CHUNK_ROWS, FinalRow, pack_chunk, without_names
from agent.boards.finals import Certificate, Discard, Shelve
from agent.boards.marks import name_of_space
from agent.certifying.fetched import Fetched
from agent.certifying.looking import hash_in_force
from agent.certifying.window import Copied
from agent.commit import CommitQueue
from agent.state import State
from agent.store.finals import Held, hashes_of, held_late, held_of, rows_of
from agent.store.readers import Readers
from agent.store.snapshot import SqliteSnapshot
from agent.store.standings import LateList, Ordered, Pace, Summed, differences, summed

log = structlog.get_logger("tallyring.certifying")

CHUNKS_AT_ONCE = 2  # in one transaction
REST_S = 0.02  # between two of them

Fetch = Callable[[bytes, bytes, int], Awaitable[bytes | None]]
"""(space, hash, number) -> a chunk of a final from some other agent, unchecked; None: from none."""


class Copies:
    """Makes, fetches and removes copies.

    Args:
        queue: where they are kept.
        readers: of the certifier's own.
        fetch: gets chunks from others.
    """

    def __init__(self, queue: CommitQueue, readers: Readers, fetch: Fetch) -> None:
        self._queue = queue
        self._readers = readers
        self._fetch = fetch
        self.scans = 0
        self.late: dict[bytes, LateList] = {}
        # By window, of which final it is, and who was in no list then.
        self._listed: dict[bytes, tuple[bytes, frozenset[bytes], int]] = {}

    async def sum_of(self, placed: Placed, state: State) -> Summed:
        """The sum over the digests of a window's standings.

        Raises:
            StoreError: the file can't be read.
        """
        closed = state.erased.closed
        self.scans += 1
        return await self._readers.read(lambda found: summed(found, placed, closed, Pace()))

    async def make(
        self, placed: Placed, state: State, key: bytes, fits: Callable[[int], bool]
    ) -> Copied | None:
        """Copy the standings of a window; None, and nothing is kept, where their sum does not fit.

        Args:
            key: with which names are hashed.
            fits: whether this is the sum of the standings that are to be copied.

        Raises:
            Refused, Indefinite: a part was not stored.
            StoreError: the file can't be read.
        """
        hidden, closed = frozenset(state.bans.hidden(placed.board.name)), state.erased.closed
        self.scans += 1
        ordered = await self._readers.read(
            lambda found: Ordered(found, placed, closed, hidden, Pace())
        )
        try:
            if not fits(ordered.summed.total):
                return None
            hash_ = await asyncio.to_thread(ordered.hash, key, Pace())
            await self._keep(placed.space, hash_, ordered.rows(key), ordered.summed, state.erased)
        finally:
            ordered.close()
        return Copied(hash_, ordered.summed.lsn)

    async def _keep(
        self,
        space: bytes,
        hash_: bytes,
        rows: Iterator[FinalRow],
        copied: Summed,
        erased: Erasures,
    ) -> None:
        number, kept = 0, 0
        while True:
            chunks = await asyncio.to_thread(_next_chunks, rows, number)
            kept += sum(count for _, _, count in chunks)
            parts = tuple((at, chunk) for at, chunk, _ in chunks)
            complete = kept >= copied.members
            members = copied.members if complete else None
            await self._shelve(Shelve(space, hash_, parts, members, lsn=copied.lsn), erased)
            if complete:
                return
            number += len(chunks)
            await asyncio.sleep(REST_S)

    async def _shelve(self, kept: Shelve, erased: Erasures) -> None:
        """Keep chunks, without the names that were erased since `erased`.

        One erased while they are written is taken out after it: the purge of its name may have
        passed by before they were there.
        """
        while True:
            current = self._queue.state.erased
            if current is not erased:
                kept = await asyncio.to_thread(_without_names, kept, current.closed)
                erased = current
            await self._queue.submit(kept)
            if self._queue.state.erased is erased:
                return

    async def get(self, space: bytes, told: Certificate) -> bool:
        """Fetch the rows of a certificate from others; whether all of them are here now.

        Raises:
            Refused, Indefinite: a part was not stored.
        """
        erased = self._queue.state.erased
        fetched = Fetched(space, told, erased.closed)
        for number in range(fetched.last + 1):
            chunk = await self._fetch(space, told.hash, number)
            if chunk is None:
                return False
            try:
                kept = await asyncio.to_thread(fetched.take, number, chunk)
            except ValueError as error:
                log.warning("a final is refused", window=name_of_space(space), why=str(error))
                await self._discard_parts(space)
                return False
            await self._shelve(kept, erased)
        return True

    async def _discard_parts(self, space: bytes) -> None:
        """Remove copies of which not all rows are here."""
        held = await self._readers.read(lambda found: held_of(found, space))
        await self.discard(space, {its.hash for its in held})

    async def discard(self, space: bytes, kept: Collection[bytes]) -> None:
        """Remove copies that became no final: all but those of these hashes.

        Raises:
            Refused, Indefinite: nothing was removed.
        """
        found = await self._readers.read(lambda snapshot: hashes_of(snapshot, space))
        if found - set(kept):
            await self._queue.submit(Discard(space, tuple(sorted(kept))))

    async def list_late(self) -> None:
        """Look through the finals from which live standings may differ, where they have changed.

        Raises:
            StoreError: the file can't be read.
        """
        state = self._queue.state
        listed = await self._readers.read(
            lambda found: [
                its for its in held_late(found) if hash_in_force(found, its.space) == its.hash
            ]
        )
        for space in self.late.keys() - {held.space for held in listed}:
            del self.late[space]  # another version is in force now
        for held in listed:
            space, known = held.space, self.late.get(held.space)
            touched = max(state.touched.get(space, 0), state.touched_floor)
            placed = state.catalog.placed(space)
            if placed is None or state.marks.collects(space):
                self.late.pop(space, None)
                continue
            hidden = frozenset(state.bans.hidden(placed.board.name))
            of = held.hash, hidden, len(state.erased)
            if known is not None and known.lsn >= touched and self._listed[space] == of:
                continue
            found = await self._readers.read(_late_reader(held, placed, state, hidden))
            self.scans += found is not None
            if found is not None:
                self.late[space], self._listed[space] = found, of


def _late_reader(
    held: Held,
    placed: Placed,
    state: State,
    hidden: frozenset[bytes],
) -> Callable[[SqliteSnapshot], LateList | None]:
    def read(snapshot: SqliteSnapshot) -> LateList | None:
        if hash_in_force(snapshot, held.space) != held.hash:
            return None
        rows = rows_of(snapshot, held.space, held.hash)
        return differences(snapshot, placed, state.erased.closed, hidden, rows, Pace())

    return read


def _without_names(kept: Shelve, erased: Callable[[bytes], bool]) -> Shelve:
    chunks = tuple((at, without_names(chunk, erased) or chunk) for at, chunk in kept.chunks)
    return replace(kept, chunks=chunks)


def _next_chunks(rows: Iterator[FinalRow], number: int) -> list[tuple[int, bytes, int]]:
    """The next chunks of rows as (number, bytes, rows); one empty chunk where there are none."""
    found: list[tuple[int, bytes, int]] = []
    for at in range(number, number + CHUNKS_AT_ONCE):
        part = list(islice(rows, CHUNK_ROWS))
        if not part and (found or number):
            break
        found.append((at, pack_chunk(part), len(part)))
    return found
