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


@dataclass(slots=True, eq=False)
class _Batch(Generic[Wish, Answer]):
    wishes: list[Wish] = field(default_factory=list)
    answered: asyncio.Future[Sequence[Answer]] | None = None


class _Abandoned(Exception):
    """The one who was to ask for all was cancelled: ask again."""


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
            first = batch is None or len(batch.wishes) >= self._wishes_max
            if first:
                batch = self._batches[subject] = _Batch()
            assert batch is not None
            batch.wishes.append(wish)
            at = len(batch.wishes) - 1
            if first:
                return (await self._lead(subject, batch))[at]
            if batch.answered is None:
                batch.answered = asyncio.get_running_loop().create_future()
            try:
                return (await asyncio.shield(batch.answered))[at]
            except _Abandoned:
                continue

    async def _lead(self, subject: Subject, batch: _Batch[Wish, Answer]) -> Sequence[Answer]:
        lock = self._under_way.setdefault(subject, asyncio.Lock())
        try:
            await asyncio.sleep(0)
            async with lock:
                self._close(subject, batch)
                answers = await self._ask(subject, batch.wishes)
        except BaseException as error:
            self._close(subject, batch)
            if batch.answered is not None:
                shared = error if isinstance(error, Exception) else _Abandoned()
                batch.answered.set_exception(shared)
                batch.answered.exception()  # seen, also where nobody waits any more
            raise
        finally:
            if not lock.locked() and self._batches.get(subject) is None:
                self._under_way.pop(subject, None)
        if batch.answered is not None:
            batch.answered.set_result(answers)
        return answers

    def _close(self, subject: Subject, batch: _Batch[Wish, Answer]) -> None:
        if self._batches.get(subject) is batch:
            del self._batches[subject]
