"""Redis that loses keys, loses its newest writes, or refuses: found out, told, and healed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from redis.exceptions import BusyLoadingError, ResponseError

from agent.errors import Unavailable
from agent.projection.connection import RankClient
from agent.projection.embedded import EmbeddedValkey
from agent.projection.keys import WATERMARK_KEY, board_key, meta_key, sentinel_key
from agent.projection.sentinel import read_sentinel, write_sentinel
from agent.projection.status import Phase
from agent.projection.trouble import explain
from cluster.proxy import Proxy
from tests.integration.projection_rig import Rig, eventually, rig, valkey

BOARD = board_key("points", "all")
META = meta_key("points", "all")


@pytest.fixture
async def server(rank_server: str, tmp_path: Path) -> AsyncIterator[EmbeddedValkey]:
    assert rank_server
    async with valkey(tmp_path / "redis") as made:
        yield made


@pytest.fixture
async def agent(server: EmbeddedValkey, tmp_path: Path) -> AsyncIterator[Rig]:
    async with rig(tmp_path / "eu", server.url) as made:
        yield made


async def down_with(agent: Rig, hint: str) -> None:
    async def check() -> bool:
        status = agent.projector.status()
        return status.phase == Phase.DOWN and hint in status.error

    await eventually(check)


@pytest.mark.parametrize("lost", [[BOARD], [META], [BOARD, META]])
async def test_a_board_that_redis_lost_is_filled_anew(agent: Rig, lost: list[str]) -> None:
    scores = agent.fill(100)
    agent.define("empty", rule="sum")
    async with agent.projecting():
        await agent.projected("points")
        assert await agent.redis.delete(*lost) == len(lost)
        await agent.serving(scores)
        counts = agent.projector.status().counts
        assert (counts.lost, counts.rebuilds) == (1, 1)
        batches = counts.batches

        async def further() -> bool:
            return agent.projector.status().counts.batches > batches + 5

        await eventually(further)
        assert agent.projector.status().counts.lost == 1  # an empty board has no set: not lost


async def test_one_of_many_boards_is_found_too(agent: Rig) -> None:
    for number in range(80):
        agent.define(f"b{number}", rule="sum")
        agent.add(f"b{number}", {"a": number + 1})
    async with agent.projecting():
        await agent.projected("b79")
        for name in ("b0", "b40", "b79"):
            await agent.redis.delete(board_key(name, "all"))

        async def whole() -> bool:
            return all([await agent.serves(f"b{n}", {"a": n + 1}) for n in (0, 40, 79)])

        await eventually(whole)
        assert agent.projector.status().counts.lost == 3


async def test_a_running_agent_keeps_its_sentinel(agent: Rig, tmp_path: Path) -> None:
    key = sentinel_key("eu-1")
    assert key == "tr:{s0}:agent:eu-1"
    assert await read_sentinel(agent.client, "eu-1") is None
    await write_sentinel(agent.client, "eu-1", 0xABC, 12)
    assert await agent.redis.get(key) == b"abc:12"
    assert await read_sentinel(agent.client, "eu-1") == (0xABC, 12)
    agent.fill(10)
    mine = (agent.committer.state.log, 1)
    async with agent.projecting():
        await agent.projected("points")
        batches = agent.projector.status().counts.batches

        async def further() -> bool:
            return agent.projector.status().counts.batches > batches + 5

        await eventually(further)
        assert await read_sentinel(agent.client, "eu-1") == (0xABC, 12)  # not overwritten
        await agent.redis.flushall()

        async def written() -> bool:
            return await read_sentinel(agent.client, "eu-1") == mine

        await eventually(written)
        url = agent.config.redis.url
        async with rig(tmp_path / "eu-2", url, agent="eu-2") as waiting, waiting.projecting():

            async def too() -> bool:
                found = await read_sentinel(agent.client, "eu-2")
                return found == (waiting.committer.state.log, 1)

            await eventually(too)
        async with rig(tmp_path / "us", url, region="us", agent="us-1") as other:
            async with other.projecting():

                async def refused() -> bool:
                    return other.projector.status().phase == Phase.REFUSED

                await eventually(refused)
            assert await read_sentinel(agent.client, "us-1") is None
    for broken in ("", "abc", "xyz:1", "abc:y"):
        await agent.redis.set(key, broken)
        assert await read_sentinel(agent.client, "eu-1") is None


async def test_a_full_redis_says_what_to_do_and_heals(agent: Rig) -> None:
    scores = agent.fill(50)
    async with agent.projecting():
        await agent.projected("points")
        before = await agent.redis.hgetall(WATERMARK_KEY)
        await agent.redis.config_set("maxmemory", "1")
        agent.add("points", {"more": 1})
        await down_with(agent, "maxmemory: raise it")
        assert not await agent.projector.wait_for(
            "points", "all", 0.05, lsn=agent.committer.state.lsn
        )
        found = await agent.redis.hgetall(WATERMARK_KEY)
        assert found[b"lsn"] == before[b"lsn"]
        assert await agent.redis.zscore(BOARD, "more") is None
        await agent.redis.config_set("maxmemory", "0")
        await agent.serving(scores | {"more": 1})
    assert agent.projector.status().counts.rebuilds == 1


async def test_a_replica_says_what_to_do_and_heals(agent: Rig) -> None:
    scores = agent.fill(50)
    async with agent.projecting():
        await agent.projected("points")
        await agent.client.command("REPLICAOF", "127.0.0.1", "1")
        agent.add("points", {"more": 1})
        await down_with(agent, "promote it")
        assert "more" not in await agent.scores("points")
        await agent.client.command("REPLICAOF", "NO", "ONE")
        await agent.serving(scores | {"more": 1})
    assert agent.projector.status().counts.rebuilds == 1


async def test_a_wrong_password_says_what_to_do_and_heals(
    agent: Rig, server: EmbeddedValkey
) -> None:
    scores = agent.fill(50)
    async with agent.projecting():
        await agent.projected("points")
        await agent.redis.config_set("requirepass", "secret")
        admin = RankClient(server.url.replace("//", "//:secret@"), 5.0, 1)
        await admin.command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        agent.add("points", {"more": 1})
        await down_with(agent, "password in redis.url")
        with pytest.raises(Unavailable) as refused:
            await agent.page("points")
        assert refused.value.code == "rank_store_down"
        await admin.command("CONFIG", "SET", "requirepass", "")
        await agent.serving(scores | {"more": 1})
        await admin.close()


class LostByPeer(ConnectionError):
    """An error that says nothing."""


def test_every_refusal_has_a_hint() -> None:
    assert "nothing to do" in explain(BusyLoadingError("Redis is loading the dataset in memory"))
    assert "min-replicas" in explain(ResponseError("NOREPLICAS Not enough good replicas to write."))
    assert "save to its disk" in explain(ResponseError("MISCONF Redis is configured to save RDB"))
    assert "Cluster" in explain(ResponseError("CROSSSLOT Keys in request don't hash"))
    assert "its version" in explain(ResponseError("unknown command 'EVALSHA'"))
    assert "can be reached" in explain(ConnectionRefusedError("refused"))
    assert explain(TimeoutError()).startswith("TimeoutError: no answer in time (see whether")
    assert explain(LostByPeer()).startswith("LostByPeer (see whether")


async def test_a_failover_to_a_replica_that_lost_the_tail(
    server: EmbeddedValkey, tmp_path: Path
) -> None:
    async with valkey(tmp_path / "replica") as replica:
        address = ("127.0.0.1", server.port)
        primary = RankClient(server.url, 5.0, 1)
        second = RankClient(replica.url, 5.0, 1)
        async with Proxy(address) as proxy:
            url = f"redis://127.0.0.1:{proxy.address[1]}/0"
            async with rig(tmp_path / "eu", url) as agent:
                scores = agent.fill(2_000)
                async with agent.projecting():
                    await agent.projected("points")
                    await primary.command("CONFIG", "SET", "repl-diskless-sync-delay", 0)
                    await second.command("REPLICAOF", *address)

                    async def in_sync() -> bool:
                        there = await second.command("HGET", WATERMARK_KEY, "lsn")
                        return bool(there == str(agent.committer.state.lsn).encode())

                    await eventually(in_sync)
                    agent.add("points", {"kept": 1})
                    await eventually(in_sync)
                    # The link breaks: what comes now, the replica never gets.
                    await second.command("REPLICAOF", "127.0.0.1", "1")
                    lost = {f"player-{number:06}": 3 for number in range(0, 2_000, 7)}
                    agent.add("points", lost)
                    agent.define("lost", rule="sum")
                    agent.add("lost", {"a": 1})
                    await agent.projected("lost")
                    state = agent.committer.state
                    behind = int(await second.command("HGET", WATERMARK_KEY, "lsn"))
                    assert behind < state.lsn
                    assert await second.existing([meta_key("lost", "all")]) == [False]
                    # The address leads to the replica before it is promoted, and then it is.
                    proxy.upstream = ("127.0.0.1", replica.port)
                    proxy.cut()
                    proxy.heal()
                    await down_with(agent, "promote it")
                    assert not await agent.projector.wait_for("points", "all", 0.05, lsn=state.lsn)
                    view = await agent.ranks.page(agent.placed("points"), 0, 1)
                    assert view.lsn == behind  # served, as old as it says
                    await second.command("REPLICAOF", "NO", "ONE")
                    for name, amount in lost.items():
                        scores[name] += amount
                    await agent.serving(scores | {"kept": 1})
                    await agent.projected("lost")
                    assert await agent.scores("lost") == {"a": 1}
                counts = agent.projector.status().counts
                assert (counts.rebuilds, counts.take_overs) == (1, 0)
        await primary.close()
        await second.close()


async def test_a_flush_in_the_middle_of_a_take_over_heals(
    server: EmbeddedValkey, tmp_path: Path
) -> None:
    async with rig(tmp_path / "eu", server.url) as agent:
        scores = agent.fill(3_000)
        async with agent.projecting():
            await agent.projected("points")
    async with rig(tmp_path / "eu", server.url, new_log=True) as agent:
        async with agent.projecting():

            async def begun() -> bool:
                return agent.projector.status().counts.take_overs == 1

            await eventually(begun)
            await agent.redis.flushall()
            agent.add("points", {"player-000001": 1})
            scores["player-000001"] += 1
            await agent.serving(scores)
            await asyncio.sleep(0)
        assert agent.projector.status().counts.rebuilds == 1
