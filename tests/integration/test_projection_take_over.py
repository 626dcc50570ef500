"""One projects, the others wait; whoever takes over goes on without a gap, and claims no more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agent.errors import Unavailable
from agent.projection.embedded import EmbeddedValkey
from agent.projection.filler import Filler
from agent.projection.keys import WATERMARK_KEY, board_key, meta_key
from agent.projection.status import Phase
from tests.integration.projection_rig import Rig, dying, eventually, rig, valkey

BOARD = board_key("points", "all")
META = meta_key("points", "all")


@pytest.fixture
async def server(rank_server: str, tmp_path: Path) -> AsyncIterator[EmbeddedValkey]:
    assert rank_server
    async with valkey(tmp_path / "redis") as made:
        yield made


class Gate:
    """Holds all fillings up until it is opened: a take-over that takes its time."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.open = False
        self.held = 0
        fill_on = Filler.fill

        async def gated(one: Filler) -> bool:
            if self.open:
                return await fill_on(one)
            self.held += bool(one.places.turns.fillings())
            return False

        patch.setattr(Filler, "fill", gated)


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


@pytest.mark.parametrize("before", ["another log", "a shorter log"])
async def test_what_was_projected_is_served_until_it_is_filled_anew(
    server: EmbeddedValkey, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str
) -> None:
    async with rig(tmp_path / "eu", server.url) as agent:
        scores = agent.fill(500)
        async with agent.projecting():
            await agent.projected("points")
        missed = agent.committer.state.lsn + 1
        agent.add("points", {"missed": 5})  # below the head of the log that takes over
    shorter = before == "a shorter log"
    async with rig(tmp_path / "eu", server.url, new_log=not shorter) as agent:
        if shorter:
            await agent.redis.hset(WATERMARK_KEY, "lsn", "1000000")
        await agent.redis.zadd(BOARD, {"nobody": 1})
        found = await agent.watermark()
        gate = Gate(monkeypatch)
        reader = Reader(agent)
        async with agent.projecting(), asyncio.TaskGroup() as group:
            reading = group.create_task(reader.run())
            await eventually(lambda: _true(gate.held > 0))
            taken = await agent.watermark()
            state = agent.committer.state
            assert taken.claim.log == state.log
            assert taken.lsn == state.lsn >= missed
            assert taken.vv == found.vv
            assert taken.as_of == found.as_of
            # The board is served, but its rows below the lsn may not be there yet.
            status = agent.projector.status()
            assert status.phase == Phase.FOLLOWING
            assert "points" in status.boards_rebuilding
            assert not await agent.projector.wait_for("points", "all", 0.05, lsn=missed)
            assert not await agent.projector.wait_for(
                "points", "all", 0.05, stamp=(state.inc, state.seq)
            )
            # What comes now goes to both keys, and can be waited for.
            agent.add("points", {"player-000001": 2, "later": 9})
            await agent.projected("points")
            assert await agent.redis.zscore(BOARD, "later") == 9
            assert (await agent.watermark()).vv == found.vv
            gate.open = True
            scores |= {"missed": 5, "later": 9, "player-000001": scores["player-000001"] + 2}
            await agent.serving(scores)
            assert await agent.projector.wait_for("points", "all", 10, lsn=missed)

            async def claimed() -> bool:
                return (await agent.watermark()).vv == agent.committer.state.vv

            await eventually(claimed)
            reading.cancel()
        counts = agent.projector.status().counts
        assert (counts.rebuilds, counts.take_overs) == (0, 1)
        assert reader.served > 10
        assert reader.refused == []
        assert await agent.redis.keys("*new*") == []


async def _true(value: bool) -> bool:
    return value


async def test_a_crash_in_a_take_over_is_gone_on_from(
    server: EmbeddedValkey, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with rig(tmp_path / "eu", server.url) as agent:
        scores = agent.fill(300)
        async with agent.projecting():
            await agent.projected("points")
        agent.add("points", {"missed": 5})
        scores["missed"] = 5
    async with rig(tmp_path / "eu", server.url, new_log=True) as agent:
        await agent.redis.zadd(BOARD, {"nobody": 1})
        found = await agent.watermark()
        with monkeypatch.context() as patch, dying():
            gate = Gate(patch)
            async with agent.projecting():
                await eventually(lambda: _true(gate.held > 0))
        log = (await agent.watermark()).claim.log
    async with rig(tmp_path / "eu", server.url) as agent:  # killed, and started with the same log
        assert log == agent.committer.state.log
        with monkeypatch.context() as patch:
            gate = Gate(patch)
            async with agent.projecting():
                await eventually(lambda: _true(gate.held > 0))
                assert (await agent.watermark()).vv == found.vv
                assert not await agent.projector.wait_for("points", "all", 0.05, lsn=3)
        assert await agent.redis.zscore(BOARD, "nobody") == 1
        async with agent.projecting():
            await agent.serving(scores)
        counts = agent.projector.status().counts
        assert (counts.rebuilds, counts.take_overs) == (0, 0)


async def test_boards_are_claimed_only_as_far_as_both_agents_had_them(
    server: EmbeddedValkey, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        rig(tmp_path / "a", server.url) as first,
        rig(tmp_path / "b", server.url, agent="eu-2") as second,
    ):
        scores = first.fill(100)
        second.pull(first)
        first.define("unknown", rule="sum")
        first.add("points", {"late": 3})  # the second one has not heard of it
        async with first.projecting():
            await first.projected("unknown")
        inc, seq = first.committer.state.inc, first.committer.state.seq
        gate = Gate(monkeypatch)
        async with second.projecting():
            await eventually(lambda: _true(gate.held > 0))
            claimed = (await second.watermark()).vv
            assert claimed.get(inc, 0) == second.committer.state.vv[inc] < seq
            gate.open = True
            await second.serving(scores)

            async def clean() -> bool:
                return await second.redis.keys("*unknown*") == []

            await eventually(clean)
            second.pull(first)
            await second.serving(scores | {"late": 3})
