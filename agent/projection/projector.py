"""The projector: one coroutine that keeps the region's Redis equal to this agent's log.

    look at the watermark -> decide -> (rebuild) -> read the log above it -> a script a batch -> ...

It holds nothing that Redis does not: on any error or mismatch it looks again and goes on from what
it finds. Each turn of the loop reads the log once, then gives one slice to a board that is being
filled and one to the search for leftover keys, so that none of them waits for another.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import NoReturn, assert_never

import structlog
from redis.exceptions import RedisError

from agent.boards.catalog import Placed
from agent.committer import Commit
from agent.config import Config
from agent.projection.beginning import Beginning
from agent.projection.connection import RankClient
from agent.projection.decision import Follow, Rebuild, Refuse, TakeOver, Wait, decide
from agent.projection.follower import Follower, Log, Terms
from agent.projection.keys import Claim
from agent.projection.lease import Patience
from agent.projection.link import RENEWALS, Link, Moved
from agent.projection.place import Clock, PlaceId
from agent.projection.places import Places
from agent.projection.rebuilds import progress_of
from agent.projection.recent import Recent
from agent.projection.sentinel import restore_sentinel
from agent.projection.source import is_computed
from agent.projection.status import BoardState, Counts, Phase, Status
from agent.projection.trouble import explain
from agent.projection.wishes import Wishes
from agent.state import State
from agent.store.readers import Readers

logger = structlog.get_logger()

BACKOFF_MIN_S, BACKOFF_MAX_S = 0.05, 2.0  # a rank store is near: it is tried often
WAITERS_LOOK_S = 0.02  # between looks at what another agent projects, while somebody waits for it
GIVE_UP_S = 1.0  # for giving the lease up at the end


class Projector:
    """Projects the log into Redis. `run` is its loop; the rest may be called beside it.

    wishes: what others want written anew; see `repair`, `rebuild`.

    Args:
        readers: snapshots of the agent's SQLite file.
        state: the agent's durable state now.
        client: used by the projector alone.
        now_ms: the system's clock, in ms since 1970: for leases and for `as_of`.
        board_now_ms: the time that windows go by; the system's clock where it is not given.
        identity: the id of the agent's log and the number of its boot, for its sentinel; without
            it, none is written.
    """

    def __init__(
        self,
        config: Config,
        readers: Readers,
        state: Callable[[], State],
        client: RankClient,
        now_ms: Callable[[], int],
        *,
        board_now_ms: Callable[[], int] | None = None,
        identity: Callable[[], tuple[int, int]] | None = None,
    ) -> None:
        self._config = config
        self._recent = Recent()
        self._log = Log(readers, self._recent, state, now_ms)
        self._client = client
        self._identity = identity
        lease_s = config.projection.lease_s
        # An idle agent renews its lease at this interval, too.
        self._look_s = min(config.projection.check_s, lease_s / RENEWALS)
        self._look_at_s = 0.0
        self._counts = Counts()
        self._link = Link(client, lease_s, now_ms, self._announce)
        # With a clock of their own, windows end at times that Redis does not know.
        system = config.agent.clock == "system" and not config.agent.clock_shift_ms
        clock = Clock(board_now_ms or now_ms, expiring=system)
        self._woken = asyncio.Event()
        self.wishes = Wishes(self._woken.set)
        in_place = self.wishes.rebuilds.in_place
        terms = Terms(config.projection, clock, self._look_s, self._announce, in_place)
        self._beginning = Beginning(self._link, self._log, self._counts, terms)
        self._patience = Patience(lease_s)
        self._follower: Follower | None = None
        self._phase = Phase.STARTING
        self._error = ""
        self._vv: Mapping[int, int] = {}  # while waiting: what another agent has projected
        self._projected_log: int | None = None  # the id of my log when I last moved the watermark
        self._behind_since_s: float | None = None
        self._moved = asyncio.Event()
        self._waiters = 0
        self._asked = asyncio.Event()

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
        turns = [] if self._follower is None else self._follower.places.turns.fillings()
        fillings = [filling for filling in turns if not filling.computed]
        done, total = progress_of(fillings)
        watermark = None if self._follower is None else self._link.watermark
        return Status(
            phase=self._phase,
            error=self._error,
            lsn=0 if watermark is None else watermark.lsn,
            as_of={} if watermark is None else watermark.as_of,
            behind_s=behind_s,
            boards_rebuilding=tuple(sorted({filling.id[0] for filling in fillings})),
            refill_done=done,
            refill_total=total,
            counts=replace(self._counts, batches=self._link.changes),
        )

    def state_of(self, board: str, window: str) -> BoardState:
        """Whether the ranks of a window (by its id) can be read, as far as this agent knows.

        A window without a place is an empty one. While another agent of the region projects, all
        are READY: what it holds is in Redis.
        """
        match self._phase:
            case Phase.DOWN | Phase.REFUSED:
                return BoardState.DOWN
            case Phase.WAITING:
                return BoardState.READY
            case Phase.FOLLOWING:
                assert self._follower is not None
                places = self._follower.places
                place = places.find((board, window))
                if place.served if place is not None else places.uses(board):
                    return BoardState.READY
        return BoardState.REBUILDING

    async def wait_for(
        self,
        board: str,
        window: str,
        timeout_s: float,
        *,
        lsn: int | None = None,
        stamp: tuple[int, int] | None = None,
    ) -> bool:
        """Wait until a write is in the ranks of a window (by its id); returns whether it is.

        Of a window that is computed now and then, only the agent that projects can tell.

        Args:
            lsn: of the write in *this* agent's log.
            stamp: (incarnation, seq) of the write, which every agent understands. One of the two
                is enough; of both, whichever is seen first counts.
        """
        place = (board, window)
        self._waiters += 1
        self._asked.set()
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    while not self._includes(place, lsn, stamp):
                        await self._moved.wait()
        finally:
            self._waiters -= 1
        return self._includes(place, lsn, stamp)

    @property
    def moved(self) -> asyncio.Event:
        """Set as soon as what Redis holds may be something else; then there is another event."""
        return self._moved

    @property
    def follows(self) -> bool:
        """Whether this agent fills Redis, and so knows when that changes."""
        return self._phase == Phase.FOLLOWING

    def repair(self, board: str) -> bool:
        """Have all windows of a board filled anew, soon; they are served meanwhile.

        Returns whether that is this agent's to do: it is not while another one projects.
        """
        if self._phase != Phase.FOLLOWING:
            return False
        self.wishes.add_boards([board])
        return True

    @property
    def places(self) -> Places | None:
        """The windows in Redis, to look at; None while this agent does not fill it."""
        return self._follower.places if self._follower is not None and self.follows else None

    def windows(self, board: str) -> list[Placed]:
        """The windows of a board that follow the log here; none while this agent does not."""
        if self._follower is None:
            return []
        places = self._follower.places.of(board)
        return [place.placed for place in places if place.derivation is None]

    def rebuild(self, boards: Iterable[str] = ()) -> str | None:
        """As `repair`, of several boards, all without any; to be looked at by `wishes.rebuilds`.

        Returns its id; None where this is not this agent's to do.
        """
        if self._phase != Phase.FOLLOWING or self._follower is None:
            return None
        names = {*boards} or {name for name, _ in self._follower.places.ids()}
        self.wishes.add_boards(names)
        return self.wishes.rebuilds.add(names)

    def _includes(self, place: PlaceId, lsn: int | None, stamp: tuple[int, int] | None) -> bool:
        if self.state_of(*place) != BoardState.READY:
            return False
        if self._phase == Phase.WAITING:
            if is_computed(self._log.state().catalog, *place):
                return False
            return stamp is not None and self._vv.get(stamp[0], 0) >= stamp[1]
        return self._follower is not None and self._follower.includes(place, lsn, stamp)

    # --- the loop --------------------------------------------------------------------------

    async def run(self) -> NoReturn:
        """Project for ever. Survives everything that Redis does; ends by cancellation.

        At its end the lease is given up, so that another agent of the region goes on at once.
        """
        try:
            await self._run()
        finally:
            if self._phase not in (Phase.DOWN, Phase.REFUSED):
                with suppress(RedisError, OSError):  # a time-out is one, too: then it runs out
                    async with asyncio.timeout(GIVE_UP_S):
                        await self._link.give_up(self._claim(self._log.state()))

    async def _run(self) -> NoReturn:
        loop = asyncio.get_running_loop()
        backoff_s = BACKOFF_MIN_S
        while True:
            began_s = loop.time()
            try:
                await self._look_and_follow()
            except Moved:
                self._counts.mismatches += 1
                if self._follower is not None:
                    self._follower.doubt()
                logger.info("projection_watermark_moved")
            except (RedisError, OSError) as error:
                self._counts.failures += 1
                self._enter(Phase.DOWN, explain(error))
                self._patience.forget()
                if loop.time() - began_s > BACKOFF_MAX_S:  # it had worked for a while
                    backoff_s = BACKOFF_MIN_S
                await asyncio.sleep(backoff_s)
                backoff_s = min(2 * backoff_s, BACKOFF_MAX_S)

    async def _look_and_follow(self) -> None:
        """Look at Redis, decide, and follow the log until Redis is not what is expected."""
        live, progress = await self._link.look()
        state = self._log.state()
        claim = self._claim(state)
        decision = decide(
            live,
            progress,
            claim,
            state.lsn,
            lapsed=self._patience.lapsed(live or progress, asyncio.get_running_loop().time()),
            deposed=self._projected_log == claim.log,
        )
        match decision:
            case Follow(watermark):
                self._follower = await self._beginning.go_on(watermark)
            case TakeOver(watermark, reason):
                logger.info("projection_take_over", reason=reason)
                self._follower = await self._beginning.take_over(watermark, claim)
            case Rebuild(reason):
                logger.info("projection_rebuild", reason=reason)
                self._follower = None
                self._enter(Phase.REBUILDING)
                self._follower = await self._beginning.rebuild(live, progress, claim)
            case Wait(watermark, rebuilding, reason):
                self._follower, self._vv = None, {} if rebuilding else watermark.vv
                self._enter(Phase.WAITING, reason)
                if self._due():
                    await self._restore_sentinel()
                await self._rest()
                return
            case Refuse(reason):
                self._follower, self._vv = None, {}
                self._enter(Phase.REFUSED, reason)
                await asyncio.sleep(self._look_s)
                return
            case _:
                assert_never(decision)
        self._projected_log = claim.log
        self._enter(Phase.REBUILDING if self._link.holding else Phase.FOLLOWING)
        await self._follow(self._follower)

    async def _follow(self, follower: Follower) -> NoReturn:
        while True:
            log = self._log.state().log
            if log != self._link.watermark.claim.log:  # a new incarnation: the same file
                await self._link.rename_log(log)
                self._projected_log = log
            busy = not await self._catch_up(follower)
            await self.wishes.fulfil(follower)
            if self._due():
                await self._restore_sentinel()
                await follower.look_for_lost()
            busy = not await follower.look_at_clock() or busy
            busy = await follower.filler.fill() or busy
            if self._phase == Phase.REBUILDING and not self._link.holding:
                self._enter(Phase.FOLLOWING)
            busy = await follower.filler.sweep() or busy
            if not busy:
                await self._pause()

    async def _catch_up(self, follower: Follower) -> bool:
        """Project what is in the log now; returns whether that was all."""
        self._woken.clear()
        since_s, self._behind_since_s = self._behind_since_s, None
        head = False
        try:
            head = await follower.catch_up()
        finally:
            if not head:
                self._behind_since_s = since_s or self._behind_since_s
        return head

    async def _pause(self) -> None:
        """Wait for a commit, or until it is time to look at Redis again; and long enough.

        A first commit is projected at once. Under load, commits that come within `interval_s` of
        the last turn share one: a turn costs about as much as a hundred increments.
        """
        loop = asyncio.get_running_loop()
        next_s = loop.time() + self._config.projection.interval_s
        with suppress(TimeoutError):
            async with asyncio.timeout(self._look_s):
                await self._woken.wait()
        if loop.time() < next_s:
            await asyncio.sleep(next_s - loop.time())

    async def _rest(self) -> None:
        """Wait until it is time to look at what another agent does; soon if somebody waits."""
        if self._waiters:
            await asyncio.sleep(WAITERS_LOOK_S)
            return
        self._asked.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._look_s):
                await self._asked.wait()

    def _due(self) -> bool:
        """Whether it is time for what is done now and then; once in each interval."""
        now_s = asyncio.get_running_loop().time()
        if now_s < self._look_at_s:
            return False
        self._look_at_s = now_s + self._config.projection.check_s
        return True

    async def _restore_sentinel(self) -> None:
        if self._identity is not None:
            await restore_sentinel(self._client, self._config.name, *self._identity())

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
