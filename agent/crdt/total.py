"""Totals: what the cells of one member add up to, where its score is more than one cell.

A total is kept in the transaction that changes a cell, from the cell's old and new value, so that
nothing is ever added up again to answer or to project. It is not replicated: it follows from the
cells, and `total_of` is the definition that every way of keeping it has to agree with.

    cells                  score                               time reached
    + and - slots, voids   sum of + minus sum of - minus voids counter.py
    flags                  how many actors are present         none
    results                of those that stand: result.py      result.py
    registers              harmonic sum: hyperloglog.py        how many registers are empty
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple

from agent.crdt import hyperloglog, result
from agent.crdt.cell import Value
from agent.crdt.slot import TALLIED_KINDS, Kind

# Plain integers: this module is on the hot path.
_UP, _DOWN, _VOID, _FLAG = int(Kind.UP), int(Kind.DOWN), int(Kind.VOID), int(Kind.FLAG)
_HLL, _RESULT, _RETRACTION = int(Kind.HLL), int(Kind.RESULT), int(Kind.RETRACTION)
NEVER_MS = -(2**63)
"""The time reached of what has none."""


class Total(NamedTuple):
    """What the cells of one member add up to.

    `reached_ms` is the time its score was reached; `rose` tells whether any `+` slot holds
    something, and so which times count. `slots` counts a counter's slot once and every other cell
    twice: a member whose total is more than its only slot says has 2 or more.
    """

    score: int
    reached_ms: int
    rose: bool
    slots: int


total_with: Callable[[tuple[int, int, bool, int]], Total] = partial(tuple.__new__, Total)
"""A total from its parts in order, without the cost of a call in Python: for the hot paths."""


def contribution(kind: int, value: Value) -> Total:
    """What one slot of a counter, one void or one flag alone adds up to."""
    if kind == _UP:
        return total_with((value[0], value[1], value[0] > 0, 1))
    if kind == _DOWN:
        return total_with((-value[0], value[1], False, 1))
    if kind == _VOID:
        return total_with((value[1] - value[0], NEVER_MS, False, 2))
    assert kind == _FLAG, kind
    return total_with((value[0] & 1, NEVER_MS, False, 2))


def combine(one: Total | None, two: Total) -> Total:
    """The total of two disjoint sets of such cells. Associative and commutative."""
    if one is None:
        return two
    if one.rose == two.rose:
        reached_ms = max(one.reached_ms, two.reached_ms)
    else:
        reached_ms = one.reached_ms if one.rose else two.reached_ms
    return total_with(
        (one.score + two.score, reached_ms, one.rose or two.rose, one.slots + two.slots)
    )


def grown(total: Total | None, kind: int, old: Value | None, new: Value) -> Total:
    """The total after one of its cells grew from `old` to `new`, without reading the others."""
    more = contribution(kind, new)
    if old is not None:
        score = more.score - contribution(kind, old).score
        more = total_with((score, more.reached_ms, more.rose, 0))
    return combine(total, more)


def with_registers(total: Total | None, before: bytes, after: bytes, *, new: bool) -> Total:
    """The total of a sketch after the merged registers of one segment rose.

    `new`: whether a cell came with it that was not there.
    """
    harmonic, zeros = hyperloglog.change(before, after)
    slots = 2 if new else 0
    if total is None:
        return total_with(
            (
                hyperloglog.EMPTY_HARMONIC + harmonic,
                hyperloglog.REGISTERS + zeros,
                False,
                slots,
            )
        )
    return total_with(
        (total.score + harmonic, total.reached_ms + zeros, False, total.slots + slots)
    )


def of_results(slots: Iterable[tuple[bytes, Value]]) -> Total | None:
    """The total of a member's results, from all of them and their retractions."""
    cells = list(slots)
    retracted = {slot[1:] for slot, _ in cells if slot[0] == _RETRACTION}
    standing = [value for slot, value in cells if slot[0] == _RESULT and slot[1:] not in retracted]
    count = sum(2 for slot, _ in cells if slot[0] in (_RESULT, _RETRACTION))
    if not count:
        return None
    total = total_with((0, NEVER_MS, False, count))
    for value in standing:
        total = with_result(total, value, new=False)
    return total


def with_result(total: Total | None, value: Value, *, new: bool) -> Total:
    """The total after one more result stands. `new`: its cell was not there before."""
    rule, at_ms, _ = result.unpack(value)
    score, slots = value[1], 2 if new else 0
    if total is None:
        total = total_with((0, NEVER_MS, False, 0))
    slots += total.slots
    if rule == "s":
        whole = combine(total, total_with((score, at_ms, score > 0, 0)))
        return total_with((whole.score, whole.reached_ms, whole.rose, slots))
    better = score > total.score if rule == "h" else score < total.score
    if total.reached_ms == NEVER_MS or better:
        return total_with((score, at_ms, False, slots))
    reached_ms = min(total.reached_ms, at_ms) if score == total.score else total.reached_ms
    return total_with((total.score, reached_ms, False, slots))


def more_cells(total: Total | None, count: int) -> Total:
    """The total after so many cells came that change neither score nor time."""
    if total is None:
        return total_with((0, NEVER_MS, False, 2 * count))
    return total_with((*total[:3], total.slots + 2 * count))


def total_of(slots: Iterable[tuple[bytes, Value]]) -> Total | None:
    """The total of a member from all of its cells; None where none of them is tallied."""
    total: Total | None = None
    results: list[tuple[bytes, Value]] = []
    segments: dict[bytes, list[Value]] = {}
    for slot, value in slots:
        kind = slot[0]
        if kind in (_RESULT, _RETRACTION):
            results.append((slot, value))
        elif kind == _HLL:
            segments.setdefault(slot[9:], []).append(value)
        elif kind in TALLIED_KINDS:
            total = combine(total, contribution(kind, value))
    # A board's shape keeps the rules apart: a member has cells of one of the three.
    if results:
        return of_results(results)
    if segments:
        return _of_segments(segments.values())
    return total


def _of_segments(segments: Iterable[list[Value]]) -> Total:
    total: Total | None = None
    for values in segments:
        merged = hyperloglog.merged(values)
        total = with_registers(total, bytes(len(merged)), merged, new=True)
        total = more_cells(total, len(values) - 1)
    assert total is not None
    return total
