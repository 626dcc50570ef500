"""Boards over three regions: resets and definitions that do not know of each other.

Whatever the order: every acknowledged entry counts in the generation and under the definition that
its region knew, everywhere the same; what lost is listed, and nothing of it is gone.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tests.integration.fault_rig import eventually
from tests.integration.regions_rig import REGIONS, Regions, path, three_regions

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def regions() -> AsyncIterator[Regions]:
    async with three_regions() as opened:
        yield opened


async def reset(regions: Regions, name: str, board: str) -> dict[str, Any]:
    return await regions.send(name, "POST", path("boards", board, "reset"))


async def generation(regions: Regions, board: str, number: int) -> None:
    """Wait until every region has the board in one generation."""
    for name in REGIONS:

        async def there(name: str = name) -> bool:
            shown = await regions.send(name, "GET", path("boards", board))
            return bool(shown["generation"] == number)

        await eventually(there)


async def with_ten(regions: Regions, board: str) -> None:
    """x = 10, in all three regions."""
    await regions.define(board, rule="sum")
    await regions.write("a", board, member="x", add=10)
    await regions.holds({board: {"all": {"x": 10}}})


async def test_what_is_added_before_the_reset_is_known_stays_in_the_old_generation(
    regions: Regions,
) -> None:
    await with_ten(regions, "old")
    async with regions.parted():
        await reset(regions, "a", "old")
        said = await regions.write("b", "old", member="x", add=6)
        assert said["score"] == {"all": 16}  # b has not heard of it
        await regions.holds({"old": {"all": {"x": 16}}}, "b")
    await generation(regions, "old", 1)
    await regions.holds_after_rebuild({"old": {"all": {}}})
    await regions.write("c", "old", member="x", add=1)
    await regions.holds({"old": {"all": {"x": 1}}})


async def test_what_is_added_after_it_is_known_counts_in_the_new_one(regions: Regions) -> None:
    await with_ten(regions, "new")
    await reset(regions, "a", "new")
    await generation(regions, "new", 1)
    async with regions.parted():
        said = await regions.write("b", "new", member="x", add=6)
        assert said["score"] == {"all": 6}
    await regions.holds_after_rebuild({"new": {"all": {"x": 6}}})


async def test_two_resets_at_once_are_one(regions: Regions) -> None:
    await with_ten(regions, "twice")
    async with regions.parted():
        assert (await reset(regions, "a", "twice"))["generation"] == 1
        assert (await reset(regions, "b", "twice"))["generation"] == 1
        await regions.write("a", "twice", member="x", add=1)
        await regions.write("b", "twice", member="x", add=2)
        await regions.write("c", "twice", member="x", add=5)  # in the old one
    await generation(regions, "twice", 1)
    await regions.holds_after_rebuild({"twice": {"all": {"x": 3}}})


async def test_two_definitions_at_once_lose_no_entry_and_the_loser_is_shown(
    regions: Regions,
) -> None:
    async with regions.parted():
        await regions.send("a", "PUT", path("boards", "clash"), {"rule": "sum", "ties": "member"})
        await regions.send(
            "b", "PUT", path("boards", "clash"), {"rule": "best", "order": "low", "ties": "member"}
        )
        await regions.write("a", "clash", member="p", add=4)
        await regions.write("a", "clash", member="q", add=-1)
        await regions.write("b", "clash", member="p", score=7)
    shown: dict[str, Any] = {}

    async def same() -> bool:
        answers = [await regions.ask(name, "GET", path("boards", "clash")) for name in REGIONS]
        if any(status != 200 for status, _ in answers):
            return False
        shown.clear()
        shown.update(answers[0][1])
        writers = {document["written_by"] for _, document in answers}
        return len(writers) == 1 and all(document["overruled"] for _, document in answers)

    await eventually(same)
    winner, loser = shown["written_by"], shown["overruled"][0]["agent"]
    assert {winner, loser} == {"a", "b"}
    scores = {"a": {"p": 4, "q": -1}, "b": {"p": 7}}
    regions.orders["clash"] = "low" if winner == "b" else "high"
    await regions.holds_after_rebuild({"clash": {"all": scores[winner]}})
    await regions.kill("c")
    await regions.start("c")
    for name in REGIONS:
        where = path("boards", "clash", "overruled", loser, "entries")

        async def kept(name: str = name, where: str = where) -> bool:
            status, document = await regions.ask(name, "GET", where)
            found = {line["member"]: line["score"] for line in document.get("entries", [])}
            return status == 200 and found == scores[loser]

        await eventually(kept)
        first = await regions.send(name, "GET", f"{where}?limit=1")
        if first["next"] is not None:
            rest = await regions.send(name, "GET", f"{where}?limit=5&after={first['next']}")
            assert len(rest["entries"]) == len(scores[loser]) - 1
        status, refused = await regions.ask(
            name, "GET", path("boards", "clash", "overruled", winner, "entries")
        )
        assert (status, refused["code"]) == (404, "unknown_agent")
        assert await regions.metric(name, "tallyring_boards_overruled") == 1


async def test_what_the_loser_counted_after_a_reset_is_shown_in_every_region(
    regions: Regions,
) -> None:
    board = "astray"
    async with regions.parted():
        await regions.send("b", "PUT", path("boards", board), {"rule": "sum", "ties": "member"})
        await regions.write("b", board, member="p", add=1)
        await reset(regions, "b", board)
        await regions.write("b", board, member="p", add=3)
        await regions.write("b", board, member="q", add=4)
        for ties in ("first", "member"):  # a second version wins, whatever the clocks
            await regions.send("a", "PUT", path("boards", board), {"rule": "best", "ties": ties})
        await regions.write("a", board, member="p", score=7)
        await reset(regions, "a", board)
        await regions.write("a", board, member="p", score=9)
    await regions.holds_after_rebuild({board: {"all": {"p": 9}}})
    await regions.kill("c")
    await regions.start("c")
    for name in REGIONS:
        where = path("boards", board, "overruled", "b", "entries")

        async def kept(name: str = name, where: str = where) -> bool:
            found = []
            for query in ("", "?generation=0"):
                status, page = await regions.ask(name, "GET", where + query)
                entries = page.get("entries", [])
                found.append((status, {line["member"]: line["score"] for line in entries}))
            return found == [(200, {"p": 3, "q": 4}), (200, {"p": 1})]

        await eventually(kept)
        (lost,) = (await regions.send(name, "GET", path("boards", board)))["overruled"]
        assert (lost["agent"], lost["generation"], lost["members"]) == ("b", 0, 2)


async def test_a_change_in_two_regions_at_once_resolves_alike_and_loses_nothing(
    regions: Regions,
) -> None:
    await with_ten(regions, "change")
    wide, narrow = {"min": 0, "max": 1_000}, {"min": -5, "max": 500}
    body = {"rule": "sum", "ties": "member"}
    async with regions.parted():
        await regions.send("a", "PUT", path("boards", "change"), {**body, "score": wide})
        await regions.send("b", "PUT", path("boards", "change"), {**body, "score": narrow})
        await regions.write("a", "change", member="x", add=900)
        await regions.write("b", "change", member="y", add=-5)
    ranges: list[Any] = []

    async def same() -> bool:
        ranges.clear()
        for name in REGIONS:
            shown = await regions.send(name, "GET", path("boards", "change"))
            ranges.append((shown["version"], shown["score"], bool(shown["overruled"])))
        return ranges[0] == ranges[1] == ranges[2] and bool(ranges[0][2])

    await eventually(same)
    # Range and ties are no part of what numbers mean: entries of both are the board's.
    await regions.holds_after_rebuild({"change": {"all": {"x": 910, "y": -5}}})


async def test_a_preview_changes_nothing_and_says_what_would(regions: Regions) -> None:
    await with_ten(regions, "preview")
    await regions.holds({"preview": {"all": {"x": 10}}})
    before = await regions.metric("a", "tallyring_lsn")
    wider = {"rule": "sum", "ties": "shared"}
    where = path("boards", "preview")
    said = await regions.send("a", "PUT", f"{where}?preview=true", wider)
    assert (said["version"], said["changed"], said["preview"]) == (2, True, True)
    assert said["changes"] == [{"field": "ties", "before": "member", "after": "shared"}]
    said = await regions.send("a", "POST", f"{where}/reset?preview=true")
    assert (said["generation"], said["preview"]) == (1, True)
    assert await regions.metric("a", "tallyring_lsn") == before
    shown = await regions.send("a", "GET", where)
    assert (shown["generation"], shown["version"]) == (0, 1)


@pytest.mark.parametrize("order", ["high", "low"])
@pytest.mark.parametrize("rule", ["sum", "best", "latest"])
async def test_zero_negative_and_limit_scores_rank_and_beyond_is_refused(
    regions: Regions, rule: str, order: str
) -> None:
    board, field = f"edge-{rule}-{order}", "add" if rule == "sum" else "score"
    await regions.define(board, rule=rule, order=order, score={"min": -50, "max": 50})
    scores = {"zero": 0, "less": -7, "least": -50, "most": 50}
    for number, (member, score) in enumerate(scores.items()):
        await regions.write(REGIONS[number % 3], board, member=member, **{field: score})
    for value in (51, -51):
        refused = await regions.ask(
            "a",
            "POST",
            path("boards", board, "entries"),
            {"entries": [{"member": "ok", field: 1}, {"member": "over", field: value}]},
        )
        assert (refused[0], refused[1]["code"]) == (422, "out_of_range")
        assert refused[1]["errors"][0]["index"] == 1
        assert "50" in refused[1]["detail"]
    await regions.holds_after_rebuild({board: {"all": scores}})


async def test_a_total_that_regions_carry_beyond_together_is_exact_and_clamped_in_redis(
    regions: Regions,
) -> None:
    await regions.define("over", rule="sum", ties="first", score={"min": 0, "max": 2**28 - 1})
    async with regions.parted():
        for name in REGIONS:
            await regions.write(name, "over", member="m", add=2**27)
    total = 3 * 2**27

    async def exact() -> bool:
        pages = [await regions.page_of(name, "over") for name in REGIONS]
        return all(p["entries"] and p["entries"][0]["score"] == total for p in pages)

    await eventually(exact)
    clamped = [await regions.metric(name, "tallyring_projection_clamped_total") for name in REGIONS]
    assert all(clamped)


async def test_a_range_that_leaves_no_tick_is_refused_with_the_ways_out(regions: Regions) -> None:
    status, said = await regions.ask(
        "a",
        "PUT",
        path("boards", "tight"),
        {"rule": "best", "ties": "first", "score": {"min": 0, "max": 2**50}},
    )
    assert (status, said["code"]) == (422, "tie_budget")
    for word in ("shared", "member", "narrow"):
        assert word in said["hint"]
