"""An audit finds what Redis holds wrongly, tells nothing that is only on its way, and is mended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from agent.boards.entry import Entry
from agent.projection.audit import DIFFERENCES_MAX, NOTHING, Comparison, Held, compare_window
from agent.projection.keys import board_key
from agent.projection.link import Link
from tests.integration.projection_rig import Rig, eventually, rig, valkey

BOARD = board_key("points", "all")


@pytest.fixture
async def agent(rank_server: str, tmp_path: Path) -> AsyncIterator[Rig]:
    assert rank_server
    async with valkey(tmp_path / "redis") as server, rig(tmp_path / "eu", server.url) as made:
        yield made


async def compare(agent: Rig, board: str, page: int = 50) -> Comparison:
    placed = agent.placed(board)
    return await compare_window(
        agent.readers, agent.client, placed, lambda: agent.committer.state, page=page
    )


async def test_each_kind_of_difference_is_named_and_repaired(agent: Rig) -> None:
    agent.define("points", rule="sum", ties="shared")
    scores = {f"p{number:04}": number for number in range(500)}
    agent.add("points", scores)
    agent.add("counters", {"visits": 7, "likes": 3})
    async with agent.projecting():
        await agent.projected("points")
        await agent.projected("counters")
        clean = await compare(agent, "points")
        assert (clean.members, clean.count, clean.unsettled, clean.skipped) == (500, 0, 0, "")
        await agent.redis.zadd(BOARD, {"p0007": 9_000, "nobody": 5})
        await agent.redis.zrem(BOARD, "p0499")
        await agent.redis.set("ct:{s0}:visits", "8")
        found = await compare(agent, "points")
        assert found.count == 3
        assert {(d.member, d.score, d.expected, d.found) for d in found.differences} == {
            (b"p0007", 7, Held(7, None), Held(9_000, None)),
            (b"p0499", 499, Held(499, None), NOTHING),
            (b"nobody", None, NOTHING, Held(5, None)),
        }
        assert "points/all/p0499: SQLite: score 499" in "".join(map(str, found.differences))
        (counter,) = (await compare(agent, "counters")).differences
        assert counter.expected == Held(7, "7")
        assert counter.found == Held(7, "8")
        refills = agent.projector.status().counts.refills
        assert agent.projector.repair("points")
        assert agent.projector.repair("counters")

        async def mended() -> bool:
            parts = [await compare(agent, name) for name in ("points", "counters")]
            return all(part.count == 0 and not part.skipped for part in parts)

        await eventually(mended)
        assert await agent.scores("points") == scores
        assert agent.projector.status().counts.refills == refills + 2
        await agent.redis.zadd(BOARD, {"p0007": 9_000})
        assert agent.projector.rebuild()
        await eventually(mended)
        assert await agent.redis.keys("*new*") == []
    assert agent.projector.status().counts.rebuilds == 1


async def test_a_board_is_served_while_it_is_repaired(
    agent: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent.define("points", rule="sum", ties="shared")
    agent.add("points", {f"p{number:04}": number for number in range(3_000)})
    write = Link.write
    served = 0

    async def watched(link: Link, *args: object, **options: object) -> None:
        nonlocal served
        await write(link, *args, **options)  # type: ignore[arg-type]
        view = await agent.ranks.page(agent.placed("points"), 0, 1)
        served += view.total == 3_000

    async with agent.projecting():
        await agent.projected("points")
        refilled = agent.projector.status().counts.refilled
        monkeypatch.setattr(Link, "write", watched)
        assert agent.projector.repair("points")

        async def repaired() -> bool:
            status = agent.projector.status()
            return status.counts.refilled >= refilled + 3_000 and not status.boards_rebuilding

        await eventually(repaired)
    assert served > 3


async def test_nothing_is_told_that_is_on_its_way(agent: Rig) -> None:
    random = Random(3)
    agent.define("points", rule="latest", ties="shared")
    names = [f"p{number}" for number in range(200)]
    agent.write("points", [Entry(name, score=1) for name in names])
    await_write = asyncio.Event()

    async def writes() -> None:
        while True:
            chosen = [Entry(name, score=random.randrange(9)) for name in random.sample(names, 40)]
            agent.write("points", chosen)
            await_write.set()
            await agent.moving()

    async with agent.projecting(), asyncio.TaskGroup() as group:
        await agent.projected("points")
        writing = group.create_task(writes())
        await await_write.wait()
        for _ in range(10):
            found = await compare(agent, "points", page=20)
            assert (found.count, found.skipped) == (0, "")
            assert found.members == 200
        await agent.redis.zadd(BOARD, {"nobody": 5})
        found = await compare(agent, "points", page=20)
        assert [difference.member for difference in found.differences] == [b"nobody"]
        writing.cancel()


async def test_what_can_not_be_compared_is_skipped(agent: Rig) -> None:
    agent.define("points", rule="sum", ties="shared")
    agent.add("points", {f"p{number:04}": number for number in range(DIFFERENCES_MAX + 50)})
    assert (await compare(agent, "points")).skipped == "Redis is being filled"
    async with agent.projecting():
        await agent.projected("points")
        state = agent.committer.state
        other = await compare_window(
            agent.readers,
            agent.client,
            agent.placed("points"),
            lambda: replace(state, log=state.log + 1),
        )
        assert "projects from another log" in other.skipped
        await agent.redis.zremrangebyrank(BOARD, 0, -2)
        found = await compare(agent, "points")
        assert found.count == DIFFERENCES_MAX + 49
        assert len(found.differences) == DIFFERENCES_MAX
        await agent.redis.delete(f"{BOARD}:meta")
        assert (await compare(agent, "points")).skipped.startswith("the window is being filled")
