"""Whatever happens to Redis heals by itself, and nobody is served half a board meanwhile."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest

from agent.errors import Unavailable
from agent.projection.embedded import EmbeddedValkey
from agent.projection.keys import PROGRESS_KEY, WATERMARK_KEY, board_key
from agent.projection.status import Phase
from tests.integration.projection_rig import Rig, eventually, rig, valkey

MEMBERS = 3_000


@pytest.fixture
async def server(rank_server: str, tmp_path: Path) -> AsyncIterator[EmbeddedValkey]:
    assert rank_server
    async with valkey(tmp_path / "redis") as made:
        yield made


@pytest.fixture
async def agent(server: EmbeddedValkey, tmp_path: Path) -> AsyncIterator[Rig]:
    async with rig(tmp_path / "eu", server.url) as made:
        yield made


def fill(agent: Rig, members: int = MEMBERS) -> dict[str, int]:
    scores = {f"player-{number:06}": number * 7 % 1000 for number in range(members)}
    agent.define("points", rule="sum", ties="shared")
    agent.add("points", scores)
    return scores


class Reader:
    """Reads a board all the time, and holds every answer against what was ever true."""

    def __init__(self, agent: Rig, board: str, total: int) -> None:
        self._agent, self._board, self._total = agent, board, total
        self.served = self.refused = 0
        self.codes: set[str] = set()

    async def run(self) -> None:
        while True:
            try:
                view = await self._agent.ranks.page(self._agent.placed(self._board), 0, 100)
            except Unavailable as error:
                self.refused += 1
                self.codes.add(error.code)
            else:
                self.served += 1
                assert view.total == self._total
                assert len(view.entries) == 100
                scores = [entry.score for entry in view.entries]
                assert scores == sorted(scores, reverse=True)
                assert scores[0] >= 993
            await asyncio.sleep(0)

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[None]:
        with suppress(asyncio.CancelledError):
            async with asyncio.TaskGroup() as group:
                task = group.create_task(self.run())
                try:
                    yield
                finally:
                    task.cancel()


def serves(agent: Rig, board: str, scores: dict[str, int]) -> Callable[[], Awaitable[bool]]:
    return lambda: agent.serves(board, scores)


def phase_is(agent: Rig, phase: Phase) -> Callable[[], Awaitable[bool]]:
    async def check() -> bool:
        return agent.projector.status().phase == phase

    return check


async def test_flush_at_any_time_heals_and_no_half_board_is_served(agent: Rig) -> None:
    scores = fill(agent)
    agent.add("counters", {"visits": 3})
    reader = Reader(agent, "points", MEMBERS)
    async with agent.projecting():
        await agent.projected("points")
        async with reader.reading():
            for flushes in range(1, 9):
                batches = agent.projector.status().counts.batches + 3 * flushes

                async def so_far(batches: int = batches) -> bool:
                    return agent.projector.status().counts.batches >= batches

                await eventually(so_far)  # at another point of the rebuild each time
                await agent.redis.flushall()
                agent.add("points", {"player-000001": 1})
                scores["player-000001"] += 1
            await eventually(serves(agent, "points", scores))
            await eventually(serves(agent, "counters", {"visits": 3}))
    assert reader.served
    assert reader.refused
    assert reader.codes == {"rebuilding"}
    assert agent.projector.status().counts.rebuilds >= 2
    assert await agent.redis.get("ct:{s0}:visits") == b"3"
    assert await agent.redis.keys("*new*") == []


async def test_restart_with_empty_memory_heals(
    server: EmbeddedValkey, agent: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    scores = fill(agent)
    reader = Reader(agent, "points", MEMBERS)
    launch = server._launch

    async def seen_down() -> bool:
        down = agent.projector.status().phase == Phase.DOWN
        return down and "rank_store_down" in reader.codes

    async def launch_late(binary: str) -> bool:
        await eventually(seen_down)  # else it may be back before anybody asked
        return await launch(binary)

    monkeypatch.setattr(server, "_launch", launch_late)
    async with agent.projecting():
        await agent.projected("points")
        async with reader.reading():
            assert server.pid is not None
            os.kill(server.pid, signal.SIGKILL)
            agent.add("points", {"player-000002": 5})
            scores["player-000002"] += 5
            await eventually(serves(agent, "points", scores))
    assert server.restarts == 1
    assert "rank_store_down" in reader.codes
    assert agent.projector.status().counts.failures


async def test_redis_that_is_down_at_the_start_is_waited_for(tmp_path: Path) -> None:
    server = EmbeddedValkey(tmp_path / "redis", 0)
    await server.start()
    await server.stop()
    async with rig(tmp_path / "eu", server.url) as agent:
        scores = fill(agent, 200)
        async with agent.projecting():
            await eventually(phase_is(agent, Phase.DOWN))
            assert agent.projector.status().error
            with pytest.raises(Unavailable) as refused:
                await agent.page("points")
            assert refused.value.code == "rank_store_down"
            again = EmbeddedValkey(tmp_path / "redis", server.port)
            await again.start()
            try:
                await eventually(serves(agent, "points", scores))
            finally:
                await again.stop()


async def test_a_failover_that_lost_the_newest_writes_heals(agent: Rig) -> None:
    scores = fill(agent, 300)
    async with agent.projecting():
        await agent.projected("points")
    dumps = {key: await agent.client.command("DUMP", key) for key in await agent.redis.keys("*")}
    async with agent.projecting():
        agent.add("points", {"player-000003": 10, "late": 1})
        agent.define("newer", rule="sum")
        agent.add("newer", {"x": 1})
        await agent.projected("newer")
        ahead = await agent.watermark()
        # What a replica had when it was promoted: a prefix of all changes, watermark included.
        async with agent.redis.pipeline(transaction=True) as pipeline:
            pipeline.flushall()
            for key, dump in dumps.items():
                pipeline.restore(key, 0, dump)
            await pipeline.execute()
        scores |= {"player-000003": scores["player-000003"] + 10, "late": 1}
        await eventually(serves(agent, "points", scores))
        await eventually(serves(agent, "newer", {"x": 1}))
    status = agent.projector.status()
    assert status.counts.rebuilds == 1  # the first filling; the failover needs none
    assert status.counts.mismatches >= 1
    assert (await agent.watermark()).lsn == ahead.lsn


@pytest.mark.parametrize("names", [{"ring": "prod"}, {"region": "us"}])
async def test_a_foreign_redis_is_never_touched(
    server: EmbeddedValkey, agent: Rig, tmp_path: Path, names: dict[str, Any]
) -> None:
    scores = fill(agent, 100)
    async with agent.projecting():
        await agent.projected("points")
    async with rig(tmp_path / "other", server.url, **names) as other:
        fill(other, 10)
        before = await agent.redis.hgetall(WATERMARK_KEY)
        async with other.projecting():
            await eventually(phase_is(other, Phase.REFUSED))
            error = other.projector.status().error
            assert repr(next(iter(names.values()))) in error
            assert "'demo'" in error
            assert "'eu'" in error
            with pytest.raises(Unavailable, match="ring"):
                await other.page("points")
            assert await agent.redis.hgetall(WATERMARK_KEY) == before
            assert await agent.serves("points", scores)
            # Once it is free it is taken.
            await agent.redis.flushall()
            await eventually(phase_is(other, Phase.FOLLOWING))
            await other.projected("points")


async def test_leftover_keys_are_removed(agent: Rig) -> None:
    fill(agent, 100)
    leftovers = ["lb:{s0}:gone:all", "lb:{s0}:gone:all:meta", "lb:{s0}:points:all:new:1f"]
    for key in leftovers:
        await agent.redis.set(key, "x")
    await agent.redis.set("ct:{s0}:gone", "5")
    await agent.redis.set("somebody:else", "1")
    async with agent.projecting():
        await agent.projected("points")

        async def clean() -> bool:
            return not await agent.redis.exists(*leftovers)

        await eventually(clean)
        assert await agent.redis.get("ct:{s0}:gone") is None
        assert await agent.redis.get("somebody:else") == b"1"
    leftovers.append(PROGRESS_KEY)
    for key in leftovers:
        await agent.redis.hset(key, "batch", "1")
    async with agent.projecting():
        await eventually(clean)
    assert await agent.redis.exists(board_key("points", "all"))


async def test_a_big_rebuild_while_writes_arrive_equals_sqlite(agent: Rig) -> None:
    scores = fill(agent, 20_000)
    agent.define("small", rule="best")
    async with agent.projecting():
        await eventually(phase_is(agent, Phase.REBUILDING))
        step = 0
        while agent.projector.status().phase == Phase.REBUILDING:
            step += 1
            name = f"player-{step * 7919 % 21_000:06}"  # known ones and new ones
            agent.add("points", {name: step, "counted": 1})
            scores[name] = scores.get(name, 0) + step
            scores["counted"] = scores.get("counted", 0) + 1
            await asyncio.sleep(0)
        assert step > 3
        agent.define("points", rule="sum", ties="member")
        for number in range(40):
            agent.add("points", {f"player-{number:06}": 1, f"more-{number}": 2})
            scores[f"player-{number:06}"] += 1
            scores[f"more-{number}"] = 2
            await asyncio.sleep(0)
        await agent.projected("points")
        assert await agent.scores("points") == scores
        status = agent.projector.status()
        assert status.boards_rebuilding == ()
        assert status.counts.rebuilds == 1


async def test_an_embedded_server_left_behind_is_ended(tmp_path: Path) -> None:
    first = EmbeddedValkey(tmp_path, 0)
    await first.start()
    second = EmbeddedValkey(tmp_path, first.port)
    await second.start()  # the same fixed port: it must be free again
    try:
        assert second.port == first.port
        assert second.pid != first.pid
        assert (tmp_path / "valkey.port").read_text() == f"{second.port}\n"
    finally:
        await second.stop()
        await first.stop()


async def test_an_embedded_server_ends_with_its_agent(tmp_path: Path) -> None:
    if sys.platform != "linux":
        pytest.skip("the kernel ends it on Linux only")
    program = (
        "import asyncio, sys; from pathlib import Path\n"
        "from agent.projection.embedded import EmbeddedValkey\n"
        "async def main():\n"
        "    server = EmbeddedValkey(Path(sys.argv[1]), 0)\n"
        "    await server.start()\n"
        "    print(server.port, flush=True)\n"
        "    await server.run()\n"
        "asyncio.run(main())\n"
    )
    agent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, str(tmp_path), stdout=asyncio.subprocess.PIPE
    )
    assert agent.stdout is not None
    port = int(await agent.stdout.readline())
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.close()
    agent.kill()
    await agent.wait()

    async def ended() -> bool:
        try:
            _, again = await asyncio.open_connection("127.0.0.1", port)
        except ConnectionError:  # refused, or reset while it ends
            return True
        again.close()
        return False

    await eventually(ended)


async def test_a_projector_always_ends_when_it_is_cancelled(agent: Rig) -> None:
    random = Random(5)
    for _ in range(60):
        async with asyncio.timeout(10), agent.projecting():
            for _ in range(random.randrange(60)):
                await asyncio.sleep(0)
            if random.random() < 0.3:
                await agent.redis.flushall()
