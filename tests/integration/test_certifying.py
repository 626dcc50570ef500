"""Certified finals on real files and sockets: equal everywhere, never changed, nothing lost."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import Any

import msgpack
import pytest

from agent.boards.definition import Definition, check
from agent.boards.entry import Entry
from agent.boards.final_rows import FinalRow
from agent.boards.finals import Certificate, Final, OverrideFinal, Shelve, final_of
from agent.boards.tally import Group
from agent.boards.windows import WindowSpec
from agent.certifying.copies import Copies
from agent.commit import CommitQueue
from agent.crdt.slot import Kind
from agent.crdt.space import MARKS_SPACE
from agent.operation import Define, Drop, Erase, LiftBan, Reset, SetBan, Write
from agent.store.finals import Held, held_of, rows_of
from agent.store.snapshot import SqliteSnapshot
from tests.integration.gossip_rig import Agent, until
from tests.integration.keeping_rig import (
    DAY,
    DAY_ID,
    MINUTE,
    NAMES,
    NOON,
    Ring,
    lacks,
    put_back,
    ring_of,
    same_state,
    writes_alone,
)

CLOSED = NOON + DAY
CUP = check(
    Definition(rule="best", ties="first", windows=(WindowSpec("all"), WindowSpec("day", keep="2d")))
)


def scores(board: str = "cup", at_ms: int = NOON, **by_member: int) -> Write:
    """Results of some members, all at once."""
    entries = [Entry(name, score=score, at=at_ms) for name, score in by_member.items()]
    return Write((Group(board, entries, range(len(entries))),))


async def with_cup(ring: Ring) -> None:
    """A board of results with days."""
    await ring.agents["a"].do(Define("cup", CUP))
    await ring.all(lambda agent: agent.queue.state.catalog.find("cup"))


def space_of(agent: Agent, board: str = "cup") -> bytes:
    """The space of the day's window."""
    its = agent.queue.state.catalog.board(board)
    return its.place(its.resolve(DAY_ID, NOON)).space


async def final(agent: Agent, board: str = "cup") -> Final:
    space = space_of(agent, board)
    return await agent.readers.read(lambda found: final_of(found.slots_of(MARKS_SPACE, space)))


async def rows(agent: Agent, board: str = "cup", version: int | None = None) -> list[FinalRow]:
    """The rows of a certificate as they are here; empty while they are not."""
    space = space_of(agent, board)

    def read(found: SqliteSnapshot) -> list[FinalRow]:
        its = final_of(found.slots_of(MARKS_SPACE, space))
        told = its.in_force
        if version is not None:
            of_version = [c for _, c in its.certificates.values() if c.version == version]
            told = of_version[0] if of_version else None
        held = {each.hash for each in held_of(found, space)}
        return list(rows_of(found, space, told.hash)) if told and told.hash in held else []

    return await agent.readers.read(read)


async def certified(ring: Ring, board: str = "cup", version: int = 0) -> Certificate:
    """Wait until every agent that runs has certified one version, and holds its rows."""

    async def has(agent: Agent) -> bool:
        its = await final(agent, board)
        mine = (version, agent.name) in its.certificates
        return mine and bool(await rows(agent, board, version))

    await ring.all(has)
    told = {(await final(agent, board)).in_force for agent in ring.agents.values()}
    (one,) = told
    assert one is not None
    shown = [await rows(agent, board) for agent in ring.agents.values()]
    assert all(each == shown[0] for each in shown)
    assert one.hash == plain_hash(space_of(next(iter(ring.agents.values())), board), shown[0])
    return one


def plain_hash(space: bytes, found: list[FinalRow]) -> bytes:
    """The hash as docs/finals.md says it is made."""
    whole = sha256(b"tallyring final 1" + space)
    for row in found:
        member = row.proof if row.member is None else sha256(row.proof + row.member).digest()
        whole.update(sha256(msgpack.packb([row.rank, row.score, row.reached_ms, member])).digest())
    return whole.digest()


def shown(found: list[FinalRow]) -> list[tuple[int, str | None, int]]:
    return [(row.rank, row.member and row.member.decode(), row.score) for row in found]  # type: ignore[misc]


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


def same_state_of(ring: Ring, *names: str) -> bool:
    return len({ring.agents[name].queue.state.root for name in names}) == 1


async def overridden(ring: Ring) -> Certificate:
    """C has taken p=5 alone and is away; A and B have certified without it."""
    await with_cup(ring)
    await writes_alone(ring, "c", scores(p=5))
    await ring.agents["a"].do(scores(q=4))
    ring.clock.ms = CLOSED
    a = ring.agents["a"]
    await until(lambda: a.certifier.status().waiting.get("c"))
    await a.do(OverrideFinal(space_of(a), 1, ("c",), "the datacentre burnt", "op"))
    told = await certified(ring, version=1)
    assert (told.version, told.agents) == (1, ("a", "b"))
    assert shown(await rows(a)) == [(1, "q", 4)]
    return told


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


async def copies(agent: Agent) -> list[Held]:
    return await agent.readers.read(lambda snapshot: held_of(snapshot, space_of(agent)))


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
