"""Cells: the one idea that carries the system.

The whole replicated state is one set of cells `(space, member, slot) -> (major, minor, body)`.
Two values of a cell join to the lexicographic maximum. That order is total over every byte, so
the join is associative, commutative and idempotent, and it always equals one of its inputs: one
stamp can name the write that made the value (rules T and H of docs/protocol.md).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple, TypeAlias

Value: TypeAlias = tuple[int, int, bytes]
"""(major, minor, body): two signed 64-bit integers, then bytes."""

Key: TypeAlias = tuple[bytes, bytes, bytes]
"""(space, member, slot), each in its canonical encoding."""


class Row(NamedTuple):
    """A cell with the stamp of the write that made its value: what the log and the wire carry.

    `inc` and `seq` name the commit (incarnation, its sequence number) that produced the value.
    """

    space: bytes
    member: bytes
    slot: bytes
    major: int
    minor: int
    body: bytes
    inc: int
    seq: int

    @property
    def key(self) -> Key:
        """The cell's key."""
        return self[:3]

    @property
    def value(self) -> Value:
        """The cell's value."""
        return self[3:6]


RowParts: TypeAlias = tuple[bytes, bytes, bytes, int, int, bytes, int, int]

row_of: Callable[[RowParts], Row] = partial(tuple.__new__, Row)
"""A row from its parts in order, without the cost of a call in Python: for the hot paths."""


def join(mine: Value | None, theirs: Value) -> Value:
    """The least upper bound of two values of one cell: their maximum.

    `None` is the value of a cell that was never written, the bottom of the lattice.
    """
    if mine is None or theirs > mine:
        return theirs
    return mine
