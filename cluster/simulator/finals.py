"""Finals of a run: who certified what, and what must hold of it.

The agents take the product's own steps (certifying.py). Here is the other opinion: which entries
were written on time, which cells each copy was made of, which overrides were said, and which
certificates must therefore be equal, complete, and never changed.

What can't be demanded, and is not: where agents whose disks were lost know only each other, they
are complete for all that they know, and may certify without the others; a certificate that is on no
disk any more binds nobody; and what an old backup brings back comes late.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import msgpack

from agent.boards.finals import DIGEST_BYTES, Certificate, OverrideFinal, certifiable, final_of
from agent.certifying.looking import closed_windows
from agent.certifying.steps import members_of
from agent.crdt.cell import Key, Row, Value
from agent.crdt.space import MARKS_SPACE
from agent.store.standings import summed
from cluster.simulator import plain
from cluster.simulator.agent import SimulatedAgent
from cluster.simulator.certifying import Mover
from cluster.simulator.events import Override
from cluster.simulator.final_rows import copy_problems, late_problems
from cluster.simulator.history import show
from cluster.simulator.keeping import ENTRY_KINDS
from cluster.simulator.place import Place

NOTHING: Value = (-(2**63), 0, b"")
Version = tuple[bytes, int]  # of a window's final: (space, number)


@dataclass(frozen=True, slots=True)
class _Entry:
    """A cell of a window as an agent wrote it before it had closed the window."""

    agent: str
    key: Key
    value: Value


@dataclass(slots=True)
class _Known:
    """What is known of one version of a final.

    hashes: by agent, what it certified. without: the sets of agents that overrides left out.
    void: whether nothing can be demanded of it any more.
    """

    hashes: dict[str, tuple[bytes, int]] = field(default_factory=dict)
    without: set[tuple[str, ...]] = field(default_factory=set)
    void: bool = False


class Finals:
    """All finals of a run."""

    def __init__(self, places: list[Place], seen: Counter[str]) -> None:
        self._places = places
        self._seen = seen
        self._entries: dict[bytes, list[_Entry]] = {}
        self._known: dict[Version, _Known] = {}
        self._copied: dict[tuple[bytes, bytes], dict[Key, Value]] = {}
        self._required: dict[tuple[bytes, str], frozenset[str]] = {}
        self._lost: set[str] = set()  # whose disks were lost or set back
        self._unsound: set[str] = set()  # of those, who have not read the log of a sound one since
        self._incomplete: set[str] = set()
        self._names = {place.name for place in places}
        self._risen: set[tuple[Key, Value]] = set()
        self._void = False

    # --- what agents do --------------------------------------------------------------------

    def move(self, place: Place, now_ms: int, moves: int, cut: Mapping[int, bool]) -> bool:
        """Let an agent make so many moves; whether it made any. `cut`: whom it can't reach."""
        agent = place.agent
        if agent is None or agent.closed in ("left", "removed", "fork"):
            return False

        def source(space: bytes, hash_: bytes, number: int) -> bytes | None:
            for other in self._places:
                if other.agent is None or other is place or other.gone or cut.get(other.index):
                    continue
                chunk = other.agent.disk.finals.get(space, {}).get(hash_, ({}, None))[0].get(number)
                if chunk is not None:
                    return chunk
            return None

        def tell(what: str, space: bytes, said: bytes) -> None:
            self._told(agent, what, space, said)

        mover = Mover(agent, now_ms, source, tell, self._seen)
        made = False
        for _ in range(moves):
            if not mover.move():
                break
            made = True
        return made

    def override(self, agent: SimulatedAgent, event: Override, now_ms: int) -> None:
        """An operator begins the next version of a final, as the API lets one."""
        state, snapshot = agent.state, agent.disk.snapshot()
        prefix = bytes([len(event.board)]) + event.board.encode()
        spaces = sorted(its for its in closed_windows(snapshot, state) if its.startswith(prefix))
        members = members_of(state)
        without = tuple(sorted({f"a{place}" for place in event.without} & set(members)))
        if agent.closed or not spaces or len(without) == len(members):
            return
        space = spaces[0]
        final = final_of(snapshot.slots_of(MARKS_SPACE, space))
        newest = max((version for version, _ in final.certificates), default=0)
        version = max(final.version, newest) + 1
        agent.run([OverrideFinal(space, version, without, "it is down", "ops")], now_ms)
        self._seen["override"] += 1
        self._seen["override of a final"] += final.in_force is not None

    def _told(self, agent: SimulatedAgent, what: str, space: bytes, said: bytes) -> None:
        if what == "copied":
            cells = self._copied.setdefault((space, said), {})
            for key, value in agent.disk.values().items():
                if key[0] == space and value > cells.get(key, NOTHING):
                    cells[key] = value
            return
        final = final_of(agent.disk.snapshot().slots_of(MARKS_SPACE, space))
        required = frozenset(final.required(members_of(agent.state)))
        self._required[said[:DIGEST_BYTES], agent.name] = required

    # --- what happens to disks -------------------------------------------------------------

    def set_back(self, place: Place) -> None:
        """A disk was lost or set back: what no disk holds binds nobody any more."""
        self._lost.add(place.name)
        self._unsound.add(place.name)
        if place.disk is not None:
            mine = place.disk.values()
            others = [
                p.disk.values()
                for p in self._places
                if p.disk is not None and p is not place and not p.gone
            ]
            for key, value in mine.items():
                if not any(other.get(key, NOTHING) >= value for other in others):
                    self._risen.add((key, value))
        for (space, version), known in self._known.items():
            self._forget(space, version, known)

    def _forget(self, space: bytes, version: int, known: _Known) -> None:
        """Forget the certificates that are on no disk any more."""
        disks = [p.disk for p in self._places if p.disk is not None and not p.gone]
        for name in sorted(known.hashes):
            key = (MARKS_SPACE, space, b"Z" + version.to_bytes(4) + name.encode())
            if all(disk.value(key) is None for disk in disks):
                del known.hashes[name]
                known.void = True

    def _is_sound(self, agent: SimulatedAgent) -> None:
        """Note who has read everything after a loss, and whether nobody sound was among them."""
        if agent.name not in self._names:  # it has just joined, and knows as little
            self._names.add(agent.name)
            self._unsound.add(agent.name)
        if agent.name not in self._unsound:
            return
        if not agent.state.complete:
            self._incomplete.add(agent.name)
            return
        there = {p.name for p in self._places if p.disk is not None and not p.gone}
        sound = there - self._unsound
        known = agent.name in self._incomplete  # else it does not know of its loss
        self._incomplete.discard(agent.name)
        if known and not sound & agent.heads and not self._void:
            self._void = True
            self._seen["lost disks that know only each other"] += 1
        self._unsound.discard(agent.name)

    # --- what must hold --------------------------------------------------------------------

    def problems(self, place: Place, agent: SimulatedAgent, own: list[Row]) -> list[str]:
        """What is wrong with what an agent wrote, or with what it follows."""
        found = self._sum_problems(agent)
        self._is_sound(agent)
        if not own:
            return found
        cells = agent.disk.values()
        for row in own:
            if row.space == plain.MARKS and row.slot[:1] == b"Z":
                found += self._certificate(place, agent, row)
            elif row.space == plain.MARKS and row.slot[:1] == b"o":
                version = int.from_bytes(row.slot[1:5])
                without = tuple(msgpack.unpackb(row.body)[0])
                self._of(row.member, version).without.add(without)
            elif row.space == plain.MARKS and row.slot[:1] == b"g":
                found += self._collected_problems(agent, row, cells)
            elif row.space[1:2] != b"~" and row.slot[0] in ENTRY_KINDS:
                on_time = not plain.closed_by(cells, agent.name, row.space)
                entry = _Entry(agent.name, row.key, row.value)
                self._entries.setdefault(row.space, []).extend([entry] if on_time else [])
        return found

    def _of(self, space: bytes, version: int) -> _Known:
        return self._known.setdefault((space, version), _Known())

    def _sum_problems(self, agent: SimulatedAgent) -> list[str]:
        """The sums that are followed are those that would be read."""
        its, state, found = agent.certifying, agent.state, []
        for space in sorted(its.followed):
            tally = its.pending[space].tally if space in its.pending else None
            placed = state.catalog.placed(space)
            if placed is None or tally is None or tally.lsn is None or not tally.usable:
                continue
            if tally.erased != len(state.erased):
                continue
            fresh = summed(agent.disk.snapshot(), placed, state.erased.closed, lambda: None)
            if fresh.total != tally.total:
                found.append(f"the followed sum of {plain.split(space)[1]} is not the one there is")
            self._seen["sum compared"] += 1
        its.followed.clear()
        return found

    def _certificate(self, place: Place, agent: SimulatedAgent, row: Row) -> list[str]:
        """A certificate was written: it is the same everywhere, and lacks nothing."""
        space, version = row.member, int.from_bytes(row.slot[1:5])
        hash_, members, agents = msgpack.unpackb(row.body)
        known, said = self._of(space, version), (hash_, members)
        before = known.hashes.get(agent.name, said)
        self._forget(space, version, known)
        others = set(known.hashes.values()) - {said}
        first = not known.hashes
        known.hashes[agent.name] = said
        window = f"{show(row.key)} of version {version}"
        found = copy_problems(agent, space, hash_, members, place.name)
        if self._void or known.void:
            return found
        if before != said:
            found.append(f"{agent.name} has certified something else as {window} before")
        if others:
            self._seen["conflict"] += 1
            if len(known.without) < 2:
                found.append(f"{agent.name} and others have certified different rows as {window}")
        elif first:
            found += self._lacks(agent, space, hash_, agents)
        self._seen["certified without somebody"] += first and version > 0
        return found

    def _lacks(
        self, agent: SimulatedAgent, space: bytes, hash_: bytes, agents: list[str]
    ) -> list[str]:
        """What a certificate lacks of the entries of those who had to agree."""
        copied = self._copied.get((space, hash_))
        if copied is None:
            return [f"nobody has copied what is certified of {plain.split(space)[1]}"]
        cells = agent.disk.values()
        gone = plain.Gone(cells)
        names = set(agents)
        for name in agents:
            frozen = cells.get((MARKS_SPACE, space, b"f" + name.encode()), NOTHING)[2]
            names |= self._required.get((frozen[:DIGEST_BYTES], name), frozenset())
        names &= {*agents, *members_of(agent.state)}
        disks = [
            p.disk.values()
            for p in self._places
            if p.disk is not None and not p.gone and p.name in agents
        ]
        found = []
        for entry in self._entries.get(space, ()):
            key, value = entry.key, entry.value
            if entry.agent not in names or copied.get(key, NOTHING) >= value:
                continue
            if gone.holds(key) or (key, value) in self._risen:
                continue
            there = any(disk.get(key, NOTHING) >= value for disk in disks)
            if there or entry.agent not in self._lost:
                found.append(f"a certificate lacks {show(key)} = {value} of {entry.agent}")
        return found

    def _collected_problems(
        self, agent: SimulatedAgent, row: Row, cells: Mapping[Key, Value]
    ) -> list[str]:
        """Nothing is collected before all members have certified it."""
        upto, found = row.body.decode(), []
        for space in agent.disk.snapshot().spaces():
            if space[1:2] == b"~" or plain.series_of(space)[0] != row.member:
                continue
            placed, window = agent.state.catalog.placed(space), plain.split(space)[1]
            if window > upto or placed is None or not certifiable(placed):
                continue
            its = (its[2] for its in cells if its[:2] == (MARKS_SPACE, space))
            certified = {slot[5:].decode() for slot in its if slot[:1] == b"Z"}
            if not certified >= set(members_of(agent.state)):
                found.append(f"{agent.name} collects {window}, only {certified} have certified it")
        return found

    # --- at the end ------------------------------------------------------------------------

    def unfinished(self, agent: SimulatedAgent, least_ms: int) -> list[str]:
        """After healing: everybody has certified everything, holds it, and lists what came late.

        least_ms: the time by the clock that is furthest behind: what is open there is not closed.
        """
        found: list[str] = []
        if agent.closed == "removed":  # it takes part in nothing, whoever still knows of that
            return found
        cells, members = agent.disk.values(), members_of(agent.state)
        # Who was removed, and whose removal was lost with a disk, is waited for until an override.
        there = {p.name for p in self._places if p.agent and p.agent.closed != "removed"}
        spaces = {key[1] for key in cells if key[0] == plain.MARKS and key[2][:1] in b"Zo"}
        for space in sorted(spaces | closed_windows(agent.disk.snapshot(), agent.state)):
            window = f"{space[1 : 1 + space[0]].decode()} {plain.split(space)[1]}"
            final = final_of(agent.disk.snapshot().slots_of(MARKS_SPACE, space))
            told = final.in_force
            required = set(final.required(members))
            if not required or not required <= there:
                self._seen["nobody can certify"] += told is None or told.version < final.version
                continue
            if told is None or told.version < final.version:
                # Of erased names alone nothing is left, so there is nothing to certify.
                if any(key[0] == space for key in cells) and _is_over(agent, space, least_ms):
                    found.append(f"{agent.name} knows no certificate of {window}")
                continue
            if self._rows_are_lost(space, told):
                self._seen["rows of a final lost"] += 1
                continue
            if (told.version, agent.name) not in final.certificates:
                found.append(f"{agent.name} has not certified {window}")
            found += copy_problems(agent, space, told.hash, told.members, agent.name)
            found += late_problems(agent, space, told.hash, cells, self._seen)
            found += self._conflict_problems(agent, space, cells, conflict=final.conflict)
        return found

    def _rows_are_lost(self, space: bytes, told: Certificate) -> bool:
        """Whether all who had to agree have lost their disks, and the rows with them, before
        anybody else had fetched them: until an operator revises it nothing more can be done."""
        held = [p.disk.complete_copies(space) for p in self._places if p.disk is not None]
        lost = isinstance(told.agents, tuple) and set(told.agents) <= self._lost
        return lost and not any(told.hash in its for its in held)

    def _conflict_problems(
        self, agent: SimulatedAgent, space: bytes, cells: Mapping[Key, Value], *, conflict: bool
    ) -> list[str]:
        """Different finals of one version are told everywhere."""
        by_version: dict[int, set[bytes]] = {}
        for key, value in cells.items():
            if key[:2] == (MARKS_SPACE, space) and key[2][:1] == b"Z":
                version = int.from_bytes(key[2][1:5])
                by_version.setdefault(version, set()).add(msgpack.unpackb(value[2])[0])
        if conflict != any(len(hashes) > 1 for hashes in by_version.values()):
            return [f"{agent.name}: a conflict is {conflict} with {by_version}"]
        return []


def _is_over(agent: SimulatedAgent, space: bytes, now_ms: int) -> bool:
    """Whether a window takes nothing more, by this time."""
    placed = agent.state.catalog.placed(space)
    definition = None if placed is None else placed.board.definition
    return definition is None or plain.times_of(definition, plain.split(space)[1])[0] <= now_ms
