"""Faults of one agent, each by itself: nothing acknowledged is lost, nothing wrong is served."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from random import Random

import aiohttp
import pytest

from agent.crdt.space import RING_SPACE
from agent.store.lock import DATABASE
from cluster.chaos import disks
from cluster.chaos.plan import DAY_MS
from cluster.expected import BoardSpec, Entry, Expectation
from cluster.local_ring import LocalRing, RingError
from tests.integration.damage import edit
from tests.integration.fault_rig import (
    SETTINGS,
    SUM,
    TRACEBACK,
    add,
    all_equal,
    answer,
    define,
    eventually,
    refused_start,
    remount,
    scores,
    send,
    serves,
    show,
    small_disk,
)

WRITERS = 6
ROUNDS = 3
DISK_MIN_BYTES = 3 * 2**20


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=15)) as opened:
        yield opened


async def test_kill_9_at_any_moment_loses_nothing_that_was_acknowledged(
    session: aiohttp.ClientSession,
) -> None:
    chance = Random(31)
    async with LocalRing(("a", "b"), settings=SETTINGS) as ring:
        await define(session, ring, SUM)
        sent, acknowledged = 0, 0

        async def write() -> None:
            nonlocal sent, acknowledged
            while True:
                sent += 1
                try:
                    await add(session, ring["a"], "m", 1)
                except aiohttp.ClientError:
                    return  # the process is gone; this entry may or may not have been stored
                acknowledged += 1

        for _ in range(ROUNDS):
            enough = acknowledged + chance.randint(1, 200)

            async def under_way(enough: int = enough) -> bool:
                return acknowledged >= enough

            async with asyncio.TaskGroup() as group:
                for _ in range(WRITERS):
                    group.create_task(write())
                await eventually(under_way)
                ring.kill("a")
            await ring.start("a")

        async def same() -> bool:
            one, two = await scores(session, ring["a"]), await scores(session, ring["b"])
            return one == two and one is not None

        await eventually(same)
        total = (await scores(session, ring["b"]) or {})["m"]
        assert acknowledged <= total <= sent
        assert sent - acknowledged <= ROUNDS * WRITERS


async def test_others_go_on_while_one_hangs_and_it_catches_up(
    session: aiohttp.ClientSession,
) -> None:
    async with LocalRing(("a", "b", "c"), settings=SETTINGS) as ring:
        await define(session, ring, SUM)
        ring.pause("c")
        for number in range(100):
            await add(session, ring["ab"[number % 2]], "m", 1)

        async def exchanged() -> bool:
            shown = [await scores(session, ring[name]) for name in "ab"]
            return shown == [{"m": 100}] * 2

        async with asyncio.timeout(10):
            await eventually(exchanged)
        ring.resume("c")
        await add(session, ring["c"], "m", 1_000)
        await show(session, ring, {"m": 1_100})


async def test_a_full_disk_refuses_writes_and_serves_reads(
    session: aiohttp.ClientSession, tmp_path: Path
) -> None:
    """First the low mark: refused before the disk is full. Then the disk itself."""
    settings = {**SETTINGS, "agent": {"disk_free_min_bytes": DISK_MIN_BYTES}}
    data = tmp_path / "ring" / "a" / "data"
    async with LocalRing(("b",), folder=tmp_path / "ring", settings=settings) as ring:
        agent = await ring.add("a", start=False)
        with small_disk(data, "24m"):
            await ring.start("a")
            await define(session, ring, SUM)
            await add(session, agent, "m", 1)
            filling = data / "filling"
            for full in (False, True):
                if full:
                    # Below the low mark of the agent's next look, the disk fills up at once.
                    ring.change("a", "agent", "disk_free_min_bytes", 1)
                    await ring.stop("a")
                    await ring.start("a")
                    await serves(session, agent, "b")
                room = 0 if full else DISK_MIN_BYTES // 2
                _fill(filling, data, room)

                async def refused() -> bool:
                    status, problem = await answer(
                        session, agent, "POST", "/v1/counters/filler", {"by": 1}
                    )
                    if status == 200:
                        return False
                    assert (status, problem["code"]) == (503, "busy"), problem
                    return "disk" in problem["detail"]

                await eventually(refused)
                status, page = await answer(session, agent, "GET", "/v1/boards/b/entries")
                assert (status, [e["member"] for e in page["entries"]]) == (200, ["m"])
                filling.unlink()

                async def taken() -> bool:
                    body = {"member": "m", "add": 1}
                    status, _ = await answer(session, agent, "POST", "/v1/boards/b/entries", body)
                    return status == 200

                await eventually(taken)
            assert TRACEBACK not in agent.log.read_text()
            await show(session, ring, {"m": 3})
            await ring.stop("a")


def _fill(path: Path, disk: Path, room: int) -> None:
    """Fill a disk until `room` bytes are left."""
    block = b"\0" * 4096
    with path.open("ab", buffering=0) as file:
        try:
            while disks.free_bytes(disk) > room:
                file.write(block)
        except OSError:
            assert not room


async def test_a_read_only_disk_is_refused_at_the_start_and_nothing_is_lost(
    session: aiohttp.ClientSession, tmp_path: Path
) -> None:
    data = tmp_path / "ring" / "a" / "data"
    async with LocalRing(("b",), folder=tmp_path / "ring", settings=SETTINGS) as ring:
        await ring.add("a", start=False)
        with small_disk(data, "256m"):
            await ring.start("a")
            await define(session, ring, SUM)
            await add(session, ring["a"], "m", 5)
            await show(session, ring, {"m": 5})
            await ring.stop("a")
            remount(data, "ro")
            said = (await refused_start(ring, "a")).lower()
            assert "read-only" in said or "readonly" in said
            assert str(data) in said
            await show_at(session, ring, "b", {"m": 5})
            remount(data, "rw")
            await ring.start("a")
            await add(session, ring["a"], "m", 1)
            await show(session, ring, {"m": 6})
            await ring.stop("a")


async def show_at(
    session: aiohttp.ClientSession, ring: LocalRing, name: str, want: dict[str, int]
) -> None:
    async def equal() -> bool:
        return await scores(session, ring[name]) == want

    await eventually(equal)


async def test_a_corrupted_page_is_never_served_and_an_empty_folder_brings_all_back(
    session: aiohttp.ClientSession,
) -> None:
    expectation = Expectation({"b": SUM})
    async with LocalRing(("a", "b"), settings=SETTINGS) as ring:
        await define(session, ring, SUM)
        entries = [{"member": f"m{i:04}", "add": i + 1} for i in range(2_000)]
        for name in ring.agents:
            await send(session, ring[name], "POST", "/v1/boards/b/entries", {"entries": entries})
            for entry in entries:
                expectation.count(Entry("b", str(entry["member"]), int(str(entry["add"])), 0))
        await all_equal(ring, expectation)
        await ring.stop("a")
        _corrupt(ring["a"].data_dir / DATABASE)
        log = ring["a"].log
        before = log.stat().st_size
        try:
            await ring.start("a")
        except RingError:
            ring["a"].process = None
        else:
            await _meets_the_damage(session, ring)
        said = log.read_bytes()[before:].decode(errors="replace")
        assert TRACEBACK not in said
        assert "malformed" in said or "damaged" in said or "corrupt" in said
        assert "empty" in said  # what to do: restore a backup, or start with an empty folder
        ring["a"].process = None
        disks.empty(ring["a"])
        await ring.start("a")
        await serves(session, ring["a"], "b")
        await all_equal(ring, expectation)


def _corrupt(path: Path) -> None:
    """Overwrite the first half of each page that holds a certain member, in all tables."""
    with closing(sqlite3.connect(path)) as file:
        file.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        page_bytes = file.execute("PRAGMA page_size").fetchone()[0]
    content = bytearray(path.read_bytes())
    struck = 0
    for start in range(page_bytes, len(content), page_bytes):
        if b"m1000" in content[start : start + page_bytes]:
            content[start : start + page_bytes // 2] = b"\xa5" * (page_bytes // 2)
            struck += 1
    assert struck
    path.write_bytes(content)


async def _meets_the_damage(session: aiohttp.ClientSession, ring: LocalRing) -> None:
    """Touch every member: what is shown is right, or refused, until the agent has ended."""
    agent = ring["a"]
    process = agent.process
    assert process is not None
    for i in range(2_000):
        if process.poll() is not None:
            break
        try:
            status, shown = await answer(session, agent, "GET", f"/v1/boards/b/entries/m{i:04}")
            assert status != 200 or shown["score"] == 2 * (i + 1)
            body = {"member": f"m{i:04}", "add": 0}
            await answer(session, agent, "POST", "/v1/boards/b/entries", body)
        except aiohttp.ClientError:
            break
    if process.poll() is None:
        await ring.stop("a")
    assert process.returncode is not None


async def test_counters_are_exact_whatever_the_clocks_say(
    session: aiohttp.ClientSession,
) -> None:
    shifts = {"ahead": DAY_MS, "right": 0, "behind": -DAY_MS}
    async with LocalRing((), settings=SETTINGS) as ring:
        for name, shift_ms in shifts.items():
            await ring.add(name, start=False)
            ring.change(name, "agent", "clock_shift_ms", shift_ms)
            await ring.start(name)
        await define(session, ring, SUM)
        for number, name in enumerate(shifts):
            await add(session, ring[name], "m", 10**number)
        await show(session, ring, {"m": 111})
        for name in shifts:  # back to the right time: each starts once more
            ring.change(name, "agent", "clock_shift_ms", 0)
            await ring.stop(name)
            await ring.start(name)
            await add(session, ring[name], "m", 1_000)
        await show(session, ring, {"m": 3_111})


async def test_a_clock_a_day_ahead_does_not_win_latest_boards_for_a_day(
    session: aiohttp.ClientSession,
) -> None:
    newest = BoardSpec("n", "latest", ties="member")
    async with LocalRing((), settings=SETTINGS) as ring:
        await ring.add("ahead", start=False)
        ring.change("ahead", "agent", "clock_shift_ms", DAY_MS)
        await ring.start("ahead")
        await define(session, ring, newest)
        path = "/v1/boards/n/entries"
        await send(session, ring["ahead"], "POST", path, {"member": "m", "score": 1})
        for name in ("b", "c"):
            await ring.add(name)
            await serves(session, ring[name], "n")

        async def all_show(score: int) -> None:
            for name in ring.agents:

                async def shown(name: str = name) -> bool:
                    return await scores(session, ring[name], "n") == {"m": score}

                await eventually(shown)

        await all_show(1)
        await send(session, ring["b"], "POST", path, {"member": "m", "score": 2})
        await all_show(2)
        await send(session, ring["c"], "POST", path, {"member": "m", "score": 3})
        await all_show(3)

        async def refused() -> bool:
            """The agent that is off says so; its counters go on."""
            status, problem = await answer(
                session, ring["ahead"], "POST", path, {"member": "m", "score": 4}
            )
            if status == 200:
                return False
            assert (status, problem["definite"]) == (503, True)
            return "clock" in problem["detail"]

        await eventually(refused)
        await send(session, ring["ahead"], "POST", "/v1/counters/k", {"by": 1})


async def test_an_agent_whose_own_entry_in_the_ring_is_damaged_starts_and_is_mended(
    session: aiohttp.ClientSession,
) -> None:
    """Only an agent that runs can mend it."""
    async with LocalRing(("a", "b"), settings=SETTINGS) as ring:
        await define(session, ring, SUM)
        await add(session, ring["a"], "m", 5)
        await show(session, ring, {"m": 5})
        await ring.stop("a")
        entry = "space = (SELECT id FROM spaces WHERE space = ?) AND member = ?"
        damaged = f"UPDATE cells SET major = major + 1 WHERE {entry}"
        assert edit(ring["a"].data_dir / DATABASE, damaged, RING_SPACE, b"a")
        await ring.start("a")

        async def is_mended() -> bool:
            _, shown = await answer(session, ring["a"], "GET", "/v1/ring")
            return not shown["alarms"]

        await eventually(is_mended)
        await add(session, ring["a"], "m", 1)
        await show(session, ring, {"m": 6})
        assert TRACEBACK not in ring["a"].log.read_text()


async def test_a_start_on_a_disk_that_is_almost_full_never_ends_in_a_traceback(
    session: aiohttp.ClientSession, tmp_path: Path
) -> None:
    """However far it gets with the room that there is, what it says tells what to do."""
    data = tmp_path / "ring" / "a" / "data"
    async with LocalRing(("b",), folder=tmp_path / "ring", settings=SETTINGS) as ring:
        await ring.add("a", start=False)
        ring.change("a", "agent", "disk_free_min_bytes", 0)
        with small_disk(data, "8m"):
            await ring.start("a")
            await define(session, ring, SUM)
            await add(session, ring["a"], "m", 5)
            await show(session, ring, {"m": 5})
            await ring.stop("a")
            for room in (16 * 1024, 32 * 1024, 64 * 1024):
                (data / "ballast").unlink(missing_ok=True)
                (data / "ballast").write_bytes(bytes(disks.free_bytes(data) - room))
                try:
                    await ring.start("a")
                except RingError:
                    assert "disk" in ring["a"].end_of_log
                await ring.stop("a")
                assert TRACEBACK not in ring["a"].log.read_text()
            (data / "ballast").unlink()
            await ring.start("a")
            await add(session, ring["a"], "m", 1)
            await show(session, ring, {"m": 6})
            await ring.stop("a")
