"""The one pipeline: every change of the state, of a client or of a peer, goes through here.

`CommitQueue` is the thread of a `Committer`: callers on the event loop submit operations to a
bounded queue, the thread takes all that wait as one batch (group commit), and only after the commit
are answers given and listeners told.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from agent.committer import Commit, Committer
from agent.errors import Indefinite, Refused, Unavailable
from agent.exchange import Chunk
from agent.operation import (
    Answer,
    Define,
    Drop,
    Erase,
    Import,
    Mend,
    Merge,
    Operation,
    Repair,
    Reset,
    Retire,
    Retract,
    SetBan,
    Write,
)
from agent.state import State

log = structlog.get_logger("tallyring.commit")

# What one transaction takes at the most: bounds how long a write waits for the one before.
BATCH_COST_MAX = 20_000
# What may wait: about a second of work. Full means 503 `busy`, and nothing was stored.
QUEUE_COST_MAX = 200_000


@dataclass(frozen=True, slots=True)
class Receipt:
    """What a submitter gets back: the answer, and the durable state that includes it."""

    answer: Answer
    state: State


# What clients and operators ask for; the rest is between agents, or an agent's own.
CLIENTS_OWN = Write | Define | Reset | Retire | Retract | SetBan | Erase


def cost_of(operation: Operation) -> int:
    """How much work an operation is, in entries or rows."""
    match operation:
        case Write(groups):
            return sum(len(group.entries) for group in groups)
        case Merge(_, Chunk(rows=rows)) | Import(rows) | Mend(rows) | Repair(rows):
            return len(rows) + 1
        case Drop(keys, entries):
            return len(keys) + len(entries) + 1
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
        # Why nothing is stored for now (a full disk, say), and why nothing of clients is (this
        # agent leaves, say), by cause; empty: all is.
        self.refusing: dict[str, Refused] = {}
        self.closed: dict[str, Refused] = {}

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
        refused = [*self.refusing.values()]
        if isinstance(operation, CLIENTS_OWN):
            refused += self.closed.values()
        if refused:
            raise refused[0]
        if self._closed or self._waiting_cost + cost > QUEUE_COST_MAX:
            why = "this agent is stopping" if self._closed else "too many writes are waiting"
            raise Unavailable("busy", why, hint="try again in a second")
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
        if commit.minted:
            log.warning("a new incarnation", inc=f"{commit.state.inc:x}", why=commit.minted)
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
