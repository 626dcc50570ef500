"""What is asked for at once is asked once, and everybody gets the own answer, or the error."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from agent.projection.together import Together


class Asked:
    """Answers wishes with their squares, when it is let."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, list[int]]] = []
        self.open = asyncio.Event()
        self.open.set()

    async def __call__(self, subject: str, wishes: Sequence[int]) -> list[int]:
        self.calls.append((subject, list(wishes)))
        await self.open.wait()
        if 0 in wishes:
            raise ValueError("nothing")
        return [wish * wish for wish in wishes]


async def test_wishes_of_one_turn_are_one_call_each_subject() -> None:
    asked = Asked()
    together: Together[str, int, int] = Together(asked, 10)
    wishes = [together.wish("ab"[n % 2], n) for n in range(1, 7)]
    assert await asyncio.gather(*wishes) == [n * n for n in range(1, 7)]
    assert asked.calls == [("b", [1, 3, 5]), ("a", [2, 4, 6])]


async def test_those_who_come_meanwhile_are_the_next_call_and_no_call_is_too_large() -> None:
    asked = Asked()
    together: Together[str, int, int] = Together(asked, 2)
    asked.open.clear()
    async with asyncio.TaskGroup() as group:
        first = group.create_task(together.wish("a", 1))
        while not asked.calls:  # noqa: ASYNC110 -- a list has no event
            await asyncio.sleep(0)
        others = [group.create_task(together.wish("a", n)) for n in (2, 3, 4)]
        for _ in range(5):
            await asyncio.sleep(0)
        assert asked.calls == [("a", [1])]
        asked.open.set()
    assert [first.result(), *(task.result() for task in others)] == [1, 4, 9, 16]
    assert [wishes for _, wishes in asked.calls] == [[1], [2, 3], [4]]


async def test_an_error_is_everybodys() -> None:
    asked = Asked()
    together: Together[str, int, int] = Together(asked, 10)
    found = await asyncio.gather(
        *(together.wish("a", n) for n in (0, 1, 2)), return_exceptions=True
    )
    assert [type(each) for each in found] == [ValueError] * 3
    assert await together.wish("a", 3) == 9


async def test_who_was_to_ask_is_cancelled_and_the_others_ask_again() -> None:
    asked = Asked()
    together: Together[str, int, int] = Together(asked, 10)
    asked.open.clear()
    async with asyncio.TaskGroup() as group:
        first = group.create_task(together.wish("a", 1))
        second = group.create_task(together.wish("a", 2))
        while not asked.calls:  # noqa: ASYNC110 -- a list has no event
            await asyncio.sleep(0)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        asked.open.set()
    assert second.result() == 4
    assert [wishes for _, wishes in asked.calls] == [[1, 2], [2]]


async def test_one_who_waits_and_gives_up_disturbs_nobody() -> None:
    asked = Asked()
    together: Together[str, int, int] = Together(asked, 10)
    async with asyncio.TaskGroup() as group:
        first = group.create_task(together.wish("a", 1))
        second = group.create_task(together.wish("a", 2))
        await asyncio.sleep(0)
        second.cancel()
        assert await first == 1
        with pytest.raises(asyncio.CancelledError):
            await second
