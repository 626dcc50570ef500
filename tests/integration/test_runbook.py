"""The runbook for the ring, run: every command of docs/operations.md about members, in order."""

from __future__ import annotations

import asyncio
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest

from cluster.local_agent import free_port
from cluster.local_ring import ROOT, LocalRing
from tests.integration.fault_rig import SETTINGS
from tests.integration.membership_rig import all_met
from tests.unit.documents import fences, page, sections

SECTIONS = (
    "Add a region",
    "Look at the ring",
    "Re-address",
    "Rotate the secret",
    "Leave",
    "Remove a dead agent",
)
PATIENCE_S = 60.0
AGAIN_S = 0.5
EXIT_S = 15.0


def commands(section: str) -> Iterator[str]:
    """The lines of a section's shell blocks."""
    for fence in fences(sections(page("docs/operations.md"), 2)[section]):
        if fence.info == "sh":
            yield from fence.body.strip().splitlines()


class Machine:
    """Where the runbook's lines are typed: a folder with the secret, and the ring's real ports."""

    def __init__(self, folder: Path, ports: dict[str, int]) -> None:
        self.folder = folder
        self._ports = ports
        self.agent: subprocess.Popen[bytes] | None = None

    def _real(self, line: str) -> list[str]:
        for shown, port in self._ports.items():
            line = line.replace(shown, str(port))
        line = line.replace(".venv/bin/tallyring", f"{sys.executable} -m cluster.cli")
        return shlex.split(line)

    async def run(self, line: str) -> None:
        """Type a line; it must do what it says."""
        wrong = await self.try_to(line)
        assert not wrong, f"{line}\n{wrong}"

    async def try_to(self, line: str) -> str:
        """Type a line; what it says where it does not do what it says."""
        words = self._real(line)
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        if "agent" in words:
            with (self.folder / "ap.log").open("ab") as log:
                self.agent = subprocess.Popen(  # noqa: ASYNC220 -- a fork, not a wait
                    words, cwd=self.folder, env=environment, stdout=log, stderr=log
                )
            return ""
        done = await asyncio.to_thread(
            subprocess.run, words, cwd=self.folder, env=environment, capture_output=True, text=True
        )
        return f"{done.stdout}\n{done.stderr}" if done.returncode else ""

    async def run_when_it_is_time(self, line: str) -> None:
        """Type a line again until it does what it says: an agent is dead after 30 s of silence."""
        async with asyncio.timeout(PATIENCE_S):
            while wrong := await self.try_to(line):
                assert "heard from" in wrong
                await asyncio.sleep(AGAIN_S)


@pytest.mark.timeout(240)  # for an agent to be dead takes half a minute
async def test_every_command_of_the_ring_does_what_the_runbook_says(tmp_path: Path) -> None:
    settings = {**SETTINGS, "ring": {**SETTINGS["ring"], "name": "demo"}}
    async with (
        LocalRing(("eu", "us"), folder=tmp_path / "ring", settings=settings) as ring,
        aiohttp.ClientSession() as session,
    ):
        ports = {"7401": ring["eu"].port, "7402": ring["us"].port, "7403": free_port()}
        machine = Machine(ring.folder, ports)
        try:
            for section in SECTIONS:
                lines = list(commands(section))
                assert lines, section
                for line in lines:
                    if "remove us" in line:
                        await machine.run_when_it_is_time(line)
                    elif "step drop" in line:
                        await all_know(session, ring, machine, line)
                    else:
                        await machine.run(line)
                if section == "Add a region":
                    await until_there(session, ring)
                if section == "Leave":
                    assert machine.agent is not None
                    assert await asyncio.to_thread(machine.agent.wait, EXIT_S) == 0
                    ring.kill("us")
        finally:
            if machine.agent is not None and machine.agent.poll() is None:
                machine.agent.terminate()
                await asyncio.to_thread(machine.agent.wait, EXIT_S)
        async with session.get(f"{ring['eu'].url}/v1/ring") as response:
            members = (await response.json())["members"]
        statuses = {member["name"]: member["status"] for member in members}
        assert statuses == {"ap": "removed", "eu": "active", "us": "removed"}


async def until_there(session: aiohttp.ClientSession, ring: LocalRing) -> None:
    """Wait until the new agent is of the ring, and everybody has met everybody."""
    while True:
        async with session.get(f"{ring['eu'].url}/v1/ring") as response:
            shown = await response.json()
        states = {m["name"]: (m["contact"] or {}).get("state") for m in shown["members"]}
        if states == {"ap": "ok", "eu": None, "us": "ok"}:
            break
        await asyncio.sleep(AGAIN_S)
    await all_met(session, ring)


async def all_know(
    session: aiohttp.ClientSession, ring: LocalRing, machine: Machine, line: str
) -> None:
    """Drop the old secret once all have proven themselves with the new one; it refuses before."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            async with session.get(f"{ring['eu'].url}/v1/ring") as response:
                shown = await response.json()
            mine = shown["identity"]["secrets"][0]
            known = {m["contact"]["secret"] for m in shown["members"] if m["contact"]}
            if len(shown["identity"]["secrets"]) == 2 and known == {mine}:
                break
            await asyncio.sleep(AGAIN_S)
    await machine.run(line)
