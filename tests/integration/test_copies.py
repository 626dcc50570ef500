"""A data folder that was copied, and both copies run: no increment is lost or doubled."""

from __future__ import annotations

from collections.abc import AsyncIterator

import aiohttp
import pytest

from cluster.chaos import disks
from cluster.local_agent import LocalAgent
from cluster.local_ring import LocalRing
from tests.integration.fault_rig import (
    SETTINGS,
    SUM,
    TRACEBACK,
    answer,
    define,
    eventually,
    refused_start,
    scores,
)
from tests.integration.membership_rig import all_met, command, metric, ring_of, writing


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=15)) as opened:
        yield opened


async def copy_of(ring: LocalRing, name: str) -> LocalAgent:
    """An agent whose folder is a copy of another one's, with addresses and a Redis of its own."""
    copy = await ring.add("copy", start=False)
    ring.change("copy", "agent", "name", name)
    ring.change("copy", "agent", "region", name)
    disks.copy_disk(ring[name], copy.data_dir)
    copy.log.touch()
    return copy


async def test_a_copy_is_refused_while_the_original_is_alive(
    session: aiohttp.ClientSession,
) -> None:
    async with LocalRing(("a", "b"), settings=SETTINGS) as ring:
        await define(session, ring, SUM)
        await all_met(session, ring)
        async with writing(session, ring.agents.values()) as done:

            async def some() -> bool:
                return all(done.acknowledged.get(name, 0) > 20 for name in "ab")

            await eventually(some)
            await copy_of(ring, "a")
            said = await refused_start(ring, "copy")
            assert "is called 'a'" in said or "called 'a' is running" in said
            assert "data_dir" in said or "stop the other one" in said
        assert not done.refused
        for name in "ab":

            async def exact(name: str = name) -> bool:
                return await scores(session, ring[name]) == {"m": done.total}

            await eventually(exact)


async def test_a_copy_that_was_cut_off_gives_way_and_what_it_took_counts(
    session: aiohttp.ClientSession,
) -> None:
    async with LocalRing(("a", "b"), links=True, settings=SETTINGS) as ring:
        await define(session, ring, SUM)
        await all_met(session, ring)
        async with writing(session, ring.agents.values()) as first:

            async def some() -> bool:
                return all(first.acknowledged.get(name, 0) > 20 for name in "ab")

            await eventually(some)
            copy = await copy_of(ring, "a")  # in the middle of writes
        ring.cut_off("copy")
        before = ring.refused[0]
        await start_alone(session, ring, copy)
        everybody = [ring["a"], ring["b"], copy]
        async with writing(session, everybody) as apart:

            async def each() -> bool:
                return len(apart.acknowledged) == 3 and min(apart.acknowledged.values()) > 20

            await eventually(each)
        assert ring.refused[0] > before
        assert not apart.refused
        async with writing(session, [ring["a"], ring["b"]]) as after:
            ring.heal()

            async def gives_way() -> bool:
                body = {"by": 1}
                status, problem = await answer(session, copy, "POST", "/v1/counters/x", body)
                return status == 409 and problem["code"] == "fork" and bool(problem["hint"])

            await eventually(gives_way)
        assert not after.refused
        total = first.total + apart.total + after.total
        for agent in everybody:

            async def exact(agent: LocalAgent = agent) -> bool:
                return await scores(session, agent) == {"m": total}

            await eventually(exact)
        await shown(session, ring, copy)
        for agent in everybody:
            assert TRACEBACK not in agent.log.read_text()


async def start_alone(session: aiohttp.ClientSession, ring: LocalRing, copy: LocalAgent) -> None:
    """Start the copy: nobody can tell it that another agent has its name."""
    copy.name = "a"  # as whom it answers
    await ring.start("copy")

    async def takes_writes() -> bool:
        return await scores(session, copy) is not None

    await eventually(takes_writes)


async def shown(session: aiohttp.ClientSession, ring: LocalRing, copy: LocalAgent) -> None:
    """Both facts are visible: the new incarnation, and that two agents have one name."""
    me, original = await ring_of(session, copy), await ring_of(session, ring["a"])
    assert me["identity"]["incarnation"] != original["identity"]["incarnation"]
    assert me["identity"]["minted"]
    assert "fork" in me["refuses"]
    assert not original["refuses"]
    status = await command("status", at=copy)
    assert status.exit_code == 1
    assert "writes are refused (fork)" in status.output
    assert "a new incarnation was begun" in status.output
    assert await metric(session, copy, 'tallyring_alarm_raised{alarm="fork"}') == 1

    async def original_knows() -> bool:
        alarm = 'tallyring_alarm_raised{alarm="twin"}'
        return await metric(session, ring["a"], alarm) == 1

    await eventually(original_knows)
    async with session.get(f"{copy.url}/metrics") as response:
        text = await response.text()
    minted = [line for line in text.splitlines() if "incarnations_minted_total{" in line]
    assert sum(float(line.rpartition(" ")[2]) for line in minted) >= 1
