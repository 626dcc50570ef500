"""Likes and unlikes in three regions: the count is how many actors are present, always."""

from __future__ import annotations

import asyncio
import random
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import pytest_asyncio

from tests.integration.fault_rig import POLL_S, eventually
from tests.integration.regions_rig import REGIONS, Regions, path, three_regions

pytestmark = pytest.mark.asyncio(loop_scope="module")

DAY = "day:2026-11-30"
WINDOWS = [{"name": "all"}, {"name": "day"}]
TAPS, PLAYERS, CLIPS = 2_000, 50, ("clip-1", "clip-2", "clip-3")
SEED = 4


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def regions() -> AsyncIterator[Regions]:
    async with three_regions() as opened:
        yield opened


async def tap(regions: Regions, name: str, board: str, clip: str, who: str, on: bool) -> int:
    """A like or an unlike; the count afterwards, as that region knows it."""
    method = "PUT" if on else "DELETE"
    said = await regions.send(name, method, path("boards", board, "actors", clip, who))
    assert said["present"] is on
    assert said["score"]["all"] == said["score"][DAY]
    count: int = said["score"]["all"]
    return count


async def actors(regions: Regions, name: str, board: str, clip: str) -> list[str]:
    """Who likes a clip, as one region knows it."""
    shown = await regions.send(name, "GET", path("boards", board, "actors", clip))
    found: list[str] = shown["actors"]
    return found


async def likes(regions: Regions, board: str, clips: dict[str, set[str]]) -> None:
    """Wait until every region shows exactly these actors, and as many: also once rebuilt."""
    for name in REGIONS:
        for clip, want in clips.items():

            async def shows(name: str = name, clip: str = clip, want: set[str] = want) -> bool:
                return await actors(regions, name, board, clip) == sorted(want)

            await eventually(shows)
    counts = {clip: len(want) for clip, want in clips.items()}
    await regions.holds_after_rebuild({board: {"all": counts, DAY: counts}})


@asynccontextmanager
async def never_negative(regions: Regions, board: str) -> AsyncIterator[Counter[str]]:
    """Read every region's page again and again: no count is below 0 or above all players."""
    reads: Counter[str] = Counter()
    ends = asyncio.Event()

    async def read(name: str) -> None:
        while not ends.is_set():
            for line in (await regions.page_of(name, board))["entries"]:
                assert 0 <= line["score"] <= PLAYERS, (name, line)
            reads[name] += 1
            await asyncio.sleep(POLL_S)

    async with asyncio.TaskGroup() as group:
        for name in REGIONS:
            group.create_task(read(name))
        try:
            yield reads
        finally:
            ends.set()


async def test_2000_taps_of_50_players_with_double_taps_and_a_partition(regions: Regions) -> None:
    await regions.define("taps", rule="distinct", windows=WINDOWS)
    seeded = random.Random(SEED)
    players = [f"p{number}" for number in range(PLAYERS)]
    # The last word of each region that had one while the links were cut.
    words: dict[tuple[str, str], dict[str, bool]] = defaultdict(dict)

    async def play(name: str, taps: int, *, noted: bool) -> None:
        choices = random.Random(f"{SEED} {name} {taps}")
        for _ in range(taps):
            clip, who, on = choices.choice(CLIPS), choices.choice(players), choices.random() < 0.55
            for _ in range(2 if choices.random() < 0.2 else 1):
                assert 0 <= await tap(regions, name, "taps", clip, who, on) <= PLAYERS
            if noted:
                words[clip, who][name] = on

    async with never_negative(regions, "taps") as reads:
        await asyncio.gather(*(play(name, TAPS // 10, noted=False) for name in REGIONS))
        async with regions.parted():
            rest = TAPS - 3 * (TAPS // 10)
            await asyncio.gather(*(play(name, rest // 3 + 1, noted=True) for name in REGIONS))
    assert set(reads) == set(REGIONS)

    present: dict[str, set[str]] = {}
    for clip in CLIPS:

        async def agreed(clip: str = clip) -> bool:
            found = [await actors(regions, name, "taps", clip) for name in REGIONS]
            return found[0] == found[1] == found[2]

        await eventually(agreed)
        present[clip] = set(await actors(regions, seeded.choice(REGIONS), "taps", clip))
        assert 0 < len(present[clip]) <= PLAYERS
    told = [place for place, said in words.items() if len(set(said.values())) == 1]
    assert len(told) > len(CLIPS) * PLAYERS // 4
    for clip, who in told:
        assert (who in present[clip]) is next(iter(words[clip, who].values())), (clip, who)
    await likes(regions, "taps", present)


@pytest.mark.parametrize("before", [False, True], ids=["new", "present"])
@pytest.mark.parametrize("unlikes_first", [True, False])
async def test_after_unlike_here_and_like_there_exactly_one_like_is_left(
    regions: Regions, before: bool, unlikes_first: bool
) -> None:
    board = f"one-{int(before)}{int(unlikes_first)}"
    await regions.define(board, rule="distinct", windows=WINDOWS)
    if before:
        await tap(regions, "c", board, "clip-1", "ann", True)
        await regions.holds({board: {"all": {"clip-1": 1}, DAY: {"clip-1": 1}}})
    async with regions.parted():
        for on in (False, True) if unlikes_first else (True, False):
            for _ in range(2):
                assert await tap(regions, "b" if on else "a", board, "clip-1", "ann", on) == on
    await likes(regions, board, {"clip-1": {"ann"}})
    for name in REGIONS:  # all of them know it now: there is nothing left after an unlike
        await tap(regions, name, board, "clip-1", "ann", True)
    await likes(regions, board, {"clip-1": {"ann"}})
    assert await tap(regions, "b", board, "clip-1", "ann", False) == 0
    await likes(regions, board, {"clip-1": set()})
