"""The end of a run: it heals, all that may come back comes back, and the answer is judged."""

from __future__ import annotations

from agent.boards.standing import standing_of
from agent.crdt.document import Status
from agent.exchange import Reply, Request
from cluster.simulator import final_rows, keeping, repair
from cluster.simulator.agent import SimulatedAgent
from cluster.simulator.history import History
from cluster.simulator.invariants import Claims
from cluster.simulator.place import Place
from cluster.simulator.world import World

ROUNDS_MAX = 30  # a ring of six needs three; digests and certificates a few more
EXCHANGES_MAX = 3_000  # of one pair: each moves a cursor by a row at least
LATER_MS = 60_000
MOVES_MAX = 200  # of one agent in one round
UNHEARD_MS = 10_000
MUCH_LATER_MS = 10 * 86_400_000


class Ending:
    """Heals a world whose script was played, and judges it."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._places = world.places
        self._chance = 1

    def heal(self) -> None:
        """Let every pair exchange without faults, then check every answer, and late duplicates."""
        world = self._world
        world.now_ms += LATER_MS
        world.heal_partitions()
        for place in self._places:
            self._revive(place)
        for place in self._places:
            self._mend_or_reseed(place)
        self._removed_are_lost()
        first = self._first()
        if first is not None and first.agent is not None:
            world.newer.finish(first.agent, world.clock(first.index))
            world.changed(first.index)
        self._world.problems += self._exchange_all()
        for place in self._places:
            if not world.problems and place.agent is None and place.disk and not place.gone:
                self._swap(place)
        self._lose_what_they_hold()  # a removed agent that still ran may have written more
        if not world.problems:
            self._world.problems += self._final_problems()
        if not world.problems:
            self._again()
        if not world.problems and world.settings.keeps:
            self._much_later()

    def _much_later(self) -> None:
        """When all retention is over, no key is remembered, and nothing else has changed."""
        world = self._world
        world.now_ms += MUCH_LATER_MS
        self._converge()
        there = {
            place.name
            for place in self._members()
            if place.agent is not None and place.agent.closed != "removed"
        }
        for place in self._members():
            if place.disk is None or world.problems:
                continue
            # Who was removed, and whose removal was lost with a disk, holds them for ever.
            known = {member.name for member in place.disk.state().ring.active()}
            facts = place.disk.state().facts
            if facts and known <= there:
                world.problems.append(f"a{place.index} still remembers {facts} keys")
        late = world.seen["late fact"]
        if late and not world.faults.lost:
            world.problems.append(f"{late} facts came after their keys were forgotten")

    def acquaint(self) -> None:
        """Let all agents meet, before the script begins."""
        for _ in range(2):
            for place in self._places:
                for peer in self._peers(place.index):
                    self._pair(place.index, peer)

    def _again(self) -> None:
        """Messages that come once more change nothing."""
        world = self._world
        for place in self._members():
            agent = place.agent
            if agent and any(board.overruled for board in agent.state.catalog):
                world.seen["definition overruled"] += 1
        before = self._cells()
        for act in world.delivered:
            act()
        if world.problems or self._cells() == before:
            return
        # What only a lost disk held may still be in a message that a full disk refused to join.
        if world.faults.lost:
            self._converge()
        else:
            world.problems.append("messages that came once more changed cells")

    # --- who takes part --------------------------------------------------------------------

    def _revive(self, place: Place) -> None:
        """Begin a process where none runs, if the ring takes it in."""
        world = self._world
        if place.agent is None and place.disk is not None and place.gone != "left":
            self._chance += 1
            world.faults.boot(place, (self._chance << 40) + place.index)

    def _mend_or_reseed(self, place: Place) -> None:
        """Find and mend all damage; a disk that nobody can mend is given up."""
        world = self._world
        if place.agent is None or place.disk is None:
            return
        place.agent.damaged |= repair.scrub(place.disk)
        world.faults.mend(place)
        if place.agent.damaged:
            place.disk = world.faults.new_disk(place, (self._chance << 41) + place.index)
            world.faults.lost_disk(place)
            world.faults.boot(place, (self._chance << 42) + place.index)

    def _removed_are_lost(self) -> None:
        """What only removed agents hold is lost with right; what others have of it stays."""
        names = {
            name
            for place in self._places
            if place.agent is not None
            for name, member in place.agent.state.ring.members.items()
            if member.status == Status.REMOVED
        }
        for place in self._places:
            if place.name in names and not place.gone:
                place.gone = "removed"
        self._lose_what_they_hold()

    def _lose_what_they_hold(self) -> None:
        if any(place.gone for place in self._places):
            self._world.history.disk_lost(self._world.faults.disks())
            self._world.faults.lost = True

    def _swap(self, place: Place) -> None:
        """A process that was refused because of its twin: the twin ends, and it begins."""
        world = self._world
        for twin in self._places:
            if twin.name == place.name and twin.agent is not None and twin.disk is not None:
                twin.agent.run([], world.clock(twin.index))
                world.changed(twin.index)
                twin.disk.end()
                twin.agent, twin.gone = None, "swapped"
        world.now_ms += UNHEARD_MS
        self._revive(place)
        if place.agent is None:
            world.problems.append(f"a{place.index} can't begin, and nobody else has its name")
        world.problems += self._exchange_all()

    def _members(self) -> list[Place]:
        """The places whose processes must agree at the end: of agents that nobody has removed."""
        running = [p for p in self._places if p.agent is not None and not p.gone]
        removed = {
            name
            for p in running
            if p.agent is not None
            for name, member in p.agent.state.ring.members.items()
            if member.status == Status.REMOVED
        }
        return [p for p in running if p.name not in removed]

    def _first(self) -> Place | None:
        return next(iter(self._members()), None)

    def _peers(self, place: int) -> list[int]:
        """Whom a process calls: its neighbours, or all where the ring has changed."""
        world = self._world
        grown = len(self._places) > world.settings.agents or any(p.gone for p in self._places)
        places = range(len(self._places))
        peers = list(places) if grown else world.settings.peers(place, len(self._places))
        return [p for p in peers if p != place and self._places[p].name != self._places[place].name]

    # --- convergence -----------------------------------------------------------------------

    def _converge(self) -> None:
        self._world.problems += self._exchange_all()
        if not self._world.problems:
            self._world.problems += self._final_problems()

    def _exchange_all(self) -> list[str]:
        """Exchange until all is quiet. Returns what is wrong if it does not get so."""
        for _ in range(ROUNDS_MAX):
            before = self._progress()
            for place in self._places:
                for peer in self._peers(place.index):
                    if not self._pair(place.index, peer):
                        return [f"a{place.index} and a{peer} never reach a head"]
                    if self._world.problems:
                        return []
                problem = self._world.faults.leave(place)
                if problem:
                    return [problem]
            self._keep_all()
            if before == self._progress():
                return self._noise()
        return [f"no convergence in {ROUNDS_MAX} rounds"]

    def _keep_all(self) -> None:
        """Every agent does its housekeeping."""
        world = self._world
        for place in self._places:
            if place.agent is not None and world.settings.keeps:
                keeping.keep(place.agent, 1_000, world.clock(place.index), world.seen)
                world.certify(place.index, MOVES_MAX)
                world.changed(place.index)

    def _progress(self) -> list[object]:
        return [(p.agent.state.lsn, p.agent.state.vv) for p in self._places if p.agent is not None]

    def _pair(self, index: int, peer: int) -> bool:
        """Exchange until both have read the other to its head, or one refuses the other."""
        for _ in range(EXCHANGES_MAX):
            sent = self._exchange(index, peer)
            if sent is None:
                return True
            pushed = sent[0].push is not None and sent[0].push.head
            if pushed and sent[1].chunk is not None and sent[1].chunk.head:
                return True
        return False

    def _exchange(self, index: int, peer: int) -> tuple[Request, Reply] | None:
        """One exchange without faults; None where it can't be."""
        world = self._world
        for place in (self._places[index], self._places[peer]):
            world.faults.mend(place)
        caller, answerer = world.up(index), world.up(peer)
        if caller is None or answerer is None:
            return None
        member = caller.state.ring.members.get(answerer.name)
        if member is not None and member.status == Status.REMOVED:
            return None
        request = caller.ask(peer, world.clock(index))
        if request is None:
            return self._exchange(index, peer)
        refusal = answerer.admit(request.sender, world.clock(peer))
        if refusal is not None:
            caller.refused(refusal, world.clock(index))
            world.changed(index)
            return None
        answerer.hear(request, world.clock(peer))
        world.changed(peer)
        reply = answerer.answer(request, world.clock(peer))
        if reply is None:
            return self._exchange(index, peer)
        taken = caller.conclude(peer, request, reply, world.clock(index), waits=False)
        world.changed(index)
        return (request, reply) if taken else None

    def _noise(self) -> list[str]:
        """Agents that agree send no rows and no vectors: filter and digests do their work."""
        for place in self._members():
            for peer in self._peers(place.index):
                if self._places[peer].gone:
                    continue
                self._pair(place.index, peer)
                both = self._exchange(place.index, peer)
                if both is None:
                    continue
                request, reply = both
                sent = [c.rows for c in (request.push, reply.chunk) if c is not None and c.rows]
                if sent or request.vv is not None or reply.vv is not None:
                    return [f"a{place.index} and a{peer} agree, and still send {sent}"]
        return []

    def _cells(self) -> list[list[object]]:
        return [[row for _, row in p.disk.rows()] for p in self._members() if p.disk is not None]

    # --- judgement -------------------------------------------------------------------------

    def _final_problems(self) -> list[str]:
        """The right answer everywhere, and the same everywhere."""
        world, history = self._world, self._world.history
        problems: list[str] = []
        first = self._first()
        for place in self._members():
            agent = place.agent
            if agent is None or first is None or first.agent is None:
                continue
            cells = agent.disk.values()
            problems += history.cell_problems(f"a{place.index}", cells)
            if cells != first.agent.disk.values():
                problems.append(f"a{place.index} and a{first.index} hold different cells")
            if agent.state.vv != first.agent.state.vv:
                problems.append(f"a{place.index} and a{first.index} claim different writes")
            if list(agent.state.catalog) != list(first.agent.state.catalog):
                problems.append(f"a{place.index} and a{first.index} have different boards")
            problems += world.keyed.problems(f"a{place.index}", cells)
            problems += world.actors.problems(f"a{place.index}", cells)
            if world.settings.keeps:
                # Who was removed, and whose removal was lost with a disk, confirms nothing.
                forgets = all(p.agent is None or p.agent.closed != "removed" for p in self._places)
                now_ms = world.clock(place.index)
                problems += keeping.member_problems(agent, cells, now_ms, forgets=forgets)
            problems += world.sketches.problems(agent)
            if world.settings.keeps:
                problems += world.finals.unfinished(
                    agent, min(map(world.clock, range(len(self._places))))
                )
                problems += final_rows.name_problems(agent, cells)
            problems += score_problems(agent, history)
            problems += Claims().problems(agent, history, world.faults.twins)
            alarms = agent.alarms
            raised = alarms.covered_changed or alarms.forked or alarms.peer_ahead
            if raised and not history.holes:
                problems.append(f"a{place.index}: {alarms}")
        return problems


def score_problems(agent: SimulatedAgent, history: History) -> list[str]:
    """Whether every score that an agent would show is the plain one."""
    problems = []
    snapshot = agent.disk.snapshot()
    cells = agent.disk.values()
    for space, definition in history.boards.items():
        for member, slots in snapshot.members_after(space, b"", 10_000):
            standing = standing_of(definition, slots)
            score = history.score_of(space, member, cells)
            if (standing and standing[:2]) != score:
                problems.append(f"{agent.name}: {member!r} has {standing}, not {score}")
            if definition.rule != "sum":
                continue
            if definition.results:
                continue
            loaded = agent.disk.load([], [(space, member)]).totals[space, member]
            if loaded is None or loaded[:2] != score:
                problems.append(f"{agent.name}: the total of {member!r} is {loaded}, not {score}")
    return problems
