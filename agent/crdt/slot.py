"""Slots: one kind byte, then the rest. No two kinds collide, and a reader needs no definition.

A slot has one of four forms, by its kind:

    one        kind                                   best, latest, generation, ring member, ...
    replica    kind | incarnation: 8 bytes | part     counters, sketches (part: which piece)
    name       kind | name: the rest                  one per agent, actor or key
    key        kind | length: 2 bytes | key | incarnation: 8 bytes       facts and voids

All kinds that the design names have their byte from the first day, also those whose types come
later: a byte is never given twice. Integers are big-endian. Frozen: tests/golden/.
"""

from __future__ import annotations

from enum import IntEnum

from agent.errors import Malformed
from agent.limits import SLOT_BYTES_MAX


class Kind(IntEnum):
    """The first byte of a slot: what the cell is. An unknown byte is stored and forwarded."""

    UP = ord("+")  # replica: the increments of one incarnation
    DOWN = ord("-")  # replica: the decrements of one incarnation
    BEST = ord("M")  # one: max-register
    LATEST = ord("L")  # one: LWW-register
    FLAG = ord("C")  # name: causal-length flag of one actor, or a ban
    HLL = ord("H")  # replica: 64 registers; part = segment, 2 bytes
    SKETCH = ord("S")  # replica: a block of a count-min row; part = row 1 byte, block 2 bytes
    TOP = ord("T")  # replica: a numbered top-K candidate; part = number, 2 bytes
    FACT = ord("F")  # key: a keyed entry was counted
    VOID = ord("V")  # key: a duplicate was taken out
    RESULT = ord("K")  # name: a kept result, by its key
    RETRACTION = ord("X")  # name: a kept result taken back, by its key
    DEFINITION = ord("D")  # name: a board's definition, by the agent that wrote it
    GENERATION = ord("G")  # one: a board's generation
    MEMBER = ord("R")  # one: a ring member's status and address
    INCARNATION = ord("I")  # replica: which agent writes as this incarnation
    CLOSE = ord("c")  # name: marks, by agent
    DIGEST = ord("d")
    FROZEN = ord("f")
    COLLECTED = ord("g")
    ACK = ord("a")
    OVERRIDE = ord("o")  # name: an operator's word on a window's final, by version and agent
    CERTIFICATE = ord("Z")  # name: the final of a window, by version and agent
    ERASURE = ord("E")  # one: the tombstone of an erased name


KINDS_OF_ONE = frozenset(
    {
        Kind.BEST,
        Kind.LATEST,
        Kind.GENERATION,
        Kind.MEMBER,
        Kind.ERASURE,
    }
)
KINDS_OF_REPLICA = frozenset(
    {Kind.UP, Kind.DOWN, Kind.HLL, Kind.SKETCH, Kind.TOP, Kind.INCARNATION}
)
KINDS_OF_KEY = frozenset({Kind.FACT, Kind.VOID})
KINDS_OF_NAME = frozenset(Kind) - KINDS_OF_ONE - KINDS_OF_REPLICA - KINDS_OF_KEY

COUNTER_KINDS = frozenset({Kind.UP, Kind.DOWN})
# Kinds of which a member's total is kept with every change: see total.py.
TALLIED_KINDS = COUNTER_KINDS | {Kind.VOID, Kind.FLAG, Kind.RESULT, Kind.RETRACTION, Kind.HLL}
# The counter slots of a member are neighbours in key order: '+' (2B) to '-' (2D). The byte between
# them, ',' (2C), is never given to a kind: a range over both must hold nothing else.
COUNTER_SLOTS_FROM = bytes([Kind.UP])
COUNTER_SLOTS_BEFORE = bytes([Kind.DOWN + 1])


def slot_of_one(kind: Kind) -> bytes:
    """The slot of a kind that a member has once."""
    assert kind in KINDS_OF_ONE, kind
    return bytes([kind])


def slot_of_replica(kind: Kind, inc: int, part: bytes = b"") -> bytes:
    """The slot that only the incarnation `inc` (0 < inc < 2**63) writes."""
    assert kind in KINDS_OF_REPLICA, kind
    return bytes([kind]) + inc.to_bytes(8) + part


def slot_of_name(kind: Kind, name: str) -> bytes:
    """The slot of an agent, an actor or a key.

    Raises:
        Malformed: the slot would be over its limit.
    """
    assert kind in KINDS_OF_NAME, kind
    slot = bytes([kind]) + name.encode()
    if len(slot) > SLOT_BYTES_MAX:
        raise Malformed(f"name: {len(slot) - 1} bytes, at most {SLOT_BYTES_MAX - 1}")
    return slot


def slot_of_key(kind: Kind, key: bytes, inc: int) -> bytes:
    """The slot of an idempotency key as counted by one incarnation."""
    assert kind in KINDS_OF_KEY, kind
    return prefix_of_key(kind, key) + inc.to_bytes(8)


def key_in(slot: bytes) -> tuple[bytes, int]:
    """The (key, incarnation) in a slot of the form *key*.

    Raises:
        Malformed: the slot is not of that form.
    """
    end = 3 + int.from_bytes(slot[1:3])
    if len(slot) != end + 8:
        raise Malformed(f"slot: {len(slot)} bytes are not of the form of a key")
    return slot[3:end], int.from_bytes(slot[end:])


def prefix_of_key(kind: Kind, key: bytes) -> bytes:
    """What the slots of one key begin with, whichever incarnation counted it."""
    return kind.to_bytes() + len(key).to_bytes(2) + key


def incarnation_of(slot: bytes) -> int:
    """The incarnation in a slot of the form *replica*.

    Raises:
        Malformed: the slot is too short to have one.
    """
    if len(slot) < 9:
        raise Malformed(f"slot: {len(slot)} bytes where an incarnation needs 9")
    return int.from_bytes(slot[1:9])


def name_of(slot: bytes) -> str:
    """The name in a slot of the form *name*; undecodable bytes are shown escaped."""
    return slot[1:].decode(errors="backslashreplace")
