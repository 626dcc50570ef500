"""The one pipeline: every change of the state, of a client or of a peer, goes through here.

`Committer` runs one batch: load what it touches, apply it (pure), make the outcome durable. It is
synchronous and has no clock; the simulator drives it with an in-memory store. `CommitQueue` is its
thread: callers on the event loop submit operations to a bounded queue, the thread takes all that
wait as one batch (group commit), and only after the commit are answers given and listeners told.
"""

from __future__ import annotations

import asyncio
import queue
import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

import structlog

from agent.apply import Alarms, Outcome, State, WorkingSet, apply, wanted
from agent.boards.tally import MemberKey
from agent.crdt.cell import Key, Row
from agent.crdt.counter import Total
from agent.errors import Indefinite, Refused, Unavailable
from agent.operation import Answer, Merge, Operation, Write, changes_catalog, coalesced

log = structlog.get_logger("tallyring.commit")

Name = TypeVar("Name")
Cached = TypeVar("Cached")

# Two generations of this many entries each: about 30 MB at the most, whatever the cells.
CACHE_ENTRIES_MAX = 16_384
# What one transaction takes at the most: bounds how long a write waits for the one before.
BATCH_COST_MAX = 20_000
# What may wait: about a second of work. Full means 503 `busy`, and nothing was stored.
QUEUE_COST_MAX = 200_000


class Store(Protocol):
    """Where a Committer keeps its state."""

    uncertain: bool

    @property
    def cells(self) -> int:
        """How many cells are stored."""

    def state(self) -> State:
        """The durable state."""

    def load(self, cells: Iterable[Key], members: Iterable[MemberKey]) -> WorkingSet:
        """The wanted cells and totals; None for those never written."""

    def commit(self, before: State, outcome: Outcome, new_cells: int) -> None:
        """Make an outcome durable, all of it or nothing."""

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


@dataclass(frozen=True, slots=True)
class Commit:
    """What a batch did.

    state: the durable state after it.
    answers: one for each operation, in order; errors are answers too.
    own: whether this agent's own cells changed (its peers should be told).
    rows: how many cells changed.
    cells: how many cells there are.
    outcomes: the transactions that changed cells, each with the lsn of its first row.
    failures: why transactions failed, if any did.
    """

    state: State
    answers: list[Answer | Indefinite]
    own: bool = False
    rows: int = 0
    cells: int = 0
    alarms: Alarms = field(default_factory=Alarms)
    outcomes: list[tuple[int, Outcome]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


class Committer:
    """Runs batches over a store, one after the other, on one thread."""

    def __init__(self, store: Store) -> None:
        self._store = store
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
        """
        answers: list[Answer | Indefinite] = []
        own, rows, alarms = False, 0, Alarms()
        outcomes: list[tuple[int, Outcome]] = []
        failures: list[str] = []
        for run in _runs(operations):
            before = self.state
            try:
                outcome = self._run(run, now_ms)
            except (sqlite3.Error, OverflowError) as error:
                # An overflow: a cell that only a faulty peer writes, one step below 2**63. It is
                # in the ring for good, so it must not end an agent that adds to it.
                failures.append(f"{type(error).__name__}: {error}")
                answers += [self._failed(error)] * len(run)
                continue
            answers += outcome.answers
            rows += len(outcome.rows)
            if outcome.rows:
                outcomes.append((before.lsn + 1, outcome))
            own = own or self.state.seq != before.seq
            alarms.covered_changed += outcome.alarms.covered_changed
            alarms.forked += outcome.alarms.forked
            alarms.peer_ahead += outcome.alarms.peer_ahead
        return Commit(self.state, answers, own, rows, self._store.cells, alarms, outcomes, failures)

    def _run(self, operations: Sequence[Operation], now_ms: int) -> Outcome:
        steps = coalesced(operations)
        loaded = self._load(*wanted(self.state, steps))
        outcome = apply(self.state, loaded, steps, now_ms)
        if outcome.durable_change(self.state):
            cells = loaded.cells
            new_cells = sum(1 for row in outcome.rows if cells[row[:3]] is None)
            self._store.commit(self.state, outcome, new_cells)
            self._cells.keep({row[:3]: row for row in outcome.rows})
            self._totals.keep(outcome.totals)
        self.state = outcome.state
        return outcome

    def _load(self, cells: set[Key], members: set[MemberKey]) -> WorkingSet:
        """The working set: from the cache where it is there, else from the store."""
        hot_cells, missing_cells = self._cells.take(cells)
        hot_totals, missing_totals = self._totals.take(members)
        if missing_cells or missing_totals:
            cold = self._store.load(missing_cells, missing_totals)
            self._cells.keep(cold.cells)
            self._totals.keep(cold.totals)
            hot_cells.update(cold.cells)
            hot_totals.update(cold.totals)
        return WorkingSet(hot_cells, hot_totals)

    def _failed(self, error: sqlite3.Error | OverflowError) -> Refused | Indefinite:
        """The answer to operations whose transaction failed."""
        self._cells.drop()
        self._totals.drop()
        hint = "see the agent's log; reads go on"
        if not self._store.uncertain:
            return Unavailable("busy", f"the store refused the write: {error}", hint=hint)
        self.state = self._store.state()
        return Indefinite(f"the store failed while committing: {error}", hint=hint)


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


@dataclass(frozen=True, slots=True)
class Receipt:
    """What a submitter gets back: the answer, and the durable state that includes it."""

    answer: Answer
    state: State


def cost_of(operation: Operation) -> int:
    """How much work an operation is, in entries or rows."""
    match operation:
        case Write(groups):
            return sum(len(group.entries) for group in groups)
        case Merge(_, chunk):
            return len(chunk.rows) + 1
        case _:
            return 1


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A submitted operation that is not answered yet."""

    operation: Operation
    answer: asyncio.Future[Receipt]
    cost: int


class CommitQueue:
    """The writer thread, and the bounded queue in front of it.

    One batch is with the thread at a time. What is submitted meanwhile waits on the event loop and
    is the next batch as a whole: the busier the agent, the larger its commits. An idle thread gets
    what one turn of the event loop brought in.

    Args:
        committer: used by the thread alone from `start` on.
        now_ms: the agent's clock.
        on_commit: told on the event loop after each batch, before its answers are given.
    """

    def __init__(
        self,
        committer: Committer,
        now_ms: Callable[[], int],
        on_commit: Callable[[Commit], None],
    ) -> None:
        self._committer = committer
        self._now_ms = now_ms
        self._on_commit = on_commit
        self._waiting: deque[_Waiting] = deque()
        self._waiting_cost = 0
        self._handover: queue.SimpleQueue[list[_Waiting]] = queue.SimpleQueue()
        self._busy = False  # a batch is with the thread, or about to be
        self._closed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._write, name="tallyring-writer", daemon=True)
        self._ended: asyncio.Future[None] | None = None
        self.state = committer.state
        self.cells = committer.cells
        self.refusing = ""  # why writes are refused for now (a full disk, say); empty: they are not

    def start(self) -> None:
        """Start the writer thread. Call on the event loop."""
        self._loop = asyncio.get_running_loop()
        self._ended = self._loop.create_future()
        self._thread.start()

    async def submit(self, operation: Operation) -> Receipt:
        """Have an operation applied and made durable.

        Raises:
            Refused: nothing was stored; `busy` where the queue is full or the agent is stopping.
            Indefinite: the store failed while committing.
        """
        cost = cost_of(operation)
        if self._closed or self.refusing or self._waiting_cost + cost > QUEUE_COST_MAX:
            why = "this agent is stopping" if self._closed else self.refusing
            raise Unavailable(
                "busy", why or "too many writes are waiting", hint="try again in a second"
            )
        loop = self._loop
        assert loop is not None
        answer: asyncio.Future[Receipt] = loop.create_future()
        self._waiting_cost += cost
        self._waiting.append(_Waiting(operation, answer, cost))
        if not self._busy:
            self._busy = True
            loop.call_soon(self._hand_over)
        return await answer

    @property
    def waiting_cost(self) -> int:
        """How many entries and rows wait to be committed."""
        return self._waiting_cost

    async def stop(self) -> None:
        """Refuse new operations, commit those that wait, and end the thread.

        Raises:
            Exception: what ended the thread, if it was not this call.
        """
        if not self._closed:
            self._closed = True
            if not self._busy:
                self._handover.put([])
        await self.watch()

    async def watch(self) -> None:
        """Return when the thread has ended; raise what ended it."""
        assert self._ended is not None
        await asyncio.shield(self._ended)

    def _hand_over(self) -> None:
        """Give the thread what waits, up to the bound of a batch."""
        batch: list[_Waiting] = []
        cost = 0
        while self._waiting and cost < BATCH_COST_MAX:
            batch.append(self._waiting.popleft())
            cost += batch[-1].cost
        self._busy = bool(batch)
        if batch or self._closed:
            self._handover.put(batch)

    def _write(self) -> None:
        """The writer thread: an empty batch ends it."""
        assert self._loop is not None
        failure: BaseException | None = None
        batch: list[_Waiting] = []
        try:
            while batch := self._handover.get():
                commit = self._committer.run([item.operation for item in batch], self._now_ms())
                self._loop.call_soon_threadsafe(self._publish, batch, commit)
        except BaseException as error:  # noqa: BLE001 -- handed to `watch`, which ends the agent
            failure = error
        self._loop.call_soon_threadsafe(self._end, batch, failure)

    def _publish(self, batch: list[_Waiting], commit: Commit) -> None:
        """Make a commit visible, tell the listeners, answer: in this order, on the event loop."""
        self._hand_over()
        self.state = commit.state
        self.cells = commit.cells
        for reason in commit.failures:
            log.error("transaction failed", error=reason)
        failure: Exception | None = None
        try:
            self._on_commit(commit)
        except Exception as error:  # noqa: BLE001 -- ends the agent, after the answers are given
            failure = error
        for item, answer in zip(batch, commit.answers, strict=True):
            self._waiting_cost -= item.cost
            if item.answer.done():
                continue
            if isinstance(answer, Refused | Indefinite):
                item.answer.set_exception(answer)
            else:
                item.answer.set_result(Receipt(answer, commit.state))
        if failure is not None:
            self._end([], failure)

    def _end(self, batch: list[_Waiting], failure: BaseException | None) -> None:
        self._closed = True
        assert self._ended is not None
        if self._ended.done():
            return
        for item in batch:
            if not item.answer.done():
                item.answer.set_exception(Indefinite("the writer failed; the agent is stopping"))
        for item in self._waiting:
            if not item.answer.done():
                item.answer.set_exception(Unavailable("busy", "this agent is stopping"))
        self._waiting.clear()
        if failure is None:
            self._ended.set_result(None)
        else:
            self._ended.set_exception(failure)
