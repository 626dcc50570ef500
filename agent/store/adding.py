"""Adding up a member's total anew from its cells, one after the other, in bounded memory.

It comes to what agent.crdt.total.total_of makes of all of them at once. What has to be remembered
from one cell to the next is the sum so far, 64 registers for each segment of a sketch, and which
results were taken back: their cells come after the results', so they are asked for at the first.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Set
from functools import partial
from typing import TypeAlias

from agent.crdt.cell import Value
from agent.crdt.hyperloglog import EMPTY, registers
from agent.crdt.slot import TALLIED_KINDS, Kind
from agent.crdt.total import (
    Total,
    combine,
    contribution,
    more_cells,
    with_registers,
    with_result,
)
from agent.store.lookup import above

Retracted: TypeAlias = Callable[[bytes], Set[bytes]]
"""Which results of a member are taken back: their slots without the kind."""

_RESULT, _RETRACTION, _HLL = int(Kind.RESULT), int(Kind.RETRACTION), int(Kind.HLL)
_SEGMENT_AT = 9  # where a slot names its segment


class Adding:
    """The sum of one member's cells so far.

    Args:
        retracted: asked once at the most, where the member has results.
    """

    __slots__ = ("_ask", "_member", "_registers", "_results", "_retracted", "_segments", "_sum")

    def __init__(self, member: bytes, retracted: Retracted) -> None:
        self._member = member
        self._ask = retracted
        self._retracted: Set[bytes] | None = None
        self._sum: Total | None = None
        self._results: Total | None = None
        self._registers: Total | None = None
        self._segments: dict[bytes, bytes] = {}

    def add(self, slot: bytes, value: Value) -> None:
        """Add one cell; each cell of the member once. One that is not tallied changes nothing."""
        kind = slot[0]
        if kind == _RESULT:
            self._add_result(slot, value)
        elif kind == _RETRACTION:
            self._results = more_cells(self._results, 1)
        elif kind == _HLL:
            segment = slot[_SEGMENT_AT:]
            before = self._segments.get(segment, EMPTY)
            after = bytes(map(max, before, registers(value)))
            self._segments[segment] = after
            self._registers = with_registers(self._registers, before, after, new=True)
        elif kind in TALLIED_KINDS:
            self._sum = combine(self._sum, contribution(kind, value))

    def _add_result(self, slot: bytes, value: Value) -> None:
        if self._retracted is None:
            self._retracted = self._ask(self._member)
        if slot[1:] in self._retracted:
            self._results = more_cells(self._results, 1)
        else:
            self._results = with_result(self._results, value, new=True)

    def total(self) -> Total | None:
        """What the cells add up to; None where none of them is tallied."""
        return self._results or self._registers or self._sum


def retracted_in(db: sqlite3.Connection, space: int | None, member: bytes) -> frozenset[bytes]:
    """Which results of a member are taken back: their slots without the kind."""
    first = bytes([_RETRACTION])
    found = db.execute(
        "SELECT slot FROM cells WHERE space = ? AND member = ? AND slot >= ? AND slot < ?",
        (space, member, first, above(first)),
    )
    return frozenset(slot[1:] for (slot,) in found)


def add_up(
    db: sqlite3.Connection, space: int | None, member: bytes, without: bytes = b""
) -> Total | None:
    """The total of a member from all of its cells, or from all but one.

    What SQLite holds in a damaged cell need not be a number: such a cell is passed over, and the
    total is added up again once it is mended.
    """
    adding = Adding(member, partial(retracted_in, db, space))
    for slot, major, minor, body in db.execute(
        "SELECT slot, major, minor, body FROM cells WHERE space = ? AND member = ? ORDER BY slot",
        (space, member),
    ):
        if slot and slot != without and type(major) is type(minor) is int and type(body) is bytes:
            adding.add(slot, (major, minor, body))
    return adding.total()
