"""The manual clocks of a ring's agents, moved along with what is replayed.

    [agent] clock = "manual"      POST /v1/clock {"now": ms}

Each agent has its own, and they need not agree: an agent's clock follows what is sent to it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import aiohttp


class ClockError(Exception):
    """A clock was not moved; the text is the agent's answer."""


class Clocks:
    """Moves the agents' clocks, each only forward. For the tasks of one event loop.

    Args:
        urls: by region, its agent's URL.
    """

    def __init__(self, session: aiohttp.ClientSession, urls: Mapping[str, str]) -> None:
        self._session = session
        self._urls = dict(urls)
        self._shown = dict.fromkeys(urls, -1)
        self._locks = {region: asyncio.Lock() for region in urls}

    async def move(self, region: str, now_ms: int) -> None:
        """Have a region's clock show at least `now_ms`; returns when it does.

        Raises:
            ClockError: the agent refused.
        """
        async with self._locks[region]:
            if now_ms <= self._shown[region]:
                return
            url = f"{self._urls[region]}/v1/clock"
            async with self._session.post(url, json={"now": now_ms}) as response:
                if response.status != 200:
                    raise ClockError(f"{url}: {response.status} {await response.text()}")
                await response.read()
            self._shown[region] = now_ms

    async def move_all(self, now_ms: int) -> None:
        """Have every clock show at least `now_ms`.

        Raises:
            ClockError: an agent refused.
        """
        await asyncio.gather(*(self.move(region, now_ms) for region in self._urls))
