"""Closing and certifying a window: marks, digests, frozen copies, over the real cells.

The product does not have them yet; they are simulated here first (rules K, M and G). Each agent
takes the same steps with what it holds, after every commit:

    closed      its clock is past the end: it writes its close mark, and takes no more results
    settled     it holds the marks of all members: it writes the digest of its standings
    frozen      all digests are equal: it keeps a copy, and says so; its digest stays
    certified   all say that they froze this digest: the copy is the result

A frozen agent thaws if one that has not frozen publishes another digest. Live cells go on being
joined. A mark's value is (incarnation, version, digest), written by its own agent alone. An agent
whose disk was lost takes no results, and knows no "all members", until it has read all other logs
(its own mark may be in them), one of an agent that has not lost its disk among them.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from hashlib import sha256

from agent.crdt.cell import Key, Row, Value, row_of
from agent.crdt.slot import Kind, slot_of_name, slot_of_one
from agent.crdt.space import NO_SHAPE, Space, encode_space
from agent.operation import Import
from cluster.simulator.agent import SimulatedAgent
from cluster.simulator.disk import Copy
from cluster.simulator.events import Score
from cluster.simulator.place import Place
from cluster.simulator.script import Settings

WINDOW = encode_space(Space("cup", 0, NO_SHAPE, "first"))
NEXT = encode_space(Space("cup", 0, NO_SHAPE, "second"))
MARKS = encode_space(Space("cup", 0, NO_SHAPE, "marks"))
BEST = slot_of_one(Kind.BEST)
CERTIFICATE: Key = (MARKS, b"first", bytes([Kind.CERTIFICATE]))
NOTHING: Value = (-1, 0, b"")
MARGIN_MS = 1_500  # rule M left out: certified so long after the end
SLOW_MS = 3_000  # rule K left out: how long after its start a process looks at its clock


@dataclass(slots=True)
class _Certificate:
    """What was certified where; `holders` are the places whose disks were not set back since."""

    place: int
    standings: dict[Key, Value]
    holders: set[int]


class Finals:
    """The window of a run, its results and its certificates."""

    def __init__(self, settings: Settings, places: list[Place], seen: Counter[str]) -> None:
        self._places = places
        self._omit = settings.omit
        self._close_ms = settings.close_ms
        self._on = settings.theme == "finals"
        self._seen = seen
        self._started: dict[int, tuple[SimulatedAgent, int]] = {}
        self._certificates: list[_Certificate] = []
        self._done: set[int] = set()
        self._unsound: set[int] = set()
        self._void = False  # every disk of the ring was lost, so no certificate can be judged
        self._there: dict[Key, Value] = {}

    def set_back(self, place: Place) -> None:
        """A disk was lost or set back: what all disks have lost binds nobody any more."""
        self._unsound.add(place.index)
        for certificate in self._certificates:
            certificate.holders.discard(place.index)
        self._certificates = [its for its in self._certificates if its.holders]
        if place.disk is not None and place.disk.value(CERTIFICATE) is None:
            self._done.discard(place.index)

    # --- results ---------------------------------------------------------------------------

    def score(self, agent: SimulatedAgent, event: Score, now_ms: int) -> list[str]:
        """Take a result: for the window, or for the next one where it is closed."""
        if agent.closed:
            return []
        agent.settle(now_ms)
        if not self._sound(agent):
            self._seen["result refused: incomplete"] += 1
            return []
        space = NEXT if self._closed(agent, now_ms) else WINDOW
        key = (space, event.member.encode(), BEST)
        value = (event.score, -now_ms, b"")
        agent.run([Import((row_of((*key, *value, 0, 0)),))], now_ms)
        if space == WINDOW and now_ms >= self._close_ms:
            return [f"a{agent.place} took a result after its clock had closed the window"]
        self._seen["result for the next window"] += space == NEXT
        return []

    def _sound(self, agent: SimulatedAgent) -> bool:
        """Whether an agent knows all members and what it wrote before: after its disk was lost,
        once it is complete and has read the log of one that is sound itself. Two that have lost
        their disks and know only each other are complete, and know nothing."""
        if not agent.state.complete:
            return False
        if agent.place in self._unsound:
            there = [p for p in self._places if p.disk is not None and not p.gone]
            sound = {p.name for p in there if p.index not in self._unsound}
            if sound and not sound & agent.heads:
                return False
            self._void = self._void or not sound
            self._unsound.discard(agent.place)
        return True

    def _closed(self, agent: SimulatedAgent, now_ms: int) -> bool:
        return self._mark(agent, Kind.CLOSE, agent.name) is not None or (
            now_ms >= self._close_ms and self._looks(agent, now_ms)
        )

    def _looks(self, agent: SimulatedAgent, now_ms: int) -> bool:
        """Whether a process looks at its clock: from its start on (rule K)."""
        known = self._started.get(agent.place)
        if known is None or known[0] is not agent:
            known = self._started[agent.place] = (agent, now_ms)
        first = agent.state.boot.number == 1
        return "K" not in self._omit or first or now_ms >= known[1] + SLOW_MS

    # --- steps -----------------------------------------------------------------------------

    def step(self, place: Place, agent: SimulatedAgent, now_ms: int) -> list[str]:
        """Take the steps that this agent can take now; what is wrong with a certificate."""
        if not self._on or agent.closed:
            return []
        looks = self._looks(agent, now_ms)
        closed = self._mark(agent, Kind.CLOSE, agent.name) is not None
        if not closed and looks and now_ms >= self._close_ms:
            self._write(agent, Kind.CLOSE, b"", now_ms)
        if not self._sound(agent):
            return []
        members = sorted(member.name for member in agent.state.ring.active())
        if agent.disk.value(CERTIFICATE) is not None:
            return []
        if "M" in self._omit:
            due = now_ms >= self._close_ms + MARGIN_MS
            return self._certify(place, _standings(agent)) if due else []
        marks = [self._mark_row(agent, Kind.CLOSE, name) for name in members]
        if not all(marks):
            return []
        if "G" in self._omit:
            vv = agent.state.vv
            claimed = all(mark and mark.seq <= vv.get(mark.inc, 0) for mark in marks)
            return self._certify(place, _standings(agent)) if claimed else []
        return self._settle(place, agent, members, now_ms)

    def _settle(
        self, place: Place, agent: SimulatedAgent, members: list[str], now_ms: int
    ) -> list[str]:
        disk = agent.disk
        if disk.frozen is None:
            digest = _digest(members, _standings(agent))
            self._write(agent, Kind.DIGEST, digest, now_ms)
            if any(self._said(agent, Kind.DIGEST, name) != digest for name in members):
                return []
            rows = tuple(row for _, row in disk.rows() if row.space == WINDOW)
            disk.frozen = Copy(digest, rows)
            self._write(agent, Kind.FROZEN, digest, now_ms)
            self._seen["frozen"] += 1
        digest = disk.frozen.digest
        for name in members:
            frozen = self._said(agent, Kind.FROZEN, name)
            if frozen != digest and self._said(agent, Kind.DIGEST, name) not in (None, digest):
                disk.frozen = None
                self._write(agent, Kind.FROZEN, b"", now_ms)
                self._seen["thawed"] += 1
                return []
        if all(self._said(agent, Kind.FROZEN, name) == digest for name in members):
            copy = {row.key: row.value for row in disk.frozen.rows}
            problems = self._certify(place, copy)
            agent.run([Import((row_of((*CERTIFICATE, 1, 0, digest, 0, 0)),))], now_ms)
            return problems
        return []

    def _certify(self, place: Place, standings: dict[Key, Value]) -> list[str]:
        """Note a certificate; it must be equal to all others, and lack nothing that was there."""
        if place.index in self._done or self._void:
            return []
        if not self._certificates:
            self._there = {}
            for other in self._places:
                cells = {} if other.disk is None or other.gone else other.disk.values()
                for key, value in cells.items():
                    if key[0] == WINDOW and value > self._there.get(key, NOTHING):
                        self._there[key] = value
        holders = {other.index for other in self._places if other.disk and not other.gone}
        self._certificates.append(_Certificate(place.index, standings, holders))
        self._done.add(place.index)
        self._seen["certified"] += 1
        for its in self._certificates:
            if its.standings != standings:
                return [f"a{place.index} and a{its.place} have certified different standings"]
        for key, value in sorted(self._there.items()):
            if standings.get(key, NOTHING) < value:
                return [f"the certificate of a{place.index} lacks {key[1]!r} = {value[0]}"]
        return []

    def unfinished(self, agent: SimulatedAgent) -> list[str]:
        """After healing: everybody knows the certificate."""
        if not self._on or "G" in self._omit or "M" in self._omit:
            return []
        certified = agent.disk.value(CERTIFICATE) is not None
        return [] if certified else [f"{agent.name} does not know a certificate"]

    # --- marks -----------------------------------------------------------------------------

    def _mark_row(self, agent: SimulatedAgent, kind: Kind, name: str) -> Row | None:
        found = agent.disk.snapshot().cell((MARKS, b"first", slot_of_name(kind, name)))
        return None if found is None else found[0]

    def _mark(self, agent: SimulatedAgent, kind: Kind, name: str) -> Value | None:
        return agent.disk.value((MARKS, b"first", slot_of_name(kind, name)))

    def _said(self, agent: SimulatedAgent, kind: Kind, name: str) -> bytes | None:
        mark = self._mark(agent, kind, name)
        return None if mark is None else mark[2]

    def _write(self, agent: SimulatedAgent, kind: Kind, said: bytes, now_ms: int) -> None:
        """Write my mark, if it says something else than before."""
        agent.settle(now_ms)
        before = self._mark(agent, kind, agent.name)
        if before is not None and before[2] == said and kind != Kind.CLOSE:
            return
        version = 1 if before is None else before[1] + 1
        key = (MARKS, b"first", slot_of_name(kind, agent.name))
        inc = max(agent.state.inc, 0 if before is None else before[0])
        agent.run([Import((row_of((*key, inc, version, said, 0, 0)),))], now_ms)


def _standings(agent: SimulatedAgent) -> dict[Key, Value]:
    return {key: value for key, value in agent.disk.values().items() if key[0] == WINDOW}


def _digest(members: list[str], standings: dict[Key, Value]) -> bytes:
    return sha256(repr((members, sorted(standings.items()))).encode()).digest()
