"""Placing: which windows take an entry, by its time, the clock, the marks and the definition."""

from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo

import pytest

from agent.boards.definition import Definition
from agent.boards.entry import Entry
from agent.boards.marks import Due
from agent.boards.placing import Placing
from agent.boards.windows import WindowSpec
from agent.crdt.slot import Kind
from tests.unit.core_agents import DAY_MS, HOUR_MS, NOW_MS, CoreAgent, keyed, meet, three

DAILY = Definition(rule="sum", windows=(WindowSpec("all"), WindowSpec("day", grace="10m")))
ONLY_DAYS = Definition(rule="sum", windows=(WindowSpec("day", grace="10m"),))
MIDNIGHT = NOW_MS + 11 * HOUR_MS


def berlin(year: int, month: int, day: int, hour: int = 0) -> int:
    """The ms since 1970 of a local time in Berlin; of two equal ones, the first."""
    zone = ZoneInfo("Europe/Berlin")
    return int(datetime(year, month, day, hour, tzinfo=zone).timestamp() * 1000)


def test_a_late_entry_counts_where_it_can_and_says_where_not() -> None:
    (a,) = three(DAILY, names="a")
    late = Entry("m", add=5, at=MIDNIGHT - 1)
    scores, note = a.one("b", late, now_ms=MIDNIGHT + 600_000 - 1)
    assert (scores, note.late) == ({"all": 5, "day:2026-11-30": 5}, ())
    scores, note = a.one("b", late, now_ms=MIDNIGHT + 600_000)
    assert (scores, note.late) == ({"all": 10}, ("day:2026-11-30",))
    assert a.score("b", "day:2026-11-30") == 5


def test_where_no_window_takes_it_an_entry_is_refused() -> None:
    (a,) = three(ONLY_DAYS, names="a")
    error = a.refused("b", Entry("m", add=5, at=MIDNIGHT - 1), now_ms=MIDNIGHT + 600_000)
    assert error.code == "window_closed"
    assert "day:2026-11-30" in error.detail
    assert a.refused("b", keyed("k", at=MIDNIGHT - 1), now_ms=MIDNIGHT + 600_000).code == error.code


@pytest.mark.parametrize("rule", ["best", "latest", "distinct", "unique", "trend"])
def test_lateness_is_the_same_for_every_rule(rule: str) -> None:
    windows = (WindowSpec("all"), WindowSpec("day", grace="10m"))
    (a,) = three(Definition(rule=rule, windows=windows), names="a")  # type: ignore[arg-type]
    numbers = {"trend": {"add": 1}, "distinct": {"actor": "x"}, "unique": {"actor": "x"}}
    fields = numbers.get(rule, {"score": 1})
    entry = Entry("m", at=MIDNIGHT - 1, **fields)  # type: ignore[arg-type]
    scores, note = a.one("b", entry, now_ms=MIDNIGHT + 600_000)
    assert (scores, note.late) == ({"all": 1}, ("day:2026-11-30",))
    assert {row.space for row in a.rows() if row.space[1:2] == b"b"} == {a.space("b", "all")}


def test_a_refused_entry_leaves_no_note_to_others() -> None:
    (a,) = three(DAILY, names="a")
    late = MIDNIGHT - 1
    a.refused("b", Entry("m", add=5), Entry("m", add=2**40, at=late), now_ms=MIDNIGHT + 600_000)
    answer = a.write("b", Entry("m", add=5), Entry("m", add=1, at=late), now_ms=MIDNIGHT + 600_000)
    assert {place: note.late for place, note in answer.notes[0].items()} == {1: ("day:2026-11-30",)}


def test_what_this_agent_closed_takes_nothing_though_its_clock_went_back() -> None:
    a, b = three(DAILY, names="ab")
    series = next(c.marks for c in a.board("b").counted if c.series.name == "day")
    a.set_marks(Due(Kind.CLOSE, series, a.window("b", "day")))
    meet(a, b)
    assert a.one("b", Entry("m", add=5)) == ({"all": 5}, a.one("b", Entry("m", add=0))[1])
    assert a.one("b", Entry("m", add=0))[1].late == ("day:2026-11-30",)
    assert "day:2026-11-30" in b.one("b", Entry("m", add=5))[0], "another one's mark is its own"
    after = Entry("m", add=5, at=MIDNIGHT)
    assert "day:2026-12-01" in a.one("b", after, now_ms=MIDNIGHT)[0]


def test_what_was_collected_takes_nothing_from_an_agent_that_never_closed_it() -> None:
    (a,) = three(DAILY, names="a")
    series = next(c.marks for c in a.board("b").counted if c.series.name == "day")
    a.set_marks(Due(Kind.COLLECTED, series, a.window("b", "day")))
    d = CoreAgent("d")
    meet(a, d)
    assert d.one("b", Entry("m", add=5))[0] == {"all": 5}


def test_a_window_that_was_added_opens_at_its_next_boundary() -> None:
    (a,) = three(Definition(rule="sum"), names="a")
    a.define("b", DAILY)
    assert a.board("b").opens == {"day": NOW_MS}
    assert a.one("b", Entry("m", add=5)) == ({"all": 5}, a.one("b", Entry("m", add=0))[1])
    assert a.one("b", Entry("m", add=0))[1].late == (), "not late: it is not open yet"
    scores, _ = a.one("b", Entry("m", add=5, at=MIDNIGHT), now_ms=MIDNIGHT)
    assert scores == {"all": 10, "day:2026-12-01": 5}
    # What is placed before it opened stays out, also afterwards.
    assert a.one("b", Entry("m", add=5, at=MIDNIGHT - 1), now_ms=MIDNIGHT)[0] == {"all": 15}


def test_a_board_of_which_no_window_has_opened_refuses() -> None:
    (a,) = three(ONLY_DAYS, names="a")
    weekly = Definition(rule="sum", windows=(WindowSpec("week"),))
    a.define("b", weekly)
    error = a.refused("b", Entry("m", add=1))
    assert (error.code, error.detail.count("no window of the board is open")) == (
        "window_closed",
        1,
    )


def test_a_season_takes_what_is_of_its_time() -> None:
    season = WindowSpec("season:s4", start="2026-12-01T00:00:00Z", end="2026-12-02T00:00:00Z")
    (a,) = three(Definition(rule="sum", windows=(WindowSpec("all"), season)), names="a")
    assert a.one("b", Entry("m", add=1))[0] == {"all": 1}
    entries = [Entry("m", add=1, at=MIDNIGHT + ms) for ms in (-1, 0, DAY_MS - 1, DAY_MS)]
    answer = a.write("b", *entries, now_ms=MIDNIGHT + DAY_MS)
    assert [scores.get("season:s4") for scores in answer.scores[0]] == [None, 1, 2, None]


@pytest.mark.parametrize(
    ("start", "hours"), [((2026, 3, 29), 23), ((2026, 10, 25), 25), ((2026, 10, 26), 24)]
)
def test_days_of_23_and_25_hours_take_all_of_theirs(
    start: tuple[int, int, int], hours: int
) -> None:
    zoned = (WindowSpec("day", "Europe/Berlin", "1d"), WindowSpec("week", "Europe/Berlin", "2d"))
    (a,) = three(Definition(rule="sum", windows=zoned), names="a")
    begin = berlin(*start)
    end = begin + hours * HOUR_MS
    day = f"day:{start[0]}-{start[1]:02d}-{start[2]:02d}"
    times = [begin - 1, begin, *range(begin, end, HOUR_MS), end - 1, end]
    answer = a.write("b", *[Entry("m", add=1, at=at) for at in times], now_ms=end)
    counted = [day in scores for scores in answer.scores[0]]
    assert counted == [False, *[True] * (hours + 2), False]
    assert a.score("b", day) == hours + 2


def test_of_two_equal_local_hours_each_has_its_own_window() -> None:
    (a,) = three(
        Definition(rule="sum", windows=(WindowSpec("hour", "Europe/Berlin", "3h"),)), names="a"
    )
    first = berlin(2026, 10, 25, 2)
    answer = a.write(
        "b",
        *[Entry("m", add=1, at=first + n * HOUR_MS) for n in range(3)],
        now_ms=first + 2 * HOUR_MS,
    )
    ids = [window for scores in answer.scores[0] for window in scores]
    assert len(set(ids)) == 3
    assert ids == sorted(ids)
    assert [text[:18] for text in ids] == ["hour:2026-10-25T02"] * 2 + ["hour:2026-10-25T03"]


def test_the_buckets_of_a_sliding_window_are_counted_and_not_shown() -> None:
    (a,) = three(
        Definition(rule="sum", windows=(WindowSpec("all"), WindowSpec("last:3h"))), names="a"
    )
    assert a.one("b", Entry("m", add=4))[0] == {"all": 4}
    assert a.score("b", "hour:2026-11-30T13") == 4
    both = Definition(rule="sum", windows=(WindowSpec("hour"), WindowSpec("last:3h")))
    (b,) = three(both, names="b")
    assert b.one("b", Entry("m", add=4))[0] == {"hour:2026-11-30T13": 4}
    assert len(b.board("b").counted) == 1, "they share their cells"


@pytest.mark.parametrize("step_ms", [1, HOUR_MS // 2, 7 * HOUR_MS])
def test_what_is_remembered_of_the_last_time_never_shows(step_ms: int) -> None:
    """A placing that is asked in any order says what a fresh one says."""
    windows = (
        WindowSpec("hour", zone="Australia/Lord_Howe"),
        WindowSpec("day", zone="Europe/Berlin"),
        WindowSpec("season:x", start="2026-11-30T00:00:00Z", end="2026-11-30T20:00:00Z"),
        WindowSpec("last:3h", zone="Australia/Lord_Howe"),
    )
    (a,) = three(Definition(rule="sum", windows=windows), names="a")
    board, marks = a.board("b"), a.state.marks
    kept = Placing(board, marks, "a", NOW_MS)
    times = [NOW_MS - DAY_MS + n * step_ms for n in (*range(0, 60, 7), *range(60, 0, -1))]
    for at_ms in times:
        fresh = Placing(board, marks, "a", NOW_MS).at(at_ms)
        assert kept.at(at_ms)[:2] == fresh[:2]
        assert fresh.from_ms <= at_ms < fresh.to_ms
