"""Count-min sketch: how often each member of an unbounded stream was counted, in fixed memory.

Cormode, Muthukrishnan: An improved data stream summary: the count-min sketch and its applications
(J. Algorithms 55, 2005). ROWS rows of WIDTH counters; a member has one counter in each row, chosen
by a hash. Every incarnation has a sketch of its own; a member's estimate is the least, over the
rows, of the sum of its counters over all incarnations. Counters are raised conservatively (Estan,
Varghese: New directions in traffic measurement and accounting, SIGCOMM 2002): only as far as the
estimate needs, which lowers the error and leaves a row unwritten where another member's count is
already above.

With N the weight of the whole stream, over all regions and incarnations:

    estimate >= true count, always
    estimate <= true count + e / WIDTH x N   with probability >= 1 - e**-ROWS for each member

that is, at most 0.133 % of the stream too high for at least 98.1 % of the members. Proof of the
first: each incarnation's counter is at least what it counted for the member. Of the second: none is
above that of the plain sketch, whose sum over incarnations is the plain sketch of all streams in
one. With decay (decay.py) both hold for decayed counts, less at most 2**-15 an incarnation for
shifts and more at most 2**-16 an entry.

A row is kept in blocks of BLOCK counters, so that an entry rewrites little. A cell is one block of
one incarnation, under the pseudo-member SKETCH_MEMBER of a window's space:

    slot   S | incarnation | row: 1 byte | block: 1 byte
    value  (sum of the counters, 0, body), with decay (landmark, sum of the counters, body)
    body   | bytes a counter: 1, 2, 4 or 8, the least that will do: 1 byte |
           | which counters follow, counter 0 as the highest bit: 8 bytes | these, big-endian |

The counters that follow are those that are not 0; where that is DENSE or more, all of them.

Only its incarnation writes a block, each version has a greater sum or a later landmark than the one
before, so versions are a chain and the greatest is the newest. The bytes are canonical and frozen:
tests/golden/. Places (`place_of`) are, too: regions that hashed differently could not add up.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b
from struct import Struct
from typing import NamedTuple

from agent.crdt.cell import Value
from agent.crdt.decay import Decay
from agent.crdt.slot import Kind, slot_of_replica

SKETCH_MEMBER = b"\0"
"""The member of a `trend` board's sketch and candidates: no name holds a NUL."""

ROWS = 4
WIDTH = 2048
BLOCK = 64
DENSE = 48  # a block with so many counters set is written and read several times as fast whole
BLOCK_SUM_MAX = 2**62 - 1
"""What the counters of one block may add up to: the sum is a signed 64-bit integer."""

_PERSON = b"tallyring.trend1"
_COLUMN_BITS = 11
_HEAD_BYTES = 9
_ALL = 2**BLOCK - 1
_PARTS = tuple(tuple(bytes((row, block)) for block in range(WIDTH // BLOCK)) for row in range(ROWS))
_PACKERS = {
    width: tuple(Struct(f">{count}{letter}") for count in range(BLOCK + 1))
    for width, letter in ((1, "B"), (2, "H"), (4, "I"), (8, "Q"))
}


class Place(NamedTuple):
    """Where a member is counted: its column in each row, and its set of candidates, 0 to 255."""

    columns: tuple[int, int, int, int]
    set: int


class Spot(NamedTuple):
    """Which block a slot of a sketch names, and by which incarnation."""

    inc: int
    row: int
    block: int


def place_of(member: bytes) -> Place:
    """A member's place: the 64 bits of a BLAKE2b of its name, 11 a row from the lowest, then 8."""
    bits = int.from_bytes(blake2b(member, digest_size=8, person=_PERSON).digest())
    mask = WIDTH - 1
    return Place(
        (
            bits & mask,
            bits >> _COLUMN_BITS & mask,
            bits >> 2 * _COLUMN_BITS & mask,
            bits >> 3 * _COLUMN_BITS & mask,
        ),
        bits >> ROWS * _COLUMN_BITS & 255,
    )


@lru_cache(maxsize=256)
def _prefix_of(inc: int) -> bytes:
    return slot_of_replica(Kind.SKETCH, inc)


def slot_of(inc: int, row: int, column: int) -> bytes:
    """The slot of the block in which an incarnation keeps a row's column."""
    return _prefix_of(inc) + _PARTS[row][column // BLOCK]


def spot_of(slot: bytes) -> Spot | None:
    """Which block a slot names; None for a slot of another kind, or of a newer version's form."""
    if len(slot) != 11 or slot[0] != Kind.SKETCH:
        return None
    spot = Spot(int.from_bytes(slot[1:9]), slot[9], slot[10])
    return spot if spot.row < ROWS and spot.block < WIDTH // BLOCK else None


def value_of(counters: list[int], landmark: int, decay: Decay) -> Value:
    """The cell of a block: BLOCK counters at their landmark, at least one of them set.

    The counters add up to at most BLOCK_SUM_MAX; the body has at most 521 bytes.
    """
    count = sum(counters)
    assert 0 < count <= BLOCK_SUM_MAX, count
    top = max(counters).bit_length()
    width = 1 if top <= 8 else 2 if top <= 16 else 4 if top <= 32 else 8
    if counters.count(0) <= BLOCK - DENSE:
        bits, shown = _ALL, counters
    else:
        bits = int("".join(["1" if counter else "0" for counter in counters]), 2)
        shown = list(filter(None, counters))
    body = bytes((width,)) + bits.to_bytes(8) + _PACKERS[width][len(shown)].pack(*shown)
    return (count, 0, body) if decay.half_life_ms is None else (landmark, count, body)


def landmark_of(value: Value, decay: Decay) -> int:
    """The landmark of a block's counters; 0 without decay."""
    return 0 if decay.half_life_ms is None else value[0]


def counters_of(value: Value | None) -> list[int]:
    """The counters of a block, a new list; all 0 for None, and for a body that can't be read."""
    head = None if value is None else _head(value[2])
    if value is None or head is None:
        return [0] * BLOCK
    width, bits = head
    found = _PACKERS[width][bits.bit_count()].unpack_from(value[2], _HEAD_BYTES)
    if bits == _ALL:
        return list(found)
    left = iter(found)
    return [next(left) if bit == "1" else 0 for bit in format(bits, "064b")]


def _head(body: bytes) -> tuple[int, int] | None:
    """(bytes a counter, bits of those that follow); None where the body has another form."""
    if len(body) < _HEAD_BYTES or body[0] not in _PACKERS:
        return None
    bits = int.from_bytes(body[1:_HEAD_BYTES])
    return (body[0], bits) if len(body) == _HEAD_BYTES + body[0] * bits.bit_count() else None
