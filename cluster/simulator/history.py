"""The history of a run: what was written, in plain integers, and what must therefore be read.

Nothing here adds up cells with the product's code. For each cell there is the list of values that
its writes made, and the greatest of them that can't have been lost (`kept`): all of them, until a
disk is lost with what only it held. A run is right if at its end every cell of every agent holds
one of its written values, none below `kept`, and every score is the plain sum or maximum of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from agent.boards.definition import Definition
from agent.crdt.cell import Key, Row, Value

MemberKey = tuple[bytes, bytes]
UP, DOWN, BEST, LATEST = b"+", b"-", b"M", b"L"


@dataclass(slots=True)
class Cell:
    """What was written to one cell: all values, and the greatest that can't have been lost."""

    values: set[Value] = field(default_factory=set)
    kept: Value | None = None

    def wrote(self, value: Value) -> None:
        """A write made this value."""
        self.values.add(value)
        if self.kept is None or value > self.kept:
            self.kept = value

    def lost(self, elsewhere: Value | None) -> None:
        """A disk was lost; the greatest value on the others is this."""
        sure = [v for v in self.values if elsewhere is not None and v <= elsewhere]
        if self.kept is not None and (elsewhere is None or elsewhere < self.kept):
            self.kept = max(sure, default=None)


@dataclass(slots=True)
class History:
    """All writes of a run.

    cells: by key.
    commits: (incarnation, seq) -> the cells of that commit, for the invariants.
    sums: the plain sum of all acknowledged adds, by space and member.
    times: by agent, (when, key, value) of its writes, until its disk is lost.
    """

    cells: dict[Key, Cell] = field(default_factory=dict)
    commits: dict[tuple[int, int], list[tuple[Key, Value]]] = field(default_factory=dict)
    sums: dict[MemberKey, int] = field(default_factory=dict)
    times: dict[str, list[tuple[int, Key, Value]]] = field(default_factory=dict)
    boards: dict[bytes, Definition] = field(default_factory=dict)
    slots: dict[Key, tuple[int, int]] = field(default_factory=dict)

    def committed(self, agent: str, now_ms: int, rows: Iterable[Row]) -> None:
        """An agent made its own rows durable."""
        for row in rows:
            self.cells.setdefault(row.key, Cell()).wrote(row.value)
            self.commits.setdefault((row.inc, row.seq), []).append((row.key, row.value))
            self.times.setdefault(agent, []).append((now_ms, row.key, row.value))

    def added(self, member: MemberKey, inc: int, amount: int, at_ms: int) -> Key:
        """An acknowledged entry of a `sum` board. Returns the slot that it may have changed.

        An entry of 0 makes a member known where it was not; where it was, it changes nothing.
        """
        self.sums[member] = self.sums.get(member, 0) + amount
        key = (*member, (DOWN if amount < 0 else UP) + inc.to_bytes(8))
        if amount:
            total, rose_ms = self.slots.get(key, (0, at_ms))
            rose_ms = at_ms if total == 0 else max(rose_ms, at_ms)
            self.slots[key] = (total + abs(amount), rose_ms)
        return key

    def scored(self, key: Key, value: Value) -> None:
        """An acknowledged entry of a register wrote this value."""
        self.cells.setdefault(key, Cell()).wrote(value)

    def slot_problem(self, key: Key, value: Value | None) -> str | None:
        """Whether an agent's own counter slot holds the plain sum of what was acknowledged."""
        expected = self.slots.get(key)
        if expected is None and (value is None or value[0] == 0):
            return None  # only zeros were added
        if value is None or value[:2] != expected:
            return f"slot {show(key)} holds {value and value[:2]}, the plain sum is {expected}"
        return None

    def disk_lost(self, agent: str, others: Iterable[Mapping[Key, Value]]) -> None:
        """An agent's disk was lost; `others` are the cells of all other agents."""
        elsewhere: dict[Key, Value] = {}
        for cells in others:
            for key, value in cells.items():
                if key not in elsewhere or value > elsewhere[key]:
                    elsewhere[key] = value
        for key, cell in self.cells.items():
            cell.lost(elsewhere.get(key))
        self.times.pop(agent, None)

    def cell_problems(self, agent: str, cells: Mapping[Key, Value]) -> list[str]:
        """Whether one agent's cells are what the whole history makes of them."""
        problems = []
        for key, cell in self.cells.items():
            value = cells.get(key)
            if cell.kept is not None and (value is None or value < cell.kept):
                problems.append(f"{agent}: {show(key)} is {value}, but {cell.kept} was written")
            elif value is not None and value not in cell.values:
                problems.append(f"{agent}: {show(key)} is {value}, which nobody wrote")
        problems += [f"{agent}: {show(key)} from nowhere" for key in cells.keys() - self.cells]
        return problems

    def score_of(
        self, space: bytes, member: bytes, cells: Mapping[Key, Value]
    ) -> tuple[int, int] | None:
        """(score, reached) that a member must have, from cells that `cell_problems` passed."""
        definition = self.boards[space]
        found = {k[2]: v for k, v in cells.items() if k[0] == space and k[1] == member}
        if definition.rule == "best":
            best = found.get(BEST)
            return best and (-best[0] if definition.low else best[0], -best[1])
        if definition.rule == "latest":
            newest = found.get(LATEST)
            return newest and (newest[1], newest[0] >> 16)
        ups = [v for slot, v in found.items() if slot[:1] == UP]
        downs = [v for slot, v in found.items() if slot[:1] == DOWN]
        if not ups and not downs:
            return None
        rises = [v[1] for v in ups if v[0]] or [v[1] for v in (*ups, *downs)]
        return sum(v[0] for v in ups) - sum(v[0] for v in downs), max(rises)

    def all_kept(self, member: MemberKey) -> bool:
        """Whether nothing that was written for a member can have been lost."""
        return all(
            cell.kept == max(cell.values)
            for key, cell in self.cells.items()
            if key[:2] == member and cell.values
        )


def show(key: Key) -> str:
    """A cell's key, readable."""
    space, member, slot = key
    return (
        f"({space[1 : 1 + space[0]].decode()}, {member.decode()}, {slot[:1].decode()}{slot[1:]!r})"
    )
