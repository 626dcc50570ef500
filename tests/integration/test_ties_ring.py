"""Ties over three regions: who is ahead is the same everywhere, whichever way the news came."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
import pytest_asyncio

from tests.integration.fault_rig import eventually
from tests.integration.regions_rig import NOON, REGIONS, Regions, path, three_regions
from tests.integration.ties_rig import Board, entry_of, everywhere, in_api, shown, shows, write_all
from tests.property.tie_oracle import ALL_START_MS, Rules, Said

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]

NOON_MS = int(NOON.timestamp() * 1000)
DAY, DAY_MS = "day:2026-11-30", 86_400_000
MINUTE_MS = 60_000
TIES = ("first", "last", "shared", "member")
ORDERS = ("high", "low")
CHEAT = "cheat"
MEMBERS = ("C", "a", "b", "é", "aa", CHEAT)
# Within one tick of any board, in one of another, and minutes apart.
STEPS_MS = (0, 0, 200, 1_500, 61_000, 5 * MINUTE_MS, 7 * MINUTE_MS)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def regions() -> AsyncIterator[Regions]:
    async with three_regions() as opened:
        await opened.set_clock((NOON + timedelta(minutes=30)).isoformat())
        await opened.send("a", "PUT", path("bans", CHEAT), {"reason": "test"})
        yield opened


def minute(number: float) -> int:
    return NOON_MS + int(number * MINUTE_MS)


def all_rules() -> list[tuple[str, Rules]]:
    """Every rule with every order and each of the ties that fit it."""
    found = []
    for order in ORDERS:
        for ties in TIES:
            of_day: dict[str, Any] = {"start_ms": NOON_MS - DAY_MS // 2, "span_ms": DAY_MS}
            found += [
                ("sum", Rules("sum", order, ties)),
                ("grow", Rules("sum", order, ties, grow_only=True)),
                ("best", Rules("best", order, ties)),
                ("latest", Rules("latest", order, ties)),
                ("kept-sum", Rules("sum", order, ties, kept=True, **of_day)),
                ("kept-best", Rules("best", order, ties, kept=True, **of_day)),
            ]
            if ties in ("shared", "member"):
                found += [(rule, Rules(rule, order, ties)) for rule in ("distinct", "unique")]
    return [(f"{kind}-{rules.order}-{rules.ties}", rules) for kind, rules in found]


def history_of(name: str, rules: Rules) -> dict[str, list[Said]]:
    """By region: P and Q, the one in A and the other in B, and some that tie by chance."""
    chance = random.Random(name)
    said: dict[str, list[Said]] = {region: [] for region in REGIONS}
    numbers = [1, 2, 3] if rules.grow_only or rules.rule == "best" else [-2, -1, 1, 2, 3]
    for member in MEMBERS:
        for _ in range(chance.randint(1, 4)):
            region, number = chance.choice(REGIONS), chance.choice(numbers)
            at_ms = NOON_MS + chance.choice(STEPS_MS)
            actor = f"actor-{chance.randint(1, 4)}"
            said[region].append(Said(member, number, at_ms, actor))
    for region, member, at in (("a", "P", 1), ("b", "Q", 2)):
        said[region] += [Said(member, 100, minute(at), f"actor-{n}") for n in range(5)][
            : 5 if rules.rule in ("distinct", "unique") else 1
        ]
    if rules.rule == "best":  # worse ones, and one's own best again, elsewhere too
        worse = 101 if rules.order == "low" else 99
        said["a"] += [Said("P", worse, minute(0.5)), Said("P", 100, minute(9))]
        said["c"] += [Said("P", 100, minute(3)), Said("Q", worse, minute(0.5))]
    if rules.rule == "sum" and not rules.grow_only:  # a fall does not move the time
        said["a"] += [Said("P", 5, minute(0.5)), Said("P", -5, minute(9))]
        said["c"] += [Said("Q", 5, minute(0.5)), Said("Q", -5, minute(0.6))]
    return said


def boards_of_all_rules() -> list[Board]:
    return [
        Board(name, rules, DAY if rules.kept else "all", history_of(name, rules))
        for name, rules in all_rules()
    ]


async def define(regions: Regions, board: Board, **more: Any) -> None:
    windows = [{"name": board.window.partition(":")[0]}]
    await regions.define(board.name, **board.rules.document(windows=windows, **more))


def p_and_q(board: Board, lines: list[tuple[Any, ...]]) -> None:
    """What the ties of a board mean for the two with 100, in plain words."""
    ranks = {member: rank for rank, member, _, _ in lines if member in ("P", "Q")}
    match board.rules.ties:
        case "first":
            assert ranks["P"] < ranks["Q"], board.name
        case "last":
            assert ranks["Q"] < ranks["P"], board.name
        case "shared":
            assert ranks["P"] == ranks["Q"], board.name
        case _:
            greater_first = ranks["Q"] < ranks["P"]
            assert greater_first == (board.rules.order == "high"), board.name


async def test_every_rule_with_all_ties_in_every_view(regions: Regions) -> None:
    """B's news arrive first at C; a banned member ties with others; Redis is emptied."""
    boards = boards_of_all_rules()
    for board in boards:
        await define(regions, board)
    async with regions.parted("a"):
        for name in REGIONS:
            await write_all(regions, name, boards)
        for board in boards:
            await shows(regions, "c", board, board.lines(("b", "c"), [CHEAT]))
            await shows(regions, "a", board, board.lines(("a",), [CHEAT]))
    await everywhere(regions, boards, [CHEAT])
    for board in boards:
        p_and_q(board, [in_api(line) for line in board.lines(hidden=[CHEAT])])
        for name in REGIONS:
            page = await regions.page_of(name, board.name, window=board.window)
            p_and_q(board, [shown(entry) for entry in page["entries"]])
    await ranks_in_answers(regions, boards)
    await regions.flush()
    await everywhere(regions, boards, [CHEAT])


async def ranks_in_answers(regions: Regions, boards: list[Board]) -> None:
    """`?rank=true` says what the page says, for entries that change nothing."""
    for board in boards:
        want = {line.member: line.rank for line in board.lines(hidden=[CHEAT])}
        for member in ("P", "Q"):
            home = "a" if member == "P" else "b"
            entries = board.entries(home)
            same = next(entry for entry in entries if entry["member"] == member)
            if board.rules.rule == "sum" and not board.rules.kept:
                same = {**same, "add": 0}
            where = f"{path('boards', board.name, 'entries')}?rank=true"
            said: dict[str, Any] = {}
            while "rank" not in said:  # it is left out where Redis is behind for half a second
                said = (await regions.send(home, "POST", where, same))["entries"][0]
            assert said["rank"] == want[member], (board.name, member)


def ranges() -> list[tuple[str, Rules]]:
    """`best` boards whose ticks are 1 ms, 1 s and 1 min."""
    return [
        (f"tick-{tick_ms}-{order}-{ties}", Rules("best", order, ties, score=(0, greatest)))
        for greatest, tick_ms in ((4_095, 1), (4_194_303, 1_000), (2**28 - 1, 60_000))
        for order in ORDERS
        for ties in ("first", "last")
    ]


async def test_ticks_of_all_sizes_and_names_within_one(regions: Regions) -> None:
    steps = {"C": 3, "a": 2, "b": 1, "é": 0, "1s": 1_003, "2s": 2_000, "1m": 60_000}
    early = {"long ago": -ALL_START_MS - 1, "in 1999": -1, "in 2000": 0}
    boards = []
    for name, rules in ranges():
        said: dict[str, list[Said]] = {region: [] for region in REGIONS}
        for place, (member, step_ms) in enumerate(steps.items()):
            said[REGIONS[place % 3]].append(Said(member, 7, NOON_MS + step_ms))
        for member, step_ms in early.items():
            said["b"].append(Said(member, 7, ALL_START_MS + step_ms))
        boards.append(Board(name, rules, "all", said))
    for board in boards:
        await define(regions, board)
        shown_tick = (await regions.send("c", "GET", path("boards", board.name)))["windows"][0]
        assert f"tick-{shown_tick['tick_ms']}-" in board.name
        for name in REGIONS:
            await write_all(regions, name, [board])
    await everywhere(regions, boards)
    by_ms = [line.member for line in boards[0].lines()]
    assert by_ms == ["long ago", "in 2000", "in 1999", "é", "b", "a", "C", "1s", "2s", "1m"]
    minutes = next(board for board in boards if board.name == "tick-60000-low-first")
    in_one_minute = ["1s", "2s", "C", "a", "b", "é", "1m"]  # by their bytes, the lesser first
    assert [line.member for line in minutes.lines()][3:] == in_one_minute


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("ties", ["first", "last"])
async def test_a_total_is_as_old_as_its_last_rise(regions: Regions, order: str, ties: str) -> None:
    """All three end at 100: one fell and rose again, one was corrected by another region."""
    said = {
        "a": [Said("ann", 100, minute(1)), Said("ann", -10, minute(3)), Said("ann", 10, minute(6))],
        "b": [Said("bob", 100, minute(2)), Said("zoe", -10, minute(8))],
        "c": [Said("zoe", 110, minute(0))],
    }
    board = Board(f"rises-{order}-{ties}", Rules("sum", order, ties), "all", said)
    await define(regions, board)
    for name in ("c", "a", "b"):
        await write_all(regions, name, [board])
    await everywhere(regions, [board])
    oldest_first = ["zoe", "bob", "ann"]
    want = oldest_first if ties == "first" else oldest_first[::-1]
    assert [line.member for line in board.lines()] == want


@pytest.mark.parametrize("order", ORDERS)
async def test_totals_beyond_what_redis_carries(regions: Regions, order: str) -> None:
    """Regions that are parted carry totals beyond what was allowed: those rank at the limit."""
    rules = Rules("sum", order, "first", score=(-100, 100))
    said = {
        "a": [Said("x", 100, minute(1)), Said("y", 90, minute(3)), Said("z", 50, minute(9))],
        "b": [Said("x", 100, minute(2)), Said("y", 95, minute(1))],
        "c": [Said("w", 100, minute(1)), Said("v", -100, minute(1))],
    }
    board = Board(f"beyond-{order}", rules, "all", said)
    await define(regions, board)
    async with regions.parted():
        for name in REGIONS:
            await write_all(regions, name, [board])
    await everywhere(regions, [board])
    await regions.flush()
    await everywhere(regions, [board])
    exact = {line.member: line.score for line in board.lines()}
    assert (exact["x"], exact["y"], rules.carried(exact["x"])) == (200, 185, 127)


async def test_shared_ranks_are_1_2_2_4_in_every_view(regions: Regions) -> None:
    for order in ORDERS:
        best, worst = (9, 1) if order == "high" else (1, 9)
        said = {
            "a": [Said("b", 5, minute(1)), Said("top", best, minute(4))],
            "b": [Said("é", 5, minute(2))],
            "c": [Said("last", worst, minute(3)), Said(CHEAT, 5, minute(0))],
        }
        board = Board(f"shared-{order}", Rules("best", order, "shared"), "all", said)
        await define(regions, board)
        for name in REGIONS:
            await write_all(regions, name, [board])
        await everywhere(regions, [board], [CHEAT])
        assert [line.rank for line in board.lines(hidden=[CHEAT])] == [1, 2, 2, 4]


async def test_a_time_ahead_of_the_clock_counts_up_to_its_limit(regions: Regions) -> None:
    """Later is better with `last`: nobody can promise a time that is far ahead."""
    rules = Rules("best", "high", "last", score=(0, 4_095))
    now_ms = minute(30)
    board = Board("ahead", rules, "all", {"a": [Said("now", 7, now_ms)]})
    board.said["b"] = [Said("ahead", 7, now_ms + MINUTE_MS)]
    await define(regions, board)
    for name in ("a", "b"):
        await write_all(regions, name, [board])
    too_far = entry_of(rules, Said("liar", 7, now_ms + MINUTE_MS + 1), "")
    assert await regions.refuses("c", "ahead", **too_far) == (422, "out_of_range")
    await everywhere(regions, [board])
    assert [line.member for line in board.lines()] == ["ahead", "now"]


async def test_times_after_the_last_tick_count_as_it(regions: Regions) -> None:
    """The clock of all regions goes on to 2070, so this is the last test of this ring."""
    later_ms = 3_155_760_000_000  # 2070-01-01
    rules = Rules("best", "high", "first", score=(0, 4_095))
    # The tick of 1 ms has 41 bits beside 12 of scores: they end in 2069.
    said = {
        "a": [Said("C", 7, later_ms + 5), Said("now", 7, NOON_MS)],
        "b": [Said("a", 7, later_ms + 9)],
        "c": [Said("é", 7, later_ms)],
    }
    board = Board("late", rules, "all", said)
    await define(regions, board)
    await regions.set_clock("2070-01-01T00:00:01Z")
    for name in REGIONS:
        await write_all(regions, name, [board])
    await everywhere(regions, [board])
    assert [line.member for line in board.lines()] == ["now", "é", "a", "C"]

    async def agreed() -> bool:
        pages = [await regions.page_of(name, "late") for name in REGIONS]
        return len({str(page["entries"]) for page in pages}) == 1

    await eventually(agreed)
