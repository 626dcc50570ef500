"""Window specs: what one may say, its normal form, and that a refusal names the field."""

from __future__ import annotations

import msgspec
import pytest

from agent.boards.windows import (
    WindowSpec,
    check,
    duration_text,
    is_sliding,
    name_of_id,
    parse_duration,
)
from agent.errors import Malformed

HOUR_MS, DAY_MS = 3_600_000, 86_400_000
SEASON = WindowSpec("season:s4", start="2026-11-30T13:00:00Z", end="2027-02-28T13:00:00Z")


@pytest.mark.parametrize(
    ("spec", "normal"),
    [
        (WindowSpec("all"), WindowSpec("all")),
        (WindowSpec("day", grace="600s", keep="192h"), WindowSpec("day")),
        (WindowSpec("day", grace="3600s", keep="24h"), WindowSpec("day", grace="1h", keep="1d")),
        (WindowSpec("hour", grace="0m", keep="90s"), WindowSpec("hour", grace="0s", keep="90s")),
        (WindowSpec("hour", keep="48h"), WindowSpec("hour")),
        (WindowSpec("week", zone="Asia/Kolkata", keep="35d"), WindowSpec("week", "Asia/Kolkata")),
        (WindowSpec("month", keep="400d"), WindowSpec("month")),
        (WindowSpec("day", grace="7d", keep="3660d"), WindowSpec("day", grace="7d", keep="3660d")),
        (WindowSpec("last:92d", "US/Eastern"), WindowSpec("last:92d", "US/Eastern")),
        (WindowSpec("last:72h"), WindowSpec("last:72h")),
        (
            WindowSpec(
                "season:a", start="2026-11-30t14:00:00.5000+01:00", end="2026-12-01T00:00:00Z"
            ),
            WindowSpec(
                "season:a", start="2026-11-30T13:00:00.500Z", end="2026-12-01T00:00:00.000Z"
            ),
        ),
    ],
)
def test_the_normal_form(spec: WindowSpec, normal: WindowSpec) -> None:
    assert check(spec, "windows[0]") == normal
    assert check(normal, "windows[0]") == normal
    built = msgspec.to_builtins(normal)
    assert msgspec.convert(built, WindowSpec) == normal
    assert all(value is not None for value in built.values())


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        *[
            (WindowSpec(name), "name")
            for name in (
                "",
                "All",
                "days",
                "day ",
                "day\n",
                "season:",
                "season:A",
                "season:" + 33 * "a",
            )
        ],
        *[
            (WindowSpec(name), "name")
            for name in (
                "last:",
                "last:0d",
                "last:07d",
                "last:93d",
                "last:73h",
                "last:7w",
                "last:\u0667d",
            )
        ],
        *[
            (WindowSpec("day", zone=zone), "zone")
            for zone in ("", "../UTC", "/etc/localtime", "Europe", "europe/berlin", "zones", "\0")
        ],
        (WindowSpec("last:7d", zone="Mars/Olympus"), "zone"),
        (WindowSpec("all", zone="Europe/Berlin"), "zone"),
        (msgspec.structs.replace(SEASON, zone="Europe/Berlin"), "zone"),
        (WindowSpec("all", grace="1m"), "grace"),
        (WindowSpec("all", keep="1d"), "keep"),
        (WindowSpec("last:7d", grace="1m"), "grace"),
        (WindowSpec("last:7d", keep="1d"), "keep"),
        (WindowSpec("day", grace="169h"), "grace"),
        (WindowSpec("day", grace="ten minutes"), "grace"),
        (WindowSpec("day", keep="3661d"), "keep"),
        (WindowSpec("day", keep="0d"), "keep"),
        (WindowSpec("day", start="2026-11-30T13:00:00Z"), "start"),
        (WindowSpec("all", end="2026-11-30T13:00:00Z"), "end"),
        (WindowSpec("season:s4", end=SEASON.end), "start"),
        (WindowSpec("season:s4", start=SEASON.start), "end"),
        (msgspec.structs.replace(SEASON, start="2026-11-30T13:00:00"), "start"),
        (msgspec.structs.replace(SEASON, start="2026-11-30T13:00:00.0001Z"), "start"),
        (msgspec.structs.replace(SEASON, end="9999-01-01T00:00:00Z"), "end"),
        (msgspec.structs.replace(SEASON, end=SEASON.start), "end"),
    ],
)
def test_a_refusal_names_the_field_and_a_way_out(spec: WindowSpec, field: str) -> None:
    with pytest.raises(Malformed) as refused:
        check(spec, "windows[1]")
    assert refused.value.detail.startswith(f"windows[1].{field}: ")
    assert refused.value.hint


@pytest.mark.parametrize(
    ("text", "length_ms", "canonical"),
    [
        ("0h", 0, "0s"),
        ("90s", 90_000, "90s"),
        ("600s", 600_000, "10m"),
        ("36h", 36 * HOUR_MS, "36h"),
        ("048h", 2 * DAY_MS, "2d"),
    ],
)
def test_durations(text: str, length_ms: int, canonical: str) -> None:
    assert parse_duration(text, "keep") == length_ms
    assert duration_text(length_ms) == canonical
    assert parse_duration(canonical, "keep") == length_ms


@pytest.mark.parametrize(
    "text", ["", "10", "m", "-1m", "1.5h", "1h30m", "10 m", "10M", "\u0663m", "1m\n"]
)
def test_other_texts_are_no_durations(text: str) -> None:
    with pytest.raises(Malformed, match="half_life: "):
        parse_duration(text, "half_life")


@pytest.mark.parametrize(
    ("window_id", "name"),
    [
        ("all", "all"),
        ("hour:2026-10-25T02+01:00", "hour"),
        ("week:2026-W49", "week"),
        ("season:s4", "season:s4"),
        ("keys:0001980123", "keys"),
        ("last:7d", "last:7d"),
        ("", ""),
    ],
)
def test_the_name_of_an_id(window_id: str, name: str) -> None:
    assert name_of_id(window_id) == name
    assert is_sliding(name) == (name == "last:7d")
