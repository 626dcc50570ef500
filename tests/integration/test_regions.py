"""Several agents of one region: each is a replica, one of them fills the region's Redis."""

from __future__ import annotations

from collections.abc import AsyncIterator

import aiohttp
import pytest

from cluster.local_ring import LocalRing
from tests.integration.fault_rig import SETTINGS, SUM, add, define, eventually, send, show
from tests.integration.membership_rig import all_met, metric, ring_of

FOLLOWING = 'tallyring_projection_phase{phase="following"}'


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=15)) as opened:
        yield opened


async def test_two_agents_of_one_region_and_one_of_another(
    session: aiohttp.ClientSession,
) -> None:
    async with LocalRing(("us",), settings=SETTINGS) as ring:
        first = await ring.add("eu-1", start=False)
        ring.change("eu-1", "agent", "region", "eu")
        await ring.start("eu-1")
        ring.use_redis("eu-2", first.redis_url)
        await ring.add("eu-2", start=False)
        ring.change("eu-2", "agent", "region", "eu")
        await ring.start("eu-2")
        await define(session, ring, SUM)
        await all_met(session, ring)
        for number, name in enumerate(("us", "eu-1", "eu-2")):
            await add(session, ring[name], "m", 10**number)
        await show(session, ring, {"m": 111})

        async def one_projects() -> bool:
            values = [await metric(session, ring[name], FOLLOWING) for name in ("eu-1", "eu-2")]
            return sorted(values) == [0.0, 1.0]

        await eventually(one_projects)
        for agent in ring.agents.values():
            answer = await send(session, agent, "GET", "/v1/counters/x")
            assert set(answer["as_of"]) == {"us", "eu"}
        shown = await ring_of(session, ring["us"])
        regions = {member["name"]: member["region"] for member in shown["members"]}
        assert regions == {"us": "us", "eu-1": "eu", "eu-2": "eu"}
        lags = {(cell["region"], cell["of"]): cell for cell in shown["matrix"]}
        assert set(lags) == {("us", "eu"), ("eu", "us"), ("eu", "eu")}

        async def all_known() -> bool:
            matrix = (await ring_of(session, ring["us"]))["matrix"]
            return all(cell["lag_ms"] is not None and cell["rows"] == 0 for cell in matrix)

        await eventually(all_known)
        await ring.stop("eu-2")  # its region is known only as far as its slowest agent
        one = (await send(session, ring["us"], "GET", "/v1/counters/x"))["as_of"]

        async def stands() -> bool:
            """us goes on, eu stands at what eu-2 said last."""
            two = (await send(session, ring["us"], "GET", "/v1/counters/x"))["as_of"]
            again = (await send(session, ring["us"], "GET", "/v1/counters/x"))["as_of"]
            return bool(two["eu"] == again["eu"] >= one["eu"] and again["us"] > two["us"])

        await eventually(stands)

        async def the_other_goes_on() -> bool:
            members = (await ring_of(session, ring["us"]))["members"]
            as_of = {member["name"]: member["as_of"] for member in members}
            return bool(as_of["eu-2"] < as_of["eu-1"])

        await eventually(the_other_goes_on)
        last = (await send(session, ring["us"], "GET", "/v1/counters/x"))["as_of"]["eu"]
        members = (await ring_of(session, ring["us"]))["members"]
        assert {m["name"]: m["as_of"] for m in members}["eu-2"] == last
