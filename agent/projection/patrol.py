"""The patrol: what stands in Redis is compared with SQLite all the time, a little at a time.

In each round every window is looked at once: its size, its best members, some at random, and the
end of its keys. Rounds last `projection.patrol_s`, and windows are spread over that time, so that
many boards are no burst. Once a day every member is compared. What differs is mended: single
members are written anew, a window of which more is wrong is filled anew.

Only the agent that projects goes, and only while it is at the head: comparing goes by the watermark
(audit.py). Windows that are computed on a timer are not compared.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import structlog
from redis.exceptions import RedisError

from agent.boards.catalog import Placed
from agent.errors import StoreError
from agent.projection.audit import Comparison, Sampling, compare_window
from agent.projection.connection import RankClient
from agent.projection.keys import board_key, meta_key
from agent.projection.place import EXPIRY_MARGIN_MS
from agent.projection.projector import Projector
from agent.state import State
from agent.store.readers import Readers

logger = structlog.get_logger()

TOP = 100
SAMPLE = 1_000
MENDED_MAX = 100  # differing members of a window that are written one by one; else it is filled
LOGGED_MAX = 20  # differences of a window that are told one by one
RECENT_MAX = 20  # of the newest differences, for whoever asks
BEHIND_MAX_S = 2.0  # a projection further behind is let catch up first
PAGE_REST_S = 0.05  # between pages of the daily scan


@dataclass(slots=True)
class PatrolCounts:
    """What was done since the start.

    rounds: over all windows. scans: of every member. windows, members: compared.
    differences: found. repaired: members written anew; refilled: windows filled anew for them.
    """

    rounds: int = 0
    scans: int = 0
    windows: int = 0
    members: int = 0
    differences: int = 0
    repaired: int = 0
    refilled: int = 0


@dataclass(slots=True)
class PatrolReport:
    """When the last round and the last scan ended, and the newest differences in words."""

    round_ended_ms: int | None = None
    scan_ended_ms: int | None = None
    recent: deque[str] = field(default_factory=lambda: deque(maxlen=RECENT_MAX))


class Patrol:
    """Compares Redis with SQLite until it is cancelled.

    Args:
        readers: of its own.
        client: of the region's Redis.
        projector: what fills it, and mends it.
        state: this agent's state now.
        now_ms: the system's clock.
        round_s: how long a round lasts.
        scan_s: how often every member is compared.
        expires: whether keys are given their end: not with a clock of the boards' own.
    """

    def __init__(
        self,
        readers: Readers,
        client: RankClient,
        projector: Projector,
        state: Callable[[], State],
        now_ms: Callable[[], int],
        *,
        round_s: float,
        scan_s: float,
        expires: bool,
    ) -> None:
        self._readers = readers
        self._client = client
        self._projector = projector
        self._state = state
        self._now_ms = now_ms
        self._round_s = round_s
        self._scan_s = scan_s
        self._expires = expires
        self._random = random.Random(time.time_ns())  # noqa: S311 -- a sample, no secret
        self._scan_at = time.monotonic() + scan_s
        self.counts = PatrolCounts()
        self.report = PatrolReport()

    async def run(self) -> None:
        """Go on patrol for ever."""
        while True:
            began = time.monotonic()
            windows = self._windows()
            for number, placed in enumerate(windows):
                due = began + self._round_s * number / len(windows)
                await asyncio.sleep(max(0.0, due - time.monotonic()))
                await self._guarded(self.look_at(placed))
            if windows:
                self.counts.rounds += 1
                self.report.round_ended_ms = self._now_ms()
            if time.monotonic() >= self._scan_at:
                self._scan_at = time.monotonic() + self._scan_s
                await self._guarded(self.scan())
            await asyncio.sleep(max(0.01, began + self._round_s - time.monotonic()))

    async def _guarded(self, work: Awaitable[object]) -> None:
        try:
            await work
        except (RedisError, OSError, StoreError) as error:  # Redis or the disk: others tell of it
            logger.info("patrol_interrupted", error=str(error) or type(error).__name__)

    def _windows(self) -> list[Placed]:
        names = [board.name for board in self._state().catalog]
        return [placed for name in names for placed in self._projector.windows(name)]

    def _rests(self) -> bool:
        """Whether this is no time to compare."""
        return not self._projector.follows or self._projector.status().behind_s > BEHIND_MAX_S

    async def look_at(self, placed: Placed) -> Comparison | None:
        """Compare a part of a window and mend what differs; None where that can't be done now.

        Raises:
            redis.exceptions.RedisError, OSError: Redis does not answer.
            StoreError: the file can't be read.
        """
        if self._rests():
            return None
        sampling = Sampling(self._readers, self._client, placed, self._state)
        found = await sampling.compare(TOP, SAMPLE, self._random)
        if found.skipped:
            return None
        counting = await sampling.count()
        if counting is not None and counting.stored != counting.ranked:
            self._tell(placed, f"SQLite has {counting.stored} members, Redis {counting.ranked}")
            found = await compare_window(self._readers, self._client, placed, self._state)
            if not found.count and not found.skipped:  # it was on its way
                self.report.recent.pop()
        self.counts.windows += 1
        self.counts.members += found.members
        await self._mend(placed, found)
        await self._check_end(placed)
        return found

    async def scan(self) -> None:
        """Compare every member of every window, with rests, and mend what differs.

        Raises:
            redis.exceptions.RedisError, OSError: Redis does not answer.
            StoreError: the file can't be read.
        """
        for placed in self._windows():
            if self._rests():
                continue
            found = await compare_window(
                self._readers, self._client, placed, self._state, rest_s=PAGE_REST_S
            )
            self.counts.windows += 1
            self.counts.members += found.members
            await self._mend(placed, found)
        self.counts.scans += 1
        self.report.scan_ended_ms = self._now_ms()

    async def _mend(self, placed: Placed, found: Comparison) -> None:
        if not found.count:
            return
        self.counts.differences += found.count
        for each in found.differences[:LOGGED_MAX]:
            self._tell(placed, str(each))
        board, window = placed.board.name, placed.window.id
        if found.count > min(MENDED_MAX, len(found.differences)):
            if self._projector.repair(board):
                self.counts.refilled += 1
            return
        members = [each.member for each in found.differences]
        if self._projector.mend(board, window, members):
            self.counts.repaired += len(members)

    async def _check_end(self, placed: Placed) -> None:
        """See that the window's keys end when they should, and no other time."""
        board, window = placed.board.name, placed.window.id
        expires = placed.expires_ms is not None and self._expires
        want = placed.expires_ms + EXPIRY_MARGIN_MS if expires and placed.expires_ms else -1
        wrong = []
        for key in (board_key(board, window), meta_key(board, window)):
            at_ms = int(await self._client.command("PEXPIRETIME", key))
            if at_ms not in (want, -2):  # -2: there is no such key, which others find
                wrong.append(f"{key} ends at {at_ms}, not at {want}")
        for text in wrong:
            self._tell(placed, text)
        if wrong:
            self.counts.differences += len(wrong)
            if self._projector.repair(board):
                self.counts.refilled += 1

    def _tell(self, placed: Placed, text: str) -> None:
        logger.error(
            "redis_differs", board=placed.board.name, window=placed.window.id, difference=text
        )
        self.report.recent.append(f"{placed.board.name} {placed.window.id}: {text}"[:500])
