"""Boards over HTTP: define, preview, change, list, reset, retire; and what Redis then holds."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from agent.boards import definition as definitions
from agent.boards.definition import Definition
from agent.crdt.slot import Kind, slot_of_name
from agent.crdt.space import BOARDS_SPACE
from tests.integration.api_node import Api, is_ready, merge, now_ms, page, row_of, running_api

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def api(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Api]:
    async with running_api(tmp_path_factory.mktemp("boards")) as running:
        await running.until(lambda: is_ready(running))
        yield running


async def test_a_preview_changes_nothing(api: Api) -> None:
    before = api.queue.state.lsn
    answer = await api.call("PUT", "/v1/boards/plan?preview=true", {"rule": "sum"})
    assert (answer.body["changed"], answer.body["preview"]) == (True, True)
    assert answer.body["version"] == 1
    assert api.queue.state.lsn == before
    assert (await api.get("/v1/boards/plan")).code == "unknown_board"
    await api.define("plan", rule="sum")
    again = await api.call("PUT", "/v1/boards/plan?preview=true", {"rule": "sum"})
    assert again.body["changed"] is False


async def test_define_change_and_show(api: Api) -> None:
    first = (await api.define("show", rule="sum")).body
    assert (first["changed"], first["generation"], first["version"]) == (True, 0, 1)
    assert first["definition"] == {
        "rule": "sum",
        "order": "high",
        "grow_only": False,
        "ties": "first",
        "windows": [
            {"name": "all", "zone": "UTC", "grace": None, "keep": None, "start": None, "end": None}
        ],
        "score": None,
        "rate": None,
        "results": None,
        "key_retention": "1h",
        "half_life": None,
    }
    assert first["score"] == {"min": -(2**27), "max": 2**27 - 1}
    assert first["written_by"] == "eu-1"
    assert first["windows"] == [
        {
            "name": "all",
            "tick_ms": 60_000,
            "b": 25,
            "window": "all",
            "start": None,
            "end": None,
            "next_reset": None,
        }
    ]
    same = (await api.define("show", **first["definition"])).body
    assert (same["changed"], same["version"]) == (False, 1)
    narrow = (await api.define("show", rule="sum", score={"min": 0.0, "max": 1000})).body
    assert (narrow["changed"], narrow["version"]) == (True, 2)
    assert narrow["windows"][0]["tick_ms"] == 1
    shown = (await api.get("/v1/boards/show")).body
    assert shown["score"] == {"min": 0, "max": 1000}
    assert shown["overruled"] == []
    untimed = (await api.define("show", rule="sum", ties="shared")).body
    assert (untimed["windows"][0]["tick_ms"], untimed["windows"][0]["b"]) == (None, 0)


async def test_list_is_paged(api: Api) -> None:
    for name in ("list-a", "list-b", "list-c"):
        await api.define(name, rule="sum")
    everything = (await api.get("/v1/boards?limit=1000")).body
    names = [board["board"] for board in everything["boards"]]
    assert names == sorted(names)
    assert {"counters", "list-a", "list-b", "list-c"} <= set(names)
    assert everything["total"] == len(names)
    at = names.index("list-b")
    part = (await api.get(f"/v1/boards?offset={at}&limit=1")).body
    assert [board["board"] for board in part["boards"]] == ["list-b"]


async def test_reset_and_retire(api: Api) -> None:
    await api.define("season", rule="sum")
    await api.post("/v1/boards/season/entries", {"member": "m", "add": 5})
    assert (await page(api, "season"))["total"] == 1
    reset = await api.call("POST", "/v1/boards/season/reset")
    assert (reset.status, reset.body["generation"]) == (200, 1)
    assert (await page(api, "season"))["total"] == 0
    other = await api.post("/v1/boards/season/reset", {"rule": "best", "order": "low"})
    assert (other.body["generation"], other.body["definition"]["rule"]) == (2, "best")
    retired = await api.call("DELETE", "/v1/boards/season")
    assert retired.body == {"board": "season", "retired": True}
    gone = await api.post("/v1/boards/season/entries", {"member": "m", "score": 5})
    assert (gone.status, gone.code) == (404, "unknown_board")
    assert "retired" in gone.body["hint"]
    assert (await api.call("DELETE", "/v1/boards/counters")).code == "board_conflict"
    anew = (await api.define("season", rule="sum")).body
    assert anew["generation"] == 3


async def test_an_overruled_definition_is_listed_with_its_members(api: Api) -> None:
    await api.define("clash", rule="sum")
    await api.post("/v1/boards/clash/entries", {"member": "mine", "add": 1})
    body = definitions.to_body(Definition(rule="best"), {})
    later = (now_ms() + 1000) << 16
    slot = slot_of_name(Kind.DEFINITION, "us-1")
    await merge(api, [row_of(BOARDS_SPACE, b"clash", slot, (2, later, body), 2)])
    shown = (await api.get("/v1/boards/clash")).body
    assert (shown["definition"]["rule"], shown["written_by"]) == ("best", "us-1")
    (lost,) = shown["overruled"]
    assert (lost["agent"], lost["definition"]["rule"], lost["members"]) == ("eu-1", "sum", 1)


@pytest.mark.parametrize("order", ["high", "low"])
@pytest.mark.parametrize("ties", ["first", "last", "shared", "member"])
async def test_a_plain_redis_client_sees_what_the_api_says(api: Api, ties: str, order: str) -> None:
    board = f"direct-{order}-{ties}"
    await api.define(board, rule="best", order=order, ties=ties)
    entries = [
        {"member": f"m{i}", "score": i % 3, "at": f"2026-11-0{1 + i}T00:00:00Z"} for i in range(8)
    ]
    await api.post(f"/v1/boards/{board}/entries", {"entries": entries})
    shown = (await page(api, board))["entries"]
    key = f"lb:{{s0}}:{board}:all"
    meta = await api.redis.hgetall(f"{key}:meta")
    found: Any = await api.redis.zrange(key, 0, -1, desc=order == "high", withscores=True)
    decoded = [(m.decode(), int(composite) >> int(meta[b"b"])) for m, composite in found]
    assert decoded == [(entry["member"], entry["score"]) for entry in shown]
    assert meta[b"ties"] == ties.encode()
    assert meta[b"order"] == order.encode()
