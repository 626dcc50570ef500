"""What the tests of faults share: requests, boards, small disks, and starts that must fail."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from cluster.checker import Verdict, check_everything
from cluster.expected import BoardSpec, Expectation
from cluster.local_agent import LocalAgent
from cluster.local_ring import LocalRing, RingError

POLL_S = 0.02
TRACEBACK = "Traceback (most recent call last)"
SETTINGS: dict[str, dict[str, Any]] = {
    "gossip": {"backoff_max_s": 0.5, "interval_s": 0.2},
    "ring": {"confirm_s": 1.0},
    "projection": {"check_s": 0.5},
}
SUM = BoardSpec("b", "sum", ties="member")


async def eventually(holds: Callable[[], Awaitable[bool]]) -> None:
    """Wait for a condition; the suite's time limit ends a wait in vain."""
    while not await holds():  # noqa: ASYNC110 -- a remote agent has no event to wait for
        await asyncio.sleep(POLL_S)


async def answer(
    session: aiohttp.ClientSession, agent: LocalAgent, method: str, path: str, body: Any = None
) -> tuple[int, dict[str, Any]]:
    """Status and document of any answer."""
    async with session.request(method, agent.url + path, json=body) as response:
        return response.status, await response.json(content_type=None)


async def send(
    session: aiohttp.ClientSession, agent: LocalAgent, method: str, path: str, body: Any = None
) -> dict[str, Any]:
    """The document of an answer that must be a success."""
    return await succeeding(method, lambda: answer(session, agent, method, path, body))


async def succeeding(
    method: str, ask: Callable[[], Awaitable[tuple[int, dict[str, Any]]]]
) -> dict[str, Any]:
    """The document of an answer that must be a success.

    A read is sent again while the window is being filled, as the answer's hint says.
    """
    while True:
        status, document = await ask()
        if method != "GET" or document.get("code") != "rebuilding":
            assert status < 300, document
            return document
        await asyncio.sleep(POLL_S)


async def define(session: aiohttp.ClientSession, ring: LocalRing, *specs: BoardSpec) -> None:
    """Define boards at the first agent and wait until all know and serve them."""
    agents = list(ring.agents.values())
    for spec in specs:
        await send(session, agents[0], "PUT", f"/v1/boards/{spec.name}", spec.document())
    for agent in agents:
        for spec in specs:
            await serves(session, agent, spec.name)


async def serves(session: aiohttp.ClientSession, agent: LocalAgent, board: str) -> None:
    """Wait until an agent serves a board."""

    async def known() -> bool:
        status, _ = await answer(session, agent, "GET", f"/v1/boards/{board}/entries")
        return status == 200

    await eventually(known)


async def add(session: aiohttp.ClientSession, agent: LocalAgent, member: str, amount: int) -> None:
    body = {"member": member, "add": amount}
    await send(session, agent, "POST", "/v1/boards/b/entries", body)


async def scores(
    session: aiohttp.ClientSession, agent: LocalAgent, board: str = "b"
) -> dict[str, int] | None:
    """A whole small board; None while it is not served."""
    status, page = await answer(session, agent, "GET", f"/v1/boards/{board}/entries?limit=1000")
    return {e["member"]: e["score"] for e in page["entries"]} if status == 200 else None


async def show(session: aiohttp.ClientSession, ring: LocalRing, want: dict[str, int]) -> None:
    """Wait until every agent shows exactly this on board `b`."""
    for agent in ring.agents.values():

        async def equal(agent: LocalAgent = agent) -> bool:
            return await scores(session, agent) == want

        await eventually(equal)


async def all_equal(ring: LocalRing, expectation: Expectation) -> None:
    """Wait until every region shows what is expected, over HTTP and in Redis."""
    verdict = Verdict()
    while not verdict.equal:
        try:
            verdict = await check_everything(ring.regions, expectation)
        except aiohttp.ClientError:
            verdict = Verdict()
        await asyncio.sleep(POLL_S)


async def refused_start(ring: LocalRing, name: str) -> str:
    """Start an agent that must refuse to; returns what it printed. It never shows a traceback."""
    agent = ring[name]
    before = agent.log.stat().st_size
    with pytest.raises(RingError, match="ended with code"):
        await ring.start(name)
    agent.process = None
    said = agent.log.read_bytes()[before:].decode(errors="replace")
    assert TRACEBACK not in said
    return said


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[None]:
    """A tmpfs of a fixed size at a folder; the test is skipped where it can't be mounted."""
    folder.mkdir(parents=True, exist_ok=True)
    if os.name != "posix" or os.geteuid() != 0:
        pytest.skip("only root may mount a small disk")
    mount, umount = shutil.which("mount"), shutil.which("umount")
    if mount is None or umount is None:
        pytest.skip("there is no mount command")
    line = [mount, "-t", "tmpfs", "-o", f"size={size},mode=700", "tallyring-test", str(folder)]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"a small disk can't be mounted here: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run([umount, "-l", str(folder)], check=True)


def remount(folder: Path, options: str) -> None:
    """Change a small disk: `ro`, `rw`, `size=...`."""
    mount = shutil.which("mount")
    assert mount is not None
    subprocess.run([mount, "-o", f"remount,{options}", str(folder)], check=True)
