"""Purging: finding what is left of erased names in the file, so that it can be removed.

Cells are found by seeks as long as a name is known: those under it as a member, in every space.
Where it may stand as an actor or a candidate, and everywhere once a tombstone has dropped its name,
each cell is looked at. Names also stand in the rows of finals, which keep their digests, and in
superseded entries of the log, which are looked at last.
Read in bounded steps, each in a snapshot of its own: nothing that an erasure forbids is taken any
more once its tombstone is here, so what one step has passed stays clean.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from agent.boards.erasures import Erasures
from agent.boards.final_rows import CHUNK_ROWS, without_names
from agent.boards.finals import Shelve
from agent.crdt.cell import Key, Row, row_of
from agent.crdt.sketch import SKETCH_MEMBER
from agent.crdt.slot import Kind
from agent.crdt.space import is_own
from agent.limits import SLOT_BYTES_MAX
from agent.store.finals import chunks_after
from agent.store.scrub import is_row
from agent.store.snapshot import SqliteSnapshot

PAGE_CELLS = 1_000  # looked at in one step
SPACES_MAX = 1_000  # looked into in one step
_LAST_SLOT = b"\xff" * (SLOT_BYTES_MAX + 1)
_START = (b"", b"")


class Found(NamedTuple):
    """What one step found.

    cells: they may not be here any more.
    entries: of the log, by lsn: they may lead nowhere, and say an erased name.
    looked: how many cells, spaces, rows or entries it has read.
    chunks: of finals, without the names.
    """

    cells: list[Key]
    entries: list[int]
    looked: int
    chunks: tuple[Shelve, ...] = ()


class Purge:
    """One pass over the file for what is left of some erased names. It changes nothing.

    Args:
        erased: all erasures; every cell that one of them forbids is found where it is looked at.
        ids: the tombstones for which the pass is made.
    """

    def __init__(self, erased: Erasures, ids: Collection[bytes]) -> None:
        self.ids = frozenset(ids)
        self._erased = erased
        names = [erased.tombstone(each).name for each in sorted(ids)]
        self._names = [name for name in names if name is not None]
        self._everywhere = len(self._names) < len(names)
        self._space, self._after = b"", _START
        self._slot = b""
        self._scanned = False
        self._chunk: int | None = 0  # the last chunk of a final that was looked at; None: all were
        self._lsn = 0
        self.done = False

    def step(self, snapshot: SqliteSnapshot) -> Found:
        """Look further. Call it until `done`, each time in a snapshot made since the last one."""
        if self._names:
            return self._seek(snapshot)
        if not self._scanned:
            return self._scan(snapshot)
        if self._chunk is not None:
            return self._read_final(snapshot, self._chunk)
        return self._read_log(snapshot)

    def _seek(self, snapshot: SqliteSnapshot) -> Found:
        """The cells under one name, in the next spaces."""
        name = self._names[-1]
        cells: list[Key] = []
        looked = 0
        for space in snapshot.spaces():
            if space < self._space:
                continue
            after = (name, self._slot if space == self._space else b"")
            left = PAGE_CELLS - len(cells)
            page = snapshot.stored_after(space, after, (name, _LAST_SLOT), left)
            cells += [cell.row.key for cell in page if self._forbids(cell.row)]
            looked += 1 + len(page)
            self._space, self._slot = space, page[-1].row.slot if page else after[1]
            if len(page) == left or looked >= SPACES_MAX:
                return Found(cells, [], looked)
        self._names.pop()
        self._space, self._slot = b"", b""
        return Found(cells, [], looked)

    def _scan(self, snapshot: SqliteSnapshot) -> Found:
        """The next cells of all that may name somebody who is not their member."""
        looked = 0
        while looked < SPACES_MAX:
            if self._after == _START and not self._may_name(snapshot, self._space):
                page = []
            else:
                page = snapshot.stored_after(self._space, self._after, None, PAGE_CELLS)
            looked += 1 + len(page)
            if len(page) == PAGE_CELLS:
                self._after = (page[-1].row.member, page[-1].row.slot)
            else:
                following = snapshot.space_after(self._space)
                self._scanned = following is None
                self._space, self._after = following or b"", _START
            cells = [cell.row.key for cell in page if self._forbids(cell.row)]
            if page or self._scanned:
                return Found(cells, [], looked)
        return Found([], [], looked)

    def _may_name(self, snapshot: SqliteSnapshot, space: bytes) -> bool:
        """Whether to look at each cell of a space. All of one have the same rule: one tells."""
        if self._everywhere:
            return True
        first = snapshot.stored_after(space, _START, None, 1)
        if not first or is_own(space):
            return False
        row = first[0].row
        return row.member == SKETCH_MEMBER or row.slot[:1] == bytes([Kind.FLAG])

    def _read_final(self, snapshot: SqliteSnapshot, after: int) -> Found:
        """The next chunk of a final; one that is written anew comes again, as the last one."""
        page = chunks_after(snapshot, after, 1)
        self._chunk = page[0][0] if page else None
        chunks = []
        for _, space, hash_, number, chunk in page:
            try:
                kept = without_names(chunk, self._erased.closed)
            except ValueError:  # it can't be shown either: whoever asks for it is told
                continue
            if kept is not None:
                chunks.append(Shelve(space, hash_, ((number, kept),)))
        return Found([], [], CHUNK_ROWS * len(page), tuple(chunks))

    def _read_log(self, snapshot: SqliteSnapshot) -> Found:
        """The next entries of the log that say an erased name."""
        page = snapshot.entries_after(self._lsn, PAGE_CELLS)
        self.done = len(page) < PAGE_CELLS
        if page:
            self._lsn = page[-1][0]
        found = [
            lsn
            for lsn, space, member, slot in page
            if self._forbids(row_of((space, member, slot, 0, 0, b"", 0, 0)))
        ]
        return Found([], found, len(page))

    def _forbids(self, row: Row) -> bool:
        """Whether a row may not be here; a damaged one is mended first, or found by a scrub."""
        named = type(row.member) is bytes and type(row.slot) is bytes and bool(row.slot)
        return named and is_row(row) and self._erased.forbids(row)
