"""Actors of `distinct` boards over the API: likes, unlikes, who likes, and windows."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from agent.api import slot_pages
from agent.api.clock import ManualClock
from tests.integration.api_node import Api, running_api

NOON_MS = 1_764_504_000_000  # 2025-11-30T12:00:00Z, a Sunday
DAY_MS = 86_400_000


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    async with running_api(tmp_path, clock=ManualClock(NOON_MS)) as opened:
        yield opened


def actor(name: str, board: str = "likes", member: str = "post") -> str:
    return f"/v1/boards/{board}/actors/{member}/{quote(name, safe='')}"


async def put(api: Api, name: str, board: str = "likes") -> Any:
    answer = await api.call("PUT", actor(name, board))
    assert answer.status == 200, answer
    return answer.body


async def all_pages(api: Api, path: str, limit: int) -> list[str]:
    """The actors of all pages, and that no page is over its limit."""
    found: list[str] = []
    after = ""
    while True:
        page = (await api.get(f"{path}limit={limit}{after}")).body
        assert len(page["actors"]) <= limit
        found += page["actors"]
        if page["next"] is None:
            return found
        after = f"&after={quote(page['next'], safe='')}"


async def test_a_like_is_one_however_often_and_can_be_taken_back(api: Api) -> None:
    await api.define("likes", rule="distinct")
    first = await put(api, "ann")
    assert (first["score"], first["present"], first["rounded"]) == ({"all": 1}, True, {"all": "1"})
    assert (first["member"], first["actor"], first["late"]) == ("post", "ann", [])
    assert (await put(api, "ann"))["score"] == {"all": 1}
    assert (await put(api, "b/o b"))["score"] == {"all": 2}
    shown = await api.get(f"{actor('b/o b')}?after={first['position']}")
    assert (shown.body["present"], shown.body["actor"]) == (True, "b/o b")
    assert (await api.get(actor("zoe"))).body["present"] is False
    gone = await api.call("DELETE", actor("ann"))
    assert (gone.body["score"], gone.body["present"]) == ({"all": 1}, False)
    assert (await api.call("DELETE", actor("ann"))).body["score"] == {"all": 1}
    assert (await api.get(actor("ann"))).body["present"] is False
    listed = await api.get("/v1/boards/likes/actors/post")
    assert (listed.body["actors"], listed.body["next"]) == (["b/o b"], None)


async def test_the_short_form_and_an_entry_are_the_same(api: Api) -> None:
    await api.define("likes", rule="distinct")
    entry = {"member": "post", "actor": "ann"}
    await api.post("/v1/boards/likes/entries", entry)
    assert (await api.get(actor("ann"))).body["present"] is True
    gone = await api.post("/v1/boards/likes/entries", {**entry, "present": False})
    assert gone.body["entries"][0]["score"] == {"all": 0}
    assert (await api.get(actor("ann"))).body["present"] is False


async def test_thousands_are_shown_rounded(api: Api) -> None:
    await api.define("likes", rule="distinct")
    entries = [{"member": "post", "actor": f"a{i}"} for i in range(2_345)]
    await api.post("/v1/boards/likes/entries", {"entries": entries})
    assert (await put(api, "one more"))["rounded"] == {"all": "2.3K"}


async def test_what_is_refused(api: Api) -> None:
    await api.define("sums", rule="sum")
    await api.define("uniques", rule="unique")
    await api.define("likes", rule="distinct")
    for method, path, status, code, says in (
        ("PUT", actor("a", "sums"), 400, "malformed", "'sum'"),
        ("DELETE", actor("a", "uniques"), 400, "malformed", "'unique'"),
        ("GET", actor("a", "uniques"), 400, "malformed", "'unique'"),
        ("GET", "/v1/boards/sums/actors/m", 400, "malformed", "'sum'"),
        ("PUT", actor("a", "nowhere"), 404, "unknown_board", "nowhere"),
        ("PUT", "/v1/boards/likes/actors/post/%00", 400, "malformed", "actor: "),
        ("GET", f"{actor('a')}?window=day", 404, "unknown_window", "day"),
        ("PUT", f"{actor('a')}?at=yesterday", 400, "malformed", "at: "),
        ("PUT", f"{actor('a')}?at={NOON_MS + DAY_MS}", 422, "out_of_range", "at: "),
        ("PUT", f"{actor('a')}?ack=never", 400, "malformed", "ack: "),
        ("PUT", f"{actor('a')}?when=now", 400, "malformed", "when"),
        ("GET", "/v1/boards/likes/actors/post?limit=1001", 400, "malformed", "limit"),
    ):
        refused = await api.call(method, path)
        assert (refused.status, refused.code) == (status, code), path
        assert says in refused.body["detail"], path
        assert not refused.body["detail"].startswith("entries["), path
    assert (await api.get("/v1/boards/likes/actors/post")).body["actors"] == []


async def test_a_like_counts_in_the_windows_of_its_time(api: Api) -> None:
    await api.define("likes", rule="distinct", windows=[{"name": "day"}, {"name": "month"}])
    yesterday_ms = NOON_MS - DAY_MS
    late = await api.call("PUT", f"{actor('ann')}?at={yesterday_ms}")
    assert late.body["late"] == ["day:2025-11-29"]
    assert late.body["score"] == {"month:2025-11": 1}
    assert (await put(api, "bob"))["score"] == {"day:2025-11-30": 1, "month:2025-11": 2}
    day = await api.get("/v1/boards/likes/actors/post")
    assert (day.body["window"], day.body["actors"]) == ("day:2025-11-30", ["bob"])
    month = await api.get("/v1/boards/likes/actors/post?window=month")
    assert (month.body["window"], month.body["actors"]) == ("month:2025-11", ["ann", "bob"])
    assert (await api.get(f"{actor('ann')}?window=month:2025-11")).body["present"] is True
    assert (await api.get(actor("ann"))).body["present"] is False
    refused = await api.call("PUT", f"{actor('cy')}?at=2025-10-01T00:00:00Z")
    assert (refused.status, refused.code) == (422, "window_closed")


async def test_a_sliding_window_lists_the_actors_of_all_its_buckets_once(api: Api) -> None:
    assert api.clock is not None
    await api.define("likes", rule="distinct", windows=[{"name": "last:3d"}])
    names = [f"a{i:02}" for i in range(12)]
    for day in range(4):
        for name in names[day : day + 6]:
            await put(api, name)
        if day < 3:
            api.clock.set_ms(NOON_MS + (day + 1) * DAY_MS)
    # The first of four days has left the window: a00 was there on that day alone.
    for limit in (1, 4, 100):
        path = "/v1/boards/likes/actors/post?window=last:3d&"
        assert await all_pages(api, path, limit) == names[1:9]
    assert (await api.get(f"{actor('a00')}?window=last:3d")).body["present"] is False
    assert (await api.get(f"{actor('a01')}?window=last:3d")).body["present"] is True


async def test_a_page_looks_at_a_bounded_number_of_cells(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    await api.define("likes", rule="distinct")
    entries = [{"member": "post", "actor": f"a{i:03}"} for i in range(100)]
    await api.post("/v1/boards/likes/entries", {"entries": entries})
    gone = [{**entry, "present": False} for entry in entries if entry["actor"] != "a042"]
    await api.post("/v1/boards/likes/entries", {"entries": gone})
    await put(api, "z")
    monkeypatch.setattr(slot_pages, "PAGE_CELLS_MAX", 10)
    first = (await api.get("/v1/boards/likes/actors/post?limit=2")).body
    assert (first["actors"], first["next"]) == ([], "a009")
    assert await all_pages(api, "/v1/boards/likes/actors/post?", 2) == ["a042", "z"]


async def test_a_bounded_look_at_several_buckets_lists_each_actor_once(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert api.clock is not None
    await api.define("likes", rule="distinct", windows=[{"name": "last:2d"}])
    entries = [{"member": "post", "actor": f"a{i:03}"} for i in range(60)]
    await api.post("/v1/boards/likes/entries", {"entries": entries})
    gone = [
        {**entry, "present": False} for entry in entries if entry["actor"] not in ("a030", "a042")
    ]
    await api.post("/v1/boards/likes/entries", {"entries": gone})
    api.clock.set_ms(NOON_MS + DAY_MS)
    for name in ("a007", "a042", "a055", "z"):
        await put(api, name)
    monkeypatch.setattr(slot_pages, "PAGE_CELLS_MAX", 20)
    found = await all_pages(api, "/v1/boards/likes/actors/post?", 3)
    assert found == ["a007", "a030", "a042", "a055", "z"]
