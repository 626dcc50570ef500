"""The recount: adding up anew, from the cells, what is otherwise kept with every change.

One read transaction over everything, at a bounded pace. What it finds is a difference to what was
kept in the same transaction. It is corrected by adding that difference: sums by XOR and by plus do
not mind what was changed meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from agent.boards.tally import MemberKey
from agent.crdt import counter
from agent.crdt.counter import Total
from agent.crdt.fingerprint import BUCKETS, Change, Stored, bucket_of
from agent.crdt.slot import COUNTER_KINDS
from agent.operation import Correction
from agent.store.scrub import START, whole
from agent.store.snapshot import SqliteSnapshot

PAGE_CELLS = 2_000
MEMBERS_MAX = 10_000  # whose totals are corrected at a time; more are found by the next recount


class WrongSum(NamedTuple):
    """A bucket whose sum is not that of its cells: (fingerprint, cells) as kept and as counted."""

    bucket: int
    kept: tuple[int, int]
    counted: tuple[int, int]


class WrongTotal(NamedTuple):
    """A member whose total is not that of its counter slots."""

    member: MemberKey
    kept: Total | None
    counted: Total | None


@dataclass(slots=True)
class Recount:
    """What a recount found.

    cells: how many there are.
    damaged: those that do not fit their fingerprint. The sums can't be corrected before they are
        mended: of their buckets and members nothing is said.
    flips: by how much the root is wrong.
    missing: by how much the number of cells is wrong.
    """

    cells: int = 0
    damaged: list[Stored] = field(default_factory=list)
    sums: list[WrongSum] = field(default_factory=list)
    totals: list[WrongTotal] = field(default_factory=list)
    flips: int = 0
    missing: int = 0

    def __bool__(self) -> bool:
        return bool(self.sums or self.totals or self.flips or self.missing)

    def correction(self) -> Correction:
        """What puts the sums right."""
        return Correction(
            buckets={
                bucket: Change(kept[0] ^ counted[0], counted[1] - kept[1])
                for bucket, kept, counted in self.sums
            },
            flips=self.flips,
            cells=self.missing,
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
    return found


def _count_space(
    snapshot: SqliteSnapshot,
    space: bytes,
    sums: list[list[int]],
    found: Recount,
    pause: Callable[[int], None],
) -> None:
    """Add a space's cells to the sums, and compare its members' totals."""
    after, done = START, b""
    carried: dict[bytes, Total] = {}  # the last member of a page may go on in the next
    damaged: set[bytes] = set()
    while True:
        page = snapshot.stored_after(space, after, None, PAGE_CELLS)
        for cell in page:
            _count(cell, sums, found, carried, damaged)
        end = len(page) < PAGE_CELLS
        after = after if end else page[-1].row[1:3]
        last = None if end else after[0]
        whole = {name: total for name, total in carried.items() if name != last}
        _compare_totals(snapshot, space, (done, last), whole, damaged, found)
        carried = {} if last is None or last not in carried else {last: carried[last]}
        done = done if last is None else last
        pause(len(page))
        if end:
            return


def _count(
    cell: Stored,
    sums: list[list[int]],
    found: Recount,
    totals: dict[bytes, Total],
    damaged: set[bytes],
) -> None:
    row = cell.row
    found.cells += 1
    if not whole(cell):
        found.damaged.append(cell)
        damaged.add(row.member)
        return
    bucket = sums[bucket_of(row.key)]
    bucket[0] ^= cell.mark
    bucket[1] += 1
    if row.slot[0] in COUNTER_KINDS:
        part = counter.contribution(row.slot[0], row.value)
        totals[row.member] = counter.combine(totals.get(row.member), part)


def _compare_totals(
    snapshot: SqliteSnapshot,
    space: bytes,
    span: tuple[bytes, bytes | None],
    counted: dict[bytes, Total],
    damaged: set[bytes],
    found: Recount,
) -> None:
    """Compare the totals of the members from one (which was left open) up to before another."""
    kept = dict(snapshot.totals_kept(space, *span))
    for name in sorted(counted.keys() | kept.keys()):
        total = counted.get(name)
        expected = total if total is not None and total.slots > 1 else None
        right = kept.get(name) == expected
        if not right and name not in damaged and len(found.totals) < MEMBERS_MAX:
            found.totals.append(WrongTotal((space, name), kept.get(name), total))
