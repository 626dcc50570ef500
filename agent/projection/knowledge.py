"""What the agents' own spaces say, as far as Redis includes it: boards, bans, marks, erasures.

Read at the beginning from a snapshot at or above the watermark, and moved on by the rows that are
followed. A row may be met again that was known already: whoever follows it does what it says in any
case, so that nothing depends on whether it is news.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from agent.boards.bans import Bans
from agent.boards.catalog import Catalog, Placed
from agent.boards.erasures import Erasures
from agent.boards.marks import Marks
from agent.crdt.cell import Row
from agent.crdt.slot import Kind
from agent.crdt.space import BANS_SPACE, BOARDS_SPACE, ERASED_SPACE, MARKS_SPACE

FOLLOWED = frozenset({BOARDS_SPACE, BANS_SPACE, MARKS_SPACE, ERASED_SPACE})


class _SeesSpaces(Protocol):
    """A state whose own spaces can be read."""

    def rows_in(self, space: bytes) -> list[Row]:
        """All rows of one of the agents' own spaces."""


@dataclass(frozen=True, slots=True)
class Knowledge:
    """What decides which members of which windows belong into Redis.

    marks: those of what is collected.
    erased: by tombstone, the names of which something may be left.
    closed: all erasures, also those that came here without a name: a file of long ago may still
        have what they are about, and a member is then told by the hash of its name alone.
    """

    catalog: Catalog = field(default_factory=Catalog)
    bans: Bans = field(default_factory=Bans)
    marks: Marks = field(default_factory=Marks)
    erased: Mapping[bytes, bytes] = field(default_factory=dict)
    closed: Erasures = field(default_factory=Erasures)
    _names: frozenset[bytes] = frozenset()

    def with_rows(self, rows: Iterable[Row]) -> Knowledge:
        """What is known after these changed cells; rows of other spaces are passed over."""
        by_space: dict[bytes, list[Row]] = {space: [] for space in FOLLOWED}
        for row in rows:
            if row.space in FOLLOWED and (row.space != MARKS_SPACE or collects(row)):
                by_space[row.space].append(row)
        names = {row.member: row.body for row in by_space[ERASED_SPACE] if erases(row)}
        # A name that a tombstone has dropped stays known here: what was read before may hold it.
        erased = {**self.erased, **names} if names else self.erased
        return Knowledge(
            self.catalog.with_rows(by_space[BOARDS_SPACE]),
            self.bans.with_rows(by_space[BANS_SPACE]),
            self.marks.with_rows(by_space[MARKS_SPACE]),
            erased,
            self.closed.with_rows(by_space[ERASED_SPACE]),
            frozenset(erased.values()) if names else self._names,
        )

    def hides(self, member: bytes, board: str) -> bool:
        """Whether a member is in no set of a board: it is banned there, or erased."""
        return self.gone(member) or self.bans.hides(member, board)

    def gone(self, member: bytes) -> bool:
        """Whether a member is erased."""
        return member in self._names or self.closed.closed(member)

    def placed(self, space: bytes, now_ms: int) -> Placed | None:
        """The window of a board that is shown in Redis with the members of a space, if any is.

        Args:
            now_ms: the board's time: a window that is kept no longer is not shown.
        """
        placed = self.catalog.placed(space)
        if placed is None or not placed.counted.shown:
            return None
        if placed.expires_ms is not None and placed.expires_ms <= now_ms:
            return None
        return None if self.marks.collects(space) else placed


def collects(row: Row) -> bool:
    """Whether a row of the marks says that windows are collected."""
    return row.slot[0] == Kind.COLLECTED


def is_tombstone(row: Row) -> bool:
    """Whether a row of the erasures is a tombstone, with or without its name."""
    return row.slot[0] == Kind.ERASURE


def erases(row: Row) -> bool:
    """Whether a row of the erasures names who is erased."""
    return is_tombstone(row) and row.major == 1 and bool(row.body)


def ban_in(row: Row) -> tuple[bytes, str] | None:
    """The (member, board) whose ban a row of the bans changes; None for a row of their history."""
    if row.slot[0] != Kind.FLAG or b"\0" in row.slot:
        return None
    return row.member, row.slot[1:].decode(errors="replace")


def read_knowledge(snapshot: _SeesSpaces) -> Knowledge:
    """What a snapshot knows."""
    rows = [row for space in sorted(FOLLOWED) for row in snapshot.rows_in(space)]
    return Knowledge().with_rows(rows)
