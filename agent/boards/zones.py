"""Zones: between UTC and a zone's local time, by the tz database that the agent brings along.

The zone files come from the tzdata package alone, never from the machine, so that agents of one
version agree on every boundary. The standard library tells the offset at a time but not when it
changes; changes are found by looking once a day and halving the day around a difference. The
tz database has no two changes within a day of each other (the closest are a week apart).

A local time can happen never or twice, so the question asked here is another one: when is a local
time *first reached or passed*? It always has exactly one answer, and the answers are in the order
of the local times.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import cache, lru_cache
from importlib.resources import files
from typing import NamedTuple
from zoneinfo import ZoneInfo

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
# Before 1800 no zone changes: every place kept its own mean time.
_FIRST_MS = -5_364_662_400_000
# Changes are searched for and kept by stretches of 96 days.
_STRETCH_MS = 96 * DAY_MS
_STRETCHES_MAX = 256


class Change(NamedTuple):
    """From `at_ms` on, local time is UTC plus `after_ms`; just before, UTC plus `before_ms`."""

    at_ms: int
    before_ms: int
    after_ms: int


@cache
def _names() -> frozenset[str]:
    return frozenset(files("tzdata").joinpath("zones").read_text("ascii").split())


class _Stretch(NamedTuple):
    """What holds in 96 days: the offset just before them, and the changes in them, in order."""

    before_ms: int
    changes: tuple[Change, ...]


class Zone:
    """One zone of the tz database. Times are ms since 1970 up to the year 9998.

    Shared by threads: what it remembers is only added to, and finding it twice is harmless.
    """

    __slots__ = ("_info", "_stretches", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        place = files("tzdata").joinpath("zoneinfo", *name.split("/"))
        with place.open("rb") as file:
            self._info = ZoneInfo.from_file(file, key=name)
        self._stretches: dict[int, _Stretch] = {}

    def offset_ms(self, at_ms: int) -> int:
        """What is added to UTC at a time to get the local time; less than a day."""
        offset_ms, changes = self._stretch(at_ms // _STRETCH_MS)
        for change in changes:
            if change.at_ms > at_ms:
                break
            offset_ms = change.after_ms
        return offset_ms

    def changes(self, from_ms: int, to_ms: int) -> list[Change]:
        """The changes of the offset after `from_ms` and up to `to_ms`, in order."""
        return [
            change
            for number in range(from_ms // _STRETCH_MS, to_ms // _STRETCH_MS + 1)
            for change in self._stretch(number).changes
            if from_ms < change.at_ms <= to_ms
        ]

    def _stretch(self, number: int) -> _Stretch:
        known = self._stretches.get(number)
        if known is not None:
            return known
        found = []
        start_ms = number * _STRETCH_MS - 1
        first_ms = before_ms = self._look(start_ms)
        for low_ms in range(start_ms, start_ms + _STRETCH_MS, DAY_MS):
            after_ms = self._look(low_ms + DAY_MS)
            if after_ms != before_ms:
                found.append(self._change_in(low_ms, low_ms + DAY_MS, before_ms, after_ms))
                before_ms = after_ms
        if len(self._stretches) >= _STRETCHES_MAX:
            self._stretches.clear()
        self._stretches[number] = stretch = _Stretch(first_ms, tuple(found))
        return stretch

    def _change_in(self, low_ms: int, high_ms: int, before_ms: int, after_ms: int) -> Change:
        while high_ms - low_ms > 1:
            middle_ms = (low_ms + high_ms) // 2
            if self._look(middle_ms) == before_ms:
                low_ms = middle_ms
            else:
                high_ms = middle_ms
        return Change(high_ms, before_ms, after_ms)

    def _look(self, at_ms: int) -> int:
        """The offset at a time, as the standard library finds it."""
        moment = _EPOCH + _MILLISECOND * max(at_ms, _FIRST_MS)
        offset = moment.astimezone(self._info).utcoffset()
        assert offset is not None, self.name
        return offset // _MILLISECOND

    def latest_local_ms(self, at_ms: int) -> int:
        """The latest local time there has been up to a time, in ms since 1970-01-01 local.

        It is the local time itself, but for the hours after the clock went back.
        """
        latest_ms = at_ms + self.offset_ms(at_ms)
        for change in self.changes(at_ms - 2 * DAY_MS, at_ms):
            latest_ms = max(latest_ms, change.at_ms - 1 + change.before_ms)
        return latest_ms

    def first_at(self, local_ms: int) -> int:
        """When a local time (ms since 1970-01-01 local) is first reached or passed."""
        at_ms = local_ms - DAY_MS
        offset_ms = self.offset_ms(at_ms)
        for change in self.changes(at_ms, local_ms + DAY_MS):
            reached_ms = max(at_ms, local_ms - offset_ms)
            if reached_ms < change.at_ms:
                return reached_ms
            at_ms, offset_ms = change.at_ms, change.after_ms
        return max(at_ms, local_ms - offset_ms)


def is_zone(name: str) -> bool:
    """Whether the tz database has a zone of this name. Case matters."""
    return name in _names()


@lru_cache(1024)
def zone_of(name: str) -> Zone:
    """The zone of an IANA name that `is_zone` knows, such as `Europe/Berlin`."""
    assert is_zone(name), name
    return Zone(name)


def offset_text(offset_ms: int) -> str:
    """An offset from UTC as `+01:00`; some of before 1973 have seconds too."""
    minutes, seconds = divmod(abs(offset_ms) // 1000, 60)
    text = f"{'-' if offset_ms < 0 else '+'}{minutes // 60:02d}:{minutes % 60:02d}"
    return f"{text}:{seconds:02d}" if seconds else text
