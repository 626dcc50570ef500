"""`?ack=replicated`: answered when another region durably has it, or 504 and not definite."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from cluster.local_agent import LocalAgent
from cluster.local_ring import LocalRing
from tests.integration.fault_rig import eventually

SHORT = {"gossip": {"replicated_s": 0.5, "backoff_max_s": 0.2}}


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=15)) as opened:
        yield opened


async def post(
    session: aiohttp.ClientSession, agent: LocalAgent, path: str, body: Any
) -> tuple[int, Any]:
    async with session.post(agent.url + path, json=body) as response:
        return response.status, await response.json(content_type=None)


async def value(session: aiohttp.ClientSession, agent: LocalAgent, name: str) -> int:
    async with session.get(f"{agent.url}/v1/counters/{name}") as response:
        return int((await response.json())["value"])


async def test_an_answer_means_that_another_region_durably_has_it(
    session: aiohttp.ClientSession,
) -> None:
    async with LocalRing(("a", "b"), settings={"gossip": {"poke_s": 0.2}}) as ring:
        for number in range(1, 6):
            status, answer = await post(
                session, ring["a"], "/v1/counters/x?ack=replicated", {"by": 1}
            )
            assert (status, answer["value"]) == (200, number)
            ring.kill("b")  # what it has is on its disk
            await ring.start("b")
            assert await value(session, ring["b"], "x") == number
        for path, body in (
            ("/v1/counters?ack=replicated", {"y": 2}),
            ("/v1/boards/counters/entries?ack=replicated", {"member": "y", "add": 3}),
            (
                "/v1/entries?ack=replicated",
                {"entries": [{"board": "counters", "member": "y", "add": 4}]},
            ),
        ):
            status, answer = await post(session, ring["a"], path, body)
            assert status == 200, answer
        assert await value(session, ring["b"], "y") == 9
        status, answer = await post(session, ring["a"], "/v1/counters/x?ack=all", {"by": 1})
        assert (status, answer["code"], answer["definite"]) == (400, "malformed", True)
        assert await value(session, ring["a"], "x") == 5


async def test_without_another_region_it_is_stored_and_said_not_to_be_confirmed(
    session: aiohttp.ClientSession,
) -> None:
    async with LocalRing(("a", "b"), links=True, settings=SHORT) as ring:
        status = 0
        async with asyncio.timeout(60):
            while status != 200:  # the two have met
                path = "/v1/counters/first?ack=replicated"
                status, _ = await post(session, ring["a"], path, {"by": 1})
        status, _ = await post(session, ring["a"], "/v1/counters/x?ack=replicated", {"by": 1})
        assert status == 200
        ring.cut_off("a")
        many = [
            post(session, ring["a"], "/v1/counters/x?ack=replicated", {"by": 1}) for _ in range(50)
        ]
        for status, answer in await asyncio.gather(*many):
            assert (status, answer["code"]) == (504, "not_replicated")
            assert answer["definite"] is False
            assert answer["hint"]
        assert await value(session, ring["a"], "x") == 51
        ring.heal()

        async def arrived() -> bool:
            return await value(session, ring["b"], "x") == 51

        await eventually(arrived)
        status, answer = await post(session, ring["a"], "/v1/counters/x?ack=replicated", {"by": 1})
        assert (status, answer["value"]) == (200, 52)


async def test_an_agent_of_the_same_region_does_not_count(session: aiohttp.ClientSession) -> None:
    async with LocalRing(("a",), settings=SHORT) as ring:
        await ring.add("a-2", start=False)
        ring.change("a-2", "agent", "region", "a")
        await ring.start("a-2")

        async def arrived() -> bool:
            return await value(session, ring["a-2"], "x") > 0

        await post(session, ring["a"], "/v1/counters/x", {"by": 1})
        await eventually(arrived)
        status, answer = await post(session, ring["a"], "/v1/counters/x?ack=replicated", {"by": 1})
        assert (status, answer["code"]) == (504, "not_replicated")
        await ring.add("b")
        status, answer = await post(session, ring["a"], "/v1/counters/x?ack=replicated", {"by": 1})
        assert (status, answer["value"]) == (200, 3)
