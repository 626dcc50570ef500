"""The demo: three regions count together, lose a link, heal, and are checked against the truth.

One run proves the product on real input: agents as processes, an embedded Valkey each, every row
written in its own region only, one region cut off for half of the replay while it goes on taking
writes. With the demo's own input, entries with keys are sent to several regions, players tap likes
on both sides of the cut, and the agents' manual clocks go through the whole year, so that days,
weeks and months open, close and end. At the end every score and every rank of every window in every
region is compared with plain Python's.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import aiohttp

from cluster import probe
from cluster.actor_checker import check_actors
from cluster.checker import Region, check_everything
from cluster.clocks import Clocks
from cluster.demo_result import Result
from cluster.expected import Expectation
from cluster.final_checker import check_finals
from cluster.local_ring import LocalRing
from cluster.probe import Prober
from cluster.replay import REQUEST_S, Progress, Replay, first_error
from cluster.taps import Tap, Taps, plan_taps, send_taps
from cluster.windows import EPOCH_MS
from cluster.workload import Workload

CUT_AT, HEAL_AT = 0.25, 0.75  # parts of the replay
CONVERGE_S = 120.0
EVIDENCE_S = 20.0  # a cut lasts until something was refused, at most this long
LOADED_PROBES_PER_S = 5.0
CALM_PROBES_PER_S = 20.0
CALM_S = 3.0
# An agent that was cut off is looked for again at least this often: the ring is on one machine.
SETTINGS = {"gossip": {"backoff_max_s": 2.0}}
MANUAL = {"agent": {"clock": "manual"}}


@dataclass(frozen=True, slots=True)
class Options:
    """What to run.

    seed: decides which region is cut off, and who taps what.
    folder: keeps the ring's files; else they are temporary.
    calm_s: how long to measure latency after the check.
    """

    workload: Workload
    seed: int = 1
    folder: Path | None = None
    calm_s: float = CALM_S


Say = Callable[[str], None]
"""Told, in a few words, what the demo does now."""

Watch = Callable[[Progress, LocalRing], Coroutine[None, None, None]]
"""Shows the progress until it is cancelled."""

Linger = Callable[[LocalRing, Result], Awaitable[None]]
"""Run at the end, while the ring is still up."""

Told = Callable[[int, int], None]
"""Told during the check how many windows are compared, and how many there are."""


async def run(
    options: Options,
    say: Say,
    watch: Watch,
    linger: Linger | None = None,
    told: Told | None = None,
) -> Result:
    """Run the whole story. `linger` is run after the result is known, while the ring is up.

    Raises:
        RingError: an agent could not be started.
        ReplayError: an agent refused a batch.
        ClockError: an agent refused to move its clock.
    """
    workload = options.workload
    result = Result(workload.regions)
    expectation = Expectation(workload.boards)
    say(f"starting an agent in each region: {', '.join(workload.regions)}")
    if len(workload.regions) == 1:
        say("one region has no link to cut: this run checks its scores and ranks alone")
    settings: dict[str, dict[str, Any]] = {**SETTINGS}
    if workload.pace is not None:
        settings |= MANUAL
    timeout = aiohttp.ClientTimeout(total=REQUEST_S)
    ring = LocalRing(workload.regions, folder=options.folder, links=True, settings=settings)
    async with (
        ring,
        Prober(ring.regions) as prober,
        aiohttp.ClientSession(timeout=timeout) as session,
    ):
        victim = random.Random(options.seed).choice(workload.regions)
        urls = {name: agent.url for name, agent in ring.agents.items()}
        clocks = Clocks(session, urls)
        story = _Story(ring, victim, result, say, session)
        replay = Replay(workload, urls, expectation, story.checkpoints(workload.rows_total), clocks)
        story.progress = replay.progress
        await _define_probe(ring)
        await replay.define_boards(session)
        if workload.pace is not None:
            await clocks.move_all(workload.pace.starts_ms)
        await story.like(expectation, options.seed)
        await _replay(replay, ring, prober, story, watch)
        await story.conclude()
        now_ms = None
        if workload.pace is not None:
            now_ms = (replay.progress.at_ms or 0) + workload.pace.rest_ms
            result.times = workload.pace.starts_ms, now_ms
            await clocks.move_all(now_ms)
        await _check(ring, expectation, now_ms, result, say, told)
        if len(workload.regions) > 1:
            say("measuring how long a write takes to reach another region's Redis")
            end = time.monotonic() + options.calm_s
            result.calm = await prober.run(
                workload.regions, CALM_PROBES_PER_S, lambda: time.monotonic() > end
            )
        for name, agent in ring.agents.items():
            result.resident_bytes[name] = agent.resident_bytes
            result.cells[name] = agent.cells
            result.keyed.facts[name] = agent.facts
        if linger is not None:
            await linger(ring, result)
    return result


async def _check(
    ring: LocalRing,
    expectation: Expectation,
    now_ms: int | None,
    result: Result,
    say: Say,
    told: Told | None,
) -> None:
    """Compare everything. Cells of what is over may be on their way out meanwhile."""
    say("checking every score and every rank in every region, over HTTP and in Redis")
    began = time.monotonic()
    result.verdict = await check_everything(ring.regions, expectation, now_ms, told)
    actors, result.estimates = await check_actors(ring.regions, expectation)
    result.verdict.add(actors)
    if now_ms is not None:
        say("comparing the certified finals of every month")
        finals, result.finals = await check_finals(ring.regions, expectation, now_ms)
        result.verdict.add(finals)
    result.check_s = time.monotonic() - began


async def _replay(
    replay: Replay, ring: LocalRing, prober: Prober, story: _Story, watch: Watch
) -> None:
    """Replay with a progress display, and with probes between the regions that stay connected."""
    try:
        await _replay_and_measure(replay, ring, prober, story, watch)
    except ExceptionGroup as group:
        raise first_error(group) from group


async def _replay_and_measure(
    replay: Replay, ring: LocalRing, prober: Prober, story: _Story, watch: Watch
) -> None:
    connected = [name for name in ring.agents if name != story.victim]
    async with asyncio.TaskGroup() as group:
        shown = group.create_task(watch(replay.progress, ring))
        if story.will_heal:
            group.create_task(story.measure_catch_up())
            group.create_task(story.tap())
        probes = None
        if len(connected) > 1:
            probes = group.create_task(
                prober.run(
                    connected, LOADED_PROBES_PER_S, lambda: replay.progress.ended is not None
                )
            )
        try:
            await replay.run(story.session)
        finally:
            shown.cancel()
    if probes is not None:
        story.result.loaded = probes.result()


class _Story:
    """What happens to the links during a replay, and what that leaves in the result."""

    def __init__(
        self,
        ring: LocalRing,
        victim: str,
        result: Result,
        say: Say,
        session: aiohttp.ClientSession,
    ) -> None:
        self.victim = victim
        self.result = result
        self.session = session
        self.progress = Progress(0)
        self._ring = ring
        self._say = say
        self._taps: Taps | None = None
        self._board = ""
        self._is_cut = asyncio.Event()
        self._tapped = asyncio.Event()
        self._healed = asyncio.Event()
        self._healed_ms = 0
        self._wire_before = ring.wire_bytes
        self.will_heal = False

    def checkpoints(self, rows_total: int) -> dict[int, Callable[[], Awaitable[None]]]:
        """When to cut and when to heal, by row."""
        cut, heal = int(rows_total * CUT_AT), int(rows_total * HEAL_AT)
        self.will_heal = len(self._ring.agents) > 1 and cut < heal
        return {cut: self._cut, heal: self._heal} if self.will_heal else {}

    async def like(self, expectation: Expectation, seed: int) -> None:
        """Plan likes, where there is a board for them and a cut; tap those that come before it.

        Returns when every region has seen these.
        """
        boards = [spec.name for spec in expectation.boards.values() if spec.rule == "distinct"]
        if not boards or not self.will_heal:
            return
        self._board = boards[0]
        self._taps = taps = plan_taps(list(self._ring.agents), self.victim, seed)
        self.result.taps = taps.counts
        for entry in taps.entries(self._board, EPOCH_MS):
            expectation.count(entry)
        await self._send(taps.before)
        await until_included(self._ring.regions, time.time_ns() // 1_000_000)

    async def tap(self) -> None:
        """Tap on both sides of the cut, which is not healed before that is done."""
        await self._is_cut.wait()
        if self._taps is not None:
            await self._send(self._taps.during)
        self._tapped.set()

    async def _send(self, taps: Mapping[str, Sequence[Tap]]) -> None:
        async with asyncio.TaskGroup() as group:
            for name, its in taps.items():
                url = self._ring[name].url
                group.create_task(send_taps(self.session, url, self._board, its))

    async def measure_catch_up(self) -> None:
        """Measure how long after the heal every region includes everything up to the heal."""
        await self._healed.wait()
        with suppress(TimeoutError):
            async with asyncio.timeout(CONVERGE_S):
                done_ms = await until_included(self._ring.regions, self._healed_ms)
                self.result.cut.caught_up_s = (done_ms - self._healed_ms) / 1000

    async def _cut(self) -> None:
        self._say(f"cutting {self.victim} off; it goes on taking writes")
        self._ring.cut_off(self.victim)
        self.result.cut.region = self.victim
        self.result.cut.seconds = -time.monotonic()
        self.result.cut.rows_written = -self.progress.rows_by_region[self.victim]
        self._is_cut.set()

    async def _heal(self) -> None:
        cut = self.result.cut
        await self._tapped.wait()
        with suppress(TimeoutError):
            async with asyncio.timeout(EVIDENCE_S):
                while not self._ring.refused[1]:  # noqa: ASYNC110 -- a counter has no event
                    await asyncio.sleep(0.02)
        cut.lag_ms = await _lag_ms(self._ring[self.victim].url)
        self._healed_ms = time.time_ns() // 1_000_000
        self._ring.heal()
        self._healed.set()
        cut.seconds += time.monotonic()
        cut.rows_written += self.progress.rows_by_region[self.victim]
        cut.refused_connections, cut.refused_bytes = self._ring.refused
        self._say(
            f"healing {self.victim} after {cut.seconds:.1f} s; it took {cut.rows_written:,} rows,"
            f" and {cut.refused_bytes:,} bytes were refused"
        )

    async def conclude(self) -> None:
        """Wait until every region includes everything, and note what the replay took."""
        result, ended_ms = self.result, time.time_ns() // 1_000_000
        result.rows, result.entries = self.progress.rows, self.progress.entries
        result.replay_s = self.progress.seconds
        progress, keyed = self.progress, result.keyed
        keyed.keys, keyed.resent = progress.keys, progress.resent
        keyed.answered, keyed.late = progress.duplicates, progress.late
        self._say("waiting until every region includes every write")
        try:
            async with asyncio.timeout(CONVERGE_S):
                converged_ms = await until_included(self._ring.regions, ended_ms)
                result.converged_s = (converged_ms - ended_ms) / 1000
        except TimeoutError:
            self._say(f"not converged after {CONVERGE_S:.0f} s")
        result.wire_bytes = self._ring.wire_bytes - self._wire_before


async def until_included(regions: Sequence[Region], since_ms: int, board: str = probe.BOARD) -> int:
    """Wait until every region's Redis holds all writes of all regions up to `since_ms`.

    Returns the time (ms since 1970) at which that was seen. It takes the agents' word for it, the
    `as_of` of a rank on `board`; the check that follows does not.
    """
    async with aiohttp.ClientSession() as session:
        for region in regions:
            while not await _includes(  # noqa: ASYNC110 -- a remote agent has no event
                session, f"{region.url}/v1/boards/{board}/entries?limit=1", since_ms, len(regions)
            ):
                await asyncio.sleep(0.02)
    return time.time_ns() // 1_000_000


async def _includes(session: aiohttp.ClientSession, url: str, since_ms: int, regions: int) -> bool:
    async with session.get(url) as response:
        if response.status != 200:
            return False
        as_of = (await response.json())["as_of"].values()
    return len(as_of) == regions and all(
        at is not None and datetime.fromisoformat(at).timestamp() * 1000 >= since_ms for at in as_of
    )


async def _lag_ms(url: str) -> int | None:
    """How far behind an agent's answers are; None where it can't say, or is refilling."""
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"{url}/v1/boards/{probe.BOARD}/entries?limit=1") as response,
    ):
        lag: int | None = (await response.json()).get("max_lag_ms")
        return lag


async def _define_probe(ring: LocalRing) -> None:
    """Define the board of the probes, and wait until every agent knows it."""
    url = next(iter(ring.agents.values())).url
    async with aiohttp.ClientSession() as session:
        async with session.put(
            f"{url}/v1/boards/{probe.BOARD}", json=probe.SPEC.document()
        ) as response:
            response.raise_for_status()
        async with asyncio.timeout(CONVERGE_S):
            for agent in ring.agents.values():
                while True:
                    async with session.get(f"{agent.url}/v1/boards/{probe.BOARD}") as response:
                        if response.status == 200:
                            break
                    await asyncio.sleep(0.02)
