"""Outliers over the API: what Redis flags is what the rule, counted by hand, flags."""

from __future__ import annotations

from collections.abc import AsyncIterator
from math import ceil
from random import Random
from typing import Any

import pytest
import pytest_asyncio

from agent.errors import Unavailable
from agent.projection.outliers import MEMBERS_MIN, read_outliers
from tests.integration.api_node import Api, page, running_api

pytestmark = pytest.mark.asyncio(loop_scope="module")

LAPS = {"rule": "best", "order": "low", "score": {"min": 0, "max": 600_000}}
WIDE = {"rule": "latest", "score": {"min": -100_000, "max": 100_000}}
SHARED = {"rule": "sum", "ties": "shared"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def api(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Api]:
    async with running_api(tmp_path_factory.mktemp("outliers")) as opened:
        yield opened


async def filled(api: Api, board: str, scores: list[int], **definition: Any) -> None:
    """Define a board with a member of each score, and wait until they are ranked."""
    await api.define(board, **definition)
    field = "add" if definition["rule"] == "sum" else "score"
    entries = [{"member": f"m{i:03}", field: score} for i, score in enumerate(scores)]
    answer = await api.post(f"/v1/boards/{board}/entries", {"entries": entries})
    assert answer.status == 200, answer
    assert (await page(api, board))["total"] == len(scores)


def by_hand(scores: list[int], *, low: bool) -> tuple[dict[str, int], list[int]]:
    """The rule with plain integers: its numbers, and the flagged scores, best first."""
    up = sorted(scores)
    q1, median, q3 = (up[ceil(part * len(up) / 4) - 1] for part in (1, 2, 3))
    spread = q3 - q1 or max(1, ceil(abs(median) / 10))
    fence = q1 - 3 * spread if low else q3 + 3 * spread
    numbers = {"q1": q1, "median": median, "q3": q3, "spread": spread, "fence": fence}
    if low:
        return numbers, [score for score in up if score < fence]
    return numbers, [score for score in reversed(up) if score > fence]


RANDOM = Random(4)
CASES: list[tuple[str, dict[str, Any], list[int]]] = [
    ("kills", {"rule": "sum"}, [*range(100, 140), 100_000, 225]),
    ("laps", LAPS, [*range(60_000, 60_040), 1_000, 59_900]),
    ("same", {"rule": "sum"}, [0] * 30 + [3, 4, 4, 50]),
    ("same-laps", LAPS, [60_000] * 25 + [41_999, 42_000, 42_001]),
    ("below-zero", WIDE, [-RANDOM.randrange(1_000, 1_100) for _ in range(50)] + [-1, 90_000]),
    ("shared", SHARED, [RANDOM.randrange(50) for _ in range(60)] + [500, 500, 400]),
    ("huge", SHARED, [RANDOM.randrange(50) for _ in range(20)] + [2**53 - 1, -(2**53) + 1]),
    ("wide", SHARED, [-(2**53) + 1] * 10 + [2**53 - 1] * 10),
    ("fits", {"rule": "sum"}, [*range(MEMBERS_MIN)]),
]


@pytest.mark.parametrize(("board", "definition", "scores"), CASES, ids=[case[0] for case in CASES])
async def test_the_rule_is_the_documented_one(
    api: Api, board: str, definition: dict[str, Any], scores: list[int]
) -> None:
    await filled(api, board, scores, **definition)
    low = definition.get("order") == "low"
    numbers, flagged = by_hand(scores, low=low)
    answer = (await api.get(f"/v1/boards/{board}/outliers")).body
    shown = {name: answer["rule"][name] for name in numbers}
    assert (shown, answer["flagged"]) == (numbers, len(flagged))
    assert [entry["score"] for entry in answer["entries"]] == flagged
    assert len(flagged) <= len(scores) / 4
    ranks = {e["member"]: e["rank"] for e in (await page(api, board, "limit=1000"))["entries"]}
    assert all(entry["rank"] == ranks[entry["member"]] for entry in answer["entries"])
    for entry in answer["entries"]:
        away = numbers["q1"] - entry["score"] if low else entry["score"] - numbers["q3"]
        assert entry["beyond"] == pytest.approx(away / numbers["spread"], rel=1e-5)
        assert entry["beyond"] > 3


async def test_cases_flag_some_and_not_others() -> None:
    counts = [len(by_hand(scores, low="order" in its)[1]) for _, its, scores in CASES]
    assert counts[:4] == [2, 2, 3, 1]
    assert 0 in counts


async def test_pages(api: Api) -> None:
    await filled(api, "paged", [*range(40), 1_000, 2_000, 3_000], **SHARED)
    path = "/v1/boards/paged/outliers"
    first = (await api.get(f"{path}?limit=2")).body
    assert ([e["score"] for e in first["entries"]], first["flagged"]) == ([3_000, 2_000], 3)
    rest = (await api.get(f"{path}?limit=2&offset=2")).body
    assert [(e["rank"], e["score"]) for e in rest["entries"]] == [(3, 1_000)]
    assert (await api.get(f"{path}?offset=3")).body["entries"] == []


async def test_few_members_are_not_judged(api: Api) -> None:
    await filled(api, "few", [1] * (MEMBERS_MIN - 2) + [10_000], **SHARED)
    answer = (await api.get("/v1/boards/few/outliers")).body
    assert (answer["flagged"], answer["entries"]) == (0, [])
    assert (answer["rule"]["members"], answer["rule"]["fence"]) == (MEMBERS_MIN - 1, None)
    await api.define("nobody", rule="sum", windows=[{"name": "day"}])
    await page(api, "nobody")
    assert (await api.get("/v1/boards/nobody/outliers")).body["rule"]["members"] == 0


async def test_what_is_refused(api: Api) -> None:
    await api.define("some", rule="sum")
    for path, status, code in (
        ("/v1/boards/nowhere/outliers", 404, "unknown_board"),
        ("/v1/boards/some/outliers?window=day", 404, "unknown_window"),
        ("/v1/boards/some/outliers?limit=0", 400, "malformed"),
    ):
        refused = await api.get(path)
        assert (refused.status, refused.code) == (status, code), path


async def test_a_window_that_is_being_filled_is_not_judged(api: Api) -> None:
    await filled(api, "gone", [*range(30)], **SHARED)
    board = api.queue.state.catalog.board("gone")
    placed = board.place(board.resolve(None, api.services.board_now_ms()))
    await api.redis.hset("lb:{s0}:gone:all:meta", "generation", "7")
    with pytest.raises(Unavailable, match="is being filled"):
        await read_outliers(api.services.ranks, placed, 0, 10)
