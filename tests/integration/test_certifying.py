"""Certified finals on real files and sockets: equal everywhere, never changed, nothing lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agent.boards.definition import Definition, check
from agent.boards.entry import Entry
from agent.boards.finals import Shelve
from agent.boards.tally import Group
from agent.boards.windows import WindowSpec
from agent.commit import CommitQueue
from agent.crdt.slot import Kind
from agent.crdt.space import MARKS_SPACE
from agent.operation import Define, Drop, Erase, SetBan, Write
from tests.integration.certifying_rig import (
    CLOSED,
    certified,
    final,
    overridden,
    rows,
    same_state_of,
    scores,
    shown,
    space_of,
    with_cup,
)
from tests.integration.gossip_rig import Agent, until
from tests.integration.keeping_rig import (
    DAY,
    DAY_ID,
    MINUTE,
    NAMES,
    NOON,
    lacks,
    put_back,
    ring_of,
    same_state,
    writes_alone,
)


async def test_every_region_certifies_the_same_final(tmp_path: Path) -> None:
    async with ring_of(tmp_path) as ring:
        await with_cup(ring)
        a, b, c = ring.agents.values()
        await a.do(scores(p=100, x=7))
        await b.do(scores(at_ms=NOON + MINUTE, q=100, p=90))
        await c.do(scores(r=40, x=8))
        await a.do(SetBan(b"r", "cup", None, "cheat", "op"))
        ring.clock.ms = CLOSED
        told = await certified(ring)
        assert (told.version, told.members, told.agents) == (0, 3, NAMES)
        assert shown(await rows(a)) == [(1, "p", 100), (2, "q", 100), (3, "x", 8)]


async def test_a_sum_of_all_regions_is_certified(tmp_path: Path) -> None:
    async with ring_of(tmp_path) as ring:
        for number, agent in enumerate(ring.agents.values(), 1):
            entries = [Entry("m", add=number, at=NOON), Entry(agent.name, add=1, at=NOON)]
            await agent.do(Write((Group("daily", entries, range(2)),)))
        ring.clock.ms = CLOSED
        await certified(ring, "daily")
        found = shown(await rows(ring.agents["b"], "daily"))
        assert found[0] == (1, "m", 6)
        assert {name for _, name, _ in found} == {"m", *NAMES}


async def test_more_rows_than_one_chunk_keep_their_order(tmp_path: Path) -> None:
    async with ring_of(tmp_path, ("a", "b")) as ring:
        await with_cup(ring)
        names = [f"m{number:04}" for number in range(2_345)]
        entries = [Entry(name, score=number % 100, at=NOON) for number, name in enumerate(names)]
        await ring.agents["a"].do(Write((Group("cup", entries, range(len(entries))),)))
        ring.clock.ms = CLOSED
        told = await certified(ring)
        assert told.members == len(names)
        best_first = sorted(names, reverse=True)  # equal times: by name, as Redis orders them
        want = sorted(best_first, key=lambda name: -(int(name[1:]) % 100))
        assert [row.member for row in await rows(ring.agents["b"])] == [n.encode() for n in want]
        assert [row.rank for row in await rows(ring.agents["b"])] == [*range(1, 2_346)]


async def test_nothing_is_certified_while_a_member_is_away(tmp_path: Path) -> None:
    async with ring_of(tmp_path) as ring:
        await with_cup(ring)
        await writes_alone(ring, "c", scores(p=5))
        await ring.agents["a"].do(scores(q=4))
        await until(lambda: same_state_of(ring, "a", "b"))
        ring.clock.ms = CLOSED
        a = ring.agents["a"]
        await until(lambda: a.certifier.status().waiting.get("c"))
        assert (await final(a)).in_force is None
        await ring.start("c")
        await certified(ring)
        assert shown(await rows(a)) == [(1, "p", 5), (2, "q", 4)]


@pytest.mark.parametrize("name", NAMES)
async def test_an_agent_that_was_stopped_in_between_goes_on(tmp_path: Path, name: str) -> None:
    """It may have frozen or not: what it has said stands, and what it has not it says again."""
    async with ring_of(tmp_path) as ring:
        await with_cup(ring)
        await ring.agents["b"].do(scores(p=1, q=2))
        await same_state(ring)
        ring.clock.ms = CLOSED

        async def said() -> bool:
            its = await final(ring.agents[name])
            return its.said(Kind.DIGEST, name) is not None

        await until(said)
        await ring.stop(name)
        await ring.start(name)
        await certified(ring)


async def test_an_older_file_that_is_put_back_fetches_the_rows_again(tmp_path: Path) -> None:
    async with ring_of(tmp_path) as ring:
        await with_cup(ring)
        await writes_alone(ring, "c", scores(p=3))
        await ring.start("c")
        ring.clock.ms = CLOSED
        told = await certified(ring)
        await ring.stop("c")
        put_back(ring, "c")
        c = await ring.start("c", put_back=True)
        assert await certified(ring) == told

        async def fetched() -> bool:
            return c.certifier.counts.fetched == 1

        await until(fetched)


async def test_a_name_erased_while_rows_are_fetched_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The purge of the name has passed by before the rows are there."""
    submit = CommitQueue.submit
    async with ring_of(tmp_path) as ring:
        await with_cup(ring)
        await writes_alone(ring, "c", scores(p=3, q=2))
        await ring.start("c")
        ring.clock.ms = CLOSED
        await certified(ring)
        await ring.stop("c")
        put_back(ring, "c")

        async def confirmed() -> bool:
            found = ring.agents["c"].queue.state.erased.find(b"q")
            return found is not None and "c" in found.confirmed

        async def late(queue: CommitQueue, operation: Any) -> Any:
            if isinstance(operation, Shelve) and not queue.state.erased.closed(b"q"):
                await submit(queue, Erase(b"q", bytes(16)))
                await until(confirmed)
            return await submit(queue, operation)

        monkeypatch.setattr(CommitQueue, "submit", late)
        await ring.start("c", put_back=True)

        async def nameless(agent: Agent) -> bool:
            return [row.member for row in await rows(agent)] == [b"p", None]

        await ring.all(nameless)


async def test_a_window_is_collected_only_when_all_have_certified_it(tmp_path: Path) -> None:
    async with ring_of(tmp_path) as ring:
        await overridden(ring)
        a = ring.agents["a"]
        ring.clock.ms = NOON + 5 * DAY
        await until(lambda: a.certifier.status().pending == 0)
        assert a.queue.state.marks.collected(space_of(a)) == ""
        await ring.start("c")
        for agent in ring.agents.values():
            space = space_of(agent)

            async def gone(agent: Agent = agent, space: bytes = space) -> bool:
                found = await agent.readers.read(lambda its: its.spaces())
                marks = await agent.readers.read(lambda its: its.slots_of(MARKS_SPACE, space))
                kinds = {slot[0] for slot, _ in marks}
                return space not in found and kinds == {Kind.OVERRIDE, Kind.CERTIFICATE}

            await until(gone)
        await same_state(ring)
        await certified(ring, version=1)


async def test_a_window_without_certify_is_collected_without_a_final(tmp_path: Path) -> None:
    async with ring_of(tmp_path) as ring:
        day = WindowSpec("day", keep="2d", certify=False)
        board = Definition(rule="best", windows=(WindowSpec("all"), day))
        await ring.agents["a"].do(Define("cup", check(board)))
        await ring.all(lambda agent: agent.queue.state.catalog.find("cup"))
        await ring.agents["a"].do(scores(p=1))
        space = space_of(ring.agents["a"])
        ring.clock.ms = NOON + 5 * DAY
        await ring.all(lambda agent: lacks(agent, DAY_ID))

        async def gone(agent: Agent) -> bool:
            return space not in await agent.readers.read(lambda its: its.spaces())

        await ring.all(gone)
        assert (await final(ring.agents["b"])).in_force is None


async def test_marks_of_a_final_are_dropped_by_nobody_before(tmp_path: Path) -> None:
    async with ring_of(tmp_path, ("a",)) as ring:
        await with_cup(ring)
        a = ring.agents["a"]
        await a.do(scores(p=1))
        ring.clock.ms = CLOSED
        await certified(ring)
        space = space_of(a)
        said = await a.readers.read(lambda found: found.slots_of(MARKS_SPACE, space))
        keys = tuple((MARKS_SPACE, space, slot) for slot, _ in said)
        await a.do(Drop(keys))
        assert await a.readers.read(lambda found: found.slots_of(MARKS_SPACE, space)) == said
