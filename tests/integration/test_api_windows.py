"""Windows over HTTP: entries are counted in each, late ones in those that are open; reads name one.

The clock is set by hand, so that windows open, close and go while the test looks.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from agent.api.clock import ManualClock
from agent.boards.entry import time_ms
from agent.boards.marks import Due
from agent.crdt.slot import Kind
from agent.limits import TIME_MS_MAX
from agent.operation import SetMarks
from tests.integration.api_node import Api, is_ready, page, running_api

MONDAY = "2026-11-30T13:00:00Z"
WINDOWS = [
    {"name": "day", "zone": "Europe/Berlin", "grace": "10m", "keep": "2d"},
    {"name": "week", "zone": "Europe/Berlin"},
    {"name": "all"},
]


def ms(text: str) -> int:
    return time_ms(text, TIME_MS_MAX)


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    async with running_api(tmp_path, clock=ManualClock(ms(MONDAY))) as running:
        await running.until(lambda: is_ready(running))
        yield running


async def set_clock(api: Api, now: str) -> None:
    answer = await api.post("/v1/clock", {"now": now})
    assert answer.status == 200, answer


async def written(api: Api, board: str, **entry: Any) -> Any:
    answer = await api.post(f"/v1/boards/{board}/entries", {"member": "m", **entry})
    assert answer.status == 200, answer
    return answer.body["entries"][0]


async def scores(api: Api, board: str, window: str) -> dict[str, int]:
    found = await page(api, board, f"window={window}")
    return {entry["member"]: entry["score"] for entry in found["entries"]}


async def windows(api: Api, board: str, query: str = "") -> list[tuple[str, str]]:
    answer = await api.get(f"/v1/boards/{board}/windows?{query}")
    assert answer.status == 200, answer
    return [(window["window"], window["state"]) for window in answer.body["windows"]]


async def test_an_entry_counts_in_every_window_of_its_time(api: Api) -> None:
    await api.define("b", rule="sum", windows=WINDOWS)
    sunday = await written(api, "b", add=5, at="2026-11-29T22:55:00Z")  # 23:55 in Berlin
    assert sunday == {
        "member": "m",
        "score": {"all": 5},
        "late": ["day:2026-11-29", "week:2026-W48"],
    }
    monday = await written(api, "b", add=3)
    assert monday == {
        "member": "m",
        "score": {"day:2026-11-30": 3, "week:2026-W49": 3, "all": 8},
    }
    assert await scores(api, "b", "day") == {"m": 3}
    assert await scores(api, "b", "week:2026-W49") == {"m": 3}
    assert await scores(api, "b", "all") == {"m": 8}
    first = await page(api, "b")
    assert (first["window"], first["entries"][0]["score"]) == ("day:2026-11-30", 3)
    member = (await api.get("/v1/boards/b/entries/m?window=week")).body
    assert (member["window"], member["score"], member["rank"]) == ("week:2026-W49", 3, 1)


async def test_grace_and_what_comes_after_it(api: Api) -> None:
    await api.define("b", rule="sum", windows=WINDOWS[:1])
    await written(api, "b", add=1)
    await set_clock(api, "2026-11-30T23:09:59Z")  # Tuesday, 00:09:59 in Berlin
    late = await written(api, "b", add=1, at="2026-11-30T22:59:59Z")
    assert late == {"member": "m", "score": {"day:2026-11-30": 2}}
    assert await windows(api, "b") == [("day:2026-12-01", "open"), ("day:2026-11-30", "open")]
    await set_clock(api, "2026-11-30T23:10:00Z")
    refused = await api.post(
        "/v1/boards/b/entries", {"member": "m", "add": 1, "at": "2026-11-30T22:59:59Z"}
    )
    assert (refused.status, refused.code) == (422, "window_closed")
    assert "day:2026-11-30 closed" in refused.body["detail"]
    assert await windows(api, "b") == [("day:2026-12-01", "open"), ("day:2026-11-30", "closed")]
    assert await scores(api, "b", "day:2026-11-30") == {"m": 2}
    assert await scores(api, "b", "day") == {}


async def test_a_window_that_is_kept_no_longer(api: Api) -> None:
    await api.define("b", rule="sum", windows=WINDOWS[:1])
    await written(api, "b", add=1)
    shown = (await api.get("/v1/boards/b/windows")).body
    assert shown["windows"] == [
        {
            "window": "day:2026-11-30",
            "state": "open",
            "start": "2026-11-29T23:00:00.000Z",
            "end": "2026-11-30T23:00:00.000Z",
            "closes_at": "2026-11-30T23:10:00.000Z",
            "expires_at": "2026-12-02T23:10:00.000Z",
        }
    ]
    await set_clock(api, "2026-12-02T23:09:59Z")
    assert await scores(api, "b", "day:2026-11-30") == {"m": 1}
    await set_clock(api, "2026-12-02T23:10:00Z")
    for path in ("entries", "entries/m"):
        gone = await api.get(f"/v1/boards/b/{path}?window=day:2026-11-30")
        assert (gone.status, gone.code) == (404, "unknown_window")
        assert "was kept until 2026-12-02T23:10:00.000Z" in gone.body["detail"]
    assert await windows(api, "b") == [("day:2026-12-03", "open")]


async def test_a_collected_window_is_gone_whatever_the_clock_says(api: Api) -> None:
    await api.define("b", rule="sum", windows=WINDOWS[:1])
    await written(api, "b", add=1)
    await set_clock(api, "2026-12-01T12:00:00Z")
    counted = api.queue.state.catalog.board("b").counted[0]
    window = counted.series.window("day:2026-11-30")
    assert window is not None
    kinds = (Kind.CLOSE, Kind.ACK, Kind.COLLECTED)
    await api.queue.submit(SetMarks(tuple(Due(kind, counted.marks, window) for kind in kinds)))
    gone = await api.get("/v1/boards/b/entries?window=day:2026-11-30")
    assert (gone.status, gone.code) == (404, "unknown_window")
    assert await windows(api, "b") == [("day:2026-12-01", "open")]


async def test_unknown_windows(api: Api) -> None:
    await api.define("b", rule="sum", windows=WINDOWS)
    for text in (
        "month",
        "day:2026-02-30",
        "day:tomorrow",
        "week:2026-W54",
        "season:s1",
        "%F0",
        "",
    ):
        answer = await api.get(f"/v1/boards/b/entries?window={text}")
        assert answer.status in (400, 404)
        if answer.status == 404:
            assert answer.code == "unknown_window"
            assert answer.body["hint"] == "its windows: day, week, all"
    rank = await api.post("/v1/boards/b/entries?rank=true&window=month", {"member": "m", "add": 1})
    assert (rank.status, rank.code) == (404, "unknown_window")
    assert await scores(api, "b", "all") == {}


@pytest.mark.usefixtures("patient")
async def test_ranks_of_a_write_are_those_of_a_window(api: Api) -> None:
    await api.define("b", rule="sum", windows=WINDOWS)
    await written(api, "b", member="old", add=100, at="2026-11-01T00:00:00Z")
    for query, rank in (("", 1), ("&window=week", 1), ("&window=all", 2)):
        path = f"/v1/boards/b/entries?rank=true{query}"
        answer = await api.post(path, {"member": "new", "add": 1})
        assert answer.body["entries"][0]["rank"] == rank, query


async def test_the_board_shows_its_windows(api: Api) -> None:
    shown = (await api.define("b", rule="sum", windows=WINDOWS)).body
    day, week, everything = shown["windows"]
    assert (day["window"], day["next_reset"]) == ("day:2026-11-30", "2026-11-30T23:00:00.000Z")
    assert (week["window"], week["next_reset"]) == ("week:2026-W49", "2026-12-06T23:00:00.000Z")
    assert (everything["window"], everything["next_reset"]) == ("all", None)
    await set_clock(api, "2026-12-07T00:00:00Z")
    listed = (await api.get("/v1/boards?limit=1")).body["boards"][0]
    assert listed["windows"][0]["window"] == "day:2026-12-07"


async def test_an_added_window_opens_at_its_next_beginning(api: Api) -> None:
    await api.define("b", rule="sum")
    await written(api, "b", add=1)
    more = [{"name": "all"}, {"name": "day"}]
    await set_clock(api, "2026-12-01T09:00:00Z")
    plan = await api.call("PUT", "/v1/boards/b?preview=true", {"rule": "sum", "windows": more})
    changed = await api.define("b", rule="sum", windows=more)
    for answer in (plan, changed):
        day = answer.body["windows"][1]
        assert (day["window"], day["next_reset"]) == (None, "2026-12-02T00:00:00.000Z")
    assert (await written(api, "b", add=1))["score"] == {"all": 2}
    assert await windows(api, "b") == [("all", "open")]
    await set_clock(api, "2026-12-02T00:00:00Z")
    assert (await written(api, "b", add=1))["score"] == {"all": 3, "day:2026-12-02": 1}
    assert await windows(api, "b") == [("all", "open"), ("day:2026-12-02", "open")]


async def test_the_list_of_windows_is_paged(api: Api) -> None:
    await api.define("b", rule="best", windows=[{"name": "hour", "grace": "7d"}, {"name": "day"}])
    times = [f"2026-11-30T{hour:02}:30:00Z" for hour in range(9, 13)]
    entries = [{"member": "m", "score": 1, "at": at} for at in times]
    await api.post("/v1/boards/b/entries", {"entries": entries})
    everything = await windows(api, "b")
    assert [window for window, _ in everything] == [
        *(f"hour:2026-11-30T{hour:02}" for hour in range(13, 8, -1)),
        "day:2026-11-30",
    ]
    assert await windows(api, "b", "offset=1&limit=2") == everything[1:3]
    shown = (await api.get("/v1/boards/b/windows?offset=4&limit=1")).body
    assert (shown["offset"], shown["total"], len(shown["windows"])) == (4, 6, 1)


async def test_a_sliding_window(api: Api) -> None:
    await api.define("b", rule="sum", windows=[{"name": "last:2d"}, {"name": "all"}])
    await written(api, "b", add=5)
    await set_clock(api, "2026-12-01T13:00:00Z")
    answer = await written(api, "b", add=2)
    assert answer["score"] == {"all": 7}
    shown = (await api.get("/v1/boards/b/windows")).body["windows"][0]
    assert (shown["window"], shown["state"], shown["expires_at"]) == ("last:2d", "open", None)
    assert shown["start"] == "2026-11-30T00:00:00.000Z"

    async def has(score: int) -> bool:
        found = await api.get("/v1/boards/b/entries?window=last:2d")
        return found.status == 200 and [e["score"] for e in found.body["entries"]] == [score]

    await api.until(lambda: has(7))
    found = (await api.get("/v1/boards/b/entries")).body
    assert (found["window"], found["entries"][0]["data"]) == ("last:2d", None)


async def test_data_and_times_are_those_of_the_window(api: Api) -> None:
    await api.define("b", rule="best", windows=[{"name": "day"}, {"name": "all"}])
    await written(api, "b", score=9, data={"run": 1})
    await set_clock(api, "2026-12-01T13:00:00Z")
    await written(api, "b", score=5, data={"run": 2})
    for window, score, run, day in (("day", 5, 2, "2026-12-01"), ("all", 9, 1, "2026-11-30")):
        (entry,) = (await page(api, "b", f"window={window}"))["entries"]
        assert (entry["score"], entry["data"]) == (score, {"run": run})
        assert entry["reached_at"].startswith(day)
