"""Ties: what the boards' rules store and Redis sorts is the order that the plain history has."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.boards import scale as scales
from agent.boards import standing as standings
from agent.boards.definition import Definition, Order, Rule, ScoreRange, Ties
from agent.boards.scale import Scale
from agent.boards.windows import WindowSpec, series_of
from agent.crdt import counter, hybrid_clock, lww_register, max_register
from agent.crdt.cell import Value
from agent.crdt.slot import Kind, slot_of_one, slot_of_replica
from tests.property.tie_oracle import ALL_SPAN_MS, ALL_START_MS, Rules, Said, lines_of, ranked

ALL_TIES: list[Ties] = ["first", "last", "shared", "member"]
ORDERS: list[Order] = ["high", "low"]
RULES: list[Rule] = ["sum", "best", "latest"]
NAMES = ["C", "a", "aa", "b", "é", "日本", "z\u00ff"]
REGIONS = 3
STEPS_MS = [0, 1, 200, 999, 1_000, 1_500, 59_999, 60_000, 120_001, 3_600_000]
NEAR = ALL_START_MS + 26 * 366 * 86_400_000
SCORES = st.one_of(st.integers(-2, 2), st.sampled_from([100, 127, -127]))
TIMES = st.one_of(
    st.sampled_from(STEPS_MS).map(lambda step: NEAR + step),
    # Before the window's start, and after the last tick that it has.
    st.sampled_from([-1, 0, ALL_START_MS - 1, ALL_START_MS - 60_001]),
    st.sampled_from([1, 10**12]).map(lambda more: ALL_START_MS + 2**46 + more),
)
SAID = st.builds(Said, st.sampled_from(NAMES), SCORES, TIMES)
RANGES = st.sampled_from([(-127, 127), (-(2**12), 2**12), (-(2**22), 2**22), (-(2**27), 2**27 - 1)])
Standings = dict[str, tuple[int, int]]


def scale_of(rules: Rules, ties: Ties, order: Order) -> Scale:
    assert rules.score is not None
    # The rule does not matter to a scale whose range is given.
    definition = Definition(rule="sum", ties=ties, order=order, score=ScoreRange(*rules.score))
    series = series_of(WindowSpec("all"))
    window = series.at(0)
    assert window is not None
    assert (window.start_ms, series.span_ms) == (ALL_START_MS, ALL_SPAN_MS)
    return scales.scale_of(definition, window, series.span_ms)


def in_redis(scale: Scale, standing: Standings, *, low: bool) -> list[tuple[str, int]]:
    """(member, composite), best first, as ZRANGE or ZREVRANGE answer."""
    rows = [(float(scale.composite(*its)), who.encode()) for who, its in standing.items()]
    return [(who.decode(), int(score)) for score, who in sorted(rows, reverse=not low)]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("ties", ALL_TIES)
@given(
    score=RANGES,
    standing=st.dictionaries(st.sampled_from(NAMES), st.tuples(SCORES, TIMES), min_size=2),
)
def test_redis_sorts_as_two_members_compare(
    ties: Ties, order: Order, score: tuple[int, int], standing: Standings
) -> None:
    rules = Rules("sum", order, ties, score=score)
    scale = scale_of(rules, ties, order)
    found = in_redis(scale, standing, low=order == "low")
    want = ranked(rules, {who: its for who, its in standing.items()})  # noqa: C416 -- a wider type
    assert [who for who, _ in found] == [line.member for line in want]
    for (_, composite), line in zip(found, want, strict=True):
        assert scale.score_of(composite) == line.score
        assert scale.reached_ms_of(composite) == (
            rules.tick_start_ms(standing[line.member][1]) if rules.timed else None
        )


def cells_of(rule: Rule, said: list[tuple[int, Said]], *, low: bool) -> list[tuple[bytes, Value]]:
    """The cells of a member, where each entry was written in one of the regions."""
    cells: dict[bytes, Value] = {}
    for region, one in said:
        at_ms, number = one.at_ms, one.number
        if rule == "sum":
            kind = Kind.UP if number >= 0 else Kind.DOWN
            slot = slot_of_replica(kind, region + 1)
            cells[slot] = counter.add(cells.get(slot), abs(number), at_ms)
        elif rule == "best":
            slot = slot_of_one(Kind.BEST)
            cells[slot] = max_register.offer(cells.get(slot), number, at_ms, b"", low=low)
        else:
            slot = slot_of_one(Kind.LATEST)
            stamp = hybrid_clock.of_ms(at_ms)
            cells[slot] = lww_register.write(cells.get(slot), stamp, number, b"")
    return list(cells.items())


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("ties", ALL_TIES)
@pytest.mark.parametrize("rule", RULES)
@settings(max_examples=60)
@given(
    history=st.lists(
        st.tuples(st.integers(0, REGIONS - 1), SAID.filter(lambda one: one.number != 0)),
        min_size=1,
        max_size=25,
    )
)
def test_the_rules_and_redis_rank_as_the_history_says(
    rule: Rule, ties: Ties, order: Order, history: list[tuple[int, Said]]
) -> None:
    """Entries arrive in any order: regions write on their own, and times go back."""
    low, score = order == "low", (-(2**20), 2**20)
    rules = Rules(rule, order, ties, score=score)
    definition = Definition(rule=rule, order=order, ties=ties, score=ScoreRange(*score))
    found: Standings = {}
    for member in {one.member for _, one in history}:
        said = [(region, one) for region, one in history if one.member == member]
        standing = standings.standing_of(definition, cells_of(rule, said, low=low))
        assert standing is not None
        found[member] = standing.score, standing.reached_ms
    lines = lines_of(rules, [one for _, one in history])
    assert found == {line.member: (line.score, line.reached_ms) for line in lines}
    order_of_redis = in_redis(scale_of(rules, ties, order), found, low=low)
    assert [who for who, _ in order_of_redis] == [line.member for line in lines]


def test_names_go_by_their_bytes() -> None:
    standing = dict.fromkeys(("é", "b", "C", "a"), (5, NEAR))
    for order, want in (("high", ["é", "b", "a", "C"]), ("low", ["C", "a", "b", "é"])):
        lines = ranked(Rules("best", order, "member"), {**standing})
        assert [line.member for line in lines] == want


def test_shared_ranks_leave_a_gap() -> None:
    scores = {"a": (7, NEAR), "b": (5, NEAR), "c": (5, NEAR), "d": (1, NEAR)}
    lines = ranked(Rules("best", "high", "shared"), {**scores})
    assert [line.rank for line in lines] == [1, 2, 2, 4]
