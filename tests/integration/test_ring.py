"""A ring of real processes: parted and healed, killed, joined late, and read from Redis."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator

import aiohttp
import pytest

from cluster.checker import check_everything
from cluster.expected import BoardSpec, Entry, Expectation
from cluster.local_agent import LocalAgent
from cluster.local_ring import LocalRing
from tests.integration.fault_rig import add, define, eventually, send

HANG_S = 0.5  # an agent that does not answer for so long hangs
# What a proxy refuses is looked for again soon; nothing else is changed.
SETTINGS = {"gossip": {"backoff_max_s": 0.5, "interval_s": 0.2}}
SUM = BoardSpec("b", "sum", ties="member")


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as opened:
        yield opened


async def board_of(session: aiohttp.ClientSession, agent: LocalAgent) -> dict[str, int]:
    page = await send(session, agent, "GET", "/v1/boards/b/entries?limit=1000")
    return {line["member"]: line["score"] for line in page["entries"]}


async def shows(
    session: aiohttp.ClientSession, ring: LocalRing, expected: dict[str, dict[str, int]]
) -> None:
    """Wait until each agent shows exactly what is expected of it."""
    for name, want in expected.items():

        async def equal(name: str = name, want: dict[str, int] = want) -> bool:
            return await board_of(session, ring[name]) == want

        await eventually(equal)


async def test_a_partition_has_exact_numbers_on_each_side_and_heals(
    session: aiohttp.ClientSession,
) -> None:
    async with LocalRing(("a", "b", "c"), links=True, settings=SETTINGS) as ring:
        await define(session, ring, SUM)
        for name in ring.agents:
            await add(session, ring[name], "m", 1)
        await shows(session, ring, {name: {"m": 3} for name in "abc"})

        ring.cut_off("c")
        await add(session, ring["a"], "m", 10)
        await add(session, ring["b"], "m", 20)
        await add(session, ring["c"], "m", 500)
        await add(session, ring["c"], "only-c", -7)
        connected = {"m": 33}
        await shows(session, ring, {"a": connected, "b": connected})

        async def refused() -> bool:
            return ring.refused[1] > 0

        await eventually(refused)
        await shows(session, ring, {"c": {"m": 503, "only-c": -7}})
        assert await board_of(session, ring["a"]) == connected

        ring.heal()
        await shows(session, ring, {name: {"m": 533, "only-c": -7} for name in "abc"})


async def test_kill_9_under_writes_loses_nothing_that_was_acknowledged(
    session: aiohttp.ClientSession,
) -> None:
    async with LocalRing(("a", "b"), settings=SETTINGS) as ring:
        await define(session, ring, SUM)
        sent, acknowledged = 0, 0

        async def write() -> None:
            nonlocal sent, acknowledged
            while True:
                sent += 1
                try:
                    await add(session, ring["a"], "m", 1)
                except aiohttp.ClientError:
                    return  # the process is gone; this entry may or may not have been stored
                acknowledged += 1

        async def under_way() -> bool:
            return acknowledged > 200

        writers = 8
        async with asyncio.TaskGroup() as group:
            for _ in range(writers):
                group.create_task(write())
            await eventually(under_way)
            ring.kill("a")
        await ring.start("a")

        async def same() -> bool:
            one, two = await board_of(session, ring["a"]), await board_of(session, ring["b"])
            return one == two

        await eventually(same)
        total = (await board_of(session, ring["a"]))["m"]
        assert acknowledged <= total <= sent
        assert sent - acknowledged <= writers


async def test_a_late_joiner_gets_everything(session: aiohttp.ClientSession) -> None:
    async with LocalRing(("a", "b"), settings=SETTINGS) as ring:
        await define(session, ring, SUM)
        entries = [{"member": f"m{i}", "add": i} for i in range(3_000)]
        await send(session, ring["a"], "POST", "/v1/boards/b/entries", {"entries": entries})
        await add(session, ring["b"], "m7", 1)
        await send(session, ring["b"], "POST", "/v1/counters/c", {"by": 5})

        expectation = Expectation({"b": SUM})
        for i in range(3_000):
            expectation.count(Entry("b", f"m{i}", i, 0))
        expectation.count(Entry("b", "m7", 1, 0))
        expectation.count_counter("c", 5)
        await ring.add("late")

        async def equal() -> bool:
            page = await send(session, ring["late"], "GET", "/v1/ring")
            if len(page["members"]) < 3:
                return False
            known = await send(session, ring["late"], "GET", "/v1/boards")
            if "b" not in {board["board"] for board in known["boards"]}:
                return False
            try:
                return (await check_everything(ring.regions, expectation)).equal
            except aiohttp.ClientResponseError as error:
                if error.status != 503:
                    raise
                return False  # its board is still being filled

        await eventually(equal)


async def test_the_same_score_at_the_same_millisecond_is_one_order_everywhere(
    session: aiohttp.ClientSession,
) -> None:
    at_ms = 1_700_000_000_123
    specs = [
        BoardSpec("high", "best", score=(0, 999)),
        BoardSpec("low", "best", order="low", score=(0, 999)),
        BoardSpec("newest", "latest", ties="member"),
    ]
    expectation = Expectation({spec.name: spec for spec in specs})
    async with LocalRing(("a", "b"), settings=SETTINGS) as ring:
        await define(session, ring, *specs)
        sends = []
        for number, name in enumerate(("a", "b")):
            entries = []
            for spec in specs:
                for member in ("x", "y", f"only-{name}"):
                    score = 7 + number if spec.rule == "latest" else 7
                    expectation.count(Entry(spec.name, member, score, at_ms))
                    entry = {"board": spec.name, "member": member, "score": score}
                    entries.append({**entry, "at": at_ms})
            body = {"entries": entries}
            sends.append(send(session, ring[name], "POST", "/v1/entries", body))
        await asyncio.gather(*sends)

        async def equal() -> bool:
            return (await check_everything(ring.regions, expectation)).equal

        await eventually(equal)


async def test_direct_readers_see_what_the_api_says_on_every_kind_of_board(
    session: aiohttp.ClientSession,
) -> None:
    specs = [
        BoardSpec(f"{rule}-{order}-{ties}", rule, order=order, ties=ties)
        for rule in ("sum", "best", "latest")
        for order in ("high", "low")
        for ties in ("first", "last", "shared", "member")
    ]
    expectation = Expectation({spec.name: spec for spec in specs})
    seeded = random.Random(7)
    async with LocalRing(("a", "b"), settings=SETTINGS) as ring:
        await define(session, ring, *specs)
        for name in ("a", "b"):
            entries = []
            for spec in specs:
                field = "add" if spec.rule == "sum" else "score"
                for _ in range(25):
                    member = seeded.choice(("ada", "bo", "\u00e9", "zoe", "\U0001f600", "x y/z"))
                    number = seeded.randint(0 if spec.rule == "best" else -3, 3) or 1
                    # Few scores and few minutes: many ties, within ticks and across them.
                    at_ms = 1_700_000_000_000 + 60_000 * seeded.randrange(3)
                    expectation.count(Entry(spec.name, member, number, at_ms))
                    entry = {"board": spec.name, "member": member, field: number, "at": at_ms}
                    entries.append(entry)
            await send(session, ring[name], "POST", "/v1/entries", {"entries": entries})

        async def equal() -> bool:
            return (await check_everything(ring.regions, expectation)).equal

        await eventually(equal)


async def test_an_agent_that_hangs_is_caught_up_with(session: aiohttp.ClientSession) -> None:
    async with LocalRing(("a", "b"), settings=SETTINGS) as ring:
        await define(session, ring, SUM)
        ring.pause("b")
        await add(session, ring["a"], "m", 4)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(HANG_S):
                await board_of(session, ring["b"])
        ring.resume("b")
        await add(session, ring["b"], "m", 5)
        await shows(session, ring, {name: {"m": 9} for name in "ab"})
