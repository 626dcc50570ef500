"""Runs batches of operations over a store: the synchronous half of the pipeline.

One batch: load what it touches, apply it (pure), make the outcome durable. There is no clock and no
thread here; the simulator drives a `Committer` with an in-memory store.
"""

from __future__ import annotations

import sqlite3
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, Protocol, TypeVar

from agent.apply import apply
from agent.boards.finals import Discard, Shelve
from agent.boards.tally import MemberKey, SlotGroup
from agent.crdt.cell import Key, Row
from agent.crdt.slot import Kind
from agent.crdt.total import Total
from agent.errors import DamagedCell, Indefinite, Refused, StoreError, Unavailable
from agent.late import shelved
from agent.limits import INT64_MAX
from agent.operation import (
    Announce,
    Answer,
    BoardChanged,
    Burn,
    Correction,
    Mend,
    Merge,
    Merged,
    Mint,
    Operation,
    Repair,
    Singles,
    changes_catalog,
    coalesced,
    writes,
)
from agent.state import Alarms, Outcome, State, Unloaded, WorkingSet
from agent.wanted import voids_wanted, wanted

Name = TypeVar("Name")
Cached = TypeVar("Cached")

# Two generations of this many entries each: about 30 MB at the most, whatever the cells.
CACHE_ENTRIES_MAX = 16_384


# Kinds of rows from which own writes may follow: see agent/draft.py.
_FACT = int(Kind.FACT)
_BRINGS_ABOUT = frozenset({Kind.FACT, Kind.RETRACTION})


class Store(Protocol):
    """Where a Committer keeps its state."""

    uncertain: bool

    def damage(self, error: sqlite3.Error) -> StoreError | None:
        """What to say where an error means that the file is damaged for good; else None."""

    @property
    def cells(self) -> int:
        """How many cells are stored."""

    def state(self) -> State:
        """The durable state."""

    def load(
        self,
        cells: Iterable[Key],
        members: Iterable[MemberKey],
        groups: Iterable[SlotGroup] = (),
    ) -> WorkingSet:
        """The wanted cells and totals, None for those never written, and groups of slots."""

    def commit(self, before: State, outcome: Outcome, new_cells: int) -> None:
        """Make an outcome durable, all of it or nothing."""

    def mend(self, rows: Sequence[Row], correction: Correction | None) -> int:
        """Put rows in the place of damaged cells, and correct sums, as one transaction."""

    def shelve(self, operation: Shelve | Discard) -> bool:
        """Keep rows of a final, or remove them, as one transaction; whether that changed any."""

    def close(self) -> None:
        """Release the file."""


class HotState(Generic[Name, Cached]):
    """A bounded cache in two generations: what was not used for a while goes, one at a time."""

    def __init__(self, entries_max: int) -> None:
        self._entries_max = entries_max
        self._young: dict[Name, Cached] = {}
        self._old: dict[Name, Cached] = {}

    def take(self, names: set[Name]) -> tuple[dict[Name, Cached], set[Name]]:
        """What is known of these names, and the names of which nothing is."""
        young = self._young.keys() & names
        missing = names - young
        old = self._old.keys() & missing
        found = {name: self._young[name] for name in young}
        if old:
            again = {name: self._old[name] for name in old}
            self.keep(again)
            found.update(again)
            missing -= old
        return found, missing

    def keep(self, values: Mapping[Name, Cached]) -> None:
        """Keep these, newest; the older generation goes when this one is full."""
        self._young.update(values)
        if len(self._young) > self._entries_max:
            self._old, self._young = self._young, {}

    def drop(self) -> None:
        """Forget everything."""
        self._old, self._young = {}, {}


@dataclass(slots=True)
class Commit:
    """What a batch did.

    state: the durable state after it.
    answers: one for each operation, in order; errors are answers too.
    own: whether this agent's own cells changed (its peers should be told).
    rows: how many cells changed.
    cells: how many cells there are.
    outcomes: the transactions that changed cells, each with the lsn of its first row.
    failures: why transactions failed, if any did.
    damaged: cells that were found not to hold what was written to them.
    minted: why this batch began a new incarnation; empty if it did not.
    """

    state: State
    answers: list[Answer | Indefinite]
    own: bool = False
    rows: int = 0
    cells: int = 0
    alarms: Alarms = field(default_factory=Alarms)
    outcomes: list[tuple[int, Outcome]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    damaged: list[Key] = field(default_factory=list)
    minted: str = ""


class _FoundBurnt(Exception):
    """A chunk shows that the incarnation is burnt, in a transaction that would also write as it.

    Nothing of it was stored. Its operations are transactions of their own instead, so that those
    behind the chunk are written as the next incarnation.
    """


class Committer:
    """Runs batches over a store, one after the other, on one thread.

    An incarnation that somebody knows more of than the store ("burnt") is never written again: the
    next change of this agent's own, or the discovery itself, mints another one first.

    Args:
        store: opened, and its process begun.
        mint: (now in ms, the newest known incarnation) -> (a new incarnation, a new log id).
    """

    def __init__(
        self,
        store: Store,
        mint: Callable[[int, int], tuple[int, int]],
        facts_max: int = INT64_MAX,
    ) -> None:
        self._store = store
        self._facts_max = facts_max
        self._mint = mint
        self.state = store.state()
        self._cells: HotState[Key, Row | None] = HotState(CACHE_ENTRIES_MAX)
        self._totals: HotState[MemberKey, Total | None] = HotState(CACHE_ENTRIES_MAX)

    @property
    def cells(self) -> int:
        """How many cells are stored."""
        return self._store.cells

    def run(self, operations: Sequence[Operation], now_ms: int) -> Commit:
        """Apply operations in order and make them durable.

        An operation that changes the catalog is a transaction of its own, so that what the others
        load is known before. If the store fails, the operations of that transaction are answered
        with an error that says whether anything was stored, and the next ones go on.

        Raises:
            StoreError: the file is damaged; unknown what of these operations was stored.
        """
        commit = Commit(self.state, [])
        runs = deque(_runs(operations))
        while runs:
            run = runs.popleft()
            own_before, burnt_before = (self.state.inc, self.state.seq), self.state.burnt
            try:
                if self.state.burnt and any(self._writes(operation) for operation in run):
                    commit.minted = self._renew(commit, now_ms)
                answers = self._run_one(commit, run, now_ms)
                found = not burnt_before or self._burns(run[0])
                if self.state.burnt and found:
                    commit.minted = self._renew(commit, now_ms)
            except _FoundBurnt:
                runs.extendleft([operation] for operation in reversed(run))
                continue
            except (sqlite3.Error, OverflowError, DamagedCell) as error:
                self._check_damage(error)
                # An overflow: a cell that only a faulty peer writes, one step below 2**63. It is
                # in the ring for good, so it must not end an agent that adds to it.
                commit.failures.append(f"{type(error).__name__}: {error}")
                if isinstance(error, DamagedCell):
                    commit.damaged.append(error.key)
                answers = [self._failed(error)] * len(run)
            commit.answers.extend(answers)
            commit.own = commit.own or (self.state.inc, self.state.seq) != own_before
        commit.state, commit.cells = self.state, self._store.cells
        return commit

    def _writes(self, operation: Operation) -> bool:
        """Whether an operation would write as this agent's incarnation."""
        if isinstance(operation, Merge | Repair):
            rows = operation.chunk.rows if isinstance(operation, Merge) else operation.rows
            return any(row.slot[0] in _BRINGS_ABOUT for row in rows)
        if isinstance(operation, Announce):
            me = self.state.ring.members.get(self.state.agent)
            return me is None or (me.region, me.url) != (operation.region, operation.url)
        return writes(operation)

    def _burns(self, operation: Operation) -> bool:
        return isinstance(operation, Burn) and operation.inc == self.state.inc

    def _renew(self, commit: Commit, now_ms: int) -> str:
        """Begin a new incarnation and a new log; returns why."""
        why = self.state.burnt
        inc, log_id = self._mint(now_ms, self.state.ring.newest_inc(self.state.agent))
        self._run_one(commit, [Mint(inc, log_id)], now_ms)
        return why

    def _run_one(
        self, commit: Commit, run: Sequence[Operation], now_ms: int
    ) -> list[Answer | Indefinite]:
        """Run one transaction and note in `commit` what it did; returns its answers."""
        before = self.state
        if isinstance(run[0], Mend):
            answer = self._mend(run[0])
            commit.rows += self.state.lsn - before.lsn
            return [answer]
        if isinstance(run[0], Shelve | Discard):
            self._store.uncertain = False
            kept = shelved(run[0], self.state) if isinstance(run[0], Shelve) else run[0]
            return [BoardChanged(self._store.shelve(kept))]
        if isinstance(run[0], Repair):
            self._forget()  # the file is what is repaired, and it may not hold what was read
        outcome = self._run(run, now_ms)
        commit.rows += len(outcome.rows)
        if outcome.rows:
            commit.outcomes.append((before.lsn + 1, outcome))
        commit.alarms.covered_changed += outcome.alarms.covered_changed
        commit.alarms.forked += outcome.alarms.forked
        commit.alarms.peer_ahead += outcome.alarms.peer_ahead
        commit.alarms.late_facts += outcome.alarms.late_facts
        return list(outcome.answers)

    def _mend(self, operation: Mend) -> Answer:
        times = self.state.times
        self._forget()
        changed = self._store.mend(operation.rows, operation.correction)
        self.state = replace(self._store.state(), times=times)
        return Merged(True, changed)

    def _forget(self) -> None:
        """Forget what was read: it may not be what the store holds."""
        self._cells.drop()
        self._totals.drop()

    def _run(self, operations: Sequence[Operation], now_ms: int) -> Outcome:
        self._store.uncertain = False  # what fails before the commit stores nothing
        steps = coalesced(operations)
        outcome, loaded = self._apply(steps, now_ms)
        found = outcome.state.burnt and not self.state.burnt
        if found and len(operations) > 1 and any(map(self._writes, operations)):
            raise _FoundBurnt
        if found and outcome.state.seq != self.state.seq:
            # What follows from a chunk would bear a number that was used already.
            self.state = replace(self.state, burnt=outcome.state.burnt)
            raise _FoundBurnt
        if outcome.durable_change(self.state):
            cells = loaded.cells
            new_cells = sum(1 for row in outcome.rows if cells[row[:3]] is None)
            self._store.commit(self.state, outcome, new_cells)
            self._cells.keep({row[:3]: None for row in outcome.dropped})
            self._cells.keep({row[:3]: row for row in outcome.rows})
            self._totals.keep(outcome.totals)
        self.state = outcome.state
        return outcome

    def _apply(
        self, steps: Sequence[Operation | Singles], now_ms: int
    ) -> tuple[Outcome, WorkingSet]:
        """Load what a batch needs and apply it; what turns out to be missing is loaded as well."""
        want = wanted(self.state, steps, now_ms)
        cells, members, groups = want.cells, want.totals, want.groups
        loaded = self._load(cells, members, groups)
        voids = voids_wanted(loaded, steps, self.state.inc)
        if voids:
            cells, members = cells | voids, members | {key[:2] for key in voids}
            loaded = self._load(cells, members, groups)
        while True:
            try:
                return apply(self.state, loaded, steps, now_ms, want, self._facts_max), loaded
            except Unloaded as more:
                cells = cells | {more.cell} if more.cell else cells
                members = members | {more.total} if more.total else members
                groups = groups | {more.group} if more.group else groups
                loaded = self._load(cells, members, groups)

    def _load(self, cells: set[Key], members: set[MemberKey], groups: set[SlotGroup]) -> WorkingSet:
        """The working set: from the cache where it is there, else from the store."""
        hot_cells, missing_cells = self._cells.take(cells)
        hot_totals, missing_totals = self._totals.take(members)
        prints: Mapping[Key, int] = {}
        found: Mapping[SlotGroup, tuple[Row, ...]] = {}
        if missing_cells or missing_totals or groups:
            # A fact is found with its group, or it is not there.
            facts = {key for key in missing_cells if key[2][0] == _FACT and group_of(key) in groups}
            cold = self._store.load(missing_cells - facts, missing_totals, groups)
            hot_cells.update(dict.fromkeys(facts))
            self._cells.keep(cold.cells)
            self._totals.keep(cold.totals)
            hot_cells.update(cold.cells)
            hot_totals.update(cold.totals)
            prints, found = cold.prints, cold.groups
        return WorkingSet(hot_cells, hot_totals, prints, found)

    def _check_damage(self, error: Exception) -> None:
        """End the pipeline where the file is damaged: no retry helps.

        Raises:
            StoreError: says what to do.
        """
        damage = self._store.damage(error) if isinstance(error, sqlite3.Error) else None
        if damage is not None:
            raise damage from error

    def _failed(self, error: Exception) -> Refused | Indefinite:
        """The answer to operations whose transaction failed."""
        self._forget()
        hint = "see the agent's log; reads go on"
        if not self._store.uncertain:
            return Unavailable("busy", f"the store refused the write: {error}", hint=hint)
        self.state = self._store.state()
        return Indefinite(f"the store failed while committing: {error}", hint=hint)


def group_of(key: Key) -> SlotGroup:
    """The group of all facts of a fact's key."""
    return (*key[:2], key[2][:-8])


def _runs(operations: Sequence[Operation]) -> Iterable[Sequence[Operation]]:
    """Cut a batch so that each part meets one catalog."""
    run: list[Operation] = []
    for operation in operations:
        if changes_catalog(operation):
            if run:
                yield run
            yield [operation]
            run = []
        else:
            run.append(operation)
    if run:
        yield run
