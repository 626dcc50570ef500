"""Definitions: every field, every refusal, the normal form, shapes, and what may change."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agent.boards.definition import (
    Definition,
    Rate,
    ScoreRange,
    changeable,
    check,
    from_body,
    opening,
    shape_of,
    to_body,
)
from agent.boards.scale import check_budget, scale_of
from agent.boards.windows import Window, WindowSpec, series_of
from agent.errors import Conflict, Malformed, OutOfRange
from tests.unit.core_agents import DAY_MS, HOUR_MS, NOW_MS, three

GOLDEN: dict[str, Any] = json.loads(
    (Path(__file__).parents[1] / "golden" / "core-definitions-v1.json").read_text("utf-8")
)
ALL, DAY, WEEK = WindowSpec("all"), WindowSpec("day"), WindowSpec("week")
SEASON = WindowSpec("season:s4", start="2026-12-01T00:00:00Z", end="2027-03-01T00:00:00Z")


def of(said: dict[str, Any]) -> Definition:
    return msgspec.convert(said, Definition)


@pytest.mark.parametrize("golden", GOLDEN["shapes"], ids=lambda golden: golden["window"]["name"])
def test_shapes_of_windows_are_frozen(golden: dict[str, Any]) -> None:
    spec = msgspec.convert(golden["window"], WindowSpec)
    assert shape_of(of(golden["definition"]), series_of(spec)).hex() == golden["shape"]


@pytest.mark.parametrize("golden", GOLDEN["bodies"], ids=lambda golden: golden["name"])
def test_bodies_are_frozen(golden: dict[str, Any]) -> None:
    definition, frozen = of(golden["definition"]), bytes.fromhex(golden["body"])
    assert check(definition) == definition, "a body holds the normal form"
    assert to_body(definition, golden["seen"], golden["opens"]) == frozen
    content = from_body(frozen)
    assert (content.definition, content.opens) == (definition, golden["opens"])
    assert content.readable


@pytest.mark.parametrize(
    ("said", "error", "word"),
    [
        ({"rule": "best", "grow_only": True}, Malformed, "grow_only"),
        ({"rule": "distinct", "grow_only": True}, Malformed, "grow_only"),
        ({"rule": "trend", "order": "low"}, Malformed, "order"),
        ({"rule": "distinct", "ties": "first"}, Malformed, "ties"),
        ({"rule": "unique", "ties": "last"}, Malformed, "ties"),
        ({"rule": "trend", "ties": "first"}, Malformed, "ties"),
        ({"rule": "sum", "windows": []}, Malformed, "windows: 0"),
        (
            {"rule": "sum", "windows": [{"name": f"last:{n}d"} for n in range(1, 10)]},
            Malformed,
            "9",
        ),
        ({"rule": "sum", "windows": [{"name": "day"}] * 2}, Malformed, "twice"),
        (
            {"rule": "sum", "windows": [{"name": "day"}, {"name": "day", "zone": "Asia/Tokyo"}]},
            Malformed,
            "twice",
        ),
        (
            {"rule": "sum", "windows": [{"name": "all"}, {"name": "year"}]},
            Malformed,
            r"windows\[1\]",
        ),
        ({"rule": "trend", "windows": [{"name": "last:7d"}]}, Malformed, r"windows\[0\].name"),
        ({"rule": "sum", "score": {"min": 5, "max": 4}}, Malformed, "score.min"),
        ({"rule": "sum", "score": {"min": 0, "max": 0.5}}, Malformed, "score.max"),
        ({"rule": "sum", "score": {"min": -(2**53), "max": 0}}, OutOfRange, "score.min"),
        ({"rule": "distinct", "score": {"min": 0, "max": 9}}, Malformed, "score"),
        ({"rule": "unique", "score": {"min": 0, "max": 9}}, Malformed, "score"),
        ({"rule": "trend", "score": {"min": 0, "max": 9}}, Malformed, "score"),
        ({"rule": "latest", "results": "keep", "windows": [{"name": "day"}]}, Malformed, "results"),
        ({"rule": "unique", "results": "keep", "windows": [{"name": "day"}]}, Malformed, "results"),
        ({"rule": "best", "results": "keep"}, Malformed, "windows that end"),
        ({"rule": "best", "key_retention": "2h"}, Malformed, "key_retention"),
        (
            {
                "rule": "sum",
                "results": "keep",
                "windows": [{"name": "day"}],
                "key_retention": "2h",
            },
            Malformed,
            "key_retention",
        ),
        ({"rule": "sum", "key_retention": "59s"}, OutOfRange, "59s"),
        ({"rule": "sum", "key_retention": "8d"}, OutOfRange, "8d"),
        ({"rule": "sum", "key_retention": "soon"}, Malformed, "key_retention"),
        ({"rule": "sum", "half_life": "1h"}, Malformed, "half_life"),
        (
            {"rule": "trend", "half_life": "1h", "windows": [{"name": "day"}]},
            Malformed,
            "half_life",
        ),
        ({"rule": "trend", "half_life": "59s"}, OutOfRange, "59s"),
        ({"rule": "trend", "half_life": "367d"}, OutOfRange, "367d"),
    ],
)
def test_definitions_that_contradict_themselves_are_refused(
    said: dict[str, Any], error: type[Exception], word: str
) -> None:
    with pytest.raises(error, match=word):
        check(of(said))


@pytest.mark.parametrize(
    "said",
    [
        {"rule": "median"},
        {"rule": "sum", "rate": {"per_member": 0}},
        {"rule": "sum", "rate": {"per_member": 5, "per_s": 86_401}},
        {"rule": "sum", "rate": 5},
        {"rule": "sum", "results": "drop"},
        {"rule": "sum", "order": "up"},
        {"rule": "sum", "from": "the future"},
        {"rule": "sum", "windows": [{"name": "day", "from": "the future"}]},
    ],
)
def test_what_is_no_definition_at_all(said: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError):
        of(said)


def test_equal_meanings_compare_equal() -> None:
    plain = check(Definition(rule="sum", windows=(ALL, DAY)))
    said = Definition(
        rule="sum",
        ties="first",
        windows=(ALL, WindowSpec("day", "UTC", "600s", "192h")),
        key_retention="60m",
    )
    assert check(said) == plain
    assert check(plain) == plain
    assert check(Definition(rule="sum", score=ScoreRange(0.0, 5.0))) == check(
        Definition(rule="sum", score=ScoreRange(0, 5))
    )
    assert check(Definition(rule="unique", ties="member")) == Definition(rule="unique")
    assert check(Definition(rule="sum", ties="member")).ties == "member"
    assert check(Definition(rule="trend", half_life="120m")).half_life == "2h"
    assert check(Definition(rule="sum", key_retention="120m")).key_retention == "2h"


def test_defaults_by_rule() -> None:
    for rule in ("sum", "best", "latest"):
        assert of({"rule": rule}).tie_order == "first"
    for rule in ("distinct", "unique", "trend"):
        definition = of({"rule": rule})
        assert definition.tie_order == "member"
        assert definition.score_range() == (-(2**53) + 1, 2**53 - 1)
        check_budget(definition)
    assert Definition(rule="sum").key_retention_ms == HOUR_MS
    assert Definition(rule="sum", key_retention="7d").key_retention_ms == 7 * DAY_MS
    assert Definition(rule="trend").half_life_ms is None
    assert Definition(rule="sum", rate=Rate(5)).rate == Rate(5, 1)


# --- what the numbers depend on ----------------------------------------------------------------

FULL = Definition(rule="sum", windows=(DAY, SEASON, WindowSpec("last:7d")))


@pytest.mark.parametrize(
    ("old", "new", "field"),
    [
        (FULL, {"rule": "latest"}, "rule"),
        (FULL, {"order": "low"}, "order"),
        (Definition(rule="sum", windows=(DAY,)), {"results": "keep"}, "results"),
        (Definition(rule="trend"), {"half_life": "1h"}, "half_life"),
        (FULL, {"windows": (WindowSpec("day", zone="Asia/Tokyo"),)}, r"windows\[0\].zone"),
        (
            FULL,
            {"windows": (DAY, msgspec.structs.replace(SEASON, end="2027-03-02T00:00:00Z"))},
            r"windows\[1\].start, end",
        ),
    ],
)
def test_what_the_numbers_depend_on_can_not_be_changed(
    old: Definition, new: dict[str, Any], field: str
) -> None:
    with pytest.raises(Conflict, match=field) as caught:
        changeable(old, msgspec.structs.replace(old, **new), "b")
    assert "reset" in caught.value.hint


@pytest.mark.parametrize(
    "new",
    [
        {"ties": "shared", "grow_only": True, "score": ScoreRange(0, 5), "rate": Rate(5)},
        {"key_retention": "2h"},
        {"windows": (WindowSpec("day", "UTC", "1h", "30d"), SEASON)},
        {"windows": (WEEK,)},
    ],
)
def test_everything_else_can(new: dict[str, Any]) -> None:
    changeable(FULL, check(msgspec.structs.replace(FULL, **new)), "b")


def test_a_shape_depends_on_nothing_that_may_change() -> None:
    one = Definition(
        rule="sum", grow_only=True, ties="last", score=ScoreRange(0, 5), key_retention="2h"
    )
    spec = WindowSpec("day", "UTC", "1h", "30d")
    assert shape_of(one, series_of(spec)) == shape_of(Definition(rule="sum"), series_of(DAY))


def test_shapes_differ_where_numbers_do() -> None:
    series = [series_of(spec) for spec in (ALL, WindowSpec("day", "Asia/Tokyo"), SEASON)]
    shapes = [shape_of(Definition(rule="sum"), its) for its in series]
    shapes += [shape_of(Definition(rule="sum", results="keep"), series[1])]
    shapes += [shape_of(Definition(rule=rule), series[0]) for rule in ("trend", "unique")]
    shapes += [shape_of(Definition(rule="trend", half_life=h), series[0]) for h in ("1h", "2h")]
    assert len(set(shapes)) == len(shapes)


# --- windows that are added -----------------------------------------------------------------------


def test_a_window_that_is_added_opens_from_now_and_keeps_its_time() -> None:
    one, two = Definition(rule="sum"), Definition(rule="sum", windows=(ALL, DAY))
    opens = opening(one, {}, two, "b", NOW_MS)
    assert opens == {"day": NOW_MS}
    three_ = Definition(rule="sum", windows=(ALL, DAY, WEEK))
    assert opening(two, opens, three_, "b", NOW_MS + 5) == {"day": NOW_MS, "week": NOW_MS + 5}
    assert opening(three_, opens, two, "b", NOW_MS + 9) == {"day": NOW_MS}
    # Gone and added again: it opens anew.
    assert opening(one, {}, two, "b", NOW_MS + 9) == {"day": NOW_MS + 9}


def test_buckets_that_become_a_window_go_on_and_the_other_way_round() -> None:
    sliding = Definition(rule="sum", windows=(ALL, WindowSpec("last:7d")))
    both = Definition(rule="sum", windows=(ALL, WindowSpec("last:7d"), DAY))
    assert opening(sliding, {}, both, "b", NOW_MS) == {}
    assert opening(both, {}, sliding, "b", NOW_MS) == {}
    assert opening(Definition(rule="sum"), {}, sliding, "b", NOW_MS) == {"day": NOW_MS}


@pytest.mark.parametrize(
    ("added", "now_ms"),
    [(ALL, NOW_MS), (SEASON, NOW_MS + 2 * DAY_MS)],
)
def test_a_window_that_has_begun_and_never_begins_again_can_not_be_added(
    added: WindowSpec, now_ms: int
) -> None:
    old = Definition(rule="sum", windows=(DAY,))
    new = Definition(rule="sum", windows=(DAY, added))
    with pytest.raises(Conflict, match="has begun") as caught:
        opening(old, {}, new, "b", now_ms)
    assert "reset" in caught.value.hint


def test_a_season_that_has_not_begun_can_be_added() -> None:
    old = Definition(rule="sum", windows=(DAY,))
    new = Definition(rule="sum", windows=(DAY, SEASON))
    assert opening(old, {}, new, "b", NOW_MS) == {"season:s4": NOW_MS}


# --- sliding windows, scales ----------------------------------------------------------------------


def test_a_sliding_window_is_made_of_the_newest_buckets() -> None:
    windows = (WindowSpec("last:7d", zone="Asia/Tokyo"), WindowSpec("week", zone="Asia/Tokyo"))
    (a,) = three(Definition(rule="sum", windows=windows), names="a")
    board = a.board("b")
    assert [(its.series.name, its.series.zone, its.shown) for its in board.counted] == [
        ("week", "Asia/Tokyo", True),
        ("day", "Asia/Tokyo", False),
    ]
    (sliding,) = board.slidings
    assert (sliding.name, sliding.buckets, sliding.counted) == ("last:7d", 7, board.counted[1])
    window = board.resolve(None, NOW_MS)
    assert (window.id, window.end_ms - window.start_ms) == ("last:7d", 7 * DAY_MS)
    assert window.start_ms <= NOW_MS - 6 * DAY_MS
    assert window.end_ms > NOW_MS


def test_an_old_boards_composites_are_unchanged_and_windows_have_finer_ticks() -> None:
    day = series_of(DAY)
    window = day.at(NOW_MS)
    assert window is not None
    scale = scale_of(Definition(rule="sum"), window, day.span_ms)
    assert (scale.tick_ms, scale.epoch_ms) == (1_000, window.start_ms)
    best = scale_of(Definition(rule="best", score=ScoreRange(0, 10**7)), window, day.span_ms)
    assert best.tick_ms == 1, "milliseconds fit a day beside ten million"


def test_one_window_that_has_no_tick_refuses_the_board() -> None:
    wide = ScoreRange(0, 2**33 - 1)
    with pytest.raises(OutOfRange, match="'all'"):
        check_budget(Definition(rule="sum", score=wide, windows=(DAY, ALL)))
    check_budget(Definition(rule="sum", score=wide, windows=(DAY,)))
    with pytest.raises(OutOfRange, match="'last:92d'"):
        check_budget(
            Definition(rule="sum", score=ScoreRange(0, 2**37), windows=(WindowSpec("last:92d"),))
        )
    check_budget(Definition(rule="sum", ties="member", score=ScoreRange(0, 2**53 - 1)))
    assert scale_of(Definition(rule="trend"), Window("all", "all", 0, 1), 1).b == 0


def test_a_sliding_window_and_its_days_have_one_zone() -> None:
    berlin = WindowSpec("day", zone="Europe/Berlin")
    with pytest.raises(Malformed, match=r"windows\[1\].zone: 'last:7d' counts in days of UTC"):
        check(Definition(rule="sum", windows=(berlin, WindowSpec("last:7d"))))
    same = WindowSpec("last:7d", zone="Europe/Berlin")
    assert len(check(Definition(rule="sum", windows=(berlin, same))).counted()) == 1


def test_a_conflict_says_the_zone_or_the_bounds_in_words() -> None:
    old = Definition(rule="sum", windows=(WindowSpec("day", zone="Europe/Berlin"),))
    new = Definition(rule="sum", windows=(WindowSpec("day"),))
    with pytest.raises(Conflict, match=r"zone: board 'b' has 'Europe/Berlin', and"):
        changeable(old, new, "b")
