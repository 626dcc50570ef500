"""The manual clock: the time of entries in tests and replays moves only by POST /v1/clock."""

from __future__ import annotations

from agent.boards.entry import rfc3339
from agent.errors import OutOfRange


class ManualClock:
    """A clock that stands still until it is set, and never goes back. Read from any thread."""

    def __init__(self, start_ms: int) -> None:
        self._ms = start_ms

    def now_ms(self) -> int:
        """The time it shows, in ms since 1970."""
        return self._ms

    def set_ms(self, ms: int) -> None:
        """Move the clock forward to `ms`.

        Raises:
            OutOfRange: `ms` is before the time it shows.
        """
        if ms < self._ms:
            raise OutOfRange(
                "out_of_range",
                f"now: {rfc3339(ms)} is before {rfc3339(self._ms)}, and a clock never goes back",
            )
        self._ms = ms
