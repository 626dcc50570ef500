"""A key counts once in each window, in whichever regions it is sent: real processes and faults."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any

import pytest
import pytest_asyncio

from tests.integration.fault_rig import eventually
from tests.integration.regions_rig import NOON, REGIONS, Regions, at, path, three_regions

pytestmark = pytest.mark.asyncio(loop_scope="module")

HOUR, DAY = "hour:2026-11-30T12", "day:2026-11-30"
WINDOWS = [{"name": "all"}, {"name": "day"}, {"name": "hour"}]
CONFLICT = (409, "key_conflict")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def regions() -> AsyncIterator[Regions]:
    async with three_regions() as opened:
        yield opened


def everywhere(**scores: int) -> dict[str, dict[str, int]]:
    """The same scores in all windows of WINDOWS."""
    return {"all": scores, DAY: scores, HOUR: scores}


async def retries(regions: Regions, board: str, counted_at: str, score: int, **entry: Any) -> None:
    """Every region answers a retry alike, and refuses another amount under the same key.

    Until it has heard of the first one, a region that counted the key itself says when it did.
    """
    for name in regions.running:
        said = await regions.write(name, board, **entry)
        async with asyncio.timeout(60):
            while said["counted_at"] != counted_at:
                assert said["duplicate"], name
                said = await regions.write(name, board, **entry)
        assert said["duplicate"], name
        assert set(said["score"].values()) == {score}, name
        other = {**entry, "add": entry["add"] + 1}
        assert await regions.refuses(name, board, **other) == CONFLICT, name


async def test_a_key_that_is_sent_to_all_while_links_are_cut_and_its_agent_is_killed(
    regions: Regions,
) -> None:
    await regions.define("kills", rule="sum", windows=WINDOWS)
    entry = {"member": "ann", "add": 5, "at": at(), "key": "match-1"}
    async with regions.parted():
        await regions.set_clock(at(seconds=10))
        said = await regions.write("a", "kills", **entry)
        assert "duplicate" not in said
        assert said["score"] == {"all": 5, DAY: 5, HOUR: 5}
        await regions.set_clock(at(seconds=20))
        again = await regions.write("a", "kills", **entry)
        assert (again["duplicate"], again["counted_at"]) == (True, at(seconds=10))
        await regions.kill("a")
        await regions.start("a")
        again = await regions.write("a", "kills", **entry)
        assert (again["duplicate"], again["counted_at"]) == (True, at(seconds=10))
        for name in ("b", "c"):
            assert "duplicate" not in await regions.write(name, "kills", **entry)
            again = await regions.write(name, "kills", **entry)
            assert (again["duplicate"], again["counted_at"]) == (True, at(seconds=20))
        await regions.holds({"kills": everywhere(ann=5)})
    await regions.holds_after_rebuild({"kills": everywhere(ann=5)})
    await retries(regions, "kills", at(seconds=10), 5, **entry)
    await regions.write("b", "kills", member="ann", add=1, at=at())
    await regions.holds({"kills": everywhere(ann=6)})


async def test_a_key_whose_agent_lost_its_disk_after_another_one_had_read_it(
    regions: Regions,
) -> None:
    await regions.define("disk", rule="sum", windows=WINDOWS)
    entry = {"member": "ann", "add": 5, "at": at(), "key": "match-1"}
    counted_at = regions.now
    async with regions.parted("c"):
        await regions.write("a", "disk", **entry)
        await regions.write("a", "disk", member="bob", add=-2, at=at(), key="match-1")
        await regions.holds({"disk": everywhere(ann=5, bob=-2)}, "a", "b")
        await regions.kill("a")
        regions.lose_disk("a")
        assert "duplicate" not in await regions.write("c", "disk", **entry)
        assert (await regions.write("b", "disk", **entry))["duplicate"]
        await regions.start("a")
        await regions.holds({"disk": everywhere(ann=5, bob=-2)}, "a", "b")
        again = await regions.write("a", "disk", **entry)
        assert (again["duplicate"], again["counted_at"]) == (True, counted_at)
    await regions.holds_after_rebuild({"disk": everywhere(ann=5, bob=-2)})
    await retries(regions, "disk", counted_at, 5, **entry)


async def test_a_disk_that_is_lost_with_a_key_that_nobody_had_read(regions: Regions) -> None:
    """The client retries elsewhere, as it was told of no region that has it."""
    await regions.define("lost", rule="sum", windows=WINDOWS)
    entry = {"member": "ann", "add": 5, "at": at(), "key": "match-1"}
    async with regions.parted("a"):
        await regions.write("a", "lost", **entry)
        await regions.kill("a")
        regions.lose_disk("a")
        assert "duplicate" not in await regions.write("b", "lost", **entry)
    await regions.start("a")
    await regions.holds_after_rebuild({"lost": everywhere(ann=5)})
    await retries(regions, "lost", regions.now, 5, **entry)


@pytest.mark.parametrize("first", REGIONS)
async def test_of_conflicting_contents_the_one_accepted_first_stands_everywhere(
    regions: Regions, first: str
) -> None:
    """First by the regions' clocks, in whatever order they were sent."""
    board = f"conflict-{first}"
    await regions.define(board, rule="sum", windows=WINDOWS)
    amounts = {"a": 5, "b": -7, "c": 11}
    entry = {"member": "ann", "at": at(), "key": "match-1"}
    start = datetime.fromisoformat(regions.now) - NOON
    accepted, later = (at(seconds=start.total_seconds() + ahead) for ahead in (1, 2))
    async with regions.parted():
        for name in REGIONS:
            await regions.set_clock(accepted if name == first else later, name)
        for name, amount in amounts.items():
            said = await regions.write(name, board, **entry, add=amount)
            assert "duplicate" not in said
        for name, amount in amounts.items():
            await regions.holds({board: everywhere(ann=amount)}, name)
    await regions.set_clock(later)
    stands = amounts.pop(first)
    await regions.holds_after_rebuild({board: everywhere(ann=stands)})
    await retries(regions, board, accepted, stands, **entry, add=stands)
    for name in REGIONS:
        for amount in amounts.values():
            assert await regions.refuses(name, board, **entry, add=amount) == CONFLICT


async def test_conflicting_contents_of_one_moment_are_one_everywhere(regions: Regions) -> None:
    await regions.define("tied", rule="sum", windows=WINDOWS)
    entry = {"member": "ann", "at": at(), "key": "match-1"}
    async with regions.parted():
        for amount, name in enumerate(REGIONS, 1):
            await regions.write(name, "tied", **entry, add=amount)
    shown: list[int] = []

    async def agreed() -> bool:
        pages = [await regions.page_of(name, "tied") for name in REGIONS]
        shown[:] = [line["score"] for page in pages for line in page["entries"]]
        return len(shown) == len(REGIONS) and len(set(shown)) == 1

    await eventually(agreed)
    stands = shown[0]
    assert stands in (1, 2, 3)
    await regions.holds_after_rebuild({"tied": everywhere(ann=stands)})
    await retries(regions, "tied", regions.now, stands, **entry, add=stands)


def uuid7(ms: int) -> str:
    """A UUIDv7 of a time: RFC 9562, with digits that are not random."""
    head = f"{ms:012x}"
    return f"{head[:8]}-{head[8:]}-7abc-8def-0123456789ab"


async def test_a_key_that_holds_its_time_needs_no_at(regions: Regions) -> None:
    await regions.define("uuids", rule="sum", windows=WINDOWS)
    now_ms = int(NOON.timestamp() * 1000)
    entry = {"member": "ann", "add": 5, "key": uuid7(now_ms)}
    async with regions.parted():
        for name in REGIONS:
            assert "duplicate" not in await regions.write(name, "uuids", **entry)
    await regions.holds_after_rebuild({"uuids": everywhere(ann=5)})
    await retries(regions, "uuids", regions.now, 5, **entry)
    assert await regions.refuses("a", "uuids", member="ann", add=5, key="no-time") == (
        400,
        "malformed",
    )


async def test_two_identical_increments_without_a_key_are_two_and_a_batch_again_is_nothing(
    regions: Regions,
) -> None:
    await regions.define("plain", rule="sum", windows=WINDOWS)
    once = {"member": "ann", "add": 1, "at": at()}
    where = path("boards", "plain", "entries")
    await asyncio.gather(*(regions.write(name, "plain", **once) for name in (*REGIONS, "a")))
    await regions.holds({"plain": everywhere(ann=4)})

    entries = [{"member": f"m{i % 7}", "add": i, "at": at(), "key": f"k{i}"} for i in range(1, 101)]
    want = {"ann": 4, **{f"m{m}": sum(range(m or 7, 101, 7)) for m in range(7)}}
    async with regions.parted("c"):
        for name in ("a", "c"):
            said = await regions.send(name, "POST", where, {"entries": entries})
            assert not [line for line in said["entries"] if line.get("duplicate")]
        again = await regions.send("a", "POST", where, {"entries": entries})
        assert all(line["duplicate"] for line in again["entries"])
    await regions.holds_after_rebuild({"plain": everywhere(**want)})
    for name in REGIONS:
        again = await regions.send(name, "POST", where, {"entries": entries})
        assert all(line["duplicate"] for line in again["entries"])
    await regions.holds({"plain": everywhere(**want)})


async def test_a_key_at_regions_that_disagree_whether_its_hour_is_over(regions: Regions) -> None:
    """The hour is closed where the clock is ahead, and the entry is late there."""
    windows = [{"name": "all"}, {"name": "hour", "grace": "1m"}]
    await regions.define("late", rule="sum", windows=windows)
    entry = {"member": "ann", "add": 5, "at": at(minutes=59), "key": "match-1"}
    async with regions.parted():
        await regions.set_clock(at(minutes=60, seconds=30))
        await regions.set_clock(at(minutes=62), "a")
        said = await regions.write("a", "late", **entry)
        assert (said["score"], said["late"]) == ({"all": 5}, [HOUR])
        said = await regions.write("b", "late", **entry)
        assert said["score"] == {"all": 5, HOUR: 5}
        assert "late" not in said
        said = await regions.write("c", "late", **entry)
        assert said["score"] == {"all": 5, HOUR: 5}
    await regions.set_clock(at(minutes=62))
    want = {"late": {"all": {"ann": 5}, HOUR: {"ann": 5}}}
    await regions.holds_after_rebuild(want)
    for name in REGIONS:
        again = await regions.write(name, "late", **entry)
        assert again["duplicate"]
        assert again["score"] == {"all": 5, HOUR: 5}
        assert again["counted_at"] == at(minutes=60, seconds=30)


@pytest.mark.parametrize("first", ["a", "b"])
async def test_a_key_at_regions_that_know_different_windows_of_a_board(
    regions: Regions, first: str
) -> None:
    """The definition with a day has reached B and C, and not A, when the entries come."""
    board, other = f"windows-{first}", "b" if first == "a" else "a"
    days = {"a": 1, "b": 2}[first]
    day = f"day:2026-12-0{days}"
    await regions.define(board, rule="sum")
    entry = {"member": "ann", "add": 5, "at": at(days=days, minutes=1), "key": "match-1"}
    async with regions.parted("a"):
        await regions.set_clock(at(days=days - 1, hours=5))
        made = await regions.send(
            "b",
            "PUT",
            path("boards", board),
            {"rule": "sum", "ties": "member", "windows": [{"name": "all"}, {"name": "day"}]},
        )
        await regions.knows("c", board, made["version"])
        await regions.set_clock(at(days=days, minutes=2), first)
        await regions.set_clock(at(days=days, minutes=3), other)
        for name in ("a", "b"):
            said = await regions.write(name, board, **entry)
            assert "duplicate" not in said
            assert said["score"] == ({"all": 5} if name == "a" else {"all": 5, day: 5})
    await regions.set_clock(at(days=days, minutes=3))
    await regions.knows("a", board, made["version"])
    await regions.holds_after_rebuild({board: {"all": {"ann": 5}, day: {"ann": 5}}})
    await retries(regions, board, at(days=days, minutes=2), 5, **entry)


async def test_a_key_that_is_too_old_is_refused_and_counts_no_more(regions: Regions) -> None:
    await regions.define("short", rule="sum", key_retention="1m")
    now = datetime.fromisoformat(regions.now) - NOON
    entry = {"member": "ann", "add": 5, "at": at(seconds=now.total_seconds()), "key": "match-1"}
    async with regions.parted():
        await regions.write("a", "short", **entry)
        await regions.write("b", "short", **entry)
        await regions.set_clock(at(seconds=now.total_seconds() + 61))
        for name in REGIONS:
            assert await regions.refuses(name, "short", **entry) == (410, "key_expired")
    await regions.holds_after_rebuild({"short": {"all": {"ann": 5}}})
    for name in REGIONS:
        assert await regions.refuses(name, "short", **entry) == (410, "key_expired")
