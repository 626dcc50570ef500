"""The world of a run: virtual time, messages in flight, and the checks after every step.

A reply reaches only the process that asked (rule E of docs/protocol.md): as over HTTP, it comes
back on a connection that ends with the process. Everything else may happen to a message: it is
lost, comes twice, comes late, or after one that was sent later. What happens to processes and disks
is in faults.py, the end of a run in ending.py.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Sequence
from random import Random

from agent.crdt.cell import Key, Value
from agent.exchange import Boot, Reply, Request
from agent.operation import Define, Operation, Reset, Retire
from cluster.simulator import events as ev
from cluster.simulator import invariants, keeping
from cluster.simulator.actors import Actors
from cluster.simulator.agent import Answered, Refusal, SimulatedAgent
from cluster.simulator.events import START_MS, Event, told
from cluster.simulator.faults import Faults
from cluster.simulator.finals import Finals
from cluster.simulator.history import History
from cluster.simulator.keyed import KeyedEntries
from cluster.simulator.newer import NewerAgent
from cluster.simulator.place import Place
from cluster.simulator.requests import Requests
from cluster.simulator.script import Settings
from cluster.simulator.sketch import Sketches

LATE_MS = 1_000
DUPLICATES_KEPT_MAX = 60
MOVES_KEPT = 12  # towards finals, each time an agent does its housekeeping


class World:
    """One run. `problems` is empty as long as nothing is wrong; the first one ends the run.

    seen: by kind, how often each fault really happened.
    trace: what happened, in sentences; empty unless asked for.
    delivered: messages that arrived, to be delivered once more at the end.
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
        self.delivered: list[Callable[[], object]] = []
        self._tracing = trace
        self._due: list[tuple[int, int, Callable[[], None]]] = []
        self._count = 0
        self._partitions: list[ev.Partition] = []
        self._newest: Counter[tuple[int, int, str]] = Counter()
        self._claims = [invariants.Claims() for _ in range(settings.agents + 4)]
        self.keyed = KeyedEntries(self.history, self.seen)
        self.actors = Actors(self.history)
        self._requests = Requests(self.history, self.seen, self.keyed, self.actors)
        self.newer = NewerAgent(self.history)
        self.sketches = Sketches(self.history, settings.omit)
        self.places = [
            Place(i, f"a{i}", settings.skews_ms[i], f"redis {i}") for i in range(settings.agents)
        ]
        self.finals = Finals(self.places, self.seen)
        self.faults = Faults(
            settings,
            agent_type,
            self.history,
            self.seen,
            self.places,
            self.clock,
            lambda one, other: self.cut(one, other) or self.cut(other, one),
            self.changed,
            self.keyed.set_back,
        )
        r = Random(f"agents {settings.seed}")
        for place in self.places:
            place.disk = self.faults.new_disk(place, r.getrandbits(62))
            self.faults.boot(place, r.getrandbits(62))

    def run(self, script: Sequence[Event]) -> None:
        """Play a script to its end, with all that is then still in flight."""
        for event in script:
            self._later(event.at - self.now_ms, self._player(event))
        while self._due and not self.problems:
            at, _, act = heapq.heappop(self._due)
            self.now_ms = max(self.now_ms, at)
            act()
            for place in self.places:
                self.faults.mend(place)
                problem = self.faults.leave(place)
                self.problems += [problem] if problem else []

    def _player(self, event: Event) -> Callable[[], None]:
        return lambda: self._play(event)

    def _play(self, event: Event) -> None:
        if not isinstance(event, ev.Exchange):
            self._say(told(event)[13:].strip())
        if isinstance(event, ev.Partition):
            self._partitions.append(event)
            self.seen["partition of 25 h"] += event.until - event.at > ev.HOUR_MS
            return
        if isinstance(
            event, ev.Start | ev.Backup | ev.Clone | ev.ClockJump | ev.Damage | ev.Depart | ev.Join
        ):
            self.faults.play(event)
            return
        agent = self.up(event.place)
        if agent is None:
            return
        now_ms = self.clock(event.place)
        self._do(agent, event, now_ms)
        self.changed(event.place)

    def _do(self, agent: SimulatedAgent, event: Event, now_ms: int) -> None:
        """Play an event at a running process."""
        match event:
            case ev.Writes():
                self.problems += self._requests.send(agent, event, now_ms)
            case ev.Change():
                self._change(agent, event, now_ms)
            case ev.Exchange():
                self._ask(agent, event)
            case ev.Newer():
                if self.newer.stream(agent, event, now_ms):
                    self.seen["unknown kind"] += 1
            case ev.Keep():
                keeping.keep(agent, event.cells_max, now_ms, self.seen)
                if self.settings.theme != "finals":  # there it has events of its own
                    self.certify(event.place, MOVES_KEPT)
            case ev.Moderate():
                keeping.moderate(agent, event, now_ms, self.seen)
            case ev.Contrary():
                self._contrary(agent, event, now_ms)
            case ev.Certify():
                self.certify(event.place, event.moves)
            case ev.Override():
                self.finals.override(agent, event, now_ms)
            case ev.Sketch():
                self.sketches.write(agent, event, now_ms)
            case _:
                raise AssertionError(event)  # of a place, and not of its process

    def _contrary(self, agent: SimulatedAgent, event: ev.Contrary, now_ms: int) -> None:
        other = self.up(event.other)
        if other is not None and other.name != agent.name:
            clocks = now_ms, self.clock(event.other)
            keeping.contrary(agent, other, event, clocks, self.actors, self.seen)
            self.changed(event.other)

    def certify(self, index: int, moves: int) -> bool:
        """Let an agent make moves towards finals; whether it made any."""
        place, places = self.places[index], range(len(self.places))
        cut = {other: self.cut(index, other) or self.cut(other, index) for other in places}
        return self.finals.move(place, self.clock(index), moves, cut)

    def _change(self, agent: SimulatedAgent, event: ev.Change, now_ms: int) -> None:
        operation: Operation
        match event.act, event.definition:
            case "retire", _:
                operation = Retire(event.board)
            case "define", definition if definition is not None:
                operation = Define(event.board, definition)
            case _:
                operation = Reset(event.board, event.definition)
        if not agent.closed:
            agent.run([operation], now_ms)

    # --- messages --------------------------------------------------------------------------

    def _ask(self, caller: SimulatedAgent, event: ev.Exchange) -> None:
        request = caller.ask(event.peer, self.clock(event.place))
        if request is None:
            return
        self.exchanges += 1
        number, process = self.exchanges, caller.state.boot
        self._say(f"#{number} a{event.place} -> a{event.peer}: {_told(request)}")
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

    def _arrive(self, event: ev.Exchange, request: Request, process: Boot, number: int) -> None:
        peer = self.up(event.peer)
        if peer is None or self._was_cut(event.place, event.peer):
            return
        self._in_order(event, "request", number)
        refusal = self._hear(event, request)
        self._kept(lambda: self._hear(event, request))
        if refusal is not None:
            self._say(f"#{number} a{event.peer} refuses: {refusal.reason}")
            self.seen[f"refused: {refusal.reason}"] += 1
            self._send_back(event, request, refusal, {}, process, number)
            return
        answering = peer.state.boot
        self._later(event.thinks, lambda: self._answer(event, request, process, answering, number))

    def _hear(self, event: ev.Exchange, request: Request) -> Refusal | None:
        """Take in a request, unless its sender is refused."""
        peer = self.up(event.peer)
        if peer is None:
            return None
        now_ms = self.clock(event.peer)
        refusal = peer.admit(request.sender, now_ms)
        if refusal is None:
            peer.hear(request, now_ms)
        self.changed(event.peer)
        self._read(event.peer, event.place)
        return refusal

    def _answer(
        self, event: ev.Exchange, request: Request, process: Boot, answering: Boot, number: int
    ) -> None:
        peer = self.up(event.peer)
        if peer is None or peer.state.boot != answering:
            self.seen["crash while answering"] += 1
            return
        reply = peer.answer(request, self.clock(event.peer))
        if reply is not None:
            self._say(f"#{number} a{event.peer} answers: {_told(reply)}")
            self._send_back(event, request, reply, peer.served, process, number)

    def _send_back(
        self,
        event: ev.Exchange,
        request: Request,
        answer: Answered,
        served: dict[Key, Value],
        process: Boot,
        number: int,
    ) -> None:
        def arrives() -> None:
            caller = self.up(event.place)
            if caller is None or self._was_cut(event.peer, event.place):
                return
            if not caller.reaches(process):
                self.seen["reply to a dead process"] += 1
                return
            self._in_order(event, "reply", number)
            self._say(f"#{number} is back at a{event.place} (waits: {event.waits})")
            self._conclude(event, request, answer, served, waits=event.waits)
            self._kept(again)

        def again() -> None:
            caller = self.up(event.place)
            if caller is not None and caller.reaches(process):
                self._conclude(event, request, answer, served, waits=False)

        self._sent("reply", event.answers, arrives)

    def _conclude(
        self,
        event: ev.Exchange,
        request: Request,
        answer: Answered,
        served: dict[Key, Value],
        *,
        waits: bool,
    ) -> None:
        caller, now_ms = self.up(event.place), self.clock(event.place)
        if caller is None:
            return
        if isinstance(answer, Refusal):
            caller.refused(answer, now_ms)
        else:
            caller.conclude(event.peer, request, answer, now_ms, waits=waits)
        self.changed(event.place)
        self._read(event.place, event.peer)
        if not waits and isinstance(answer, Reply) and self.up(event.place) is caller:
            problem = invariants.whole_problem(caller, answer, served, self.history)
            self.problems += [problem] if problem else []

    def _kept(self, act: Callable[[], object]) -> None:
        if len(self.delivered) < DUPLICATES_KEPT_MAX:
            self.delivered.append(act)

    def _was_cut(self, sender: int, reader: int) -> bool:
        cut = self.cut(sender, reader)
        if cut and not self.cut(reader, sender):
            self.seen["deaf"] += 1
        self.seen["partition"] += cut
        return cut

    def _in_order(self, event: ev.Exchange, what: str, number: int) -> None:
        link = (event.place, event.peer, what)
        if number < self._newest[link]:
            self.seen[f"{what} reordered"] += 1
        self._newest[link] = max(self._newest[link], number)

    # --- bookkeeping -----------------------------------------------------------------------

    def up(self, place: int) -> SimulatedAgent | None:
        """The process at a place, if one runs."""
        return self.places[place].agent if place < len(self.places) else None

    def clock(self, place: int) -> int:
        """The clock of a place, in ms."""
        return self.now_ms + self.places[place].off_ms

    def cut(self, sender: int, reader: int) -> bool:
        """Whether nothing arrives from one place at another now."""
        self._partitions = [p for p in self._partitions if p.until > self.now_ms]
        return any(
            reader in p.side if p.deaf else True
            for p in self._partitions
            if (sender in p.side) != (reader in p.side)
        )

    def heal_partitions(self) -> None:
        """From now on everything arrives."""
        self._partitions = []

    def _later(self, delay_ms: int, act: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._due, (self.now_ms + delay_ms, self._count, act))

    def changed(self, index: int) -> None:
        """A process may have committed: take its own rows into the history, and check it all."""
        place = self.places[index]
        agent, disk = place.agent, place.disk
        for back in sorted(self.faults.set_back):
            self._claims[back] = invariants.Claims()
            self.newer.forget(self.places[back].name)
            self.finals.set_back(self.places[back])
        self.faults.set_back.clear()
        if disk is None:
            return
        own, disk.own_rows = disk.own_rows, []
        self.history.committed(place.name, max(place.told_ms, self.clock(index)), own)
        if agent is None:
            return
        changed, disk.changed = disk.changed, []
        problems, disk.problems = disk.problems, []
        if changed and self.settings.keeps:
            problems += self.keyed.problems_of(place.name, changed, disk.values())
            problems += keeping.written_problems(agent, own, self.clock(index))
            problems += self.finals.problems(place, agent, own)
        exempt = self.faults.twins
        problems += invariants.stamp_problems(changed, self.history)
        problems += self._claims[index].problems(agent, self.history, exempt)
        self.problems += [f"{place.name}: {problem}" for problem in problems]

    def _read(self, reader: int, peer: int) -> None:
        """I3, for a reader that may have read further."""
        one, other = self.up(reader), self.up(peer)
        if one is not None and other is not None:
            problem = invariants.cursor_problem(one, other, self.history)
            self.problems += [problem] if problem else []

    def _say(self, sentence: str) -> None:
        if self._tracing:
            self.trace.append(f"{self.now_ms - START_MS:>9} ms  {sentence}")


def _told(message: Request | Reply) -> str:
    """A message in a few words."""
    chunk = message.push if isinstance(message, Request) else message.chunk
    vector = "no vector" if message.vv is None else f"vector {dict(message.vv)}"
    if chunk is None:
        return f"no chunk, {vector}"
    rows = [
        f"{row.member.decode(errors='replace')}/{row.slot[:1].decode(errors='replace')}={row.major}"
        for row in chunk.rows
    ]
    head = ", head" if chunk.head else ""
    return f"rows {chunk.start}..{chunk.to}{head} {rows}, {vector}"
