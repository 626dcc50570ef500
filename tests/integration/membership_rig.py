"""What the tests of membership share: commands as operators call them, and writers that go on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from click.testing import CliRunner, Result

from cluster.commands.ring import ring as ring_command
from cluster.local_agent import LocalAgent
from cluster.local_ring import LocalRing
from tests.integration.fault_rig import POLL_S, answer, eventually, scores, send


async def command(*arguments: str, at: LocalAgent | None = None) -> Result:
    """Run `tallyring ring ...` on a thread: it has an event loop of its own."""
    line = [*arguments, *(("--url", at.url) if at is not None else ())]
    return await asyncio.to_thread(CliRunner().invoke, ring_command, line)


async def says(*arguments: str, at: LocalAgent | None = None) -> str:
    """What a command says that must do what it says."""
    result = await command(*arguments, at=at)
    assert result.exit_code == 0, result.output
    return result.output


async def refuses(*arguments: str, at: LocalAgent | None = None) -> str:
    """What a command says that must fail."""
    result = await command(*arguments, at=at)
    assert result.exit_code == 1, result.output
    assert result.stderr.startswith("error: "), result.output
    return result.output


async def ring_of(session: aiohttp.ClientSession, agent: LocalAgent) -> dict[str, Any]:
    """GET /v1/ring."""
    return await send(session, agent, "GET", "/v1/ring")


async def member_of(
    session: aiohttp.ClientSession, agent: LocalAgent, name: str
) -> dict[str, Any] | None:
    """One member as an agent sees it."""
    members = (await ring_of(session, agent))["members"]
    return next((member for member in members if member["name"] == name), None)


async def all_met(session: aiohttp.ClientSession, ring: LocalRing) -> None:
    """Wait until every agent that runs has read every other one's log."""
    running = [agent for agent in ring.agents.values() if agent.process is not None]

    async def met() -> bool:
        for agent in running:
            shown = await ring_of(session, agent)
            active = [m for m in shown["members"] if m["status"] == "active"]
            if len(active) < len(running) or not shown["identity"]["complete"]:
                return False
        return True

    await eventually(met)


async def metric(session: aiohttp.ClientSession, agent: LocalAgent, name: str) -> float:
    """The value of one metric, named with its labels as it is printed."""
    async with session.get(f"{agent.url}/metrics") as response:
        text = await response.text()
    line = next(line for line in text.splitlines() if line.startswith(f"{name} "))
    return float(line.rpartition(" ")[2])


@dataclass
class Writing:
    """Increments of member `m` that were acknowledged, and refusals, by agent's folder."""

    acknowledged: dict[str, int] = field(default_factory=dict)
    refused: dict[str, dict[str, Any]] = field(default_factory=dict)
    broken: int = 0

    @property
    def total(self) -> int:
        """All that were acknowledged."""
        return sum(self.acknowledged.values())


@asynccontextmanager
async def writing(
    session: aiohttp.ClientSession, agents: Iterable[LocalAgent]
) -> AsyncIterator[Writing]:
    """Add 1 to `m` at each agent again and again, until the block ends or it refuses."""
    done = Writing()
    ends = asyncio.Event()

    async def write(agent: LocalAgent) -> None:
        path, body = "/v1/boards/b/entries", {"member": "m", "add": 1}
        name = agent.folder.name  # a copy has another one's name, and a folder of its own
        while not ends.is_set():
            try:
                status, document = await answer(session, agent, "POST", path, body)
            except aiohttp.ClientError:
                done.broken += 1
                return
            if status != 200:
                done.refused[name] = document
                return
            done.acknowledged[name] = done.acknowledged.get(name, 0) + 1
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as group:
        for agent in agents:
            group.create_task(write(agent))
        try:
            yield done
        finally:
            ends.set()


@asynccontextmanager
async def never_dips(
    session: aiohttp.ClientSession, agents: Iterable[LocalAgent]
) -> AsyncIterator[dict[str, int]]:
    """Read `m` again and again, as a subscriber of the total would: it must never fall."""
    seen: dict[str, int] = {}
    ends = asyncio.Event()

    async def read(agent: LocalAgent) -> None:
        while not ends.is_set():
            shown = await scores(session, agent)
            if shown is not None and "m" in shown:
                before = seen.get(agent.name, 0)
                assert shown["m"] >= before, f"{agent.name}: {before}, then {shown['m']}"
                seen[agent.name] = shown["m"]
            await asyncio.sleep(POLL_S)

    async with asyncio.TaskGroup() as group:
        for agent in agents:
            group.create_task(read(agent))
        try:
            yield seen
        finally:
            ends.set()


def as_json(text: str) -> Any:
    """The JSON that a command printed, as its last line."""
    return json.loads(text.strip().splitlines()[-1])
