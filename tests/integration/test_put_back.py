"""A disk that goes back, in any way, on real processes: what was gossiped counts, once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from cluster.chaos import disks
from cluster.local_agent import LocalAgent
from cluster.local_ring import LocalRing
from tests.integration.backup_rig import run
from tests.integration.fault_rig import SETTINGS, SUM, add, define, show

ROLLBACKS = 4  # an identity that is told by chance alone would pass one


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as opened:
        yield opened


def _wipe(agent: LocalAgent, _: Path) -> None:
    disks.empty(agent)


@pytest.mark.parametrize("clean", [True, False], ids=["stopped", "killed"])
@pytest.mark.parametrize("put", [disks.put_back, disks.roll_back, _wipe])
async def test_60_of_100_are_put_back_and_10_more_make_110(
    session: aiohttp.ClientSession, tmp_path: Path, put: disks.Put, clean: bool
) -> None:
    async with LocalRing(("a", "b", "c"), settings=SETTINGS) as ring:
        await define(session, ring, SUM)
        await add(session, ring["a"], "m", 60)
        await show(session, ring, {"m": 60})
        await ring.stop("a")
        await asyncio.to_thread(disks.copy_disk, ring["a"], tmp_path / "copy")
        await ring.start("a")
        await add(session, ring["a"], "m", 40)
        await show(session, ring, {"m": 100})
        if clean:
            await ring.stop("a")
        else:
            ring.kill("a")
        await asyncio.to_thread(put, ring["a"], tmp_path / "copy")
        await ring.start("a")
        await show(session, ring, {"m": 100})
        await add(session, ring["a"], "m", 10)
        await show(session, ring, {"m": 110})


async def test_a_disk_that_is_rolled_back_again_and_again_always_starts(
    session: aiohttp.ClientSession, tmp_path: Path
) -> None:
    async with LocalRing(("a", "b"), settings=SETTINGS) as ring:
        await define(session, ring, SUM)
        await ring.stop("a")
        await asyncio.to_thread(disks.copy_disk, ring["a"], tmp_path / "copy")
        await ring.start("a")
        for number in range(1, ROLLBACKS + 1):
            await add(session, ring["a"], "m", 1)
            await show(session, ring, {"m": number})
            ring.kill("a")
            await asyncio.to_thread(disks.roll_back, ring["a"], tmp_path / "copy")
            await ring.start("a")


async def test_a_restored_file_that_is_put_back_to_before_its_first_start(
    session: aiohttp.ClientSession, tmp_path: Path
) -> None:
    """Every copy of it holds the same incarnation, and at its next start nobody answers."""
    async with LocalRing(("a", "b"), settings=SETTINGS) as ring:
        await define(session, ring, SUM)
        await add(session, ring["a"], "m", 10)
        await show(session, ring, {"m": 10})
        await ring.stop("a")
        for name in ("backup", "restore"):
            code, said = await run(name, tmp_path / "a.bak", "--config", ring["a"].config)
            assert code == 0, said
        await asyncio.to_thread(disks.copy_disk, ring["a"], tmp_path / "copy")
        await ring.start("a")
        await add(session, ring["a"], "m", 90)
        await show(session, ring, {"m": 100})
        await ring.stop("a")
        await asyncio.to_thread(disks.roll_back, ring["a"], tmp_path / "copy")
        ring.pause("b")
        await ring.start("a")
        await add(session, ring["a"], "m", 10)
        ring.resume("b")
        await show(session, ring, {"m": 110})
