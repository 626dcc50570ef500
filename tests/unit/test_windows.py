"""Windows: the boundaries of each kind in zones whose clocks change."""

from __future__ import annotations

from datetime import datetime
from itertools import pairwise

import pytest

from agent.boards.windows import (
    ALL_END_MS,
    ALL_START_MS,
    KEYS,
    Series,
    Window,
    WindowSpec,
    all_series,
    buckets_of,
    check,
    series_of,
)
from agent.limits import TIME_MS_MAX, TIME_MS_MIN

HOUR_MS, DAY_MS = 3_600_000, 86_400_000
SEASON = WindowSpec("season:s4", start="2026-11-30T13:00:00Z", end="2027-02-28T13:00:00Z")


def ms(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp() * 1000)


def row(name: str, zone: str, start: str, count: int) -> list[tuple[str, float]]:
    """The windows from a time on: without their name, with their length in hours."""
    series = series_of(WindowSpec(name, zone))
    found = [series.at(ms(start))]
    while len(found) < count and found[-1] is not None:
        found.append(series.after(found[-1]))
    windows = [window for window in found if window is not None]
    for one, next_one in pairwise(windows):
        assert one.end_ms == next_one.start_ms
        assert series.before(next_one) == one
    for window in windows:
        assert series.window(window.id) == window
    return [
        (window.id.removeprefix(f"{name}:"), (window.end_ms - window.start_ms) / HOUR_MS)
        for window in windows
    ]


# --- boundaries ----------------------------------------------------------------------------


def test_hours_over_a_clock_change() -> None:
    berlin = row("hour", "Europe/Berlin", "2026-10-24T23:00Z", 5)
    assert berlin == [
        ("2026-10-25T01", 1),
        ("2026-10-25T02", 1),
        ("2026-10-25T02+01:00", 1),
        ("2026-10-25T03", 1),
        ("2026-10-25T04", 1),
    ]
    spring = row("hour", "Europe/Berlin", "2026-03-29T00:00Z", 3)
    assert spring == [("2026-03-29T01", 1), ("2026-03-29T03", 1), ("2026-03-29T04", 1)]
    # Half an hour back, half an hour forward.
    lord_howe = row("hour", "Australia/Lord_Howe", "2026-04-04T14:00Z", 3)
    assert lord_howe == [("2026-04-05T01", 1), ("2026-04-05T01+10:30", 0.5), ("2026-04-05T02", 1)]
    lord_howe = row("hour", "Australia/Lord_Howe", "2026-10-03T14:30Z", 3)
    assert lord_howe == [("2026-10-04T01", 1), ("2026-10-04T02", 0.5), ("2026-10-04T03", 1)]


def test_hours_where_the_clock_goes_back_past_what_has_begun() -> None:
    # At 00:01 to 23:01 of the day before: an id of that day would sort before 00's.
    st_johns = row("hour", "America/St_Johns", "2006-10-29T02:00Z", 4)
    assert st_johns == [
        ("2006-10-28T23", 1),
        ("2006-10-29T00", 1 / 60),
        ("2006-10-29T00-03:30", 1 + 59 / 60),
        ("2006-10-29T01", 1),
    ]


@pytest.mark.parametrize(
    ("zone", "start", "expected"),
    [
        (
            "Europe/Berlin",
            "2026-03-28T12:00Z",
            [("2026-03-28", 24), ("2026-03-29", 23), ("2026-03-30", 24)],
        ),
        (
            "Europe/Berlin",
            "2026-10-24T12:00Z",
            [("2026-10-24", 24), ("2026-10-25", 25), ("2026-10-26", 24)],
        ),
        # Midnight does not exist.
        ("America/Sao_Paulo", "2018-11-03T12:00Z", [("2018-11-03", 24), ("2018-11-04", 23)]),
        ("Africa/Cairo", "2024-04-25T12:00Z", [("2024-04-25", 24), ("2024-04-26", 23)]),
        ("Asia/Beirut", "2026-03-28T12:00Z", [("2026-03-28", 24), ("2026-03-29", 23)]),
        # The last hour of a day happens twice.
        ("America/Sao_Paulo", "2019-02-16T12:00Z", [("2019-02-16", 25), ("2019-02-17", 24)]),
        # A minute of the next day had begun.
        ("America/St_Johns", "2006-10-28T12:00Z", [("2006-10-28", 24), ("2006-10-29", 25)]),
        # A day that does not exist, and one that happened almost twice.
        ("Pacific/Apia", "2011-12-29T12:00Z", [("2011-12-29", 24), ("2011-12-31", 24)]),
        ("Pacific/Kwajalein", "1969-09-29T20:00Z", [("1969-09-30", 47), ("1969-10-01", 24)]),
    ],
)
def test_days(zone: str, start: str, expected: list[tuple[str, float]]) -> None:
    assert row("day", zone, start, len(expected)) == expected


def test_a_day_without_a_midnight_begins_with_its_first_instant() -> None:
    window = series_of(WindowSpec("day", "America/Sao_Paulo")).window("day:2018-11-04")
    assert window is not None
    assert window.start_ms == ms("2018-11-04T01:00-02:00") == ms("2018-11-04T00:00-03:00")


def test_weeks_and_months() -> None:
    week = 7 * 24
    weeks = row("week", "Europe/Berlin", "2026-03-22T12:00Z", 3)
    assert weeks == [("2026-W12", week), ("2026-W13", week - 1), ("2026-W14", week)]
    assert row("week", "Europe/Berlin", "2026-10-25T12:00Z", 1) == [("2026-W43", week + 1)]
    turn = row("week", "UTC", "2026-12-27T23:59:59Z", 3)
    assert turn == [("2026-W52", week), ("2026-W53", week), ("2027-W01", week)]
    monday = series_of(WindowSpec("week", "Europe/Berlin")).window("week:2026-W49")
    assert monday is not None
    assert monday.start_ms == ms("2026-11-30T00:00+01:00")
    months = row("month", "Europe/Berlin", "2027-12-31T22:59:59.999Z", 4)
    assert months == [
        ("2027-12", 744),
        ("2028-01", 744),
        ("2028-02", 29 * 24),
        ("2028-03", 743),
    ]


def test_a_season_and_all() -> None:
    season, everything = series_of(SEASON), series_of(WindowSpec("all"))
    window = Window("season:s4", "season:s4", ms("2026-11-30T13:00Z"), ms("2027-02-28T13:00Z"))
    assert season.at(window.start_ms) == season.at(window.end_ms - 1) == window
    assert season.at(window.start_ms - 1) is season.at(window.end_ms) is None
    assert season.shape_parts == ("", window.start_ms, window.end_ms)
    assert season.span_ms == window.end_ms - window.start_ms
    assert (season.grace_ms, season.keep_ms) == (600_000, 400 * DAY_MS)
    assert season.latest_closed(window.end_ms + 599_999) is None
    assert season.latest_closed(window.end_ms + 600_000) == window
    of_all = Window("all", "all", ALL_START_MS, ALL_END_MS)
    assert {everything.at(at) for at in (TIME_MS_MIN, 0, ALL_END_MS, TIME_MS_MAX)} == {of_all}
    assert everything.latest_closed(TIME_MS_MAX) is None
    assert (everything.keep_ms, everything.shape_parts) == (None, ("", 0, 0))
    for series, only in ((season, window), (everything, of_all)):
        assert series.after(only) is series.before(only) is None
        assert series.window(only.id) == only
        assert series.window("season:s5") is series.window("day:2026-11-30") is None
        assert series.recent(only.start_ms, 5) == [only]


def test_buckets_of_facts() -> None:
    bucket = KEYS.at(1_782_110_700_000 + 899_999)
    assert bucket == Window("keys:0001980123", "keys", 1_782_110_700_000, 1_782_111_600_000)
    assert KEYS.window("keys:0001980123") == bucket
    assert KEYS.shape_parts == ("", 0, 0)
    for other in (
        "keys:1980123",
        "keys:00019801231",
        "keys:9999999999",
        "keys:-000000001",
        "keys:",
        "x",
    ):
        assert KEYS.window(other) is None
    first = KEYS.at(0)
    assert first is not None
    assert KEYS.at(-1) is KEYS.before(first) is None


def test_what_is_closed_and_what_is_recent() -> None:
    series = series_of(WindowSpec("day", "Europe/Berlin", grace="1h"))
    midnight = ms("2026-11-30T00:00+01:00")
    for now_ms, closed in (
        (midnight + HOUR_MS - 1, "day:2026-11-28"),
        (midnight + HOUR_MS, "day:2026-11-29"),
    ):
        window = series.latest_closed(now_ms)
        assert window is not None
        assert window.id == closed
    ids = [window.id for window in series.recent(midnight, 3)]
    assert ids == ["day:2026-11-28", "day:2026-11-29", "day:2026-11-30"]


@pytest.mark.parametrize(
    ("spec", "bucket", "count", "keep_days"),
    [
        (WindowSpec("last:7d", "Asia/Tokyo"), WindowSpec("day", "Asia/Tokyo"), 7, 8),
        (WindowSpec("last:30d"), WindowSpec("day", keep="31d"), 30, 31),
        (WindowSpec("last:24h"), WindowSpec("hour"), 24, 2),
        (WindowSpec("last:72h"), WindowSpec("hour", keep="4d"), 72, 4),
    ],
)
def test_sliding_windows(spec: WindowSpec, bucket: WindowSpec, count: int, keep_days: int) -> None:
    assert buckets_of(spec) == (bucket, count)
    assert check(bucket, "windows[0]") == bucket
    assert series_of(bucket).keep_ms == keep_days * DAY_MS


def test_all_series_of_a_board() -> None:
    specs = (
        WindowSpec("last:30d", "Asia/Tokyo"),
        WindowSpec("last:7d", "Asia/Tokyo"),
        WindowSpec("all"),
        WindowSpec("day", "Asia/Tokyo", grace="1h"),
        WindowSpec("last:7d"),
    )
    found = [(s.name, s.zone, s.grace_ms, s.keep_ms) for s in all_series(specs)]
    assert found == [
        ("all", "UTC", 0, None),
        ("day", "Asia/Tokyo", HOUR_MS, 31 * DAY_MS),
        ("day", "UTC", 600_000, 8 * DAY_MS),
    ]


# --- edges ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["hour", "day", "week", "month"])
@pytest.mark.parametrize("zone", ["UTC", "America/New_York", "Asia/Tokyo"])
def test_the_first_and_the_last_years(name: str, zone: str) -> None:
    series = series_of(WindowSpec(name, zone))
    assert series.at(TIME_MS_MIN - 1) is series.at(TIME_MS_MAX + 1) is None
    first, last = series.at(TIME_MS_MIN + 2 * DAY_MS), series.at(TIME_MS_MAX)
    assert first is not None
    assert last is not None
    assert (series.window(first.id), series.window(last.id)) == (first, last)
    assert series.after(last) is None
    earliest = first
    while (window := series.before(earliest)) is not None:
        earliest = window
    assert earliest.start_ms < TIME_MS_MIN + DAY_MS
    # Where it is still the year 0, there is no window, and no error.
    assert (series.at(TIME_MS_MIN) is None) == (zone == "America/New_York")


@pytest.mark.parametrize(
    "window_id",
    [
        *("", "day", "day:", "day:2026-02-30", "day:20261130", "day:2026-W49-1", "day:2026-11-30 "),
        *(
            "day:0000-01-01",
            "day:9999-12-31",
            "day:2026-11-3\u0661",
            "day:\0",
            "day:\ud800",
            "2026-11-30",
        ),
        *("hour:2026-11-30", "hour:2026-11-30T24", "hour:2026-11-30T1", "hour:2026-11-30 13"),
        *("hour:2026-11-30T13+01:00", "hour:2026-10-25T02+02:00", "hour:2026-10-25T02+01:0"),
        *("hour:2026-10-25T02+", "hour:2026-03-29T02", "hour:2026-11-30T-1", "hour:2026-11-30T99"),
        *("week:2026-W54", "week:2027-W53", "week:2026-W00", "week:2026-49", "week:2026-W7"),
        *(
            "month:2026-13",
            "month:2026-1",
            "month:2026-011",
            "month:9999-12",
            "all",
            "keys:0001980123",
        ),
    ],
)
def test_what_is_no_id(window_id: str) -> None:
    for name in ("hour", "day", "week", "month"):
        assert series_of(WindowSpec(name, "Europe/Berlin")).window(window_id) is None


def test_no_id_is_none_also_before_any_window_was_found() -> None:
    series_of.cache_clear()
    for name in ("hour", "day", "week", "month"):
        assert series_of(WindowSpec(name)).window("") is None
    assert series_of(WindowSpec("all")).window("") is None


def test_a_day_that_does_not_exist_has_no_window() -> None:
    assert series_of(WindowSpec("day", "Pacific/Apia")).window("day:2011-12-30") is None


def test_series_are_equal_by_value_and_kept() -> None:
    spec = WindowSpec("day", "Europe/Paris")
    kept = series_of(spec)
    assert series_of(WindowSpec("day", "Europe/Paris")) is kept
    series_of.cache_clear()
    again: Series = series_of(spec)
    assert again is not kept
    assert again == kept
    assert hash(again) == hash(kept)
    assert again != series_of(WindowSpec("day", "Europe/Rome"))


def test_times_around_midnight_find_the_windows_they_found_before() -> None:
    series = series_of(WindowSpec("day", "Europe/Madrid"))
    now = ms("2026-11-30T12:00Z")
    today, yesterday = series.at(now), series.at(now - DAY_MS)
    assert today is not None
    assert yesterday is not None
    for _ in range(3):  # around midnight, entries of both days alternate
        assert series.at(now) is today
        assert series.at(now - DAY_MS) is yesterday
        assert series.at(today.start_ms) is today
        assert series.at(today.start_ms - 1) is yesterday
    assert series.at(today.end_ms) not in (today, yesterday)
