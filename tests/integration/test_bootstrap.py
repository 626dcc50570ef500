"""A large board reaches an empty region: by pull and by snapshot, and goes on where it was cut."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from agent.gossip.bootstrap import NOTE, PART
from agent.gossip.snapshots import _read_at
from cluster.chaos import disks
from cluster.local_agent import LocalAgent
from cluster.local_ring import LocalRing
from tests.integration.backup_rig import contact
from tests.integration.fault_rig import SETTINGS, SUM, add, answer, define, eventually, send, show

# `make test` keeps this small; docs/operations.md has the figures of 200,000 members.
MEMBERS = int(os.environ.get("TALLYRING_TEST_MEMBERS", "5000"))
BATCH = 5_000
PULL = {"snapshot_cells_min": 10**9}
SNAPSHOT = {"snapshot_cells_min": 1}
CHUNK_BYTES = 64 * 1024
SMALL_PARTS = max(512, MEMBERS // 10)  # bytes: a snapshot takes long enough to be cut


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=30)) as opened:
        yield opened


async def filled(session: aiohttp.ClientSession, ring: LocalRing) -> None:
    await define(session, ring, SUM)
    for first in range(0, MEMBERS, BATCH):
        entries = [{"member": f"m{i}", "add": 1 + i % 97} for i in range(first, first + BATCH)]
        await send(session, ring["a"], "POST", "/v1/boards/b/entries", {"entries": entries})


async def joins(ring: LocalRing, gossip: dict[str, Any]) -> LocalAgent:
    joiner = await ring.add("z", start=False)
    for field, value in gossip.items():
        ring.change("z", "gossip", field, value)
    return joiner


async def killed_when(ring: LocalRing, holds: Callable[[], Awaitable[bool]]) -> None:
    """Start the joiner, and kill it as soon as something holds."""
    async with asyncio.TaskGroup() as tasks:
        starting = tasks.create_task(ring.start("z"))
        await eventually(holds)
        starting.cancel()
    ring.kill("z")


async def complete(session: aiohttp.ClientSession, ring: LocalRing) -> None:
    """Wait until the joiner shows the same board as the seed, and knows that it has everything."""

    async def equal() -> bool:
        status, ring_as_seen = await answer(session, ring["z"], "GET", "/v1/ring")
        times = {m["name"]: m["as_of"] for m in ring_as_seen["members"]}
        if status != 200 or times.get("a") is None or ring["z"].cells < ring["a"].cells:
            return False
        pages = [
            await answer(session, ring[name], "GET", "/v1/boards/b/entries?limit=50&offset=900")
            for name in ("a", "z")
        ]
        if any(status != 200 for status, _ in pages):
            return False
        return bool(pages[0][1]["entries"] == pages[1][1]["entries"])

    await eventually(equal)


def said(agent: LocalAgent, event: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in agent.log.read_text().splitlines() if line[:1] == "{"]
    return [line for line in lines if line["event"] == event]


async def rows_changed(session: aiohttp.ClientSession, agent: LocalAgent) -> int:
    async with session.get(f"{agent.url}/metrics") as response:
        for line in (await response.text()).splitlines():
            if line.startswith("tallyring_rows_changed_total "):
                return int(float(line.split()[1]))
    raise AssertionError("no such metric")


async def test_a_pull_that_was_killed_goes_on_where_it_was(session: aiohttp.ClientSession) -> None:
    async with LocalRing(("a",), settings=SETTINGS) as ring:
        await filled(session, ring)
        small = {"chunk_rows_max": 100, "exchange_budget_s": 0.2, "chunk_bytes_max": CHUNK_BYTES}
        for field, value in small.items():  # of the answering agent: it cuts the chunks
            ring.change("a", "gossip", field, value)
        await ring.stop("a")
        await ring.start("a")
        joiner = await joins(ring, {**PULL, "exchange_budget_s": 0.2})
        seen: list[dict[str, Any]] = []

        async def in_the_middle() -> bool:
            at = await contact(session, joiner, "a")
            if at is not None and at["rows_left"]:
                seen.append(at)
            return bool(seen) and joiner.cells > MEMBERS // 5

        await killed_when(ring, in_the_middle)
        had = joiner.cells
        assert MEMBERS // 5 < had < MEMBERS, "it was not killed in the middle"
        assert 0 < seen[-1]["rows_left"] < MEMBERS + 100
        assert seen[-1]["rows_per_s"] > 0
        await ring.start("z")
        await complete(session, ring)
        assert await rows_changed(session, joiner) <= joiner.cells - had + 100

        async def rests() -> bool:
            now = await contact(session, joiner, "a")
            return now is not None and (now["rows_left"], now["rows_per_s"]) == (0, 0)

        await eventually(rests)
        async with session.get(f"{joiner.url}/metrics") as response:
            metrics = await response.text()
        assert 'tallyring_peer_rows_left{peer="a"} 0.0' in metrics
        assert 'tallyring_peer_rows_per_s{peer="a"} 0.0' in metrics
        assert not said(joiner, "a snapshot was fetched")


async def test_a_snapshot_that_was_killed_goes_on_from_its_byte(
    session: aiohttp.ClientSession,
) -> None:
    async with LocalRing(("a",), settings=SETTINGS) as ring:
        await filled(session, ring)
        joiner = await joins(ring, {**SNAPSHOT, "chunk_bytes_max": SMALL_PARTS})
        part = joiner.data_dir / PART

        async def in_the_middle() -> bool:
            return part.exists() and part.stat().st_size > 20 * SMALL_PARTS

        await killed_when(ring, in_the_middle)
        had = part.stat().st_size
        _, seen = await answer(session, ring["a"], "GET", "/v1/ring")
        (joining,) = seen["joining"]
        assert joining["name"] == "z"
        assert 0 < joining["rows_left"] < MEMBERS
        assert joining["rows_per_s"] > 0
        async with session.get(f"{ring['a'].url}/metrics") as response:
            assert 'tallyring_joiner_rows_left{peer="z"}' in await response.text()
        await send(session, ring["a"], "POST", "/v1/boards/b/entries", {"member": "late", "add": 9})
        await ring.start("z")
        fetched = said(joiner, "a snapshot was fetched")
        assert [line["went_on_from"] for line in fetched] == [had]
        assert had < fetched[0]["bytes"]
        await complete(session, ring)  # the tail, which the snapshot has not, included
        assert await rows_changed(session, joiner) < 100
        assert len(said(ring["a"], "a snapshot was made")) == 1
        assert not part.exists()
        assert not (joiner.data_dir / NOTE).exists()


async def test_a_snapshot_that_the_seed_has_no_more_is_fetched_anew(
    session: aiohttp.ClientSession,
) -> None:
    async with LocalRing(("a",), settings=SETTINGS) as ring:
        await filled(session, ring)
        joiner = await joins(ring, {**SNAPSHOT, "chunk_bytes_max": SMALL_PARTS})
        part = joiner.data_dir / PART

        async def in_the_middle() -> bool:
            return part.exists() and part.stat().st_size > 20 * SMALL_PARTS

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(ring.start("z"))
            await eventually(in_the_middle)
            ring.kill("a")
            await ring.start("a")
        assert len(said(joiner, "a snapshot was fetched")) == 1
        assert len(said(ring["a"], "a snapshot was made")) == 2
        await complete(session, ring)
        assert await rows_changed(session, joiner) < 100


async def test_a_snapshot_that_decayed_falls_back_to_the_pull(
    session: aiohttp.ClientSession,
) -> None:
    async with LocalRing(("a",), settings=SETTINGS) as ring:
        await filled(session, ring)
        joiner = await joins(ring, {**SNAPSHOT, "chunk_bytes_max": SMALL_PARTS})
        part = joiner.data_dir / PART

        async def in_the_middle() -> bool:
            return part.exists() and part.stat().st_size > 20 * SMALL_PARTS

        await killed_when(ring, in_the_middle)
        data = bytearray(part.read_bytes())
        data[1000] ^= 1
        part.write_bytes(data)
        await ring.start("z")
        (line,) = said(joiner, "the snapshot can't be used")
        assert "truncated or damaged" in line["why"]
        await complete(session, ring)
        assert await rows_changed(session, joiner) >= MEMBERS
        assert not part.exists()


async def test_an_empty_disk_that_begins_with_a_snapshot_loses_no_increment(
    session: aiohttp.ClientSession,
) -> None:
    async with LocalRing(("a", "b"), settings=SETTINGS) as ring:
        await define(session, ring, SUM)
        await add(session, ring["b"], "m", 100)
        await show(session, ring, {"m": 100})
        ring.kill("b")
        await asyncio.to_thread(disks.empty, ring["b"])
        ring.change("b", "gossip", "snapshot_cells_min", 1)
        await ring.start("b")
        assert len(said(ring["b"], "began with a snapshot")) == 1
        await add(session, ring["b"], "m", 10)
        await show(session, ring, {"m": 110})


async def test_a_small_ring_is_pulled(session: aiohttp.ClientSession) -> None:
    async with LocalRing(("a", "z"), settings=SETTINGS) as ring:
        await define(session, ring, SUM)
        assert not said(ring["z"], "a snapshot was fetched")
        assert not said(ring["a"], "a snapshot was made")


def test_a_place_that_no_file_has_is_answered_like_a_copy_that_is_gone(tmp_path: Path) -> None:
    copy = tmp_path / "snapshot-1"
    copy.write_bytes(b"0123456789")
    assert _read_at(copy, 4, 3) == b"456"
    assert _read_at(copy, 2**40, 3) == b""
    assert _read_at(copy, 2**63 - 1, 3) is None
    assert _read_at(tmp_path / "gone", 0, 3) is None
