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
        assert await patrol.look_at("points", placed.window.id) is not None


async def test_nothing_is_told_where_nothing_differs(
    server: EmbeddedValkey, tmp_path: Path
) -> None:
    async with patrolled(server, tmp_path / "eu") as (agent, patrol, _scores):
        await round_of(agent, patrol)
        assert patrol.counts.windows == 1
        assert patrols.SAMPLE // 2 <= patrol.counts.members <= patrols.TOP + patrols.SAMPLE
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
                found = await patrol.look_at(board, placed.window.id)
                assert found is not None
                assert found.count == 0
        assert patrol.counts.differences == 0


async def test_a_key_without_its_end_gets_it_back(server: EmbeddedValkey, tmp_path: Path) -> None:
    async with patrolled(server, tmp_path / "eu", 10, "system") as (agent, patrol, _):
        agent.define("days", rule="sum", windows=(WindowSpec("day", keep="2d"),))
        agent.add("days", {"m": 1})
        await agent.projected("days", "day")
        (placed,) = agent.projector.windows("days")
        window = placed.window.id
        for key in (board_key("days", window), meta_key("days", window)):
            ends = int(await agent.client.command("PEXPIRETIME", key))
            assert ends > 0
            await agent.redis.persist(key)
            before = patrol.counts.keys
            await patrol.look_at("days", window)
            assert patrol.counts.keys == before + 1
            assert int(await agent.client.command("PEXPIRETIME", key)) == ends


async def test_a_key_that_should_not_end_does_not(server: EmbeddedValkey, tmp_path: Path) -> None:
    async with patrolled(server, tmp_path / "eu", 10, "system") as (agent, patrol, scores):
        await agent.redis.expire(KEY, 600)
        await agent.redis.expire(meta_key("points", "all"), 600)
        await round_of(agent, patrol)
        assert (patrol.counts.differences, patrol.counts.keys) == (2, 1)
        assert await agent.redis.ttl(KEY) == await agent.redis.ttl(meta_key("points", "all")) == -1
        await agent.serving(scores)


@pytest.mark.parametrize("name", ["b", "order", "generation", "epoch_ms", "tenure", "as_of"])
async def test_a_changed_meta_is_found_and_written_anew(
    server: EmbeddedValkey, tmp_path: Path, name: str
) -> None:
    async with patrolled(server, tmp_path / "eu", 10) as (agent, patrol, scores):
        before = await agent.client.hashes([meta_key("points", "all")])
        await agent.redis.hset(meta_key("points", "all"), name, "17")
        await round_of(agent, patrol)
        assert await agent.client.hashes([meta_key("points", "all")]) == before
        assert (patrol.counts.differences, patrol.counts.keys) == (1, 1)
        await agent.serving(scores)


async def test_keys_of_computed_windows_are_looked_at_too(
    server: EmbeddedValkey, tmp_path: Path
) -> None:
    async with patrolled(server, tmp_path / "eu", 10) as (agent, patrol, _):
        agent.define("last", rule="sum", windows=(WindowSpec("last:7d"),), ties="member")
        agent.add("last", {"m": 1})
        meta = meta_key("last", "last:7d")

        async def computed() -> bool:
            place = agent.projector.places and agent.projector.places.find(("last", "last:7d"))
            return bool(place and not place.filling and not place.dirty and place.members == 1)

        await eventually(computed)
        await patrol.look_at("last", "last:7d")
        assert patrol.counts.differences == 0

        async def mended() -> bool:
            await agent.redis.hset(meta, "b", "17")
            await patrol.look_at("last", "last:7d")  # nothing, where it is just computed again
            return patrol.counts.keys == 1

        await eventually(mended)
        assert await agent.redis.hget(meta, "b") == b"0"


async def test_keys_that_belong_nowhere_are_removed_within_a_round(
    server: EmbeddedValkey, tmp_path: Path
) -> None:
    async with patrolled(server, tmp_path / "eu", 10) as (agent, patrol, scores):
        # The first search for leftovers has ended when what was there before it is gone.
        await eventually(lambda: _swept(agent))
        strange = [f"{KEY}:new:abc", board_key("nothere", "all"), f"{KEY}:oldmeta"]
        for key in strange:
            await agent.redis.zadd(key, {"x": 1})

        async def gone() -> bool:
            return not await agent.redis.exists(*strange)

        async with asyncio.TaskGroup() as group:
            going = group.create_task(patrol.run())
            await eventually(gone)
            going.cancel()
        assert agent.projector.status().counts.leftovers >= 3
        await agent.serving(scores)


async def _swept(agent: Rig) -> bool:
    follower = agent.projector._follower
    return follower is not None and follower.filler._swept


async def test_it_rests_while_redis_is_filled_or_another_agent_projects(
    server: EmbeddedValkey, tmp_path: Path
) -> None:
    async with patrolled(server, tmp_path / "eu", 10) as (agent, patrol, _):
        agent.projector._phase = Phase.WAITING
        assert await patrol.look_at("points", "all") is None
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
