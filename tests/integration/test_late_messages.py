"""Messages of a removed agent that come late, or again, change nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from agent.crdt.document import Status
from agent.gossip import frame
from agent.operation import ChangeMember
from tests.integration.gossip_rig import POLL_S, Agent, running

Answer = tuple[int, str, bytes]


async def eventually(holds: Callable[[], Awaitable[bool]]) -> None:
    """Wait for a condition; the suite's time limit ends a wait in vain."""
    while not await holds():  # noqa: ASYNC110 -- the others' states have no event here
        await asyncio.sleep(POLL_S)


async def busy(_message: bytes) -> Answer:
    """Stands for a message that is on its way: it was sent, and nobody has read it yet."""
    return 503, "text/plain", b""


def sender_of(message: bytes) -> str:
    return frame.unpack_call(frame.unframe(message)).sender.agent


async def test_late_and_repeated_messages_of_a_removed_agent_change_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with AsyncExitStack() as stack:
        a = await stack.enter_async_context(running(tmp_path, "a"))
        b = await stack.enter_async_context(running(tmp_path, "b", [a.url]))
        c = await stack.enter_async_context(running(tmp_path, "c", [a.url]))
        for agent, amount in ((a, 100), (b, 5), (c, 1_000)):
            await agent.add("m", amount)

        async def all_have(total: int = 1_105) -> bool:
            return [await each.total("m") for each in (a, b, c)] == [total] * 3

        await eventually(all_have)
        sent_before = [m for m in a.inbox if sender_of(m) == "b"]
        with monkeypatch.context() as held:
            held.setattr(a.answering, "answer", busy)
            held.setattr(c.answering, "answer", busy)
            held.setattr(b.answering, "answer", busy)  # nor does anybody fetch it

            async def parted() -> bool:
                links = [each.peers.link_of("b") for each in (a, c)]
                return all(link is not None and link.failures_in_a_row for link in links)

            await eventually(parted)  # no exchange is under way any more
            mark = len(a.inbox)
            await b.add("m", 7)

            async def sent() -> bool:
                return any(sender_of(m) == "b" for m in a.inbox[mark:])

            # It is on its way to a, and nobody of those who stay has it when b is removed.
            await eventually(sent)
            await a.do(ChangeMember("b", Status.REMOVED))
            await c.do(ChangeMember("b", Status.REMOVED))
            late = [m for m in a.inbox[mark:] if sender_of(m) == "b"]
        assert sent_before
        assert late

        async def settled() -> bool:
            return a.queue.state.root == c.queue.state.root

        await eventually(settled)
        root = a.queue.state.root
        for message in late:
            assert (await a.answering.answer(message))[0] == 403
        for message in sent_before:  # its very first was meant for no process yet: 401
            assert (await a.answering.answer(message))[0] in (401, 403)
        assert a.peers.refused["removed"] > len(late)

        async def told() -> bool:
            return "removed" in b.queue.closed

        await eventually(told)
        assert [await each.total("m") for each in (a, c)] == [1_105] * 2
        assert a.queue.state.root == c.queue.state.root == root
        await _goes_on(a, c)


async def _goes_on(a: Agent, c: Agent) -> None:
    await c.add("m", 10_000)

    async def both() -> bool:
        return [await each.total("m") for each in (a, c)] == [11_105] * 2

    await eventually(both)
