"""Kept results over the API: paged for review, and one taken back everywhere."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from agent.api.clock import ManualClock
from agent.boards.results import result_slot
from agent.crdt import result
from tests.integration.api_node import Api, merge, row_of, running_api

NOON_MS = 1_764_504_000_000  # 2025-11-30T12:00:00Z, a Sunday
NOON = "2025-11-30T12:00:00.000Z"
WINDOWS = [{"name": "day"}, {"name": "week"}]


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    async with running_api(tmp_path, clock=ManualClock(NOON_MS)) as opened:
        yield opened


async def submit(api: Api, board: str, key: str, **entry: Any) -> Any:
    body = {"member": "ann", "key": key, "at": NOON_MS, **entry}
    answer = await api.post(f"/v1/boards/{board}/entries", body)
    assert answer.status == 200, answer
    return answer.body["entries"][0]


def result_path(board: str, key: str, member: str = "ann") -> str:
    return f"/v1/boards/{board}/results/{member}/{quote(key, safe='')}"


async def score_of(api: Api, board: str, window: str) -> int | None:
    """The total as the file keeps it."""
    its = api.queue.state.catalog.board(board)
    counted = next(c for c in its.counted if c.series.name == window)
    found = counted.series.at(NOON_MS)
    assert found is not None
    key = (counted.space_of(found), b"ann")
    totals = await api.readers.read(lambda snapshot: snapshot.totals_of([key]))
    return None if key not in totals else totals[key].score


async def test_results_are_listed_as_they_came_in(api: Api) -> None:
    await api.define("runs", rule="best", results="keep", windows=WINDOWS)
    await submit(api, "runs", "r/1", score=700, data={"track": 4})
    await submit(api, "runs", "r2", score=900)
    await submit(api, "runs", "r3", score=800)
    page = (await api.get("/v1/boards/runs/results/ann?limit=2")).body
    assert page["window"] == "day:2025-11-30"
    assert page["next"] == "r2"
    assert page["results"][0] == {
        "key": "r/1",
        "score": 700,
        "at": NOON,
        "accepted_at": NOON,
        "data": {"track": 4},
        "retracted": False,
    }
    rest = (await api.get("/v1/boards/runs/results/ann?limit=2&after=r2&window=week")).body
    assert [its["key"] for its in rest["results"]] == ["r3"]
    assert (rest["next"], rest["window"]) == (None, "week:2025-W48")
    assert (await api.get("/v1/boards/runs/results/zoe")).body["results"] == []


async def test_a_best_falls_back_to_the_next_best_and_stays(api: Api) -> None:
    await api.define("runs", rule="best", results="keep", windows=WINDOWS)
    await submit(api, "runs", "low", score=700)
    await submit(api, "runs", "high", score=900)
    windows = ["day:2025-11-30", "week:2025-W48"]
    dry = await api.call("DELETE", f"{result_path('runs', 'high')}?dry_run=true")
    assert (dry.body["changed"], dry.body["windows"], dry.body["dry_run"]) == (True, windows, True)
    assert dry.body["score"] == dict.fromkeys(windows, 900)
    assert await score_of(api, "runs", "day") == 900
    done = await api.call("DELETE", result_path("runs", "high"))
    assert (done.body["changed"], done.body["windows"]) == (True, windows)
    assert done.body["score"] == dict.fromkeys(windows, 700)
    again = await api.call("DELETE", result_path("runs", "high"))
    assert (again.status, again.body["changed"], again.body["windows"]) == (200, False, [])
    assert again.body["score"] == dict.fromkeys(windows, 700)
    sent_again = await submit(api, "runs", "high", score=900)
    assert sent_again["duplicate"] is True
    assert await score_of(api, "runs", "week") == 700
    listed = (await api.get("/v1/boards/runs/results/ann")).body["results"]
    assert {its["key"]: its["retracted"] for its in listed} == {"high": True, "low": False}
    last = await api.call("DELETE", result_path("runs", "low"))
    assert last.body["score"] == dict.fromkeys(windows)


async def test_a_sum_falls_by_it(api: Api) -> None:
    await api.define("cups", rule="sum", results="keep", windows=[{"name": "day"}])
    await submit(api, "cups", "a", add=5)
    await submit(api, "cups", "b", add=-2)
    done = await api.call("DELETE", result_path("cups", "a"))
    assert done.body["score"] == {"day:2025-11-30": -2}


async def test_a_result_is_found_in_the_one_window_that_has_it(api: Api) -> None:
    """Another region's definition lacked the week: its retraction reaches both all the same."""
    await api.define("runs", rule="best", results="keep", windows=WINDOWS)
    week = api.queue.state.catalog.board("runs").counted[1]
    window = week.series.at(NOON_MS)
    assert window is not None
    value = result.of(NOON_MS << 16, 900, "h", NOON_MS, b"")
    await merge(api, [row_of(week.space_of(window), b"ann", result_slot(b"k"), value, 1)])
    done = await api.call("DELETE", result_path("runs", "k"))
    assert (done.body["changed"], done.body["windows"]) == (True, ["week:2025-W48"])
    assert done.body["score"] == {"week:2025-W48": None}
    # The sibling window took the retraction too: the late result does not count there.
    day = api.queue.state.catalog.board("runs").counted[0]
    today = day.series.at(NOON_MS)
    assert today is not None
    await merge(api, [row_of(day.space_of(today), b"ann", result_slot(b"k"), value, 2)])
    again = await api.call("DELETE", result_path("runs", "k"))
    assert (again.body["changed"], again.body["score"]) == (
        False,
        {"day:2025-11-30": None, "week:2025-W48": None},
    )


async def test_a_result_is_taken_back_where_it_stands_whatever_its_time_says(api: Api) -> None:
    """A window that its time does not lead to by this definition, as after a change of windows."""
    await api.define("runs", rule="best", results="keep", windows=[{"name": "day"}])
    day = api.queue.state.catalog.board("runs").counted[0]
    yesterday = day.series.at(NOON_MS - 86_400_000)
    assert yesterday is not None
    value = result.of(NOON_MS << 16, 900, "h", NOON_MS, b"")
    await merge(api, [row_of(day.space_of(yesterday), b"ann", result_slot(b"k"), value, 1)])
    done = await api.call("DELETE", result_path("runs", "k"))
    assert (done.body["windows"], done.body["score"]) == ([yesterday.id], {yesterday.id: None})


async def test_what_is_refused(api: Api) -> None:
    await api.define("runs", rule="best", results="keep", windows=WINDOWS)
    await api.define("plain", rule="best")
    await submit(api, "runs", "r1", score=1)
    for method, path, status, code in (
        ("DELETE", result_path("runs", "r2"), 404, "unknown_result"),
        ("DELETE", result_path("runs", "r1", "bob"), 404, "unknown_result"),
        ("DELETE", result_path("plain", "r1"), 400, "malformed"),
        ("GET", "/v1/boards/plain/results/ann", 400, "malformed"),
        ("DELETE", result_path("nowhere", "r1"), 404, "unknown_board"),
        ("GET", "/v1/boards/nowhere/results/ann", 404, "unknown_board"),
        ("GET", "/v1/boards/runs/results/ann?window=all", 404, "unknown_window"),
        ("DELETE", result_path("runs", "k" * 129), 400, "malformed"),
        ("DELETE", f"{result_path('runs', 'r1')}?reason=x", 400, "malformed"),
    ):
        refused = await api.call(method, path)
        assert (refused.status, refused.code) == (status, code), path
    assert await score_of(api, "runs", "day") == 1
