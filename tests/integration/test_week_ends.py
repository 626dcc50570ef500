"""The end of a week in Berlin, at both clock changes: one close, one certificate, one payout list.

One agent is down from 23:59 to 00:05, one goes two seconds behind another of its region, and all
see the end. No entry that was taken in time is missing, and none of the next week is in it.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from datetime import datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from agent.boards.definition import Definition, check
from agent.boards.entry import Entry
from agent.boards.final_rows import FinalRow
from agent.boards.finals import Final, final_of
from agent.boards.marks import place_of
from agent.boards.tally import Group
from agent.boards.windows import WindowSpec
from agent.crdt.slot import Kind
from agent.crdt.space import MARKS_SPACE
from agent.operation import Define, Write, Written
from agent.store.finals import held_of, rows_of
from agent.store.snapshot import SqliteSnapshot
from tests.integration.gossip_rig import Agent, House, running, until

BERLIN = ZoneInfo("Europe/Berlin")
WEEKLY = check(
    Definition(
        rule="sum",
        ties="first",
        windows=(WindowSpec("week", zone="Europe/Berlin", grace="10s"), WindowSpec("all")),
    )
)


class Week:
    """Three agents with a clock each; times are told as seconds from the end of the week."""

    def __init__(self, folder: Path, monday: datetime) -> None:
        self.end_ms = int(monday.timestamp() * 1000)
        self.folder = folder
        self.clocks = dict.fromkeys(("a1", "a2", "b"), self.end_ms - 120_000)
        self.agents: dict[str, Agent] = {}
        self._stacks: dict[str, AsyncExitStack] = {}

    async def start(self, name: str) -> None:
        stack = self._stacks[name] = AsyncExitStack()
        seeds = [agent.url for agent in self.agents.values()]
        house = House(True, lambda: self.clocks[name])
        entered = running(self.folder, name, seeds, house=house)
        self.agents[name] = await stack.enter_async_context(entered)

    async def stop(self, name: str) -> None:
        del self.agents[name]
        await self._stacks.pop(name).aclose()

    async def close(self) -> None:
        for name in list(self._stacks):
            await self.stop(name)

    def show(self, seconds: float, *names: str) -> None:
        """Move clocks: so many seconds from the end."""
        for name in names or self.clocks:
            self.clocks[name] = self.end_ms + int(seconds * 1000)

    async def write(self, name: str, member: str, add: int, at: float | None = None) -> set[str]:
        """Write an entry, of now or of a time; the windows that it counts in."""
        at_ms = None if at is None else self.end_ms + int(at * 1000)
        entry = Entry(member, add=add, at=at_ms)
        answer = await self.agents[name].do(Write((Group("cup", [entry], range(1)),)))
        assert isinstance(answer, Written), answer
        ((scores,),) = answer.scores
        return set(scores)

    def space(self, name: str) -> bytes:
        board = self.agents[name].queue.state.catalog.board("cup")
        window = board.counted[0].series.at(self.end_ms - 1)
        assert window is not None
        return board.place(window).space

    async def final(self, name: str) -> tuple[Final, list[FinalRow]]:
        space = self.space(name)

        def read(found: SqliteSnapshot) -> tuple[Final, list[FinalRow]]:
            final = final_of(found.slots_of(MARKS_SPACE, space))
            held = {its.hash for its in held_of(found, space)}
            told = final.in_force
            rows = list(rows_of(found, space, told.hash)) if told and told.hash in held else []
            return final, rows

        return await self.agents[name].readers.read(read)


@pytest.mark.parametrize(
    ("monday", "week"),
    [
        (datetime(2026, 3, 30, tzinfo=BERLIN), "week:2026-W13"),  # 167 hours
        (datetime(2026, 10, 26, tzinfo=BERLIN), "week:2026-W43"),  # 169 hours
    ],
)
async def test_one_close_one_certificate_one_list(
    tmp_path: Path, monday: datetime, week: str
) -> None:
    its = Week(tmp_path, monday)
    try:
        for name in its.clocks:
            await its.start(name)
        await until(lambda: all(len(a.queue.state.ring.active()) == 3 for a in its.agents.values()))
        await its.agents["a1"].do(Define("cup", WEEKLY))
        await until(lambda: all(a.queue.state.catalog.find("cup") for a in its.agents.values()))
        assert await its.write("a1", "ann", 5) == {week, "all"}
        assert await its.write("b", "bob", 7) == {week, "all"}

        its.show(-61)
        assert await its.write("b", "eve", 3) == {week, "all"}  # perhaps nobody hears of it
        await its.stop("b")

        its.show(-0.1, "a1")
        its.show(-2.1, "a2")
        assert await its.write("a1", "ann", 1) == {week, "all"}
        its.show(0, "a1")
        its.show(-2, "a2")
        following = await its.write("a1", "ann", 100)  # of the next week already
        assert week not in following
        assert await its.write("a2", "cat", 4) == {week, "all"}  # its clock still shows Sunday
        its.show(3, "a1")
        its.show(1, "a2")
        # An event of 23:59:59 that arrives at 00:00:03 counts in its own week.
        assert await its.write("a1", "dan", 2, at=-1) == {week, "all"}
        its.show(10, "a1")
        its.show(8, "a2")
        # After the grace of one, within that of the other: each goes by its own clock.
        assert await its.write("a1", "dan", 50, at=-1) == {"all"}
        assert await its.write("a2", "dan", 6, at=-1) == {week, "all"}
        its.show(12, "a1", "a2")
        assert await its.write("a2", "dan", 90, at=-1) == {"all"}

        its.show(300)
        assert (await its.final("a1"))[0].in_force is None  # b has not said anything
        await its.start("b")
        assert await its.write("b", "eve", 70, at=-1) == {"all"}

        async def certified() -> bool:
            found = [await its.final(name) for name in its.agents]
            return all(len(final.certificates) == 3 and rows for final, rows in found)

        await until(certified, 60)
        finals = [await its.final(name) for name in its.agents]
        assert len({final.in_force for final, _ in finals}) == 1
        assert all(rows == finals[0][1] for _, rows in finals)
        assert [(row.rank, row.member, row.score) for row in finals[0][1]] == [
            (1, b"dan", 8),
            (2, b"bob", 7),
            (3, b"ann", 6),
            (4, b"cat", 4),
            (5, b"eve", 3),
        ]
        for agent in its.agents.values():
            place = place_of(its.space("a1"))
            assert place is not None
            closed = agent.queue.state.marks.of(Kind.CLOSE, place.series)
            assert {mark.window for mark in closed.values()} == {week}
            assert agent.certifier.counts.thawed == 0
    finally:
        await its.close()
