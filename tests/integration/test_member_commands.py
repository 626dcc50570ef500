"""The commands about members against a running agent: ban, unban, bans, erase, results, retract."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
from click.testing import CliRunner, Result

from cluster.cli import main
from cluster.local_ring import LocalRing

pytestmark = pytest.mark.asyncio(loop_scope="module")


@dataclass(frozen=True)
class Agent:
    """A running agent, and the command line to it."""

    url: str

    async def call(self, *arguments: str) -> Result:
        """Run a command on a thread: it has an event loop of its own."""
        line = [*arguments, "--url", self.url]
        return await asyncio.to_thread(CliRunner().invoke, main, line)

    async def says(self, *arguments: str) -> str:
        """What a command prints that did what it says."""
        result = await self.call(*arguments)
        assert result.exit_code == 0, result.output
        return result.output

    async def answers(self, *arguments: str) -> dict[str, Any]:
        """The same as JSON."""
        document: dict[str, Any] = json.loads(await self.says(*arguments, "--json"))
        return document

    async def fails(self, *arguments: str) -> str:
        """What a command says that did not."""
        result = await self.call(*arguments)
        assert result.exit_code == 1, result.output
        return result.stderr

    async def send(self, method: str, path: str, body: dict[str, Any]) -> None:
        """A request that succeeds."""
        async with (
            aiohttp.ClientSession() as session,
            session.request(method, self.url + path, json=body) as response,
        ):
            assert response.status == 200, await response.text()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def agent() -> AsyncIterator[Agent]:
    async with LocalRing(("eu",)) as ring:
        made = Agent(ring["eu"].url)
        await made.send("PUT", "/v1/boards/b", {"rule": "sum"})
        yield made


async def test_ban_unban_bans(agent: Agent) -> None:
    assert await agent.says("bans") == "nobody is banned\n"
    assert await agent.says("ban", "ann", "--reason", "spam") == "ann: is hidden (all boards)\n"
    again = await agent.says("ban", "ann", "--reason", "spam")
    assert again == "ann: was hidden so already (all boards)\n"
    until = "2031-01-01T00:00:00Z"
    on_b = await agent.says("ban", "ann", "--board", "b", "--until", until)
    assert on_b == "ann: is hidden (b, until 2031-01-01T00:00:00.000Z)\n"
    listed = (await agent.answers("bans", "--board", "b"))["bans"]
    assert [(its["board"], its["reason"]) for its in listed] == [(None, "spam"), ("b", "")]
    assert "all boards" in await agent.says("bans")
    stays = await agent.fails("unban", "ann", "--board", "b")
    assert "still hidden by its ban on all boards" in stays
    lifted = await agent.says("unban", "ann", "--reason", "appeal")
    assert lifted == "ann: is not hidden any more (all boards)\n"
    assert await agent.says("unban", "ann") == "ann: was not banned (all boards)\n"
    history = await agent.says("bans", "--member", "ann")
    assert "ann is not banned on all boards" in history
    assert "appeal" in history
    assert await agent.says("bans", "--member", "zoe") == "zoe was never banned on all boards\n"
    assert "out_of_range, 422" in await agent.fails("ban", "ann", "--until", "2001-01-01T00:00:00Z")


async def test_results_and_retract(agent: Agent) -> None:
    runs = {"rule": "best", "results": "keep", "windows": [{"name": "day"}]}
    await agent.send("PUT", "/v1/boards/runs", runs)
    now_ms = time.time_ns() // 1_000_000
    entry = {"member": "ann", "score": 9, "key": "r1", "at": now_ms, "data": {"x": 1}}
    await agent.send("POST", "/v1/boards/runs/entries", entry)
    assert "r1" in await agent.says("results", "runs", "ann")
    assert (await agent.says("results", "runs", "zoe")).startswith("zoe has no results here")
    dry = await agent.says("retract", "runs", "ann", "r1", "--dry-run")
    assert "would be taken back in day:" in dry
    assert dry.endswith("Nothing was changed.\n")
    assert (await agent.answers("results", "runs", "ann"))["results"][0]["retracted"] is False
    done = await agent.says("retract", "runs", "ann", "r1")
    assert "the result r1 is taken back" in done
    assert "no result left" in done
    assert "taken back already" in await agent.says("retract", "runs", "ann", "r1")
    assert (await agent.answers("results", "runs", "ann"))["results"][0]["retracted"] is True
    assert "unknown_result, 404" in await agent.fails("retract", "runs", "ann", "r2")


async def test_erase(agent: Agent) -> None:
    await agent.send("POST", "/v1/boards/b/entries", {"member": "eve", "add": 1})
    would = await agent.says("erase", "eve", "--dry-run")
    assert "b: 1 cell\n" in would
    assert would.endswith("Nothing was changed.\n")
    assert "not_erased, 404" in await agent.fails("erase", "eve", "--receipt")
    assert (await agent.answers("erase", "eve"))["changed"] is True
    confirmed = await agent.says("erase", "eve", "--receipt", "--wait", "20")
    assert confirmed.startswith("eve: erased at")
    assert "complete" in confirmed
    assert "there is nothing to change" in await agent.says("erase", "eve", "--dry-run")
    assert "member_erased, 410" in await agent.fails("ban", "eve")
    assert "do not go together" in await agent.fails("erase", "eve", "--dry-run", "--receipt")
