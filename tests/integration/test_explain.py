"""Explain: what it lists adds up, by region, to what is shown; over three real regions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote

import pytest
import pytest_asyncio
from click.testing import CliRunner

from cluster.cli import main
from tests.integration.fault_rig import eventually
from tests.integration.regions_rig import REGIONS, Regions, at, path, three_regions

pytestmark = pytest.mark.asyncio(loop_scope="module")
DAY = "day:2026-11-30"
WINDOWS = [{"name": "all"}, {"name": "day"}]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def regions() -> AsyncIterator[Regions]:
    async with three_regions() as opened:
        yield opened


async def explained(
    regions: Regions, name: str, board: str, member: str, window: str = "all"
) -> dict[str, Any]:
    """What a region says, once Redis and file are of one moment."""
    where = f"{path('explain', board, member)}?window={quote(window)}"
    found: dict[str, Any] = {}

    async def settled() -> bool:
        found.clear()
        found.update(await regions.send(name, "GET", where))
        return bool(found["redis"]["agrees"])

    await eventually(settled)
    return found


async def everywhere(regions: Regions, board: str, member: str) -> list[dict[str, Any]]:
    return [await explained(regions, name, board, member) for name in REGIONS]


async def test_a_key_that_was_counted_in_two_regions(regions: Regions) -> None:
    await regions.define("keyed", rule="sum", windows=WINDOWS)
    async with regions.parted():
        await regions.write("a", "keyed", member="m", add=5, key="k", at=at())
        await regions.write("b", "keyed", member="m", add=5, key="k", at=at())
        await regions.write("c", "keyed", member="m", add=-2)
    await regions.holds({"keyed": {"all": {"m": 3}, DAY: {"m": 3}}})
    for said in await everywhere(regions, "keyed", "m"):
        assert (said["score"], said["ranked"], said["why"]) == (3, True, None)
        assert said["sums"] == {"added": 10, "taken away": -2, "counted twice": -5}
        by = {(part["kind"], part["region"]): part["amount"] for part in said["parts"]}
        assert by[("added", "a")] == by[("added", "b")] == 5
        assert by[("taken away", "c")] == -2
        keys = {key["region"]: key["taken_out"] for key in said["keys"]}
        assert sorted(keys.values()) == [False, True]
        assert {key["key"] for key in said["keys"]} == {"k"}
        assert said["windows"] == [{"window": DAY, "score": 3}]
    assert len({str(said["keys"]) for said in await everywhere(regions, "keyed", "m")}) == 1


async def test_a_best_score_with_its_tie(regions: Regions) -> None:
    await regions.define("best", rule="best", ties="first", order="low", windows=WINDOWS)
    await regions.write("a", "best", member="m", score=40, at=at(seconds=-90))
    await regions.write("b", "best", member="m", score=30, at=at(seconds=-30))

    async def best() -> bool:
        answers = [await explained(regions, name, "best", "m") for name in REGIONS]
        return all(said["score"] == 30 for said in answers)

    await eventually(best)
    for said in await everywhere(regions, "best", "m"):
        assert said["sums"] == {"best": 30}
        assert [part["region"] for part in said["parts"]] == ["b"]
        assert said["reached_at"] == at(seconds=-30)
        tie = said["tie"]
        ticks = tie["composite"] - 30 * 2 ** tie["b"]
        assert tie["tick"] == ticks  # low boards with ties `first` store the tick itself
        assert said["redis"]["composite"] == tie["composite"]


async def test_whoever_is_not_ranked_is_told_why(regions: Regions) -> None:
    await regions.define("why", rule="sum", windows=WINDOWS)
    await regions.write("a", "why", member="cheat", add=9)
    await regions.holds({"why": {"all": {"cheat": 9}}})
    await regions.send("b", "PUT", path("boards", "why", "bans", "cheat"), {"reason": "a bot"})
    await regions.holds({"why": {"all": {}}})
    for said in await everywhere(regions, "why", "cheat"):
        assert (said["ranked"], said["why"], said["score"]) == (False, "it is banned", 9)
        assert said["bans"][0]["reason"] == "a bot"
    said = await explained(regions, "a", "why", "nobody")
    assert (said["ranked"], said["score"], said["parts"]) == (False, None, [])
    assert said["why"] == "it has no entry in this window"


async def test_likes_results_and_uniques(regions: Regions) -> None:
    await regions.define("likes", rule="distinct", windows=WINDOWS)
    await regions.define("seen", rule="unique", windows=WINDOWS)
    await regions.define(
        "kept", rule="sum", results="keep", windows=[{"name": "day", "grace": "1h"}]
    )
    for name, actor in zip(REGIONS, ("x", "y", "x"), strict=True):
        await regions.write(name, "likes", member="m", actor=actor)
        await regions.write(name, "seen", member="m", actor=actor)
    for key, add in (("r1", 4), ("r2", 6)):
        await regions.write("a", "kept", member="m", add=add, key=key, at=at())
    await regions.send("a", "DELETE", path("boards", "kept", "results", "m", "r2"))
    await regions.holds({"likes": {"all": {"m": 2}}, "kept": {DAY: {"m": 4}}})
    for name in REGIONS:
        liked = await explained(regions, name, "likes", "m")
        assert liked["sums"] == {"actor": 2}
        assert {part["region"] for part in liked["parts"]} <= {*REGIONS}
        assert sorted(part["name"] for part in liked["parts"]) == ["x", "y"]
        kept = await explained(regions, name, "kept", "m", DAY)
        assert (kept["score"], kept["sums"]) == (4, {"result": 4})
        its = [(part["kind"], part["region"], part["amount"]) for part in kept["parts"]]
        assert sorted(its, key=str) == [
            ("result", "a", 4),
            ("result, taken back", "a", None),
            ("taking back", "a", None),
        ]
        seen = await explained(regions, name, "seen", "m")
        assert all(part["kind"] == "registers" for part in seen["parts"])


async def test_redis_that_lost_everything_says_so(regions: Regions) -> None:
    await regions.define("lost", rule="sum", windows=WINDOWS)
    await regions.write("a", "lost", member="m", add=1)
    await regions.holds({"lost": {"all": {"m": 1}}})
    await regions.flush()
    assert (await explained(regions, "a", "lost", "m"))["redis"]["rank"] == 1


async def test_bad_names_and_windows_are_refused(regions: Regions) -> None:
    await regions.define("refused", rule="sum", windows=WINDOWS)
    for where, status in (
        (path("explain", "refused", "m") + "?window=hour", 404),
        (path("explain", "nowhere", "m"), 404),
        (path("explain", "refused", "x" * 257), 400),
    ):
        assert (await regions.ask("a", "GET", where))[0] == status


async def test_the_command_shows_it_as_tables(regions: Regions) -> None:
    await regions.define("shown", rule="sum", windows=WINDOWS)
    await regions.write("a", "shown", member="m/ö", add=7)
    await regions.write("b", "shown", member="m/ö", add=-3)
    await regions.holds({"shown": {"all": {"m/ö": 4}}})
    await explained(regions, "c", "shown", "m/ö")

    def run(*more: str) -> str:
        url = regions.ring["c"].url
        done = CliRunner().invoke(main, ["explain", "shown", "m/ö", "--url", url, *more])
        assert done.exit_code == 0, done.output
        return done.output

    text = await asyncio.to_thread(run)
    for word in ("score 4, rank 1 of 1", "added", "taken away", "agrees", DAY):
        assert word in text, text
    assert '"score": 4' in await asyncio.to_thread(run, "--json")
