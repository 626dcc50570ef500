"""What happens to processes and disks: ends, losses, copies, and who is in the ring."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import assert_never

from agent.crdt import incarnation
from agent.crdt.cell import Key, Value
from agent.crdt.document import Status
from agent.exchange import Boot, Reading, Sender
from agent.identity import Confirmation
from agent.operation import ChangeMember
from agent.store.identity import Identity
from cluster.simulator import plain, repair
from cluster.simulator.agent import Refusal, SimulatedAgent
from cluster.simulator.beginning import begin, confirmations
from cluster.simulator.disk import Disk
from cluster.simulator.events import (
    NOBODY,
    Backup,
    ClockJump,
    Clone,
    Damage,
    Depart,
    Join,
    Start,
)
from cluster.simulator.history import History
from cluster.simulator.place import Parked, Place
from cluster.simulator.script import Settings

Fault = Start | Backup | Clone | ClockJump | Damage | Depart | Join
TAIL_MAX = 3


@dataclass(slots=True)
class Faults:
    """Plays the faults of a run.

    places: all places, by index.
    clock: (place) -> its own time in ms.
    cut: (place, place) -> whether nothing arrives between them.
    changed: told of each place whose process may have committed.
    reused: told of an incarnation that goes on, and what its disk holds, where it was set back.
    set_back: the places whose disks lost something since it was last asked.
    twins: the names that two processes have had.
    lost: whether anything may have been lost, with right.
    """

    settings: Settings
    agent_type: type[SimulatedAgent]
    history: History
    seen: Counter[str]
    places: list[Place]
    clock: Callable[[int], int]
    cut: Callable[[int, int], bool]
    changed: Callable[[int], None]
    reused: Callable[[int, Mapping[Key, Value]], None]
    sentinels: dict[str, tuple[int, int]] = field(default_factory=dict)
    set_back: set[int] = field(default_factory=set)
    twins: set[str] = field(default_factory=set)
    lost: bool = False
    _back: set[int] = field(default_factory=set)

    def play(self, event: Fault) -> None:
        """Play one fault."""
        while len(self.places) <= event.place:
            index = len(self.places)
            self.places.append(Place(index, f"a{index}", 0, f"redis {index}"))
        place = self.places[event.place]
        match event:
            case Start():
                self._start(place, event)
            case Backup():
                if place.disk is not None:
                    place.backup = place.disk.image()
            case Clone():
                self._clone(place, self.places[event.source], event)
            case ClockJump():
                place.told_ms = max(place.told_ms, self.clock(place.index))
                place.off_ms = event.off_ms
                self.seen["clock jump"] += 1
            case Damage():
                self._damage(place, event.pick)
            case Depart():
                self._depart(place, event.by)
            case Join():
                self._join(place, event)
            case _:
                assert_never(event)

    # --- beginnings and ends ---------------------------------------------------------------

    def new_disk(self, place: Place, chance: int) -> Disk:
        """An empty disk for the agent of a place, with a new identity."""
        old = None if place.disk is None else place.disk.state()
        new = self.agent_type.identity(self.settings, self._new_identity(place, chance), old)
        return self.agent_type.store_type(new, f"{place.name} {chance:x}", self.settings.omit)

    def _new_identity(self, place: Place, chance: int) -> Identity:
        r = Random(f"identity {chance}")
        bits = r.getrandbits(incarnation.RANDOM_BITS)
        inc = incarnation.mint(self.clock(place.index), bits)
        return Identity("sim", place.name, place.name, inc, r.getrandbits(62) + 1)

    def boot(self, place: Place, chance: int, silent: frozenset[int] = NOBODY) -> bool:
        """Begin a process with the disk of a place; whether the ring takes it in."""
        disk = place.disk
        if disk is None:
            return False
        place.agent = None
        life, ring = disk.life, disk.state().ring
        boot = Boot(life.boot + 1, chance)
        me = Sender(place.name, life.inc, life.log, boot)

        def ask(target: int, sender: Sender) -> Confirmation | Refusal | None:
            return None if target in silent else self._confirm(place, target, sender)

        seeds = [other.index for other in self.places if other is not place]
        answers, refused = confirmations(me, ring, seeds, place.index, ask)
        if refused:
            self.seen[f"not admitted: {refused}"] += 1
            if refused == "removed":
                place.gone = "removed"
                self.history.disk_lost(self.disks())
                self.lost = True
            return False
        r = Random(f"boot {chance}")
        why = begin(
            disk,
            boot,
            self.sentinels,
            place.redis,
            answers,
            r.getrandbits(62) + 1,
            lambda evidence: self.agent_type.decide(self.settings, evidence),
        )
        if not why and life.boot and place.index in self._back:
            self._goes_on(place, disk)
        self._back.discard(place.index)
        agent = self.agent_type(place.name, place.index, disk, self.settings, chance, self.seen)
        place.agent = agent
        member = ring.members.get(place.name)
        if member is not None and member.status != Status.ACTIVE:
            agent.closed = "leaving"
        agent.announce(self.clock(place.index))
        self.changed(place.index)
        return True

    def _confirm(self, place: Place, target: int, sender: Sender) -> Confirmation | Refusal | None:
        if target >= len(self.places) or self.cut(place.index, target):
            return None
        agent = self.places[target].agent
        if agent is None:
            return None
        alive = {p.agent.state.boot.nonce for p in self.places if p.agent is not None}
        said = agent.confirm(sender, alive, self.clock(target))
        self.changed(target)
        return said

    def _goes_on(self, place: Place, disk: Disk) -> None:
        """A disk that was set back goes on as it was: its numbers are used again."""
        life = disk.life
        others = [p.disk.state() for p in self.places if p.disk is not None and p is not place]
        known = max(
            (max(s.vv.get(life.inc, 0), s.seen.get(life.inc, 0)) for s in others), default=0
        )
        self.seen["set back, and not noticed by anybody"] += 1
        if known <= life.seq:
            self.history.set_back(life.inc, life.seq, disk.values())
            self.reused(life.inc, disk.values())

    def _start(self, place: Place, event: Start) -> None:
        disk = place.disk
        if disk is None or place.gone == "left":
            return
        if event.flush and not (event.how == "rollback" and place.name in self.twins):
            self.sentinels.pop(place.redis, None)
            self.seen["Redis flushed"] += 1
        match event.how:
            case "crash":
                self.agent_type.crashed(self.settings, disk, event.chance)
            case "restart" | "move" if place.agent is not None:
                place.agent.run([], self.clock(place.index))
                self.changed(place.index)
                disk.end()
        match event.how:
            case "tail":
                if disk.lose_tail(1 + event.chance % TAIL_MAX):
                    self.lost_disk(place)
                    self.history.times.pop(place.name, None)  # it may not know of its loss
            case "wipe":
                place.disk = self.new_disk(place, event.chance)
                self.lost_disk(place)
            case "restore" if place.backup is not None:
                disk.put(place.backup)
                old = disk.state()
                new = self._new_identity(place, event.chance)
                disk.adopt(self.agent_type.identity(self.settings, new, old))
                self.lost_disk(place)
            case "rollback" if disk.last_clean is not None and not self._unwitnessed(place):
                disk.put(disk.last_clean)
                self.lost_disk(place)
            case "move":
                place.parked = Parked(disk.image(), disk.file, place.redis)
                place.redis += " elsewhere"
                disk.file += "" if event.chance & 1 else f" {event.chance:x}"
            case "back" if place.parked is not None:
                disk.put(place.parked.image)
                disk.file, place.redis = place.parked.file, place.parked.redis
                place.parked = None
                self.lost_disk(place)
        self.seen[event.how] += 1
        self.boot(place, event.chance, event.silent)

    def _unwitnessed(self, place: Place) -> bool:
        """Whether a copy of the disk has begun elsewhere, which nobody asks, and Redis is empty:
        the known hole of docs/simulator.md."""
        return place.name in self.twins and place.redis not in self.sentinels

    def lost_disk(self, place: Place) -> None:
        """What was on a disk, and is nowhere now, is lost with right."""
        if place.agent is not None:
            self.history.forget_slots(
                place.agent.slot_inc, {} if place.disk is None else place.disk.values()
            )
        self.history.disk_lost(self.disks())
        self._forget_times(place)
        self.set_back.add(place.index)
        self._back.add(place.index)
        self.lost = True

    def _forget_times(self, place: Place) -> None:
        """What can't be demanded of `as_of`: that an agent reads the logs of members which nobody
        that it can ask knows of."""
        partial = [p for p in self.places if p.agent and not p.agent.state.complete]
        if partial or not self.settings.acquainted:
            for unsure in (place, *partial):
                self.history.times.pop(unsure.name, None)

    def disks(self) -> list[dict[Key, Value]]:
        """The cells of all disks whose agents may still come back, or are here."""
        return [p.disk.values() for p in self.places if p.disk is not None and not p.gone]

    # --- copies and members ----------------------------------------------------------------

    def _clone(self, place: Place, source: Place, event: Clone) -> None:
        if source.disk is None or place.disk is not None:
            return
        place.name, place.redis, place.off_ms = source.name, source.redis, source.off_ms
        place.disk = self.new_disk(place, event.chance)
        place.disk.put(source.disk.image())
        if event.chance & 1:  # a copy of the whole machine, not of the folder
            place.disk.file = source.disk.file
        self.twins.add(place.name)
        self.seen["clone"] += 1
        if self.boot(place, event.chance, event.silent):
            self.seen["clone admitted"] += 1

    def _join(self, place: Place, event: Join) -> None:
        seed = self.places[event.seed]
        if place.disk is not None or seed.agent is None or seed.disk is None:
            return
        place.disk = self.new_disk(place, event.chance)
        if event.snapshot:
            state = seed.disk.state()
            life = place.disk.life
            place.disk.put(seed.disk.image())
            place.disk.adopt(Identity("sim", place.name, place.name, life.inc, life.log))
            cursors = {**state.cursors, state.log: Reading(seed.name, state.lsn)}
            place.disk.set_cursors(cursors)
        self.seen["joined by snapshot" if event.snapshot else "joined"] += 1
        self.boot(place, event.chance)
        self._forget_times(place)

    def _depart(self, place: Place, by: int) -> None:
        operator = self.places[by].agent if by < len(self.places) else None
        if operator is None or place.disk is None:
            return
        ring = operator.state.ring
        if place.name not in ring.members or len(ring.active()) < 3:
            return
        if by == place.index:
            operator.depart(self.clock(by))
            self.seen["leaving"] += 1
        elif operator.name != place.name:
            operator.run([ChangeMember(place.name, Status.REMOVED)], self.clock(by))
            self.seen["removed"] += 1
        self.changed(by)

    def leave(self, place: Place) -> str:
        """Let a leaving agent go where it may; what is wrong with that."""
        agent, now_ms = place.agent, self.clock(place.index)
        if agent is None or agent.closed not in ("leaving", "left"):
            return ""
        if agent.closed == "leaving" and agent.drained():
            agent.run([ChangeMember(agent.name, Status.REMOVED)], now_ms)
            agent.closed = "left"
            self.changed(place.index)
        elif agent.closed == "left" and agent.left():
            place.agent, place.gone = None, "left"
            self.seen["left"] += 1
            before = {k: c.kept for k, c in self.history.cells.items()}
            self.history.disk_lost(self.disks())
            marks = [plain.Gone(cells) for cells in self.disks()]
            took = [
                key
                for key, cell in self.history.cells.items()
                if cell.kept != before[key] and not any(gone.holds(key) for gone in marks)
            ]
            return f"{place.name} has left, and took {took} with it" if took else ""
        return ""

    # --- damage ----------------------------------------------------------------------------

    def _damage(self, place: Place, pick: int) -> None:
        """Damage a cell that another disk holds as well."""
        if place.disk is None or place.gone:
            return
        others = [p.disk for p in self.places if p.disk and p is not place and not p.gone]
        found = [
            key
            for key, value in sorted(place.disk.values().items())
            if key not in place.disk.damaged
            and any((o.value(key) or (0,)) >= value and key not in o.damaged for o in others)
        ]
        if found:
            place.disk.decay(found[pick % len(found)])
            self.seen["cell damaged"] += 1

    def mend(self, place: Place) -> None:
        """Mend what was found damaged at a place from those that it reaches."""
        agent, disk = place.agent, place.disk
        if agent is None or disk is None or not agent.damaged:
            return
        reached = {
            p.name: p.disk
            for p in self.places
            if p.agent is not None
            and p.disk
            and p is not place
            and not self.cut(place.index, p.index)
        }
        others = {m.name for m in agent.state.ring.active()} - {place.name}
        if not others <= reached.keys():
            return  # whoever is silent may hold more, and my vector would hide it from me
        peers = list(reached.values())
        for key in sorted(agent.damaged):
            was = disk.damaged.get(key)
            if was is None:
                agent.damaged.discard(key)
                continue
            mended = repair.mend(agent, disk, key, peers, self.clock(place.index))
            if mended is None:
                continue
            self.seen["cell mended"] += 1
            if mended.value < was.value:
                self.history.cell_lost(key, self.disks())
                self.set_back.add(place.index)
                self.lost = True
            self.changed(place.index)
