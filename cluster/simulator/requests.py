"""Clients of a run: their requests, and whether each answer is the right one."""

from __future__ import annotations

from collections import Counter

import msgpack

from agent.boards.definition import Definition
from agent.boards.entry import Entry
from agent.boards.standing import standing_of
from agent.boards.tally import Group, MemberKey
from agent.crdt.cell import Key
from agent.errors import Indefinite, Refused
from agent.operation import Answer, Write, Written
from cluster.simulator.agent import SimulatedAgent
from cluster.simulator.events import Figure, Writes
from cluster.simulator.history import BEST, LATEST, UP, History, show


class Requests:
    """Sends what a script's clients write, and enters into the history what was acknowledged."""

    def __init__(self, history: History, seen: Counter[str]) -> None:
        self._history = history
        self._seen = seen

    def send(self, agent: SimulatedAgent, event: Writes, now_ms: int) -> list[str]:
        """Commit all requests of the event as one batch; what is wrong with the answers."""
        if agent.closed:
            self._seen["write refused: " + agent.closed] += 1
            return []
        agent.settle_boards(now_ms)
        batch = _Batch(self._history, agent, now_ms)
        operations = [batch.operation(figures) for figures in event.requests]
        agent.disk.fails = event.disk
        answers = agent.run(operations, now_ms)
        agent.disk.fails = "works"
        for figures, answer in zip(event.requests, answers, strict=True):
            batch.answered(figures, answer, self._seen)
        return batch.problems + batch.cell_problems()


class _Batch:
    """The requests of one batch, all of which meet the boards as the agent knows them now."""

    def __init__(self, history: History, agent: SimulatedAgent, now_ms: int) -> None:
        self._history = history
        self._agent = agent
        self._now_ms = now_ms
        self._slots: list[Key] = []
        self._clocked: dict[Key, set[tuple[int, bytes]]] = {}
        self._scores: dict[MemberKey, tuple[Definition, int]] = {}
        self.problems: list[str] = []

    def _definition(self, board: str) -> Definition | None:
        found = self._agent.state.catalog.find(board)
        return None if found is None else found.definition

    def _at_ms(self, figure: Figure) -> int:
        """The time at which an entry counts."""
        if figure.ago_ms is None:
            return self._now_ms
        at_ms = self._now_ms - figure.ago_ms
        return at_ms - at_ms % figure.grid_ms

    def operation(self, figures: tuple[Figure, ...]) -> Write:
        """A request, in the form that its boards' rules ask for."""
        groups: dict[str, Group] = {}
        for index, figure in enumerate(figures):
            group = groups.setdefault(figure.board, Group(figure.board, [], []))
            assert isinstance(group.entries, list)
            assert isinstance(group.indexes, list)
            group.entries.append(self._entry(figure))
            group.indexes.append(index)
        return Write(tuple(groups.values()))

    def _entry(self, figure: Figure) -> Entry:
        definition = self._definition(figure.board)
        at_ms = None if figure.ago_ms is None else self._at_ms(figure)
        if definition is None or definition.rule == "sum":
            return Entry(figure.member, add=figure.number, at=at_ms)
        number = abs(figure.number) if definition.rule == "best" else figure.number
        return Entry(figure.member, score=number, at=at_ms, data=figure.data)

    def answered(
        self, figures: tuple[Figure, ...], answer: Answer | Indefinite, seen: Counter[str]
    ) -> None:
        """Take one request's answer into the history, if its entries are counted."""
        known = all(self._definition(figure.board) for figure in figures)
        match answer:
            case Written(scores):
                if not known:
                    self.problems.append("entries of an unknown board were counted")
                    return
                boards = dict.fromkeys(figure.board for figure in figures)
                in_order = [f for board in boards for f in figures if f.board == board]
                flat = [score for group in scores for score in group]
                for figure, score in zip(in_order, flat, strict=True):
                    self._count(figure, score)
            case Indefinite():
                seen["commit uncertain"] += 1
                for figure in figures if known else ():
                    self._count(figure, None)
            case Refused(code="busy"):
                seen["commit refused"] += 1
            case Refused(code="unknown_board") if not known:
                seen["unknown board refused"] += 1
            case _:
                self.problems.append(f"a request was answered {answer!r}")

    def _count(self, figure: Figure, score: int | None) -> None:
        definition = self._definition(figure.board)
        assert definition is not None
        agent, history = self._agent, self._history
        member = (agent.state.catalog.board(figure.board).space, figure.member.encode())
        history.boards[member[0]] = definition
        at_ms = self._at_ms(figure)
        if score is not None:
            self._scores[member] = (definition, score)
        else:
            self._scores.pop(member, None)
        number = abs(figure.number) if definition.rule == "best" else figure.number
        data: bytes = b"" if figure.data is None else msgpack.packb(figure.data)
        if definition.rule == "sum":
            self._slots.append(history.added(member, agent.slot_inc, figure.number, at_ms))
        elif definition.rule == "best":
            major = -number if definition.low else number
            history.scored((*member, BEST), (major, -at_ms, data))
        elif figure.ago_ms is None:
            self._clocked.setdefault((*member, LATEST), set()).add((number, data))
        else:
            history.scored((*member, LATEST), (at_ms << 16, number, data))

    def cell_problems(self) -> list[str]:
        """What the batch left in the agent's cells, against the plain history."""
        agent, history, problems = self._agent, self._history, []
        for key in self._slots if agent.slot_inc == agent.state.inc else ():
            problem = history.slot_problem(key, agent.disk.value(key))
            problems += [problem] if problem else []
            assert key[2][:1] in (UP, b"-")
        for key, scores in self._clocked.items():
            value = agent.disk.value(key)
            if value is not None and value[1:] in scores:
                history.scored(key, value)
            elif key not in history.cells or value not in history.cells[key].values:
                problems.append(f"{show(key)} is {value}; a write without `at` must win")
        snapshot = agent.disk.snapshot()
        damaged = {key[:2] for key in agent.disk.damaged}
        for member, (definition, score) in self._scores.items():
            if member in damaged:
                continue  # what stands there is not what was written
            standing = standing_of(definition, snapshot.slots_of(*member))
            if standing is None or standing.score != score:
                problems.append(f"{member[1]!r}: {score} was answered, {standing} is stored")
        return problems
