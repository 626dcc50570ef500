"""The recount: adding up anew, from the cells, what is otherwise kept with every change.

One read transaction over everything, at a bounded pace. What it finds is a difference to what was
kept in the same transaction. It is corrected by adding that difference: sums by XOR and by plus do
not mind what was changed meanwhile.

Totals are compared in spaces of boards that are not collected: of a collected one members may be
dropped in part, and nobody asks for their totals any more.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from agent.boards.tally import MemberKey
from agent.crdt.cell import Row
from agent.crdt.fingerprint import BUCKETS, Change, Stored, bucket_of
from agent.crdt.slot import TALLIED_KINDS, Kind
from agent.crdt.space import is_own
from agent.crdt.total import Total
from agent.operation import Correction
from agent.store.adding import Adding
from agent.store.scrub import START, whole
from agent.store.snapshot import SqliteSnapshot

PAGE_CELLS = 2_000
_FACT = bytes([Kind.FACT])
MEMBERS_MAX = 10_000  # whose totals are corrected at a time; more are found by the next recount


class WrongSum(NamedTuple):
    """A bucket whose sum is not that of its cells: (fingerprint, cells) as kept and as counted."""

    bucket: int
    kept: tuple[int, int]
    counted: tuple[int, int]


class WrongTotal(NamedTuple):
    """A member whose total is not what its cells add up to."""

    member: MemberKey
    kept: Total | None
    counted: Total | None


@dataclass(slots=True)
class Recount:
    """What a recount found.

    cells, facts: how many there are.
    damaged: those that do not fit their fingerprint. The sums can't be corrected before they are
        mended: of their buckets and members nothing is said.
    flips: by how much the root is wrong.
    missing, missing_facts: by how much the numbers of cells and of facts are wrong.
    """

    cells: int = 0
    damaged: list[Stored] = field(default_factory=list)
    sums: list[WrongSum] = field(default_factory=list)
    totals: list[WrongTotal] = field(default_factory=list)
    flips: int = 0
    missing: int = 0
    missing_facts: int = 0
    facts: int = 0

    def __bool__(self) -> bool:
        return bool(self.sums or self.totals or self.flips or self.missing or self.missing_facts)

    def correction(self) -> Correction:
        """What puts the sums right."""
        return Correction(
            buckets={
                bucket: Change(kept[0] ^ counted[0], counted[1] - kept[1])
                for bucket, kept, counted in self.sums
            },
            flips=self.flips,
            cells=self.missing,
            facts=self.missing_facts,
            members=tuple(wrong.member for wrong in self.totals),
        )


def recount(snapshot: SqliteSnapshot, pause: Callable[[int], None]) -> Recount:
    """Add up everything anew; `pause` is told of each page of so many cells, and may wait."""
    found = Recount()
    sums = [[0, 0] for _ in range(BUCKETS)]
    for space in snapshot.spaces():
        _count_space(snapshot, space, sums, found, pause)
    unclear = {bucket_of(cell.row.key) for cell in found.damaged}
    root = 0
    for bucket, (kept, (mark, cells)) in enumerate(zip(snapshot.buckets(), sums, strict=True)):
        root ^= mark
        if tuple(kept) != (mark, cells) and bucket not in unclear:
            found.sums.append(WrongSum(bucket, (kept[0], kept[1]), (mark, cells)))
    if not found.damaged:
        found.flips = root ^ snapshot.root
        found.missing = found.cells - snapshot.cells_kept
        found.missing_facts = found.facts - snapshot.facts
    return found


class _Members:
    """The totals of a space's members, as far as it was read: those of whole members at a time."""

    def __init__(self, snapshot: SqliteSnapshot, space: bytes) -> None:
        self._snapshot = snapshot
        self._space = space
        self._retracted = partial(snapshot.retracted, space)
        self._counted: dict[bytes, Adding] = {}
        self._damaged: set[bytes] = set()
        self._done = b""

    def add(self, row: Row) -> None:
        """Add a cell to its member's total."""
        if row.slot[0] not in TALLIED_KINDS:
            return
        adding = self._counted.get(row.member)
        if adding is None:
            adding = self._counted[row.member] = Adding(row.member, self._retracted)
        adding.add(row.slot, row.value)

    def pass_over(self, member: bytes) -> None:
        """Say nothing of a member: one of its cells is damaged."""
        self._damaged.add(member)

    def compare(self, found: Recount, upto: bytes | None) -> None:
        """Compare the totals of the next members, up to before one that may go on, or to the end.

        What was added up of them is forgotten.
        """
        kept = dict(self._snapshot.totals_kept(self._space, self._done, upto))
        last = None if upto is None else self._counted.pop(upto, None)
        for name in sorted(self._counted.keys() | kept.keys()):
            total = self._counted[name].total() if name in self._counted else None
            expected = total if total is not None and total.slots > 1 else None
            right = kept.get(name) == expected
            if not right and name not in self._damaged and len(found.totals) < MEMBERS_MAX:
                found.totals.append(WrongTotal((self._space, name), kept.get(name), total))
        self._counted = {} if upto is None or last is None else {upto: last}
        if upto is not None:
            self._done = upto
            self._damaged &= {upto}


def _count_space(
    snapshot: SqliteSnapshot,
    space: bytes,
    sums: list[list[int]],
    found: Recount,
    pause: Callable[[int], None],
) -> None:
    """Add a space's cells to the sums, and compare its members' totals."""
    members = None
    if not is_own(space) and not snapshot.collects(space):
        members = _Members(snapshot, space)
    after = START
    while True:
        page = snapshot.stored_after(space, after, None, PAGE_CELLS)
        for cell in page:
            _count(cell, sums, found, members)
        end = len(page) < PAGE_CELLS
        after = after if end else page[-1].row[1:3]
        if members is not None:  # the last member of a page may go on in the next
            members.compare(found, None if end else after[0])
        pause(len(page))
        if end:
            return


def _count(cell: Stored, sums: list[list[int]], found: Recount, members: _Members | None) -> None:
    row = cell.row
    found.cells += 1
    found.facts += row.slot[:1] == _FACT
    if not whole(cell):
        found.damaged.append(cell)
        if members is not None:
            members.pass_over(row.member)
        return
    bucket = sums[bucket_of(row.key)]
    bucket[0] ^= cell.mark
    bucket[1] += 1
    if members is not None:
        members.add(row)
