"""Sliding windows: the cells of several buckets read as those of one window.

A member's cells in all buckets are pooled into what they would be in one window, and its standing
is that of the pool: counters and registers of sketches are simply all there, of the others one cell
stands for those of the same slot. The scan goes through all buckets at once in the order of their
members' names, with a page of each in memory. Its pages are of states that only get newer, so it
includes whatever was stored before it began.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import TypeAlias

from agent.boards.catalog import Placed
from agent.boards.definition import Definition
from agent.boards.standing import standing_of
from agent.crdt import flag
from agent.crdt.cell import Value
from agent.crdt.slot import Kind
from agent.projection.source import Hides, Members, scored
from agent.store.snapshot import SqliteSnapshot

PAGE_CELLS_MIN = 50  # of one bucket, at a time

Slots: TypeAlias = Sequence[tuple[bytes, Value]]


def pooled(definition: Definition, parts: Iterable[Slots]) -> list[tuple[bytes, Value]]:
    """The cells of one member in several buckets as cells of one window.

    Each part is what one bucket holds. Adding up a pool is adding up its parts, but for an actor
    that is present in several of them (once), and for what a bucket takes back of itself.
    """
    if definition.results is not None:
        return [cell for part in parts for cell in _standing(part)]
    if definition.rule in ("sum", "unique"):
        return [cell for part in parts for cell in part]
    stronger = _present if definition.rule == "distinct" else _greater
    pool: dict[bytes, Value] = {}
    for part in parts:
        for slot, value in part:
            known = pool.get(slot)
            if known is None or stronger(value, known):
                pool[slot] = value
    return list(pool.items())


def _greater(one: Value, other: Value) -> bool:
    return one > other


def _present(one: Value, other: Value) -> bool:
    return flag.is_on(one) and not flag.is_on(other)


def _standing(part: Slots) -> Slots:
    """The results of a bucket that are not taken back in it."""
    retracted = {slot[1:] for slot, _ in part if slot[0] == Kind.RETRACTION}
    return [cell for cell in part if cell[0][0] == Kind.RESULT and cell[0][1:] not in retracted]


class SlidingScan:
    """One way through all members of a sliding window.

    Args:
        spaces: of the buckets, oldest first.
    """

    def __init__(self, placed: Placed, spaces: Sequence[bytes]) -> None:
        self._placed = placed
        self._buckets = [_Bucket(space) for space in spaces]

    def next(self, snapshot: SqliteSnapshot, cells_max: int, hides: Hides) -> Members:
        """The next members, from about `cells_max` cells."""
        placed = self._placed
        definition = placed.board.definition
        assert definition is not None
        page = max(PAGE_CELLS_MIN, cells_max // len(self._buckets))
        standings = []
        last: bytes | None = None
        cells = 0
        while cells < cells_max:
            for bucket in self._buckets:
                bucket.fill(snapshot, page)
            names = [bucket.members[0][0] for bucket in self._buckets if bucket.members]
            if not names:
                break
            last = min(names)
            parts = [bucket.take() for bucket in self._buckets if bucket.begins_with(last)]
            cells += sum(map(len, parts))
            standings.append((last, standing_of(definition, pooled(definition, parts))))
        pairs, clamped = scored(placed, standings, hides)
        return Members(pairs, [], last, clamped)


class _Bucket:
    """The next members of one bucket."""

    __slots__ = ("_after", "_space", "members")

    def __init__(self, space: bytes) -> None:
        self._space = space
        self._after: bytes | None = b""
        self.members: deque[tuple[bytes, Slots]] = deque()

    def fill(self, snapshot: SqliteSnapshot, cells_max: int) -> None:
        """Read the next page where there is none."""
        if self.members or self._after is None:
            return
        self.members.extend(snapshot.members_after(self._space, self._after, cells_max))
        self._after = self.members[-1][0] if self.members else None

    def begins_with(self, member: bytes) -> bool:
        """Whether this member is the next one here."""
        return bool(self.members) and self.members[0][0] == member

    def take(self) -> Slots:
        """The cells of the next member."""
        return self.members.popleft()[1]
