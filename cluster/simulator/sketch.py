"""A sketch of four registers, as a cell that one incarnation writes (rule H).

With rule H left out it is one cell for all, whose values are no chain: two of them join to a third
one, which has no stamp of its own (see `rules.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

from agent.crdt.cell import Key, Value, row_of
from agent.crdt.slot import Kind, slot_of_replica
from agent.crdt.space import NO_SHAPE, Space, encode_space
from agent.operation import Import
from cluster.simulator.agent import SimulatedAgent
from cluster.simulator.events import Sketch
from cluster.simulator.history import History

SPACE = encode_space(Space("sketch", 0, NO_SHAPE, "all"))
SHARED: Key = (SPACE, b"ada", bytes([Kind.SKETCH]) + b"shared")
NOTHING: Value = (0, 0, bytes(4))


def merged(one: bytes, other: bytes) -> bytes:
    """The greater of each register."""
    return bytes(max(pair) for pair in zip(one, other, strict=True))


@dataclass(frozen=True, slots=True)
class _Written:
    key: Key
    value: Value
    registers: bytes


class Sketches:
    """What was written to the sketch, and whether all of it is there."""

    def __init__(self, history: History, omit: frozenset[str]) -> None:
        self._history = history
        self._shared = "H" in omit
        self._written: list[_Written] = []

    def write(self, agent: SimulatedAgent, event: Sketch, now_ms: int) -> None:
        """Raise a register."""
        if agent.closed:
            return
        agent.settle(now_ms)
        key = SHARED
        if not self._shared:
            key = (SPACE, b"ada", slot_of_replica(Kind.SKETCH, agent.slot_inc, bytes(3)))
        version, _, body = agent.disk.value(key) or NOTHING
        one = bytes(event.value if i == event.register else 0 for i in range(4))
        new: Value = (0 if self._shared else version + 1, 0, merged(body, one))
        agent.run([Import((row_of((*key, *new, 0, 0)),))], now_ms)
        if agent.disk.value(key) == new:
            self._written.append(_Written(key, new, one))

    def problems(self, agent: SimulatedAgent) -> list[str]:
        """Whether every register is at what was written, of what can't have been lost."""
        registers = bytes(4)
        for _, row in agent.disk.rows():
            if row.space == SPACE:
                registers = merged(registers, row.body)
        for written in self._written:
            cell = self._history.cells.get(written.key)
            sure = cell is not None and cell.kept is not None and cell.kept >= written.value
            if self._shared and cell is not None and cell.spoiled:
                sure = False
            if sure and merged(registers, written.registers) != registers:
                return [f"{agent.name}: the sketch is {registers!r}, lacks {written.registers!r}"]
        return []
