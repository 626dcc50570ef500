"""The manual clock: the time of entries in tests and replays moves only by POST /v1/clock.

A file beside the database keeps what it shows, so that it does not go back with a restart.
"""

from __future__ import annotations

import threading
from pathlib import Path

import structlog

from agent.boards.entry import rfc3339
from agent.errors import OutOfRange
from agent.limits import TIME_MS_MAX

FILE = "manual-clock"
log = structlog.get_logger()


class ManualClock:
    """A clock that stands still until it is set, and never goes back. Read from any thread.

    Args:
        file: where `keep` writes what it shows; nowhere without it.
    """

    def __init__(self, start_ms: int, file: Path | None = None) -> None:
        self._ms = start_ms
        self._file = file
        self._keeping = threading.Lock()

    @classmethod
    def open(cls, folder: Path, least_ms: int) -> ManualClock:
        """The clock of an agent's folder, where it stood; at `least_ms` if that is later."""
        file = folder / FILE
        try:
            kept_ms = int(file.read_text())
        except FileNotFoundError:
            kept_ms = least_ms
        except (OSError, ValueError) as error:
            log.warning("the manual clock's file can't be used", path=str(file), why=str(error))
            kept_ms = least_ms
        return cls(max(least_ms, min(kept_ms, TIME_MS_MAX)), file)

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

    def keep(self) -> None:
        """Write what it shows, so that it begins there after a restart. Blocks; for any thread.

        Where that fails, it is told in the log, and the clock goes on.
        """
        if self._file is None:
            return
        draft = self._file.with_name(f"{FILE}.new")
        try:
            with self._keeping:
                draft.write_text(str(self._ms))
                draft.replace(self._file)
        except OSError as error:
            log.warning("the manual clock is not kept", path=str(self._file), why=str(error))
