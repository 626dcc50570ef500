"""Windows as the contract describes them, in plain Python: which ones a time falls in, and bounds.

Written from docs/api.md alone, on the standard library's time zones; shares no code with agents.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

DAY_MS = 86_400_000
# `all` spans 2000 to 2063. A clock change makes a window longer, by at most three hours.
EPOCH_MS = 946_684_800_000
_ALL_SPAN_MS = 1_988_150_400_000
_NEVER_MS = 2**62
_CHANGE_MS = 3 * 3_600_000
_SPAN_MS = {
    "day": DAY_MS + _CHANGE_MS,
    "week": 7 * DAY_MS + _CHANGE_MS,
    "month": 31 * DAY_MS + _CHANGE_MS,
}
# Times of the same quarter of an hour are in the same windows, in every zone of our time.
STEP_MS = 900_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ONE_MS = timedelta(milliseconds=1)


class Window(NamedTuple):
    """One window: from `start_ms` up to and without `end_ms`; none of its name is over `span_ms`.

    name: `all`, `day`, `week` or `month`. kept_ms: the time until which it can be read; None: ever.
    closes_ms: from when on it takes nothing more.
    """

    id: str
    name: str
    start_ms: int
    end_ms: int
    span_ms: int
    kept_ms: int | None
    closes_ms: int


ALL = Window("all", "all", EPOCH_MS, EPOCH_MS + _ALL_SPAN_MS, _ALL_SPAN_MS, None, _NEVER_MS)


@dataclass(frozen=True, slots=True)
class WindowSpec:
    """A window as a board's owner writes it; `grace_days` and `keep_days` not for `all`."""

    name: str
    zone: str = "UTC"
    grace_days: int = 0
    keep_days: int = 0

    def document(self) -> dict[str, Any]:
        """Its place in the body of PUT /v1/boards/{board}."""
        if self.name == "all":
            return {"name": "all"}
        times = {"grace": f"{self.grace_days}d", "keep": f"{self.keep_days}d"}
        return {"name": self.name, "zone": self.zone, **times}


EVER = (WindowSpec("all"),)
"""The windows of a board that names none."""


def windows_at(specs: tuple[WindowSpec, ...], at_ms: int) -> list[Window]:
    """The windows that a time falls in, one of each spec; a local midnight must exist."""
    return [_window(spec, at_ms) for spec in specs]


def _window(spec: WindowSpec, at_ms: int) -> Window:
    if spec.name == "all":
        return ALL
    zone = ZoneInfo(spec.zone)
    day = (_EPOCH + timedelta(milliseconds=at_ms)).astimezone(zone).date()
    if spec.name == "day":
        first, last, label = day, day, day.isoformat()
    elif spec.name == "week":
        year, week, weekday = day.isocalendar()
        first = day - timedelta(days=weekday - 1)
        last, label = first + timedelta(days=6), f"{year:04d}-W{week:02d}"
    else:
        first = day.replace(day=1)
        last = (first + timedelta(days=31)).replace(day=1) - timedelta(days=1)
        label = day.isoformat()[:7]
    start_ms, end_ms = _midnight_ms(first, zone), _midnight_ms(last + timedelta(days=1), zone)
    closes_ms = end_ms + spec.grace_days * DAY_MS
    kept_ms = closes_ms + spec.keep_days * DAY_MS
    span_ms = _SPAN_MS[spec.name]
    label = f"{spec.name}:{label}"
    return Window(label, spec.name, start_ms, end_ms, span_ms, kept_ms, closes_ms)


@lru_cache(1024)
def _midnight_ms(day: date, zone: ZoneInfo) -> int:
    return (datetime(day.year, day.month, day.day, tzinfo=zone) - _EPOCH) // _ONE_MS
