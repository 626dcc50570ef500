"""The world of a run: virtual time, messages in flight, faults, and the healing at the end.

A reply reaches only the process that asked (rule E of docs/protocol.md): as over HTTP, it comes
back on a connection that ends with the process. Everything else may happen to a message: it is
lost, comes twice, comes late, or after one that was sent later.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Sequence
from random import Random
from typing import assert_never

from agent.exchange import Boot, Reply, Request
from agent.operation import Define, Operation, Reset, Retire
from cluster.simulator import invariants
from cluster.simulator.agent import SimulatedAgent
from cluster.simulator.healing import heal
from cluster.simulator.history import History
from cluster.simulator.newer import NewerAgent
from cluster.simulator.requests import Requests
from cluster.simulator.script import (
    START_MS,
    Change,
    Crash,
    Event,
    Exchange,
    Newer,
    Partition,
    Settings,
    Writes,
)

LATE_MS = 1_000
DUPLICATES_KEPT_MAX = 60


class World:
    """One run. `problems` is empty as long as nothing is wrong; the first one ends the run.

    seen: by kind, how often each fault really happened.
    trace: what happened, in sentences; empty unless asked for.
    """

    def __init__(
        self,
        settings: Settings,
        agent_type: type[SimulatedAgent] = SimulatedAgent,
        *,
        trace: bool = False,
    ) -> None:
        self.settings = settings
        self.seen: Counter[str] = Counter()
        self.problems: list[str] = []
        self.trace: list[str] = []
        self.history = History()
        self.now_ms = START_MS
        self.exchanges = 0
        self._tracing = trace
        self._due: list[tuple[int, int, Callable[[], None]]] = []
        self._count = 0
        self._partitions: list[Partition] = []
        self._delivered: list[Callable[[], None]] = []
        self._newest: Counter[tuple[int, int, str]] = Counter()
        self._checked: list[dict[int, int]] = [{} for _ in range(settings.agents)]
        self._requests = Requests(self.history, self.seen)
        self._newer = NewerAgent(self.history)
        r = Random(f"agents {settings.seed}")
        self.agents = [
            agent_type(f"a{i}", settings, r.getrandbits(62), self._clock(i), self.seen)
            for i in range(settings.agents)
        ]
        for index in range(settings.agents):
            self._changed(index)

    def run(self, script: Sequence[Event]) -> None:
        """Play a script to its end, with all that is then still in flight."""
        for event in script:
            self._later(event.at - self.now_ms, self._player(event))
        while self._due and not self.problems:
            at, _, act = heapq.heappop(self._due)
            self.now_ms = max(self.now_ms, at)
            act()

    def _player(self, event: Event) -> Callable[[], None]:
        return lambda: self._play(event)

    def _play(self, event: Event) -> None:
        match event:
            case Writes():
                agent = self.agents[event.agent]
                self._say(f"{agent.name} takes {event.requests} (disk {event.disk})")
                self.problems += self._requests.send(agent, event, self._clock(event.agent))
                self._changed(event.agent)
            case Change():
                self._change(event)
            case Exchange():
                self._ask(event)
            case Crash():
                self._crash(event)
            case Partition():
                self._say(f"partition: {sorted(event.side)} alone until {event.until - START_MS}")
                self._partitions.append(event)
            case Newer():
                self._say(f"the newer agent streams to a{event.agent} (lost: {event.lost})")
                clock = self._clock(event.agent)
                if self._newer.stream(self.agents[event.agent], event, clock):
                    self.seen["unknown kind"] += 1
                self._changed(event.agent)
            case _:
                assert_never(event)

    def _change(self, event: Change) -> None:
        agent = self.agents[event.agent]
        operation: Operation
        match event.act, event.definition:
            case "retire", _:
                operation = Retire(event.board)
            case "define", definition if definition is not None:
                operation = Define(event.board, definition)
            case _:
                operation = Reset(event.board, event.definition)
        answers = agent.run([operation], self._clock(event.agent))
        self._say(f"{agent.name} {operation}: {answers[0]}")
        self._changed(event.agent)

    def _crash(self, event: Crash) -> None:
        agent = self.agents[event.agent]
        self._say(f"{agent.name} crashes{', its disk is lost' if event.wiped else ''}")
        self.seen["disk lost" if event.wiped else "crash"] += 1
        if event.wiped:
            others = [
                {row.key: row.value for _, row in other.disk.rows()}
                for other in self.agents
                if other is not agent
            ]
            self.history.disk_lost(agent.name, [*others, self._newer.cells()])
            self._checked[event.agent] = {}
        agent.restart(event.chance, self._clock(event.agent), wiped=event.wiped)
        self._changed(event.agent)

    # --- messages --------------------------------------------------------------------------

    def _ask(self, event: Exchange) -> None:
        caller, peer = self.agents[event.agent], self.agents[event.peer]
        request = caller.ask(peer.name, self._clock(event.agent))
        self.exchanges += 1
        number, process = self.exchanges, caller.boot
        self._say(f"#{number} {caller.name} -> {peer.name}: {_told(request)}")
        self._sent("request", event.asks, lambda: self._arrive(event, request, process, number))

    def _sent(self, what: str, arrivals: tuple[int, ...], act: Callable[[], None]) -> None:
        if not arrivals:
            self.seen[f"{what} lost"] += 1
        if len(arrivals) > 1:
            self.seen[f"{what} twice"] += 1
        for delay_ms in arrivals:
            if delay_ms >= LATE_MS:
                self.seen[f"{what} late"] += 1
            self._later(delay_ms, act)

    def _arrive(self, event: Exchange, request: Request, process: Boot, number: int) -> None:
        if self._cut(event):
            return
        peer = self.agents[event.peer]
        self._in_order(event, "request", number)
        self._say(f"#{number} reaches {peer.name}")
        peer.hear(request, self._clock(event.peer))
        self._kept(lambda: peer.hear(request, self._clock(event.peer)))
        self._changed(event.peer)
        answering = peer.boot
        self._later(event.thinks, lambda: self._answer(event, request, process, answering, number))

    def _answer(
        self, event: Exchange, request: Request, process: Boot, answering: Boot, number: int
    ) -> None:
        peer = self.agents[event.peer]
        if peer.boot != answering:
            self.seen["crash while answering"] += 1
            return
        reply = peer.answer(request, self._clock(event.peer))
        self._say(f"#{number} {peer.name} answers: {_told(reply)}")
        self._sent(
            "reply", event.answers, lambda: self._return(event, request, reply, process, number)
        )

    def _return(
        self, event: Exchange, request: Request, reply: Reply, process: Boot, number: int
    ) -> None:
        if self._cut(event):
            return
        caller = self.agents[event.agent]
        if not caller.reaches(process):
            self.seen["reply to a dead process"] += 1
            return
        self._in_order(event, "reply", number)
        self._say(f"#{number} is back at {caller.name} (waits: {event.waits})")
        caller.conclude(request, reply, self._clock(event.agent), waits=event.waits)
        self._kept(lambda: self._again(event, request, reply, process))
        self._changed(event.agent)
        problem = invariants.cursor_problem(caller, self.agents[event.peer])
        problem = problem or invariants.cursor_problem(self.agents[event.peer], caller)
        self.problems += [problem] if problem else []

    def _again(self, event: Exchange, request: Request, reply: Reply, process: Boot) -> None:
        caller = self.agents[event.agent]
        if caller.reaches(process):
            caller.conclude(request, reply, self._clock(event.agent), waits=False)

    def _kept(self, act: Callable[[], None]) -> None:
        if len(self._delivered) < DUPLICATES_KEPT_MAX:
            self._delivered.append(act)

    def _cut(self, event: Exchange) -> bool:
        self._partitions = [p for p in self._partitions if p.until > self.now_ms]
        cut = any((event.agent in p.side) != (event.peer in p.side) for p in self._partitions)
        if cut:
            self.seen["partition"] += 1
        return cut

    def _in_order(self, event: Exchange, what: str, number: int) -> None:
        link = (event.agent, event.peer, what)
        if number < self._newest[link]:
            self.seen[f"{what} reordered"] += 1
        self._newest[link] = max(self._newest[link], number)

    # --- healing ---------------------------------------------------------------------------

    def heal(self) -> None:
        """Let every pair exchange without faults, then check every answer, and late duplicates."""
        self._newer.finish(self.agents[0], self._clock(0))
        self._changed(0)
        self._converge()
        if any(board.overruled for board in self.agents[0].state.catalog):
            self.seen["definition overruled"] += 1
        before = self._cells()
        for act in self._delivered:
            act()
        if self.problems or self._cells() == before:
            return
        # What only a lost disk held may still be in a message that a full disk refused to join.
        if self.seen["disk lost"]:
            self._converge()
        else:
            self.problems.append("messages that came once more changed cells")

    def _converge(self) -> None:
        self.problems += heal(self.agents, self.settings, self._clock)
        self.problems += invariants.final_problems(self.agents, self.history)

    def _cells(self) -> list[list[object]]:
        return [[row for _, row in agent.disk.rows()] for agent in self.agents]

    # --- bookkeeping -----------------------------------------------------------------------

    def _clock(self, agent: int) -> int:
        return self.now_ms + self.settings.skews_ms[agent]

    def _later(self, delay_ms: int, act: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._due, (self.now_ms + delay_ms, self._count, act))

    def _changed(self, index: int) -> None:
        """An agent may have committed: take its own rows into the history, check what it claims."""
        agent = self.agents[index]
        rows, agent.disk.own_rows = agent.disk.own_rows, []
        self.history.committed(agent.name, self._clock(index), rows)
        problem = invariants.cover_problem(agent, self.history, self._checked[index])
        self.problems += [problem] if problem else []

    def _say(self, sentence: str) -> None:
        if self._tracing:
            self.trace.append(f"{self.now_ms - START_MS:>7} ms  {sentence}")


def _told(message: Request | Reply) -> str:
    """A message in a few words."""
    chunk = message.push if isinstance(message, Request) else message.chunk
    vector = "no vector" if message.vv is None else f"vector {dict(message.vv)}"
    if chunk is None:
        return f"no chunk, {vector}"
    rows = [f"{row.member.decode()}/{row.slot[:1].decode()}={row.major}" for row in chunk.rows]
    head = ", head" if chunk.head else ""
    return f"rows {chunk.start}..{chunk.to}{head} {rows}, {vector}"
