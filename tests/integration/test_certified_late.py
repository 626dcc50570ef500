"""What comes after a certified final: it changes no row, and is listed, revised, fetched."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.boards.finals import Certificate, OverrideFinal
from agent.certifying.copies import Copies
from agent.operation import Erase, LiftBan, Reset, SetBan
from agent.store.finals import Held, held_of
from tests.integration.certifying_rig import (
    CLOSED,
    certified,
    overridden,
    rows,
    scores,
    shown,
    space_of,
    with_cup,
)
from tests.integration.gossip_rig import Agent, until
from tests.integration.keeping_rig import (
    NAMES,
    ring_of,
    same_state,
)


async def copies(agent: Agent) -> list[Held]:
    return await agent.readers.read(lambda snapshot: held_of(snapshot, space_of(agent)))


async def test_a_region_that_comes_back_adopts_and_its_results_are_late(tmp_path: Path) -> None:
    async with ring_of(tmp_path) as ring:
        told = await overridden(ring)
        await ring.start("c")
        assert await certified(ring, version=1) == told
        await same_state(ring)

        def late(agent: Agent) -> bool:
            its = agent.certifier.late_of(space_of(agent)).shown
            return [(x.member, x.final_score, x.live_score) for x in its] == [(b"p", None, 5)]

        await ring.all(late)
        assert ring.agents["c"].certifier.counts.fetched == 1
        await ring.agents["a"].do(SetBan(b"p", "cup", None, "cheat", "op"))

        def nobody(agent: Agent) -> bool:
            return not agent.certifier.late_of(space_of(agent)).shown

        await ring.all(nobody)  # as after a restart


@pytest.mark.parametrize("board", ["cup", ""])
async def test_a_ban_that_is_lifted_later_is_listed_by_itself(tmp_path: Path, board: str) -> None:
    async with ring_of(tmp_path) as ring:
        await with_cup(ring)
        a = ring.agents["a"]
        await a.do(scores(p=5, q=4))
        for name in (b"p", b"x"):  # the second one has no entry
            await a.do(SetBan(name, board, None, "cheat", "op"))
        await same_state(ring)
        ring.clock.ms = CLOSED
        told = await certified(ring)
        assert shown(await rows(a)) == [(1, "q", 4)]
        assert [held.late for held in await copies(a)] == [False]
        await a.do(LiftBan(b"x", board, "", "op"))
        assert [held.late for held in await copies(a)] == [False]
        await a.do(LiftBan(b"p", board, "it was its brother", "op"))

        def late(agent: Agent) -> bool:
            its = agent.certifier.late_of(space_of(agent)).shown
            return [(x.member, x.final_score, x.live_score) for x in its] == [(b"p", None, 5)]

        await ring.all(late)
        assert await certified(ring) == told
        await ring.stop("b")
        await ring.start("b")
        await until(lambda: late(ring.agents["b"]))


async def test_rows_are_fetched_again_also_of_a_board_that_was_reset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    get = Copies.get
    failed: list[bytes] = []

    async def fails_at_first(copies: Copies, space: bytes, told: Certificate) -> bool:
        if len(failed) < 2:
            failed.append(space)
            return False
        return await get(copies, space, told)

    async with ring_of(tmp_path) as ring:
        told = await overridden(ring)
        space = space_of(ring.agents["a"])
        await ring.agents["a"].do(Reset("cup", None))
        monkeypatch.setattr(Copies, "get", fails_at_first)
        c = await ring.start("c")

        async def fetched() -> bool:
            held = await c.readers.read(lambda found: held_of(found, space))
            return [its.hash for its in held] == [told.hash]

        await until(fetched)
        assert failed == [space, space]


async def test_a_revision_takes_in_what_came_late_and_keeps_the_old_one(tmp_path: Path) -> None:
    async with ring_of(tmp_path) as ring:
        old = await overridden(ring)
        await ring.start("c")
        await certified(ring, version=1)
        b = ring.agents["b"]
        await b.do(OverrideFinal(space_of(b), 2, (), "with c", "op"))
        told = await certified(ring, version=2)
        assert told.agents == NAMES
        assert told.hash != old.hash
        for agent in ring.agents.values():
            assert shown(await rows(agent)) == [(1, "p", 5), (2, "q", 4)]
            assert shown(await rows(agent, version=1)) == [(1, "q", 4)]


async def test_what_comes_later_changes_no_row_but_the_name_of_the_erased(tmp_path: Path) -> None:
    async with ring_of(tmp_path) as ring:
        await with_cup(ring)
        a = ring.agents["a"]
        await a.do(scores(p=100, q=50, r=20))
        ring.clock.ms = CLOSED
        told = await certified(ring)
        await a.do(SetBan(b"p", "cup", None, "cheat", "op"))
        await a.do(Erase(b"q", bytes(16)))

        async def nameless(agent: Agent) -> bool:
            return [row.member for row in await rows(agent)] == [b"p", None, b"r"]

        await ring.all(nameless)
        assert await certified(ring) == told
        for agent in ring.agents.values():
            path = ring.folder / agent.name
            assert agent.certifier.late_of(space_of(agent)).members == 0
            assert path.is_dir()
