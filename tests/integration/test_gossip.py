"""Gossip between real agents over real sockets: convergence, proof, replays, hostile messages."""

from __future__ import annotations

import dataclasses
import io
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import aiohttp
import pytest

from agent.boards.definition import Definition, check
from agent.boards.entry import Entry
from agent.boards.tally import Group
from agent.exchange import Boot, Chunk, Reading, Request, Sender
from agent.gossip import frame, proof, wire
from agent.gossip.client import CONTENT_TYPE, PATH
from agent.gossip.frame import Call, Kind, Refusal
from agent.operation import Define, Fence, Write
from tests.integration.gossip_rig import SECRET, Agent, running, until

STRANGER = Sender("stranger", 99, 98, Boot(1, 97))


@pytest.fixture
async def ring(tmp_path: Path) -> AsyncIterator[list[Agent]]:
    """Three agents that found each other through one seed."""
    async with AsyncExitStack() as agents:
        first = await agents.enter_async_context(running(tmp_path, "a"))
        others = [
            await agents.enter_async_context(running(tmp_path, name, [first.url])) for name in "bc"
        ]
        found = [first, *others]
        await until(lambda: all(len(a.queue.state.ring.active()) == 3 for a in found))
        yield found


async def all_see(agents: list[Agent], member: str, total: int) -> None:
    """Wait until every agent has a total."""
    for agent in agents:

        async def sees(agent: Agent = agent) -> bool:
            return await agent.total(member) == total

        await until(sees)


async def test_agents_find_each_other_and_add_up(ring: list[Agent]) -> None:
    for times, agent in enumerate(ring, 1):
        for _ in range(times):
            await agent.add("likes", 10**times)
            await agent.add("likes", -1)
    await all_see(ring, "likes", 10 + 200 + 3000 - 6)


async def test_many_rows_cross_in_small_chunks(ring: list[Agent]) -> None:
    await ring[0].do(Define("b", check(Definition(rule="best", order="low"))))
    entries = [Entry(f"m{i}", score=i, data={"i": i}) for i in range(500)]
    await ring[0].do(Write((Group("b", entries, range(500)),)))

    async def arrived() -> bool:
        states = [agent.queue.state for agent in ring]
        return all(state.vv == states[0].vv for state in states)

    await until(arrived)
    spaces = {agent.queue.state.catalog.board("b").space for agent in ring}
    assert len(spaces) == 1
    (space,) = spaces
    found = [
        await agent.readers.read(lambda s: s.members_after(space, b"", 10_000)) for agent in ring
    ]
    assert len(found[0]) == 500
    assert found[0] == found[1] == found[2]


async def test_times_follow_the_vector(ring: list[Agent]) -> None:
    await ring[0].add("x", 1)
    await until(lambda: all(set(a.queue.state.times) >= {"a", "b", "c"} - {a.name} for a in ring))
    for agent in ring:
        as_of = agent.queue.state.as_of(2**62)
        assert set(as_of) == {"a", "b", "c"}
        assert None not in as_of.values()


async def test_a_restarted_agent_goes_on_where_it_was(tmp_path: Path) -> None:
    async with running(tmp_path, "a") as a:
        async with running(tmp_path, "b", [a.url]) as b:
            await b.add("x", 5)
            await all_see([a, b], "x", 5)
        await a.add("x", 1)
        async with running(tmp_path, "b", [a.url]) as b:
            await b.add("x", 10)
            await all_see([a, b], "x", 16)
            assert {m.name for m in a.queue.state.ring.active()} == {"a", "b"}


async def test_a_wrong_secret_and_another_ring_are_refused(tmp_path: Path) -> None:
    async with (
        running(tmp_path, "a", calls=False) as a,
        running(tmp_path, "liar", [a.url], secret=b"not the ring's own secret") as liar,
        running(tmp_path, "guest", [a.url], ring="other") as guest,
    ):
        for caller, reason in ((liar, "proven"), (guest, "'test'")):
            await until(lambda caller=caller: any(p.failures for p in caller.peers.status()))  # type: ignore[misc]
            await until(
                lambda caller=caller, reason=reason: reason in caller.peers.status()[0].last_error  # type: ignore[misc]
            )
        assert set(a.queue.state.ring.members) == {"a"}
        assert a.peers.refused["other_ring"] > 0
        assert a.peers.refused["unauthorized"] > 0
        await a.add("x", 1)
        assert await a.total("x") == 1


async def test_a_recorded_message_is_refused(ring: list[Agent]) -> None:
    a, b, _ = ring
    await b.add("x", 3)
    await all_see(ring, "x", 3)
    recorded = list(a.inbox)
    before = a.queue.state
    for message in recorded:
        status, _, body = await a.answering.answer(message)
        assert status == 401, body
    assert sum(a.peers.refused.get(reason, 0) for reason in ("replay", "unauthorized")) >= len(
        recorded
    )
    assert a.queue.state.lsn == before.lsn
    # Nor does another agent take it: its challenge is another one.
    status, _, body = await b.answering.answer(recorded[-1])
    assert status == 401
    assert json.loads(body)["code"] == "unauthorized"


def sealed(agent: Agent, request: Request, number: int = 1, ring: str = "test") -> bytes:
    """A well-proven message to an agent."""
    context = proof.request_context(agent.queue.state.boot.nonce)
    call = Call(Kind.EXCHANGE, ring, number, request.sender, wire.pack_request(request))
    return proof.seal(SECRET, context, frame.pack_call(call))


def refusal(body: bytes) -> Refusal:
    """A proven refusal."""
    parts = frame.unframe(body)
    assert parts.refused
    return frame.unpack_refusal(parts)


async def test_identities_that_can_not_be_are_refused(tmp_path: Path) -> None:
    async with running(tmp_path, "a", calls=False) as a:
        me = a.peers.me()
        plain = Request(STRANGER, b"12345678", {}, b"", None)
        cases = [
            (dataclasses.replace(plain, sender=me), 409, "self"),
            (dataclasses.replace(plain, sender=dataclasses.replace(me, inc=5, boot=Boot(1, 2))),
             409, "fork"),
        ]  # fmt: skip
        for number, (request, wanted, code) in enumerate(cases, 1):
            status, _, body = await a.answering.answer(sealed(a, request, number))
            assert (status, refusal(body).code) == (wanted, code)
        status, _, _ = await a.answering.answer(sealed(a, plain, 1))
        assert status == 200
        await a.do(Fence(STRANGER.inc, STRANGER.boot))
        for boot, code in ((Boot(1, 1), "fork"), (Boot(0, 200), "stale_boot")):
            copy = dataclasses.replace(plain, sender=dataclasses.replace(STRANGER, boot=boot))
            status, _, body = await a.answering.answer(sealed(a, copy, 9))
            assert (status, refusal(body).code, refusal(body).agent) == (409, code, "stranger")


async def test_hostile_messages_change_nothing(tmp_path: Path) -> None:
    async with running(tmp_path, "a", calls=False) as a, aiohttp.ClientSession() as session:
        before = a.queue.state
        good = sealed(a, Request(STRANGER, b"12345678", {}, b"", None))
        context = proof.request_context(a.queue.state.boot.nonce)
        hostile = [
            b"",
            b"T",
            good[:-1],
            good[:25],
            b"XX" + good[2:],
            good[:2] + b"\x07" + good[3:],
            bytes(5 * 2**20),
            proof.seal(SECRET, context, b"\xdd\xff\xff\xff\xff"),
            proof.seal(SECRET, context, b"\x91" * 5000),
            proof.seal(SECRET, context, b"\xc1"),
        ]
        for message in hostile:
            async with session.post(a.url + PATH, data=io.BytesIO(message)) as response:
                assert response.status in (400, 401, 413), message[:30]
                body = await response.read()
                if response.content_type == CONTENT_TYPE:  # it had proven the secret
                    assert refusal(body).detail
                    continue
                problem = json.loads(body)
                assert problem["definite"] is True
                assert problem["detail"]
        assert a.queue.state is before
        status, _, _ = await a.answering.answer(good)
        assert status == 200


async def test_a_push_for_another_process_is_ignored(tmp_path: Path) -> None:
    async with running(tmp_path, "a", calls=False) as a:
        chunk = Chunk(STRANGER.log, 0, 1, True, (), {})
        request = Request(STRANGER, b"12345678", {99: 4}, b"", None, chunk, Boot(0, 1))
        status, _, _ = await a.answering.answer(sealed(a, request, 1))
        assert status == 200
        assert STRANGER.log not in a.queue.state.cursors
        assert 99 not in a.queue.state.vv
        mine = dataclasses.replace(request, to_boot=a.queue.state.boot)
        await a.answering.answer(sealed(a, mine, 2))
        assert a.queue.state.cursors[STRANGER.log] == Reading("stranger", 1)
        assert a.queue.state.vv[99] == 4


async def test_an_unknown_digest_is_asked_for(tmp_path: Path) -> None:
    async with running(tmp_path, "a", calls=False) as a:
        request = Request(STRANGER, b"12345678", None, b"", None)
        _, _, body = await a.answering.answer(sealed(a, request, 1))
        reply = wire.unpack_reply(frame.unframe(body))
        assert reply.need_vv
        assert reply.chunk is None
