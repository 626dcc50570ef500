"""Healing: exchanges without faults, until every agent has read every neighbour to its head."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cluster.simulator.agent import SimulatedAgent
from cluster.simulator.script import Settings

ROUNDS_MAX = 20  # a ring of six needs three
EXCHANGES_MAX = 3_000  # of one pair: each moves a cursor by a row at least


def heal(
    agents: Sequence[SimulatedAgent], settings: Settings, clock: Callable[[int], int]
) -> list[str]:
    """Exchange until all is quiet. Returns what is wrong if it does not get so."""
    for _ in range(ROUNDS_MAX):
        before = [(agent.state.lsn, agent.state.vv) for agent in agents]
        for index in range(len(agents)):
            for peer in settings.peers(index):
                if not _converge(agents, index, peer, clock):
                    return [f"{agents[index].name} and {agents[peer].name} never reach a head"]
        if before == [(agent.state.lsn, agent.state.vv) for agent in agents]:
            return _noise(agents, settings, clock)
    return [f"no convergence in {ROUNDS_MAX} rounds"]


def _converge(
    agents: Sequence[SimulatedAgent], index: int, peer: int, clock: Callable[[int], int]
) -> bool:
    """Exchange until both have read the other to its head."""
    caller, answerer = agents[index], agents[peer]
    for _ in range(EXCHANGES_MAX):
        request = caller.ask(answerer.name, clock(index))
        answerer.hear(request, clock(peer))
        reply = answerer.answer(request, clock(peer))
        caller.conclude(request, reply, clock(index), waits=False)
        pushed = request.push is not None and request.push.head
        if pushed and reply.chunk is not None and reply.chunk.head:
            return True
    return False


def _noise(
    agents: Sequence[SimulatedAgent], settings: Settings, clock: Callable[[int], int]
) -> list[str]:
    """Agents that agree send no rows and no vectors: the filter and the digests do their work."""
    for index, caller in enumerate(agents):
        for peer in settings.peers(index):
            _converge(agents, index, peer, clock)
            request = caller.ask(agents[peer].name, clock(index))
            agents[peer].hear(request, clock(peer))
            reply = agents[peer].answer(request, clock(peer))
            caller.conclude(request, reply, clock(index), waits=False)
            sent = [c.rows for c in (request.push, reply.chunk) if c is not None and c.rows]
            if sent or request.vv is not None or reply.vv is not None:
                return [f"{caller.name} and {agents[peer].name} agree, and still send {sent}"]
    return []
