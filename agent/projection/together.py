"""Together: what several callers ask for at once is asked once.

Whoever comes first waits until the others of the same turn of the event loop, and those who come
while an earlier call for the same thing is on its way, have said what they want; then one call
answers them all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Subject = TypeVar("Subject", bound=Hashable)
Wish = TypeVar("Wish")
Answer = TypeVar("Answer")


class _Abandoned(Exception):
    """The one who was to ask for all was cancelled: ask again."""


@dataclass(slots=True, eq=False)
class _Batch(Generic[Wish, Answer]):
    """Wishes that go in one call; whoever made all but the first waits for a future."""

    wishes: list[Wish]
    waiting: list[asyncio.Future[Answer]] = field(default_factory=list)


class Together(Generic[Subject, Wish, Answer]):
    """Collects wishes about a subject, and has them answered by one call.

    Args:
        ask: answers wishes about one subject, in their order.
        wishes_max: of one call.
    """

    def __init__(
        self,
        ask: Callable[[Subject, Sequence[Wish]], Awaitable[Sequence[Answer]]],
        wishes_max: int,
    ) -> None:
        self._ask = ask
        self._wishes_max = wishes_max
        self._batches: dict[Subject, _Batch[Wish, Answer]] = {}
        self._under_way: dict[Subject, asyncio.Lock] = {}

    async def wish(self, subject: Subject, wish: Wish) -> Answer:
        """The answer to one wish.

        Raises:
            Exception: what `ask` raises, for all who asked together.
        """
        while True:
            batch = self._batches.get(subject)
            if batch is None or len(batch.wishes) >= self._wishes_max:
                batch = self._batches[subject] = _Batch([wish])
                return await self._lead(subject, batch)
            batch.wishes.append(wish)
            waits: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
            batch.waiting.append(waits)
            try:
                return await waits
            except _Abandoned:
                continue

    async def _lead(self, subject: Subject, batch: _Batch[Wish, Answer]) -> Answer:
        """Ask for all, and answer those who wait; the answer to the first."""
        lock = self._under_way.setdefault(subject, asyncio.Lock())
        try:
            await asyncio.sleep(0)
            async with lock:
                self._close(subject, batch)
                mine, *others = await self._ask(subject, batch.wishes)
        except BaseException as error:  # whatever it was, all who wait are told
            self._close(subject, batch)
            shared = error if isinstance(error, Exception) else _Abandoned()
            for waits in batch.waiting:
                if not waits.done():
                    waits.set_exception(shared)
            raise
        finally:
            if not lock.locked() and subject not in self._batches:
                self._under_way.pop(subject, None)
        for waits, answer in zip(batch.waiting, others, strict=True):
            if not waits.done():
                waits.set_result(answer)
        return mine

    def _close(self, subject: Subject, batch: _Batch[Wish, Answer]) -> None:
        if self._batches.get(subject) is batch:
            del self._batches[subject]
