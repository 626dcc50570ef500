"""G-Counter and PN-Counter: per incarnation a `+` slot and a `-` slot, each only grows.

Shapiro, Preguica, Baquero, Zawirski: A comprehensive study of CRDTs (INRIA RR-7506, 2011),
specifications 6 and 7. A slot's value is (total, greatest time at which it rose, b""). Only its
incarnation writes a slot, so the maximum is the newest. Which slot is written is the caller's
choice by incarnation: identity is an argument, never a field of the value.

The score of a member is the sum of its `+` slots minus the sum of its `-` slots. The time at which
the score was reached is the greatest time in the `+` slots that hold something: when the total last
rose. A member that never rose (only zero or negative entries) reached its score at the greatest
time in its slots.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple

from agent.crdt.cell import Value
from agent.crdt.slot import Kind

_UP = int(Kind.UP)  # a plain integer: this module is on the hot path


def add(slot_value: Value | None, amount: int, at_ms: int) -> Value:
    """The slot's value after adding `amount` >= 0 at `at_ms`: the delta and the new value in one.

    Adding 0 to a slot that exists changes nothing; to a new slot, it makes the member known. The
    time of a slot that held 0 gives way to the time of its first rise.
    """
    assert amount >= 0, amount
    if slot_value is None:
        return (amount, at_ms, b"")
    if amount == 0:
        return slot_value
    if slot_value[0] == 0:
        return (amount, at_ms, b"")
    return (slot_value[0] + amount, max(slot_value[1], at_ms), b"")


class Total(NamedTuple):
    """What the counter slots of one member add up to.

    `reached_ms` is the time its score was reached; `rose` tells whether any `+` slot holds
    something, and so which times count. `slots` is how many slots were added up.
    """

    score: int
    reached_ms: int
    rose: bool
    slots: int


total_with: Callable[[tuple[int, int, bool, int]], Total] = partial(tuple.__new__, Total)
"""A total from its parts in order, without the cost of a call in Python: for the hot paths."""


def contribution(kind: int, value: Value) -> Total:
    """What one slot alone adds up to."""
    if kind == _UP:
        return total_with((value[0], value[1], value[0] > 0, 1))
    return total_with((-value[0], value[1], False, 1))


def combine(one: Total | None, two: Total) -> Total:
    """The total of two disjoint sets of slots. Associative and commutative."""
    if one is None:
        return two
    if one.rose == two.rose:
        reached_ms = max(one.reached_ms, two.reached_ms)
    else:
        reached_ms = one.reached_ms if one.rose else two.reached_ms
    return total_with(
        (one.score + two.score, reached_ms, one.rose or two.rose, one.slots + two.slots)
    )


def replace(total: Total | None, kind: int, old: Value | None, new: Value) -> Total:
    """The total after one of its slots grew from `old` to `new`, without reading the others."""
    grown = contribution(kind, new)
    if old is not None:
        before = old[0] if kind == _UP else -old[0]
        grown = Total(grown.score - before, grown.reached_ms, grown.rose, 0)
    return combine(total, grown)


def total_of(slots: Iterable[tuple[int, Value]]) -> Total | None:
    """The total of a member's counter slots, given as (kind byte, value); None without slots."""
    total = None
    for kind, value in slots:
        total = combine(total, contribution(kind, value))
    return total
