"""Max-register: the best score ever, with the earliest time it was reached.

The value is (score, minus the time, data): the greater score wins, then the earlier time, then the
greater data bytes, so the order is total and two regions can't disagree (rule T). For boards where
lower is better the score is stored negated. Repeating one's own best never moves the time.
"""

from __future__ import annotations

from agent.crdt.cell import Value, join


def of(score: int, at_ms: int, data: bytes, *, low: bool) -> Value:
    """The value that one result alone makes. |score| <= 2**53 - 1."""
    return (-score if low else score, -at_ms, data)


def offer(current: Value | None, score: int, at_ms: int, data: bytes, *, low: bool) -> Value:
    """The register after a result was offered to it."""
    return join(current, of(score, at_ms, data, low=low))


def score_of(value: Value, *, low: bool) -> int:
    """The best score."""
    return -value[0] if low else value[0]


def reached_ms_of(value: Value) -> int:
    """The earliest time, in ms since 1970, at which the best score was reached."""
    return -value[1]
