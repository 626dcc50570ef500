"""Banned and erased members are in no set: whatever comes first, and whatever Redis forgets."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from agent.boards.entry import Entry
from agent.boards.windows import WindowSpec
from agent.operation import ForgetNames, Retract
from agent.projection import filler
from agent.projection.audit import Held, compare_window
from agent.projection.embedded import EmbeddedValkey
from agent.projection.filler import Filler
from agent.projection.keys import board_key
from tests.integration.projection_rig import NOW_MS, Rig, dying, eventually, rig, valkey

DAY_MS = 86_400_000
WINDOWS = (WindowSpec("all"), WindowSpec("day"), WindowSpec("week"))


@pytest.fixture
async def server(rank_server: str, tmp_path: Path) -> AsyncIterator[EmbeddedValkey]:
    assert rank_server
    async with valkey(tmp_path / "redis") as made:
        yield made


@pytest.fixture
async def agent(server: EmbeddedValkey, tmp_path: Path) -> AsyncIterator[Rig]:
    async with rig(tmp_path / "eu", server.url) as made:
        yield made


async def nowhere(agent: Rig, name: str) -> None:
    """Wait until a member is in no set and has no string."""

    async def check() -> bool:
        for key in await agent.redis.keys("*"):
            ranked = await agent.redis.type(key) == b"zset"
            if ranked and await agent.redis.zscore(key, name) is not None:
                return False
        return not await agent.redis.exists(f"ct:{{s0}}:{name}")

    await eventually(check)


async def test_a_ban_takes_a_member_out_of_all_windows_and_a_lift_brings_it_back(
    agent: Rig,
) -> None:
    agent.define("points", rule="sum", windows=WINDOWS)
    agent.define("speed", rule="best", windows=WINDOWS[1:])
    async with agent.projecting():
        agent.add("points", {"a": 1, "cheat": 2})
        agent.write("speed", [Entry("a", score=5), Entry("cheat", score=9)])
        await agent.projected("speed", "week")
        agent.ban("cheat", "points")
        agent.add("points", {"cheat": 100})
        await agent.projected("points")
        agent.add("points", {"cheat": 1})  # and when the ban is known already
        await agent.projected("points")
        for name in ("all", "day", "week"):
            assert await agent.scores("points", name) == {"a": 1}
        assert await agent.scores("speed", "day") == {"a": 5, "cheat": 9}
        agent.ban("cheat")
        await agent.projected("speed", "week")
        assert await agent.scores("speed", "week") == {"a": 5}
        agent.write("speed", [Entry("cheat", score=11)])
        agent.lift("cheat", "points")
        await agent.projected("points")
        assert await agent.scores("points", "day") == {"a": 1}
        agent.lift("cheat")
        await agent.projected("points")
        for name in ("all", "day", "week"):
            assert await agent.scores("points", name) == {"a": 1, "cheat": 103}
        assert await agent.scores("speed", "day") == {"a": 5, "cheat": 11}


async def test_bans_stay_through_flushes_restarts_and_whatever_comes_first(
    server: EmbeddedValkey, tmp_path: Path
) -> None:
    random = Random(4)
    names = [f"p{number}" for number in range(12)]
    scores: dict[str, int] = {}
    banned: set[tuple[str, str]] = set()
    async with rig(tmp_path / "eu", server.url) as agent:
        agent.define("points", rule="sum", windows=WINDOWS)
        for step in range(10):
            with dying():
                async with agent.projecting():
                    for _ in range(8):
                        name, board = random.choice(names), random.choice(("", "points"))
                        if random.random() < 0.5:
                            agent.add("points", {name: 3})
                            scores[name] = scores.get(name, 0) + 3
                        elif (name, board) in banned:
                            agent.lift(name, board)
                            banned.discard((name, board))
                        else:
                            agent.ban(name, board)
                            banned.add((name, board))
                    if step % 2:
                        await agent.redis.flushall()
                    hidden = {name for name, _ in banned}
                    shown = {n: score for n, score in scores.items() if n not in hidden}
                    for window in ("all", "day", "week"):
                        await agent.serving(shown, window=window)
            agent.ban("p0", "points")  # while nobody projects
            banned.add(("p0", "points"))
        assert agent.projector.status().counts.rebuilds < 10


async def test_a_ban_that_arrives_while_a_board_is_filled(
    agent: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filler, "SCAN_CELLS_MAX", 100)
    monkeypatch.setattr(filler, "SCAN_CHUNKS", 1)
    scores = agent.fill(1_000)
    scan = Filler._scan
    slices = 0
    agent.ban("player-000900")  # ahead of the scan, and lifted once it has passed
    scores.pop("player-000003")

    async def watched(one: Filler, filling: Any) -> None:
        nonlocal slices
        await scan(one, filling)
        if filling.id[0] == "points":
            slices += 1
            if slices == 5:
                agent.ban("player-000003")  # scanned already
                agent.ban("player-000800")  # not yet
            if slices == 10:
                agent.lift("player-000900")
                agent.lift("player-000800")
                agent.add("points", {"player-000003": 7})

    monkeypatch.setattr(Filler, "_scan", watched)
    async with agent.projecting():
        await agent.serving(scores)
        slices = 0
        assert agent.projector.repair("points")  # and while it is served
        await eventually(lambda: _true(slices > 10))
        await agent.serving(scores)
        assert agent.projector.status().counts.rebuilds == 1


@pytest.mark.parametrize("forgotten", [False, True])
async def test_a_failover_brings_nobody_back(agent: Rig, forgotten: bool) -> None:
    agent.define("points", rule="sum", windows=(*WINDOWS, WindowSpec("last:2d")))
    agent.add("points", {"a": 1, "cheat": 2, "gone": 3, "pardoned": 4})
    agent.ban("pardoned")
    async with agent.projecting():
        await agent.projected("points")
        await agent.serving({"a": 1, "cheat": 2, "gone": 3}, window="last:2d")
        async with agent.redis.pipeline(transaction=True) as pipeline:
            keys = await agent.redis.keys("*")
            for key in keys:
                pipeline.dump(key)
            dumps = dict(zip(keys, await pipeline.execute(), strict=True))
        agent.ban("cheat", "points")
        tombstone = agent.erase("gone")
        if forgotten:
            agent.run(ForgetNames((tombstone,)))
        agent.lift("pardoned")
        left = {"a": 1, "pardoned": 4}
        for window in ("all", "day", "week", "last:2d"):
            await agent.serving(left, window=window)
        # What a replica had when it was promoted: a state of before, watermark included.
        async with agent.redis.pipeline(transaction=True) as pipeline:
            pipeline.flushall()
            for key, dump in dumps.items():
                pipeline.restore(key, 0, dump)
            await pipeline.execute()
        assert await agent.redis.zscore(board_key("points", "all"), "gone") is not None
        for window in ("all", "day", "week", "last:2d"):
            await agent.serving(left, window=window)
        await nowhere(agent, "gone")
    counts = agent.projector.status().counts
    assert (counts.rebuilds, counts.mismatches >= 1) == (1, True)


async def test_who_takes_over_goes_by_its_own_bans(server: EmbeddedValkey, tmp_path: Path) -> None:
    async with (
        rig(tmp_path / "a", server.url) as first,
        rig(tmp_path / "b", server.url, agent="eu-2") as second,
    ):
        first.define("points", rule="sum", windows=(*WINDOWS, WindowSpec("last:2d")))
        first.define("tags", rule="trend", windows=(WindowSpec("day"),))
        first.add("points", {"a": 1, "cheat": 2})
        first.add("tags", {"x": 5, "cheat": 7})
        second.pull(first)
        second.ban("cheat")  # the first one has not heard of it
        async with first.projecting():
            await first.serving({"a": 1, "cheat": 2}, window="last:2d")
        async with second.projecting():
            for window in ("all", "day", "week", "last:2d"):
                await second.serving({"a": 1}, window=window)
            await second.serving({"x": 5}, "tags")
            await nowhere(second, "cheat")
        counts = second.projector.status().counts
        assert (counts.rebuilds, counts.take_overs) == (0, 1)


async def test_a_ban_that_empties_what_is_being_filled(
    agent: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent.define("points", rule="sum")
    agent.add("points", {"cheat": 1})
    scan = Filler._scan

    async def watched(one: Filler, filling: Any) -> None:
        await scan(one, filling)
        if filling.id[0] == "points":
            assert filling.filled
            agent.ban("cheat")

    monkeypatch.setattr(Filler, "_scan", watched)
    async with agent.projecting():
        await agent.serving({})
        agent.lift("cheat")
        await agent.serving({"cheat": 1})
    assert agent.projector.status().counts.failures == 0


async def _true(value: bool) -> bool:
    return value


async def test_a_counter_of_a_banned_name_keeps_its_value(agent: Rig) -> None:
    agent.add("counters", {"visits": 3, "likes": 1})
    agent.ban("visits")
    async with agent.projecting():
        await agent.projected("counters")
        assert await agent.scores("counters") == {"likes": 1}
        assert await agent.redis.get("ct:{s0}:visits") == b"3"
        agent.add("counters", {"visits": 1})
        await agent.projected("counters")
        assert await agent.redis.get("ct:{s0}:visits") == b"4"
        assert agent.projector.repair("counters")
        await agent.redis.set("ct:{s0}:gone", "5")

        async def clean() -> bool:
            return not await agent.redis.exists("ct:{s0}:gone")

        await eventually(clean)
        assert await agent.redis.get("ct:{s0}:visits") == b"4"
        agent.reset("counters")
        agent.add("counters", {"likes": 1})
        await agent.serving({"likes": 1}, "counters")

        async def of_the_old_generation() -> bool:
            return not await agent.redis.exists("ct:{s0}:visits")

        await eventually(of_the_old_generation)


async def test_the_audit_sees_a_banned_member_that_was_put_back(agent: Rig) -> None:
    agent.define("points", rule="sum", windows=WINDOWS)
    agent.add("points", {"a": 1, "cheat": 2})
    agent.ban("cheat")
    async with agent.projecting():
        await agent.projected("points")
        placed = agent.placed("points", "day")

        async def compare() -> list[tuple[bytes, Held, Held]]:
            found = await compare_window(
                agent.readers, agent.client, placed, lambda: agent.committer.state
            )
            assert found.skipped == ""
            return [(each.member, each.expected, each.found) for each in found.differences]

        assert await compare() == []
        await agent.redis.zadd(board_key(*(placed.board.name, placed.window.id)), {"cheat": 5})
        assert await compare() == [(b"cheat", Held(None, None), Held(5, None))]
        assert agent.projector.repair("points")
        await agent.serving({"a": 1}, window="day")
        assert await compare() == []


async def test_an_erased_name_leaves_everything(agent: Rig) -> None:
    agent.define("points", rule="sum", windows=WINDOWS)
    agent.define("speed", rule="best")
    async with agent.projecting():
        agent.add("points", {"a": 1, "gone": 2})
        agent.add("counters", {"gone": 4})
        agent.write("speed", [Entry("gone", score=9)])
        await agent.projected("speed")
        agent.erase("gone")
        await nowhere(agent, "gone")
        await agent.serving({"a": 1}, window="week")
        await agent.serving({}, "speed")


@pytest.mark.parametrize("forgotten", [False, True])
async def test_an_erasure_while_nobody_projects(
    server: EmbeddedValkey, tmp_path: Path, forgotten: bool
) -> None:
    async with rig(tmp_path / "eu", server.url) as agent:
        agent.define("points", rule="sum", windows=WINDOWS)
        agent.add("points", {"a": 1, "gone": 2})
        async with agent.projecting():
            await agent.projected("points")
        tombstone = agent.erase("gone")
        if forgotten:  # the log does not say the name any more
            agent.run(ForgetNames((tombstone,)))
        async with agent.projecting():
            await nowhere(agent, "gone")
            for window in ("all", "day", "week"):
                await agent.serving({"a": 1}, window=window)
        assert agent.projector.status().counts.rebuilds == 1


async def test_a_name_that_is_erased_is_not_filled_in_while_its_cells_are_there(
    agent: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    scores = agent.fill(50)
    monkeypatch.setattr(Rig, "purge", lambda _one, _name: None)
    agent.erase("player-000007")
    del scores["player-000007"]
    async with agent.projecting():
        await agent.serving(scores)
        await nowhere(agent, "player-000007")


async def test_a_result_taken_back_falls_out_or_back(agent: Rig) -> None:
    agent.define("cup", rule="best", results="keep", windows=(WindowSpec("week"),))
    at_ms = NOW_MS - 1_000
    entries = [
        Entry("a", score=900, key="k1", at=at_ms),
        Entry("a", score=700, key="k2", at=at_ms),
        Entry("b", score=5, key="k1", at=at_ms),
    ]
    agent.write("cup", entries)
    space = agent.placed("cup").space

    def retract(member: str, key: str) -> None:
        agent.run(Retract("cup", member.encode(), key.encode(), at_ms, (space,)))

    async with agent.projecting():
        await agent.serving({"a": 900, "b": 5}, "cup")
        retract("a", "k1")
        await agent.serving({"a": 700, "b": 5}, "cup")
        retract("b", "k1")
        await agent.serving({"a": 700}, "cup")
        await agent.redis.flushall()
        await agent.serving({"a": 700}, "cup")


async def test_likes_and_uniques(agent: Rig) -> None:
    windows = (WindowSpec("day"), WindowSpec("all"))
    agent.define("likes", rule="distinct", windows=windows)
    agent.define("visitors", rule="unique", windows=windows)
    async with agent.projecting():
        for number in range(30):
            agent.write("likes", [Entry(f"song{number % 3}", actor=f"u{number}")])
            agent.write("visitors", [Entry("page", actor=f"u{number % 20}")])
        agent.write("likes", [Entry("song0", actor="u3", present=False)])
        liked = {"song0": 9, "song1": 10, "song2": 10}
        for flush in (False, True):
            if flush:
                await agent.redis.flushall()
            for window in ("day", "all"):
                await agent.serving(liked, "likes", window)
                await agent.serving({"page": 20}, "visitors", window)
        for number in range(4):  # by the file and from memory in turn
            agent.write("likes", [Entry("song0", actor=f"v{number}")])
            await agent.projected("likes", "day")
            liked["song0"] += 1
            assert await agent.scores("likes", "day") == liked
