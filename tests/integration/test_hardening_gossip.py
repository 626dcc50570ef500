"""Gossip where something is wrong for a while: seeds that come late, peers that are not peers."""

from __future__ import annotations

from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

from agent.exchange import ChunkLimits, build_chunk
from agent.operation import Announce, ChangeMember, Merge
from cluster.proxy import Proxy
from tests.integration.gossip_rig import Agent, running, until


async def test_a_seed_that_comes_late_is_found_by_agents_that_found_each_other(
    tmp_path: Path,
) -> None:
    """They answer each other, so none of them is alone; the seed itself knows nobody."""
    async with AsyncExitStack() as agents:
        first = await agents.enter_async_context(running(tmp_path, "a"))
        door = Proxy(("127.0.0.1", int(first.url.rpartition(":")[2])))
        await door.start()
        agents.push_async_callback(door.stop)
        door.cut()
        seed = f"http://127.0.0.1:{door.address[1]}"
        second = await agents.enter_async_context(running(tmp_path, "b", [seed]))
        third = await agents.enter_async_context(running(tmp_path, "c", [seed, second.url]))
        await until(lambda: len(second.queue.state.ring.active()) == 2)
        await until(lambda: all(p.exchanges > 3 for p in third.peers.status() if p.name == "b"))
        assert len(first.queue.state.ring.active()) == 1
        assert door.traffic.refused_connections + door.traffic.reset_connections > 0
        door.heal()
        found = [first, second, third]
        await until(lambda: all(len(a.queue.state.ring.active()) == 3 for a in found))
        # Met, a seed is not called under its other name any more.
        await until(lambda: all(p.url != seed for a in found for p in a.peers.status()))


async def test_an_address_that_no_resolver_takes_ends_no_agent(tmp_path: Path) -> None:
    """It travels through the ring as a cell, so it would end every agent, at every start."""
    async with AsyncExitStack() as agents:
        # It does not call, so it does not find out by itself either.
        second = await agents.enter_async_context(running(tmp_path, "b", calls=False))
        first = await agents.enter_async_context(running(tmp_path, "a", [second.url]))
        await second.do(Announce("b", "http://eu..example:7401"))
        await until(lambda: any(p.failures > 1 and p.name == "b" for p in first.peers.status()))
        contact = next(peer for peer in first.peers.status() if peer.failures)
        assert "eu..example" in contact.url
        assert contact.last_error.startswith("unreachable")
        await second.add("x", 1)
        await until(lambda: first.total("x"))


async def test_an_address_that_is_not_mine_is_announced_anew(tmp_path: Path) -> None:
    """As after an operator's mistake: where the ring looks for me, nobody answers."""
    async with AsyncExitStack() as agents:
        first = await agents.enter_async_context(running(tmp_path, "a"))
        second = await agents.enter_async_context(running(tmp_path, "b", [first.url]))
        await until(lambda: "b" in first.queue.state.ring.members)
        await first.do(ChangeMember("b", url="http://eu..example:7401"))
        await until(lambda: second.queue.state.ring.members["b"].epoch == 3)
        await until(lambda: first.queue.state.ring.members["b"].url == second.url)


async def test_of_two_agents_at_one_address_the_one_that_answers_is_called(tmp_path: Path) -> None:
    """As after an agent was replaced by one of another name: the ring still has both."""
    async with AsyncExitStack() as agents:
        first = await agents.enter_async_context(running(tmp_path, "a"))
        second = await agents.enter_async_context(running(tmp_path, "b", [first.url]))
        third = await agents.enter_async_context(running(tmp_path, "c", [first.url], calls=False))
        await third.do(Announce("c", second.url))
        log = third.queue.state.log
        news = await third.readers.read(lambda s: build_chunk(s, log, 0, {}, {}, ChunkLimits()))
        await second.do(Merge("c", news, None))  # c itself stays silent
        await until(lambda: "c" in first.queue.state.ring.members)
        late = await agents.enter_async_context(running(tmp_path, "d", [first.url]))
        for agent in (first, late):
            await until(partial(_calls, agent, second))


def _calls(caller: Agent, called: Agent) -> bool:
    peers = caller.peers.status()
    return any(p.url == called.url and p.name == called.name and p.exchanges > 3 for p in peers)


async def test_a_second_agent_of_my_name_is_noticed(tmp_path: Path) -> None:
    async with AsyncExitStack() as agents:
        first = await agents.enter_async_context(running(tmp_path, "a"))
        second = await agents.enter_async_context(running(tmp_path, "b", [first.url]))
        await until(lambda: all(len(x.queue.state.ring.active()) == 2 for x in (first, second)))
        (tmp_path / "elsewhere").mkdir()
        await agents.enter_async_context(running(tmp_path / "elsewhere", "a", [second.url]))
        await until(lambda: "twin" in first.peers.alarms)
