"""The projector's only way to change Redis: each change names the watermark it goes from.

A link knows the watermark that Redis holds as far as this agent knows, either the live one or that
of a rebuild of everything (`holding`), and moves it with every change. Where Redis holds another
one, nothing is changed and `Moved` is raised.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from itertools import islice
from typing import TypeVar, cast

from agent.projection.connection import RankClient
from agent.projection.keys import (
    ABSENT,
    PROGRESS_KEY,
    WATERMARK_KEY,
    Claim,
    Fields,
    Guard,
    Watermark,
    guard_in,
    watermark_in,
)
from agent.projection.scripts import Change

Result = TypeVar("Result")
SCAN_KEYS = 1_000  # that Redis looks at for one SCAN
HASHES_MAX = 500  # read in one pipeline
RENEWALS = 4  # of a lease while it lasts, at least
GIVE_UP_TRIES = 3  # a change that was on its way may still move the watermark


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
        self._lease_ms = max(1, int(lease_s * 1000))
        self._renew_s = lease_s / RENEWALS
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

    async def existing(self, keys: Sequence[str]) -> list[bool]:
        """Whether each key is there."""
        return await self._client.existing(keys)

    async def keys(self, cursor: int, pattern: str) -> tuple[int, list[bytes]]:
        """The next cursor (0 at the end), and the keys of one step of SCAN."""
        found = await self._client.command("SCAN", cursor, "MATCH", pattern, "COUNT", SCAN_KEYS)
        return int(found[0]), list(found[1])

    def adopt(self, watermark: Watermark) -> None:
        """Go on from a live watermark that was found."""
        self._watermark, self.holding = watermark, False

    async def rename_log(self, log: int) -> None:
        """My log goes on under another id: so does the watermark.

        Raises:
            Moved: the watermark is another one.
        """
        moved = self.next()
        moved = replace(moved, claim=replace(moved.claim, log=log))
        change = Change()
        fields = {"log": str(log)} | moved.steps_of()
        change.fields(PROGRESS_KEY if self.holding else WATERMARK_KEY, fields)
        await self._apply(change, self._guards(), moved)

    async def take_over(self, watermark: Watermark, found: Watermark) -> None:
        """Make the live watermark mine, if it is still as it was found.

        Raises:
            Moved: it is not.
        """
        change = Change()
        change.fields(WATERMARK_KEY, watermark.fields())
        await self._apply(change, {WATERMARK_KEY: found.guard()}, watermark)
        self.holding = False

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

    async def keep(
        self,
        reading: Callable[[], Awaitable[Result]],
        meanwhile: Callable[[], Awaitable[None]] | None = None,
    ) -> Result:
        """Await something that may take long, and renew the lease until it has ended.

        No other method may be called until it returns, but by `meanwhile`: that is done first.
        Both have ended when this returns or raises; what a change raises is raised first.
        """
        ended = asyncio.Event()

        async def read() -> Result:
            try:
                return await reading()
            finally:
                ended.set()

        async def renew() -> None:
            if meanwhile is not None:
                await meanwhile()
            while not ended.is_set():
                try:
                    async with asyncio.timeout(self._renew_s):
                        await ended.wait()
                except TimeoutError:
                    await self.write(Change())

        renewed, result = await asyncio.gather(renew(), read(), return_exceptions=True)
        for each in (renewed, result):
            if isinstance(each, BaseException):
                raise each
        return cast("Result", result)

    async def give_up(self, claim: Claim) -> bool:
        """Give the lease up if it is of this claim, so that another agent may go on at once.

        Returns whether it was. `batch` moves too: what was on its way when the agent was told to
        stop fits no more, and can't renew the lease.
        """
        for _ in range(GIVE_UP_TRIES):
            live, progress = await self.look()
            key, found = (WATERMARK_KEY, live) if live else (PROGRESS_KEY, progress)
            watermark = watermark_in(found)
            if watermark is None or watermark.claim != claim:
                return False
            change = Change()
            change.fields(key, {"lease_until_ms": "0", "batch": str(watermark.batch + 1)})
            if await change.apply(self._client, {key: watermark.guard()}):
                return True
        return False

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
