"""Several agents of one region: one projects, the others wait, whatever their clocks say."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest

from agent.errors import Unavailable
from agent.operation import Mint
from agent.projection import filler, source
from agent.projection.embedded import EmbeddedValkey
from agent.projection.keys import board_key, meta_key
from agent.projection.lease import Patience
from agent.projection.status import Phase
from tests.integration.projection_rig import Rig, dying, eventually, rig, valkey

BOARD = board_key("points", "all")
META = meta_key("points", "all")


@pytest.fixture
async def server(rank_server: str, tmp_path: Path) -> AsyncIterator[EmbeddedValkey]:
    assert rank_server
    async with valkey(tmp_path / "redis") as made:
        yield made


class Reader:
    """Reads ranks all the time; what it meets is counted."""

    def __init__(self, agent: Rig) -> None:
        self._agent = agent
        self.served = 0
        self.refused: list[str] = []

    async def run(self) -> None:
        while True:
            try:
                view = await self._agent.ranks.page(self._agent.placed("points"), 0, 10)
            except Unavailable as error:
                self.refused.append(error.code)
            else:
                self.served += 1
                assert len(view.entries) == 10
            await asyncio.sleep(0)


async def test_another_agent_waits_and_takes_over_when_the_first_one_dies(
    server: EmbeddedValkey, tmp_path: Path
) -> None:
    lease_s = 1.0
    async with (
        rig(tmp_path / "a", server.url, lease_s=lease_s) as first,
        rig(tmp_path / "b", server.url, lease_s=lease_s, agent="eu-2") as second,
    ):
        scores = first.fill(200)
        second.pull(first)
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(first.projecting())
            await first.projected("points")
            async with second.projecting(), asyncio.TaskGroup() as group:
                await second.in_phase(Phase.WAITING)
                assert "'eu-1'" in second.projector.status().error
                reader = Reader(second)
                reading = group.create_task(reader.run())
                await first.moving(12)  # an idle agent gives signs of life: for longer than a lease
                assert (await second.watermark()).claim.agent == "eu-1"
                assert second.projector.status().phase == Phase.WAITING
                with dying():
                    await stack.aclose()
                died_s = time.monotonic()
                second.add("points", {"new": 4})
                await second.in_phase(Phase.FOLLOWING)
                assert time.monotonic() - died_s < lease_s + 1.0
                await second.serving(scores | {"new": 4})
                reading.cancel()
            assert reader.refused == []
            assert (await second.watermark()).claim.agent == "eu-2"


async def test_a_clean_stop_hands_over_at_once(server: EmbeddedValkey, tmp_path: Path) -> None:
    async with (
        rig(tmp_path / "a", server.url, lease_s=60.0) as first,
        rig(tmp_path / "b", server.url, lease_s=60.0, agent="eu-2") as second,
    ):
        first.fill(200)
        second.pull(first)
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(first.projecting())
            await first.projected("points")
            async with second.projecting():
                await second.in_phase(Phase.WAITING)
                stopped_s = time.monotonic()
                await stack.aclose()
                await second.in_phase(Phase.FOLLOWING)
                assert time.monotonic() - stopped_s < 5.0
        assert second.projector.status().counts.rebuilds == 0


async def test_a_waiting_agent_tells_when_its_write_is_ranked(
    server: EmbeddedValkey, tmp_path: Path
) -> None:
    slow: dict[str, Any] = {"lease_s": 60.0, "check_s": 15.0}
    async with (
        rig(tmp_path / "a", server.url, **slow) as first,
        rig(tmp_path / "b", server.url, agent="eu-2", **slow) as second,
    ):
        first.fill(10)
        second.pull(first)
        async with first.projecting(), AsyncExitStack() as stack:
            await first.in_phase(Phase.FOLLOWING)
            await stack.enter_async_context(second.projecting())
            await second.in_phase(Phase.WAITING)
            second.add("points", {"mine": 5})
            state = second.committer.state
            stamp = (state.inc, state.seq)
            assert not await second.projector.wait_for(
                "points", "all", 0.1, lsn=state.lsn, stamp=stamp
            )
            async with asyncio.TaskGroup() as group:
                waiting = group.create_task(
                    second.projector.wait_for("points", "all", 5, lsn=state.lsn, stamp=stamp)
                )
                await asyncio.sleep(0)
                first.pull(second)
            assert waiting.result()
            assert await second.redis.zscore(BOARD, "mine") == 5
            assert not await second.projector.wait_for("points", "all", 0.1, stamp=(state.inc, 99))


async def test_clocks_a_minute_apart_change_nothing(server: EmbeddedValkey, tmp_path: Path) -> None:
    async with (
        rig(tmp_path / "a", server.url, skew_ms=-60_000, lease_s=0.6) as behind,
        rig(tmp_path / "b", server.url, agent="eu-2", skew_ms=60_000, lease_s=0.6) as ahead,
    ):
        scores = behind.fill(50)
        ahead.pull(behind)
        for dies, goes_on in ((behind, ahead), (ahead, behind)):
            async with AsyncExitStack() as stack:
                await stack.enter_async_context(dies.projecting())
                await dies.holding()
                async with goes_on.projecting():
                    await goes_on.in_phase(Phase.WAITING)
                    for number in range(100):
                        one = (dies, goes_on)[number % 2]
                        one.add("points", {"both": 1})
                        (goes_on, dies)[number % 2].pull(one)
                        await dies.moving()
                    scores["both"] = scores.get("both", 0) + 100
                    await goes_on.serving(scores)
                    assert goes_on.projector.status().phase == Phase.WAITING
                    with dying():
                        await stack.aclose()
                    died_s = time.monotonic()
                    await goes_on.in_phase(Phase.FOLLOWING)
                    assert time.monotonic() - died_s < 3
                    await goes_on.serving(scores)
        for one in (behind, ahead):
            counts = one.projector.status().counts
            assert (counts.mismatches, counts.take_overs) == (0, 1)


async def test_two_that_both_believe_to_project_are_fenced(
    server: EmbeddedValkey, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = Random(7)
    lapsed = Patience.lapsed

    def guessing(one: Patience, found: dict[bytes, bytes], now_s: float) -> bool:
        return lapsed(one, found, now_s) or random.random() < 0.3

    async with (
        rig(tmp_path / "a", server.url, skew_ms=60_000) as first,
        rig(tmp_path / "b", server.url, agent="eu-2") as second,
    ):
        scores = first.fill(2_000)
        second.pull(first)
        async with first.projecting(), second.projecting():
            await first.serving(scores)

            def changes() -> int:
                return sum(one.projector.status().counts.batches for one in (first, second))

            async def further(least: int) -> bool:
                return changes() >= least

            with monkeypatch.context() as patch:
                patch.setattr(Patience, "lapsed", guessing)
                for number in range(150):
                    one, other = (first, second) if number % 2 else (second, first)
                    name = f"player-{random.randrange(2_000):06}"
                    one.add("points", {name: number})
                    other.pull(one)
                    scores[name] += number
                    await eventually(partial(further, changes() + 2))
            fights = [one.projector.status().counts.take_overs for one in (first, second)]
            assert min(fights) >= 2, fights
            await first.serving(scores)

            async def settled() -> bool:
                phases = {one.projector.status().phase for one in (first, second)}
                return phases == {Phase.FOLLOWING, Phase.WAITING}

            await eventually(settled)
            await second.serving(scores)
            assert int(await first.client.command("ZCARD", BOARD)) == len(scores)


async def test_a_long_read_does_not_lose_the_lease(
    server: EmbeddedValkey, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked, released = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()
    read_on = source.read_members

    def slowly(*args: Any, **options: Any) -> Any:
        loop.call_soon_threadsafe(blocked.set)
        assert released.wait(30)  # on a reader's thread: a slow disk
        return read_on(*args, **options)

    async with (
        rig(tmp_path / "a", server.url, lease_s=0.5) as first,
        rig(tmp_path / "b", server.url, lease_s=0.5, agent="eu-2") as second,
    ):
        scores = first.fill(20)
        async with first.projecting():
            await first.projected("points")
            async with second.projecting():
                await second.in_phase(Phase.WAITING)
                monkeypatch.setattr(filler, "read_members", slowly)
                first.define("points", rule="sum", ties="member")
                await blocked.wait()
                try:
                    await first.moving(12)  # for three leases
                finally:
                    released.set()
                await first.serving(scores)
                assert second.projector.status().phase == Phase.WAITING
        assert first.projector.status().counts.mismatches == 0


async def test_a_new_incarnation_goes_on_at_once(server: EmbeddedValkey, tmp_path: Path) -> None:
    async with rig(tmp_path / "eu", server.url) as agent:
        scores = agent.fill(100)
        async with agent.projecting():
            await agent.projected("points")
            agent.run(Mint(12_345, 67_890))
            agent.add("points", {"more": 2})
            await agent.projected("points")
            assert (await agent.watermark()).claim.log == 67_890
            await agent.serving(scores | {"more": 2})
        counts = agent.projector.status().counts
        assert (counts.rebuilds, counts.take_overs, counts.mismatches) == (1, 0, 0)


async def test_two_processes_of_one_name_do_not_fight(
    server: EmbeddedValkey, tmp_path: Path
) -> None:
    async with (
        rig(tmp_path / "a", server.url) as first,
        rig(tmp_path / "copy", server.url) as second,
    ):
        first.fill(20)
        second.pull(first)
        async with first.projecting():
            await first.projected("points")
            async with second.projecting():
                await second.in_phase(Phase.FOLLOWING)
                await first.in_phase(Phase.WAITING)
                assert "stop one of the two" in first.projector.status().error
                batches = second.projector.status().counts.batches

                async def further() -> bool:
                    return second.projector.status().counts.batches > batches + 5

                await eventually(further)
                assert first.projector.status().counts.take_overs == 0
                assert second.projector.status().counts.mismatches == 0
                assert (await first.redis.hget(META, "tenure")) is not None
