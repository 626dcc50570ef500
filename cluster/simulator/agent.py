"""One simulated agent: the real core over a store in memory, and a rim of a few lines around it.

What agent/gossip does with sockets is done here with values. The methods are where the rules of
the protocol can be left out: tests override one to show that the simulator notices.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Sequence

from agent import exchange
from agent.apply import Alarms, Outcome, State
from agent.commit import Committer
from agent.crdt import incarnation
from agent.crdt.cell import Key, Row, Value
from agent.errors import Indefinite
from agent.exchange import Boot, Chunk, PeerView, Reply, Request, Sender
from agent.operation import Announce, Answer, Merge, Merged, Operation, changes_catalog
from agent.store.identity import Identity
from agent.store.memory import MemoryStore
from cluster.simulator.script import Settings


class Disk(MemoryStore):
    """A store that keeps a record of what its agent wrote, and fails when told to.

    fails: what the next commit does: "works", "refuses" (nothing is stored) or "is uncertain" (all
        is stored, and the commit fails).
    own_rows: what this agent wrote itself since it was last asked.
    """

    def __init__(self, identity: Identity) -> None:
        super().__init__(identity)
        self.fails = "works"
        self.own_rows: list[Row] = []

    def commit(self, before: State, outcome: Outcome, new_cells: int) -> None:
        """Make an outcome durable, or fail as told."""
        fails, self.fails = self.fails, "works"
        self.uncertain = False
        if fails == "refuses":
            raise sqlite3.OperationalError("database or disk is full")
        super().commit(before, outcome, new_cells)
        stamp = (before.inc, before.seq + 1)
        self.own_rows += [row for row in outcome.rows if row[6:] == stamp]
        if fails == "is uncertain":
            self.uncertain = True
            raise sqlite3.OperationalError("disk I/O error")

    def value(self, key: Key) -> Value | None:
        """The durable value of a cell."""
        row = self._rows.get(key)
        return None if row is None else row.value

    def rows(self) -> list[tuple[int, Row]]:
        """Every cell with its lsn, in the order of the log."""
        return [(lsn, self._rows[key]) for key, lsn in self._lsns.items()]


class SimulatedAgent:
    """An agent and its current process. `now_ms` is always its own clock.

    seen: what happened to it that a run must prove (a Counter that all agents share).
    """

    store_type: type[Disk] = Disk

    def __init__(
        self, name: str, settings: Settings, chance: int, now_ms: int, seen: Counter[str]
    ) -> None:
        self.name = name
        self.alarms = Alarms()
        self._limits = settings.limits
        self._seen = seen
        self.disk = self.new_disk(chance, now_ms)
        self.start(chance, now_ms)

    def new_disk(self, chance: int, now_ms: int) -> Disk:
        """An empty disk: a new incarnation, and a new log."""
        inc = incarnation.mint(now_ms, chance)
        return self.store_type(Identity("sim", self.name, self.name, inc, (chance >> 1) + 1))

    def start(self, chance: int, now_ms: int) -> None:
        """Begin a process: everything that is not on the disk is new."""
        self.committer = Committer(self.disk)
        self.views: dict[str, PeerView] = {}
        self.boot = Boot(self.disk.boot_number, chance)
        self._waiting: list[Operation] = []
        self.run([Announce(self.name, f"sim://{self.name}", self.disk.boot_number)], now_ms)

    def restart(self, chance: int, now_ms: int, *, wiped: bool) -> None:
        """End the process and begin another, with what was durable or with an empty disk."""
        if wiped:
            self.disk = self.new_disk(chance, now_ms)
        else:
            self.disk.reboot()
        self.start(chance, now_ms)

    @property
    def state(self) -> State:
        """The durable state, and the times of this process."""
        return self.committer.state

    @property
    def me(self) -> Sender:
        """This process, as it signs its messages."""
        return Sender(self.name, self.state.inc, self.state.log, self.boot)

    def run(self, operations: Sequence[Operation], now_ms: int) -> list[Answer | Indefinite]:
        """Commit what waits and these operations as one batch; the answers are those of these."""
        waiting, self._waiting = self._waiting, []
        commit = self.committer.run([*waiting, *operations], now_ms)
        self.alarms.covered_changed += commit.alarms.covered_changed
        self.alarms.forked += commit.alarms.forked
        self.alarms.peer_ahead += commit.alarms.peer_ahead
        for answer in commit.answers:
            if isinstance(answer, Merged) and not answer.joined:
                self._seen["chunk behind a gap"] += 1
        return commit.answers[len(waiting) :]

    def ask(self, peer: str, now_ms: int) -> Request:
        """My request to a peer."""
        view = self.views.get(peer, PeerView())
        snapshot = self.disk.snapshot()
        return exchange.build_request(
            snapshot, self.me, peer, view, self._times(now_ms), self._limits
        )

    def hear(self, request: Request, now_ms: int) -> None:
        """Take a request in: what it tells of the caller, and the changes that it pushes."""
        name = request.sender.agent
        view = self.views[name] = exchange.heard_request(self.views.get(name, PeerView()), request)
        push = self.pushed(request)
        if push is not None:
            self.run([self._merge(name, push, exchange.vector_of(request, view))], now_ms)
        elif request.push is not None:
            self._seen["push for another process"] += 1

    def answer(self, request: Request, now_ms: int) -> Reply:
        """My reply, of one snapshot that is taken now."""
        reply = exchange.build_reply(
            self.disk.snapshot(),
            self.me,
            request,
            self.views.get(request.sender.agent, PeerView()),
            self._times(now_ms),
            now_ms,
            self._limits,
        )
        if reply.need_vv:
            self._seen["vector asked for"] += 1
        if reply.chunk is not None and not reply.chunk.head:
            self._seen["transfer cut"] += 1
        return reply

    def conclude(self, request: Request, reply: Reply, now_ms: int, *, waits: bool) -> None:
        """Take a reply in; its chunk is joined now, or (`waits`) with the next batch."""
        name = reply.sender.agent
        view = exchange.heard_reply(self.views.get(name, PeerView()), request, reply)
        self.views[name] = view
        if reply.chunk is not None:
            vv = exchange.vector_of(reply, view)
            self._waiting.append(self._merge(name, reply.chunk, vv))
            if not waits:
                self.run([], now_ms)

    def settle_boards(self, now_ms: int) -> None:
        """Join what waits if it may change boards, so that it is known which boards there are."""
        if any(changes_catalog(operation) for operation in self._waiting):
            self.run([], now_ms)

    def stream(
        self, peer: str, chunk: Chunk, vv: exchange.VersionVector, now_ms: int
    ) -> Answer | Indefinite:
        """Take in a chunk that a newer agent sends on its own."""
        return self.run([self._merge(peer, chunk, vv)], now_ms)[0]

    def pushed(self, request: Request) -> Chunk | None:
        """The pushed chunk that may be joined."""
        return exchange.push_to_join(request, self.me)

    def received(self, chunk: Chunk) -> Chunk:
        """A chunk as it will be joined."""
        return chunk

    def reaches(self, process: Boot) -> bool:
        """Whether a reply to that process of mine reaches me: connections end with a process."""
        return process == self.boot

    def _merge(self, peer: str, chunk: Chunk, vv: exchange.VersionVector | None) -> Merge:
        return Merge(peer, self.received(chunk), vv)

    def _times(self, now_ms: int) -> exchange.Times:
        return {**self.state.times, self.name: now_ms}
