"""Every read of ranks: pages that can be gone through while others write, friends, several boards.

What is shown is held against plain lists of integers, over HTTP and with Redis commands.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiohttp import web

from agent.api.answers import PageAnswer
from agent.api.clock import ManualClock
from agent.api.top import TopPages
from agent.boards.entry import time_ms
from agent.limits import TIME_MS_MAX
from tests.integration.api_node import Api, is_ready, running_api

MONDAY = "2026-11-30T13:00:00Z"
TUESDAY = "2026-12-01T13:00:00Z"


def ms(text: str) -> int:
    return time_ms(text, TIME_MS_MAX)


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    async with running_api(tmp_path, clock=ManualClock(ms(MONDAY))) as running:
        await running.until(lambda: is_ready(running))
        yield running


async def write(api: Api, board: str, scores: dict[str, int], field: str = "score") -> str:
    """Write one entry a member; its position."""
    entries = [{"member": name, field: score} for name, score in scores.items()]
    answer = await api.post(f"/v1/boards/{board}/entries", {"entries": entries})
    assert answer.status == 200, answer
    return str(answer.body["position"])


async def read(api: Api, path: str) -> Any:
    """What a read answers; it is sent again where it waited in vain for what it is to include."""
    answer = await api.get(path)
    while answer.status == 503 and answer.body["code"] == "too_stale":
        answer = await api.get(path)
    assert answer.status == 200, answer
    return answer.body


@pytest.mark.parametrize("order", ["high", "low"])
@pytest.mark.parametrize("ties", ["first", "last", "shared", "member"])
async def test_250_members_with_10_scores_are_each_met_once_while_others_write(
    api: Api, order: str, ties: str
) -> None:
    random = Random(f"{order} {ties}")
    await api.define("cup", rule="latest", order=order, ties=ties)
    mine = {f"m{number:03}": random.randrange(10) for number in range(250)}
    after = await write(api, "cup", mine)
    await read(api, f"/v1/boards/cup/entries?after={after}")
    stop = asyncio.Event()

    async def others() -> None:
        while not stop.is_set():
            names = [f"{random.choice('an')}{random.randrange(99)}" for _ in range(5)]
            await write(api, "cup", {name: random.randrange(10) for name in names})

    async with asyncio.TaskGroup() as group:
        group.create_task(others())
        forward = await go(api, "next")
        backward = await go(api, "previous", forward[-1])
        stop.set()
    for pages in (forward, backward):
        names = [line["member"] for shown in pages for line in shown["entries"]]
        met = [name for name in names if name in mine]
        assert sorted(met) == sorted(mine)
        assert len({*met}) == 250
    down = [
        line["member"]
        for its in reversed(backward)
        for line in its["entries"]
        if line["member"] in mine
    ]
    assert down == [
        line["member"] for its in forward for line in its["entries"] if line["member"] in mine
    ]


async def go(api: Api, way: str, page: Any = None) -> list[Any]:
    """All pages of 25, one after the other: from the first, or from one page back to it."""
    if page is None:
        page = await read(api, "/v1/boards/cup/entries?limit=25")
    pages = [page]
    while page[way] is not None:
        page = await read(api, f"/v1/boards/cup/entries?limit=25&cursor={page[way]}")
        pages.append(page)
    return pages


async def test_a_row_that_is_gone_is_still_a_place(api: Api) -> None:
    await api.define("cup", rule="best", ties="member")
    await write(api, "cup", {"a": 5, "b": 5, "c": 5, "d": 5})
    after = await write(api, "cup", {"e": 1})
    page = await read(api, f"/v1/boards/cup/entries?limit=2&after={after}")
    assert [line["member"] for line in page["entries"]] == ["d", "c"]
    assert page["previous"] is None
    await api.call("PUT", "/v1/boards/cup/bans/c")
    await api.until(lambda: hidden(api, "c"))
    rest = await read(api, f"/v1/boards/cup/entries?limit=9&cursor={page['next']}")
    assert [line["member"] for line in rest["entries"]] == ["b", "a", "e"]
    assert (rest["offset"], rest["next"]) == (1, None)
    back = await read(api, f"/v1/boards/cup/entries?limit=9&cursor={rest['previous']}")
    assert [line["member"] for line in back["entries"]] == ["d"]


async def hidden(api: Api, member: str) -> bool:
    return (await api.get(f"/v1/boards/cup/entries/{member}")).status == 404


@pytest.mark.parametrize(
    ("query", "field"),
    [("cursor=!", "cursor"), ("cursor=AAAA", "cursor"), ("cursor=k&offset=3", "offset")],
)
async def test_cursors_that_are_none_are_refused(api: Api, query: str, field: str) -> None:
    await api.define("cup", rule="best")
    answer = await api.get(f"/v1/boards/cup/entries?{query}")
    assert (answer.status, answer.code) == (400, "malformed")
    assert field in answer.body["detail"]


async def test_a_cursor_of_another_window_is_refused(api: Api) -> None:
    await api.define("cup", rule="best", windows=[{"name": "day"}, {"name": "all"}])
    after = await write(api, "cup", {"a": 5, "b": 4})
    page = await read(api, f"/v1/boards/cup/entries?limit=1&after={after}")
    answer = await api.get(f"/v1/boards/cup/entries?window=all&cursor={page['next']}")
    assert (answer.status, answer.code) == (400, "malformed")


@pytest.mark.parametrize("order", ["high", "low"])
@pytest.mark.parametrize("ties", ["first", "shared", "member"])
async def test_friends_are_ranked_among_themselves(api: Api, order: str, ties: str) -> None:
    await api.define("cup", rule="best", order=order, ties=ties)
    after = ""
    for at, (name, score) in enumerate([("p", 9), ("q", 9), ("x", 7), ("y", 3), ("z", 9)]):
        entry = {"member": name, "score": score, "at": ms(MONDAY) - 60_000 * (9 - at)}
        after = (await api.post("/v1/boards/cup/entries", entry)).body["position"]
    await read(api, f"/v1/boards/cup/entries?after={after}")
    await api.call("PUT", "/v1/boards/cup/bans/z")
    await api.until(lambda: hidden(api, "z"))
    wanted = ["y", "q", "p", "nobody", "z", "q"]
    answer = await api.post("/v1/boards/cup/among", {"members": wanted})
    assert answer.status == 200, answer
    found = [(line["rank"], line["member"], line["score"]) for line in answer.body["entries"]]
    best = {  # by hand: equal scores go by time, or by name as Redis orders them
        ("high", "first"): [(1, "p", 9), (2, "q", 9), (3, "y", 3)],
        ("high", "shared"): [(1, "q", 9), (1, "p", 9), (3, "y", 3)],
        ("high", "member"): [(1, "q", 9), (2, "p", 9), (3, "y", 3)],
        ("low", "first"): [(1, "y", 3), (2, "p", 9), (3, "q", 9)],
        ("low", "shared"): [(1, "y", 3), (2, "p", 9), (2, "q", 9)],
        ("low", "member"): [(1, "y", 3), (2, "p", 9), (3, "q", 9)],
    }
    assert found == best[order, ties]
    assert answer.body["missing"] == ["nobody", "z"]
    assert answer.body["total"] == 3


async def test_5000_friends_and_no_more(api: Api) -> None:
    await api.define("cup", rule="best")
    names = [f"m{number}" for number in range(5_001)]
    after = await write(api, "cup", {name: number for number, name in enumerate(names)})
    path = f"/v1/boards/cup/among?after={after}"
    answer = await api.post(path, {"members": names[:5_000]})
    assert [line["member"] for line in answer.body["entries"]] == names[4_999::-1]
    refused = await api.post(path, {"members": names})
    assert (refused.status, refused.code) == (413, "too_large")
    assert "5000" in refused.body["detail"]
    for members in ([], [""], ["a\0b"], ["x" * 257]):
        refused = await api.post(path, {"members": members})
        assert (refused.status, refused.code) == (400, "malformed"), members


async def test_the_rank_in_the_window_before(api: Api) -> None:
    await api.define("cup", rule="best", windows=[{"name": "day", "grace": "0s"}, {"name": "all"}])
    after = await write(api, "cup", {"a": 5, "b": 7})
    await read(api, f"/v1/boards/cup/entries?after={after}")
    await api.until(lambda: shows(api, "cup", 2))
    await api.post("/v1/clock", {"now": TUESDAY})
    after = await write(api, "cup", {"a": 9, "c": 2})
    await api.until(lambda: shows(api, "cup", 2))
    found = await read(api, f"/v1/boards/cup/entries/a?previous=true&after={after}")
    assert found["previous"] == {
        "window": "day:2026-11-30",
        "rank": 2,
        "score": 5,
        "total": 2,
    }
    assert (found["rank"], found["total"], found["top_percent"]) == (1, 2, 50.0)
    assert (await read(api, "/v1/boards/cup/entries/c?previous=true"))["previous"] is None
    absent = await api.get("/v1/boards/cup/entries/b?previous=true")
    assert (absent.status, absent.code, absent.body["total"]) == (404, "not_ranked", 2)
    assert absent.body["previous"] == {
        "window": "day:2026-11-30",
        "rank": 1,
        "score": 7,
        "total": 2,
    }
    assert "previous" not in (await api.get("/v1/boards/cup/entries/b")).body
    alone = {"board": "cup", "member": "b"}
    reads = [{**alone, "previous": True}, alone, {"board": "cup", "member": "a", "previous": True}]
    several = (await api.post("/v1/ranks", {"reads": reads})).body["reads"]
    assert several[0]["previous"] == absent.body["previous"]
    assert (several[1]["code"], several[1]["total"]) == ("not_ranked", 2)
    assert several[2]["previous"] == found["previous"]
    assert (await read(api, "/v1/boards/cup/entries/a?window=all&previous=true"))[
        "previous"
    ] is None
    assert "previous" not in await read(api, "/v1/boards/cup/entries/a")


async def test_several_boards_in_one_request(api: Api) -> None:
    await api.define("cup", rule="best")
    await api.define("laps", rule="best", order="low")
    await write(api, "cup", {"a": 5, "b": 7})
    after = await write(api, "laps", {"a": 61, "b": 65})
    await read(api, f"/v1/boards/laps/entries?after={after}")
    await api.until(lambda: shows(api, "cup", 2))
    reads = [
        {"board": "cup", "member": "a", "neighbors": 1},
        {"board": "laps", "limit": 1},
        {"board": "cup", "member": "nobody"},
        {"board": "nowhere", "member": "a"},
        {"board": "cup", "window": "day"},
        {"board": "cup", "member": ""},
    ]
    answer = await api.post("/v1/ranks", {"reads": reads})
    assert answer.status == 200, answer
    member, page, *refused = answer.body["reads"]
    assert (member["rank"], member["neighbors"][0]["member"]) == (2, "b")
    assert [line["member"] for line in page["entries"]] == ["a"]
    assert [its["code"] for its in refused] == [
        "not_ranked",
        "unknown_board",
        "unknown_window",
        "malformed",
    ]
    wrong: list[Any] = [[], [{"board": "cup"}] * 101, [{}]]
    for asked in wrong:
        assert (await api.post("/v1/ranks", {"reads": asked})).status in (400, 413)


async def shows(api: Api, board: str, total: int) -> bool:
    return bool((await api.get(f"/v1/boards/{board}/entries")).body.get("total") == total)


async def test_pages_have_tags_and_a_top_page_is_kept_for_a_second(api: Api) -> None:
    await api.define("cup", rule="best")
    after = await write(api, "cup", {"a": 5, "b": 7})
    await read(api, f"/v1/boards/cup/entries?after={after}")
    await api.until(lambda: shows(api, "cup", 2))
    first = await api.get("/v1/boards/cup/entries")
    assert first.headers["Cache-Control"] == "private, max-age=1"
    tag = first.headers["Etag"]
    same = await api.call("GET", "/v1/boards/cup/entries", headers={"If-None-Match": tag})
    assert (same.status, same.headers["Etag"], same.body) == (304, tag, b"")
    other = await api.call("GET", "/v1/boards/cup/entries?offset=1")
    assert other.headers["Cache-Control"] == "private, no-cache"
    assert other.headers["Etag"] != tag
    again = await api.call(
        "GET", "/v1/boards/cup/entries?offset=1", headers={"If-None-Match": other.headers["Etag"]}
    )
    assert again.status == 304

    await write(api, "cup", {"c": 9})
    began = asyncio.get_running_loop().time()
    await api.until(lambda: shows(api, "cup", 3))
    assert asyncio.get_running_loop().time() - began < 2.0
    changed = await api.call("GET", "/v1/boards/cup/entries", headers={"If-None-Match": tag})
    assert (changed.status, changed.body["entries"][0]["member"]) == (200, "c")


async def test_a_page_that_is_kept_tells_its_age_and_is_not_too_stale_for_anybody(
    api: Api,
) -> None:
    await api.define("cup", rule="best")
    after = await write(api, "cup", {"a": 5})
    await read(api, f"/v1/boards/cup/entries?after={after}")
    now = [api.services.now_ms()]
    object.__setattr__(api.services, "now_ms", lambda: now[0])
    api.services.top._pages.clear()
    await read(api, "/v1/boards/cup/entries")
    fresh = await read(api, "/v1/boards/cup/entries")  # the one that is kept
    now[0] += 600
    old = await read(api, "/v1/boards/cup/entries")
    assert old["as_of"] == fresh["as_of"]
    assert old["max_lag_ms"] == fresh["max_lag_ms"] + 600
    limit = fresh["max_lag_ms"] + 599
    refused = await api.get(f"/v1/boards/cup/entries?max_lag_ms={limit}")
    assert (refused.status, refused.code) == (503, "too_stale")
    now[0] += 400
    assert await api.get("/v1/boards/cup/entries") is not None
    assert next(iter(api.services.top._pages.values())).made_ms == now[0]


async def test_a_ban_or_a_definition_made_here_is_seen_at_once(api: Api) -> None:
    await api.define("cup", rule="best")
    after = await write(api, "cup", {"a": 5, "b": 7})
    await read(api, f"/v1/boards/cup/entries?after={after}")
    await api.until(lambda: shows(api, "cup", 2))
    await api.call("PUT", "/v1/boards/cup/bans/b")
    await api.until(lambda: hidden(api, "b"))
    page = await read(api, "/v1/boards/cup/entries")
    assert [line["member"] for line in page["entries"]] == ["a"]
    await api.define("cup", rule="best", score={"min": 0, "max": 99})
    await api.until(lambda: shows(api, "cup", 1))
    key = "lb:{s0}:cup:all"
    rows = cast("list[tuple[bytes, float]]", await api.redis.zrevrange(key, 0, -1, withscores=True))
    assert [name for name, _ in rows] == [b"a"]


@pytest.mark.usefixtures("patient")
async def test_the_ranks_of_a_batch_are_those_of_the_page(api: Api) -> None:
    await api.define("cup", rule="best", ties="shared")
    entries = [{"member": f"m{number}", "score": number // 2} for number in range(100)]
    answer = await api.post("/v1/boards/cup/entries?rank=true", {"entries": entries})
    page = await read(api, f"/v1/boards/cup/entries?after={answer.body['position']}")
    want = {line["member"]: line["rank"] for line in page["entries"]}
    assert {line["member"]: line["rank"] for line in answer.body["entries"]} == want
    assert len(want) == 100


async def test_a_page_from_before_a_ban_is_not_kept(api: Api) -> None:
    """One that was read after the ban, but before Redis had followed, would stay for a second."""
    pages = TopPages()
    await api.define("cup", rule="best")
    since = pages.since(api.queue.state, "cup")
    assert since == api.queue.state.lsn
    await write(api, "cup", {"a": 5, "b": 7})
    assert pages.since(api.queue.state, "cup") == since < api.queue.state.lsn
    assert (await api.call("PUT", "/v1/boards/cup/bans/b", {"reason": "a bot"})).status == 200
    assert pages.since(api.queue.state, "cup") == api.queue.state.lsn

    request = cast("web.BaseRequest", SimpleNamespace(headers={}))
    page = PageAnswer("cup", "all", 0, 1, [], None, None, {"eu": "2026-11-30T13:00:00Z"}, 5)
    state, key = api.queue.state, ("cup", "all", 10)
    for keep in (False, True):
        pages.answer(key, state, 1_000, page, {"eu": 995}, request, keep=keep)
        assert (pages.find(key, state, 1_001, request, None) is not None) == keep
