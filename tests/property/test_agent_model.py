"""A stateful model: one whole agent core, and a second one that it merges, against plain integers.

The agent takes definitions, batches of entries, resets, retirements, merges from its peer and
restarts, over SQLite and over the store in memory. The model is dictionaries of integers.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from agent import exchange
from agent.boards.definition import COUNTERS, COUNTERS_DEFINITION, Definition, ScoreRange
from agent.boards.entry import Entry
from agent.boards.standing import standing_of
from agent.boards.tally import Group
from agent.committer import Committer
from agent.errors import Refused
from agent.exchange import ChunkLimits
from agent.operation import (
    BoardChanged,
    Define,
    Merge,
    Merged,
    Operation,
    Reset,
    Retire,
    Write,
    Written,
)
from agent.store.identity import Identity
from agent.store.memory import MemorySnapshot, MemoryStore
from agent.store.snapshot import SqliteSnapshot
from agent.store.sqlite import SqliteStore

START_MS = 1_800_000_000_000
LIMIT = 20
RANGE = ScoreRange(-LIMIT, LIMIT)
DEFINITIONS = {
    "s": Definition(rule="sum", score=RANGE),
    "g": Definition(rule="sum", grow_only=True, score=ScoreRange(0, LIMIT)),
    "h": Definition(rule="best", score=RANGE),
    "l": Definition(rule="best", order="low", score=RANGE),
    "n": Definition(rule="latest", score=RANGE),
}
NAMES = [*DEFINITIONS, COUNTERS]
MINE, PEER = 0, 1
BoardName = tuple[str, int]  # name, generation


def ticked(clock: int, now_ms: int) -> int:
    """The next hybrid time; counter 0 is left to entries with a time of their own."""
    time = max(clock, now_ms << 16) + 1
    return time + (time % 65536 == 0)


@dataclass
class Plain:
    """What one agent knows, in plain integers. Times are ms; a generation has its own numbers."""

    generations: dict[str, int] = field(default_factory=dict)
    retired: set[str] = field(default_factory=set)
    defined: set[str] = field(default_factory=set)
    sums: dict[tuple[BoardName, str], dict[int, int]] = field(default_factory=dict)
    best: dict[tuple[BoardName, str], tuple[int, int]] = field(default_factory=dict)
    latest: dict[tuple[BoardName, str], tuple[int, int]] = field(default_factory=dict)
    clock: int = 0  # hybrid: ms x 2**16 + counter
    written: dict[str, int] = field(default_factory=dict)  # when a definition was, by name

    def tick(self, now_ms: int) -> int:
        self.clock = ticked(self.clock, now_ms)
        return self.clock

    def in_use(self, name: str) -> bool:
        return name == COUNTERS or (name in self.defined and name not in self.retired)

    def board(self, name: str) -> BoardName:
        return name, self.generations.get(name, 0)

    def learn(self, other: Plain, writer: int) -> None:
        """All that the other knows. Boards change at one agent only, so its are the newest."""
        heard = [v[0] for key, v in other.latest.items() if v > self.latest.get(key, (-1, 0))]
        if writer == MINE:
            heard += [at for name, at in other.written.items() if self.written.get(name) != at]
            self.generations, self.defined = dict(other.generations), set(other.defined)
            self.retired, self.written = set(other.retired), dict(other.written)
        self.clock = max([self.clock, *(time for time in heard if time % 65536)])
        for key, by_agent in other.sums.items():
            known = self.sums.setdefault(key, {})
            known.update({agent: n for agent, n in by_agent.items() if agent == writer})
        for mine, theirs in ((self.best, other.best), (self.latest, other.latest)):
            for key, value in theirs.items():
                mine[key] = max(mine.get(key, value), value)


class Core:
    """An agent's core over a store."""

    def __init__(self, store: SqliteStore | MemoryStore) -> None:
        self.store = store
        self.committer = Committer(store, lambda _now_ms, inc: (inc + 1, inc + 1))

    def snapshot(self) -> SqliteSnapshot | MemorySnapshot:
        if isinstance(self.store, MemoryStore):
            return self.store.snapshot()
        return SqliteSnapshot(self.store._db)


FIGURES = st.lists(
    st.tuples(
        st.sampled_from(NAMES),
        st.sampled_from(["a", "b"]),
        st.integers(-9, 9),
        st.one_of(st.none(), st.integers(-3_000, 3_000)),
    ),
    min_size=1,
    max_size=6,
)
REQUESTS = st.lists(FIGURES, min_size=1, max_size=3)


class AgentModel(RuleBasedStateMachine):
    """Boards change at the first agent; entries come to both."""

    on_disk = False

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name) / "t.db"
        self.now_ms = START_MS
        self.plain = {MINE: Plain(), PEER: Plain()}
        mine = SqliteStore(self.path, self.identity(MINE)) if self.on_disk else None
        self.cores = {
            MINE: Core(mine or MemoryStore(self.identity(MINE))),
            PEER: Core(MemoryStore(self.identity(PEER))),
        }

    @staticmethod
    def identity(agent: int) -> Identity:
        return Identity("r", f"a{agent}", f"a{agent}", 10 + agent, 20 + agent)

    def teardown(self) -> None:
        self.cores[MINE].store.close()
        self.folder.cleanup()

    # --- boards ---------------------------------------------------------------------------

    @rule(name=st.sampled_from(list(DEFINITIONS)))
    def define(self, name: str) -> None:
        plain = self.plain[MINE]
        changes = not plain.in_use(name)
        if name in plain.retired:
            plain.generations[name] = plain.generations.get(name, 0) + 1
        plain.defined.add(name)
        plain.retired.discard(name)
        if changes:
            plain.written[name] = plain.tick(self.now_ms)
        (answer,) = self.run(MINE, Define(name, DEFINITIONS[name]))
        assert answer == BoardChanged(changes)

    @rule(name=st.sampled_from(NAMES))
    def reset(self, name: str) -> None:
        plain = self.plain[MINE]
        (answer,) = self.run(MINE, Reset(name, None))
        assert isinstance(answer, BoardChanged) == plain.in_use(name)
        if plain.in_use(name):
            plain.generations[name] = plain.generations.get(name, 0) + 1
            plain.tick(self.now_ms)

    @rule(name=st.sampled_from(NAMES))
    def retire(self, name: str) -> None:
        plain = self.plain[MINE]
        (answer,) = self.run(MINE, Retire(name))
        assert isinstance(answer, BoardChanged) == (plain.in_use(name) and name != COUNTERS)
        if isinstance(answer, BoardChanged):
            plain.retired.add(name)
            plain.written[name] = plain.tick(self.now_ms)

    # --- entries --------------------------------------------------------------------------

    @rule(agent=st.sampled_from([MINE, MINE, PEER]), requests=REQUESTS)
    def write(self, agent: int, requests: list[list[tuple[str, str, int, int | None]]]) -> None:
        operations = []
        for figures in requests:
            groups: dict[str, tuple[list[Entry], list[int]]] = {}
            for index, (name, member, number, ago_ms) in enumerate(figures):
                at = None if ago_ms is None else self.now_ms - ago_ms
                by_sum = name in ("s", "g", COUNTERS)
                entry = Entry(
                    member, add=number if by_sum else None, score=None if by_sum else number, at=at
                )
                entries, indexes = groups.setdefault(name, ([], []))
                entries.append(entry)
                indexes.append(index)
            operations.append(Write(tuple(Group(n, *group) for n, group in groups.items())))
        answers = self.run(agent, *operations)
        for figures, answer in zip(requests, answers, strict=True):
            order = list(dict.fromkeys(name for name, *_ in figures))
            grouped = [f for board in order for f in figures if f[0] == board]
            expected = self.expect(agent, grouped)
            if expected is None:
                assert isinstance(answer, Refused)
                assert answer.definite
            else:
                assert isinstance(answer, Written)
                assert [score for group in answer.scores for score in group] == [
                    {"all": score} for score in expected
                ]

    def expect(
        self, agent: int, figures: list[tuple[str, str, int, int | None]]
    ) -> list[int] | None:
        """The scores after each entry, taken into the model; None for a refusal."""
        plain = self.plain[agent]
        if not all(plain.in_use(name) for name, *_ in figures):
            return None
        sums = {key: dict(by_agent) for key, by_agent in plain.sums.items()}
        best, latest, scores = dict(plain.best), dict(plain.latest), []
        clock = plain.clock
        for name, member, number, ago_ms in figures:
            key = (plain.board(name), member)
            at_ms = self.now_ms - (ago_ms or 0)
            if name in ("s", "g", COUNTERS):
                total = sum(sums.get(key, {}).values()) + number
                limit = 2**53 if name == COUNTERS else LIMIT
                least = 0 if name == "g" else -limit
                if (total > limit and number > 0) or (total < least and number < 0):
                    return None
                if name == "g" and number < 0:
                    return None
                mine = sums.setdefault(key, {})
                mine[agent] = mine.get(agent, 0) + number
                scores.append(total)
            elif name == "n":
                value = (at_ms << 16, number)
                if ago_ms is None:
                    clock = ticked(clock, self.now_ms)
                    value = (max(clock, latest.get(key, (-1, 0))[0] + 1), number)
                latest[key] = max(latest.get(key, value), value)
                scores.append(latest[key][1])
            else:
                offered = (-number if name == "l" else number, -at_ms)
                best[key] = max(best.get(key, offered), offered)
                scores.append(-best[key][0] if name == "l" else best[key][0])
        plain.sums, plain.best, plain.latest, plain.clock = sums, best, latest, clock
        return scores

    # --- the other agent, time, restarts --------------------------------------------------

    @rule(rows_max=st.integers(1, 4), cuts=st.integers(0, 3))
    def merge(self, rows_max: int, cuts: int) -> None:
        """Read the peer to its head; a few chunks come twice."""
        self.pull(MINE, PEER, rows_max, cuts)
        self.plain[MINE].learn(self.plain[PEER], PEER)

    @rule(rows_max=st.integers(1, 4))
    def share(self, rows_max: int) -> None:
        """The peer reads this agent to its head: boards and all."""
        self.pull(PEER, MINE, rows_max, 0)
        self.plain[PEER].learn(self.plain[MINE], MINE)

    def pull(self, reader: int, writer: int, rows_max: int, cuts: int) -> None:
        name, limits = f"a{writer}", ChunkLimits(rows_max=rows_max)
        for _ in range(1_000):
            state = self.cores[reader].committer.state
            snapshot = self.cores[writer].snapshot()
            log = self.cores[writer].committer.state.log
            cursor = state.cursors.get(log)
            start = cursor.lsn if cursor is not None else 0
            chunk = exchange.build_chunk(snapshot, log, start, state.vv, {}, limits)
            merges = [Merge(name, chunk, snapshot.vv)] * (2 if cuts > 0 else 1)
            cuts -= 1
            answers = self.run(reader, *merges)
            assert all(isinstance(answer, Merged) and answer.joined for answer in answers)
            if chunk.head:
                return
        raise AssertionError("never at head")

    @rule(ms=st.integers(1, 5_000))
    def time_passes(self, ms: int) -> None:
        self.now_ms += ms

    @rule()
    @precondition(lambda self: self.on_disk)
    def reopen(self) -> None:
        before = self.cores[MINE].committer.state
        self.cores[MINE].store.close()
        self.cores[MINE] = Core(SqliteStore(self.path, self.identity(MINE)))
        after = self.cores[MINE].committer.state
        assert (after.seq, after.lsn, after.hlc) == (before.seq, before.lsn, before.hlc)
        assert (after.vv, after.cursors) == (before.vv, before.cursors)
        assert list(after.catalog) == list(before.catalog)

    def run(self, agent: int, *operations: Operation) -> list[object]:
        commit = self.cores[agent].committer.run(operations, self.now_ms)
        alarms = commit.alarms
        assert (alarms.covered_changed, alarms.forked, alarms.peer_ahead) == (0, 0, 0)
        return list(commit.answers)

    # --- the right answer ------------------------------------------------------------------

    @invariant()
    def every_score_is_the_plain_one(self) -> None:
        for agent, core in self.cores.items():
            plain, catalog = self.plain[agent], core.committer.state.catalog
            assert core.committer.state.hlc == plain.clock
            assert {b.name for b in catalog} == {n for n in NAMES if plain.in_use(n)}
            snapshot = core.snapshot()
            for board in catalog:
                assert board.generation == plain.generations.get(board.name, 0)
                for member in ("a", "b"):
                    slots = snapshot.slots_of(board.space, member.encode())
                    standing = standing_of(DEFINITIONS.get(board.name, COUNTERS_DEFINITION), slots)
                    assert (standing and standing.score) == self.score(plain, board.name, member)

    @staticmethod
    def score(plain: Plain, name: str, member: str) -> int | None:
        key = (plain.board(name), member)
        if key in plain.sums:
            return sum(plain.sums[key].values())
        if key in plain.best:
            return -plain.best[key][0] if name == "l" else plain.best[key][0]
        return plain.latest[key][1] if key in plain.latest else None


class OnDisk(AgentModel):
    """The same over SQLite."""

    on_disk = True


TestInMemory = AgentModel.TestCase
TestInMemory.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestOnDisk = OnDisk.TestCase
TestOnDisk.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)
