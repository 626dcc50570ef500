"""Finals of a small ring on real files and sockets: what a test needs to look at them."""

from __future__ import annotations

from hashlib import sha256

import msgpack

from agent.boards.definition import Definition, check
from agent.boards.entry import Entry
from agent.boards.final_rows import FinalRow
from agent.boards.finals import Certificate, Final, OverrideFinal, final_of
from agent.boards.tally import Group
from agent.boards.windows import WindowSpec
from agent.crdt.space import MARKS_SPACE
from agent.operation import Define, Write
from agent.store.finals import held_of, rows_of
from agent.store.snapshot import SqliteSnapshot
from tests.integration.gossip_rig import Agent, until
from tests.integration.keeping_rig import (
    DAY,
    DAY_ID,
    NOON,
    Ring,
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
