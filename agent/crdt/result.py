"""Kept results: one cell a key, so that a single one can be taken back in every region.

    K key    result        (minus the hybrid time of acceptance, score, [rule, at_ms, data])
    X key    retraction    (1, at_ms, b"")

The maximum of two results of one key is the one that was accepted first: the earliest stands, in
every region. A retraction is for ever, whichever result of its key stands or comes later. It
carries the time of the result, so that every agent knows all windows that it belongs to.
"""

from __future__ import annotations

from typing import NamedTuple

import msgpack

from agent.crdt.cell import Value


class Said(NamedTuple):
    """What a result's body says.

    rule: how results add up: "s" (sum), "h" (the highest) or "l" (the lowest).
    """

    rule: str
    at_ms: int
    data: bytes


def of(hybrid_time: int, score: int, rule: str, at_ms: int, data: bytes) -> Value:
    """The cell of a result that was accepted at a hybrid time."""
    body: bytes = msgpack.packb((rule, at_ms, data))
    return (-hybrid_time, score, body)


def unpack(value: Value) -> Said:
    """What a result says; ("s", 0, b"") for one that this version can't read."""
    try:
        rule, at_ms, data = msgpack.unpackb(value[2])
        if rule in ("s", "h", "l") and type(at_ms) is int and type(data) is bytes:
            return Said(rule, at_ms, data)
    except (ValueError, TypeError, msgpack.UnpackException):
        pass
    return Said("s", 0, b"")


def retraction(at_ms: int) -> Value:
    """The cell that takes a result back."""
    return (1, at_ms, b"")
