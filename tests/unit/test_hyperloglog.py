"""HyperLogLog: its bytes are frozen, and its estimates are as good as the paper says."""

from __future__ import annotations

from math import sqrt
from random import Random
from statistics import fmean

import pytest

from agent.crdt import hyperloglog
from agent.crdt.cell import Value
from agent.crdt.hyperloglog import EMPTY, EMPTY_HARMONIC, REGISTERS, RHO_MAX, SEGMENTS
from agent.limits import SCORE_MAX

STANDARD_ERROR = 1.04 / sqrt(REGISTERS)
BIAS_MAX = 0.002

# What an actor was once sent to, it is sent to for ever.
PLACES = {
    b"": (228, 41, 1),  # e4 a6 a0...: 228, 0b101001, then a 1
    b"a": (64, 62, 3),
    b"user-1": (154, 43, 4),
    "\u00fcrsula".encode(): (0, 11, 4),
    b"x" * 256: (19, 20, 3),
    bytes(8): (202, 2, 3),
    b"user-23936": (255, 0, 19),
}


def sketch_of(actors: int, chance: Random) -> bytes:
    """The registers after so many actors, drawn from the distribution and not from hashes.

    Half of the actors have rho 1, half of the rest rho 2, and so on. Taken from the highest rho
    down, an actor only matters in a register that is still empty. Which registers have which rho
    does not matter to the sums, so only their number is drawn, and the empty ones come last.
    """
    counts: list[int] = []
    rest = actors
    while rest:
        higher = halved(rest, chance)
        counts.append(rest - higher)
        rest = higher
    ranks, empty = b"", REGISTERS
    for rho in range(len(counts), 0, -1):
        hits = hits_in_empty(counts[rho - 1], empty, chance)
        filled = len(set(chance.choices(range(empty), k=hits))) if hits else 0
        ranks += bytes([rho]) * filled
        empty -= filled
    return ranks.ljust(REGISTERS, b"\0")


def halved(count: int, chance: Random) -> int:
    """How many of so many tossed coins show heads."""
    return chance.getrandbits(count).bit_count() if count else 0


def hits_in_empty(actors: int, empty: int, chance: Random) -> int:
    """How many of the actors meet one of the empty registers: those whose number is below `empty`.

    Their numbers are compared bit by bit from the top, all at once: one coin each a bit.
    """
    if empty == REGISTERS:
        return actors
    hits, equal = 0, actors
    for bit in reversed(range(REGISTERS.bit_length() - 1)):
        ones = halved(equal, chance)
        if empty >> bit & 1:
            hits, equal = hits + equal - ones, ones
        else:
            equal -= ones
    return hits


@pytest.mark.parametrize(("actor", "expected"), PLACES.items())
def test_the_place_of_an_actor_is_frozen(actor: bytes, expected: tuple[int, int, int]) -> None:
    assert hyperloglog.place(actor) == expected


def test_bodies_are_frozen_and_sparse_while_that_is_shorter() -> None:
    value = hyperloglog.offer(None, 9, 3)
    assert value == (3, 0, bytes.fromhex("0903"))
    value = hyperloglog.offer(value, 2, 51)
    assert value == (54, 0, bytes.fromhex("02330903"))
    value = hyperloglog.offer(value, 9, 4)
    assert value == (55, 0, bytes.fromhex("02330904"))
    for index in range(31):
        value = hyperloglog.offer(value, index, 5) or value
    assert value is not None
    # Register 2 had more already, register 9 rose by 1.
    assert value == (51 + 30 * 5, 0, bytes.fromhex("00050105023303050405") + value[2][10:])
    assert len(value[2]) == 62
    value = hyperloglog.offer(value, 63, 1)
    assert value == (202, 0, bytes.fromhex("050533" + 28 * "05" + 32 * "00" + "01"))


def test_nothing_changes_where_a_register_already_has_as_much() -> None:
    value = hyperloglog.offer(None, 7, 4)
    assert hyperloglog.offer(value, 7, 4) is None
    assert hyperloglog.offer(value, 7, 1) is None


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        pytest.param(b"", {}, id="nothing"),
        pytest.param(b"\x05", {}, id="half a pair"),
        pytest.param(b"\x05\x02\x06", {5: 2}, id="a pair and a half"),
        pytest.param(b"\x40\x02\xff\x02\x3f\x01", {63: 1}, id="indexes that do not exist"),
        pytest.param(b"\x05\x02\x05\x09\x05\x03", {5: 9}, id="one index three times"),
        pytest.param(b"\x05\xff", {5: RHO_MAX}, id="too great, sparse"),
        pytest.param(b"\x34" + bytes(63), {0: RHO_MAX}, id="too great, dense"),
        pytest.param(bytes(63) + b"\x04" + b"\x09" * 900, {63: 4}, id="too long"),
    ],
)
def test_damaged_bodies_are_read_as_far_as_they_go(body: bytes, expected: dict[int, int]) -> None:
    ranks = hyperloglog.registers((1, 0, body))
    assert len(ranks) == 64
    assert {index: rho for index, rho in enumerate(ranks) if rho} == expected


def test_an_offer_rises_above_a_damaged_value() -> None:
    damaged = (900, 7, b"\x01")
    value = hyperloglog.offer(damaged, 3, 2)
    assert value == (901, 0, b"\x03\x02")
    assert value > damaged


def test_the_harmonic_sum_is_exact_to_the_last_unit() -> None:
    assert hyperloglog.harmonic(bytes(REGISTERS)) == (EMPTY_HARMONIC, REGISTERS)
    assert EMPTY_HARMONIC == 2**62
    assert hyperloglog.harmonic(bytes([0, 1, 2, 48, 49, 51])) == (7 * 2**46 + 1, 1)
    assert hyperloglog.change(EMPTY, bytes([1, 50]) + EMPTY[2:]) == (-(2**47) - 2**48, -2)


@pytest.mark.parametrize(
    ("harmonic_sum", "zeros", "expected"),
    [
        (16_383.5, 16_383, 1),
        (12_000, 10_000, 8_068),
        (5_000, 1_500, 37_527),
        (2_500, 100, 77_395),
        (900, 1, 215_156),
        (3, 0, 64_536_581),
        (2**-20, 0, 203_014_530_786_924),
    ],
)
def test_estimates_are_frozen(harmonic_sum: float, zeros: int, expected: int) -> None:
    """Agents of one ring answer with the same number: values of the published formula."""
    assert hyperloglog.estimate(int(harmonic_sum * 2**48), zeros) == expected


@pytest.mark.parametrize(
    ("harmonic_sum", "zeros"),
    [(0, 0), (-(2**62), 0), (2**62, -5), (0, REGISTERS), (-1, 1), (2**62, REGISTERS + 9), (1, 0)],
)
def test_impossible_sums_give_a_score_too(harmonic_sum: int, zeros: int) -> None:
    assert 0 <= hyperloglog.estimate(harmonic_sum, zeros) <= SCORE_MAX


def test_the_fullest_sketch_is_at_the_greatest_score() -> None:
    assert hyperloglog.estimate(*hyperloglog.harmonic(bytes([RHO_MAX]) * REGISTERS)) == SCORE_MAX


@pytest.mark.parametrize("actors", range(20))
def test_a_few_actors_in_registers_of_their_own_are_counted_exactly(actors: int) -> None:
    ranks = bytearray(REGISTERS)
    for number in range(actors):
        ranks[number] = (1, 1, 2, 1, 3)[number % 5]
    assert hyperloglog.estimate(*hyperloglog.harmonic(bytes(ranks))) == actors


@pytest.mark.parametrize(
    ("actors", "sketches"),
    [
        (10, 100),
        (100, 100),
        (1_000, 100),
        (10_000, 100),
        (20_000, 100),
        (30_000, 100),
        (40_000, 100),
        (50_000, 100),
        (70_000, 100),
        (100_000, 100),
        (1_000_000, 200),  # here the error is the whole of the theory's, so it is measured closer
    ],
)
def test_the_standard_error_and_the_bias(actors: int, sketches: int) -> None:
    chance = Random(actors)
    estimates = []
    for _ in range(sketches):
        ranks = sketch_of(actors, chance)
        estimates.append(hyperloglog.estimate(*hyperloglog.harmonic(ranks)))
    error = sqrt(fmean((estimate / actors - 1) ** 2 for estimate in estimates))
    assert error <= STANDARD_ERROR * 1.1
    # An error far below the theory would mean that the draws are not random.
    assert error >= STANDARD_ERROR / 2 or actors < 100
    # An answer is a whole number of actors.
    assert abs(fmean(estimates) - actors) < actors * BIAS_MAX + 0.5


def test_actors_seen_in_three_regions_by_their_real_hashes_count_once() -> None:
    # Region r sees 8,000 actors, half of them also seen by the next one: 12,000 in all.
    cells: list[dict[int, Value]] = [{}, {}, {}]
    total, zeros = EMPTY_HARMONIC, REGISTERS
    for region, mine in enumerate(cells):
        for number in range(region * 4_000, region * 4_000 + 8_000):
            segment, index, rho = hyperloglog.place(b"actor-%d" % (number % 12_000))
            value = hyperloglog.offer(mine.get(segment), index, rho)
            if value is None:
                continue
            theirs = [other[segment] for other in cells if segment in other]
            mine[segment] = value
            there = [other[segment] for other in cells if segment in other]
            more, filled = hyperloglog.change(hyperloglog.merged(theirs), hyperloglog.merged(there))
            total, zeros = total + more, zeros + filled
    whole = b"".join(
        hyperloglog.merged(mine[segment] for mine in cells if segment in mine)
        for segment in range(SEGMENTS)
    )
    assert hyperloglog.harmonic(whole) == (total, zeros)
    assert hyperloglog.estimate(total, zeros) == pytest.approx(12_000, rel=2 * STANDARD_ERROR)
    for mine in cells:
        alone = b"".join(hyperloglog.registers(mine.get(segment)) for segment in range(SEGMENTS))
        one = hyperloglog.estimate(*hyperloglog.harmonic(alone))
        assert one == pytest.approx(8_000, rel=2 * STANDARD_ERROR)


def test_real_hashes_have_the_ranks_and_the_registers_of_chance() -> None:
    seen = [hyperloglog.place(b"user:%d" % number) for number in range(40_000)]
    for rho in range(1, 9):
        share = sum(1 for _, _, rank in seen if rank == rho) / len(seen)
        expected = 2.0**-rho
        assert abs(share - expected) < 4 * sqrt(expected * (1 - expected) / len(seen))
    registers = {place[:2] for place in seen}
    filled = REGISTERS * (1 - (1 - 1 / REGISTERS) ** len(seen))
    assert len(registers) == pytest.approx(filled, rel=0.01)
    assert {segment for segment, _, _ in seen} == set(range(SEGMENTS))
    assert {index for _, index, _ in seen} == set(range(64))
