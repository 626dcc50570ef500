"""Bans over three regions: on no page, in no rank, whatever comes later; lifted, all is back."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any

import pytest
import pytest_asyncio

from tests.integration.fault_rig import eventually
from tests.integration.regions_rig import NOON, REGIONS, Regions, at, path, three_regions

pytestmark = pytest.mark.asyncio(loop_scope="module")

DAY = "day:2026-11-30"
WINDOWS = [{"name": "all"}, {"name": "day"}]
OTHERS = {"ann": 700, "zoe": 300}
CHEAT = "bob"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def regions() -> AsyncIterator[Regions]:
    async with three_regions() as opened:
        yield opened


def both(**scores: int) -> dict[str, dict[str, int]]:
    """The same scores in all windows of WINDOWS."""
    return {"all": scores, DAY: scores}


async def with_scores(regions: Regions, board: str, rule: str = "best") -> None:
    """A board that shows OTHERS, and the cheat between them with 500."""
    await regions.define(board, rule=rule, windows=WINDOWS)
    field = "score" if rule == "best" else "add"
    for name, (member, score) in zip("ab", OTHERS.items(), strict=True):
        await regions.write(name, board, member=member, **{field: score})
    await regions.write("c", board, member=CHEAT, **{field: 500})
    await regions.holds({board: both(**OTHERS, bob=500)})


def ban_of(board: str | None) -> str:
    return path("bans", CHEAT) if board is None else path("boards", board, "bans", CHEAT)


async def ban(regions: Regions, name: str, board: str | None, **body: Any) -> None:
    assert (await regions.send(name, "PUT", ban_of(board), body))["hidden"]


async def banned(regions: Regions, board: str | None, hidden: bool) -> None:
    """Wait until every region that runs says so."""
    for name in regions.running:

        async def says(name: str = name) -> bool:
            return (await regions.send(name, "GET", ban_of(board)))["hidden"] is hidden

        await eventually(says)


async def is_nowhere(regions: Regions, board: str) -> None:
    """On no page, in no count, no rank and among no neighbours, in no window; also rebuilt."""
    await regions.holds_after_rebuild({board: both(**OTHERS)})
    for name in REGIONS:
        for window in ("all", "day"):
            where = path("boards", board, "entries", CHEAT) + f"?window={window}"
            status, problem = await regions.ask(name, "GET", where)
            assert (status, problem["code"], problem["total"]) == (404, "not_ranked", 2)
            where = path("boards", board, "entries", "zoe") + f"?window={window}&neighbors=5"
            zoe = await regions.send(name, "GET", where)
            assert (zoe["rank"], zoe["total"], zoe["top_percent"]) == (2, 2, 100.0)
            assert [line["member"] for line in zoe["neighbors"]] == ["ann"]


@pytest.mark.parametrize("rule", ["best", "sum"])
async def test_a_ban_here_while_the_player_scores_there(regions: Regions, rule: str) -> None:
    board, field = f"scores-{rule}", "score" if rule == "best" else "add"
    await with_scores(regions, board, rule)
    async with regions.parted():
        await ban(regions, "a", board, reason="speed hack")
        await regions.write("b", board, member=CHEAT, **{field: 900})
        await regions.write("c", board, member=CHEAT, **{field: 800})
        shown = 900 if rule == "best" else 1_400
        await regions.holds({board: both(**OTHERS, bob=shown)}, "b")
        await regions.holds({board: both(**OTHERS)}, "a")
    await banned(regions, board, True)
    await is_nowhere(regions, board)
    for name in REGIONS:  # it may go on playing
        await regions.write(name, board, member=CHEAT, **{field: 50})
    await is_nowhere(regions, board)
    said = await regions.send("c", "DELETE", ban_of(board) + "?reason=appeal")
    assert [(line["banned"], line["reason"]) for line in said["history"]] == [
        (False, "appeal"),
        (True, "speed hack"),
    ]
    want = 900 if rule == "best" else 500 + 900 + 800 + 3 * 50
    await regions.holds_after_rebuild({board: both(**OTHERS, bob=want)})


async def test_a_ban_on_all_boards_and_one_on_a_board_are_two(regions: Regions) -> None:
    boards = ("global-1", "global-2")
    for board in boards:
        await with_scores(regions, board)
    async with regions.parted():
        await ban(regions, "a", None, reason="bot")
        await ban(regions, "b", boards[0])
        for board in boards:
            await regions.write("c", board, member=CHEAT, score=900)
    await banned(regions, None, True)
    for board in boards:
        await banned(regions, board, True)
        await is_nowhere(regions, board)
    await regions.send("b", "DELETE", ban_of(None))
    await banned(regions, None, False)
    await regions.holds({boards[1]: both(**OTHERS, bob=900)})
    await is_nowhere(regions, boards[0])
    await regions.send("a", "DELETE", ban_of(boards[0]))
    for board in boards:
        await regions.holds_after_rebuild({board: both(**OTHERS, bob=900)})


async def test_a_ban_ends_by_itself(regions: Regions) -> None:
    await with_scores(regions, "until")
    now = (datetime.fromisoformat(regions.now) - NOON).total_seconds()
    async with regions.parted("c"):
        await ban(regions, "a", "until", until=at(seconds=now + 60))
        await regions.write("c", "until", member=CHEAT, score=900)
    await banned(regions, "until", True)
    await is_nowhere(regions, "until")
    await regions.set_clock(at(seconds=now + 59))
    await is_nowhere(regions, "until")
    await regions.set_clock(at(seconds=now + 60))
    await banned(regions, "until", False)
    await regions.holds_after_rebuild({"until": both(**OTHERS, bob=900)})


async def test_a_region_that_was_off_returns_with_an_old_higher_score(regions: Regions) -> None:
    """Nobody has seen that score before; the ban is older for all who learn of it."""
    here, elsewhere = "returns", "returns-too"
    for board in (here, elsewhere):
        await with_scores(regions, board)
    async with regions.parted("c"):
        for board in (here, elsewhere):
            await regions.write("c", board, member=CHEAT, score=999)
            await regions.holds({board: both(**OTHERS, bob=999)}, "c")
        await regions.kill("c")
        await ban(regions, "a", here)
        await banned(regions, here, True)
    await regions.holds({here: both(**OTHERS)})
    await regions.start("c")
    await banned(regions, here, True)
    await regions.holds({elsewhere: both(**OTHERS, bob=999)})
    await is_nowhere(regions, here)
    async with regions.parted("c"):  # and the same with a ban on all boards
        for board in (here, elsewhere):
            await regions.write("c", board, member=CHEAT, score=1_000)
        await regions.kill("c")
        await ban(regions, "b", None)
        await regions.send("b", "DELETE", ban_of(here))
    await regions.start("c")
    for board in (here, elsewhere):
        await is_nowhere(regions, board)
    await regions.send("c", "DELETE", ban_of(None))
    for board in (here, elsewhere):
        await regions.holds_after_rebuild({board: both(**OTHERS, bob=1_000)})
