"""Backups in a ring of real agents: what was acknowledged and gossiped counts once, everywhere."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from redis import Redis

from agent.store.lock import DATABASE
from cluster.chaos import disks
from cluster.local_agent import LocalAgent
from cluster.local_ring import LocalRing
from tests.integration.backup_rig import run, run_json
from tests.integration.fault_rig import (
    SETTINGS,
    SUM,
    add,
    answer,
    define,
    eventually,
    refused_start,
    scores,
    send,
    show,
)
from tests.unit.documents import ROOT, fences, page, sections


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=15)) as opened:
        yield opened


def flush(agent: LocalAgent) -> None:
    with Redis.from_url(agent.redis_url) as redis:
        redis.flushall()


async def shown_by(
    session: aiohttp.ClientSession, ring: LocalRing, names: tuple[str, ...], want: dict[str, int]
) -> None:
    """As `show`, for some agents."""
    for name in names:

        async def equal(name: str = name) -> bool:
            return await scores(session, ring[name]) == want

        await eventually(equal)


async def test_60_of_100_are_restored_and_10_more_make_110(
    session: aiohttp.ClientSession, tmp_path: Path
) -> None:
    async with LocalRing(("a", "b", "c"), settings=SETTINGS) as ring:
        await define(session, ring, SUM)
        await add(session, ring["a"], "m", 60)
        await show(session, ring, {"m": 60})
        file, config = tmp_path / "a.backup", ring["a"].config
        taken = await run_json("backup", file, "--config", config)
        assert (taken["agent"], taken["cells"]) == ("a", ring["a"].cells)
        for _ in range(4):
            await add(session, ring["a"], "m", 10)
        await show(session, ring, {"m": 100})

        code, output = await run("restore", file, "--config", config)
        assert (code, "agent a is running on it: stop it first" in output) == (1, True)
        await ring.stop("a")
        would = await run_json("restore", file, "--config", config, "--dry-run")
        assert would["backup"]["agent"] == "a"
        assert would["beyond"]["a"] == 4  # commits; b and c only merged
        assert would["only_here"] == {"commits": 0, "cells": 0}
        assert would["moved_to"].endswith("tallyring.db.before-restore-1")
        assert would["removed"] == ""
        assert not await asyncio.to_thread(Path(would["moved_to"]).exists)
        inc_before = disks.incarnation_on(ring["a"])

        done = await run_json("restore", file, "--config", config)
        assert done["moved_to"] == would["moved_to"]
        assert int(done["incarnation"], 16) > int(inc_before, 16)
        await ring.start("a")
        await show(session, ring, {"m": 100})
        await add(session, ring["a"], "m", 10)
        await show(session, ring, {"m": 110})

        for agent in ring.agents.values():
            await asyncio.to_thread(flush, agent)
        await show(session, ring, {"m": 110})
        await add(session, ring["b"], "m", 1)
        await show(session, ring, {"m": 111})


async def test_a_slot_that_moved_to_another_machine_and_back(
    session: aiohttp.ClientSession,
) -> None:
    """The machine that it comes back to has kept its folder, token, Redis and all: all agree."""
    async with LocalRing(("a", "b"), settings=SETTINGS) as ring:
        await define(session, ring, SUM)
        await add(session, ring["a"], "m", 60)
        await show(session, ring, {"m": 60})
        await ring.stop("a")
        here, there = ring["a"].data_dir, ring["a"].folder / "there"
        await asyncio.to_thread(disks.copy_disk, ring["a"], there)
        ring.change("a", "agent", "data_dir", str(there))
        await ring.start("a")
        await add(session, ring["a"], "m", 40)
        await show(session, ring, {"m": 100})
        await ring.stop("a")
        ring.change("a", "agent", "data_dir", str(here))
        await ring.start("a")
        await show(session, ring, {"m": 100})
        await add(session, ring["a"], "m", 10)
        await show(session, ring, {"m": 110})


async def test_what_only_the_replaced_database_had_can_be_imported(
    session: aiohttp.ClientSession, tmp_path: Path
) -> None:
    async with LocalRing(("a", "b"), links=True, settings=SETTINGS) as ring:
        await define(session, ring, SUM)
        await add(session, ring["a"], "m", 60)
        await show(session, ring, {"m": 60})
        file, config = tmp_path / "a.backup", ring["a"].config
        await run_json("backup", file, "--config", config)
        ring.cut_off("a")
        await add(session, ring["a"], "m", 7)
        await add(session, ring["a"], "n", 2)
        await ring.stop("a")
        ring.heal()
        would = await run_json("restore", file, "--config", config, "--dry-run")
        assert would["only_here"] == {"commits": 2, "cells": 2}
        code, output = await run("restore", file, "--config", config, "--dry-run")
        assert (code, "2 commits, 2 cells: lost, unless imported" in output) == (0, True)
        assert f"tallyring import --quarantine {would['moved_to']}" in output.splitlines()
        done = await run_json("restore", file, "--config", config)
        url = ring["b"].url
        arguments = ("--quarantine", done["moved_to"], "--url", url)
        code, output = await run("import", *arguments)  # before a writes as somebody else
        assert (code, "may still write as the incarnation" in output) == (1, True)
        await ring.start("a")
        await add(session, ring["a"], "m", 1)
        await show(session, ring, {"m": 61})
        assert (await run_json("import", *arguments))["changed"] == 2
        await show(session, ring, {"m": 68, "n": 2})
        assert (await run_json("import", *arguments))["greater"] == 0


async def test_files_that_can_t_be_used_are_told_in_a_sentence(
    session: aiohttp.ClientSession, tmp_path: Path
) -> None:
    async with LocalRing(("a",), settings=SETTINGS) as ring:
        await define(session, ring, SUM)
        await add(session, ring["a"], "m", 60)
        file, config = tmp_path / "a.backup", ring["a"].config
        await run_json("backup", file, "--config", config)
        await ring.stop("a")
        secret = ring.folder / "ring.secret"
        neither = f"error: {secret}: is neither a backup nor a tallyring.db\n"
        for line in (
            ("restore", secret, "--config", config),
            ("restore", secret, "--config", config, "--dry-run"),
            ("import", "--quarantine", secret, "--dry-run"),
        ):
            assert await run(*line) == (1, neither), line

        database = ring["a"].data_dir / DATABASE
        _overwrite_pages(database)
        begins = f"error: {database}: is damaged (its pages do not fit together): "
        for line in (
            ("backup", tmp_path / "b.backup", "--config", config),
            ("import", "--quarantine", database, "--dry-run"),
        ):
            code, output = await run(*line)
            assert (code, output.startswith(begins), output.count("\n")) == (1, True, 1), output
        code, output = await run("restore", file, "--config", config, "--dry-run")
        assert (code, "what only it has is lost" in output) == (0, True), output
        assert "--quarantine" not in output
        assert "above 0" not in output


def _overwrite_pages(database: Path) -> None:
    """Overwrite every page but the first, which has the header and the tables' definitions."""
    with database.open("r+b") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(4_096)
        file.write(b"\x5a" * (size - 4_096))


async def test_what_only_a_removed_agent_had_counts_by_import_or_not_at_all(
    session: aiohttp.ClientSession, tmp_path: Path
) -> None:
    async with LocalRing(("a", "b", "c"), links=True, settings=SETTINGS) as ring:
        await define(session, ring, SUM)
        await add(session, ring["c"], "m", 100)
        await show(session, ring, {"m": 100})
        ring.cut_off("c")
        await add(session, ring["c"], "m", 5)
        await add(session, ring["c"], "n", 3)
        ring.kill("c")
        ring.heal()
        database = ring["c"].data_dir / DATABASE
        url = ring["a"].url
        code, output = await run("import", "--quarantine", database, "--url", url)
        assert (code, "remove it first" in output) == (1, True)
        await send(session, ring["a"], "POST", "/v1/ring/members/c/remove", {"force": True})
        said = await refused_start(ring, "c")
        assert "removed" in said
        assert "import --quarantine" in said
        assert await scores(session, ring["a"]) == {"m": 100}

        file = tmp_path / "c.backup"
        await run_json("backup", file, "--config", ring["c"].config)
        outlook = await run_json("restore", file, "--config", ring["c"].config, "--dry-run")
        assert outlook["removed"]
        for source in (database, file):
            found = await run_json("import", "--quarantine", source, "--url", url, "--dry-run")
            assert (found["greater"], found["changed"]) == (2, 0)
            assert found["added"] == {"b": 8}
            first = found["differences"][0]
            assert (first["board"], first["member"]) == ("b", "m")
            assert (first["there"], first["here"], first["difference"]) == (105, 100, 5)
        assert await scores(session, ring["a"]) == {"m": 100}
        code, output = await run("import", "--quarantine", database, "--url", url, "--show", 1)
        assert code == 0
        assert "and 1 more" in output
        assert "board b: 2 cells, +8" in output
        await shown_by(session, ring, ("a", "b"), {"m": 105, "n": 3})
        again = await run_json("import", "--quarantine", file, "--url", url)
        assert (again["greater"], again["changed"]) == (0, 0)
        await shown_by(session, ring, ("a", "b"), {"m": 105, "n": 3})


async def runbook(ring: LocalRing, heading: str) -> str:
    """Run the commands below a heading of docs/operations.md; returns what they printed.

    The page's eu is agent a here, its us is b and its ap is c.
    """
    names = {"eu": "a", "us": "b", "ap": "c"}
    (fence,) = fences(sections(page("docs/operations.md"), 2)[heading])
    assert fence.info == "sh"
    script = fence.body.replace(".venv/bin/tallyring", f"{sys.executable} -m cluster.cli")
    for theirs, ours in names.items():
        script = script.replace(f"{theirs}.toml", str(ring[ours].config))
        script = script.replace(f"data/{theirs}/", f"{ring[ours].data_dir}/")
    script = script.replace("http://127.0.0.1:7401", ring["a"].url)
    done = await asyncio.create_subprocess_shell(
        f"set -e\ncd {ring.folder}\n{script}",
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    output, _ = await done.communicate()
    assert done.returncode == 0, output.decode()
    return output.decode()


async def test_the_runbooks_commands_do_what_the_page_says(
    session: aiohttp.ClientSession,
) -> None:
    async with LocalRing(("a", "b", "c"), links=True, settings=SETTINGS) as ring:
        await define(session, ring, SUM)
        await add(session, ring["a"], "m", 60)
        await show(session, ring, {"m": 60})
        assert "cells of agent a in" in await runbook(ring, "Back up")
        ring.cut_off("c")
        await add(session, ring["c"], "m", 5)
        await ring.stop("c")
        ring.heal()
        await ring.stop("a")
        output = await runbook(ring, "Restore")
        assert "nothing was changed (--dry-run)" in output
        assert "it will write as the new incarnation" in output
        await ring.start("a")
        await shown_by(session, ring, ("a", "b"), {"m": 60})
        await send(session, ring["a"], "POST", "/v1/ring/members/c/remove", {"force": True})
        output = await runbook(ring, "Import what a removed agent still had")
        assert "board b: 1 cell, +5" in output
        await shown_by(session, ring, ("a", "b"), {"m": 65})
        await runbook(ring, "Bootstrap of a new region")


async def test_bad_imports_are_refused_whole(session: aiohttp.ClientSession) -> None:
    async with LocalRing(("a",), settings=SETTINGS) as ring:
        good = ["AWIAAAABAAAAAAAAAABhbGw=", "bQ==", "TQ==", 1, 1, ""]
        body = {"ring": "local", "agent": "gone", "incarnation": "1f", "rows": [good]}
        before = ring["a"].cells
        for wrong, detail in (
            ({"ring": "other"}, "the file is of ring 'other'"),
            ({"incarnation": "x"}, "not a hexadecimal number"),
            ({"rows": [good, [*good[:2], "", 1, 1, ""]]}, "rows[1]: row: slot of 0 bytes"),
            ({"rows": [good, [*good[:2], "KwAAAAAAAAAB", -1, 1, ""]]}, "rows[1]: row: a counter"),
            ({"rows": [["A" * 800, *good[1:]]]}, "rows[0]: space of 600 bytes"),
            ({"rows": [good[:5]]}, "rows[0]"),
            ({"more": 1}, "more"),
        ):
            status, document = await answer(
                session, ring["a"], "POST", "/v1/ring/import", {**body, **wrong}
            )
            assert (status, document["code"]) == (400, "malformed"), document
            assert detail in document["detail"]
        too_many = {**body, "rows": [good] * 2001}
        status, _ = await answer(session, ring["a"], "POST", "/v1/ring/import", too_many)
        assert status == 413
        assert ring["a"].cells == before
        done = await send(session, ring["a"], "POST", "/v1/ring/import", body)
        assert done == {"greater": [{"row": 0, "here": None}], "changed": 1}

        async def stored() -> bool:
            return ring["a"].cells == before + 1

        await eventually(stored)
