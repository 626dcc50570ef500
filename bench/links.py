"""Between two agents: how soon a write is visible in the other region, and what it costs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import aiohttp
import msgpack

from bench.figures import Aim, Figure
from bench.world import Scale
from cluster import probe
from cluster.demo import until_included
from cluster.expected import BoardSpec
from cluster.local_ring import LocalRing
from cluster.probe import Prober

BOARD = BoardSpec("wire", "sum", ties="member")
RATE_PER_S = 1_000
PROBES_PER_S = 20.0
TICK_S = 0.02
LATENCY_MEMBERS = 10_000


@dataclass(frozen=True, slots=True)
class Sent:
    """What a paced load cost between the two agents."""

    entries: int
    wire_bytes: int
    message_bytes: int
    rows: int


async def links(folder: Path, scale: Scale) -> list[Figure]:
    """Latency and bytes at RATE_PER_S entries a second, written in one of two regions."""
    seconds = 5 * scale.seconds
    async with LocalRing(("here", "there"), folder=folder, links=True) as ring:
        pace = _Pace(ring)
        await pace.define()
        latency = await _latency(ring, pace, seconds)
        hot, distinct = [], []
        for number in range(min(3, scale.rounds)):
            hot.append(await pace.cost(lambda _: "hot", seconds))
            distinct.append(await pace.cost(_names(number), seconds))
    row = len(msgpack.packb((0, b"hot", bytes(9), 100_000, 1_800_000_000_000, b"", 0, 10_000)))
    return [
        *latency,
        Figure(
            f"a hot counter at {RATE_PER_S:,} increments/s, on the wire in all",
            "bytes/increment",
            tuple(sent.wire_bytes / sent.entries for sent in hot),
            Aim(25, at_least=False),
            note=f"messages without HTTP: {hot[0].message_bytes / hot[0].entries:.1f}",
        ),
        Figure(
            "  of them cells",
            "bytes/increment",
            tuple(sent.rows * row / sent.entries for sent in hot),
            Aim(5, at_least=False),
        ),
        Figure(
            f"distinct members at {RATE_PER_S:,} entries/s, on the wire in all",
            "bytes/entry",
            tuple(sent.wire_bytes / sent.entries for sent in distinct),
            Aim(40, at_least=False),
            note=f"messages without HTTP: {distinct[0].message_bytes / distinct[0].entries:.1f}",
        ),
    ]


async def _latency(ring: LocalRing, pace: _Pace, seconds: float) -> list[Figure]:
    random = Random(2)
    async with Prober(ring.regions) as prober, asyncio.TaskGroup() as group:
        end = time.monotonic() + seconds
        probes = group.create_task(
            prober.run(tuple(ring.agents), PROBES_PER_S, lambda: time.monotonic() > end)
        )
        await pace.run(lambda _: f"m{random.randrange(LATENCY_MEMBERS)}", seconds)
    found = probes.result()
    name = f"acknowledged to visible in the other Redis, at {RATE_PER_S:,} entries/s"
    return [
        Figure(f"{name}, p50", "ms", (found.quantile(0.5) or 0.0,)),
        Figure(
            f"{name}, p99",
            "ms",
            (found.quantile(0.99) or 0.0,),
            Aim(150, at_least=False),
            note=f"{len(found.ms)} probes, {found.lost} lost",
        ),
    ]


def _names(seed: int) -> Callable[[int], str]:
    random = Random(seed)
    return lambda _: f"player-{random.getrandbits(32):08x}"


class _Pace:
    """Writes a steady number of entries a second into the first agent."""

    def __init__(self, ring: LocalRing) -> None:
        self._ring = ring
        self._writer, self._other = ring.agents.values()

    async def define(self) -> None:
        """Define the boards, and wait until the other agent knows them."""
        async with aiohttp.ClientSession() as session:
            for spec in (BOARD, probe.SPEC):
                url = f"{self._writer.url}/v1/boards/{spec.name}"
                async with session.put(url, json=spec.document()) as response:
                    response.raise_for_status()
        await self._converge()

    async def run(self, member: Callable[[int], str], seconds: float) -> int:
        """Write for this long; the number of entries."""
        url = f"{self._writer.url}/v1/boards/{BOARD.name}/entries"
        sent, started = 0, time.monotonic()
        async with aiohttp.ClientSession() as session:
            while (elapsed := time.monotonic() - started) < seconds:
                due = int(elapsed * RATE_PER_S) - sent
                if due:
                    entries = [{"member": member(sent + i), "add": 1} for i in range(due)]
                    async with session.post(url, json={"entries": entries}) as response:
                        response.raise_for_status()
                    sent += due
                await asyncio.sleep(TICK_S)
        return sent

    async def cost(self, member: Callable[[int], str], seconds: float) -> Sent:
        """Write for this long, wait until it has arrived, and count what it took."""
        wire, before = self._ring.wire_bytes, await self._counts()
        entries = await self.run(member, seconds)
        await self._converge()
        after = await self._counts()
        return Sent(
            entries,
            self._ring.wire_bytes - wire,
            after["message_bytes"] - before["message_bytes"],
            after["rows"] - before["rows"],
        )

    async def _converge(self) -> None:
        await until_included(self._ring.regions, time.time_ns() // 1_000_000, BOARD.name)

    async def _counts(self) -> dict[str, Any]:
        """Bytes of the messages of both agents, and rows that the other has taken."""
        found = {"message_bytes": 0, "rows": 0}
        async with aiohttp.ClientSession() as session:
            for agent in (self._writer, self._other):
                async with session.get(f"{agent.url}/metrics") as response:
                    lines = (await response.text()).splitlines()
                for line in lines:
                    name, _, value = line.rpartition(" ")
                    if name.startswith("tallyring_peer_bytes_"):
                        is_total = "_total" in name
                        found["message_bytes"] += int(float(value)) if is_total else 0
                    elif name == "tallyring_rows_changed_total" and agent is self._other:
                        found["rows"] += int(float(value))
        return found
