"""Erasing members on real files and real sockets: every trace goes, everywhere, for good."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from agent.boards.definition import Definition, check
from agent.boards.entry import Entry
from agent.boards.tally import Group
from agent.crdt.sketch import SKETCH_MEMBER
from agent.crdt.slot import Kind, slot_of_replica
from agent.crdt.space import BANS_SPACE
from agent.operation import Define, Erase, Operation, SetBan, Write
from agent.store.snapshot import SqliteSnapshot
from tests.integration.gossip_rig import Agent, until
from tests.integration.keeping_rig import (
    NAMES,
    Ring,
    entry,
    put_back,
    ring_of,
    same_state,
    writes_alone,
)

ERASED = "the-name-of-somebody-9f31"


async def named(agent: Agent) -> list[str]:
    """Where the erased name still stands: cells and entries of the log."""
    name = ERASED.encode()

    def look(snapshot: SqliteSnapshot) -> list[str]:
        found = []
        for space in snapshot.spaces():
            for row, _ in snapshot.cells_after(space, b"", b"", 10_000):
                if name in row.member + b"|" + row.slot + b"|" + row.body:
                    found.append(f"{space!r} {row.member!r} {row.slot!r} {row.body!r}")
        log = snapshot.entries_after(0, 10_000)
        return found + [repr(each) for each in log if name in each[2] + b"|" + each[3]]

    return await agent.readers.read(look)


async def nowhere(agent: Agent) -> bool:
    """Whether neither cells nor the log say the erased name."""
    return not await named(agent)


def unwritten(agent: Agent) -> bool:
    """Whether the bytes of the erased name stand nowhere in an agent's folder."""
    folder = agent.config.agent.data_dir
    return not any(ERASED.encode() in path.read_bytes() for path in folder.iterdir())


async def candidates(agent: Agent) -> set[bytes]:
    """The names of the trend's candidates that an agent itself has written; empty: free."""
    space = agent.queue.state.catalog.board("hot").space
    prefix = slot_of_replica(Kind.TOP, agent.queue.state.inc)
    found = await agent.readers.read(
        lambda snapshot: snapshot.slots_from(space, SKETCH_MEMBER, prefix, b"", 100)
    )
    return {value[2] for _, value in found}


def like(member: str, *actors: str) -> Operation:
    """Likes of a member."""
    entries = [Entry(member, actor=actor) for actor in actors]
    return Write((Group("likes", entries, range(len(entries))),))


async def _let_it_be_known(ring: Ring) -> None:
    """Everything that can bear a name."""
    a = ring.agents["a"]
    await a.do(Define("likes", check(Definition(rule="distinct"))))
    await a.do(Define("hot", check(Definition(rule="trend"))))
    await same_state(ring)
    for name in NAMES:
        agent = ring.agents[name]
        await agent.do(entry(ERASED, f"key-{name}"))
        await agent.do(entry(ERASED))
        await agent.do(entry("somebody else", f"other-{name}"))
        for board_entry in (ERASED, "else"):
            await agent.do(entry(board_entry, board="hot", add=5))
    await a.do(like("photo", ERASED, "x", "y"))
    await a.do(like(ERASED, "x", "y"))
    await a.do(SetBan(ERASED.encode(), "", None, "why", "me"))
    await same_state(ring)


async def test_an_erased_member_goes_everywhere_and_stays_gone(tmp_path: Path) -> None:
    async with ring_of(tmp_path) as ring:
        await _let_it_be_known(ring)
        await writes_alone(ring, "c", entry(ERASED, "key-alone"), like("picture", ERASED))
        a, b = ring.agents["a"], ring.agents["b"]
        assert len(await named(a)) > 10
        await a.do(Erase(ERASED.encode(), b"k" * 16))
        await ring.all(lambda agent: agent.keeper.status().unconfirmed == {"c": 1})
        tombstones = a.queue.state.erased.all()
        assert [each.name for each in tombstones] == [ERASED.encode()]
        for agent in (a, b):
            left = await named(agent)
            assert len(left) == 1, left  # the tombstone, for c
            assert await agent.total("photo", "likes") == 3
            assert not agent.queue.state.bans.of(ERASED.encode())

        assert await candidates(a) == {b"", b"else"}  # the place goes on, and its versions
        dropped = [agent.keeper.counts.dropped for agent in (a, b)]
        await ring.start("c")
        await ring.all(lambda agent: agent.queue.state.erased.all()[0].name is None)
        await ring.all(nowhere)
        await same_state(ring)
        for agent in ring.agents.values():
            assert await agent.total("photo", "likes") == 3
            await until(partial(unwritten, agent))

        await ring.stop("c")
        put_back(ring, "c")
        c = await ring.start("c", put_back=True)
        await until(lambda: c.queue.state.complete)
        await ring.all(nowhere)
        await same_state(ring)
        for agent in (a, b, c):
            assert await agent.total("photo", "likes") == 3
            assert await agent.total("picture", "likes") == 1
        await until(lambda: unwritten(c))
        assert [agent.keeper.counts.dropped for agent in (a, b)] == dropped
        assert await a.readers.read(lambda snapshot: snapshot.rows_in(BANS_SPACE)) == []


async def test_a_new_member_of_a_ring_purges_and_confirms(tmp_path: Path) -> None:
    async with ring_of(tmp_path, ("a", "b")) as ring:
        await ring.agents["a"].do(entry(ERASED, "key"))
        await ring.agents["a"].do(Erase(ERASED.encode(), b"k" * 16))
        await ring.all(lambda agent: agent.queue.state.erased.all()[0].name is None)
        c = await ring.start("c")
        await until(lambda: c.keeper.status().unconfirmed == {} and c.queue.state.erased.all())
        await ring.all(lambda agent: "c" in agent.queue.state.erased.all()[0].confirmed)
        await ring.all(nowhere)


async def test_an_erasure_is_confirmed_once_the_rank_store_has_it_too(tmp_path: Path) -> None:
    async with ring_of(tmp_path, ("a",)) as ring:
        await ring.stop("a")
        in_redis = 0
        a = await ring.start("a", shown=lambda lsn: lsn <= in_redis)
        await a.do(entry(ERASED))
        await a.do(Erase(ERASED.encode(), b"k" * 16))
        await until(lambda: a.keeper.status().purging == 0)
        assert len(await named(a)) == 1
        await a.keeper.turn()
        assert a.keeper.status().unconfirmed == {"a": 1}
        in_redis = a.queue.state.lsn
        await until(lambda: a.queue.state.erased.all()[0].name is None)
