"""Boards over HTTP: define, preview, change, list, reset, retire; and what Redis then holds."""

from __future__ import annotations

import asyncio
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


async def test_a_change_of_what_was_seen_is_refused_once_somebody_else_changed_it(
    api: Api,
) -> None:
    where = "/v1/boards/careful"
    unknown = await api.call("PUT", where, {"rule": "sum"}, headers={"If-Match": '"0.1.eu-1"'})
    assert (unknown.status, unknown.code) == (409, "board_conflict")
    await api.define("careful", rule="sum")
    seen = {"If-Match": (await api.get(where)).headers["Etag"]}
    mine, theirs = {"rule": "sum", "ties": "shared"}, {"rule": "sum", "ties": "last"}
    planned = await api.call("PUT", f"{where}?preview=true", mine, headers=seen)
    assert planned.status == 200
    assert (await api.call("PUT", where, mine, headers=seen)).body["version"] == 2
    before = api.queue.state.lsn
    for method, path, body in (
        ("PUT", where, theirs),
        ("PUT", f"{where}?preview=true", theirs),
        ("POST", f"{where}/reset", None),
        ("POST", f"{where}/reset?preview=true", theirs),
        ("DELETE", where, None),
    ):
        refused = await api.call(method, path, body, headers=seen)
        assert (refused.status, refused.code) == (409, "board_conflict")
        assert "generation 0, version 2, by agent 'eu-1'" in refused.body["detail"]
    assert api.queue.state.lsn == before
    assert (await api.get(where)).body["definition"]["ties"] == "shared"
    anything = {"If-Match": f'"nothing", {(await api.get(where)).headers["Etag"]}'}
    assert (await api.call("POST", f"{where}/reset", headers=anything)).body["generation"] == 1
    again = await api.call("POST", f"{where}/reset", headers=anything)
    assert (again.status, again.code) == (409, "board_conflict"), "a reset is sent once"
    assert (await api.call("DELETE", where, headers={"If-Match": "*"})).status == 200


async def test_of_two_operators_who_change_at_once_one_is_refused(api: Api) -> None:
    where = "/v1/boards/race"
    await api.define("race", rule="sum")
    seen = {"If-Match": (await api.get(where)).headers["Etag"]}
    bodies = [{"rule": "sum", "ties": ties} for ties in ("shared", "last", "member")]
    answers = await asyncio.gather(*(api.call("PUT", where, b, headers=seen) for b in bodies))
    assert sorted(answer.status for answer in answers) == [200, 409, 409]
    assert (await api.get(where)).body["version"] == 2


async def overrule(api: Api, board: str, rule: Any = "latest") -> None:
    """A definition by another region, written at the same time and a moment later."""
    body = definitions.to_body(Definition(rule=rule), {})
    later = (now_ms() + 1000) << 16
    slot = slot_of_name(Kind.DEFINITION, "us-1")
    await merge(api, [row_of(BOARDS_SPACE, board.encode(), slot, (2, later, body), 2)])
    shown = (await api.get(f"/v1/boards/{board}")).body
    assert (shown["written_by"], shown["overruled"][0]["agent"]) == ("us-1", "eu-1")


async def lost_of(api: Api, board: str, query: str = "") -> Any:
    return (await api.get(f"/v1/boards/{board}/overruled/eu-1/entries?{query}")).body


async def test_what_a_sliding_window_alone_had_counted_can_be_read(api: Api) -> None:
    await api.define("lost-last", rule="best", windows=[{"name": "last:7d"}])
    await api.post("/v1/boards/lost-last/entries", {"member": "m", "score": 5})
    await overrule(api, "lost-last")
    shown = (await api.get("/v1/boards/lost-last")).body["overruled"][0]
    assert (shown["generation"], shown["members"]) == (0, 1)
    page_ = await lost_of(api, "lost-last")
    assert [(e["member"], e["score"]) for e in page_["entries"]] == [("m", 5)]
    assert page_["window"].startswith("day:")
    assert await lost_of(api, "lost-last", f"window={page_['window']}") == page_
    assert (await lost_of(api, "lost-last", "window=hour"))["code"] == "unknown_window"


async def test_what_a_season_that_is_over_had_counted_can_be_read(api: Api) -> None:
    season = {"name": "season:s1", "start": "2026-01-01T00:00:00Z", "end": "2026-02-01T00:00:00Z"}
    await api.define("lost-season", rule="best", windows=[season, {"name": "all"}])
    await overrule(api, "lost-season")
    for query in ("", "window=season:s1"):
        page_ = await lost_of(api, "lost-season", query)
        assert (page_["window"], page_["entries"], page_["next"]) == ("season:s1", [], None)


async def test_what_was_counted_after_a_reset_that_the_loser_had_heard_of_is_shown(
    api: Api,
) -> None:
    await api.define("lost-reset", rule="best", ties="member")
    await api.post("/v1/boards/lost-reset/entries", {"member": "old", "score": 5})
    await api.call("POST", "/v1/boards/lost-reset/reset")
    for member in ("m1", "m2"):
        await api.post("/v1/boards/lost-reset/entries", {"member": member, "score": 6})
    await overrule(api, "lost-reset")
    shown = (await api.get("/v1/boards/lost-reset")).body
    lost = shown["overruled"][0]
    assert (shown["generation"], lost["generation"], lost["members"]) == (1, 0, 2)
    page_ = await lost_of(api, "lost-reset", "limit=1")
    assert (page_["generation"], page_["next"]) == (1, "m1")
    assert [e["member"] for e in page_["entries"]] == ["m1"]
    rest = await lost_of(api, "lost-reset", "after=m1")
    assert [e["member"] for e in rest["entries"]] == ["m2"]
    before = await lost_of(api, "lost-reset", "generation=0")
    assert [(e["member"], e["score"]) for e in before["entries"]] == [("old", 5)]
    refused = await lost_of(api, "lost-reset", "generation=2")
    assert refused["code"] == "unknown_generation"


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
