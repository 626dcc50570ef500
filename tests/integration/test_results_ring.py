"""Results that are taken back in one region while another still sends them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tests.integration.fault_rig import eventually
from tests.integration.regions_rig import REGIONS, Regions, Shown, at, path, three_regions

pytestmark = pytest.mark.asyncio(loop_scope="module")

DAY, WEEK = "day:2026-11-30", "week:2026-W49"
WINDOWS = [{"name": "day"}, {"name": "week"}]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def regions() -> AsyncIterator[Regions]:
    async with three_regions() as opened:
        yield opened


def both(board: str, **scores: int) -> Shown:
    """The same scores in all windows of WINDOWS."""
    return {board: {DAY: scores, WEEK: scores}}


async def take_back(regions: Regions, name: str, board: str, key: str) -> dict[str, Any]:
    return await regions.send(name, "DELETE", path("boards", board, "results", "ann", key))


async def results(regions: Regions, board: str, want: dict[str, tuple[int, bool]]) -> None:
    """Wait until every region lists these results: by key (score, whether taken back)."""
    for name in REGIONS:

        async def listed(name: str = name) -> bool:
            page = await regions.send(name, "GET", path("boards", board, "results", "ann"))
            return {r["key"]: (r["score"], r["retracted"]) for r in page["results"]} == want

        await eventually(listed)


async def test_a_disqualified_best_falls_back_while_it_is_sent_again(regions: Regions) -> None:
    await regions.define("laps", rule="best", results="keep", windows=WINDOWS)
    disqualified = {"member": "ann", "score": 900, "at": at(), "key": "run-9"}
    await regions.write("a", "laps", member="ann", score=700, at=at(), key="run-7")
    await regions.write("a", "laps", member="zoe", score=800, at=at(), key="run-8")
    await regions.write("a", "laps", **disqualified)
    await regions.holds(both("laps", ann=900, zoe=800))
    async with regions.parted("b"):
        said = await take_back(regions, "a", "laps", "run-9")
        assert (said["changed"], said["score"]) == (True, {DAY: 700, WEEK: 700})
        for _ in range(2):
            again = await regions.write("b", "laps", **disqualified)
            assert (again["duplicate"], again["score"]) == (True, {DAY: 900, WEEK: 900})
        await regions.holds(both("laps", ann=900, zoe=800), "b")
        await regions.holds(both("laps", ann=700, zoe=800), "a", "c")
    await regions.holds_after_rebuild(both("laps", ann=700, zoe=800))
    for name in REGIONS:
        again = await regions.write(name, "laps", **disqualified)
        assert (again["duplicate"], again["score"]) == (True, {DAY: 700, WEEK: 700})
        assert not (await take_back(regions, name, "laps", "run-9"))["changed"]
    await results(regions, "laps", {"run-7": (700, False), "run-9": (900, True)})
    await regions.holds_after_rebuild(both("laps", ann=700, zoe=800))


@pytest.mark.parametrize("order", ["high", "low"])
async def test_a_result_that_the_other_region_never_saw_before(
    regions: Regions, order: str
) -> None:
    """B takes it as new, while A takes back the one it has: of both there is one result."""
    board, best, next_best = f"new-{order}", *((900, 700) if order == "high" else (700, 900))
    await regions.define(board, rule="best", order=order, results="keep", windows=WINDOWS)
    disqualified = {"member": "ann", "score": best, "at": at(), "key": "run-9"}
    async with regions.parted():
        for name in REGIONS:
            await regions.write(name, board, member="ann", score=next_best, at=at(), key="run-7")
        await regions.write("a", board, **disqualified)
        await take_back(regions, "a", board, "run-9")
        assert "duplicate" not in await regions.write("b", board, **disqualified)
        assert (await regions.write("b", board, **disqualified))["duplicate"]
        if order == "high":
            await regions.kill("b")
            await regions.start("b")
        await regions.holds(both(board, ann=best), "b")
        await regions.holds(both(board, ann=next_best), "a")
    await regions.holds_after_rebuild(both(board, ann=next_best))
    await results(regions, board, {"run-7": (next_best, False), "run-9": (best, True)})


async def test_a_sum_falls_by_a_result_that_is_taken_back(regions: Regions) -> None:
    await regions.define("sums", rule="sum", results="keep", windows=WINDOWS)
    entries = {"run-1": 5, "run-2": 30, "run-3": 7}
    async with regions.parted():
        for name in REGIONS:  # each key in each region: counted once
            for key, amount in entries.items():
                await regions.write(name, "sums", member="ann", add=amount, at=at(), key=key)
        await regions.holds(both("sums", ann=42))
        await take_back(regions, "a", "sums", "run-2")
        await take_back(regions, "c", "sums", "run-1")
        await regions.write("b", "sums", member="ann", add=30, at=at(), key="run-2")
        await regions.holds(both("sums", ann=12), "a")
        await regions.holds(both("sums", ann=37), "c")
    await regions.holds_after_rebuild(both("sums", ann=7))
    assert (await take_back(regions, "b", "sums", "run-3"))["score"] == {DAY: None, WEEK: None}
    await regions.holds_after_rebuild(both("sums"))
    assert await regions.refuses("b", "sums", member="ann", add=8, at=at(), key="run-3") == (
        409,
        "key_conflict",
    )
