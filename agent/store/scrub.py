"""Scrubbing: reading cells to see whether they are what was written, here and at a peer. Pure.

Two agents compare page by page: the one that walks sends where its page begins and ends, and the
XOR of its cells' fingerprints, computed anew from their values; where the other's differs, it
answers its cells. What differs is often only on its way. It is wrong, and no exchange would mend
it, where the side that lacks it has read the other's log beyond it (I3 of docs/protocol.md): so
each side says how far it has read, and each cell whether it lies below that.

A space that is collected at one of the two is passed over: there it goes, and nothing of it is
taken any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, TypeAlias

from agent.crdt.cell import Key, Row
from agent.crdt.fingerprint import Stored, fingerprint, fits
from agent.exchange import row_bytes

PAGE_CELLS = 500
PAGE_BYTES_MAX = 512 * 1024  # of the cells in one answer, before compression
START: tuple[bytes, bytes] = (b"", b"")

Place: TypeAlias = tuple[bytes, bytes]
"""(member, slot): where in a space."""


class PageSnapshot(Protocol):
    """One consistent state, as far as pages are read from it."""

    def space_after(self, space: bytes) -> bytes | None:
        """The next space in the order of their bytes."""

    def collects(self, space: bytes) -> bool:
        """Whether a mark says that a space is collected: what is left of it is being dropped."""

    def read_to(self, log: int) -> int | None:
        """How far another agent's log was read; None where nothing of it was."""

    def stored_after(
        self, space: bytes, after: Place, upto: Place | None, limit: int
    ) -> list[Stored]:
        """The cells of a space above one place, up to another one or to the end."""


@dataclass(frozen=True, slots=True)
class Page:
    """Cells of one space: all that are above `after`, up to `upto` or to the end of the space.

    damaged: those of `cells` that do not fit their fingerprint.
    sum: the XOR of all fingerprints, as the values make them.
    read_to: how far the peer's log is read.
    following: the next space here; None after the last.
    collected: the space is collected here.
    """

    space: bytes
    after: Place
    upto: Place | None
    cells: tuple[Stored, ...]
    damaged: tuple[Stored, ...]
    sum: int
    read_to: int = 0
    following: bytes | None = None
    collected: bool = False


class Held(NamedTuple):
    """A cell of the peer's page. `settled`: the one that asks has read the peer's log beyond it."""

    row: Row
    settled: bool


@dataclass(frozen=True, slots=True)
class PageAnswer:
    """What a peer has where another one has a page.

    same: it has the same, or the space is collected there; then there is nothing else to tell but
        `following`.
    upto: where its answer ends, if before the end of the page.
    cells: all of its cells there that are not damaged.
    damaged: those that are.
    read_to: how far it has read the log of the one that asks.
    following: its next space.
    """

    same: bool
    upto: Place | None = None
    cells: tuple[Held, ...] = ()
    damaged: tuple[Place, ...] = ()
    read_to: int = 0
    following: bytes | None = None


class Pair(NamedTuple):
    """One cell here and at the peer; None where it is not."""

    here: Row | None
    there: Row | None


@dataclass(slots=True)
class Findings:
    """What is wrong in a page. Everything that is only on its way is left out.

    damaged: cells here that do not fit their fingerprint.
    lacking: cells of which the peer has a greater value, that I should have.
    lacking_there: the other way round.
    forked: cells of one stamp and two values.
    damaged_there: keys of damaged cells at the peer.
    """

    damaged: list[Stored] = field(default_factory=list)
    lacking: list[Pair] = field(default_factory=list)
    lacking_there: list[Pair] = field(default_factory=list)
    forked: list[Pair] = field(default_factory=list)
    damaged_there: list[Key] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(
            self.damaged or self.lacking or self.lacking_there or self.forked or self.damaged_there
        )


def read_page(
    snapshot: PageSnapshot,
    space: bytes,
    after: Place,
    peer_log: int,
    *,
    upto: Place | None = None,
    limit: int = PAGE_CELLS,
) -> Page:
    """The next page of a space here, up to some place or to its end.

    `peer_log` is the log of the agent to compare with, or 0.
    """
    cells = snapshot.stored_after(space, after, upto, limit)
    if len(cells) == limit:
        upto = cells[-1].row[1:3]
    total, damaged = _examine(cells)
    return Page(
        space,
        after,
        upto,
        tuple(cells),
        tuple(damaged),
        total,
        (snapshot.read_to(peer_log) or 0) if peer_log else 0,
        snapshot.space_after(space),
        collected=snapshot.collects(space),
    )


def _examine(cells: Iterable[Stored]) -> tuple[int, list[Stored]]:
    """(the XOR of the cells' fingerprints as computed anew, those that do not fit theirs).

    A value that has no fingerprint (a text as major) is left out: its count is there.
    """
    total, damaged = 0, []
    for cell in cells:
        if whole(cell):
            total ^= cell.mark
            continue
        damaged.append(cell)
        if is_row(cell.row):
            total ^= fingerprint(cell.row)
    return total, damaged


def whole(cell: Stored) -> bool:
    """Whether a cell fits its fingerprint, and the rest of it are numbers."""
    row = cell.row
    return fits(row, cell.mark) and type(cell.lsn) is type(row.inc) is type(row.seq) is int


def is_row(row: Row) -> bool:
    """Whether a row's parts are of their types: SQLite stores whatever it is given."""
    numbers = (row.major, row.minor, row.inc, row.seq)
    return type(row.body) is bytes and all(type(number) is int for number in numbers)


def answer_page(
    snapshot: PageSnapshot,
    asked: Page,
    count: int,
    asker_log: int,
    limit: int = PAGE_CELLS,
) -> PageAnswer:
    """What this agent has where another one has a page of `count` cells; `asked` holds no cells.

    `asked.read_to` is how far the asker has read this agent's log, 0 for another log than the
    present one.
    """
    follows = snapshot.space_after(asked.space)
    if snapshot.collects(asked.space):
        return PageAnswer(True, following=follows)
    cells = snapshot.stored_after(asked.space, asked.after, asked.upto, max(limit, count + 1))
    total, damaged = _examine(cells)
    if not damaged and len(cells) == count and total == asked.sum:
        return PageAnswer(True, following=follows)
    kept = _cut(cells, limit)
    bad = {cell.row.key for cell in damaged}
    return PageAnswer(
        same=False,
        upto=None if len(kept) == len(cells) < max(limit, count + 1) else kept[-1].row[1:3],
        cells=tuple(
            Held(cell.row, cell.lsn <= asked.read_to) for cell in kept if cell.row.key not in bad
        ),
        damaged=tuple(cell.row[1:3] for cell in kept if cell.row.key in bad),
        read_to=snapshot.read_to(asker_log) or 0,
        following=follows,
    )


def _cut(cells: Sequence[Stored], limit: int) -> Sequence[Stored]:
    """The first of the cells: at least one of them, and no more than fit into an answer."""
    size = 0
    for index, cell in enumerate(cells[:limit]):
        size += row_bytes(cell.row)
        if size > PAGE_BYTES_MAX and index:
            return cells[:index]
    return cells[:limit]


def compare(page: Page, answer: PageAnswer | None) -> Findings:
    """What is wrong in a page, by itself (None) and beside a peer's answer."""
    found = Findings()
    upto = page.upto if answer is None else end_of(page, answer)
    here = {c.row.key: c for c in page.cells if upto is None or c.row[1:3] <= upto}
    bad = {c.row.key for c in page.damaged}
    found.damaged = [c for c in page.damaged if c.row.key in here]
    if answer is None or answer.same or page.collected:
        return found
    there = {held.row.key: held for held in answer.cells}
    found.damaged_there = [(page.space, *place) for place in answer.damaged]
    unclear = bad | set(found.damaged_there)
    for key, held in there.items():
        mine = here.get(key)
        if key in unclear:
            continue
        if mine is not None and mine.row[6:] == held.row[6:] and mine.row.value != held.row.value:
            found.forked.append(Pair(mine.row, held.row))
        if held.settled and (mine is None or mine.row.value < held.row.value):
            found.lacking.append(Pair(None if mine is None else mine.row, held.row))
    for key, cell in here.items():
        its = there.get(key)
        if key in unclear or cell.lsn > answer.read_to:
            continue
        if its is None or its.row.value < cell.row.value:
            found.lacking_there.append(Pair(cell.row, None if its is None else its.row))
    return found


def end_of(page: Page, answer: PageAnswer) -> Place | None:
    """How far a comparison has come: to the end of the page, or of the answer where it was cut."""
    if answer.upto is None or (page.upto is not None and page.upto < answer.upto):
        return page.upto
    return answer.upto
