"""One run of chaos: start a ring, write without end, strike it, heal it, judge it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import quote

import aiohttp
from redis.exceptions import RedisError

from cluster.chaos import disks
from cluster.chaos.clients import BOARDS, COUNTERS, Client, read_on
from cluster.chaos.faults import Injector
from cluster.chaos.judge import Judgement, judge
from cluster.chaos.ledger import Ledger, Outcome
from cluster.chaos.plan import Fault, Step, draw
from cluster.chaos.ranks import RankServer
from cluster.checker import Verdict, check_everything
from cluster.expected import Entry, Expectation
from cluster.local_agent import LocalAgent
from cluster.local_ring import LocalRing, RingError

CONVERGE_S = 90.0
DEFINED_S = 30.0
CLIENTS = 2  # of each region
PAGE = 1_000
POLL_S = 0.1
ANSWER_S = 10.0
AT_MS = 1_700_000_000_000  # of entries in the expectation; no board here goes by time
NAMES = ("eu", "us", "ap", "sa", "af", "au", "in", "cn")
# What was cut off is looked for again soon: a run is short.
SETTINGS = {"gossip": {"backoff_max_s": 1.0, "interval_s": 0.3}, "projection": {"check_s": 0.5}}


@dataclass(frozen=True, slots=True)
class Options:
    """What to run.

    seconds: how long faults strike; start, healing and checking come on top.
    folder: keeps the ring's files and logs; else they are temporary.
    clients: writers of each region.
    """

    seed: int
    seconds: float
    regions: int = 3
    faults: tuple[Fault, ...] = tuple(Fault)
    folder: Path | None = None
    clients: int = CLIENTS

    @property
    def names(self) -> tuple[str, ...]:
        """The regions' names."""
        return NAMES[: self.regions]

    @property
    def command(self) -> str:
        """The command that runs the same plan."""
        chosen = "" if set(self.faults) == set(Fault) else f" --faults {','.join(self.faults)}"
        return (
            f"tallyring chaos --seed {self.seed} --seconds {self.seconds:g}"
            f" --regions {self.regions}{chosen}"
        )


@dataclass(slots=True)
class Report:
    """What a run found. `converged_s`: from the last write to all regions equal; None: never."""

    options: Options
    plan: list[Step] = field(default_factory=list)
    ledger: Ledger = field(default_factory=Ledger)
    struck: dict[Fault, int] = field(default_factory=dict)
    idle: dict[Fault, int] = field(default_factory=dict)
    judgement: Judgement = field(default_factory=Judgement)
    verdict: Verdict = field(default_factory=Verdict)
    converged_s: float | None = None
    problems: list[str] = field(default_factory=list)
    alarms: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def right(self) -> bool:
        """Whether nothing was lost, doubled or invented, and every agent came back."""
        return (
            self.judgement.right
            and self.verdict.equal
            and self.converged_s is not None
            and not self.ledger.wrong_reads
            and not self.problems
        )

    @property
    def findings(self) -> list[str]:
        """All that is wrong, one sentence each; the first ones of each kind."""
        found = [*self.problems, *self.judgement.shown, *self.ledger.shown]
        if self.converged_s is None:
            found += self.verdict.shown
        return found


@dataclass(slots=True)
class Watched:
    """What can be seen of a run while it goes on."""

    seconds: float
    ledger: Ledger
    phase: str = "starting"
    began_s: float = 0.0
    now: list[str] = field(default_factory=list)

    @property
    def passed_s(self) -> float:
        """Seconds since the first write; at most those of the run."""
        return min(self.seconds, time.monotonic() - self.began_s) if self.began_s else 0.0


async def run(
    options: Options,
    say: Callable[[str], None] = lambda _: None,
    watch: Callable[[Watched], None] = lambda _: None,
) -> Report:
    """Run chaos and judge it. Nothing is left running, whatever happens.

    Args:
        options: what to run.
        say: is told each fault and each phase.
        watch: is given once, at the start, what changes while the run goes on.

    Raises:
        RingError, RankServerError, TimeoutError, aiohttp.ClientError: the ring could not be
            started or could not be looked at.
    """
    report = Report(options)
    report.plan = draw(options.seed, options.seconds, options.names, options.faults)
    watched = Watched(options.seconds, report.ledger)
    watch(watched)
    began_s = time.monotonic()
    async with AsyncExitStack() as parts:
        ring, servers = await _started(options, parts)
        say(f"{options.regions} regions are up, in {ring.folder}")
        await _define(ring)
        injector = Injector(ring, servers, report.ledger, ring.folder.with_name("copies"))
        watched.now = injector.now
        watched.began_s, watched.phase = time.monotonic(), "writing and breaking"
        await _strike(options, ring, injector, report, say)
        watched.phase = "healing"
        say("all is healed; waiting until the regions are equal")
        report.struck, report.idle = injector.struck, injector.idle
        report.problems += injector.problems
        await _revive(ring, report)
        await _judge(ring, report)
        false = await asyncio.to_thread(disks.false_claims, ring.agents.values())
        report.problems += [f"{len(false)} claims are false: {false[0]}"] if false else []
    report.seconds = time.monotonic() - began_s
    return report


async def _started(
    options: Options, parts: AsyncExitStack
) -> tuple[LocalRing, dict[str, RankServer]]:
    """A ring whose regions have a Redis of ours each, in the order in which they must end."""
    folder = options.folder
    if folder is None:
        folder = Path(parts.enter_context(TemporaryDirectory(prefix="tallyring-chaos-")))
    ring = LocalRing(options.names, folder=folder / "ring", links=True, settings=SETTINGS)
    servers = {name: RankServer(folder / "redis" / name) for name in options.names}
    for name, server in servers.items():
        parts.push_async_callback(server.stop)
        await server.start()
        ring.use_redis(name, server.url)
    await parts.enter_async_context(ring)
    return ring, servers


async def _define(ring: LocalRing) -> None:
    """Define the boards at one agent and wait until all know them."""
    agents = list(ring.agents.values())
    async with aiohttp.ClientSession() as session, asyncio.timeout(DEFINED_S):
        for spec in BOARDS.values():
            if spec.name == COUNTERS:
                continue
            url = f"{agents[0].url}/v1/boards/{spec.name}"
            async with session.put(url, json=spec.document()) as response:
                response.raise_for_status()
        for agent in agents:
            for name in BOARDS:
                url = f"{agent.url}/v1/boards/{name}/entries"
                while await _get(session, url) is None:  # noqa: ASYNC110 -- a remote agent
                    await asyncio.sleep(POLL_S)


async def _strike(
    options: Options,
    ring: LocalRing,
    injector: Injector,
    report: Report,
    say: Callable[[str], None],
) -> None:
    """Write and read everywhere while the plan strikes, and a moment beyond."""
    ended = False

    def until() -> bool:
        return ended

    began_s = time.monotonic()
    async with asyncio.TaskGroup() as group:
        for agent in ring.agents.values():
            for number in range(options.clients):
                client = Client(report.ledger, agent.name, agent.url, number, options.seed)
                group.create_task(client.run(until))
            group.create_task(read_on(report.ledger, agent.name, agent.url, options.seed, until))
        try:
            await injector.run(report.plan, say)
            await asyncio.sleep(began_s + options.seconds - time.monotonic())
        finally:
            ended = True


async def _revive(ring: LocalRing, report: Report) -> None:
    """Start what did not come back, so that what it has can be looked at."""
    ring.heal()
    for name, agent in ring.agents.items():
        if agent.process is not None and agent.process.poll() is not None:
            report.problems.append(
                f"{name} ended by itself with code {agent.process.returncode}\n{agent.end_of_log}"
            )
            agent.process = None
        if agent.process is None:
            try:
                await ring.start(name)
            except RingError as error:
                report.problems.append(str(error))
        if "Traceback (most recent call last)" in agent.log.read_text(errors="replace"):
            report.problems.append(f"the log of {name} shows a traceback: {agent.log}")


async def _judge(ring: LocalRing, report: Report) -> None:
    """Wait until all regions are equal, over HTTP and in Redis, and judge what they show."""
    ended_s = time.monotonic()
    agents = list(ring.agents.values())
    judged = agents[0]
    values: dict[tuple[str, str], int] = {}
    why = ""
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=ANSWER_S)) as session:
        while report.converged_s is None and time.monotonic() - ended_s < CONVERGE_S:
            try:
                why = await _unsettled(session, agents)
                if not why:
                    values = await _scores(session, agents[0])
                    report.verdict = await check_everything(ring.regions, _expectation(values))
                    if report.verdict.equal:
                        report.converged_s = time.monotonic() - ended_s
            except (aiohttp.ClientError, RedisError, TimeoutError, LookupError) as error:
                why = f"{type(error).__name__}: {error}"
            await asyncio.sleep(POLL_S)
        if report.converged_s is None:
            report.problems.append(f"the regions did not become equal in {CONVERGE_S:.0f} s: {why}")
            judged, values = await _what_is_shown(session, agents)
        for agent in agents:
            report.alarms |= await _alarms(session, agent)
    if not values:
        report.problems.append("no region shows all boards: totals were not judged")
        return
    cells = await asyncio.to_thread(disks.cells_of, judged, BOARDS)
    incs = {await asyncio.to_thread(disks.incarnation_on, agent) for agent in agents}
    report.judgement = judge(report.ledger, values, cells, incs)


async def _unsettled(session: aiohttp.ClientSession, agents: list[LocalAgent]) -> str:
    """Who is not ready, or has rows that a peer lacks; empty when nothing is under way."""
    for agent in agents:
        async with session.get(f"{agent.url}/readyz") as response:
            if response.status != 200:
                return f"{agent.name} is not ready: {(await response.json())['reasons']}"
        status = await _get(session, f"{agent.url}/v1/ring")
        for member in status["members"]:
            contact = member["contact"]
            if member["name"] != agent.name and (contact is None or contact["rows_behind"] != 0):
                return f"{member['name']} lacks rows of {agent.name}: {contact}"
    return ""


async def _scores(session: aiohttp.ClientSession, agent: LocalAgent) -> dict[tuple[str, str], int]:
    """All scores that one agent shows, by board and member.

    Raises:
        LookupError: a board is not served.
    """
    found: dict[tuple[str, str], int] = {}
    for board in BOARDS:
        page = await _whole(session, f"{agent.url}/v1/boards/{quote(board)}/entries")
        if page is None:
            raise LookupError(f"{agent.name} does not serve {board}")
        found |= {(board, member): score for member, score in page.items()}
    return found


async def _what_is_shown(
    session: aiohttp.ClientSession, agents: list[LocalAgent]
) -> tuple[LocalAgent, dict[tuple[str, str], int]]:
    """The first agent that answers in full, and its scores; nothing where none does."""
    for agent in agents:
        with suppress(aiohttp.ClientError, TimeoutError, LookupError):
            return agent, await _scores(session, agent)
    return agents[0], {}


async def _whole(session: aiohttp.ClientSession, url: str) -> dict[str, int] | None:
    found: dict[str, int] = {}
    offset = 0
    while True:
        page = await _get(session, f"{url}?offset={offset}&limit={PAGE}")
        if page is None:
            return None
        found |= {line["member"]: line["score"] for line in page["entries"]}
        offset += len(page["entries"])
        if len(page["entries"]) < PAGE:
            return found


async def _alarms(session: aiohttp.ClientSession, agent: LocalAgent) -> dict[str, float]:
    """An agent's alarms that are not 0, by `AGENT ALARM`, since its last start."""
    found: dict[str, float] = {}
    with suppress(aiohttp.ClientError, TimeoutError):
        async with session.get(f"{agent.url}/metrics") as response:
            for line in (await response.text()).splitlines():
                name, _, number = line.rpartition(" ")
                if name.startswith("tallyring_alarms_total{") and float(number):
                    alarm = name.split('"')[1]
                    found[f"{agent.name} {alarm}"] = float(number)
    return found


async def _get(session: aiohttp.ClientSession, url: str) -> Any:
    """The answer's document; None unless it is a 200."""
    async with session.get(url) as response:
        return await response.json() if response.status == 200 else None


def _expectation(values: Mapping[tuple[str, str], int]) -> Expectation:
    """What the checker must find in every region: the scores that one of them shows."""
    expected = Expectation(BOARDS)
    for (board, member), score in values.items():
        expected.count(Entry(board, member, score, AT_MS))
        if board == COUNTERS:
            expected.count_counter(member, score)
    return expected


def document(report: Report) -> dict[str, Any]:
    """The report as `--json` prints it. Times in seconds, by the name."""
    ledger, judgement = report.ledger, report.judgement
    return {
        "ok": report.right,
        "command": report.options.command,
        "seed": report.options.seed,
        "regions": list(report.options.names),
        "seconds": round(report.seconds, 1),
        "faults": {str(fault): count for fault, count in sorted(report.struck.items())},
        "faults_without_effect": {str(f): count for f, count in sorted(report.idle.items())},
        "writes": {str(outcome): ledger.counts[outcome] for outcome in Outcome},
        "reads": ledger.reads,
        "keys": judgement.keys,
        "checked": judgement.acknowledged,
        "lost": judgement.lost,
        "doubled": judgement.doubled,
        "impossible": judgement.other,
        "wrong_reads": ledger.wrong_reads,
        "lost_with_right": {
            "disks": len(ledger.losses),
            "cells": sum(len(loss.cells) for loss in ledger.losses),
            "amount": judgement.forgiven,
        },
        "converged_s": report.converged_s,
        "compared": report.verdict.compared,
        "alarms": report.alarms,
        "findings": report.findings,
    }
