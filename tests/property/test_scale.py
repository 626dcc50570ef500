"""Composite scores: Redis, which knows one number and the member's bytes, ranks as Python does."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.boards import scale as scales
from agent.boards.definition import Definition, Order, ScoreRange, Ties
from agent.boards.scale import TICKS_MS, Scale
from agent.boards.windows import ALL_END_MS, ALL_START_MS, WindowSpec, series_of
from agent.errors import OutOfRange
from agent.limits import SCORE_MAX

ALL = series_of(WindowSpec("all"))
ALL_TIES: list[Ties] = ["first", "last", "shared", "member"]
ORDERS: list[Order] = ["high", "low"]
EXACT = 2**53

SCORES = st.one_of(
    st.integers(-3, 3), st.integers(-(2**27), 2**27 - 1), st.sampled_from([2**27 - 1, -(2**27)])
)
TIMES = st.one_of(
    st.integers(0, 10), st.integers(0, 600_000), st.integers(0, ALL_END_MS - ALL_START_MS - 1)
)
MEMBERS = st.sampled_from([b"C", b"a", b"b", "é".encode(), b"a\xff", b"aa"])


def scale_of(definition: Definition) -> Scale:
    """The scale of a board of the window `all`."""
    window = ALL.at(0)
    assert window is not None
    return scales.scale_of(definition, window, ALL.span_ms)


def redis_order(composites: dict[bytes, int], *, low: bool) -> list[bytes]:
    """ZRANGE of a sorted set with these scores; ZREVRANGE on a high board."""
    as_doubles = {member: float(composite) for member, composite in composites.items()}
    assert all(int(as_doubles[m]) == composites[m] for m in composites), "not exact as doubles"
    return sorted(as_doubles, key=lambda m: (as_doubles[m], m), reverse=not low)


def plain_order(
    standings: dict[bytes, tuple[int, int]], ties: Ties, tick_ms: int, *, low: bool
) -> list[bytes]:
    """Best first: by score, then by who was first or last (in ticks), then as Redis sorts."""

    def key(member: bytes) -> tuple[int, int, bytes]:
        score, at_ms = standings[member]
        tick = (at_ms - ALL_START_MS) // tick_ms
        if ties not in ("first", "last"):
            tick = 0
        better_later = ties == "last"
        # In ascending order on a low board the better comes first, on a high board last.
        return (score, tick if better_later != low else -tick, member)

    return sorted(standings, key=key, reverse=not low)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("ties", ALL_TIES)
@given(standings=st.dictionaries(MEMBERS, st.tuples(SCORES, TIMES), min_size=2))
def test_redis_ranks_as_a_plain_sort_does(
    ties: Ties, order: Order, standings: dict[bytes, tuple[int, int]]
) -> None:
    scale = scale_of(Definition(rule="sum", ties=ties, order=order))
    at = {m: (score, ALL_START_MS + ms) for m, (score, ms) in standings.items()}
    composites = {m: scale.composite(*standing) for m, standing in at.items()}
    low = order == "low"
    assert redis_order(composites, low=low) == plain_order(at, ties, scale.tick_ms, low=low)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("ties", ALL_TIES)
@pytest.mark.parametrize("bits", [0, 1, 7, 14, 22, 23, 28])
@given(data=st.data())
def test_what_is_in_range_decodes_to_itself(
    ties: Ties, order: Order, bits: int, data: st.DataObject
) -> None:
    limit = 2**bits - 1
    scale = scale_of(
        Definition(rule="sum", ties=ties, order=order, score=ScoreRange(-limit, limit))
    )
    score = data.draw(st.one_of(st.sampled_from([limit, -limit]), st.integers(-limit, limit)))
    at_ms = ALL_START_MS + data.draw(TIMES)
    composite = scale.composite(score, at_ms)
    assert abs(composite) <= EXACT - 1
    assert scale.score_of(composite) == score
    if ties in ("first", "last"):
        assert scale.reached_ms_of(composite) == at_ms - (at_ms - ALL_START_MS) % scale.tick_ms
    else:
        assert composite == score
        assert scale.reached_ms_of(composite) is None


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("ties", ALL_TIES)
@given(score=st.integers(-(2**62), 2**62), at_ms=st.integers(-(2**62), 2**62))
def test_what_is_outside_clamps_and_stays_exact(
    ties: Ties, order: Order, score: int, at_ms: int
) -> None:
    scale = scale_of(Definition(rule="sum", ties=ties, order=order))
    composite = scale.composite(score, at_ms)
    assert abs(composite) <= EXACT - 1
    limit = scale.score_limit
    assert scale.score_of(composite) == max(-limit, min(limit, score))
    reached = scale.reached_ms_of(composite)
    if reached is not None:
        last = ALL_START_MS + (2**scale.b - 1) * scale.tick_ms
        assert abs(reached - max(ALL_START_MS, min(last, at_ms))) < scale.tick_ms


@pytest.mark.parametrize(
    ("definition", "expected"),
    [
        (Definition(rule="sum"), (-(2**27), 2**27 - 1)),
        (Definition(rule="latest", ties="last"), (-(2**27), 2**27 - 1)),
        (Definition(rule="sum", grow_only=True), (0, 2**28 - 1)),
        (Definition(rule="best"), (0, 2**28 - 1)),
        (Definition(rule="best", ties="shared"), (-SCORE_MAX, SCORE_MAX)),
        (Definition(rule="sum", ties="member"), (-SCORE_MAX, SCORE_MAX)),
        (Definition(rule="sum", score=ScoreRange(-5, 9)), (-5, 9)),
    ],
)
def test_default_ranges(definition: Definition, expected: tuple[int, int]) -> None:
    assert definition.score_range() == expected
    assert scale_of(definition).score_limit >= max(map(abs, expected)) - 1


@pytest.mark.parametrize(
    ("greatest", "tick_ms"),
    [(2**12 - 1, 1), (2**12, 1_000), (2**22 - 1, 1_000), (2**22, 60_000), (2**28 - 1, 60_000)],
)
def test_the_finest_tick_that_fits_is_chosen(greatest: int, tick_ms: int) -> None:
    scale = scale_of(Definition(rule="best", score=ScoreRange(0, greatest)))
    assert scale.tick_ms == tick_ms
    assert scale.b == 53 - greatest.bit_length()
    assert (ALL_END_MS - ALL_START_MS) // tick_ms < 2**scale.b
    finer = [tick for tick in TICKS_MS if tick < tick_ms]
    assert all((ALL_END_MS - ALL_START_MS) // tick >= 2**scale.b for tick in finer)


@pytest.mark.parametrize("score", [ScoreRange(0, 2**28), ScoreRange(-(2**28), 0)])
def test_a_range_that_leaves_no_tick_is_refused_with_the_ways_out(score: ScoreRange) -> None:
    with pytest.raises(OutOfRange) as caught:
        scale_of(Definition(rule="best", score=score))
    assert caught.value.code == "tie_budget"
    for way_out in ("score.min", "score.max", "'shared'", "'member'"):
        assert way_out in caught.value.hint


def test_the_window_all_spans_history() -> None:
    assert datetime.fromtimestamp(ALL_START_MS / 1000, UTC) == datetime(2000, 1, 1, tzinfo=UTC)
    assert datetime.fromtimestamp(ALL_END_MS / 1000, UTC) == datetime(2063, 1, 1, tzinfo=UTC)


def test_a_range_of_zero_alone_leaves_all_bits_to_the_time() -> None:
    scale = scale_of(Definition(rule="sum", score=ScoreRange(0, 0)))
    assert scale == Scale("first", low=False, b=53, epoch_ms=ALL_START_MS, tick_ms=1)
    assert scale.score_of(scale.composite(0, ALL_START_MS + 5)) == 0
