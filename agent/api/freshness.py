"""Freshness: `as_of` and `max_lag_ms`, on every answer that shows a score or a rank."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from agent.boards.entry import rfc3339
from agent.errors import Unavailable
from agent.state import State


class Freshness(NamedTuple):
    """Up to when an answer includes each region.

    as_of: region -> RFC 3339, None while nothing is known of one of its agents.
    max_lag_ms: over all regions; None while one of them is unknown.
    """

    as_of: dict[str, str | None]
    max_lag_ms: int | None

    def require(self, lag_ms_max: int | None) -> None:
        """Refuse an answer staler than the caller asked for; None asks for nothing.

        Raises:
            Unavailable: (`too_stale`)
        """
        if lag_ms_max is None or (self.max_lag_ms is not None and self.max_lag_ms <= lag_ms_max):
            return
        behind = [region for region, at in self.as_of.items() if at is None]
        what = (
            f"nothing is known yet of {', '.join(sorted(behind))}"
            if behind
            else f"this answer would be {self.max_lag_ms} ms behind"
        )
        raise Unavailable(
            "too_stale",
            f"max_lag_ms: {what}, and at most {lag_ms_max} ms were asked for",
            hint="as_of in GET /v1/ring shows which region is behind",
        )


def freshness_of(as_of: Mapping[str, int | None], now_ms: int) -> Freshness:
    """The freshness of an answer that includes each region up to `as_of` (ms since 1970)."""
    known = [ms for ms in as_of.values() if ms is not None]
    complete = known and len(known) == len(as_of)
    return Freshness(
        {region: None if ms is None else rfc3339(ms) for region, ms in as_of.items()},
        max(0, now_ms - min(known)) if complete else None,
    )


class FreshnessCache:
    """The freshness of states read now: made once for all answers of the same millisecond."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._made_for: tuple[int, object, object] = (-1, None, None)
        self._made = Freshness({}, None)
        self._shown_for: tuple[int, Mapping[str, int | None]] = (-1, {})
        self._shown = Freshness({}, None)

    def of(self, state: State) -> Freshness:
        """The freshness of an answer from `state`, which is this agent's newest."""
        now_ms = self._now_ms()
        made_ms, times, ring = self._made_for
        if made_ms != now_ms or times is not state.times or ring is not state.ring:
            as_of = state.as_of(now_ms)
            self._made = freshness_of(as_of, now_ms)
            self._made_for = (now_ms, state.times, state.ring)
        return self._made

    def shown(self, as_of: Mapping[str, int | None]) -> Freshness:
        """The freshness of a view; those that were read in one look have one `as_of`."""
        now_ms = self._now_ms()
        if self._shown_for[0] != now_ms or self._shown_for[1] is not as_of:
            self._shown = freshness_of(as_of, now_ms)
            self._shown_for = (now_ms, as_of)
        return self._shown
