"""Sliding windows and trends: computed on a timer, served meanwhile, equal to a plain model."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from agent.boards.entry import Entry
from agent.boards.windows import WindowSpec
from agent.operation import Announce, Complete
from agent.projection import derived, filler
from agent.projection.embedded import EmbeddedValkey
from agent.projection.filler import Filler
from agent.projection.keys import AS_OF, board_key, meta_key
from tests.integration.projection_rig import NOW_MS, Rig, eventually, rig, valkey

HOUR_MS, DAY_MS = 3_600_000, 86_400_000
SLIDING = (WindowSpec("last:3d"), WindowSpec("day"))


@pytest.fixture
async def server(rank_server: str, tmp_path: Path) -> AsyncIterator[EmbeddedValkey]:
    assert rank_server
    async with valkey(tmp_path / "redis") as made:
        yield made


@pytest.fixture
async def agent(server: EmbeddedValkey, tmp_path: Path) -> AsyncIterator[Rig]:
    async with rig(tmp_path / "eu", server.url) as made:
        yield made


def day_of(ms: int) -> int:
    return ms // DAY_MS


async def test_sliding_windows_equal_a_model(
    server: EmbeddedValkey, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filler, "SCAN_CELLS_MAX", 60)
    random = Random(21)
    names = [f"p{number:02}" for number in range(30)]
    async with rig(tmp_path / "eu", server.url) as agent:
        agent.define("points", rule="sum", ties="member", windows=SLIDING)
        agent.define("speed", rule="best", order="low", windows=SLIDING)
        agent.define("last", rule="latest", windows=SLIDING[:1])
        agent.define("likes", rule="distinct", windows=SLIDING)
        agent.define("visits", rule="unique", windows=SLIDING[:1])
        said: list[tuple[str, str, int, Any]] = []

        def model(board: str) -> dict[str, int]:
            first = day_of(agent.at_ms) - 2
            mine = [(n, at, v) for b, n, at, v in said if b == board and day_of(at) >= first]
            found: dict[str, Any] = {}
            for name, at_ms, value in mine:
                if board == "points":
                    found[name] = found.get(name, 0) + value
                elif board == "speed":
                    found[name] = min(found.get(name, value), value)
                elif board == "last":
                    found[name] = max(found.get(name, (0, 0)), (at_ms, value))
                else:
                    actor, on = value
                    days = found.get(name, {}).get(actor, {})
                    if on or days.get(day_of(at_ms)):  # what was never there is not taken away
                        found.setdefault(name, {}).setdefault(actor, days)[day_of(at_ms)] = on
            if board in ("likes", "visits"):
                return {
                    name: sum(any(days.values()) for days in actors.values())
                    for name, actors in found.items()
                }
            return {n: v[1] if board == "last" else v for n, v in found.items()}

        async with agent.projecting():
            for step in range(7):
                agent.at_ms += random.choice((HOUR_MS, 9 * HOUR_MS, DAY_MS))
                for _ in range(60):
                    name, number = random.choice(names), random.randrange(50)
                    agent.at_ms += 1
                    at_ms = agent.at_ms
                    on = random.random() < 0.7
                    actor = f"u{number % 8}"
                    for board, entry, value in (
                        ("points", Entry(name, add=number, at=at_ms), number),
                        ("speed", Entry(name, score=number, at=at_ms), number),
                        ("last", Entry(name, score=number, at=at_ms), number),
                        ("likes", Entry(name, actor=actor, present=on, at=at_ms), (actor, on)),
                        ("visits", Entry(name, actor=actor, at=at_ms), (actor, True)),
                    ):
                        agent.write(board, [entry])
                        agent.at_ms -= 1_000
                        said.append((board, name, at_ms, value))
                if step == 3:
                    await agent.redis.flushall()
                for board in ("points", "speed", "last", "likes", "visits"):
                    await agent.serving(model(board), board, "last:3d")
            agent.ban("p03")
            await agent.serving(
                {n: s for n, s in model("points").items() if n != "p03"}, "points", "last:3d"
            )
            agent.lift("p03")
            await agent.serving(model("points"), "points", "last:3d")
            agent.at_ms += 4 * DAY_MS  # nothing is written, and the window moves on all the same
            await agent.serving({}, "points", "last:3d")
        assert agent.projector.status().counts.rebuilds == 2
        assert await agent.redis.keys("*:new:*") == []


async def test_a_sliding_window_is_never_served_by_halves_and_says_what_it_includes(
    server: EmbeddedValkey, tmp_path: Path
) -> None:
    async with rig(tmp_path / "eu", server.url, derived_s=3_600.0) as agent:
        # Else there is no region to tell of, and nothing that it would include.
        agent.run(Announce("eu", "http://127.0.0.1:1"), Complete())
        agent.define("points", rule="sum", windows=SLIDING)
        scores = {f"p{number}": 1 for number in range(200)}
        agent.add("points", scores)
        meta = meta_key("points", "last:3d")
        async with agent.projecting():
            await agent.projected("points", "last:3d")  # the first time is at once
            assert await agent.scores("points", "last:3d") == scores
            assert not await agent.redis.hexists(meta, AS_OF)
            before = await agent.watermark()
            agent.add("points", {"p0": 1})
            await agent.projected("points", "day")

            async def passed() -> bool:
                return (await agent.watermark()).as_of != before.as_of

            await eventually(passed)
            view = await agent.ranks.page(agent.placed("points", "last:3d"), 0, 1)
            assert view.entries[0].score == 1
            assert await agent.redis.hexists(meta, AS_OF)
            mine, now = view.as_of["eu"], (await agent.watermark()).as_of["eu"]
            assert mine is not None
            assert now is not None
            assert mine < now
            lsn = agent.committer.state.lsn
            assert not await agent.projector.wait_for("points", "last:3d", 0.05, lsn=lsn)
            assert agent.projector.repair("points")  # not before its time, but when it is asked for
            await agent.serving(scores | {"p0": 2}, window="last:3d")
            assert await agent.projector.wait_for("points", "last:3d", 60, lsn=lsn)


async def test_a_window_slides_though_nothing_is_written(agent: Rig) -> None:
    agent.define("points", rule="sum", windows=SLIDING)
    agent.add("points", {"a": 1})
    async with agent.projecting():
        await agent.serving({"a": 1}, window="last:3d")
        for days in (2, 3):
            await agent.moving(10)  # whatever was to be computed is
            agent.at_ms = NOW_MS + days * DAY_MS
            await agent.serving({"a": 1} if days < 3 else {}, window="last:3d")
            window = agent.placed("points", "last:3d").window

            async def says_so(start_ms: int = window.start_ms) -> bool:
                found = await agent.redis.hget(meta_key("points", "last:3d"), "start_ms")
                return found == b"%d" % start_ms

            await eventually(says_so)


async def test_what_comes_while_a_window_is_computed_is_not_claimed(
    server: EmbeddedValkey, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filler, "SCAN_CELLS_MAX", 50)
    monkeypatch.setattr(filler, "SCAN_CHUNKS", 1)
    scan = Filler._scan
    async with rig(tmp_path / "eu", server.url, derived_s=3_600.0) as agent:
        agent.define("points", rule="sum", windows=SLIDING)
        agent.add("points", {f"p{number:03}": 1 for number in range(200)})
        slices = 0

        async def watched(one: Filler, filling: Any) -> None:
            nonlocal slices
            await scan(one, filling)
            if filling.id == ("points", "last:3d"):
                slices += 1
                if slices == 2:  # behind the scan
                    agent.add("points", {"p000": 1})

        monkeypatch.setattr(Filler, "_scan", watched)
        async with agent.projecting():
            first = {f"p{number:03}": 1 for number in range(200)}
            await agent.serving(first, window="last:3d")
            await agent.projected("points", "day")
            assert (await agent.scores("points", "day"))["p000"] == 2
            assert await agent.redis.hexists(meta_key("points", "last:3d"), AS_OF)
            lsn = agent.committer.state.lsn
            assert not await agent.projector.wait_for("points", "last:3d", 0.05, lsn=lsn)
            assert await agent.projector.wait_for("points", "last:3d", 0.05, lsn=lsn - 1)
            assert agent.projector.repair("points")
            await agent.serving(first | {"p000": 2}, window="last:3d")
            assert not await agent.redis.hexists(meta_key("points", "last:3d"), AS_OF)


async def test_a_restart_knows_which_window_is_behind(
    server: EmbeddedValkey, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    computed: list[tuple[str, str]] = []
    swap = Filler._swap

    async def watched(one: Filler, fillings: list[Any]) -> None:
        computed.extend(filling.id for filling in fillings if filling.computed)
        await swap(one, fillings)

    monkeypatch.setattr(Filler, "_swap", watched)
    async with rig(tmp_path / "eu", server.url, derived_s=3_600.0) as agent:
        for board in ("behind", "level"):
            agent.define(board, rule="sum", windows=SLIDING)
            agent.add(board, {"a": 1})
        async with agent.projecting():
            await agent.projected("level", "last:3d")
            await agent.projected("behind", "last:3d")
            agent.add("behind", {"a": 1})
            await agent.projected("behind", "day")
            await agent.projected("level", "day")
            assert computed == []
    async with rig(tmp_path / "eu", server.url, derived_s=3_600.0) as agent, agent.projecting():
        await agent.serving({"a": 2}, "behind", "last:3d")
        assert await agent.scores("level", "last:3d") == {"a": 1}
    assert computed == [("behind", "last:3d")]


async def test_trends_equal_a_plain_count(server: EmbeddedValkey, tmp_path: Path) -> None:
    random = Random(8)
    windows = (WindowSpec("hour"), WindowSpec("day"))
    async with rig(tmp_path / "eu", server.url) as agent:
        agent.define("tags", rule="trend", windows=windows)
        hours: list[Counter[str]] = []
        async with agent.projecting():
            assert await _served(agent, {})
            for step in range(3):
                counts: Counter[str] = Counter()
                for _ in range(20):
                    entries = []
                    for _ in range(15):
                        name, amount = f"t{random.randrange(40) ** 2 // 40}", random.randrange(1, 5)
                        counts[name] += amount
                        entries.append(Entry(name, add=amount))
                    agent.write("tags", entries)
                hours.append(counts)
                if step == 1:
                    await agent.redis.flushall()
                await agent.serving(counts, "tags", "hour")
                await agent.serving(sum(hours, Counter()), "tags", "day")
                agent.at_ms += HOUR_MS
            await agent.serving(hours[0], "tags", f"hour:{_hour(NOW_MS)}")
            top = hours[0].most_common(1)[0][0]
            agent.ban(top, "tags")
            left = {name: count for name, count in hours[0].items() if name != top}
            await agent.serving(left, "tags", f"hour:{_hour(NOW_MS)}")
            agent.lift(top, "tags")
            await agent.serving(hours[0], "tags", f"hour:{_hour(NOW_MS)}")
            agent.erase(top)
            await agent.serving(left, "tags", f"hour:{_hour(NOW_MS)}")


async def _served(agent: Rig, scores: dict[str, int]) -> bool:
    await agent.serving(scores, "tags", "hour")
    return True


def _hour(ms: int) -> str:
    return f"2025-10-09T{ms % DAY_MS // HOUR_MS:02d}"


async def test_what_fades_is_computed_again_by_itself(agent: Rig) -> None:
    agent.define("hot", rule="trend", half_life="1h")
    async with agent.projecting():
        agent.write("hot", [Entry("a", add=1_000), Entry("b", add=100)])
        await agent.serving({"a": 1_000, "b": 100}, "hot")

        async def faded() -> bool:
            found = await agent.scores("hot")
            return 490 <= found["a"] <= 510 and 49 <= found["b"] <= 51

        agent.at_ms += HOUR_MS
        await eventually(faded)
        agent.at_ms += 24 * HOUR_MS
        await agent.serving({}, "hot")


async def test_a_trend_holds_a_bounded_number_of_members(
    agent: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(derived, "KEEP_MAX", 10)
    agent.define("tags", rule="trend")
    agent.write("tags", [Entry(f"t{number}", add=number + 1) for number in range(50)])
    async with agent.projecting():
        top = {f"t{number}": number + 1 for number in range(40, 50)}
        await agent.serving(top, "tags")
        agent.ban("t49")
        await agent.serving({f"t{n}": n + 1 for n in range(39, 49)}, "tags")


async def test_a_lost_computed_set_is_computed_again(agent: Rig) -> None:
    agent.define("points", rule="sum", windows=SLIDING)
    agent.add("points", {"a": 1})
    async with agent.projecting():
        await agent.serving({"a": 1}, window="last:3d")
        await agent.redis.delete(board_key("points", "last:3d"))
        await agent.serving({"a": 1}, window="last:3d")
        await agent.redis.delete(meta_key("points", "last:3d"))
        await agent.serving({"a": 1}, window="last:3d")
