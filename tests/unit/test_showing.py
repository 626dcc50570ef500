"""How a board is shown: a definition that can be sent back, and its windows at a time."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from agent.api.answers import WindowOfBoard
from agent.api.showing import full, windows_of
from agent.boards import change
from agent.boards.catalog import Board, Catalog
from agent.boards.definition import Definition, check
from agent.boards.entry import time_ms
from agent.crdt.cell import Row
from agent.limits import TIME_MS_MAX

NOW = "2026-11-30T13:05:00Z"
SEASON = {
    "name": "season:s4",
    "start": "2026-12-01T00:00:00.000Z",
    "end": "2027-01-01T00:00:00.000Z",
}
MANY = [
    {"name": "day", "zone": "Europe/Berlin", "grace": "1h", "keep": "30d"},
    {"name": "all"},
    {"name": "week"},
    SEASON,
    {"name": "last:7d", "zone": "Europe/Berlin"},
]


def ms(text: str) -> int:
    return time_ms(text, TIME_MS_MAX)


def board_of(at: str = NOW, **definition: Any) -> Board:
    """A board defined at a time."""
    return changed(Catalog(), at, **definition).board("b")


def changed(catalog: Catalog, at: str, **definition: Any) -> Catalog:
    checked = check(msgspec.convert(definition, Definition))
    cells = change.define(catalog, "eu-1", "b", checked, ms(at) << 16)
    return catalog.with_rows(Row(*key, *value, 1, 1) for key, value in cells)


def shown(board: Board, at: str = NOW) -> dict[str, WindowOfBoard]:
    return {its.name: its for its in windows_of(board, ms(at))}


@pytest.mark.parametrize(
    "definition",
    [
        {"rule": "sum"},
        {"rule": "sum", "windows": MANY, "key_retention": "2h", "rate": {"per_member": 5}},
        {"rule": "best", "order": "low", "score": {"min": 0, "max": 600_000}, "ties": "last"},
        {"rule": "best", "results": "keep", "windows": [SEASON]},
        {"rule": "sum", "results": "keep", "windows": [{"name": "hour"}]},
        {"rule": "latest", "windows": [{"name": "last:24h"}]},
        {"rule": "distinct", "ties": "shared"},
        {"rule": "unique", "windows": MANY},
        {"rule": "trend", "half_life": "6h"},
        {"rule": "trend", "windows": [{"name": "hour"}, {"name": "month"}]},
    ],
)
def test_a_full_definition_can_be_sent_back(definition: dict[str, Any]) -> None:
    checked = check(msgspec.convert(definition, Definition))
    again = msgspec.convert(msgspec.to_builtins(full(checked)), Definition)
    assert check(again) == checked


def test_defaults_are_filled_in() -> None:
    plain = full(check(Definition(rule="sum")))
    assert (plain.key_retention, plain.ties, plain.results) == ("1h", "first", None)
    assert msgspec.to_builtins(plain.windows) == [
        {"name": "all", "zone": "UTC", "grace": None, "keep": None, "start": None, "end": None}
    ]
    likes = full(check(msgspec.convert({"rule": "distinct", "windows": MANY}, Definition)))
    assert (likes.key_retention, likes.ties) == (None, "member")
    by_name = {window.name: window for window in likes.windows}
    assert (by_name["day"].grace, by_name["day"].keep) == ("1h", "30d")
    assert (by_name["week"].grace, by_name["week"].keep) == ("10m", "35d")
    assert by_name["last:7d"].keep is None


def test_the_open_windows_and_when_they_end() -> None:
    windows = shown(board_of(rule="sum", windows=MANY))
    assert list(windows) == ["day", "all", "week", "season:s4", "last:7d"]
    day = windows["day"]
    assert (day.window, day.start, day.end) == (
        "day:2026-11-30",
        "2026-11-29T23:00:00.000Z",
        "2026-11-30T23:00:00.000Z",
    )
    assert day.next_reset == day.end
    assert (day.tick_ms, day.b) == (1_000, 25)
    everything = windows["all"]
    assert (everything.window, everything.start, everything.end) == ("all", None, None)
    assert (everything.next_reset, everything.tick_ms) == (None, 60_000)
    assert windows["week"].window == "week:2026-W49"
    assert windows["last:7d"].window == "last:7d"
    assert windows["last:7d"].start == "2026-11-23T23:00:00.000Z"
    assert windows["last:7d"].next_reset == day.end


def test_a_season_before_within_and_after() -> None:
    board = board_of(rule="sum", windows=[SEASON])
    before = shown(board)["season:s4"]
    assert (before.window, before.next_reset) == (None, SEASON["start"])
    within = shown(board, "2026-12-24T18:00:00Z")["season:s4"]
    assert (within.window, within.next_reset) == ("season:s4", SEASON["end"])
    after = shown(board, "2027-01-01T00:00:00Z")["season:s4"]
    assert (after.window, after.next_reset) == (None, None)


def test_a_window_that_was_added_opens_at_its_next_boundary() -> None:
    catalog = changed(Catalog(), "2026-11-01T00:00:00Z", rule="sum")
    more = [{"name": "all"}, {"name": "day"}]
    board = changed(catalog, "2026-11-30T12:00:00Z", rule="sum", windows=more).board("b")
    today = shown(board)["day"]
    assert (today.window, today.start, today.next_reset) == (None, None, "2026-12-01T00:00:00.000Z")
    assert shown(board, "2026-12-01T00:00:00Z")["day"].window == "day:2026-12-01"


def test_a_day_of_25_hours() -> None:
    board = board_of("2026-01-01T00:00:00Z", rule="sum", windows=[MANY[0]])
    day = shown(board, "2026-10-25T12:00:00Z")["day"]
    assert (day.start, day.end) == ("2026-10-24T22:00:00.000Z", "2026-10-25T23:00:00.000Z")


def test_without_times_there_is_no_tick() -> None:
    day = shown(board_of(rule="sum", ties="shared", windows=[{"name": "day"}]))["day"]
    assert (day.tick_ms, day.b) == (None, 0)
