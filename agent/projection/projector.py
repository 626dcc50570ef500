"""The projector: one coroutine that keeps the region's Redis equal to this agent's log.

    look at the watermark -> decide -> (rebuild) -> read the log above it -> a script a batch -> ...

It holds nothing that Redis does not: on any error or mismatch it looks again and goes on from what
it finds. Each turn of the loop reads the log once, then gives one slice to a board that is being
filled and one to the search for leftover keys, so that none of them waits for another.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import NoReturn, assert_never

import structlog
from redis.exceptions import RedisError

from agent.apply import State
from agent.commit import Commit
from agent.config import Config
from agent.projection.connection import RankClient
from agent.projection.decision import Follow, Rebuild, Refuse, Wait, decide
from agent.projection.filler import Filler
from agent.projection.keys import Claim, Fields, Watermark, meta_key
from agent.projection.link import Link, Moved
from agent.projection.recent import Recent
from agent.projection.refill import WINDOW, Places
from agent.projection.scripts import Change
from agent.projection.source import Changes, changes_of, read_catalog, read_changes
from agent.projection.status import BoardState, Counts, Phase, Status
from agent.store.readers import Readers

logger = structlog.get_logger()

RECENT_ENTRIES_MAX = 500  # from memory, on the event loop: two milliseconds of it
READ_ENTRIES_MAX = 5_000  # of the log, at a time: bounds how old a batch is when it is written
BACKOFF_MIN_S, BACKOFF_MAX_S = 0.05, 2.0  # a rank store is near: it is tried often


class Projector:
    """Projects the log into Redis. `run` is its loop; the rest may be called beside it.

    Args:
        readers: snapshots of the agent's SQLite file.
        state: the agent's durable state now.
        client: used by the projector alone.
        now_ms: the system's clock, in ms since 1970: for leases and for `as_of`.
    """

    def __init__(
        self,
        config: Config,
        readers: Readers,
        state: Callable[[], State],
        client: RankClient,
        now_ms: Callable[[], int],
    ) -> None:
        self._config = config
        self._readers = readers
        self._state = state
        self._now_ms = now_ms
        self._link = Link(client, config.projection.lease_s, now_ms, self._announce)
        self._filler: Filler | None = None
        self._recent = Recent()
        self._counts = Counts()
        self._phase = Phase.STARTING
        self._error = ""
        self._vv: Mapping[int, int] = {}
        self._touched_s = 0.0
        self._behind_since_s: float | None = None
        self._woken = asyncio.Event()
        self._moved = asyncio.Event()

    # --- what others call ------------------------------------------------------------------

    def committed(self, commit: Commit) -> None:
        """Told after each commit, on the event loop."""
        self._recent.add(commit)
        self.wake()

    def wake(self) -> None:
        """Tell that something was committed. Call on the event loop."""
        if self._behind_since_s is None:
            self._behind_since_s = asyncio.get_running_loop().time()
        self._woken.set()

    def status(self) -> Status:
        """How the projection stands now. Call on the event loop."""
        behind_s = 0.0
        if self._behind_since_s is not None:
            behind_s = asyncio.get_running_loop().time() - self._behind_since_s
        fillings = [] if self._filler is None else self._filler.places.fillings()
        totals = [filling.total for filling in fillings]
        known = [total for total in totals if total is not None]
        watermark = None if self._filler is None else self._link.watermark
        return Status(
            phase=self._phase,
            error=self._error,
            lsn=0 if watermark is None else watermark.lsn,
            as_of={} if watermark is None else watermark.as_of,
            behind_s=behind_s,
            boards_rebuilding=tuple(filling.board.name for filling in fillings),
            refill_done=sum(filling.members for filling in fillings),
            refill_total=sum(known) if len(known) == len(totals) else None,
            counts=replace(self._counts, batches=self._link.changes),
        )

    def state_of(self, board: str) -> BoardState:
        """Whether a board's ranks can be read, as far as this agent knows.

        While another agent of the region projects, that is READY: what it holds is in Redis.
        """
        match self._phase:
            case Phase.DOWN | Phase.REFUSED:
                return BoardState.DOWN
            case Phase.WAITING:
                return BoardState.READY
            case Phase.FOLLOWING:
                assert self._filler is not None
                if self._filler.places.complete(board):
                    return BoardState.READY
        return BoardState.REBUILDING

    async def wait_for(
        self,
        board: str,
        timeout_s: float,
        *,
        lsn: int | None = None,
        stamp: tuple[int, int] | None = None,
    ) -> bool:
        """Wait until a write is in the board's ranks; returns whether it is.

        Args:
            lsn: of the write in *this* agent's log.
            stamp: (incarnation, seq) of the write, which every agent understands. One of the two
                is enough; of both, whichever is seen first counts.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while not self._includes(board, lsn, stamp):
                    await self._moved.wait()
        return self._includes(board, lsn, stamp)

    def _includes(self, board: str, lsn: int | None, stamp: tuple[int, int] | None) -> bool:
        if self.state_of(board) != BoardState.READY:
            return False
        if stamp is not None and self._vv.get(stamp[0], 0) >= stamp[1]:
            return True
        following = self._phase == Phase.FOLLOWING
        return following and lsn is not None and self._link.watermark.lsn >= lsn

    # --- the loop --------------------------------------------------------------------------

    async def run(self) -> NoReturn:
        """Project for ever. Survives everything that Redis does; ends by cancellation."""
        loop = asyncio.get_running_loop()
        backoff_s = BACKOFF_MIN_S
        while True:
            began_s = loop.time()
            try:
                await self._look_and_follow()
            except Moved:
                self._counts.mismatches += 1
                logger.info("projection_watermark_moved")
            except (RedisError, OSError) as error:
                self._counts.failures += 1
                self._enter(Phase.DOWN, f"{type(error).__name__}: {error}")
                if loop.time() - began_s > BACKOFF_MAX_S:  # it had worked for a while
                    backoff_s = BACKOFF_MIN_S
                await asyncio.sleep(backoff_s)
                backoff_s = min(2 * backoff_s, BACKOFF_MAX_S)

    async def _look_and_follow(self) -> None:
        """Look at Redis, decide, and follow the log until Redis is not what is expected."""
        live, progress = await self._link.look()
        state = self._state()
        decision = decide(live, progress, self._claim(state), state.lsn, self._now_ms())
        match decision:
            case Follow(watermark):
                await self._adopt(watermark)
                await self._follow()
            case Rebuild(reason):
                logger.info("projection_rebuild", reason=reason)
                await self._begin_rebuild(live, progress)
                await self._follow()
            case Wait(watermark, rebuilding):
                self._filler, self._vv = None, {} if rebuilding else watermark.vv
                self._enter(Phase.WAITING, f"agent {watermark.claim.agent!r} holds the lease")
                await asyncio.sleep(self._config.projection.check_s)
            case Refuse(reason):
                self._filler, self._vv = None, {}
                self._enter(Phase.REFUSED, reason)
                await asyncio.sleep(self._config.projection.check_s)
            case _:
                assert_never(decision)

    async def _follow(self) -> NoReturn:
        assert self._filler is not None
        while True:
            busy = await self._catch_up(self._filler.places)
            busy = await self._filler.fill() or busy
            if self._phase == Phase.REBUILDING and not self._link.holding:
                self._enter(Phase.FOLLOWING)
            busy = await self._filler.sweep() or busy
            if not busy:
                await self._pause()

    async def _pause(self) -> None:
        """Wait for a commit, or until it is time to look at Redis again; and long enough.

        A first commit is projected at once. Under load, commits that come within `interval_s` of
        the last turn share one: a turn costs about as much as a hundred increments.
        """
        loop = asyncio.get_running_loop()
        next_s = loop.time() + self._config.projection.interval_s
        with suppress(TimeoutError):
            async with asyncio.timeout(self._config.projection.check_s):
                await self._woken.wait()
        if loop.time() < next_s:
            await asyncio.sleep(next_s - loop.time())

    def _claim(self, state: State) -> Claim:
        config = self._config
        return Claim(config.ring.name, config.agent.region, state.agent, state.log)

    def _enter(self, phase: Phase, error: str = "") -> None:
        if (phase, error) != (self._phase, self._error):
            logger.info("projection", phase=str(phase), error=error)
        self._phase, self._error = phase, error
        self._announce()

    def _announce(self) -> None:
        """Wake those that wait for the projection to get on."""
        self._moved.set()
        self._moved = asyncio.Event()

    async def _adopt(self, watermark: Watermark) -> None:
        """Go on from a watermark of mine: find out which boards are complete."""
        catalog = await self._readers.read(read_catalog)
        names = [board.name for board in catalog]
        found = await self._link.hashes([meta_key(name, WINDOW) for name in names])
        places = Places(catalog, self._counts)
        change = places.adopt(dict(zip(names, found, strict=True)), f"{watermark.batch:x}")
        self._link.adopt(watermark)
        self._filler = Filler(self._link, self._readers, places, self._counts)
        await self._link.write(change)
        self._vv = watermark.vv
        self._enter(Phase.FOLLOWING)

    async def _begin_rebuild(self, live: Fields, progress: Fields) -> None:
        """Start to fill everything anew, in place of what was found."""
        self._filler = None
        self._enter(Phase.REBUILDING)
        state, now_ms = self._state(), self._now_ms()
        catalog, lsn, vv = await self._readers.read(
            lambda snapshot: (read_catalog(snapshot), snapshot.newest_lsn, snapshot.vv)
        )
        watermark = Watermark(
            claim=self._claim(state),
            lsn=lsn,
            # Random, so that late commands of an earlier life of Redis never fit.
            batch=secrets.randbits(48),
            vv=vv,
            as_of=state.ring.as_of(state.times, state.agent, now_ms),
            lease_until_ms=self._link.lease_until_ms(),
        )
        await self._link.begin(watermark, live, progress)
        places = Places(catalog, self._counts)
        places.adopt({}, f"{watermark.batch:x}")
        self._filler = Filler(self._link, self._readers, places, self._counts)
        self._counts.rebuilds += 1

    # --- following the log -----------------------------------------------------------------

    async def _catch_up(self, places: Places) -> bool:
        """Read the log once above the watermark, project it; returns whether there may be more."""
        self._woken.clear()
        since_s, self._behind_since_s = self._behind_since_s, None
        head = False
        try:
            # Both are taken before the snapshot, so what they claim is in it.
            state, now_ms = self._state(), self._now_ms()
            after, catalog = self._link.watermark.lsn, places.catalog
            recent = self._recent.after(after, state.lsn, RECENT_ENTRIES_MAX)
            if recent is not None:
                changes = changes_of(recent, after, state.lsn, state.vv, catalog)
            else:
                changes = await self._readers.read(
                    lambda snapshot: read_changes(snapshot, after, READ_ENTRIES_MAX, catalog)
                )
            as_of = state.ring.as_of(state.times, state.agent, now_ms)
            await self._project(changes, places, as_of)
            head = changes.head
        finally:
            if not head:
                self._behind_since_s = since_s or self._behind_since_s
        return not head

    async def _project(
        self, changes: Changes, places: Places, as_of: Mapping[str, int | None]
    ) -> None:
        """Write what was read, in batches; the last one moves the watermark."""
        now_s = asyncio.get_running_loop().time()
        if changes.to == self._link.watermark.lsn:
            if now_s - self._touched_s >= self._config.projection.check_s:
                touched = replace(self._link.next(), vv=changes.vv, as_of=as_of)
                await self._link.write(Change(), touched, head=True)
                self._touched_s = now_s
            # The vector may have grown without a row.
            self._vv = changes.vv
            self._announce()
            return
        change = Change()
        if changes.definitions:
            # Members read by an older definition may still be written: the scan, which begins
            # after this, writes all of them again.
            change = places.follow(changes.definitions, f"{self._link.watermark.batch:x}")
        size = self._config.projection.batch_members_max
        last = max(0, len(changes.members) - 1) // size * size
        for start in range(0, last, size):
            self._counts.members += places.put(change, changes.members[start : start + size])
            await self._link.write(change)
            change = Change()
        self._counts.members += places.put(change, changes.members[last:])
        moved = replace(self._link.next(), lsn=changes.to)
        if changes.head:
            moved = replace(moved, vv=changes.vv, as_of=as_of)
            self._vv, self._touched_s = changes.vv, now_s
        await self._link.write(change, moved, head=changes.head)
        self._counts.clamped += changes.clamped
