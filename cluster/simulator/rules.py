"""The rules of docs/protocol.md as switches: what an agent does that leaves some of them out.

Each switch breaks the path that the rule is about: in the rim (`WithoutRules`), in the disk, or by
a patch of the product's functions (`patched`). Those of finals are in final_rules.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from random import Random
from unittest import mock

from agent import apply, draft, exchange
from agent.boards import sums
from agent.boards.marks import Marks
from agent.boards.tally import Effect
from agent.crdt import counter, fact, flag
from agent.crdt.cell import Key, Row, Value
from agent.crdt.slot import Kind, key_in, slot_of_key, slot_of_replica
from agent.crdt.space import decode_space
from agent.draft import Draft
from agent.errors import Indefinite
from agent.exchange import Boot, Chunk, Cursor, Reply, Request, Sender
from agent.identity import Confirmation, Evidence, why_burnt
from agent.operation import Answer, Operation, Write
from agent.state import NO_BOOT, Outcome, State
from agent.store.identity import Identity
from agent.store.memory import MemorySnapshot
from cluster.simulator import final_rules, sketch
from cluster.simulator.agent import SimulatedAgent
from cluster.simulator.disk import Disk
from cluster.simulator.final_rules import FINAL_RULES
from cluster.simulator.script import Settings

RULES = {
    "A": "rows, vector and cursor change in one transaction",
    "P": "rows are sent in log order",
    "S": "vector and rows are read in one snapshot",
    "Q": "seq is durable in the transaction of its rows",
    "I": "a new incarnation after a restore, a lost tail, a lost disk",
    "U": "counter slots are keyed by incarnation, not by agent",
    "C": "a cursor names the log it is about",
    "R": "a log has a new id whenever its numbers may begin again",
    "E": "a reply belongs to the process that asked, a push to the one it was filtered for",
    "T": "the order of values is total over every byte",
    "H": "a cell that several agents write is a chain, else one incarnation writes it",
    "D": "no received row is dropped",
    "L": "the vector is claimed only at the head of a log",
    "B": "every change moves its row to the end of the log",
    "Y": "what is acknowledged is durable",
    "V": "a fact carries what its slots held after it",
    "O": "a fact comes before its slots",
    "W": "duplicates are taken out by voids, not by the loser's own slot",
    "X": "the first fact of a key counts window by window, not as a whole",
    "J": "facts are collected once all members have acknowledged, not once all have closed",
    "1": "an agent writes nothing into what it has closed",
    "F": "a like raises the length of its flag also where it is odd",
    "N": "all members confirm an incarnation before it goes on",
    "Z": "that confirmation fences off older processes",
    **FINAL_RULES,
}
_NOTHING_KNOWN = Confirmation(0, NO_BOOT, 0, 0, None)  # rule N left out: all members nod
SAVED_EVERY = 3  # rule Q left out: the seq is saved with every third commit
COMPENSATES = 2**62  # rule W left out: marks the slots that take duplicates out
TAIL_LOST = 2  # rule Y left out: commits that a crash loses


class _Disk(Disk):
    """A disk on which cells keep their place (B), or the seq is saved now and then (Q)."""

    def commit(self, before: State, outcome: Outcome, new_cells: int) -> None:
        places = dict(self._lsns)
        super().commit(before, outcome, new_cells)
        if "B" in self.omit:
            both = {key: places.get(key, lsn) for key, lsn in self._lsns.items()}
            self._lsns = dict(sorted(both.items(), key=lambda place: place[1]))

    def begin(
        self, nonce: int, new_log: int | None = None, burnt: str = "", above: int = 0
    ) -> Boot:
        state = self._state
        if "Q" in self.omit and not burnt:
            seq = state.seq - state.seq % SAVED_EVERY
            self._state = replace(state, seq=seq, vv={**state.vv, state.inc: seq})
        return super().begin(nonce, new_log, burnt, above)


class _Mixed(MemorySnapshot):
    """A state whose log is told in any order (P), or whose vector is of a later one (S)."""

    def __init__(self, disk: Disk, *, shuffled: bool, vector_of: Disk | None = None) -> None:
        super().__init__(dict(disk._rows), dict(disk._lsns), dict(disk._prints), disk._state)
        self._later = vector_of
        if shuffled:
            Random(len(self._log)).shuffle(self._log)

    def log_after(self, lsn: int, limit: int) -> Iterator[tuple[int, Row | None]]:
        after = [(at, self._rows[key]) for at, key in self._log if at > lsn]
        yield from after[:limit]

    @property
    def vv(self) -> exchange.VersionVector:
        return self._state.vv if self._later is None else self._later.state().vv


class WithoutRules(SimulatedAgent):
    """An agent that leaves out the rules that the settings of the run name."""

    store_type = _Disk

    def __init__(
        self, name: str, place: int, disk: Disk, settings: Settings, chance: int, seen: Counter[str]
    ) -> None:
        self.omit = settings.omit
        self._begun_ms = 0
        self._heard_at: dict[int, tuple[MemorySnapshot, dict[Key, Value]]] = {}
        super().__init__(name, place, disk, settings, chance, seen)

    @classmethod
    def decide(cls, settings: Settings, evidence: Evidence) -> tuple[str, bool]:
        """Rules N, I and R."""
        if "N" in settings.omit:
            nods = dict.fromkeys(evidence.answers, _NOTHING_KNOWN)
            evidence = replace(evidence, answers=nods)
        why = why_burnt(evidence)
        renews = bool(why) and "R" not in settings.omit
        return ("" if "I" in settings.omit else why), renews

    @classmethod
    def identity(cls, settings: Settings, new: Identity, old: State | None) -> Identity:
        """Rules I and R, of a new disk."""
        if old is not None and "I" in settings.omit:
            new = replace(new, inc=old.inc)
        if old is not None and "R" in settings.omit:
            new = replace(new, log=old.log)
        _owners[new.inc] = _agent_inc(new.agent)
        return new

    @classmethod
    def crashed(cls, settings: Settings, disk: Disk, chance: int) -> None:
        """Rules A and Y."""
        if "A" in settings.omit and chance % 4:
            disk.tear()
        if "Y" in settings.omit:
            disk.lose_tail(1 + chance % TAIL_LOST)

    @property
    def slot_inc(self) -> int:
        """Rule U."""
        return _agent_inc(self.name) if "U" in self.omit else self.state.inc

    def mint(self, now_ms: int, newest_inc: int) -> tuple[int, int]:
        """Rules I and R, of an incarnation that is found burnt."""
        inc, log = super().mint(now_ms, newest_inc)
        state = self.disk.state()
        if "I" in self.omit:
            inc = state.inc
        _owners[inc] = _agent_inc(self.name)
        return inc, state.log if "R" in self.omit else log

    def run(self, operations: Sequence[Operation], now_ms: int) -> list[Answer | Indefinite]:
        """Rule K: entries go by the time of before its start, for a while."""
        self._begun_ms = self._begun_ms or now_ms
        late = now_ms < self._begun_ms + final_rules.SLOW_MS and self.state.boot.number > 1
        if "K" in self.omit and late and any(isinstance(its, Write) for its in operations):
            now_ms -= final_rules.SLOW_MS
        return super().run(operations, now_ms)

    def fence(self, sender: Sender, now_ms: int) -> Boot:
        """Rule Z."""
        if "Z" in self.omit:
            return self.state.fences.get(sender.inc, NO_BOOT)
        return super().fence(sender, now_ms)

    def snapshot(self) -> MemorySnapshot:
        """Rule P."""
        if "P" in self.omit:
            return _Mixed(self.disk, shuffled=True)
        return super().snapshot()

    def serve(self, request: Request) -> tuple[MemorySnapshot, dict[Key, Value]]:
        """Rules P and S: the rows are of when the request came, the vector is of now."""
        if "S" in self.omit and request.sender.log in self._heard_at:
            return self._heard_at[request.sender.log]
        return self.snapshot(), self.disk.values()

    def ask(self, place: int, now_ms: int) -> Request | None:
        """Rule C: the cursor is on the agent's log, whichever that is now."""
        request = super().ask(place, now_ms)
        if request is not None and "C" in self.omit:
            reading = self.state.cursors.get(place + 1)
            cursor = None if reading is None else Cursor(place + 1, reading.lsn)
            request = replace(request, cursor=cursor)
        return request

    def hear(self, request: Request, now_ms: int) -> None:
        """Rules C and S."""
        super().hear(self._on_my_log(request), now_ms)
        if "S" in self.omit:
            mixed = _Mixed(self.disk, shuffled=False, vector_of=self.disk)
            self._heard_at[request.sender.log] = (mixed, self.disk.values())

    def answer(self, request: Request, now_ms: int) -> Reply | None:
        """Rule C."""
        reply = super().answer(self._on_my_log(request), now_ms)
        if reply is not None and "C" in self.omit:
            reading = self.state.cursors.get(int(request.sender.agent[1:]) + 1)
            cursor = None if reading is None else Cursor(request.sender.log, reading.lsn)
            reply = replace(reply, cursor=cursor)
        return reply

    def _on_my_log(self, request: Request) -> Request:
        if "C" not in self.omit or request.cursor is None:
            return request
        return replace(request, cursor=Cursor(self.state.log, request.cursor.lsn))

    def pushed(self, request: Request) -> Chunk | None:
        """Rule E, of a push."""
        return request.push if "E" in self.omit else super().pushed(request)

    def reaches(self, process: Boot) -> bool:
        """Rule E, of a reply."""
        return "E" in self.omit or super().reaches(process)

    def received(self, peer: str, chunk: Chunk) -> Chunk:
        """Rules C, D, L and T."""
        if "C" in self.omit and peer.startswith("a"):
            chunk = replace(chunk, log=int(peer[1:]) + 1)
        if "L" in self.omit:
            chunk = replace(chunk, head=True)
        if "D" in self.omit:
            kinds = set(Kind)
            chunk = replace(chunk, rows=tuple(r for r in chunk.rows if r.slot[0] in kinds))
        if "T" in self.omit:
            chunk = replace(chunk, rows=tuple(r for r in chunk.rows if not self._tied(r)))
        return chunk

    def _tied(self, row: Row) -> bool:
        mine = self.disk.value(row.key)
        return mine is not None and mine[:2] == row.value[:2]


@contextmanager
def patched(omit: frozenset[str]) -> Iterator[None]:
    """The product's functions without the rules U, H, V, O, W, X, J, 1, F and those of finals."""
    changes: dict[str, list[tuple[object, str, object]]] = {
        "U": [(sums, "slot_of_replica", _slot_of_agent)],
        "H": [(Draft, "join", _joining_registers(Draft.join))],
        "V": [(draft, "implied", _nothing_implied)],
        "O": [(apply._Applying, "_take_effect", _slots_first)],
        "W": [(Draft, "_void_excess", _compensate)],
        "X": [(fact, "excess", _excess_as_a_whole(fact.excess))],
        "J": [(Marks, "of", _closed_is_acknowledged(Marks.of))],
        "1": [(Marks, "closed_by", _never_closed)],
        "F": [(flag, "on", _on_is_on(flag.on))],
        **final_rules.changes(),
    }
    with ExitStack() as stack:
        for letter in sorted(omit & changes.keys()):
            for owner, name, new in changes[letter]:
                stack.enter_context(mock.patch.object(owner, name, new))
        yield


def _nothing_implied(row: Row) -> list[Row]:  # noqa: ARG001 -- see agent.facts.implied
    return []


def _slots_first(applying: apply._Applying, effect: Effect) -> None:
    """Rule O left out: a batch's facts stand in the log behind its slots."""
    its = applying.draft
    for key, value in effect.values.items():
        its.write(key, value)
    for key, said in effect.facts:
        its.tell(key, said)
    its.totals.update(effect.totals)
    if effect.hlc != its.state.hlc:
        its.state = replace(its.state, hlc=effect.hlc)


def _compensate(its: Draft, row: Row) -> None:
    """Rule W left out: whoever counted a duplicate takes it out through its own `-` slot."""
    space, said = decode_space(row.space), fact.unpack(row.value)
    if space is None or said is None:
        return
    key, inc = key_in(row.slot)
    groups = sums.fact_groups(space.board, row.member, key, said.at_ms)
    others = [other for other in its.facts(groups) if other != (inc, said)]
    for place, loser, amount in fact.excess(space.board, (inc, said), others):
        done = (place, row.member, b"w" + slot_of_key(Kind.VOID, key, loser))
        if its.state.ring.agents.get(loser) != its.state.agent or its.value(done) is not None:
            continue
        its.write(done, (1, 0, b""))
        kind = Kind.DOWN if amount > 0 else Kind.UP
        # A slot of its own beside that of its entries, so that those can be judged for themselves.
        slot = (place, row.member, slot_of_replica(kind, its.state.inc | COMPENSATES))
        current = its.row(slot)
        before = None if current is None else current.value
        its.write(slot, counter.add(before, abs(amount), -(2**63)))
        its.tally(its.rows[slot], current)


def _excess_as_a_whole(excess: Callable[..., list[fact.Excess]]) -> Callable[..., object]:
    """Rule X left out: the first fact wins as a whole, and all other effects give way."""

    def whole(
        board: str, one: tuple[int, fact.Fact], others: Iterable[tuple[int, fact.Fact]]
    ) -> list[fact.Excess]:
        facts = [one, *others]
        first = min(facts, key=lambda its: (its[1].hlc, its[0]))
        found = excess(board, one, others)
        for inc, said in facts if len(facts) > 1 else ():
            for effect in said.effects if (inc, said) != first else ():
                place = fact.space_of(board, said.generation, effect)
                found += [] if place is None else [fact.Excess(place, inc, effect.amount)]
        return sorted(set(found))

    return whole


def _closed_is_acknowledged(of: Callable[..., object]) -> Callable[..., object]:
    """Rule J left out: a close mark is taken for an acknowledgement."""

    def closes(its: Marks, kind: Kind, series: bytes) -> object:
        return of(its, Kind.CLOSE if kind == Kind.ACK else kind, series)

    return closes


def _never_closed(its: Marks, agent: str, series: bytes, window: str) -> bool:  # noqa: ARG001
    return False


def _on_is_on(on: Callable[..., Value]) -> Callable[..., Value]:
    """Rule F left out: a flag that is on stays as it is."""

    def kept(value: Value | None, minor: int = 0, body: bytes = b"") -> Value:
        if value is not None and value[0] % 2:
            return value
        return on(value, minor, body)

    return kept


_owners: dict[int, int] = {}


def _agent_inc(name: str) -> int:
    return int(name[1:]) + 1


def _slot_of_agent(kind: Kind, inc: int, part: bytes = b"") -> bytes:
    return slot_of_replica(kind, _owners.get(inc, inc), part)


def _joining_registers(join: Callable[[Draft, Row], bool]) -> Callable[..., bool]:
    """A join under which the shared sketch has the greater of each register."""

    def joined(its: Draft, row: Row) -> bool:
        mine = its.row(row.key)
        if row.key != sketch.SHARED or mine is None:
            return join(its, row)
        body = sketch.merged(mine.body, row.body)
        if body == mine.body:
            return False
        its.put(row._replace(body=body))
        return True

    return joined
