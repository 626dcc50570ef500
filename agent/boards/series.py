"""Series: where each window of a name begins and ends.

A *series* is all windows of one name in one zone. Its windows follow each other without gap or
overlap, each has an id, and the ids sort as text in the order of time, so that marks and keys can
compare them without a definition. A window begins when its local time is *first reached or
passed* (zones.py): a day whose midnight does not exist begins with the first instant of it, a day
that does not exist has no window, and what the clock goes through again belongs to the window that
had begun. Only hours are also cut where the offset from UTC changes inside one: the second of two
equal hours is a window of its own, with its offset in its id.
"""

from __future__ import annotations

from datetime import date
from typing import Literal, NamedTuple

from agent.boards.zones import DAY_MS, HOUR_MS, offset_text, zone_of
from agent.limits import TIME_MS_MAX, TIME_MS_MIN

# The window `all` spans 2000-01-01 to 2063-01-01, so that history can be imported: with the
# default score range, 25 bits of minutes hold it. Times outside of it count in it all the same.
ALL_START_MS = 946_684_800_000
ALL_END_MS = 2_934_835_200_000


CalendarKind = Literal["hour", "day", "week", "month"]
# No clock has gone back by more than three hours since 1995. A longer window of older times (47
# hours on Kwajalein in 1969) only has its last times of a tie clamped (scale.py).
SPAN_MS: dict[CalendarKind, int] = {
    "hour": 4 * HOUR_MS,
    "day": DAY_MS + 3 * HOUR_MS,
    "week": 7 * DAY_MS + 3 * HOUR_MS,
    "month": 31 * DAY_MS + 3 * HOUR_MS,
}
FACTS_MS = 15 * 60_000  # the width of a bucket of facts
_UNIX_DAY = date(1970, 1, 1).toordinal()


class Window(NamedTuple):
    """One window: from `start_ms`, up to and without `end_ms`. `name` is that of its series."""

    id: str
    name: str
    start_ms: int
    end_ms: int


_NO_WINDOW = Window("", "", 0, 0)


class Series:
    """All windows of one name in one zone, with what holds for each of them.

    grace_ms: a window is closed once `end_ms + grace_ms` is over.
    keep_ms: it stays that long after it closed; None where it is not this that ends it.
    certify: whether it gets a certified final.
    span_ms: no window is longer (of times since 1995).
    shape_parts: what the numbers in a window depend on: zone, and bounds of a season.

    Equal by value. Shared by threads: all it changes is the memory of the last windows found.
    """

    __slots__ = (
        "_last",
        "_other",
        "certify",
        "grace_ms",
        "keep_ms",
        "name",
        "shape_parts",
        "span_ms",
        "zone",
    )

    def __init__(
        self,
        name: str,
        zone: str,
        grace_ms: int,
        keep_ms: int | None,
        span_ms: int,
        shape_parts: tuple[str, int, int],
        *,
        certify: bool = True,
    ) -> None:
        self.name = name
        self.zone = zone
        self.grace_ms = grace_ms
        self.keep_ms = keep_ms
        self.span_ms = span_ms
        self.shape_parts = shape_parts
        self.certify = certify
        self._last: Window = _NO_WINDOW
        self._other: Window = _NO_WINDOW

    def _value(self) -> tuple[object, ...]:
        parts = self.grace_ms, self.keep_ms, self.shape_parts, self.certify
        return self.name, self.zone, *parts

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Series) and self._value() == other._value()

    def __hash__(self) -> int:
        return hash(self._value())

    def __repr__(self) -> str:
        return f"Series{self._value()}"

    def counts_as(self, other: Series) -> bool:
        """Whether the numbers in the windows of both are the same: they share their spaces."""
        return (self.name, self.shape_parts) == (other.name, other.shape_parts)

    def at(self, ms: int) -> Window | None:
        """The window that a time falls in; None outside of a season or of the years 1 to 4199."""
        last = self._last
        if last.start_ms <= ms < last.end_ms:
            return last
        found: Window | None = self._other
        if found is None or not found.start_ms <= ms < found.end_ms:
            found = self._find(ms) if TIME_MS_MIN <= ms <= TIME_MS_MAX else None
        if found is not None:
            self._other, self._last = last, found
        return found

    def window(self, id: str) -> Window | None:  # noqa: A002 - it is what everyone calls it
        """The window of an id; None where this series has none of it."""
        raise NotImplementedError

    def _find(self, ms: int) -> Window | None:
        """The window at a time in the years 1 to 4199."""
        raise NotImplementedError

    def after(self, window: Window) -> Window | None:
        """The window that follows; None after the last one."""
        return self._find(window.end_ms) if window.end_ms <= TIME_MS_MAX else None

    def before(self, window: Window) -> Window | None:
        """The window that ends where this one starts; None before the first one."""
        return self._find(window.start_ms - 1) if window.start_ms > TIME_MS_MIN else None

    def latest_closed(self, now_ms: int) -> Window | None:
        """The newest window that takes no more entries at `now_ms`; None where none has closed."""
        open_window = self.at(now_ms - self.grace_ms)
        return None if open_window is None else self.before(open_window)

    def recent(self, now_ms: int, count: int) -> list[Window]:
        """The newest `count` windows up to the one at `now_ms`, oldest first."""
        found: list[Window] = []
        window = self.at(now_ms)
        while window is not None and len(found) < count:
            found.append(window)
            window = self.before(window)
        return found[::-1]


class Single(Series):
    """`all` or a season: one window."""

    __slots__ = ("_only",)

    def __init__(
        self, only: Window, grace_ms: int, keep_ms: int | None, *, certify: bool = True
    ) -> None:
        bounds = only.start_ms, only.end_ms
        shape_parts = ("", 0, 0) if only.name == "all" else ("", *bounds)
        span_ms = only.end_ms - only.start_ms
        super().__init__(only.name, "UTC", grace_ms, keep_ms, span_ms, shape_parts, certify=certify)
        self._only = only

    def _find(self, ms: int) -> Window | None:
        only = self._only
        inside = only.name == "all" or only.start_ms <= ms < only.end_ms
        return only if inside else None

    def window(self, id: str) -> Window | None:  # noqa: A002
        """The one window, by its id."""
        return self._only if id == self._only.id else None

    def after(self, window: Window) -> Window | None:  # noqa: ARG002 - for every series
        """None: it is the only one."""
        return None

    def before(self, window: Window) -> Window | None:  # noqa: ARG002 - for every series
        """None: it is the only one."""
        return None

    def latest_closed(self, now_ms: int) -> Window | None:
        """A season once it has closed; `all` never does."""
        over = self._only.end_ms + self.grace_ms <= now_ms
        return self._only if over and self.name != "all" else None


class Facts(Series):
    """The buckets of the facts behind idempotency keys: quarters of an hour since 1970, counted."""

    __slots__ = ()

    def _find(self, ms: int) -> Window | None:
        number = ms // FACTS_MS
        if number < 0:
            return None
        start_ms = number * FACTS_MS
        return Window(f"{self.name}:{number:010d}", self.name, start_ms, start_ms + FACTS_MS)

    def window(self, id: str) -> Window | None:  # noqa: A002
        """The bucket of an id."""
        digits = id.removeprefix(f"{self.name}:")
        ms = int(digits) * FACTS_MS if len(digits) == 10 and digits.isdecimal() else -1
        found = self._find(ms) if ms <= TIME_MS_MAX else None
        return found if found is not None and found.id == id else None


class Calendar(Series):
    """Hours, days, ISO weeks or months of a zone. A local time is in ms since 1970-01-01 local."""

    __slots__ = ("_zone",)

    def __init__(
        self, kind: CalendarKind, zone: str, grace_ms: int, keep_ms: int, *, certify: bool = True
    ) -> None:
        shape_parts = (zone, 0, 0)
        super().__init__(kind, zone, grace_ms, keep_ms, SPAN_MS[kind], shape_parts, certify=certify)
        self._zone = zone_of(zone)

    def _find(self, ms: int) -> Window | None:
        local_ms = self._zone.latest_local_ms(ms)
        if local_ms < TIME_MS_MIN:
            return None  # still the year 0 there
        begin, end = self._bounds(local_ms)
        start_ms, end_ms = self._zone.first_at(begin), self._zone.first_at(end)
        id = self._id(begin)  # noqa: A001
        if self.name == "hour":
            for change in self._zone.changes(start_ms, end_ms - 1):
                if change.at_ms > ms:
                    end_ms = change.at_ms
                    break
                start_ms, id = change.at_ms, self._id(begin) + offset_text(change.after_ms)  # noqa: A001
        return Window(id, self.name, start_ms, end_ms)

    def _bounds(self, local_ms: int) -> tuple[int, int]:
        """The local times at which what holds a local time begins and ends."""
        if self.name == "hour":
            begin = local_ms - local_ms % HOUR_MS
            return begin, begin + HOUR_MS
        day = local_ms // DAY_MS
        if self.name == "day":
            return day * DAY_MS, (day + 1) * DAY_MS
        if self.name == "week":
            monday = day - (day + _UNIX_DAY - 1) % 7
            return monday * DAY_MS, (monday + 7) * DAY_MS
        first = day - _date(day).day + 1
        return first * DAY_MS, (first + 32 - _date(first + 31).day) * DAY_MS

    def _id(self, begin: int) -> str:
        day = _date(begin // DAY_MS)
        if self.name == "hour":
            return f"hour:{day.isoformat()}T{begin % DAY_MS // HOUR_MS:02d}"
        if self.name == "week":
            year, week, _ = day.isocalendar()
            return f"week:{year:04d}-W{week:02d}"
        text = day.isoformat()
        return f"month:{text[:7]}" if self.name == "month" else f"day:{text}"

    def window(self, id: str) -> Window | None:  # noqa: A002
        """The window of an id; None also for hours and days that do not exist in the zone."""
        last = self._last
        if id and last.id == id:  # before the first one it is one without an id
            return last
        begin = self._begin(id)
        if begin is None or not TIME_MS_MIN <= begin < TIME_MS_MAX:
            return None
        # Whatever was made of a text that is no id: the window found there has another one.
        found = self._find(max(self._zone.first_at(begin), TIME_MS_MIN))
        while found is not None and found.id < id and id.startswith(self._id(begin)):
            found = self.after(found)
        return found if found is not None and found.id == id else None

    def _begin(self, id: str) -> int | None:  # noqa: A002
        """The local time at which the window of an id begins, if it is one."""
        text = id.removeprefix(f"{self.name}:")
        hours = 0
        try:
            if self.name == "week":
                day = date.fromisocalendar(int(text[:4]), int(text[6:8]), 1)
            elif self.name == "month":
                day = date(int(text[:4]), int(text[5:7]), 1)
            else:
                day = date.fromisoformat(text[:10])
                hours = int(text[11:13]) if self.name == "hour" else 0
        except ValueError:
            return None
        return (day.toordinal() - _UNIX_DAY) * DAY_MS + hours * HOUR_MS


def _date(day: int) -> date:
    return date.fromordinal(day + _UNIX_DAY)


KEYS: Series = Facts("keys", "UTC", 0, None, FACTS_MS, ("", 0, 0))
"""The buckets of facts. What closes and ends them is the board's `key_retention`."""
