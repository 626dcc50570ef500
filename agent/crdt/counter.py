"""G-Counter and PN-Counter: per incarnation a `+` slot and a `-` slot, each only grows.

Shapiro, Preguica, Baquero, Zawirski: A comprehensive study of CRDTs (INRIA RR-7506, 2011),
specifications 6 and 7. A slot's value is (total, greatest time at which it rose, b""). Only its
incarnation writes a slot, so the maximum is the newest. Which slot is written is the caller's
choice by incarnation: identity is an argument, never a field of the value.

The score of a member is the sum of its `+` slots minus the sum of its `-` slots, minus what voids
take out of it (fact.py). The time at which the score was reached is the greatest time in the `+`
slots that hold something: when the total last rose. A member that never rose (only zero or negative
entries) reached its score at the greatest time in its slots.
"""

from __future__ import annotations

from agent.crdt.cell import Value


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
