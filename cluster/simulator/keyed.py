"""Keyed entries, counted once in the whole ring: facts and voids over the real cells.

The product does not have them yet; they are simulated here first (rules V, O and W). An entry with
key K at incarnation i writes a fact `(space, member, F K i)` that says what it did to which slots
and what they held afterwards, and then the slots. Whoever holds two facts of one key takes the
later one's effects out again, space by space, with void cells: constants that any agent may write.

    score of a member in a space = its slots - the voids of its space

V: whoever has a fact has its increments: a fact that is joined also joins the slots as they were
after it. O: the fact has the lower lsn, so whoever has an increment has its fact (I6). W: voids,
not compensation through the loser's own slot.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import msgpack

from agent.crdt.cell import Key, Row, Value, row_of
from agent.crdt.slot import Kind, slot_of_key, slot_of_replica
from agent.crdt.space import NO_SHAPE, Space, encode_space
from agent.exchange import Chunk
from agent.operation import Import
from cluster.simulator.agent import SimulatedAgent
from cluster.simulator.events import Keyed
from cluster.simulator.history import History

SPACES = {w: encode_space(Space("keyed", 0, NO_SHAPE, w)) for w in ("all", "day")}
MEMBER = b"ada"
FACT, VOID, UP, DOWN = bytes([Kind.FACT]), bytes([Kind.VOID]), bytes([Kind.UP]), bytes([Kind.DOWN])


@dataclass(frozen=True, slots=True)
class Fact:
    """What a fact says.

    effects: (space, amount, what the slot held afterwards, its time).
    """

    key: bytes
    inc: int
    hlc: int
    effects: tuple[tuple[bytes, int, int, int], ...]


@dataclass(frozen=True, slots=True)
class Applied:
    """An acknowledged application: of which key, and which slot holds what because of it."""

    key: bytes
    amount: int
    slot: Key
    after: int
    fact: Key


class KeyedEntries:
    """All keyed entries of a run, and whether each is counted once."""

    def __init__(self, history: History, omit: frozenset[str], seen: Counter[str]) -> None:
        self._history = history
        self._omit = omit
        self._seen = seen
        self._applied: list[Applied] = []
        self._processes: dict[int, SimulatedAgent] = {}

    def count(self, agent: SimulatedAgent, event: Keyed, now_ms: int) -> None:
        """Count an entry, unless its key was counted here."""
        if agent.closed:
            return
        agent.settle(now_ms)
        key, cells = event.key.to_bytes(4), agent.disk.values()
        if any(fact.key == key for fact in _facts(cells)):
            self._seen["key known"] += 1
            return
        inc = agent.slot_inc
        slots: list[Row] = []
        effects = []
        for window in event.windows:
            slot = (SPACES[window], MEMBER, slot_of_replica(Kind.UP, inc))
            after = cells.get(slot, (0, 0, b""))[0] + event.amount
            slots.append(row_of((*slot, after, now_ms, b"", 0, 0)))
            effects.append((SPACES[window], event.amount, after, now_ms))
        fact = (SPACES["all"], MEMBER, slot_of_key(Kind.FACT, key, inc))
        body: bytes = msgpack.packb(effects)
        told = row_of((*fact, now_ms << 16, 0, body, 0, 0))
        agent.run([Import((*slots, told) if "O" in self._omit else (told, *slots))], now_ms)
        if agent.disk.value(fact) is None:
            return
        self._applied += [Applied(key, event.amount, s.key, s.major, fact) for s in slots]

    def expand(self, chunk: Chunk) -> Chunk:
        """A chunk in which every fact is followed by the slots as they were after it (rule V)."""
        if "V" in self._omit or not any(row.slot[:1] == FACT for row in chunk.rows):
            return chunk
        rows: list[Row] = []
        for row in chunk.rows:
            rows.append(row)
            fact = _fact(row.key, row.value)
            if fact is not None:
                rows += [
                    row_of((space, row.member, UP + row.slot[-8:], after, at_ms, b"", *row[6:]))
                    for space, _, after, at_ms in fact.effects
                ]
        return replace(chunk, rows=tuple(rows))

    def step(self, agent: SimulatedAgent, now_ms: int) -> list[str]:
        """After a commit: take duplicates out, and check that no slot came before its fact."""
        fresh = self._processes.get(agent.place) is not agent
        self._processes[agent.place] = agent
        changed = list(agent.disk.changed)
        if fresh or any(row.slot[:1] == FACT for row in changed):
            rows = tuple(self._voids(agent))
            if rows:
                agent.run([Import(rows)], now_ms)
                self._seen["key counted twice"] += 1
        return [problem for row in changed if (problem := self._causal(agent, row))]

    def _causal(self, agent: SimulatedAgent, row: Row) -> str:
        for applied in self._applied:
            has = applied.slot == row.key and applied.after <= row.major
            if has and agent.disk.value(applied.fact) is None:
                return f"I6: a{agent.place} has a slot at {row.major} before its fact"
        return ""

    def _voids(self, agent: SimulatedAgent) -> Iterable[Row]:
        """The voids that are missing: all but the first fact of a key in a space lose there."""
        cells = agent.disk.values()
        by_effect: dict[tuple[bytes, bytes], list[tuple[int, int, int]]] = {}
        for fact in _facts(cells):
            for space, amount, _, _ in fact.effects:
                by_effect.setdefault((fact.key, space), []).append((fact.hlc, fact.inc, amount))
        down: dict[bytes, int] = {}
        for (key, space), facts in sorted(by_effect.items()):
            for _, inc, amount in sorted(facts)[1:]:
                void = (space, MEMBER, slot_of_key(Kind.VOID, key, inc))
                if void in cells:
                    continue
                if "W" in self._omit and agent.state.ring.agents.get(inc) != agent.name:
                    continue
                yield row_of((*void, amount, 0, b"", 0, 0))
                down[space] = down.get(space, 0) + amount
        for space, amount in down.items() if "W" in self._omit else ():
            slot = (space, MEMBER, DOWN + agent.slot_inc.to_bytes(8))
            yield row_of((*slot, cells.get(slot, (0, 0, b""))[0] + amount, 0, b"", 0, 0))

    def problems(self, name: str, cells: Mapping[Key, Value]) -> list[str]:
        """Whether every key that survives anywhere is counted once in each space."""
        found = []
        for window, space in SPACES.items():
            counted: dict[bytes, int] = {}
            for applied in self._applied:
                slot = cells.get(applied.slot, (0, 0, b""))
                if applied.slot[0] == space and applied.after <= slot[0]:
                    counted[applied.key] = applied.amount
            score = sum(
                value[0] * self._sign(key[2][:1])
                for key, value in cells.items()
                if key[0] == space and key[1] == MEMBER
            )
            exact = sum(counted.values())
            if score != exact:
                found.append(f"{name}: keyed entries in {window!r} count {score}, not {exact}")
        return found

    def _sign(self, kind: bytes) -> int:
        if kind == VOID:
            return 0 if "W" in self._omit else -1
        return {UP: 1, DOWN: -1}.get(kind, 0)


def _facts(cells: Mapping[Key, Value]) -> list[Fact]:
    found = [_fact(key, value) for key, value in cells.items() if key[2][:1] == FACT]
    return [fact for fact in found if fact is not None]


def _fact(key: Key, value: Value) -> Fact | None:
    if key[2][:1] != FACT:
        return None
    effects = tuple(tuple(effect) for effect in msgpack.unpackb(value[2]))
    return Fact(key[2][3:-8], int.from_bytes(key[2][-8:]), value[0], effects)
