"""Placing: which windows of a board an entry is counted in, by its time.

A window takes entries until its grace is over by this agent's clock, and never once this agent has
closed it (its mark is a promise to the others: marks.py) or it is collected, which may have been
before this agent joined. A window that was added to a running board takes none before it opens. The
answer is remembered for all times between the nearest bounds.
"""

from __future__ import annotations

from typing import NamedTuple

from agent.boards.catalog import Board, Counted
from agent.boards.marks import Marks
from agent.boards.windows import Window
from agent.errors import OutOfRange
from agent.limits import TIME_MS_MAX, TIME_MS_MIN


class Spot(NamedTuple):
    """A window of a board: the id under which it is answered, its space, and the space's shape.

    shown: whether it is a window of the board; else only the bucket of a sliding one.
    """

    window: str
    space: bytes
    shape: bytes
    shown: bool


class Spots(NamedTuple):
    """The windows that an entry's time falls in: those that take it, and those that are closed."""

    open: tuple[Spot, ...]
    closed: tuple[Spot, ...]
    from_ms: int
    to_ms: int

    @property
    def late(self) -> list[str]:
        """The ids of the closed windows."""
        return [spot.window for spot in self.closed if spot.shown]


def _spot(counted: Counted, window: Window) -> Spot:
    return Spot(window.id, counted.space_of(window), counted.prefix[-8:], counted.shown)


_NOWHERE = Spots((), (), 0, 0)


class Placing:
    """Places the entries of one batch on one board.

    Args:
        agent: whose close marks count.
        now_ms: this agent's clock.
    """

    def __init__(self, board: Board, marks: Marks, agent: str, now_ms: int) -> None:
        self._board = board
        self._marks = marks
        self._agent = agent
        self._now_ms = now_ms
        self._last = _NOWHERE

    def at(self, at_ms: int) -> Spots:
        """The windows of a time, in ms since 1970."""
        last = self._last
        if last.from_ms <= at_ms < last.to_ms:
            return last
        self._last = found = self._find(at_ms)
        return found

    def _find(self, at_ms: int) -> Spots:
        taking: list[Spot] = []
        closed: list[Spot] = []
        from_ms, to_ms = TIME_MS_MIN, TIME_MS_MAX + 1
        for counted in self._board.counted:
            window = counted.series.at(at_ms)
            if window is None:
                to_ms, from_ms = min(to_ms, at_ms + 1), max(from_ms, at_ms)
                continue
            if counted.series.name == "all":
                taking.append(_spot(counted, window))
                continue
            from_ms, to_ms = max(from_ms, window.start_ms), min(to_ms, window.end_ms)
            if window.start_ms < counted.opens_ms:
                continue
            spot = _spot(counted, window)
            over = self._over(window, counted.series.grace_ms, counted.marks)
            (closed if over else taking).append(spot)
        return Spots(tuple(taking), tuple(closed), from_ms, to_ms)

    def _over(self, window: Window, grace_ms: int, series: bytes) -> bool:
        over = window.end_ms + grace_ms <= self._now_ms
        if over or self._marks.closed_by(self._agent, series, window.id):
            return True
        return window.id <= self._marks.collected(series)

    def taking(self, at_ms: int) -> Spots:
        """As `at`, for an entry that has to be counted somewhere.

        Raises:
            OutOfRange: (`window_closed`) no window takes it.
        """
        spots = self.at(at_ms)
        if not spots.open:
            if spots.closed:
                names = ", ".join(spot.window for spot in spots.closed)
                detail = f"at: {names} closed, and no other window of the board takes the entry"
            else:
                detail = "at: no window of the board is open at this time"
            raise OutOfRange(
                "window_closed",
                detail,
                hint="a window takes entries of its time until its end and its grace are over",
            )
        return spots
