"""Windows in Redis: which there are, since when, until when, and exactly with whom."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random
from typing import cast

import pytest

from agent.boards.definition import ScoreRange
from agent.boards.entry import Entry
from agent.boards.marks import Due
from agent.boards.tally import Group
from agent.boards.windows import WindowSpec
from agent.crdt.slot import Kind
from agent.operation import SetMarks, Write, Written
from agent.projection.embedded import EmbeddedValkey
from agent.projection.filler import Filler
from agent.projection.keys import board_key, meta_key
from agent.projection.place import EXPIRY_MARGIN_MS, Filling
from agent.projection.status import BoardState
from tests.integration.projection_rig import NOW_MS, Rig, dying, eventually, rig, valkey

HOUR_MS, DAY_MS = 3_600_000, 86_400_000
DAYS = (WindowSpec("all"), WindowSpec("day", zone="Europe/Berlin"))


@pytest.fixture
async def server(rank_server: str, tmp_path: Path) -> AsyncIterator[EmbeddedValkey]:
    assert rank_server
    async with valkey(tmp_path / "redis") as made:
        yield made


@pytest.fixture
async def agent(server: EmbeddedValkey, tmp_path: Path) -> AsyncIterator[Rig]:
    async with rig(tmp_path / "eu", server.url) as made:
        yield made


async def keys(agent: Rig, board: str) -> set[str]:
    """The windows of a board whose metas stand in Redis."""
    found = await agent.client.command("KEYS", f"lb:{{s0}}:{board}:*:meta")
    start = len(board_key(board, ""))
    return {key.decode()[start : -len(":meta")] for key in found}


async def have(agent: Rig, board: str, windows: set[str]) -> None:
    async def check() -> bool:
        return await keys(agent, board) == windows

    await eventually(check)


class Model:
    """What each window holds, by plain dictionaries."""

    def __init__(self, agent: Rig) -> None:
        self._agent = agent
        self.windows: dict[tuple[str, str], dict[str, int]] = {}

    def write(self, board: str, entries: list[Entry]) -> None:
        group = Group(board, entries, range(len(entries)))
        (answer,) = self._agent.run(Write((group,)))
        assert isinstance(answer, Written)
        for entry, scores in zip(entries, answer.scores[0], strict=True):
            for window, score in scores.items():
                self.windows.setdefault((board, window), {})[entry.member] = score

    async def served(self) -> None:
        """Wait until every window is served as it should be."""
        for (board, window), scores in self.windows.items():
            await self._agent.serving(scores, board, window)


async def test_each_window_has_a_set_of_its_own(agent: Rig) -> None:
    agent.define("points", rule="sum", windows=DAYS)
    async with agent.projecting():
        await agent.projected("points", "day")
        today = agent.placed("points", "day").window.id
        assert (today, await keys(agent, "points")) == ("day:2025-10-09", {"all", today})
        assert await agent.page("points", "day") == []
        yesterday = [Entry("late", add=4, at=NOW_MS - DAY_MS)]
        agent.write("points", [Entry("a", add=1), Entry("b", add=2)])
        agent.write("points", yesterday)
        await agent.projected("points", "day")
        assert await agent.scores("points", "day") == {"a": 1, "b": 2}
        assert await agent.scores("points", "all") == {"a": 1, "b": 2, "late": 4}
        assert await agent.page("points", "day:2025-10-01") == []  # nothing was ever counted in it
        meta = await agent.redis.hgetall(meta_key("points", today))
        assert meta[b"window"] == today.encode()
        assert int(meta[b"end_ms"]) - int(meta[b"start_ms"]) == DAY_MS
        assert agent.projector.state_of("points", "day:2025-10-01") == BoardState.READY
        assert agent.projector.state_of("nothing", "all") == BoardState.REBUILDING


async def test_windows_open_and_close_by_the_boards_clock(agent: Rig) -> None:
    windows = (
        WindowSpec("hour", keep="2h"),
        WindowSpec("season:s1", start="2025-10-09T10:00:00Z", end="2025-10-09T12:00:00Z"),
    )
    agent.define("points", rule="sum", windows=windows)  # it is 08:53:21
    async with agent.projecting():
        await have(agent, "points", {"hour:2025-10-09T08"})
        agent.write("points", [Entry("a", add=1)])
        await agent.projected("points", "hour")
        assert await agent.page("points", "season:s1") == []
        agent.at_ms = NOW_MS + 7 * 60_000  # 09:00:2x: the last hour is within its grace
        await have(agent, "points", {"hour:2025-10-09T08", "hour:2025-10-09T09"})
        assert await agent.scores("points", "hour:2025-10-09T08") == {"a": 1}
        assert await agent.page("points", "hour") == []
        agent.at_ms += HOUR_MS  # 10:00: an hour without entries leaves once its grace is over
        await have(
            agent,
            "points",
            {"hour:2025-10-09T08", "hour:2025-10-09T09", "hour:2025-10-09T10", "season:s1"},
        )
        agent.at_ms += 11 * 60_000
        await have(agent, "points", {"hour:2025-10-09T08", "hour:2025-10-09T10", "season:s1"})
        agent.write("points", [Entry("a", add=2)])
        await agent.projected("points", "season:s1")
        assert await agent.scores("points", "season:s1") == {"a": 2}
        agent.at_ms += HOUR_MS  # 11:11: the first hour is kept no longer
        await have(agent, "points", {"hour:2025-10-09T10", "hour:2025-10-09T11", "season:s1"})
        assert await agent.redis.exists(board_key("points", "hour:2025-10-09T08")) == 0
        assert await agent.redis.ttl(board_key("points", "hour:2025-10-09T10")) == -1
        agent.retire("points")
        await have(agent, "points", set())
    assert agent.projector.status().counts.refills <= 2  # no window was scanned


async def test_every_window_equals_a_model_whatever_happens_to_redis(
    server: EmbeddedValkey, tmp_path: Path
) -> None:
    random = Random(11)
    windows = (
        WindowSpec("all"),
        WindowSpec("hour", zone="America/New_York", keep="8d"),
        WindowSpec("day", zone="Asia/Kolkata"),
        WindowSpec("week"),
        WindowSpec("month", zone="Europe/Berlin"),
    )
    names = [f"p{number}" for number in range(40)]
    async with rig(tmp_path / "eu", server.url) as agent:
        model = Model(agent)
        agent.define("points", rule="sum", windows=windows)
        agent.define("speed", rule="best", order="low", ties="last", windows=windows[1:])
        for step in range(12):
            async with agent.projecting():
                for _ in range(5):
                    agent.at_ms += random.choice((1_000, 60_000, HOUR_MS, 5 * HOUR_MS))
                    back_ms = random.choice((0, HOUR_MS, DAY_MS))
                    chosen = random.sample(names, 10)
                    at_ms = [agent.at_ms - random.randrange(back_ms + 1) for _ in chosen]
                    pairs = list(zip(chosen, at_ms, strict=True))
                    model.write(
                        "points", [Entry(n, add=random.randrange(9), at=t) for n, t in pairs]
                    )
                    best = [
                        Entry(n, score=random.randrange(99), at=t)
                        for n, t in pairs
                        if agent.at_ms - t < 600_000
                    ]
                    if best:
                        model.write("speed", best)
                if step % 3 == 1:
                    await agent.redis.flushall()
                if step % 3 == 2:
                    await model.served()  # else what comes later makes a part of a lost set anew
                    for key in random.sample(await agent.redis.keys("lb:*:hour*"), 2):
                        await agent.redis.delete(key)
                await model.served()
            if step % 4 == 3:  # what is missed while nobody projects
                agent.at_ms += 26 * HOUR_MS
                model.write("points", [Entry(name, add=1) for name in names])
        assert len(model.windows) > 30
        assert await agent.redis.keys("*:new:*") == []


async def test_no_key_is_left_without_its_end(server: EmbeddedValkey, tmp_path: Path) -> None:
    windows = (WindowSpec("day", keep="2d"), WindowSpec("all"), WindowSpec("last:2h"))
    async with rig(tmp_path / "eu", server.url, clock="system") as agent:
        agent.define("points", rule="sum", windows=windows)

        async def checked(board: str = "points") -> None:
            for key in cast("list[bytes]", await agent.redis.keys(f"lb:*{board}:*")):
                at_ms = int(await agent.client.command("PEXPIRETIME", key))
                # Beside the open day there may be the one before, whose grace is not over.
                day = re.search(rb":(day:[0-9-]+)", key)
                expires_ms = (
                    None if day is None else agent.placed(board, day[1].decode()).expires_ms
                )
                wanted = -1 if expires_ms is None else expires_ms + EXPIRY_MARGIN_MS
                assert at_ms in (wanted, -2), key  # -2: gone since it was listed

        async with agent.projecting():
            await agent.projected("points", "day")
            await checked()
            agent.add("points", {f"p{number}": number for number in range(300)})
            await agent.projected("points", "day")
            await checked()
            assert agent.projector.repair("points")
            await agent.serving({f"p{number}": number for number in range(300)}, window="day")
            await checked()
            await agent.redis.flushall()
            await agent.serving({f"p{number}": number for number in range(300)}, window="day")
            await checked()
            longer = (WindowSpec("day", keep="3d"), *windows[1:])
            agent.define("points", rule="sum", windows=longer)
            await agent.projected("points", "day")
            await checked()
    async with rig(tmp_path / "eu", server.url) as agent:  # now with a clock of its own
        agent.at_ms = Rig.now_ms(agent)
        async with agent.projecting():
            await agent.projected("points", "all")

            async def persistent() -> bool:
                found = await agent.redis.keys("lb:*:day:*")
                return all([await agent.redis.ttl(key) == -1 for key in found])

            await eventually(persistent)


async def test_a_filling_key_has_its_end_too(
    server: EmbeddedValkey, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    swap = Filler._swap
    ends: list[int] = []
    async with rig(tmp_path / "eu", server.url, clock="system") as made:

        async def watched(one: Filler, fillings: list[Filling]) -> None:
            for key in [filling.key for filling in fillings if filling.id[0] == "points"]:
                ends.append(int(await made.client.command("PEXPIRETIME", key)))  # noqa: PERF401
            await swap(one, fillings)

        monkeypatch.setattr(Filler, "_swap", watched)
        made.define("points", rule="sum", windows=(WindowSpec("day"),))
        made.add("points", {f"p{number}": number for number in range(300)})
        expires_ms = made.placed("points").expires_ms
        assert expires_ms is not None
        async with made.projecting():
            await made.projected("points", "day")
    assert set(ends) == {expires_ms + EXPIRY_MARGIN_MS}


async def test_a_collected_window_leaves(agent: Rig) -> None:
    agent.define("points", rule="sum", windows=(WindowSpec("day"), WindowSpec("all")))
    agent.write("points", [Entry("a", add=1)])
    agent.at_ms += 2 * DAY_MS
    async with agent.projecting():
        await agent.serving({"a": 1}, window="day:2025-10-09")
        placed = agent.placed("points", "day:2025-10-09")
        agent.run(SetMarks((Due(Kind.COLLECTED, placed.counted.marks, placed.window),)))
        await have(agent, "points", {"all", "day:2025-10-11"})
        assert await agent.redis.exists(board_key("points", placed.window.id)) == 0
    await agent.redis.flushall()
    async with agent.projecting():  # its cells are still there: it is not filled again
        await agent.serving({"a": 1}, window="all")
        assert await keys(agent, "points") == {"all", "day:2025-10-11"}


async def test_windows_that_are_added_changed_and_taken_away(agent: Rig) -> None:
    agent.define("points", rule="sum", windows=(WindowSpec("day"), WindowSpec("all")))
    agent.write("points", [Entry("a", add=1, at=NOW_MS)])
    async with agent.projecting():
        await agent.serving({"a": 1}, window="day")
        agent.define("points", rule="sum", windows=(*DAYS[:1], WindowSpec("hour")))
        agent.write("points", [Entry("b", add=2)])
        await agent.serving({"a": 1, "b": 2}, window="all")
        assert "day:2025-10-09" not in await keys(agent, "points")
        assert await agent.redis.exists(board_key("points", "day:2025-10-09")) == 0
        agent.at_ms += HOUR_MS
        agent.write("points", [Entry("b", add=2)])
        await agent.serving({"b": 2}, window="hour")
        wide = ScoreRange(-(2**40), 2**40)  # another scale: everything is filled anew
        agent.define(
            "points", rule="sum", score=wide, ties="shared", windows=(*DAYS[:1], WindowSpec("hour"))
        )
        await agent.serving({"b": 2}, window="hour")
        await agent.serving({"a": 1, "b": 4}, window="all")
        agent.reset("points")
        await agent.projected("points", "all")
        await have(agent, "points", {"all", "hour:2025-10-09T09"})
        assert await agent.page("points", "all") == []


async def test_windows_that_began_while_nobody_projected(
    server: EmbeddedValkey, tmp_path: Path
) -> None:
    async with rig(tmp_path / "eu", server.url) as agent:
        agent.define("points", rule="sum", windows=(WindowSpec("day"),))
        agent.write("points", [Entry("a", add=1)])
        with dying():
            async with agent.projecting():
                await agent.projected("points", "day")
        agent.at_ms += DAY_MS
        agent.write("points", [Entry("a", add=5)])
        async with agent.projecting():
            await agent.serving({"a": 5}, window="day")
            assert await agent.scores("points", "day:2025-10-09") == {"a": 1}
        counts = agent.projector.status().counts
        assert counts.rebuilds == 1
