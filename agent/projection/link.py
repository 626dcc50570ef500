"""The projector's only way to change Redis: each change names the watermark it goes from.

A link knows the watermark that Redis holds as far as this agent knows, either the live one or that
of a rebuild of everything (`holding`), and moves it with every change. Where Redis holds another
one, nothing is changed and `Moved` is raised.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice

from agent.projection.connection import RankClient
from agent.projection.keys import (
    ABSENT,
    PROGRESS_KEY,
    WATERMARK_KEY,
    Fields,
    Guard,
    Watermark,
    guard_in,
)
from agent.projection.scripts import Change

SCAN_KEYS = 1_000  # that Redis looks at for one SCAN
HASHES_MAX = 500  # read in one pipeline


class Moved(Exception):
    """The watermark is not what was expected; nothing was changed. Look again."""


class Link:
    """Conditional changes of Redis, one after the other.

    Every method may raise redis.exceptions.RedisError or OSError; then it is unknown whether the
    change was made, and the watermark has to be looked at.

    Args:
        lease_s: how long each change makes the lease last.
        on_move: told after each change that was made.
    """

    def __init__(
        self,
        client: RankClient,
        lease_s: float,
        now_ms: Callable[[], int],
        on_move: Callable[[], None],
    ) -> None:
        self._client = client
        self._lease_ms = int(lease_s * 1000)
        self._now_ms = now_ms
        self._on_move = on_move
        self._watermark: Watermark | None = None
        self.holding = False
        self.changes = 0

    @property
    def watermark(self) -> Watermark:
        """The watermark that Redis holds; only after `adopt` or `begin`."""
        assert self._watermark is not None
        return self._watermark

    def lease_until_ms(self) -> int:
        """The end of a lease that begins now."""
        return self._now_ms() + self._lease_ms

    def next(self) -> Watermark:
        """The watermark after one more change that leaves the lsn alone."""
        batch = self.watermark.batch + 1
        return replace(self.watermark, batch=batch, lease_until_ms=self.lease_until_ms())

    async def look(self) -> tuple[Fields, Fields]:
        """The live watermark and the progress of a rebuild, as they stand in Redis."""
        live, progress = await self.hashes([WATERMARK_KEY, PROGRESS_KEY])
        return live, progress

    async def hashes(self, keys: Sequence[str]) -> list[Fields]:
        """Whole hashes; empty ones for keys that are not there."""
        found: list[Fields] = []
        left = iter(keys)
        while part := list(islice(left, HASHES_MAX)):
            found += await self._client.hashes(part)
        return found

    async def keys(self, cursor: int, pattern: str) -> tuple[int, list[bytes]]:
        """The next cursor (0 at the end), and the keys of one step of SCAN."""
        found = await self._client.command("SCAN", cursor, "MATCH", pattern, "COUNT", SCAN_KEYS)
        return int(found[0]), list(found[1])

    def adopt(self, watermark: Watermark) -> None:
        """Go on from a live watermark that was found."""
        self._watermark, self.holding = watermark, False

    async def begin(self, watermark: Watermark, live: Fields, progress: Fields) -> None:
        """Begin a rebuild of everything, if both hashes are still as they were found.

        Raises:
            Moved: they are not.
        """
        change = Change()
        change.unlink(WATERMARK_KEY)
        change.unlink(PROGRESS_KEY)
        change.fields(PROGRESS_KEY, watermark.fields())
        guards = {PROGRESS_KEY: guard_in(progress), WATERMARK_KEY: guard_in(live)}
        await self._apply(change, guards, watermark)
        self.holding = True

    async def write(
        self, change: Change, moved: Watermark | None = None, *, head: bool = False
    ) -> None:
        """Make one change and move the watermark with it.

        `head` tells that vv and as_of move too.

        Raises:
            Moved: the watermark is another one.
        """
        moved = moved or self.next()
        fields = moved.steps_of() | (moved.includes() if head else {})
        change.fields(PROGRESS_KEY if self.holding else WATERMARK_KEY, fields)
        await self._apply(change, self._guards(), moved)

    async def finish(self, change: Change) -> None:
        """End a rebuild: make the change, and what was its progress is the live watermark.

        Raises:
            Moved: the progress is another one, or there is a live watermark.
        """
        moved = self.next()
        change.unlink(PROGRESS_KEY)
        change.fields(WATERMARK_KEY, moved.fields())
        await self._apply(change, self._guards(), moved)
        self.holding = False

    def own_keys(self) -> set[bytes]:
        """The keys that the watermark needs now."""
        return {key.encode() for key in self._guards()}

    def _guards(self) -> dict[str, Guard]:
        guard = self.watermark.guard()
        if self.holding:
            return {PROGRESS_KEY: guard, WATERMARK_KEY: ABSENT}
        return {WATERMARK_KEY: guard}

    async def _apply(self, change: Change, guards: dict[str, Guard], moved: Watermark) -> None:
        if not await change.apply(self._client, guards):
            raise Moved
        self.changes += 1
        self._watermark = moved
        self._on_move()
