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
from cluster.simulator import plain

MemberKey = tuple[bytes, bytes]
UP, DOWN, BEST, LATEST = b"+", b"-", b"M", b"L"


@dataclass(slots=True)
class Cell:
    """What was written to one cell: all values, and the greatest that can't have been lost.

    spoiled: whether some of it may have been lost.
    """

    values: set[Value] = field(default_factory=set)
    kept: Value | None = None
    spoiled: bool = False

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
            self.spoiled = True


@dataclass(slots=True)
class History:
    """All writes of a run.

    cells: by key.
    commits: (incarnation, seq) -> the cells of that commit, for the invariants.
    sums: the plain sum of all acknowledged adds, by space and member.
    times: by agent, (when, key, value) of its writes, but for what was lost since. A clock that
        jumped back counts on from where it was: what an agent said before stands.
    slots: the plain sum in each counter slot, and when it last rose.
    collected: by series, the newest window that anybody ever said is collected.
    holes: cells that were damaged when nobody held all that was written to them.
    """

    cells: dict[Key, Cell] = field(default_factory=dict)
    commits: dict[tuple[int, int], list[tuple[Key, Value]]] = field(default_factory=dict)
    sums: dict[MemberKey, int] = field(default_factory=dict)
    times: dict[str, list[tuple[int, Key, Value]]] = field(default_factory=dict)
    boards: dict[bytes, Definition] = field(default_factory=dict)
    slots: dict[Key, tuple[int, int]] = field(default_factory=dict)
    collected: dict[bytes, str] = field(default_factory=dict)
    holes: set[Key] = field(default_factory=set)

    def committed(self, agent: str, now_ms: int, rows: Iterable[Row]) -> None:
        """An agent made its own rows durable."""
        times = self.times.setdefault(agent, [])
        for row in rows:
            wrote = [(row.key, row.value)]
            if plain.is_fact(row.key):
                wrote += plain.implied(row.key, row.value)
            for key, value in wrote:
                self.cells.setdefault(key, Cell()).wrote(value)
            self.commits.setdefault((row.inc, row.seq), []).extend(wrote)
            if row.space == plain.MARKS and row.slot[:1] == b"g":
                window = max(row.body.decode(), self.collected.get(row.member, ""))
                self.collected[row.member] = window
            now_ms = max(now_ms, times[-1][0]) if times else now_ms
            times.append((now_ms, row.key, row.value))

    def was_collected(self, space: bytes) -> bool:
        """Whether anybody ever said that a window is collected."""
        series, window = plain.series_of(space)
        return window <= self.collected.get(series, "")

    def stamp_problem(self, row: Row) -> str | None:
        """I1: a row holds what the write that its stamp names made of the cell, or less."""
        values = [v for key, v in self.commits.get((row.inc, row.seq), ()) if key == row.key]
        if any(row.value <= value for value in values) or row.key in self.holes:
            return None
        return f"I1: {show(row.key)} = {row.value} is stamped {row[6:]}, which wrote {values}"

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

    def disk_lost(self, others: Iterable[Mapping[Key, Value]]) -> None:
        """A disk was lost or set back; `others` are the cells of all disks that there are now."""
        elsewhere = greatest(others)
        for key, cell in self.cells.items():
            cell.lost(elsewhere.get(key))
        for agent, times in self.times.items():
            self.times[agent] = [
                (at_ms, key, value)
                for at_ms, key, value in times
                if key in elsewhere and elsewhere[key] >= value
            ]

    def cell_lost(self, key: Key, others: Iterable[Mapping[Key, Value]]) -> None:
        """A cell was damaged, and what it held may be nowhere; `others` as in `disk_lost`."""
        elsewhere = greatest(others).get(key)
        if key in self.cells:
            self.cells[key].lost(elsewhere)
            if self.cells[key].spoiled:
                self.holes.add(key)

    def set_back(self, inc: int, seq: int, cells: Mapping[Key, Value]) -> None:
        """An incarnation goes on from `seq`: nobody holds what it wrote after that, if it did."""
        for stamp in [stamp for stamp in self.commits if stamp[0] == inc and stamp[1] > seq]:
            del self.commits[stamp]
        self.forget_slots(inc, cells)

    def forget_slots(self, slot_inc: int, cells: Mapping[Key, Value]) -> None:
        """The counter slots of an incarnation are what a disk that was set back holds of them."""
        for key in [key for key in self.slots if key[2][1:9] == slot_inc.to_bytes(8)]:
            value = cells.get(key)
            if value is None or value[0] == 0:
                del self.slots[key]
            else:
                self.slots[key] = (value[0], value[1])

    def cell_problems(self, agent: str, cells: Mapping[Key, Value]) -> list[str]:
        """Whether one agent's cells are what the whole history makes of them.

        What is collected or erased must be gone.
        """
        problems, gone = [], plain.Gone(cells)
        for key, cell in self.cells.items():
            value = cells.get(key)
            if gone and gone.holds(key):
                # What was said of a window goes with its cells: of one that was empty it stays.
                empty = key[0] == plain.MARKS and key[2][:1] in b"df" and gone.names_erased
                if value is not None and not empty:
                    problems.append(f"{agent}: {show(key)} is {value}, and should be gone")
                continue
            if cell.kept is not None and (value is None or value < cell.kept):
                problems.append(f"{agent}: {show(key)} is {value}, but {cell.kept} was written")
            elif value is not None and value not in cell.values:
                problems.append(f"{agent}: {show(key)} is {value}, which nobody wrote")
        problems += [
            f"{agent}: {show(key)} from nowhere" for key in sorted(cells.keys() - self.cells)
        ]
        return problems

    def score_of(
        self, space: bytes, member: bytes, cells: Mapping[Key, Value]
    ) -> plain.Score | None:
        """(score, reached) that a member must have, from cells that `cell_problems` passed."""
        return plain.score(self.boards[space], plain.slots_of(cells, space, member))

    def all_kept(self, member: MemberKey) -> bool:
        """Whether nothing that was written for a member can have been lost."""
        return all(
            cell.kept == max(cell.values) and not cell.spoiled
            for key, cell in self.cells.items()
            if key[:2] == member and cell.values
        )


def show(key: Key) -> str:
    """A cell's key, readable."""
    space, member, slot = key
    board = space[1 : 1 + space[0]].decode(errors="replace")
    return f"({board}, {member.decode(errors='replace')}, {slot[:1].decode()}{slot[1:]!r})"


def greatest(disks: Iterable[Mapping[Key, Value]]) -> dict[Key, Value]:
    """The greatest value of each cell on any of these disks."""
    found: dict[Key, Value] = {}
    for cells in disks:
        for key, value in cells.items():
            if key not in found or value > found[key]:
                found[key] = value
    return found
