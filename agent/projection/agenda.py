"""When which windows of a board begin and end to have a place in Redis: pure.

A window has a place from its beginning (or its first entry, if that is sooner) until it is kept no
longer; one without entries only until it closes. So a board has to be looked at again when its next
window begins, when the next one of its places ends, and not before.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heappop, heappush
from typing import Generic, TypeVar

from agent.boards.catalog import Board, Placed
from agent.boards.series import Series, Window

Item = TypeVar("Item", str, tuple[str, str])

# A window's place is made a little before the window begins, so that nobody finds it missing.
AHEAD_MS = 5_000


def open_windows(series: Series, now_ms: int) -> list[Window]:
    """The windows of a series that have begun and are not closed, oldest first.

    `all` is always open: it takes every time's entries, also of times before it begins.
    """
    if series.name == "all":
        return [window for window in [series.window("all")] if window is not None]
    found = []
    window = series.at(now_ms - series.grace_ms) or _begun(series, now_ms)
    while window is not None and window.start_ms <= now_ms:
        if closes_ms(series, window) > now_ms:
            found.append(window)
        window = series.after(window)
    return found


def _begun(series: Series, now_ms: int) -> Window | None:
    """The window at a time, or the only one of a season."""
    return series.at(now_ms) or series.window(series.name)


def closes_ms(series: Series, window: Window) -> int:
    """When a window takes no more entries. Of `all`, which takes every time's: never."""
    return 2**63 if series.name == "all" else window.end_ms + series.grace_ms


def next_look_ms(board: Board, places: Iterable[tuple[Placed, bool]], now_ms: int) -> int | None:
    """When the places of a board have to be looked at again; None: never.

    Args:
        places: those it has, each with whether its window has entries.
    """
    times = []
    for counted in board.counted:
        if not counted.shown or counted.series.name == "all":
            continue
        window = counted.series.at(now_ms + AHEAD_MS)
        if window is None:
            window = counted.series.window(counted.series.name)
            if window is not None:
                times.append(window.start_ms - AHEAD_MS)
        elif counted.series.after(window) is not None:
            times.append(window.end_ms - AHEAD_MS)
    for sliding in board.slidings:
        newest = sliding.counted.series.at(now_ms)
        if newest is not None:
            times.append(newest.end_ms)
    for placed, stored in places:
        if placed.window.name.startswith("last:"):
            continue
        if stored:
            times.append(placed.expires_ms or 0)
        elif placed.counted.series.name != "all":
            times.append(closes_ms(placed.counted.series, placed.window))
    return min((time for time in times if time > now_ms), default=None)


class Agenda(Generic[Item]):
    """What is to be looked at when, by the board's time; each once."""

    def __init__(self) -> None:
        self._at: dict[Item, int] = {}
        self._heap: list[tuple[int, Item]] = []

    def put(self, item: Item, at_ms: int | None) -> None:
        """Look at something then, and not when it was said before; None: not at all."""
        if at_ms is None:
            self._at.pop(item, None)
        elif self._at.get(item) != at_ms:
            self._at[item] = at_ms
            heappush(self._heap, (at_ms, item))

    def sooner(self, item: Item, at_ms: int | None) -> None:
        """Look at something then, unless that is to be done before anyway."""
        if at_ms is not None and at_ms < self._at.get(item, at_ms + 1):
            self.put(item, at_ms)

    def due(self, now_ms: int, limit: int) -> list[Item]:
        """The next ones whose time has come, at most `limit`; they are on the agenda no more."""
        found: list[Item] = []
        while self._heap and self._heap[0][0] <= now_ms and len(found) < limit:
            at_ms, item = heappop(self._heap)
            if self._at.get(item) == at_ms:
                del self._at[item]
                found.append(item)
        return found
