"""Clients of a run: their requests, and whether each answer is the right one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import msgpack

from agent.boards.definition import Definition
from agent.boards.tally import MemberKey, Note
from agent.crdt.cell import Key, Value
from agent.errors import Indefinite, Refused
from agent.operation import Answer, Written
from cluster.simulator import plain
from cluster.simulator.actors import Actors
from cluster.simulator.agent import SimulatedAgent
from cluster.simulator.batch import Batch
from cluster.simulator.events import Figure, Writes
from cluster.simulator.history import BEST, LATEST, History, show
from cluster.simulator.keyed import Applied, KeyedEntries

NO_NOTE = Note()


class Requests:
    """Sends what a script's clients write, and enters into the history what was acknowledged."""

    def __init__(
        self, history: History, seen: Counter[str], keyed: KeyedEntries, actors: Actors
    ) -> None:
        self._history = history
        self._seen = seen
        self._keyed = keyed
        self._actors = actors

    def send(self, agent: SimulatedAgent, event: Writes, now_ms: int) -> list[str]:
        """Commit all requests of the event as one batch; what is wrong with the answers."""
        if agent.closed:
            self._seen["write refused: " + agent.closed] += 1
            return []
        agent.settle_boards(now_ms)
        facts = {key for key in agent.disk.values() if plain.is_fact(key)}
        before = len(agent.disk.own_rows)
        batch = Batch(agent, now_ms)
        operations = [batch.operation(figures) for figures in event.requests]
        agent.disk.fails = event.disk
        answers = agent.run(operations, now_ms)
        agent.disk.fails = "works"
        told = {row.key for row in agent.disk.own_rows[before:] if plain.is_fact(row.key)}
        outcome = _Outcome(self._history, self._seen, self._keyed, self._actors, batch)
        outcome.fresh = {key for key in told if key not in facts}
        for figures, answer in zip(event.requests, answers, strict=True):
            outcome.answered(figures, answer)
        return outcome.problems + outcome.cell_problems()


@dataclass(frozen=True, slots=True)
class _Windows:
    """The windows of a time on a board, by id, each with its space: open and closed ones."""

    open: Mapping[str, bytes]
    closed: Mapping[str, bytes]


class _Outcome:
    """What a batch did, seen from the cells that it left.

    fresh: the facts that it wrote, and that no answer has accounted for yet.
    """

    def __init__(
        self,
        history: History,
        seen: Counter[str],
        keyed: KeyedEntries,
        actors: Actors,
        batch: Batch,
    ) -> None:
        self._history = history
        self._seen = seen
        self._keyed = keyed
        self._actors = actors
        self._batch = batch
        self._agent = batch.agent
        self._now_ms = batch.now_ms
        self._cells = batch.agent.disk.values()
        self._gone = plain.Gone(self._cells)
        self._slots: list[Key] = []
        self._clocked: dict[Key, set[tuple[int, bytes]]] = {}
        self._scores: dict[MemberKey, tuple[Definition, int]] = {}
        self._flags: dict[Key, bool] = {}
        self.fresh: set[Key] = set()
        self.problems: list[str] = []

    # --- answers ---------------------------------------------------------------------------

    def answered(self, figures: tuple[Figure, ...], answer: Answer | Indefinite) -> None:
        """Take one request's answer into the history, if its entries are counted."""
        reasons: set[str] = set()
        for figure in figures:
            reasons |= self._reasons(figure)
        match answer:
            case Written(scores, notes):
                if reasons:
                    self.problems.append(f"{figures} were counted in spite of {sorted(reasons)}")
                    return
                boards = dict.fromkeys(figure.board for figure in figures)
                in_order = [[f for f in figures if f.board == board] for board in boards]
                for group, group_scores, group_notes in zip(in_order, scores, notes, strict=True):
                    for place, figure in enumerate(group):
                        note = group_notes.get(place, NO_NOTE)
                        self._written(figure, group_scores[place], note)
            case Indefinite():
                self._seen["commit uncertain"] += 1
                for figure in figures if not reasons else ():
                    self._stored(figure)
            case Refused(code="busy"):
                self._seen["commit refused"] += 1
            case Refused(code=code) if code in reasons:
                self._seen[f"{code} refused".replace("_", " ")] += 1
            case Refused(code="key_conflict") if any(map(self._conflicts, figures)):
                self._seen["key conflict"] += 1
            case _:
                self.problems.append(f"{figures} were answered {answer!r}")

    def _reasons(self, figure: Figure) -> set[str]:
        """Why an entry must be refused, whatever else there is."""
        if self._batch.board(figure.board) is None:
            return {"unknown_board"}
        found = set()
        names = [figure.member, *([] if figure.actor is None else [figure.actor])]
        if any(self._gone.erased(name.encode()) for name in names):
            found.add("member_erased")
        at_ms = self._batch.at_ms(figure)
        definition = self._batch.definition(figure.board)
        if at_ms > self._now_ms + 60_000:
            found.add("out_of_range")
        if figure.key is not None and definition.rule == "sum" and not definition.results:
            space = plain.bucket_space(figure.board, at_ms)
            retention_ms = plain.duration_ms(definition.key_retention or "1h")
            over = at_ms <= self._now_ms - retention_ms
            closed = plain.closed_by(self._cells, self._agent.name, space)
            if over or closed or self._gone.collected(space):
                found.add("key_expired")
        known = figure.key is not None and (self._is_known(figure) or self._kept(figure))
        if not known and not self._windows(figure).open:
            found.add("window_closed")
        return found

    def _windows(self, figure: Figure) -> _Windows:
        board = self._batch.board(figure.board)
        assert board is not None
        assert board.definition is not None
        prefixes = {counted.series.name: counted.prefix for counted in board.counted}
        taking: dict[str, bytes] = {}
        closed: dict[str, bytes] = {}
        for frame in plain.frames(board.definition, self._batch.at_ms(figure)):
            name = frame.id.partition(":")[0]
            space = prefixes[name] + frame.id.encode()
            if frame.start_ms < board.opens.get(name, -(2**62)):
                continue
            mine = plain.closed_by(self._cells, self._agent.name, space)
            over = frame.closes_ms <= self._now_ms or mine or self._gone.collected(space)
            (closed if over else taking)[frame.id] = space
        return _Windows(taking, closed)

    def _facts(self, figure: Figure) -> list[tuple[plain.Fact, Key]]:
        assert figure.key is not None
        return plain.facts_of(
            self._cells,
            figure.board,
            figure.member.encode(),
            figure.key.encode(),
            self._batch.at_ms(figure),
        )

    def _is_known(self, figure: Figure) -> bool:
        return any(key not in self.fresh for _, key in self._facts(figure))

    def _kept(self, figure: Figure) -> list[Value]:
        """The results of a key, in the windows of its time."""
        windows = self._windows(figure)
        assert figure.key is not None
        slot = b"K" + figure.key.encode()
        keys = [
            (s, figure.member.encode(), slot)
            for s in (*windows.open.values(), *windows.closed.values())
        ]
        return [self._cells[key] for key in keys if key in self._cells]

    def _conflicts(self, figure: Figure) -> bool:
        if figure.key is None:
            return False
        if self._batch.definition(figure.board).results:
            return any(value[1] != figure.number for value in self._kept(figure))
        first = min(self._facts(figure), key=lambda its: its[0].order, default=None)
        return first is not None and self._amount(first[0]) != figure.number

    def _amount(self, fact: plain.Fact) -> int | None:
        return fact.effects[0][1] if fact.effects else None

    # --- what was counted ------------------------------------------------------------------

    def _written(self, figure: Figure, scores: Mapping[str, int], note: Note) -> None:
        definition = self._batch.definition(figure.board)
        windows = self._windows(figure)
        member = figure.member.encode()
        counted = self._stored(figure, note)
        wanted = (
            {**windows.open}
            if counted and not definition.results
            else {**windows.open, **windows.closed}
        )
        # Of a kept result a window may have none yet: it has no score there.
        if set(scores) != set(wanted) and not (definition.results and set(scores) <= set(wanted)):
            self.problems.append(f"{figure} is answered for {sorted(scores)}, not {sorted(wanted)}")
            return
        late = set(windows.closed) if counted else set()
        if set(note.late) != late:
            self.problems.append(f"{figure} is late in {note.late}, not in {sorted(late)}")
        self._seen["late entry"] += bool(late)
        for window, score in scores.items():
            self._scores[wanted[window], member] = (definition, score)

    def _stored(self, figure: Figure, note: Note | None = None) -> bool:
        """Take an entry into the history; whether it was counted now. `note`: its answer's."""
        definition, windows = self._batch.definition(figure.board), self._windows(figure)
        member = figure.member.encode()
        for space in windows.open.values():
            self._history.boards[space] = definition
            if note is None:
                self._scores.pop((space, member), None)
        if definition.results:
            return self._result(figure, windows, note)
        if figure.key is not None and definition.rule == "sum":
            return self._keyed_entry(figure, windows, note)
        for space in windows.open.values():
            self._count(figure, definition, (space, member))
        return True

    def _keyed_entry(self, figure: Figure, windows: _Windows, note: Note | None) -> bool:
        """An entry with a key: whether it wrote the fact of it, or one was known."""
        facts = self._facts(figure)
        fresh = [(fact, key) for fact, key in facts if key in self.fresh]
        others = [fact for fact, key in facts if key not in self.fresh]
        counted = not others if note is None else note.counted_ms is None
        if fresh:
            self._told(figure, windows, others, *fresh[0])
        if counted:
            if not fresh or others:
                self.problems.append(f"{figure} was counted, its facts are {facts}")
            return bool(fresh)
        self._seen["key known"] += 1
        self._seen["key known, counted in more windows"] += bool(fresh)
        first = min(others, key=lambda its: its.order, default=None)
        if first is None:
            self.problems.append(f"{figure} is a duplicate of nothing")
        elif note is not None and note.counted_ms != first.hlc >> 16:
            self.problems.append(f"{figure} was counted at {first.hlc >> 16}: {note}")
        return False

    def _told(
        self,
        figure: Figure,
        windows: _Windows,
        others: list[plain.Fact],
        fact: plain.Fact,
        key: Key,
    ) -> None:
        """A fact was written: of the windows that no other fact of its key has an effect in."""
        self.fresh.discard(key)
        counted = {space for other in others for space, *_ in other.effects}
        wanted = [space for space in windows.open.values() if space not in counted]
        effects = {space: amount for space, amount, _, _ in fact.effects}
        if effects != dict.fromkeys(wanted, figure.number):
            self.problems.append(f"{figure} has the effects {effects}, its windows are {windows}")
        for space in wanted:
            self._add(figure, (space, figure.member.encode()), fact, key)

    def _add(
        self, figure: Figure, owner: MemberKey, fact: plain.Fact | None, key: Key | None
    ) -> None:
        """A sum grew by an entry."""
        history, inc = self._history, self._agent.slot_inc
        slot = history.added(owner, inc, figure.number, self._batch.at_ms(figure))
        self._slots.append(slot)
        after = history.slots.get(slot, (0, 0))[0]
        applied = Applied(slot, after, figure.number, self._agent.state.inc)
        if fact is not None:
            applied = Applied(slot, after, figure.number, fact.inc, fact.key, fact.order, key)
        self._keyed.add(applied)

    def _result(self, figure: Figure, windows: _Windows, note: Note | None) -> bool:
        """A kept result stands in all of its windows that are open.

        One that was taken back is not added to a window that came after that: no retraction is
        known there.
        """
        member, name = figure.member.encode(), (figure.key or "").encode()
        spaces = (*windows.open.values(), *windows.closed.values())
        taken = {space for space in spaces if (space, member, b"X" + name) in self._cells}
        found = [
            self._cells.get((space, member, b"K" + name))
            for space in windows.open.values()
            if not taken or space in taken
        ]
        if None in found or any(value is None or value[1] != figure.number for value in found):
            self.problems.append(f"{figure} is kept as {found}")
        known = note is not None and note.counted_ms is not None
        self._seen["result known"] += known
        return not known

    def _count(self, figure: Figure, definition: Definition, owner: MemberKey) -> None:
        """An entry without a key was counted in a window."""
        history, at_ms = self._history, self._batch.at_ms(figure)
        number = abs(figure.number) if definition.rule == "best" else figure.number
        data: bytes = b"" if figure.data is None else msgpack.packb(figure.data)
        match definition.rule:
            case "sum":
                self._add(figure, owner, None, None)
            case "best":
                major = -number if definition.low else number
                history.scored((*owner, BEST), (major, -at_ms, data))
            case "distinct":
                assert figure.actor is not None
                self._flags[*owner, b"C" + figure.actor.encode()] = figure.present
            case "unique":
                assert figure.actor is not None
                self._actors.visited(owner, figure.actor, self._cells)
            case _ if figure.ago_ms is None and figure.at_ms is None:
                self._clocked.setdefault((*owner, LATEST), set()).add((number, data))
            case _:
                history.scored((*owner, LATEST), (at_ms << 16, number, data))

    # --- what it left ----------------------------------------------------------------------

    def cell_problems(self) -> list[str]:
        """What the batch left in the agent's cells, against the plain history."""
        agent, history, problems = self._agent, self._history, []
        if self.fresh:
            problems.append(f"facts that no answer tells of: {[show(key) for key in self.fresh]}")
        for key in self._slots if agent.slot_inc == agent.state.inc else ():
            problem = history.slot_problem(key, self._cells.get(key))
            problems += [problem] if problem else []
        for key, on in self._flags.items():
            value = self._cells.get(key, (0, 0, b""))
            if value[0] % 2 != on:
                problems.append(f"{show(key)} is {value} after it was set to {on}")
        for key, scores in self._clocked.items():
            newest = agent.disk.value(key)
            if newest is not None and newest[1:] in scores:
                history.scored(key, newest)
            elif key not in history.cells or newest not in history.cells[key].values:
                problems.append(f"{show(key)} is {newest}; a write without `at` must win")
        damaged = {key[:2] for key in agent.disk.damaged}
        owners = plain.by_owner(self._cells)
        for member, (definition, score) in self._scores.items():
            if member in damaged:
                continue  # what stands there is not what was written
            standing = plain.score(definition, owners.get(member, {}))
            if (0 if standing is None else standing.score) != score:
                problems.append(f"{member[1]!r}: {score} was answered, {standing} is stored")
        return problems
