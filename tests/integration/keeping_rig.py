"""Rings whose agents keep house, stop and come back, by a clock that is moved by hand."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from agent.boards.definition import Definition, check
from agent.boards.entry import Entry
from agent.boards.tally import Group
from agent.boards.windows import WindowSpec
from agent.crdt.space import decode_space, is_own
from agent.operation import Define, Operation, Write
from agent.store.lock import DATABASE
from tests.integration.gossip_rig import Agent, House, running, until

MINUTE = 60_000
DAY = 86_400_000
NOON = 20_788 * DAY + DAY // 2  # 2026-12-01, at noon
DAY_ID, KEYS_ID = "day:2026-12-01", "keys:0001995696"
NAMES = ("a", "b", "c")
DAILY = check(
    Definition(
        rule="sum", windows=(WindowSpec("all"), WindowSpec("day", keep="2d")), key_retention="1h"
    )
)


@dataclass
class Clock:
    """Everybody's time of entries, in ms since 1970."""

    ms: int = NOON

    def __call__(self) -> int:
        return self.ms


@dataclass
class Ring:
    """Agents of one ring, of which each can stop and come back."""

    folder: Path
    clock: Clock
    facts_max: int
    agents: dict[str, Agent]
    stacks: dict[str, AsyncExitStack]

    async def start(
        self,
        name: str,
        *,
        put_back: bool = False,
        shown: Callable[[int], bool] = lambda _lsn: True,
    ) -> Agent:
        """Start an agent on its folder."""
        stack = self.stacks[name] = AsyncExitStack()
        seeds = [agent.url for agent in self.agents.values()]
        agent = await stack.enter_async_context(
            running(
                self.folder,
                name,
                seeds,
                house=House(True, self.clock, self.facts_max, put_back, shown),
            )
        )
        self.agents[name] = agent
        return agent

    async def stop(self, name: str) -> None:
        """Stop an agent; it stays a member."""
        del self.agents[name]
        await self.stacks.pop(name).aclose()

    async def all(self, check_one: Callable[[Agent], object]) -> None:
        """Wait until something holds at every agent that runs."""
        for agent in self.agents.values():
            await until(partial(check_one, agent))


@asynccontextmanager
async def ring_of(
    folder: Path, names: Sequence[str] = NAMES, facts_max: int = 10_000
) -> AsyncIterator[Ring]:
    """A ring whose agents know each other, and have a board with days."""
    ring = Ring(folder, Clock(), facts_max, {}, {})
    try:
        for name in names:
            await ring.start(name)
        await ring.all(
            lambda agent: (
                len(agent.queue.state.ring.active()) == len(names) and agent.queue.state.complete
            )
        )
        await ring.agents["a"].do(Define("daily", DAILY))
        await ring.all(lambda agent: agent.queue.state.catalog.find("daily"))
        yield ring
    finally:
        for name in list(ring.stacks):
            await ring.stop(name)


def entry(member: str, key: str | None = None, *, board: str = "daily", add: int = 1) -> Operation:
    """One entry of now."""
    at = NOON if key is not None else None
    return Write((Group(board, [Entry(member, add=add, key=key, at=at)], range(1)),))


async def same_state(ring: Ring) -> None:
    """Wait until all agents that run hold the same cells."""

    def same() -> bool:
        return len({agent.queue.state.root for agent in ring.agents.values()}) == 1

    await until(same)


async def writes_alone(ring: Ring, name: str, *operations: Operation) -> None:
    """Let an agent write what no other one gets to know, keep a copy of its file, and stop it."""
    others = [other for other in ring.agents if other != name]
    for other in others:
        await ring.stop(other)
    for operation in operations:
        await ring.agents[name].do(operation)
    await ring.stop(name)
    shutil.copy(ring.folder / name / DATABASE, ring.folder / f"{name}.old")
    for other in others:
        await ring.start(other)


def put_back(ring: Ring, name: str) -> None:
    """Put the copy in the place of the file."""
    for path in (ring.folder / name).glob(f"{DATABASE}*"):
        path.unlink()
    shutil.copy(ring.folder / f"{name}.old", ring.folder / name / DATABASE)


async def has(agent: Agent, window: str) -> bool:
    """Whether cells of a window are here."""
    return window in await spaces(agent)


async def lacks(agent: Agent, window: str) -> bool:
    return not await has(agent, window)


async def spaces(agent: Agent) -> set[str]:
    """The windows of the board with days, and the buckets of its keys, that have cells here."""
    found = await agent.readers.read(lambda snapshot: snapshot.spaces())
    decoded = [decode_space(space) for space in found if not is_own(space)]
    return {space.window for space in decoded if space is not None and space.board == "daily"}
