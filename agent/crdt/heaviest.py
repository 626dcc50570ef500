"""Candidates: the names of the members that may be the heaviest, in fixed memory.

A sketch (sketch.py) answers how often a member was counted, not which members there are. So every
incarnation keeps SETS x WAYS numbered candidates, as a set-associative cache does: a member belongs
to one set, by its hash, and enters it when a way is free or its weight beats the least one there.
The candidates of all incarnations together, each estimated from all sketches, are the heaviest
members: one that is heavy in the sum is at least as heavy in some incarnation's share of the
stream, and is a candidate there.

A set holds WAYS members, so where about as many members are as heavy as there are candidates, some
fall out, always the lightest of their set. By the Poisson distribution of members over sets one
incarnation misses, of its 500 heaviest, 1 in 8,000; of its 1,000 heaviest under 1 %.

    slot   T | incarnation | number of the candidate: 2 bytes
    value  (version, weight, member)

The weight is the logarithm (base 2, in units of 2**-16) of the incarnation's own estimate; with
decay, of what it would be worth at time 0. So two weights that were written at different times
still compare rightly: all estimates age alike. It is written anew once it has grown by REFRESH,
not by each entry: a heavy member rewrites its way 16 times until it has doubled. Only its
incarnation writes a candidate, and the version rises with each overwrite: a chain. A way whose
member is empty is free.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import log2

from agent.crdt.cell import Value
from agent.crdt.decay import FRACTION_BITS, Decay
from agent.crdt.slot import Kind, slot_of_replica

SETS = 256
WAYS = 8
REFRESH = 2**12
"""A sixteenth of a doubling, 4.4 %: how far a candidate's stored weight may be behind."""

_UNIT = 2**16  # of a weight: one doubling
_PARTS = tuple(number.to_bytes(2) for number in range(SETS * WAYS))


def slots_of(inc: int, number: int) -> tuple[bytes, ...]:
    """The slots of an incarnation's candidates of one set, 0 to SETS - 1."""
    prefix, first = _prefix_of(inc), number * WAYS
    return tuple(prefix + part for part in _PARTS[first : first + WAYS])


@lru_cache(maxsize=256)
def _prefix_of(inc: int) -> bytes:
    return slot_of_replica(Kind.TOP, inc)


def weight_of(count: int, landmark: int, decay: Decay) -> int:
    """The weight of a member by its own estimate, `count` > 0 at a landmark."""
    weight = round(log2(count) * _UNIT)
    if decay.half_life_ms is None:
        return weight
    return weight + (landmark - FRACTION_BITS) * _UNIT


def offer(ways: Sequence[Value | None], member: bytes, weight: int) -> tuple[int, Value] | None:
    """(which way, its new value) after a member came to its set; None where nothing changes."""
    for way, value in enumerate(ways):
        if value is not None and value[2] == member:
            return (way, (value[0] + 1, weight, member)) if weight >= value[1] + REFRESH else None
    way = min(range(len(ways)), key=lambda number: _rank(ways[number]))
    least = ways[way]
    if least is None:
        return way, (1, weight, member)
    if least[2] and least[1] >= weight:
        return None
    return way, (least[0] + 1, weight, member)


def _rank(value: Value | None) -> tuple[bool, int]:
    """Which way gives place first: a free one, then the lightest."""
    return (False, 0) if value is None or not value[2] else (True, value[1])


def vacated(value: Value) -> Value:
    """A candidate's way after its member was taken out: free, and no name left in it."""
    return (value[0] + 1, 0, b"")
