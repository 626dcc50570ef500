"""Windows tile time in every zone: no gap, no overlap, ids unique and sorted as time is.

The oracle is independent: the standard library's local time, instant by instant.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import cache
from importlib.resources import files
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.boards.windows import KEYS, Series, Window, WindowSpec, series_of
from agent.boards.zones import Change, zone_of
from agent.limits import TIME_MS_MAX, TIME_MS_MIN

HOUR_MS, DAY_MS = 3_600_000, 86_400_000
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
NAMES = ("hour", "day", "week", "month")
ZONES = sorted(files("tzdata").joinpath("zones").read_text("ascii").split())
FROM_MS, TO_MS = 31_536_000_000, 2_871_763_200_000  # 1971 to 2060
FORMS = {
    "hour": "hour:%Y-%m-%dT%H",
    "day": "day:%Y-%m-%d",
    "week": "week:%G-W%V",
    "month": "month:%Y-%m",
}


@cache
def python_zone(name: str) -> ZoneInfo:
    with files("tzdata").joinpath("zoneinfo", *name.split("/")).open("rb") as file:
        return ZoneInfo.from_file(file, key=name)


def local(zone: str, at_ms: int) -> datetime:
    return (EPOCH + timedelta(milliseconds=at_ms)).astimezone(python_zone(zone))


@cache
def changes_of(zone: str) -> list[Change]:
    return zone_of(zone).changes(FROM_MS, TO_MS)


@st.composite
def places(draw: st.DrawFn) -> tuple[str, int]:
    """A zone and a time; mostly one around a change of its clock."""
    zone = draw(st.sampled_from(ZONES))
    changes = changes_of(zone)
    if len(changes) and draw(st.booleans()):
        near_ms = changes[draw(st.integers(0, len(changes) - 1))].at_ms
        step_ms = draw(st.sampled_from([-DAY_MS, -HOUR_MS, -60_000, -1, 1, 60_000, HOUR_MS]))
        return zone, near_ms + step_ms * draw(st.integers(0, 3))
    return zone, draw(st.integers(FROM_MS, TO_MS))


def around(series: Series, at_ms: int, count: int) -> list[Window]:
    """The window at a time with its neighbours, in order, found one from the other."""
    window = series.at(at_ms)
    for _ in range(count):
        assert window is not None
        window = series.before(window)
    found = []
    for _ in range(2 * count + 1):
        assert window is not None
        found.append(window)
        window = series.after(window)
    return found


@pytest.mark.parametrize("name", NAMES)
@given(place=places())
def test_windows_tile_time_and_ids_sort_as_time(name: str, place: tuple[str, int]) -> None:
    zone, at_ms = place
    series = series_of(WindowSpec(name, zone))
    windows = around(series, at_ms, 4)
    assert any(window.start_ms <= at_ms < window.end_ms for window in windows)
    for one, next_one in pairwise(windows):
        assert one.end_ms == next_one.start_ms
        assert one.id < next_one.id
    for window in windows:
        assert window.start_ms < window.end_ms
        assert series.window(window.id) == window
        for inside_ms in (
            window.start_ms,
            (window.start_ms + window.end_ms) // 2,
            window.end_ms - 1,
        ):
            assert series.at(inside_ms) == window
        if window.start_ms >= FROM_MS + 25 * 365 * DAY_MS:
            assert window.end_ms - window.start_ms <= series.span_ms


@pytest.mark.parametrize("name", NAMES)
@given(place=places())
def test_a_window_is_named_as_the_clock_on_the_wall(name: str, place: tuple[str, int]) -> None:
    zone, at_ms = place
    series = series_of(WindowSpec(name, zone))
    window = series.at(at_ms)
    assert window is not None
    there = local(zone, at_ms).strftime(FORMS[name])
    plain = window.id[: len(there)]
    # Only after the clock went back may the wall show what had passed already.
    seen = {local(zone, at_ms - back).strftime(FORMS[name]) for back in range(0, DAY_MS, 60_000)}
    seen |= {local(zone, at_ms - back).strftime(FORMS[name]) for back in (1, 1_000)}
    assert plain == max(seen | {there})
    # It begins with the first instant of its name; an hour also at a new offset.
    first, before = local(zone, window.start_ms), local(zone, window.start_ms - 1)
    assert first.strftime(FORMS[name]) > before.strftime(FORMS[name]) or (
        name == "hour" and first.utcoffset() != before.utcoffset()
    )


@given(place=places())
def test_an_hour_has_one_offset(place: tuple[str, int]) -> None:
    zone, at_ms = place
    window = series_of(WindowSpec("hour", zone)).at(at_ms)
    assert window is not None
    inside = range(window.start_ms, window.end_ms, 30_000)
    assert len({local(zone, ms).utcoffset() for ms in (*inside, window.end_ms - 1)}) == 1


@given(place=places())
def test_the_offset_is_the_standard_librarys(place: tuple[str, int]) -> None:
    zone, at_ms = place
    offset = local(zone, at_ms).utcoffset()
    assert timedelta(milliseconds=zone_of(zone).offset_ms(at_ms)) == offset


@pytest.mark.parametrize("name", NAMES)
@given(zone=st.sampled_from(ZONES), at_ms=st.integers(TIME_MS_MIN - DAY_MS, TIME_MS_MAX + DAY_MS))
def test_any_time_has_a_window_or_none_and_no_error(name: str, zone: str, at_ms: int) -> None:
    series = series_of(WindowSpec(name, zone))
    window = series.at(at_ms)
    if window is None:
        assert not TIME_MS_MIN + DAY_MS <= at_ms <= TIME_MS_MAX
        return
    assert window.start_ms <= at_ms < window.end_ms
    assert series.window(window.id) == window


@given(text=st.text(max_size=30), name=st.sampled_from(NAMES))
def test_no_text_breaks_the_search_for_an_id(text: str, name: str) -> None:
    for window_id in (text, f"{name}:{text}", f"{name}:2026-10-25{text}"):
        for series in (series_of(WindowSpec(name, "Europe/Berlin")), KEYS):
            window = series.window(window_id)
            assert window is None or window.id == window_id


@pytest.mark.parametrize("zone", ZONES[:: len(ZONES) // 40])
def test_every_change_of_a_zone_is_found(zone: str) -> None:
    """Against a search that looks every six hours, in two years with many changes of law."""
    for year in (1975, 2011):
        start_ms = (datetime(year, 1, 1, tzinfo=UTC) - EPOCH) // timedelta(milliseconds=1)
        hours = range(start_ms, start_ms + 366 * DAY_MS, 6 * HOUR_MS)
        offsets = [local(zone, ms).utcoffset() for ms in hours]
        seen = sum(one != next_one for one, next_one in pairwise(offsets))
        assert len(zone_of(zone).changes(hours[0], hours[-1])) == seen
