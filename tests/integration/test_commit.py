"""The commit queue: group commit, answers in order, its bound, failures of the store, the end."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from agent import commit as commit_module
from agent.boards.definition import COUNTERS, Definition
from agent.boards.entry import Entry
from agent.boards.tally import Group
from agent.commit import CommitQueue
from agent.committer import Commit, Committer, HotState
from agent.errors import Indefinite, Malformed, Unavailable
from agent.operation import Define, Operation, Write, Written
from agent.state import Outcome, State
from agent.store.identity import Identity
from agent.store.memory import MemoryStore
from agent.store.sqlite import SqliteStore

NOW_MS = 1_800_000_000_000
IDENTITY = Identity("ring", "eu", "eu", 5, 50)


def add(amount: int, member: str = "m") -> Write:
    return Write((Group(COUNTERS, [Entry(member, add=amount)], [0]),))


class Gated(MemoryStore):
    """A store whose commits wait for a gate, and fail as told."""

    def __init__(self) -> None:
        super().__init__(IDENTITY)
        self.gate = threading.Event()
        self.gate.set()
        self.errors: list[BaseException] = []
        self.stores_anyway = False

    def commit(self, before: State, outcome: Outcome, new_cells: int) -> None:
        assert self.gate.wait(30)
        self.uncertain = False
        if self.errors:
            if self.stores_anyway:
                super().commit(before, outcome, new_cells)
            self.uncertain = self.stores_anyway
            raise self.errors.pop()
        super().commit(before, outcome, new_cells)


class Running:
    """A started queue over a gated store."""

    def __init__(self) -> None:
        self.store = Gated()
        self.commits: list[Commit] = []
        self.queue = CommitQueue(
            Committer(self.store, lambda _now_ms, inc: (inc + 1, inc + 1)),
            lambda: NOW_MS,
            self.commits.append,
        )

    async def submit_all(self, operations: Sequence[Operation]) -> list[object]:
        """The answers, in the order of submission; errors as values."""
        receipts = await asyncio.gather(
            *(self.queue.submit(operation) for operation in operations), return_exceptions=True
        )
        return [getattr(receipt, "answer", receipt) for receipt in receipts]

    def total(self) -> int:
        space = self.queue.state.catalog.board(COUNTERS).space
        (total,) = self.store.load([], [(space, b"m")]).totals.values()
        return 0 if total is None else total.score


@asynccontextmanager
async def started() -> AsyncIterator[Running]:
    running = Running()
    running.queue.start()
    yield running
    await running.queue.stop()


async def until(queue: CommitQueue, cost: int) -> None:
    """Wait until so much waits; the suite's time limit ends a wait in vain."""
    while queue.waiting_cost != cost:  # noqa: ASYNC110 - a counter has no event to wait for
        await asyncio.sleep(0)


async def test_what_waits_is_one_commit_answered_in_order() -> None:
    async with started() as running:
        answers = await running.submit_all([add(n) for n in range(1, 101)])
        assert answers == [Written(([{"all": n * (n + 1) // 2}],), ({},)) for n in range(1, 101)]
        assert running.queue.state.seq == len(running.commits) <= 3
        assert running.queue.waiting_cost == 0
        assert running.total() == 5050


async def test_a_failing_request_fails_alone() -> None:
    async with started() as running:
        answers = await running.submit_all([add(1), add(1, member=""), add(1)])
        assert [type(answer) for answer in answers] == [Written, Malformed, Written]
        assert running.total() == 2


async def test_listeners_are_told_before_answers_are_given_and_both_after_the_commit() -> None:
    async with started() as running, asyncio.TaskGroup() as tasks:
        running.store.gate.clear()
        waiting = tasks.create_task(running.queue.submit(add(1)))
        await until(running.queue, 1)
        assert not waiting.done()
        assert running.commits == []
        assert running.queue.state.seq == 0
        running.store.gate.set()
        receipt = await waiting
        assert [commit.state for commit in running.commits] == [receipt.state]
        assert running.store.state() is receipt.state


async def test_a_full_queue_answers_busy_and_stores_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(commit_module, "QUEUE_COST_MAX", 3)
    async with started() as running, asyncio.TaskGroup() as tasks:
        running.store.gate.clear()
        waiting = tasks.create_task(running.submit_all([add(1)] * 3))
        await until(running.queue, 3)
        with pytest.raises(Unavailable) as caught:
            await running.queue.submit(add(1))
        assert (caught.value.code, caught.value.definite) == ("busy", True)
        running.store.gate.set()
        await waiting
        assert running.total() == 3
        await running.queue.submit(add(1))


async def test_a_batch_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit_module, "BATCH_COST_MAX", 10)
    async with started() as running:
        await running.submit_all([add(1) for _ in range(100)])
        assert running.queue.state.seq >= 10
        assert running.total() == 100


async def test_a_store_that_refuses_gives_a_definite_error_and_changes_nothing() -> None:
    async with started() as running:
        await running.queue.submit(add(1))
        before = running.queue.state
        running.store.errors = [sqlite3.OperationalError("database or disk is full")]
        answers = await running.submit_all([add(10), add(20)])
        assert [type(answer) for answer in answers] == [Unavailable, Unavailable]
        assert running.queue.state is before
        assert (await running.queue.submit(add(1))).answer == Written(([{"all": 2}],), ({},))


async def test_a_commit_of_unknown_outcome_is_indefinite_and_the_store_decides() -> None:
    async with started() as running:
        running.store.errors = [sqlite3.OperationalError("disk I/O error")]
        running.store.stores_anyway = True
        (answer,) = await running.submit_all([add(10)])
        assert isinstance(answer, Indefinite)
        assert not answer.definite
        assert (await running.queue.submit(add(1))).answer == Written(([{"all": 11}],), ({},))


async def test_a_failed_transaction_does_not_take_the_next_with_it() -> None:
    async with started() as running:
        running.store.errors = [sqlite3.OperationalError("locked")]
        define = Define("b", Definition(rule="best"))
        answers = await running.submit_all([add(1), define, add(1)])
        kinds = [type(answer).__name__ for answer in answers]
        assert kinds == ["Unavailable", "BoardChanged", "Written"]
        assert running.total() == 1


async def test_a_caller_that_gives_up_does_not_disturb_the_others() -> None:
    async with started() as running, asyncio.TaskGroup() as tasks:
        running.store.gate.clear()
        first, second = (tasks.create_task(running.queue.submit(add(n))) for n in (1, 2))
        await until(running.queue, 2)
        first.cancel()
        running.store.gate.set()
        assert (await second).answer == Written(([{"all": 3}],), ({},)), (
            "what was submitted is committed"
        )
        assert running.queue.waiting_cost == 0


async def test_a_bug_in_the_writer_ends_the_agent_and_answers_everyone() -> None:
    running = Running()
    running.queue.start()
    running.store.gate.clear()
    running.store.errors = [RuntimeError("a bug")]
    async with asyncio.TaskGroup() as tasks:
        first = tasks.create_task(running.submit_all([add(1)]))
        await until(running.queue, 1)
        later = tasks.create_task(running.submit_all([add(2)]))
        await until(running.queue, 2)
        running.store.gate.set()
    with pytest.raises(RuntimeError, match="a bug"):
        await running.queue.watch()
    assert [type(answer) for answer in first.result()] == [Indefinite]
    assert [type(answer) for answer in later.result()] == [Unavailable]
    with pytest.raises(Unavailable):
        await running.queue.submit(add(1))
    with pytest.raises(RuntimeError):
        await running.queue.stop()


async def test_stopping_commits_what_waits_and_refuses_the_rest() -> None:
    running = Running()
    running.queue.start()
    running.store.gate.clear()
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(running.submit_all([add(1)] * 5))
        await until(running.queue, 5)
        tasks.create_task(running.queue.stop())
        await asyncio.sleep(0)
        with pytest.raises(Unavailable, match="stopping"):
            await running.queue.submit(add(1))
        running.store.gate.set()
    assert waiting.result()[-1] == Written(([{"all": 5}],), ({},))
    await running.queue.stop()


async def test_over_sqlite_what_was_answered_is_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    store = SqliteStore(path, IDENTITY)
    queue = CommitQueue(
        Committer(store, lambda _now_ms, inc: (inc + 1, inc + 1)), lambda: NOW_MS, lambda _: None
    )
    queue.start()
    receipts = await asyncio.gather(*(queue.submit(add(n)) for n in range(1, 51)))
    newest = receipts[-1].state
    await queue.stop()
    store.close()
    again = SqliteStore(path, IDENTITY)
    state = again.state()
    space = state.catalog.board(COUNTERS).space
    (total,) = again.load([], [(space, b"m")]).totals.values()
    again.close()
    assert total is not None
    assert total.score == 1275
    assert (state.seq, state.lsn, state.vv) == (newest.seq, newest.lsn, newest.vv)


def test_the_cache_is_bounded_and_keeps_the_newest() -> None:
    cache: HotState[int, int] = HotState(10)
    for number in range(1000):
        cache.keep({number: number, 0: number})
        found, missing = cache.take({0, number, -1})
        assert found == {0: number, number: number}, "what is used stays, in its newest version"
        assert missing == {-1}
        assert len(cache._young) + len(cache._old) <= 2 * 12
    assert cache.take({1})[1] == {1}, "what was not used is gone"
    cache.drop()
    assert cache.take({0, 999}) == ({}, {0, 999})


def test_a_cold_cache_and_a_hot_one_answer_alike() -> None:
    hot = Committer(MemoryStore(IDENTITY), lambda _now_ms, inc: (inc + 1, inc + 1))
    cold = Committer(MemoryStore(IDENTITY), lambda _now_ms, inc: (inc + 1, inc + 1))
    for step in range(60):
        operations = [add(step % 7 - 3, f"m{step % 4}"), add(1, f"m{step % 3}")]
        answers = hot.run(operations, NOW_MS + step).answers
        cold._cells.drop()
        cold._totals.drop()
        assert cold.run(operations, NOW_MS + step).answers == answers
