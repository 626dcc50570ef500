"""One simulated process of an agent: the real core over a disk in memory, and a small rim.

What agent/gossip does with sockets is done here with values. The methods are where the rules of
the protocol can be left out (cluster/simulator/rules.py) to show that the simulator notices.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import TypeAlias

from agent import exchange
from agent.committer import Committer
from agent.crdt import incarnation
from agent.crdt.cell import Key, Value
from agent.crdt.document import Status
from agent.errors import DamagedCell, Indefinite
from agent.exchange import Boot, Chunk, PeerView, Reply, Request, Sender
from agent.identity import Confirmation, Evidence, why_burnt
from agent.operation import (
    Announce,
    Answer,
    Burn,
    ChangeMember,
    Complete,
    Fence,
    Merge,
    Merged,
    Operation,
    changes_catalog,
)
from agent.state import NO_BOOT, Alarms, State
from agent.store.identity import Identity
from agent.store.memory import MemorySnapshot
from cluster.simulator.disk import Disk
from cluster.simulator.following import Certifying
from cluster.simulator.script import Settings

HEARD_LATELY_MS = 5_000


@dataclass(frozen=True, slots=True)
class Refusal:
    """A call that was refused: why, and about whom (agent, incarnation)."""

    reason: str  # "self", "fork", "stale_boot" or "removed"
    agent: str
    inc: int


Answered: TypeAlias = Reply | Refusal


class SimulatedAgent:
    """An agent's process at a place. `now_ms` is always its own clock.

    closed: why it takes no more writes; empty if it does.
    damaged: cells that were found damaged and not mended yet.
    heads: the agents whose logs this process has read to the head.
    served: the state that the last reply was made from.
    certifying: what it knows of windows that it has not certified yet.
    seen: what happened to it that a run must prove (a Counter that all agents share).
    """

    store_type: type[Disk] = Disk

    def __init__(
        self, name: str, place: int, disk: Disk, settings: Settings, chance: int, seen: Counter[str]
    ) -> None:
        self.name, self.place, self.disk = name, place, disk
        self.alarms = Alarms()
        self.closed = ""
        self.damaged: set[Key] = set()
        self.views: dict[int, PeerView] = {}
        self.heads: set[str] = set()
        self.served: dict[Key, Value] = {}
        self.certifying = Certifying()
        self._settings, self._seen = settings, seen
        self._logs: dict[int, int] = {}
        self._heard: dict[tuple[str, int], int] = {}
        self._turns: dict[str, tuple[int, int]] = {}
        self._random = Random(chance)
        self._waiting: list[Operation] = []
        self._gone = False
        self.committer = Committer(disk, self.mint)

    def announce(self, now_ms: int) -> None:
        """Tell the ring who this is."""
        self.run([Announce(self.name, f"sim://{self.place}")], now_ms)

    def mint(self, now_ms: int, newest_inc: int) -> tuple[int, int]:
        """(a new incarnation, a new log id)."""
        random_bits = self._random.getrandbits(incarnation.RANDOM_BITS)
        return incarnation.mint(now_ms, random_bits, newest_inc), self.new_log()

    def new_log(self) -> int:
        """A new log id."""
        return self._random.getrandbits(62) + 1

    @property
    def state(self) -> State:
        """The durable state, and the times of this process."""
        return self.committer.state

    @property
    def me(self) -> Sender:
        """This process, as it signs its messages."""
        return Sender(self.name, self.state.inc, self.state.log, self.state.boot)

    @property
    def slot_inc(self) -> int:
        """By what its counter slots are keyed: the incarnation (rule U)."""
        return self.state.inc

    # --- writing ---------------------------------------------------------------------------

    def run(self, operations: Sequence[Operation], now_ms: int) -> list[Answer | Indefinite]:
        """Commit what waits and these operations as one batch; the answers are those of these."""
        waiting, self._waiting = self._waiting, []
        commit = self.committer.run([*waiting, *operations], now_ms)
        self.certifying.committed(commit)
        self.alarms.covered_changed += commit.alarms.covered_changed
        self.alarms.forked += commit.alarms.forked
        self.alarms.peer_ahead += commit.alarms.peer_ahead
        self.alarms.late_facts += commit.alarms.late_facts
        self._seen["late fact"] += commit.alarms.late_facts
        self.damaged.update(commit.damaged)
        if commit.minted:
            self._seen["incarnation renewed"] += 1
        for answer in commit.answers:
            if isinstance(answer, Merged) and not answer.joined:
                self._seen["chunk behind a gap"] += 1
        return commit.answers[len(waiting) :]

    def settle(self, now_ms: int) -> None:
        """Join what waits, and begin the incarnation that the next write will have."""
        self.run([], now_ms)
        if self.state.burnt:
            self.run([Burn(self.state.inc, self.state.burnt)], now_ms)

    def settle_boards(self, now_ms: int) -> None:
        """Join what waits if it may change boards, so that it is known which boards there are."""
        if self.state.burnt or any(changes_catalog(operation) for operation in self._waiting):
            self.settle(now_ms)

    def depart(self, now_ms: int) -> None:
        """Begin to leave: no more writes."""
        self.closed = "leaving"
        self.run([ChangeMember(self.name, Status.LEAVING)], now_ms)

    def drained(self) -> bool:
        """Whether all other members durably have everything, as far as they have told."""
        others = {m.url for m in self.state.ring.active() if m.name != self.name}
        return bool(others) and all(self._holds_all(int(url[len("sim://") :])) for url in others)

    def left(self) -> bool:
        """Whether a member has everything, the note of my own removal included."""
        return self._gone or any(self._holds_all(place) for place in list(self._logs))

    def _holds_all(self, place: int) -> bool:
        view = self.views.get(self._logs.get(place, 0), PeerView())
        if view.vv is None or view.acked is None:
            return False
        covers = all(view.vv.get(inc, 0) >= seq for inc, seq in self.state.vv.items())
        return covers and view.acked == (self.state.log, self.state.lsn)

    # --- who may talk to me ----------------------------------------------------------------

    def admit(self, sender: Sender, now_ms: int, *, confirming: bool = False) -> Refusal | None:
        """Why a call is refused; None if it is not."""
        if sender.boot == self.state.boot:
            return Refusal("self", self.name, sender.inc)
        if sender.agent == self.name:
            self.met_twin(sender.inc)
            return Refusal("fork", self.name, self.state.inc)
        member = self.state.ring.members.get(sender.agent)
        if confirming:
            return None
        if member is not None and member.status == Status.REMOVED:
            self._seen["call of a removed agent"] += 1
            return Refusal("removed", sender.agent, sender.inc)
        fence = self.state.fences.get(sender.inc)
        if fence is not None and sender.boot < fence:
            self._seen["call of an older process"] += 1
            fork = sender.boot.number == fence.number
            return Refusal("fork" if fork else "stale_boot", sender.agent, sender.inc)
        self._heard[sender.agent, sender.boot.nonce] = now_ms
        nonce, turns = self._turns.get(sender.agent, (sender.boot.nonce, 0))
        turns += nonce != sender.boot.nonce
        self._turns[sender.agent] = (sender.boot.nonce, turns)
        if turns > 2:
            self._seen["twin noticed by a peer"] += 1
        return None

    def refused(self, refusal: Refusal, now_ms: int) -> None:
        """Draw the consequence of a refusal that is about me."""
        if refusal.agent != self.name:
            return
        if refusal.reason == "removed" and self.closed == "left":
            self._gone = True
        elif refusal.reason == "removed":
            self.closed = "removed"
        elif refusal.reason in ("stale_boot", "fork") and refusal.inc == self.state.inc:
            self.run([Burn(refusal.inc, "another process followed")], now_ms)
        elif refusal.reason == "fork":
            self.met_twin(refusal.inc)

    def met_twin(self, inc: int) -> None:
        """Another process of my name is alive. The younger incarnation takes no more writes."""
        self._seen["twin met"] += 1
        if self.state.inc > inc:
            self.closed = "fork"

    def confirm(self, sender: Sender, alive: set[int], now_ms: int) -> Confirmation | Refusal:
        """What I know of a process that begins; `alive` are the nonces of those that run."""
        refusal = self.admit(sender, now_ms, confirming=True)
        if refusal is not None:
            return refusal
        before = self.fence(sender, now_ms)
        state = self.state
        member = state.ring.members.get(sender.agent)
        lately = any(
            name == sender.agent and nonce in alive and now_ms - heard < HEARD_LATELY_MS
            for (name, nonce), heard in self._heard.items()
            if nonce != sender.boot.nonce
        )
        reading = state.cursors.get(sender.log)
        return Confirmation(
            seen=max(state.seen.get(sender.inc, 0), state.vv.get(sender.inc, 0)),
            boot=before,
            newest_inc=state.ring.newest_inc(sender.agent),
            read_to=0 if reading is None else reading.lsn,
            status=None if member is None else member.status,
            other_url=member.url if lately and member is not None else "",
        )

    def fence(self, sender: Sender, now_ms: int) -> Boot:
        """Fence off older processes of a sender's incarnation; which was its newest before."""
        before = self.state.fences.get(sender.inc, NO_BOOT)
        self.run([Fence(sender.inc, sender.boot)], now_ms)
        return before

    # --- exchanges -------------------------------------------------------------------------

    def ask(self, place: int, now_ms: int) -> Request | None:
        """My request to the agent at a place; None where a damaged cell is in the way."""
        log = self._logs.get(place, 0)
        view = self.views.get(log, PeerView())
        try:
            return exchange.build_request(
                self.snapshot(), self.me, log, view, self._times(now_ms), self._settings.limits
            )
        except DamagedCell as error:
            self.damaged.add(error.key)
            return None

    def hear(self, request: Request, now_ms: int) -> None:
        """Take a request in: what it tells of the caller, and the changes that it pushes."""
        log = request.sender.log
        view = self.views[log] = exchange.heard_request(self.views.get(log, PeerView()), request)
        if exchange.beyond(request.cursor, self.me, self.state.lsn):
            self.run(
                [
                    Burn(
                        self.state.inc,
                        f"{request.sender.agent} has read further than this file goes",
                    )
                ],
                now_ms,
            )
        push = self.pushed(request)
        if push is not None:
            self._waiting.append(
                self._merge(request.sender.agent, push, exchange.vector_of(request, view))
            )
            self.run([], now_ms)
        elif request.push is not None:
            self._seen["push for another process"] += 1

    def answer(self, request: Request, now_ms: int) -> Reply | None:
        """My reply, of one snapshot that is taken now; None where a damaged cell is in the way."""
        log = request.sender.log
        view = self.views.get(log, PeerView())
        snapshot, self.served = self.serve(request)
        try:
            reply = exchange.build_reply(
                snapshot, self.me, request, view, self._times(now_ms), now_ms, self._settings.limits
            )
        except DamagedCell as error:
            self.damaged.add(error.key)
            return None
        self.views[log] = exchange.answered(view, reply)
        if reply.need_vv:
            self._seen["vector asked for"] += 1
        if reply.chunk is not None and not reply.chunk.head:
            self._seen["transfer cut"] += 1
        return reply

    def conclude(
        self, place: int, request: Request, reply: Reply, now_ms: int, *, waits: bool
    ) -> bool:
        """Take a reply in; its chunk is joined now, or (`waits`) with the next batch.

        False for a reply of a process that is over, or of a removed agent: it is dropped.
        """
        sender = reply.sender
        fence = self.state.fences.get(sender.inc)
        member = self.state.ring.members.get(sender.agent)
        if fence is not None and sender.boot < fence:
            self._seen["reply of an older process"] += 1
            return False
        if member is not None and member.status == Status.REMOVED:
            self._seen["reply of a removed agent"] += 1
            return False
        self._logs[place] = sender.log
        view = exchange.heard_reply(self.views.get(sender.log, PeerView()), request, reply)
        self.views[sender.log] = view
        if exchange.beyond(reply.cursor, self.me, self.state.lsn):
            self.run(
                [Burn(self.state.inc, f"{sender.agent} has read its log further than it goes")],
                now_ms,
            )
        if reply.chunk is None:
            return True
        vv = exchange.vector_of(reply, view)
        self._waiting.append(self._merge(sender.agent, reply.chunk, vv))
        if not waits:
            self.run([], now_ms)
            if reply.chunk.head and vv is not None:
                self.heads.add(sender.agent)
                self._complete(now_ms)
        return True

    def _complete(self, now_ms: int) -> None:
        others = {m.name for m in self.state.ring.active()} - {self.name}
        if not self.state.complete and self.heads >= others:
            self.run([Complete()], now_ms)

    def stream(
        self, peer: str, chunk: Chunk, vv: exchange.VersionVector, now_ms: int
    ) -> Answer | Indefinite:
        """Take in a chunk that a newer agent sends on its own."""
        return self.run([self._merge(peer, chunk, vv)], now_ms)[0]

    # --- where rules can be left out -------------------------------------------------------

    @classmethod
    def decide(cls, settings: Settings, evidence: Evidence) -> tuple[str, bool]:  # noqa: ARG003
        """(why a process can't go on as its incarnation, whether its log id is renewed)."""
        why = why_burnt(evidence)
        return why, bool(why)

    @classmethod
    def identity(cls, settings: Settings, new: Identity, old: State | None) -> Identity:  # noqa: ARG003
        """The identity of a disk that is new at its place; `old` is what was lost there."""
        return new

    @classmethod
    def crashed(cls, settings: Settings, disk: Disk, chance: int) -> None:
        """What a crash does to a disk: nothing (rules A, Q and Y)."""

    def snapshot(self) -> MemorySnapshot:
        """The state for a request, as of now."""
        return self.disk.snapshot()

    def serve(self, request: Request) -> tuple[MemorySnapshot, dict[Key, Value]]:  # noqa: ARG002
        """The state for the reply to a request, as of now, and its cells as they were written."""
        return self.disk.snapshot(), self.disk.values()

    def pushed(self, request: Request) -> Chunk | None:
        """The pushed chunk that may be joined."""
        return exchange.push_to_join(request, self.me)

    def received(self, peer: str, chunk: Chunk) -> Chunk:  # noqa: ARG002 - for rules.py
        """A chunk as it will be joined."""
        return chunk

    def reaches(self, process: Boot) -> bool:
        """Whether a reply to that process of mine reaches me: connections end with a process."""
        return process == self.state.boot

    def _merge(self, peer: str, chunk: Chunk, vv: Mapping[int, int] | None) -> Merge:
        return Merge(peer, self.received(peer, chunk), vv)

    def _times(self, now_ms: int) -> exchange.Times:
        times = self.state.times
        return {**times, self.name: now_ms} if self.state.complete else times
