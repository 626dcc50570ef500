"""HyperLogLog: about how many different actors a member has, in 16,384 small registers.

Flajolet, Fusy, Gandouet, Meunier: HyperLogLog: the analysis of a near-optimal cardinality
estimation algorithm (AofA 2007). A hash of 64 bits sends an actor to one register and gives it a
rank, rho: 1 plus the number of zeros that the rest of the hash begins with. A register keeps the
greatest rho that it has seen, so an actor counts once however often and wherever it is seen, and
the registers of regions merge to their element-wise maximum.

The registers are not one value: an element-wise maximum is not always one of its inputs, so one
stamp could not name the write that made it. Each incarnation keeps its own, in 256 segments of 64
registers, and readers merge. A segment's cell is (version, 0, body), version the sum of its
registers. It rises with every change and only one incarnation writes it, so the greater is the
newer. A body has one of two forms, told apart by its length:

    sparse    index, rho; index, rho; ...    fewer than 64 bytes: the set registers, by index
    dense     rho, rho, ...                  64 bytes: all registers

Sparse is written while it is the shorter one, up to 31 set registers. The rest of the score is
arithmetic: the sum of 2**-rho over all registers is kept as an exact integer in units of 2**-48,
beside the number of registers that are 0. Both follow each change without the other segments being
read, and are all that the estimate needs. Frozen: tests/unit/test_hyperloglog.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from math import log

from agent.crdt.cell import Value
from agent.limits import SCORE_MAX

REGISTERS = 2**14
"""Registers of one sketch: the standard error of an estimate is 1.04 / sqrt(REGISTERS), 0.81 %."""
SEGMENT_REGISTERS = 64
SEGMENTS = REGISTERS // SEGMENT_REGISTERS
RHO_MAX = 51
"""The greatest rank: that of an actor whose 50 bits after the register's 14 are all 0."""
EMPTY = bytes(SEGMENT_REGISTERS)
"""The registers of a segment that nobody was sent to."""

_UNIT = 2**48
EMPTY_HARMONIC = REGISTERS * _UNIT
"""The harmonic sum of a sketch with no actor, and so the greatest: 2**62, a signed 64-bit
integer. It goes with REGISTERS zeros."""

_RANK_BITS = RHO_MAX - 1
_RANK_MASK = 2**_RANK_BITS - 1
_INDEX_BITS = (SEGMENT_REGISTERS - 1).bit_length()
_CLAMPED = bytes(min(rho, RHO_MAX) for rho in range(256))
# A rho above 48 is worth less than the unit: it is expected from 2**62 actors.
_WEIGHTS = tuple(_UNIT >> rho for rho in range(256))

_ALPHA = 0.7213 / (1 + 1.079 / REGISTERS)
_BETA_OF_ZEROS = -0.370393911
# Of the powers 1 to 7 of ln(zeros + 1).
_BETA = (
    0.070471823,
    0.17393686,
    0.16339839,
    -0.09237745,
    0.03738027,
    -0.005384159,
    0.00042419,
)


def place(actor: bytes) -> tuple[int, int, int]:
    """Where an actor counts: (segment 0..255, index in it 0..63, rho 1..51).

    The same in every region, member and board, for ever: 8 bits of the big-endian BLAKE2b hash of
    8 bytes name the segment, the next 6 the index, and the last 50 give rho.
    """
    bits = int.from_bytes(blake2b(actor, digest_size=8).digest())
    register = bits >> _RANK_BITS
    rho = RHO_MAX - (bits & _RANK_MASK).bit_length()
    return register >> _INDEX_BITS, register & SEGMENT_REGISTERS - 1, rho


def offer(value: Value | None, index: int, rho: int) -> Value | None:
    """The segment's cell after an actor was seen, as delta and new value; None: nothing changes.

    `value` is the cell of the writing incarnation itself, `index` and `rho` come from `place`.
    The new value is greater than the old one even if that was damaged.
    """
    assert 0 <= index < SEGMENT_REGISTERS, index
    assert 1 <= rho <= RHO_MAX, rho
    ranks = bytearray(registers(value))
    if rho <= ranks[index]:
        return None
    ranks[index] = rho
    version = sum(ranks)
    if value is not None and version <= value[0]:
        version = value[0] + 1
    return (version, 0, _body_of(ranks))


def registers(value: Value | None) -> bytes:
    """The 64 registers in a segment's cell, each 0..51; all 0 of a cell that is not there.

    Of a body in neither form what can be read is taken: bytes after the 64th, half a pair and
    indexes that do not exist are passed over, the greatest rho of an index counts, and a rho
    above 51 is 51. Never raises, so one damaged cell can't make a board unreadable.
    """
    if value is None:
        return EMPTY
    body = value[2]
    if len(body) >= SEGMENT_REGISTERS:
        return body[:SEGMENT_REGISTERS].translate(_CLAMPED)
    ranks = bytearray(SEGMENT_REGISTERS)
    for index, rho in zip(body[::2], body[1::2], strict=False):
        if index < SEGMENT_REGISTERS and rho > ranks[index]:
            ranks[index] = rho
    return bytes(ranks.translate(_CLAMPED))


def merged(values: Iterable[Value]) -> bytes:
    """The 64 registers of one segment over all incarnations: the greatest of each."""
    rows = [registers(value) for value in values]
    if len(rows) > 1:
        return bytes(map(max, *rows))
    return rows[0] if rows else EMPTY


def harmonic(ranks: bytes) -> tuple[int, int]:
    """(the sum of 2**(48 - rho) over the registers, how many of them are 0).

    Exact, so that sums over segments don't depend on their order. A rho above 48 adds nothing.
    """
    return sum(map(_WEIGHTS.__getitem__, ranks)), ranks.count(0)


def change(before: bytes, after: bytes) -> tuple[int, int]:
    """What both numbers of `harmonic` change by as the registers go from `before` to `after`.

    Neither is above 0 where registers only rise. A sketch is EMPTY_HARMONIC and REGISTERS plus
    the changes of all its segments from EMPTY.
    """
    more = filled = 0
    for old, new in zip(before, after, strict=True):
        if old != new:
            more += _WEIGHTS[new] - _WEIGHTS[old]
            filled += (new == 0) - (old == 0)
    return more, filled


def estimate(harmonic_sum: int, zeros: int) -> int:
    """About how many different actors a sketch has seen, from the two numbers of all registers.

    Qin, Kim, Tung: LogLog-Beta and more: a new algorithm for cardinality estimation based on
    LogLog counting (2016). A polynomial in the number of empty registers, theirs for 2**14, takes
    the place of the change-over from linear counting, so there is no range with a bias of its own.
    Measured with 3,000 sketches each of 100 to 10**11 actors: the bias is below 0.03 % everywhere
    and the standard error at most 0.82 %: 0.53 % at 100, 0.59 % at 10,000, 0.68 % at 50,000,
    0.75 % at 100,000. A few actors are counted exactly, but for two that meet in one register:
    among 100 that happens to 0.3 on the average, which rounding to a whole number doesn't repair.

    Numbers that no sketch has (of damaged or foreign cells) give a number from 0 to SCORE_MAX too.
    """
    if zeros >= REGISTERS:
        return 0
    empty = zeros if zeros > 0 else 0
    power = log(empty + 1)
    beta = 0.0
    for coefficient in reversed(_BETA):
        beta = (beta + coefficient) * power
    beta += _BETA_OF_ZEROS * empty
    inverse = beta + harmonic_sum / _UNIT
    numerator = _ALPHA * REGISTERS * (REGISTERS - empty)
    if inverse * SCORE_MAX <= numerator:
        return SCORE_MAX
    return round(numerator / inverse)


def _body_of(ranks: bytearray) -> bytes:
    """The canonical body of 64 registers: the shorter form, the dense one if both are as long."""
    if 2 * (SEGMENT_REGISTERS - ranks.count(0)) >= SEGMENT_REGISTERS:
        return bytes(ranks)
    return bytes(part for pair in enumerate(ranks) if pair[1] for part in pair)
