"""The demo: three regions count together, lose a link, heal, and are checked against the truth.

One run proves the product on real input: agents as processes, an embedded Valkey each, every row
written in its own region only, one region cut off for half of the replay while it goes on taking
writes, and at the end every score and every rank of every region compared with plain Python's.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import aiohttp

from cluster import probe
from cluster.checker import Region, Verdict, check_everything
from cluster.expected import Expectation
from cluster.local_ring import LocalRing
from cluster.probe import Latencies, Prober
from cluster.replay import Progress, Replay, first_error
from cluster.workload import Workload

CUT_AT, HEAL_AT = 0.25, 0.75  # parts of the replay
CONVERGE_S = 120.0
EVIDENCE_S = 20.0  # a cut lasts until something was refused, at most this long
LOADED_PROBES_PER_S = 5.0
CALM_PROBES_PER_S = 20.0
CALM_S = 3.0
# An agent that was cut off is looked for again at least this often: the ring is on one machine.
SETTINGS = {"gossip": {"backoff_max_s": 2.0}}


@dataclass(frozen=True, slots=True)
class Options:
    """What to run.

    seed: decides which region is cut off.
    folder: keeps the ring's files; else they are temporary.
    calm_s: how long to measure latency after the check.
    """

    workload: Workload
    seed: int = 1
    folder: Path | None = None
    calm_s: float = CALM_S


@dataclass(slots=True)
class Cut:
    """What happened while one region was cut off."""

    region: str = ""
    seconds: float = 0.0
    rows_written: int = 0  # acknowledged by that region meanwhile
    lag_ms: int | None = None  # how far behind it was when the link was healed
    refused_connections: int = 0
    refused_bytes: int = 0
    caught_up_s: float | None = None  # from the heal until every region included its time


@dataclass(slots=True)
class Result:
    """Everything that a run measured. Bytes are those of all links together, HTTP included."""

    regions: tuple[str, ...]
    rows: int = 0
    entries: int = 0
    replay_s: float = 0.0
    converged_s: float | None = None  # from the last answer until every region included it
    cut: Cut = field(default_factory=Cut)
    verdict: Verdict = field(default_factory=Verdict)
    loaded: Latencies = field(default_factory=Latencies)
    calm: Latencies = field(default_factory=Latencies)
    wire_bytes: int = 0
    cells: dict[str, int] = field(default_factory=dict)
    resident_bytes: dict[str, int] = field(default_factory=dict)

    @property
    def proven(self) -> bool:
        """Whether the cut really happened; a ring of one region has no link to cut."""
        return len(self.regions) < 2 or self.cut.refused_bytes > 0

    @property
    def good(self) -> bool:
        """Whether the run proves what it is meant to."""
        return self.verdict.equal and self.proven and self.converged_s is not None

    @property
    def wire_bytes_per_entry(self) -> float:
        """Bytes on the wire for each entry and each peer that has to get it."""
        peers = max(1, len(self.regions) - 1)
        return self.wire_bytes / max(1, self.entries) / peers


Say = Callable[[str], None]
"""Told, in a few words, what the demo does now."""

Watch = Callable[[Progress, LocalRing], Coroutine[None, None, None]]
"""Shows the progress until it is cancelled."""

Linger = Callable[[LocalRing, Result], Awaitable[None]]
"""Run at the end, while the ring is still up."""


async def run(options: Options, say: Say, watch: Watch, linger: Linger | None = None) -> Result:
    """Run the whole story. `linger` is run after the result is known, while the ring is up.

    Raises:
        RingError: an agent could not be started.
        ReplayError: an agent refused a batch.
    """
    workload = options.workload
    result = Result(workload.regions)
    expectation = Expectation(workload.boards)
    say(f"starting an agent in each region: {', '.join(workload.regions)}")
    if len(workload.regions) == 1:
        say("one region has no link to cut: this run checks its scores and ranks alone")
    ring = LocalRing(workload.regions, folder=options.folder, links=True, settings=SETTINGS)
    async with ring, Prober(ring.regions) as prober:
        victim = random.Random(options.seed).choice(workload.regions)
        story = _Story(ring, victim, result, say)
        urls = {name: agent.url for name, agent in ring.agents.items()}
        replay = Replay(workload, urls, expectation, story.checkpoints(workload.rows_total))
        story.progress = replay.progress
        await _define_probe(ring)
        await _replay(replay, ring, prober, story, watch)
        await story.conclude()
        say("checking every score and every rank in every region, twice")
        result.verdict = await check_everything(ring.regions, expectation)
        if len(workload.regions) > 1:
            say("measuring how long a write takes to reach another region's Redis")
            end = time.monotonic() + options.calm_s
            result.calm = await prober.run(
                workload.regions, CALM_PROBES_PER_S, lambda: time.monotonic() > end
            )
        for name, agent in ring.agents.items():
            result.resident_bytes[name] = agent.resident_bytes
            result.cells[name] = agent.cells
        if linger is not None:
            await linger(ring, result)
    return result


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
        probes = None
        if len(connected) > 1:
            probes = group.create_task(
                prober.run(
                    connected, LOADED_PROBES_PER_S, lambda: replay.progress.ended is not None
                )
            )
        try:
            await replay.run()
        finally:
            shown.cancel()
    if probes is not None:
        story.result.loaded = probes.result()


class _Story:
    """What happens to the links during a replay, and what that leaves in the result."""

    def __init__(self, ring: LocalRing, victim: str, result: Result, say: Say) -> None:
        self.victim = victim
        self.result = result
        self.progress = Progress(0)
        self._ring = ring
        self._say = say
        self._healed = asyncio.Event()
        self._healed_ms = 0
        self._wire_before = ring.wire_bytes
        self.will_heal = False

    def checkpoints(self, rows_total: int) -> dict[int, Callable[[], Awaitable[None]]]:
        """When to cut and when to heal, by row."""
        cut, heal = int(rows_total * CUT_AT), int(rows_total * HEAL_AT)
        self.will_heal = len(self._ring.agents) > 1 and cut < heal
        return {cut: self._cut, heal: self._heal} if self.will_heal else {}

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

    async def _heal(self) -> None:
        cut = self.result.cut
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
