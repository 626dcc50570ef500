"""What counts once over HTTP: keys, likes, uniques and trends; and rates and bans."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from agent.boards.entry import rfc3339, time_ms
from agent.operation import LiftBan, SetBan
from tests.integration.api_node import Api, is_ready, now_ms, page, running_api

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def api(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Api]:
    async with running_api(tmp_path_factory.mktemp("counting")) as running:
        await running.until(lambda: is_ready(running))
        yield running


async def post(api: Api, board: str, body: Any, **headers: str) -> Any:
    answer = await api.post(f"/v1/boards/{board}/entries", body, **headers)
    assert answer.status == 200, answer
    return answer.body["entries"]


# --- keys ----------------------------------------------------------------------------------


async def test_a_key_counts_once(api: Api) -> None:
    await api.define("once", rule="sum")
    entry = {"member": "m", "add": 5, "key": "k1", "at": now_ms()}
    (first,) = await post(api, "once", entry)
    assert first == {"member": "m", "score": {"all": 5}}
    await post(api, "once", {"member": "m", "add": 1})
    (again,) = await post(api, "once", entry)
    assert (again["score"], again["duplicate"]) == ({"all": 6}, True)
    assert abs(now_ms() - time_ms(again["counted_at"], now_ms())) < 60_000
    assert (await page(api, "once"))["entries"][0]["score"] == 6


async def test_a_batch_sent_again_is_nothing(api: Api) -> None:
    await api.define("batch", rule="sum")
    at = now_ms()
    entries = [{"member": f"m{i}", "add": 1, "key": f"k{i}", "at": at} for i in range(20)]
    new = {"member": "new", "add": 1, "key": "n", "at": at}
    assert not any("duplicate" in e for e in await post(api, "batch", {"entries": entries}))
    second = await post(api, "batch", {"entries": [*entries, new]})
    assert [entry.get("duplicate", False) for entry in second] == [True] * 20 + [False]
    assert {entry["score"]["all"] for entry in second} == {1}
    twice = await post(api, "batch", {"entries": [new | {"key": "x"}, new | {"key": "x"}]})
    assert [entry.get("duplicate", False) for entry in twice] == [False, True]


async def test_the_same_key_with_other_content(api: Api) -> None:
    await api.define("other", rule="sum")
    at = now_ms()
    entry = {"member": "m", "add": 5, "key": "k", "at": at}
    await post(api, "other", entry)
    for changed in ({"add": 6}, {"at": at - 1}):
        answer = await api.post("/v1/boards/other/entries", entry | changed)
        assert (answer.status, answer.code) == (409, "key_conflict")
    batch = {"entries": [{"member": "n", "add": 1}, entry | {"add": 6}]}
    answer = await api.post("/v1/boards/other/entries", batch)
    assert (answer.status, answer.body["errors"][0]["index"]) == (409, 1)
    assert (await page(api, "other"))["total"] == 1


async def test_keys_that_hold_their_time_and_old_ones(api: Api) -> None:
    await api.define("timed", rule="sum", key_retention="1m")
    stamp = f"{now_ms():012x}"
    key = f"{stamp[:8]}-{stamp[8:]}-7000-8000-000000000000"  # a UUIDv7
    for duplicate in (False, True):
        (answer,) = await post(api, "timed", {"member": "m", "add": 1, "key": key})
        assert answer.get("duplicate", False) is duplicate
    old = {"member": "m", "add": 1, "key": "k", "at": rfc3339(now_ms() - 61_000)}
    answer = await api.post("/v1/boards/timed/entries", old)
    assert (answer.status, answer.code, answer.body["definite"]) == (410, "key_expired", True)


async def test_the_header_is_the_key(api: Api) -> None:
    await api.define("header", rule="sum")
    entry = {"member": "m", "add": 5, "at": now_ms()}
    header = {"Idempotency-Key": "k"}
    await post(api, "header", entry, **header)
    (again,) = await post(api, "header", entry, **header)
    assert again["duplicate"] is True
    (same,) = await post(api, "header", entry | {"key": "k"})
    assert same["score"] == {"all": 5}


async def test_counters_have_keys(api: Api) -> None:
    body = {"by": 3, "key": "k", "at": now_ms()}
    first = (await api.post("/v1/counters/keyed", body)).body
    assert (first["value"], "duplicate" in first) == (3, False)
    again = (await api.post("/v1/counters/keyed", body)).body
    assert (again["value"], again["duplicate"]) == (3, True)
    assert again["counted_at"].endswith("Z")
    header = {"Idempotency-Key": "k"}
    bare = {"by": 3, "at": body["at"]}
    assert (await api.post("/v1/counters/keyed", bare, **header)).body["duplicate"] is True
    differs = await api.post("/v1/counters/keyed", body, **{"Idempotency-Key": "other"})
    assert (differs.status, differs.code) == (400, "malformed")
    conflict = await api.post("/v1/counters/keyed", body | {"by": 4})
    assert (conflict.status, conflict.code) == (409, "key_conflict")
    late = await api.post("/v1/counters/keyed", {"by": 1, "at": "2020-01-01T00:00:00Z"})
    assert late.body["value"] == 4
    assert (await api.get("/v1/counters/keyed")).body["value"] == 4


async def test_several_boards_at_once_with_keys(api: Api) -> None:
    await api.define("several", rule="sum")
    await api.define("fans", rule="distinct")
    entries = [
        {"board": "several", "member": "m", "add": 1, "key": "k", "at": now_ms()},
        {"board": "fans", "member": "m", "actor": "a"},
        {"board": "counters", "member": "c", "add": 1, "key": "k", "at": now_ms()},
    ]
    first = (await api.post("/v1/entries", {"entries": entries})).body["entries"]
    again = (await api.post("/v1/entries", {"entries": entries})).body["entries"]
    assert [entry["score"] for entry in first] == [entry["score"] for entry in again]
    assert [entry.get("duplicate", False) for entry in again] == [True, False, True]
    assert ["rounded" in entry for entry in again] == [False, True, False]


async def test_kept_results_need_a_key(api: Api) -> None:
    await api.define("runs", rule="best", results="keep", windows=[{"name": "day"}])
    result = {"member": "m", "score": 700, "key": "r1", "at": now_ms()}
    (first,) = await post(api, "runs", result)
    assert list(first["score"].values()) == [700]
    (again,) = await post(api, "runs", result)
    assert again["duplicate"] is True
    other = await api.post("/v1/boards/runs/entries", result | {"score": 900})
    assert (other.status, other.code) == (409, "key_conflict")


# --- likes, uniques, trends ------------------------------------------------------------------


async def test_likes_are_facts(api: Api) -> None:
    await api.define("likes", rule="distinct")
    fans = [{"member": "post", "actor": f"fan{i}"} for i in range(1_234)]
    answer = await post(api, "likes", {"entries": fans})
    assert answer[-1] == {"member": "post", "score": {"all": 1234}, "rounded": {"all": "1.2K"}}
    (double,) = await post(api, "likes", {"member": "post", "actor": "fan0", "present": True})
    assert double["score"] == {"all": 1234}
    (fewer,) = await post(api, "likes", {"member": "post", "actor": "fan0", "present": False})
    assert fewer["score"] == {"all": 1233}
    (entry,) = (await page(api, "likes"))["entries"]
    assert (entry["score"], entry["rounded"], entry["reached_at"]) == (1233, "1.2K", None)
    member = (await api.get("/v1/boards/likes/entries/post?neighbors=1")).body
    assert (member["score"], member["rounded"], member["exact"]) == (1233, "1.2K", True)


async def test_uniques_are_estimates(api: Api) -> None:
    await api.define("visits", rule="unique")
    visits = [{"member": "page", "actor": f"guest{i % 2000}"} for i in range(4_000)]
    answer = await post(api, "visits", {"entries": visits})
    assert abs(answer[-1]["score"]["all"] - 2_000) < 100
    (entry,) = (await page(api, "visits"))["entries"]
    assert entry["score"] == answer[-1]["score"]["all"]
    assert entry["rounded"] in ("1.9K", "2K")
    assert (await api.get("/v1/boards/visits/entries/page")).body["exact"] is False


async def test_trends_show_the_heaviest(api: Api) -> None:
    await api.define("songs", rule="trend")
    plays = [{"member": f"song{i}", "add": 1_000 * (i + 1)} for i in range(5)]
    answer = await post(api, "songs", {"entries": plays})
    assert answer[4] == {"member": "song4", "score": {"all": 5000}, "rounded": {"all": "5K"}}

    async def shown() -> bool:
        found = await api.get("/v1/boards/songs/entries?limit=2")
        names = [(e["member"], e["score"], e["rounded"]) for e in found.body.get("entries", [])]
        return names == [("song4", 5000, "5K"), ("song3", 4000, "4K")]

    await api.until(shown)
    assert (await api.get("/v1/boards/songs/entries/song4")).body["exact"] is False


async def test_scores_that_are_no_counts_are_not_rounded(api: Api) -> None:
    await api.define("plain", rule="sum")
    (answer,) = await post(api, "plain", {"member": "m", "add": 12_345})
    assert "rounded" not in answer
    assert "rounded" not in (await page(api, "plain"))["entries"][0]
    assert "rounded" not in (await api.get("/v1/boards/plain/entries/m")).body


# --- rates and bans --------------------------------------------------------------------------


async def test_a_rate_refuses_whole_requests(api: Api) -> None:
    await api.define("rated", rule="sum", rate={"per_member": 3, "per_s": 3600})
    refused_before = api.services.counts.rate_limited
    three = {"entries": [{"member": "m", "add": 1}] * 3}
    bad = await api.post("/v1/boards/rated/entries", {"entries": [{"member": "m", "add": 1.5}] * 3})
    assert bad.status == 400  # and takes nothing from the rate
    await post(api, "rated", three)
    over = await api.post("/v1/boards/rated/entries", {"member": "m", "add": 1})
    assert (over.status, over.code, over.body["definite"]) == (429, "rate_limited", True)
    assert int(over.headers["Retry-After"]) in range(1, 1201)
    assert "3 entries in 3600 s" in over.body["detail"]
    assert "errors" not in over.body
    batch = {"entries": [{"member": "n", "add": 1}, {"member": "m", "add": 1}]}
    both = await api.post("/v1/boards/rated/entries", batch)
    assert (both.status, [e["index"] for e in both.body["errors"]]) == (429, [1])
    await api.define("plain2", rule="sum")
    several = [{"board": "plain2", "member": "m", "add": 1}]
    several += [{"board": "rated"} | entry for entry in batch["entries"]]
    across = await api.post("/v1/entries", {"entries": several})
    assert (across.status, [e["index"] for e in across.body["errors"]]) == (429, [2])
    await post(api, "rated", {"entries": [{"member": "n", "add": 1}] * 3})
    scores = {e["member"]: e["score"] for e in (await page(api, "rated"))["entries"]}
    assert scores == {"m": 3, "n": 3}
    assert (await page(api, "plain2"))["total"] == 0
    assert api.services.counts.rate_limited == refused_before + 6
    text = (await api.get("/metrics")).body.decode()
    assert "tallyring_rate_limited_total 6.0" in text


async def test_a_duplicate_takes_from_the_rate_too(api: Api) -> None:
    await api.define("rated2", rule="sum", rate={"per_member": 2, "per_s": 3600})
    entry = {"member": "m", "add": 1, "key": "k", "at": now_ms()}
    await post(api, "rated2", entry)
    await post(api, "rated2", entry)
    assert (await api.post("/v1/boards/rated2/entries", entry)).status == 429


async def test_a_banned_member_is_not_ranked(api: Api) -> None:
    await api.define("fair", rule="best")
    await post(api, "fair", {"entries": [{"member": "x", "score": 9}, {"member": "y", "score": 5}]})
    await api.queue.submit(SetBan(b"x", "fair", None, "cheats", "test"))
    found = await page(api, "fair")
    assert [(entry["rank"], entry["member"]) for entry in found["entries"]] == [(1, "y")]
    answer = await api.get("/v1/boards/fair/entries/x")
    assert (answer.status, answer.code, answer.body["total"]) == (404, "not_ranked", 1)
    assert "banned" in answer.body["hint"]
    assert (await api.get("/v1/boards/fair/entries/z")).body["hint"] == ""
    assert "tallyring_bans 1.0" in (await api.get("/metrics")).body.decode()
    await api.queue.submit(LiftBan(b"x", "fair", "", "test"))
    found = await page(api, "fair")
    assert [(entry["rank"], entry["member"]) for entry in found["entries"]] == [(1, "x"), (2, "y")]


async def test_facts_are_measured(api: Api) -> None:
    await api.define("measured", rule="sum")
    before, at = api.queue.state.facts, now_ms()
    entries = [{"member": "m", "add": 1, "key": f"k{i}", "at": at} for i in range(21)]
    await post(api, "measured", {"entries": entries})
    text = (await api.get("/metrics")).body.decode()
    assert f"tallyring_facts {float(before + 21)}" in text
    for part in ("tallyring_late_facts_total 0.0", "tallyring_erasures 0.0"):
        assert part in text
