"""How long an acknowledged write takes to be visible in another region's Redis.

A probe writes one entry for a member of its own in one region, and from the moment of the answer on
looks into the other regions' Redis until the member is there. Probes run at a moderate rate,
several at a time, so a slow one does not hold up the next. Resolution: about 1 ms, and 2 % of what
takes long, so that looking does not become a load of its own.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import aiohttp
from redis.asyncio import Redis

from cluster.checker import Region
from cluster.expected import BoardSpec

BOARD = "probe"
SPEC = BoardSpec(BOARD, "sum", ties="member")
POLL_S = 0.001
POLL_PART = 0.02  # of the time that a probe has taken so far
VISIBLE_S = 30.0  # after this a probe counts as lost


@dataclass(slots=True)
class Latencies:
    """Milliseconds from acknowledged to visible, and how many probes never became so."""

    ms: list[float] = field(default_factory=list)
    lost: int = 0

    def quantile(self, part: float) -> float | None:
        """The value below which `part` of the probes lie; None without probes."""
        if not self.ms:
            return None
        ordered = sorted(self.ms)
        return ordered[min(len(ordered) - 1, int(part * len(ordered)))]


class Prober:
    """Probes between regions. Use it with `async with`; the board `probe` must be defined."""

    def __init__(self, regions: Sequence[Region]) -> None:
        self._regions = {region.name: region for region in regions}
        self._redis = {region.name: Redis.from_url(region.redis_url) for region in regions}
        self._session: aiohttp.ClientSession | None = None
        self._numbers = itertools.count()

    async def __aenter__(self) -> Prober:
        self._session = aiohttp.ClientSession()
        return self

    async def __aexit__(self, *_: object) -> None:
        for redis in self._redis.values():
            await redis.aclose()
        if self._session is not None:
            await self._session.close()

    async def run(
        self, names: Sequence[str], probes_per_s: float, until: Callable[[], bool]
    ) -> Latencies:
        """Probe between these regions, each in turn writing, until told to stop.

        Raises:
            aiohttp.ClientError: a write was refused.
        """
        found = Latencies()
        writers = itertools.cycle(names)
        async with asyncio.TaskGroup() as group:
            while not until():
                writer = next(writers)
                readers = [name for name in names if name != writer]
                group.create_task(self._probe(writer, readers, found))
                await asyncio.sleep(1 / probes_per_s)
        return found

    async def _probe(self, writer: str, readers: Sequence[str], found: Latencies) -> None:
        assert self._session is not None, "a Prober is used with `async with`"
        member = f"{writer}-{next(self._numbers)}"
        url = f"{self._regions[writer].url}/v1/boards/{BOARD}/entries"
        async with self._session.post(url, json={"member": member, "add": 1}) as response:
            response.raise_for_status()
            await response.read()
        acknowledged = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for reader in readers:
                group.create_task(self._look(reader, member, acknowledged, found))

    async def _look(self, reader: str, member: str, acknowledged: float, found: Latencies) -> None:
        redis = self._redis[reader]
        while await redis.zscore(f"lb:{{s0}}:{BOARD}:all", member) is None:
            taken = time.perf_counter() - acknowledged
            if taken > VISIBLE_S:
                found.lost += 1
                return
            await asyncio.sleep(max(POLL_S, taken * POLL_PART))
        found.ms.append((time.perf_counter() - acknowledged) * 1000)
