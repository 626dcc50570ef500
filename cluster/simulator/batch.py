"""What a script's figures are as entries of requests, by the boards that an agent knows."""

from __future__ import annotations

from agent.boards.catalog import Board
from agent.boards.definition import Definition
from agent.boards.entry import Entry
from agent.boards.tally import Group, Note
from agent.operation import Write
from cluster.simulator.agent import SimulatedAgent
from cluster.simulator.events import Figure

NO_NOTE = Note()


class Batch:
    """The requests of one batch, all of which meet the boards as the agent knows them now."""

    def __init__(self, agent: SimulatedAgent, now_ms: int) -> None:
        self.agent = agent
        self.now_ms = now_ms

    def board(self, name: str) -> Board | None:
        """A board in use."""
        found = self.agent.state.catalog.find(name)
        return None if found is None or found.definition is None else found

    def definition(self, name: str) -> Definition:
        """The definition of a board in use."""
        board = self.board(name)
        assert board is not None
        assert board.definition is not None
        return board.definition

    def at_ms(self, figure: Figure) -> int:
        """The time at which an entry counts."""
        if figure.at_ms is not None:
            return figure.at_ms
        if figure.ago_ms is None:
            return self.now_ms
        at_ms = self.now_ms - figure.ago_ms
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
        timed = figure.ago_ms is not None or figure.at_ms is not None
        at_ms = self.at_ms(figure) if timed else None
        rule = self.definition(figure.board).rule if self.board(figure.board) else "sum"
        if rule == "sum":
            return Entry(figure.member, add=figure.number, at=at_ms, key=figure.key)
        if rule in ("distinct", "unique"):
            present = figure.present if rule == "distinct" else None
            return Entry(figure.member, actor=figure.actor, present=present, at=at_ms)
        number = abs(figure.number) if rule == "best" else figure.number
        return Entry(figure.member, score=number, at=at_ms, data=figure.data, key=figure.key)
