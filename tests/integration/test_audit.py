"""`tallyring audit` against real agents: what differs is named, `--repair` mends it, exit codes."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result
from redis.asyncio import Redis

from cluster.cli import main
from cluster.local_ring import LocalRing
from tests.integration.damage import cells, edit
from tests.integration.gossip_rig import until

# So slow that an agent finds nothing by itself while the test looks.
ASLEEP = {"repair": {"cells_per_s": 0.5, "rest_s": 1}}


def file_of(ring: LocalRing, name: str) -> Path:
    return ring[name].folder / "data" / "tallyring.db"


async def call(ring: LocalRing, name: str, *arguments: str) -> Result:
    """Run a command on a thread: it has an event loop of its own."""
    line = [*arguments, "--url", ring[name].url]
    return await asyncio.to_thread(CliRunner().invoke, main, line)


async def audit(ring: LocalRing, name: str, *options: str) -> tuple[int, dict[str, Any]]:
    """(exit code, answer) of an audit."""
    result = await call(ring, name, "audit", "--json", *options)
    return result.exit_code, json.loads(result.stdout)


def kinds(answer: dict[str, Any]) -> dict[tuple[str, str], str]:
    """(kind, member or slot) -> with whom, of all differences."""
    return {(d["kind"], d["member"] or d["slot"]): d["other"] for d in answer["differences"]}


async def fill(ring: LocalRing) -> None:
    for board, rule in (("kills", "sum"), ("laps", "best")):
        assert (await call(ring, "eu", "board", "define", board, "--rule", rule)).exit_code == 0
    await until(lambda: len(ring.agents) and _knows(ring, "us", "laps"))
    for name in ring.agents:
        for number in range(6):
            added = await call(ring, name, "add", "kills", f"m{number}", "5")
            assert added.exit_code == 0, added.output
        assert (await call(ring, name, "add", "kills", f"only-{name}", "7")).exit_code == 0
    assert (await call(ring, "us", "score", "laps", "ann", "61234")).exit_code == 0
    # All that is to be damaged was read by the other one: it would stumble over it else.
    await until(lambda: cells(file_of(ring, "eu")) == cells(file_of(ring, "us")))
    for name in ring.agents:
        await until(partial(_all_read, ring, name))


def _notes(answer: dict[str, Any]) -> set[str]:
    """How the damaged cell was mended, where the audit has done it."""
    its = (d["note"] for d in answer["differences"] if d["member"] == "only-us")
    return {note for note in its if note}


async def _clean(ring: LocalRing, name: str) -> bool:
    code, answer = await audit(ring, name)
    return (code, answer["found"]) == (0, 0)


async def _all_read(ring: LocalRing, name: str) -> bool:
    members = json.loads((await call(ring, name, "ring", "status", "--json")).stdout)["members"]
    contacts = [member["contact"] for member in members if member["contact"]]
    return bool(contacts) and all(contact["rows_behind"] == 0 for contact in contacts)


async def _knows(ring: LocalRing, name: str, board: str) -> bool:
    return (await call(ring, name, "board", "show", board)).exit_code == 0


async def test_every_difference_is_named_and_mended() -> None:
    async with LocalRing(("eu", "us"), settings=ASLEEP) as ring:
        await fill(ring)
        code, answer = await audit(ring, "eu")
        assert (code, answer["found"], answer["state"]) == (0, 0, "done"), answer
        assert [part["name"] for part in answer["peers"]] == ["us"]
        assert answer["peers"][0]["compared"] >= 20
        assert {part["name"]: part["compared"] for part in answer["boards"]} == {
            "counters": 0,
            "kills": 8,
            "laps": 1,
        }
        held = cells(file_of(ring, "us"))

        eu, us = file_of(ring, "eu"), file_of(ring, "us")
        changed = "UPDATE cells SET major = major + 70000, minor = 5 WHERE member = ?"
        for path, statement, value in (
            (eu, changed, b"only-us"),
            (eu, changed, b"ann"),
            (eu, "DELETE FROM cells WHERE member = ?", b"m1"),
            (eu, "UPDATE totals SET score = score + 9 WHERE member = ?", b"m2"),
            (us, changed, b"m3"),
            (us, "DELETE FROM cells WHERE member = ?", b"only-eu"),
        ):
            assert edit(path, statement, value) > 0
        redis = Redis.from_url(ring["eu"].redis_url)
        await redis.zrem("lb:{s0}:kills:all", "m4")
        await redis.zadd("lb:{s0}:kills:all", {"m5": 1, "nobody": 3})
        code, answer = await audit(ring, "eu")
        assert (code, answer["mended"]) == (1, 0)
        found = kinds(answer)
        expected = {
            ("damaged", "only-us"): "",
            ("damaged", "ann"): "",
            ("lacking", "m1"): "us",
            ("total", "m2"): "",
            ("damaged_there", "m3"): "us",
            ("lacking_there", "only-eu"): "us",
            ("rank", "m4"): "redis",
            ("rank", "m5"): "redis",
            ("rank", "nobody"): "redis",
        }
        assert expected.items() <= found.items(), answer
        shown = (await call(ring, "eu", "audit")).output
        for text in ("kills/only-us", "up of us,", "damaged_there", "nothing", "kills/nobody"):
            assert text in shown, shown
        assert "8 members with Redis" in shown

        code, answer = await audit(ring, "eu", "--repair")
        assert [d for d in answer["differences"] if not d["mended"]] == []
        assert (code, answer["found"]) == (0, answer["mended"]), answer
        # The recount that mending sets off may be faster with the total than the audit.
        del expected["total", "m2"]
        assert expected.items() <= kinds(answer).items()
        assert _notes(answer) <= {"as us has it"}
        for name in ring.agents:
            await until(partial(_clean, ring, name))
        for path in (eu, us):
            assert held.items() <= cells(path).items()
        await redis.aclose()

        async def noted() -> bool:
            """The agent mends by itself what the audit has found, and may be faster with it."""
            assert edit(eu, changed, b"only-us") > 0
            code, answer = await audit(ring, "eu", "--repair")
            assert code == 0, answer
            return _notes(answer) == {"as us has it"}

        await until(noted)
        await _codes_of_an_audit_that_could_not(ring)


async def _codes_of_an_audit_that_could_not(ring: LocalRing) -> None:
    ring.kill("us")
    code, answer = await audit(ring, "eu")
    assert code == 2
    assert answer["peers"][0]["skipped"]
    assert "not compared: us" in (await call(ring, "eu", "audit")).output
    nobody = await asyncio.to_thread(CliRunner().invoke, main, ["audit", "--url", ring["us"].url])
    assert nobody.exit_code == 2
    assert (await call(ring, "eu", "audit", "--board", "nosuch")).exit_code == 2
