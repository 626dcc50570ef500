"""The command line against a running agent: it does what it says, in tables and in JSON."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

from click.testing import CliRunner, Result

from agent.boards.entry import rfc3339
from cluster.cli import main
from cluster.local_ring import LocalRing


class Line:
    """The command line of an agent."""

    def __init__(self, url: str) -> None:
        self._url = url

    @staticmethod
    def run(*arguments: str) -> Result:
        """Run a command that asks no agent."""
        return CliRunner().invoke(main, arguments)

    async def call(self, *arguments: str) -> Result:
        """Run a command on a thread: it has an event loop of its own."""
        line = [*arguments, "--url", self._url]
        return await asyncio.to_thread(CliRunner().invoke, main, line)

    async def says(self, *arguments: str) -> str:
        """What a command prints that does what it says."""
        result = await self.call(*arguments)
        assert result.exit_code == 0, result.output
        return result.output

    async def answers(self, *arguments: str) -> dict[str, Any]:
        """The same as JSON."""
        document: dict[str, Any] = json.loads(await self.says(*arguments, "--json"))
        return document


async def test_windows_and_keys_on_the_command_line() -> None:
    async with LocalRing(("eu",)) as ring:
        line = Line(ring["eu"].url)
        call, says = line.call, line.says
        await says("board", "define", "b", "--rule", "sum")
        week = "week,zone=Europe/Berlin,keep=8d"
        await says("board", "define", "fans", "--rule", "distinct", "--window", week)
        both = ("--rule", "sum", "--window", "day", "--window", "all")
        assert "left out" not in await says("board", "define", "w", *both)
        shown = await says("board", "define", "w", "--rule", "sum", "--dry-run")
        assert "\nday: would be left out, with their ranks" in shown
        assert "\n  window day: taken away" in shown
        wider = ("--window", "day,keep=9d", "--window", "all", "--window", "month")
        shown = await says("board", "define", "w", "--rule", "sum", *wider, "--dry-run")
        assert "\n  window month: added" in shown
        assert '\n  window day: keep "8d" -> "9d"' in shown
        assert "window all" not in shown
        shown = await says("board", "show", "fans")
        assert "zone Europe/Berlin, grace 10m, keep 8d" in shown
        assert "open: week:" in shown
        await says("board", "define", "h", "--rule", "sum", "--window", "hour,certify=false")
        assert "no finals" in await says("board", "show", "h")
        assert "next reset: 20" in shown
        assert "fans, week:" in await says("top", "fans", "--window", "week")
        assert "unknown_window, 404" in (await call("top", "fans", "--window", "day")).stderr
        once = ("add", "b", "cy", "4", "--key", "k", "--at", rfc3339(time.time_ns() // 10**6))
        assert (await says(*once)).startswith("cy: 4")
        assert "counted before, at 20" in await says(*once)


async def test_commands_do_what_they_say() -> None:
    async with LocalRing(("eu",)) as ring:
        line = Line(ring["eu"].url)
        call, says, answers = line.call, line.says, line.answers

        shown = await says("board", "define", "b", "--rule", "sum", "--dry-run")
        assert shown.startswith("b: would be changed")
        missing = await call("board", "show", "b")
        assert missing.exit_code == 1
        assert "unknown_board, 404" in missing.stderr
        assert "hint:" in missing.stderr

        assert (await says("board", "define", "b", "--rule", "sum")).startswith("b: changed")
        assert "nothing to change" in await says("board", "define", "b", "--rule", "sum")
        assert (await says("add", "b", "ann", "3")).startswith("ann: 3")
        assert (await says("add", "b", "bob", "-2")).startswith("bob: -2")
        assert "ann" in await says("top", "b")
        page = await answers("top", "b")
        assert [(e["rank"], e["member"], e["score"]) for e in page["entries"]] == [
            (1, "ann", 3),
            (2, "bob", -2),
        ]
        assert "bob is 2 of 2" in await says("rank", "b", "bob")
        assert (await answers("counter", "c", "--by", "5"))["value"] == 5
        assert await says("counter", "c") == "c: 5\n"
        hostile = "[red]x\x1b[2J"
        assert (await says("add", "b", hostile, "1")).startswith("[red]x\\x1b[2J: 1")
        assert "[red]x\\x1b[2J" in await says("top", "b")

        options = ("--rule", "best", "--order", "low", "--min", "0", "--max", "99")
        await says("board", "define", "laps", *options)
        data = json.dumps({"kart": 4})
        await says("score", "laps", "ann", "71", "--at", "2026-01-01T00:00:00Z", "--data", data)
        best = (await answers("rank", "laps", "ann"))["reached_at"]
        assert best.startswith("2026-01-01T00:00:00")
        over = await call("score", "laps", "ann", "100")
        assert over.exit_code == 1
        assert "out_of_range, 422" in over.stderr

        assert {b["board"] for b in (await answers("board", "list"))["boards"]} == {
            "b",
            "counters",
            "laps",
        }
        assert "best" in await says("board", "show", "laps")
        assert "Nothing was changed" in await says("board", "reset", "b", "--dry-run")
        shown = await says("board", "reset", "b", "--rule", "best", "--dry-run")
        assert 'rule: "sum" -> "best"' in shown
        wide = ("--rule", "best", "--min", "0", "--max", str(2**50))
        assert "tie_budget" in (await call("board", "reset", "b", *wide, "--dry-run")).stderr
        assert (await answers("top", "b"))["total"] == 3
        assert (await answers("board", "reset", "b"))["generation"] == 1
        assert "Nothing was changed" in await says("board", "retire", "laps", "--dry-run")
        assert await says("board", "retire", "laps") == "laps: retired\n"
        assert (await call("top", "laps")).exit_code == 1

        assert (await answers("ring", "status"))["agent"] == "eu"
        assert "this agent" in await says("ring", "status")
        assert "this agent" in await says("ring", "watch", "--times", "1")
