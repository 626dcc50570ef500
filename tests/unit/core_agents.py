"""Agents of the pure core for tests: each a committer over a store in memory, merged by hand.

Nothing is on a clock of its own: the time is an argument of `run`. After each step `check` holds
what is kept with every change (totals, root, buckets, the number of facts) against a recount of the
cells themselves.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from agent import exchange
from agent.boards.catalog import Board
from agent.boards.definition import Definition, check
from agent.boards.entry import Entry
from agent.boards.tally import Group, Note
from agent.boards.windows import Window, WindowSpec
from agent.committer import Commit, Committer
from agent.crdt.cell import Key, Row, Value
from agent.crdt.fingerprint import fingerprint
from agent.crdt.slot import Kind
from agent.crdt.space import is_own
from agent.crdt.total import Total, total_of
from agent.errors import Refused
from agent.exchange import Chunk, ChunkLimits
from agent.limits import INT64_MAX
from agent.operation import (
    Announce,
    BoardChanged,
    Define,
    Drop,
    Merge,
    Merged,
    Operation,
    SetMarks,
    Write,
    Written,
)
from agent.state import Outcome, State
from agent.store.identity import Identity
from agent.store.memory import MemoryStore

NOW_MS = 1_796_043_600_000
"""2026-11-30T13:00:00Z, a Monday."""
HOUR_MS, DAY_MS = 3_600_000, 86_400_000
DAILY = Definition(rule="sum", windows=(WindowSpec("all"), WindowSpec("day")))
TODAY = "day:2026-11-30"
INCS = {"a": 101, "b": 202, "c": 303, "d": 404}


class Recorded(MemoryStore):
    """A store in memory that adds up what outcomes say of buckets, as a file does."""

    def __init__(self, identity: Identity) -> None:
        super().__init__(identity)
        self.sums: dict[int, tuple[int, int]] = {}
        self.outcomes: list[Outcome] = []

    def commit(self, before: State, outcome: Outcome, new_cells: int) -> None:
        super().commit(before, outcome, new_cells)
        self.outcomes.append(outcome)
        for bucket, change in outcome.buckets.items():
            mark, cells = self.sums.get(bucket, (0, 0))
            self.sums[bucket] = (mark ^ change.flips, cells + change.cells)


class CoreAgent:
    """One agent: its name is its region's too."""

    def __init__(self, name: str, facts_max: int = INT64_MAX) -> None:
        inc = INCS[name]
        self.name = name
        self.inc = inc
        self.store = Recorded(Identity("r", name, name, inc, inc + 1_000))
        self.committer = Committer(
            self.store, lambda _now_ms, above: (above + 1, above + 1), facts_max
        )
        self.commits: list[Commit] = []
        self.must(Announce(name, f"http://{name}"))

    @property
    def state(self) -> State:
        return self.committer.state

    def run(self, *operations: Operation, now_ms: int = NOW_MS) -> list[object]:
        """The answers to operations that come in one batch."""
        commit = self.committer.run(operations, now_ms)
        self.commits.append(commit)
        assert not commit.failures, commit.failures
        assert commit.alarms.covered_changed == 0
        assert commit.alarms.forked == 0
        assert commit.alarms.peer_ahead == 0
        return list(commit.answers)

    def must(self, *operations: Operation, now_ms: int = NOW_MS) -> list[object]:
        """As `run`, where nothing may be refused."""
        answers = self.run(*operations, now_ms=now_ms)
        assert not [its for its in answers if isinstance(its, Refused)], answers
        return answers

    def changed(self, operation: Operation, now_ms: int = NOW_MS) -> bool:
        """Whether an operation changed anything."""
        (answer,) = self.must(operation, now_ms=now_ms)
        assert isinstance(answer, BoardChanged)
        return answer.changed

    def define(self, board: str, definition: Definition, now_ms: int = NOW_MS) -> None:
        self.must(Define(board, check(definition)), now_ms=now_ms)

    def write(self, board: str, *entries: Entry, now_ms: int = NOW_MS) -> Written:
        """Write entries as one request."""
        (answer,) = self.must(write(board, *entries), now_ms=now_ms)
        assert isinstance(answer, Written)
        return answer

    def one(self, board: str, entry: Entry, now_ms: int = NOW_MS) -> tuple[dict[str, int], Note]:
        """Write one entry: its scores, and what else is said of it."""
        answer = self.write(board, entry, now_ms=now_ms)
        return answer.scores[0][0], dict(answer.notes[0]).get(0, Note())

    def refused(self, board: str, *entries: Entry, now_ms: int = NOW_MS) -> Refused:
        """Write entries that are refused; nothing may have changed."""
        before = (self.state, self.cells())
        (answer,) = self.run(write(board, *entries), now_ms=now_ms)
        assert isinstance(answer, Refused), answer
        assert (self.state, self.cells()) == before
        return answer

    # --- replication -----------------------------------------------------------------------

    def pull(self, other: CoreAgent, rows_max: int = 500, now_ms: int = NOW_MS) -> int:
        """Read another's log to its head; returns how many cells changed here."""
        changed, log = 0, other.state.log
        for _ in range(10_000):
            snapshot = other.store.snapshot()
            reading = self.state.cursors.get(log)
            start = 0 if reading is None else reading.lsn
            chunk = exchange.build_chunk(
                snapshot, log, start, self.state.vv, {}, ChunkLimits(rows_max=rows_max)
            )
            (answer,) = self.must(Merge(other.name, chunk, snapshot.vv), now_ms=now_ms)
            assert isinstance(answer, Merged)
            assert answer.joined
            changed += answer.changed
            if chunk.head:
                return changed
        raise AssertionError("never at head")

    def take(self, *rows: Row, now_ms: int = NOW_MS) -> Merged:
        """Merge rows as a chunk of a log that nobody has heard of, which claims nothing."""
        log = 5_000_000 + len(self.commits)
        answers = self.must(Merge("z", Chunk(log, 0, 1, False, rows, {}), None), now_ms=now_ms)
        (answer,) = answers
        assert isinstance(answer, Merged)
        return answer

    # --- reading ---------------------------------------------------------------------------

    def board(self, name: str) -> Board:
        return self.state.catalog.board(name)

    def rows(self) -> list[Row]:
        """All rows, in the order of the log."""
        return [row for _, row in self.store.snapshot().log_after(0, 10**9) if row is not None]

    def cells(self) -> dict[Key, Value]:
        return {row[:3]: row[3:6] for row in self.rows()}

    def of_kind(self, kind: Kind) -> list[Row]:
        """The rows of boards of one kind, in the order of the log."""
        return [row for row in self.rows() if row.slot[0] == kind and not is_own(row.space)]

    def space(self, board: str, window: str) -> bytes:
        """The space of a window of a board, by its id."""
        for counted in self.board(board).counted:
            found = counted.series.window(window)
            if found is not None:
                return counted.space_of(found)
        raise AssertionError(window)

    def total(self, board: str, window: str, member: str = "m") -> Total | None:
        """The total of a member, as it is kept."""
        return self.store._totals.get((self.space(board, window), member.encode()))

    def score(self, board: str, window: str, member: str = "m") -> int | None:
        total = self.total(board, window, member)
        return None if total is None else total.score

    def window(self, board: str, name: str, at_ms: int = NOW_MS) -> Window:
        """The window of a board's series that a time falls in."""
        for counted in self.board(board).counted:
            if counted.series.name == name:
                found = counted.series.at(at_ms)
                assert found is not None
                return found
        raise AssertionError(name)

    def check(self) -> None:
        """Hold everything that is kept with each change against a recount."""
        snapshot = self.store.snapshot()
        rows = list(snapshot._rows.values())
        members: dict[tuple[bytes, bytes], list[tuple[bytes, Value]]] = {}
        root = 0
        for row in rows:
            root ^= fingerprint(row)
            if not is_own(row.space):
                members.setdefault(row[:2], []).append((row.slot, row.value))
        counted = {key: total_of(slots) for key, slots in members.items()}
        right = {key: total for key, total in counted.items() if total is not None}
        kept = self.store._totals
        marks = self.state.marks
        assert {key: its for key, its in kept.items() if not marks.collects(key[0])} == {
            key: its for key, its in right.items() if not marks.collects(key[0])
        }
        assert {key[0] for key in kept} <= {row.space for row in rows}
        assert self.state.root == root
        assert self.state.facts == sum(row.slot[0] == Kind.FACT for row in rows)
        for bucket, (mark, cells) in enumerate(snapshot.buckets()):
            assert self.store.sums.get(bucket, (0, 0)) == (mark, cells)

    # --- housekeeping ----------------------------------------------------------------------

    def drop(self, *keys: Key) -> bool:
        return self.changed(Drop(keys))

    def set_marks(self, *marks: object) -> bool:
        return self.changed(SetMarks(tuple(marks)))  # type: ignore[arg-type]


def keyed(key: str, add: int = 5, at: int = NOW_MS, member: str = "m") -> Entry:
    """An entry with a key."""
    return Entry(member, add=add, at=at, key=key)


def write(board: str, *entries: Entry) -> Write:
    """One request of entries for one board."""
    return Write((Group(board, entries, range(len(entries))),))


def three(
    definition: Definition, board: str = "b", names: str = "abc", facts_max: int = INT64_MAX
) -> list[CoreAgent]:
    """Agents that know each other and a board."""
    agents = [CoreAgent(name, facts_max) for name in names]
    agents[0].define(board, definition)
    meet(*agents)
    return agents


def meet(*agents: CoreAgent, rows_max: int = 500, now_ms: int = NOW_MS) -> None:
    """All pull from all, until nothing changes any more."""
    for _ in range(10):
        changed = [
            reader.pull(writer, rows_max, now_ms)
            for reader, writer in itertools.permutations(agents, 2)
        ]
        if not any(changed):
            return
    raise AssertionError("never quiet")


def check_equal(agents: Sequence[CoreAgent]) -> None:
    """All agents hold the same cells, and keep the right sums of them."""
    first = agents[0].cells()
    for agent in agents:
        agent.check()
        assert agent.cells() == first
        assert agent.state.root == agents[0].state.root
        assert agent.state.vv == agents[0].state.vv
