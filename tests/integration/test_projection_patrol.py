"""The patrol: whatever differs in Redis is found within a round, told, and mended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from agent.boards.entry import Entry
from agent.boards.windows import WindowSpec
from agent.projection import patrol as patrols
from agent.projection.embedded import EmbeddedValkey
from agent.projection.keys import board_key, meta_key
from agent.projection.patrol import Patrol
from agent.projection.status import Phase
from tests.integration.projection_rig import Rig, eventually, rig, valkey

KEY = board_key("points", "all")


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[EmbeddedValkey]:
    async with valkey(tmp_path / "valkey") as running:
        yield running


@asynccontextmanager
async def patrolled(
    server: EmbeddedValkey, folder: Path, members: int = 2_500, clock: str = "manual"
) -> AsyncIterator[tuple[Rig, Patrol, dict[str, int]]]:
    """An agent that projects a board, and its patrol, which goes when it is told."""
    async with rig(folder, server.url, clock=clock) as agent:
        scores = agent.fill(members)
        patrol = Patrol(
            agent.readers,
            agent.client,
            agent.projector,
            lambda: agent.committer.state,
            lambda: agent.at_ms,
            round_s=0.05,
            scan_s=3_600.0,
            expires=clock == "system",
        )
        async with agent.projecting():
            await agent.serving(scores)
            yield agent, patrol, scores


async def round_of(agent: Rig, patrol: Patrol) -> None:
    """One round over all windows."""
    for placed in agent.projector.windows("points"):
        assert await patrol.look_at(placed) is not None


async def test_nothing_is_told_where_nothing_differs(
    server: EmbeddedValkey, tmp_path: Path
) -> None:
    async with patrolled(server, tmp_path / "eu") as (agent, patrol, scores):
        await round_of(agent, patrol)
        assert patrol.counts.windows == 1
        assert 900 <= patrol.counts.members <= len(scores)
        assert (patrol.counts.differences, list(patrol.report.recent)) == (0, [])


@pytest.mark.parametrize("what", ["top", "lost", "stranger", "many", "all lost but one"])
async def test_what_differs_is_found_in_one_round_and_mended(
    server: EmbeddedValkey, tmp_path: Path, what: str
) -> None:
    async with patrolled(server, tmp_path / "eu") as (agent, patrol, scores):
        names = sorted(scores)
        match what:
            case "top":
                await agent.redis.zadd(KEY, {names[7]: 999_999})
            case "lost":
                await agent.redis.zrem(KEY, names[1_234])
            case "stranger":
                await agent.redis.zadd(KEY, {"nobody": 5})
            case "many":
                await agent.redis.zadd(KEY, dict.fromkeys(names[::3], 0))
            case _:
                await agent.redis.zremrangebyrank(KEY, 1, -1)
        await round_of(agent, patrol)
        assert patrol.counts.differences > 0
        assert patrol.report.recent
        assert patrol.counts.repaired + patrol.counts.refilled > 0
        await agent.serving(scores)
        before = patrol.counts.differences
        await round_of(agent, patrol)
        assert patrol.counts.differences == before


async def test_a_single_score_far_down_is_found_by_the_daily_scan(
    server: EmbeddedValkey, tmp_path: Path
) -> None:
    async with patrolled(server, tmp_path / "eu", 5_000) as (agent, patrol, scores):
        name = sorted(scores, key=lambda name: scores[name])[2_000]
        await agent.redis.zadd(KEY, {name: scores[name] - 1})
        await patrol.scan()
        assert (patrol.counts.scans, patrol.counts.differences) == (1, 1)
        assert patrol.counts.repaired == 1
        await agent.serving(scores)


async def test_banned_members_and_results_taken_back_are_no_difference(
    server: EmbeddedValkey, tmp_path: Path
) -> None:
    async with patrolled(server, tmp_path / "eu", 50) as (agent, patrol, scores):
        banned = sorted(scores)[3]
        agent.ban(banned)
        agent.define(
            "kept", rule="sum", results="keep", windows=(WindowSpec("day"),), ties="member"
        )
        at = agent.at_ms
        agent.write("kept", [Entry("m", add=1, key="k", at=at), Entry("n", add=2, key="k", at=at)])
        await agent.projected("kept", "day")
        await agent.serving({name: its for name, its in scores.items() if name != banned})
        for board in ("points", "kept"):
            for placed in agent.projector.windows(board):
                found = await patrol.look_at(placed)
                assert found is not None
                assert found.count == 0
        assert patrol.counts.differences == 0


async def test_a_key_without_its_end_gets_it_back(server: EmbeddedValkey, tmp_path: Path) -> None:
    async with patrolled(server, tmp_path / "eu", 10, "system") as (agent, patrol, _):
        agent.define("days", rule="sum", windows=(WindowSpec("day", keep="2d"),))
        agent.add("days", {"m": 1})
        await agent.projected("days", "day")
        (placed, *_) = agent.projector.windows("days")
        for key in (board_key("days", placed.window.id), meta_key("days", placed.window.id)):
            ends = int(await agent.client.command("PEXPIRETIME", key))
            assert ends > 0
            await agent.redis.persist(key)
            await patrol.look_at(placed)
            assert patrol.counts.refilled > 0

            async def ends_again(key: str = key, ends: int = ends) -> bool:
                return int(await agent.client.command("PEXPIRETIME", key)) == ends

            await eventually(ends_again)


async def test_it_rests_while_redis_is_filled_or_another_agent_projects(
    server: EmbeddedValkey, tmp_path: Path
) -> None:
    async with patrolled(server, tmp_path / "eu", 10) as (agent, patrol, _):
        (placed,) = agent.projector.windows("points")
        agent.projector._phase = Phase.WAITING
        assert await patrol.look_at(placed) is None
        agent.projector._phase = Phase.FOLLOWING


async def test_rounds_go_on_by_themselves_while_members_are_written(
    server: EmbeddedValkey, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patrols, "SAMPLE", 40)
    async with patrolled(server, tmp_path / "eu", 100) as (agent, patrol, scores):
        async with asyncio.TaskGroup() as group:
            going = group.create_task(patrol.run())
            number = 0

            async def three_rounds() -> bool:
                nonlocal number
                number += 1
                name = sorted(scores)[number % 100]
                scores[name] += 1
                agent.add("points", {name: 1})
                return patrol.counts.rounds >= 3

            await eventually(three_rounds)
            going.cancel()
        assert patrol.counts.differences == 0
        assert patrol.report.round_ended_ms is not None
        await agent.serving(scores)
