"""Agents that leave at the same time: somebody stays, and has everything."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import aiohttp
import pytest

from cluster.local_ring import LocalRing
from tests.integration.fault_rig import SETTINGS, SUM, add, define, eventually, scores, show
from tests.integration.membership_rig import all_met, command, ring_of

EXIT_S = 20.0


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=15)) as opened:
        yield opened


async def test_of_agents_that_leave_together_the_last_ones_stay_until_another_is_there(
    session: aiohttp.ClientSession,
) -> None:
    """What they counted would be with nobody: no agent is the last one to go."""
    async with LocalRing(("a", "b"), settings=SETTINGS) as ring:
        await define(session, ring, SUM)
        await add(session, ring["a"], "m", 5)
        await show(session, ring, {"m": 5})
        await all_met(session, ring)
        await asyncio.gather(*(command("leave", "--wait", "0", at=ring[name]) for name in "ab"))

        async def waits(name: str) -> bool:
            shown = await ring_of(session, ring[name])
            return any("waits until another agent" in alarm for alarm in shown["alarms"])

        both = [process for name in "ab" if (process := ring[name].process) is not None]
        for name in "ab":
            await eventually(lambda name=name: waits(name))  # type: ignore[misc]
        assert [process.poll() for process in both] == [None, None]
        await ring.add("c")
        for process in both:
            assert await asyncio.to_thread(process.wait, EXIT_S) == 0
        for name in "ab":
            ring[name].process = None

        async def has_everything() -> bool:
            return await scores(session, ring["c"]) == {"m": 5}

        await eventually(has_everything)
