"""Closing a large window: what that does to writes, and how long it takes to its final."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import aiohttp

from bench import requests
from bench.figures import Aim, Figure
from bench.load import Clients, Driven, Load, percentile_ms
from bench.world import Scale
from cluster.local_ring import LocalRing

MEMBERS = 200_000
BATCH = 10_000
CONNECTIONS = 16  # a load below what the agent can take: what is looked for is a delay
WINDOW = "day:2026-11-30"
NOON, NEXT_DAY = "2026-11-30T12:00:00Z", "2026-12-01T00:00:01Z"
SETTINGS: dict[str, dict[str, Any]] = {"agent": {"clock": "manual"}}
BOARD = {
    "rule": "sum",
    "ties": "first",
    "windows": [{"name": "day", "grace": "0s", "keep": "400d"}, {"name": "all"}],
}
CLOSES_S = 120.0


async def closing(folder: Path, scale: Scale) -> list[Figure]:
    """The p99 of single increments before a window of MEMBERS closes, and while it does."""
    timeout = aiohttp.ClientTimeout(total=60)
    with Clients() as clients:
        async with (
            LocalRing(("bench",), folder=folder, settings=SETTINGS) as ring,
            aiohttp.ClientSession(timeout=timeout) as session,
        ):
            agent = ring["bench"]
            await _send(session, "POST", f"{agent.url}/v1/clock", {"now": NOON})
            await _send(session, "PUT", f"{agent.url}/v1/boards/cup", BOARD)
            await _send(session, "PUT", f"{agent.url}/v1/boards/other", {"rule": "sum"})
            for start in range(0, MEMBERS, BATCH):
                entries = [{"member": requests.member(start + i), "add": 1} for i in range(BATCH)]
                url = f"{agent.url}/v1/boards/cup/entries"
                await _send(session, "POST", url, {"entries": entries})
            load = Load(requests.single, ("other", False), CONNECTIONS)
            before = await clients.drive(load.at(agent.port, 3 * scale.seconds))
            await _send(session, "POST", f"{agent.url}/v1/clock", {"now": NEXT_DAY})
            slices: list[Driven] = []
            async with asyncio.TaskGroup() as group:
                waiting = group.create_task(_certified(session, agent.url))
                while not waiting.done():
                    slices.append(await clients.drive(load.at(agent.port, scale.seconds)))
            took = waiting.result()
    everything = sorted(latency for its in slices for latency in its.latencies_s)
    note = (
        f"certified {took:.1f} s after the end, under that load of {len(everything):,} writes;"
        f" the slowest took {everything[-1] * 1000:.0f} ms"
    )
    name = f"p99 of a write while a window of {MEMBERS:,} members closes"
    aim = Aim(100.0, at_least=False)
    p99 = percentile_ms(everything, 0.99)
    return [
        Figure(name, "ms", (p99,), aim, {"before": (before.p99_ms,)}, note=note),
        Figure(f"the same, in slices of {scale.seconds} s", "ms", tuple(s.p99_ms for s in slices)),
    ]


async def _send(session: aiohttp.ClientSession, method: str, url: str, body: Any) -> None:
    async with session.request(method, url, json=body) as response:
        response.raise_for_status()


async def _certified(session: aiohttp.ClientSession, url: str) -> float:
    """Wait for the final; how long that took, in seconds."""
    began = time.monotonic()
    async with asyncio.timeout(CLOSES_S):
        while True:
            where = f"{url}/v1/boards/cup/windows/{WINDOW}/final?limit=1"
            async with session.get(where) as response:
                if response.status == 200:
                    return time.monotonic() - began
            await asyncio.sleep(0.2)
