"""HyperLogLog keeps the laws: a segment's cell is a chain, registers merge, sums follow exactly."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from agent.crdt import hyperloglog
from agent.crdt.cell import Value, join
from agent.crdt.hyperloglog import EMPTY, EMPTY_HARMONIC, REGISTERS, RHO_MAX

# (index, rho): few of each so that registers are hit again, or many so that bodies get dense.
FEW = st.tuples(st.integers(0, 3), st.integers(1, 4))
MANY = st.tuples(st.integers(0, 63), st.integers(1, RHO_MAX))
OFFERS = st.lists(FEW, max_size=20) | st.lists(MANY, max_size=120)
# What a peer may hold: also values that no `offer` makes.
INT64 = st.integers(-(2**63), 2**63 - 2)
FOREIGN = st.tuples(INT64, INT64, st.binary(max_size=140))


def cell_after(offers: list[tuple[int, int]], value: Value | None = None) -> Value | None:
    for offer in offers:
        value = hyperloglog.offer(value, *offer) or value
    return value


def plain_registers(offers: list[tuple[int, int]]) -> bytes:
    """The docstring of the module, in plain Python."""
    return bytes(
        max((rho for index, rho in offers if index == number), default=0) for number in range(64)
    )


def at_least(high: bytes, low: bytes) -> bool:
    return all(a >= b for a, b in zip(high, low, strict=True))


VALUES = OFFERS.map(cell_after).filter(lambda value: value is not None) | FOREIGN


@given(OFFERS, st.randoms(use_true_random=False))
def test_the_cell_is_a_function_of_the_set_of_actors(
    offers: list[tuple[int, int]], chance: Any
) -> None:
    value = cell_after(offers)
    again = [*offers, *offers[:5]]
    chance.shuffle(again)
    assert cell_after(again) == value
    expected = plain_registers(offers)
    assert hyperloglog.registers(value) == expected
    if value is not None:
        filled = 64 - expected.count(0)
        assert value[:2] == (sum(expected), 0)
        assert len(value[2]) == (64 if filled > 31 else 2 * filled)


@given(OFFERS)
def test_the_values_of_one_incarnation_are_a_chain(offers: list[tuple[int, int]]) -> None:
    chain: list[Value] = []
    for offer in offers:
        value = hyperloglog.offer(chain[-1] if chain else None, *offer)
        if value is not None:
            chain.append(value)
    for older, newer in pairwise(chain):
        assert newer[0] > older[0]
        assert join(older, newer) == join(newer, older) == newer
        assert hyperloglog.merged([older, newer]) == hyperloglog.registers(newer)


@given(FOREIGN, MANY)
def test_an_offer_to_any_value_is_none_or_greater_and_loses_nothing(
    value: Value, offer: tuple[int, int]
) -> None:
    index, rho = offer
    before = hyperloglog.registers(value)
    after = hyperloglog.offer(value, index, rho)
    assert (after is None) == (before[index] >= rho)
    if after is not None:
        assert join(value, after) == after != value
        expected = before[:index] + bytes([rho]) + before[index + 1 :]
        assert hyperloglog.registers(after) == expected


@given(FOREIGN)
def test_any_body_is_read(value: Value) -> None:
    ranks = hyperloglog.registers(value)
    assert len(ranks) == 64
    assert max(ranks) <= RHO_MAX


@given(st.lists(VALUES, max_size=4), st.lists(VALUES, max_size=4))
def test_merged_registers_are_the_least_upper_bound(one: list[Value], two: list[Value]) -> None:
    """Associative, commutative, idempotent: the order and the number of arrivals don't matter."""
    whole = hyperloglog.merged([*one, *two])
    assert whole == hyperloglog.merged([*reversed(two), *one, *one])
    parts = [(0, 0, hyperloglog.merged(side)) for side in (one, two)]
    assert whole == hyperloglog.merged(parts)
    for value in [*one, *two]:
        assert at_least(whole, hyperloglog.registers(value))
    for index, rho in enumerate(whole):
        assert rho == 0 or rho in {hyperloglog.registers(value)[index] for value in [*one, *two]}
    assert hyperloglog.merged([]) == EMPTY


@given(OFFERS, OFFERS)
def test_replicas_that_saw_the_same_actors_count_them_once(
    one: list[tuple[int, int]], two: list[tuple[int, int]]
) -> None:
    cells = [cell for cell in (cell_after(one + two), cell_after(two)) if cell is not None]
    assert hyperloglog.merged(cells) == plain_registers(one + two)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), MANY), max_size=60))
def test_sums_kept_change_by_change_equal_those_of_all_registers(
    steps: list[tuple[int, int, tuple[int, int]]],
) -> None:
    """Three incarnations write to four segments; every other segment stays empty."""
    cells: dict[tuple[int, int], Value] = {}

    def merged(segment: int) -> bytes:
        return hyperloglog.merged(v for (_, where), v in cells.items() if where == segment)

    total, zeros = EMPTY_HARMONIC, REGISTERS
    for inc, segment, offer in steps:
        before = merged(segment)
        value = hyperloglog.offer(cells.get((inc, segment)), *offer)
        if value is None:
            continue
        cells[inc, segment] = value
        more, filled = hyperloglog.change(before, merged(segment))
        assert more <= 0
        assert filled in (0, -1)
        total, zeros = total + more, zeros + filled
    sketch = b"".join(merged(segment) for segment in range(4)).ljust(REGISTERS, b"\0")
    assert hyperloglog.harmonic(sketch) == (total, zeros)
    assert hyperloglog.estimate(total, zeros) >= (1 if steps else 0)


@given(st.integers(0, EMPTY_HARMONIC), st.integers(0, REGISTERS), st.integers(0, 2**60))
def test_a_smaller_harmonic_sum_never_means_fewer_actors(
    harmonic_sum: int, zeros: int, less: int
) -> None:
    more = hyperloglog.estimate(harmonic_sum - less, zeros)
    assert hyperloglog.estimate(harmonic_sum, zeros) <= more
