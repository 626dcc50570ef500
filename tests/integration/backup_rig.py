"""What the tests of backups share: the commands, as somebody types them, beside a running ring."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp
import click
from click.testing import CliRunner

from cluster.commands.backup import backup, import_rows, restore
from cluster.local_agent import LocalAgent
from tests.integration.fault_rig import answer

COMMANDS: dict[str, click.Command] = {
    "backup": backup,
    "restore": restore,
    "import": import_rows,
}


async def run(name: str, *arguments: object) -> tuple[int, str]:
    """A command's exit code and all that it printed."""
    line = [str(argument) for argument in arguments]
    # On a thread: a command has an event loop of its own.
    done = await asyncio.to_thread(CliRunner().invoke, COMMANDS[name], line)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.output


async def run_json(name: str, *arguments: object) -> dict[str, Any]:
    """What a command that must succeed says with --json."""
    code, output = await run(name, *arguments, "--json")
    assert code == 0, output
    document: dict[str, Any] = json.loads(output)
    return document


async def contact(
    session: aiohttp.ClientSession, agent: LocalAgent, peer: str
) -> dict[str, Any] | None:
    """How an agent stands with a peer, by GET /v1/ring; None where it does not know or answer."""
    try:
        _, ring = await answer(session, agent, "GET", "/v1/ring")
    except (aiohttp.ClientError, TimeoutError):
        return None
    for member in ring["members"]:
        if member["name"] == peer:
            found: dict[str, Any] | None = member["contact"]
            return found
    return None
