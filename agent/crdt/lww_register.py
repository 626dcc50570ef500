"""LWW-register: the newest score, ordered by (hybrid time, score, data).

Johnson, Thomas: The maintenance of duplicate databases (RFC 677, 1975); hybrid times are those of
agent/crdt/hybrid_clock.py. An entry with a time of its own has counter 0 and never moves the clock.
Equal times: the higher score, then the greater data bytes.
"""

from __future__ import annotations

from agent.crdt import hybrid_clock
from agent.crdt.cell import Value, join


def write(current: Value | None, hybrid_time: int, score: int, data: bytes) -> Value:
    """The register after a score was written at `hybrid_time`."""
    return join(current, (hybrid_time, score, data))


def score_of(value: Value) -> int:
    """The newest score."""
    return value[1]


def reached_ms_of(value: Value) -> int:
    """The time of the newest score, in ms since 1970."""
    return hybrid_clock.ms_of(value[0])
