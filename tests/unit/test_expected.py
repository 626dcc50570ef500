"""The model that everything is checked against: by hand-worked examples of the contract."""

from __future__ import annotations

from datetime import datetime

import pytest

from cluster.expected import BoardSpec, Entry, Expectation, Place, ranked
from cluster.windows import WindowSpec, windows_at

MINUTE = 60_000
T0 = 1_360_000_020_000  # a whole minute


def board(*entries: tuple[str, int, int], **spec: object) -> list[tuple[int, str, int]]:
    one = BoardSpec("b", **{"rule": "sum", **spec})  # type: ignore[arg-type]
    expectation = Expectation({"b": one})
    for member, number, at_ms in entries:
        expectation.count(Entry("b", member, number, at_ms))
    return [(p.rank, p.member, p.score) for p in expectation.places("b")]


def test_sums_add_up_and_rank_high() -> None:
    assert board(("a", 2, T0), ("b", 5, T0), ("a", 4, T0), ("b", -2, T0)) == [
        (1, "a", 6),
        (2, "b", 3),
    ]


def test_the_first_to_reach_a_total_ranks_higher() -> None:
    entries = [("late", 3, T0 + MINUTE), ("soon", 3, T0), ("soon", -1, T0 + 9 * MINUTE)]
    assert board(*entries, ("late", -1, T0), ties="first")[0][1] == "soon"
    assert board(*entries, ("late", -1, T0), ties="last")[0][1] == "late"


def test_within_a_tick_the_order_is_the_one_of_bytes() -> None:
    # The default range of a sum leaves minutes: both fall into the same one.
    entries = [("a", 3, T0), ("b", 3, T0 + MINUTE - 1)]
    assert [m for _, m, _ in board(*entries)] == ["b", "a"]
    assert [m for _, m, _ in board(*entries, order="low")] == ["a", "b"]
    # A narrow range leaves milliseconds.
    assert [m for _, m, _ in board(*entries, score=(0, 4095))] == ["a", "b"]


def test_bytes_and_not_characters_order_members() -> None:
    names = ["\ufffd", "\U0001f600"]  # UTF-16 would order them the other way round
    assert [m for _, m, _ in board(*[(n, 1, T0) for n in names], ties="member")] == names[::-1]


def test_shared_ranks_leave_a_gap() -> None:
    entries = [("a", 9, T0), ("b", 5, T0), ("c", 5, T0), ("d", 1, T0)]
    assert [rank for rank, _, _ in board(*entries, ties="shared")] == [1, 2, 2, 4]


def test_best_keeps_the_best_and_the_time_it_was_first_reached() -> None:
    spec = BoardSpec("b", "best", order="low", score=(0, 4095))
    expectation = Expectation({"b": spec})
    for number, at_ms in ((30, T0), (20, T0 + 5), (20, T0 + 3), (25, T0 + 1)):
        expectation.count(Entry("b", "m", number, at_ms))
    assert expectation.places("b") == [Place(1, "m", 20, spec.tick_of(T0 + 3))]


def test_latest_goes_by_time_then_by_score() -> None:
    entries = [("a", 7, T0 + 1), ("a", 9, T0), ("a", 8, T0 + 1)]
    assert board(*entries, rule="latest") == [(1, "a", 8)]


@pytest.mark.parametrize(
    ("spec", "bits", "tick_ms"),
    [
        (BoardSpec("b", "sum"), 25, 60_000),
        (BoardSpec("b", "sum", grow_only=True), 25, 60_000),
        (BoardSpec("b", "best", score=(0, 4095)), 41, 1),
        (BoardSpec("b", "latest", score=(-(2**20), 0)), 32, 1_000),
        (BoardSpec("b", "sum", ties="member"), 0, 1),
    ],
)
def test_the_budget_for_ties(spec: BoardSpec, bits: int, tick_ms: int) -> None:
    assert (spec.tie_bits, spec.tick_ms()) == (bits, tick_ms)


@pytest.mark.parametrize("order", ["high", "low"])
@pytest.mark.parametrize("ties", ["first", "last"])
@pytest.mark.parametrize("score", [-3, 0, 7])
def test_a_composite_is_decoded_by_the_documented_formula(
    order: str, ties: str, score: int
) -> None:
    spec = BoardSpec("b", "sum", order=order, ties=ties)
    tick = spec.tick_of(T0)
    plain = (order == "high") == (ties == "last")
    tie = tick if plain else 2**spec.tie_bits - 1 - tick
    assert spec.decode(score * 2**spec.tie_bits + tie) == (score, tick)


def test_ranks_equal_the_order_of_composites() -> None:
    spec = BoardSpec("b", "sum", ties="first")
    rows = [(f"m{i}", i % 3 - 1, T0 + (i * 7 % 5) * MINUTE) for i in range(40)]
    last = 2**spec.tie_bits - 1

    def composite(row: tuple[str, int, int]) -> tuple[int, bytes]:
        return row[1] * 2**spec.tie_bits + last - spec.tick_of(row[2]), row[0].encode()

    by_redis = [row[0] for row in sorted(rows, key=composite, reverse=True)]
    assert [place.member for place in ranked(spec, rows)] == by_redis


def test_counters_add_up() -> None:
    expectation = Expectation({})
    expectation.count_counter("x", 2)
    expectation.count_counter("x", 3)
    assert expectation.counters == {"x": 5}


BERLIN = tuple(WindowSpec(name, "Europe/Berlin", 1, 2) for name in ("day", "week", "month"))


def at(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp() * 1000)


@pytest.mark.parametrize(
    ("time", "ids"),
    [
        ("2013-01-01T22:59:59Z", ["day:2013-01-01", "week:2013-W01", "month:2013-01"]),
        ("2013-01-01T23:00:00Z", ["day:2013-01-02", "week:2013-W01", "month:2013-01"]),
        ("2013-12-31T23:00:00Z", ["day:2014-01-01", "week:2014-W01", "month:2014-01"]),
        ("2013-07-31T22:00:00Z", ["day:2013-08-01", "week:2013-W31", "month:2013-08"]),
    ],
)
def test_a_time_is_in_a_day_a_week_and_a_month_of_the_zone(time: str, ids: list[str]) -> None:
    assert [window.id for window in windows_at(BERLIN, at(time))] == ids


@pytest.mark.parametrize(("day", "hours"), [("2013-03-31", 23), ("2013-10-27", 25)])
def test_a_day_with_a_clock_change_has_another_length(day: str, hours: int) -> None:
    found = windows_at(BERLIN, at(f"{day}T10:00:00Z"))[0]
    assert found.id == f"day:{day}"
    assert found.end_ms - found.start_ms == hours * 3_600_000
    assert found.kept_ms == found.end_ms + 3 * 86_400_000


def test_an_entry_counts_in_each_window_of_its_time() -> None:
    expectation = Expectation({"b": BoardSpec("b", "sum", windows=BERLIN)})
    for day, number in (("01", 3), ("02", 4), ("02", 1)):
        expectation.count(Entry("b", "m", number, at(f"2013-01-{day}T12:00:00Z")))
    windows = {window.id: window for window in expectation.windows("b")}
    scores = {name: expectation.places("b", its)[0].score for name, its in windows.items()}
    assert scores == {
        "day:2013-01-01": 3,
        "day:2013-01-02": 5,
        "week:2013-W01": 8,
        "month:2013-01": 8,
    }
    # In ticks of a second since the day began there, an hour before it does in UTC.
    assert expectation.places("b", windows["day:2013-01-01"])[0].tick == 13 * 3600


def test_a_key_counts_once_for_a_member_of_a_board() -> None:
    expectation = Expectation({"b": BoardSpec("b", "sum", ties="member")})
    for member, key in (("a", "k"), ("a", "k"), ("b", "k"), ("a", "l"), ("a", None), ("a", None)):
        expectation.count(Entry("b", member, 1, T0, key=key))
    assert [(p.member, p.score) for p in expectation.places("b")] == [("a", 4), ("b", 1)]
    assert (expectation.entries, expectation.retries, len(expectation.keys)) == (5, 1, 3)


def test_actors_count_once_and_can_be_taken_back() -> None:
    expectation = Expectation({"b": BoardSpec("b", "distinct", ties="member")})
    for actor, present in (("x", True), ("x", True), ("y", True), ("y", False), ("z", False)):
        expectation.count(Entry("b", "m", 0, T0, actor=actor, present=present))
    assert expectation.places("b") == [Place(1, "m", 1, None)]
    assert expectation.actors("b") == {"m": {"x"}}
