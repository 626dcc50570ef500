"""The projector against a real Valkey and a real SQLite file: ranks, batches, definitions."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from agent.boards.definition import ScoreRange
from agent.boards.entry import Entry
from agent.errors import Unavailable
from agent.projection import follower
from agent.projection.keys import board_key, meta_key
from agent.projection.link import Link, Moved
from agent.projection.scripts import Change
from agent.projection.status import BoardState, Phase
from tests.integration.projection_rig import NOW_MS, Rig, eventually, rig, valkey

PAST_MS = NOW_MS - 3_600_000


@pytest.fixture
async def agent(rank_server: str, tmp_path: Path) -> AsyncIterator[Rig]:
    assert rank_server
    async with valkey(tmp_path / "redis") as server, rig(tmp_path / "eu", server.url) as made:
        yield made


def ranked(rows: list[tuple[str, int, int]], *, low: bool, ties: str) -> list[tuple[int, str, int]]:
    """(rank, member, score) in the order that docs/api.md promises, by plain sorting."""

    def key(row: tuple[str, int, int]) -> tuple[Any, ...]:
        _, score, minute = row
        time = {"first": minute, "last": -minute}.get(ties, 0)
        return (score if low else -score, time)

    by_name = sorted(rows, key=lambda row: row[0].encode(), reverse=not low)
    ordered = sorted(by_name, key=key)
    if ties != "shared":
        return [(at, name, score) for at, (name, score, _) in enumerate(ordered, 1)]
    scores = [score for _, score, _ in ordered]
    return [(scores.index(score) + 1, name, score) for name, score, _ in ordered]


@pytest.mark.parametrize("order", ["high", "low"])
@pytest.mark.parametrize("ties", ["first", "last", "shared", "member"])
async def test_order_equals_a_plain_sort(agent: Rig, order: str, ties: str) -> None:
    agent.define("speed", rule="best", order=order, ties=ties)
    random = Random(f"{order}{ties}")
    names = [f"p{number}" for number in range(120)] + ["ä", "Zoë ✓", "a b", "{s0}", "\x01", "𐍈"]
    rows = [(name, random.randrange(12), random.randrange(5)) for name in names]
    entries = [Entry(name, score=score, at=PAST_MS + 60_000 * m) for name, score, m in rows]
    agent.write("speed", entries[:40])
    async with agent.projecting():
        agent.write("speed", entries[40:])
        await agent.projected("speed")
        expected = ranked(rows, low=order == "low", ties=ties)
        assert await agent.page("speed") == expected
        board = agent.placed("speed")
        for place in (0, 1, 57, len(rows) - 1):
            rank, name, score = expected[place]
            view = await agent.ranks.member(board, name, 2)
            assert view.entry is not None
            assert (view.entry.rank, view.entry.score) == (rank, score)
            around = [(entry.rank, entry.member, entry.score) for entry in view.around]
            assert around == expected[max(0, place - 2) : place + 3]
            page = await agent.ranks.page(board, place, 3)
            assert [entry.rank for entry in page.entries] == [
                rank for rank, _, _ in expected[place : place + 3]
            ]
            assert view.total == page.total == len(rows)
            if ties in ("first", "last"):
                minute = next(m for member, _, m in rows if member == name)
                tick_ms = PAST_MS // 60_000 * 60_000 + 60_000 * minute
                assert view.entry.reached_ms == tick_ms
            else:
                assert view.entry.reached_ms is None
        nobody = await agent.ranks.member(board, "nobody", 2)
        assert (nobody.entry, nobody.around, nobody.total) == (None, (), len(rows))
        assert (await agent.ranks.size(board)).total == len(rows)
        assert (await agent.ranks.page(board, 10_000, 5)).entries == ()


async def test_sums_go_up_and_down_and_counters_are_strings(agent: Rig) -> None:
    agent.define("points", rule="sum")
    async with agent.projecting():
        agent.add("points", {"a": 5, "b": 7})
        agent.add("counters", {"visits": 3, "näme": 2**53 - 1, "zero": 0})
        await agent.projected("points")
        agent.add("points", {"b": -9})
        agent.add("counters", {"visits": -10})
        await agent.projected("counters")
        assert await agent.page("points") == [(1, "a", 5), (2, "b", -2)]
        assert await agent.redis.get("ct:{s0}:visits") == b"-7"
        assert await agent.redis.get("ct:{s0}:näme") == b"%d" % (2**53 - 1)
        assert await agent.redis.get("ct:{s0}:zero") == b"0"
        assert await agent.scores("counters") == {"visits": -7, "näme": 2**53 - 1, "zero": 0}


async def test_a_reader_with_a_plain_client_can_decode(agent: Rig) -> None:
    agent.define("speed", rule="best", order="low")
    agent.write("speed", [Entry("a", score=31, at=NOW_MS), Entry("b", score=30, at=NOW_MS)])
    async with agent.projecting():
        await agent.projected("speed")
        meta = await agent.client.command("HGETALL", meta_key("speed", "all"))
        key = board_key("speed", "all")
        flat = await agent.client.command("ZRANGE", key, 0, -1, "WITHSCORES")
        found = [(flat[0], flat[1]), (flat[2], flat[3])]
        b, tick_ms = int(meta[b"b"]), int(meta[b"tick_ms"])
        decoded = [(name, int(composite) >> b) for name, composite in found]
        assert decoded == [(b"b", 30), (b"a", 31)]
        ticks = int(found[0][1]) & (2**b - 1)
        assert ticks == (NOW_MS - int(meta[b"epoch_ms"])) // tick_ms


async def test_a_new_board_is_served_empty(agent: Rig) -> None:
    async with agent.projecting():
        agent.define("empty", rule="sum")
        await agent.projected("empty")
        view = await agent.ranks.page(agent.placed("empty"), 0, 10)
        assert (view.entries, view.total) == ((), 0)


async def test_a_late_duplicate_of_a_batch_is_refused(agent: Rig) -> None:
    agent.define("points", rule="sum")
    async with agent.projecting():
        agent.add("points", {"a": 1})
        await agent.projected("points")
    before = await agent.watermark()

    def link() -> Link:
        made = Link(agent.client, 5.0, lambda: NOW_MS, lambda: None)
        made.adopt(before)
        return made

    def change(score: bytes) -> Change:
        made = Change()
        made.add(board_key("points", "all"), [score, b"a"])
        return made

    await link().write(change(b"10"))
    with pytest.raises(Moved):
        await link().write(change(b"5"))
    assert await agent.redis.zscore(board_key("points", "all"), "a") == 10
    # After a flush nothing fits any more, even where the numbers would begin again.
    await agent.redis.flushall()
    with pytest.raises(Moved):
        await link().write(change(b"5"))
    assert await agent.redis.dbsize() == 0


async def test_as_of_and_lease_move_while_nothing_is_written(agent: Rig) -> None:
    async with agent.projecting():
        await agent.projected("counters")
        first = await agent.watermark()

        async def moved() -> bool:
            now = await agent.watermark()
            return now.lease_until_ms > first.lease_until_ms and now.batch > first.batch + 2

        await eventually(moved)
        status = agent.projector.status()
        assert status.phase == Phase.FOLLOWING
        assert status.behind_s == 0
        assert status.counts.mismatches == 0


async def test_reset_starts_a_new_generation(agent: Rig) -> None:
    agent.define("points", rule="sum")
    async with agent.projecting():
        agent.add("points", {"old": 5})
        agent.add("counters", {"old": 5, "both": 1})
        await agent.projected("points")
        agent.reset("points")
        agent.reset("counters")
        with pytest.raises(Unavailable, match="being filled"):
            await agent.page("points")
        agent.add("counters", {"both": 4})
        await agent.projected("points")
        assert await agent.page("points") == []
        agent.add("points", {"new": 1})
        await agent.projected("points")
        await agent.projected("counters")
        assert await agent.page("points") == [(1, "new", 1)]
        assert await agent.scores("counters") == {"both": 4}
        assert await agent.redis.get("ct:{s0}:old") is None
        assert await agent.redis.get("ct:{s0}:both") == b"4"


async def test_retire_removes_the_keys_and_a_new_definition_starts_anew(agent: Rig) -> None:
    agent.define("points", rule="sum")
    async with agent.projecting():
        agent.add("points", {"a": 5})
        await agent.projected("points")
        agent.retire("points")
        await agent.projected("counters")
        assert agent.projector.state_of("points", "all") == BoardState.REBUILDING
        assert await agent.redis.keys("lb:{s0}:points*") == []
        agent.define("points", rule="best", order="low")
        agent.write("points", [Entry("a", score=9)])
        await agent.projected("points")
        assert await agent.page("points") == [(1, "a", 9)]


async def test_a_change_of_ties_refills_and_other_changes_do_not(agent: Rig) -> None:
    agent.define("speed", rule="best", ties="first")
    rows = [(f"p{number}", number % 7, number % 3) for number in range(300)]
    entries = [Entry(name, score=score, at=PAST_MS + 60_000 * m) for name, score, m in rows]
    agent.write("speed", entries)
    async with agent.projecting():
        await agent.projected("speed")
        assert await agent.page("speed") == ranked(rows, low=False, ties="first")
        refills = agent.projector.status().counts.refills
        agent.define("speed", rule="best", ties="last")
        agent.define("speed", rule="best", ties="first")
        agent.define("speed", rule="best", ties="shared")
        with pytest.raises(Unavailable):
            await agent.page("speed")
        await agent.projected("speed")
        assert await agent.page("speed") == ranked(rows, low=False, ties="shared")
        assert agent.projector.status().counts.refills > refills
        agent.define("speed", rule="best", ties="member")
        await agent.projected("speed")
        refills = agent.projector.status().counts.refills
        agent.define("speed", rule="best", ties="member", score=ScoreRange(0, 99))
        await agent.projected("speed")
        assert agent.projector.status().counts.refills == refills
        assert await agent.redis.keys("lb:{s0}:speed*:new:*") == []


async def test_scores_beyond_the_scale_are_clamped_and_counted(agent: Rig) -> None:
    agent.define("points", rule="sum", ties="shared")
    agent.add("points", {"a": 2**53 - 1})
    agent.define("points", rule="sum", ties="first", score=ScoreRange(0, 1000))
    async with agent.projecting():
        await agent.projected("points")
        entry = (await agent.ranks.page(agent.placed("points"), 0, 1)).entries[0]
        assert (entry.score, entry.clamped) == (1023, True)
        assert agent.projector.status().counts.clamped >= 1


async def test_wait_for_tells_what_is_projected(agent: Rig) -> None:
    lsn = agent.committer.state.lsn
    assert not await agent.projector.wait_for("counters", "all", 0.01, lsn=lsn)
    async with agent.projecting():
        agent.add("counters", {"a": 1})
        state = agent.committer.state
        assert await agent.projector.wait_for("counters", "all", 60, lsn=state.lsn)
        stamp = (state.inc, state.seq)
        assert await agent.projector.wait_for("counters", "all", 60, stamp=stamp)
        assert not await agent.projector.wait_for("counters", "all", 0.01, lsn=state.lsn + 1)
        assert not await agent.projector.wait_for("counters", "all", 0.01, stamp=(state.inc, 99))
        assert not await agent.projector.wait_for("nothing", "all", 0.01, lsn=0)


async def test_a_superseded_write_is_ranked_only_with_what_superseded_it(
    agent: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follower, "READ_ENTRIES_MAX", 5)
    monkeypatch.setattr(follower, "RECENT_ENTRIES_MAX", 5)
    agent.define("points", rule="latest")
    async with agent.projecting():
        await agent.projected("points")
    agent.write("points", [Entry("a", score=1)])
    lsn = agent.committer.state.lsn
    agent.write("points", [Entry(f"p{number}", score=1) for number in range(50)])
    agent.write("points", [Entry("a", score=2)])
    write = Link.write
    claims: list[tuple[bool, bool]] = []

    async def watched(link: Link, *args: Any, **options: Any) -> None:
        await write(link, *args, **options)
        claimed = await agent.projector.wait_for("points", "all", 0, lsn=lsn)
        found = await agent.client.command("ZSCORE", board_key("points", "all"), "a")
        claims.append((claimed, found is not None))

    monkeypatch.setattr(Link, "write", watched)
    async with agent.projecting():
        await agent.projected("points")
    assert (False, False) in claims
    assert (True, False) not in claims
