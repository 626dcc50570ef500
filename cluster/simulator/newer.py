"""An agent of a newer version: it writes a kind of cell that this version does not know.

It also uses a freedom of the protocol that agents of this version don't: it streams its log, chunk
after chunk, without waiting for the reader's cursor. A lost chunk leaves a gap, and what comes
behind a gap must be ignored.
"""

from __future__ import annotations

from agent.crdt.cell import Key, Row, Value
from agent.exchange import Chunk
from agent.operation import Merged
from cluster.simulator.agent import SimulatedAgent
from cluster.simulator.events import Newer
from cluster.simulator.history import History

NAME, INC, LOG = "newer", 77, 7_777
SPACE = b"\xff a form of space that this version can't read"
KIND = b"~"


class NewerAgent:
    """Its log, and how far it has streamed it to each agent."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._rows: list[Row] = []
        self._streamed: dict[str, int] = {}

    def cells(self) -> dict[Key, Value]:
        """Its cells: its own disk is never lost."""
        return {row.key: row.value for row in self._rows}

    def stream(self, to: SimulatedAgent, event: Newer, now_ms: int) -> bool:
        """Write a cell, and send what that agent was not sent yet. False if the chunk is lost."""
        number = len(self._rows) + 1
        key = (SPACE, event.member.encode(), KIND + bytes([event.major % 3]))
        row = Row(*key, number, -event.major, b"\xc1 unreadable", INC, number)
        self._rows.append(row)
        self._history.committed(NAME, now_ms, [row])
        start = self._streamed.get(to.name, 0)
        self._streamed[to.name] = number
        return not event.lost and self._send(to, start, now_ms)

    def forget(self, name: str) -> None:
        """An agent's disk was set back: what it was sent it may not have."""
        self._streamed.pop(name, None)

    def finish(self, to: SimulatedAgent, now_ms: int) -> None:
        """Send the whole log to one agent, which passes it on."""
        self._send(to, 0, now_ms)

    def _send(self, to: SimulatedAgent, start: int, now_ms: int) -> bool:
        newest = {row.key: row for row in self._rows}
        rows = tuple(r for r in self._rows if r.seq > start and newest[r.key] is r)
        chunk = Chunk(LOG, start, len(self._rows), True, rows)
        vv = {INC: len(self._rows)} if self._rows else {}
        answer = to.stream(NAME, chunk, vv, now_ms)
        joined = isinstance(answer, Merged) and answer.joined
        if not joined:
            self._streamed[to.name] = 0  # it learns of the gap, and begins again
        return joined
