"""Bad input: each case is a clear problem document, nothing is stored, and the agent goes on."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import AsyncIterator
from typing import Any

import msgpack
import pytest
import pytest_asyncio

from agent.limits import REQUEST_BYTES_MAX, SCORE_MAX
from tests.integration.api_node import Api, running_api

pytestmark = pytest.mark.asyncio(loop_scope="module")

ENTRIES = "/v1/boards/s/entries"
BEST = "/v1/boards/best/entries"
GROWS = "/v1/boards/grows/entries"
LIKES = "/v1/boards/likes/entries"
UNIQUE = "/v1/boards/unique/entries"
TREND = "/v1/boards/trend/entries"
RESULTS = "/v1/boards/results/entries"
SEASON = "/v1/boards/season/entries"
MSGPACK = {"Content-Type": "application/msgpack"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def api(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Api]:
    async with running_api(tmp_path_factory.mktemp("bad-input")) as running:
        await running.define("s", rule="sum")
        await running.define("best", rule="best")
        await running.define("grows", rule="sum", grow_only=True)
        await running.define("likes", rule="distinct")
        await running.define("unique", rule="unique")
        await running.define("trend", rule="trend")
        await running.define("results", rule="best", results="keep", windows=[{"name": "day"}])
        over = {"start": "2020-01-01T00:00:00Z", "end": "2020-02-01T00:00:00Z"}
        await running.define("season", rule="sum", windows=[{"name": "season:s1", **over}])
        yield running


async def refused(api: Api, method: str, path: str, **sent: Any) -> Any:
    """Send what must be refused: definite, nothing stored, and the agent still counts."""
    before = api.queue.state
    answer = await api.call(method, path, **sent)
    assert answer.status >= 400, answer
    assert answer.body["definite"] is True
    assert answer.body["detail"]
    assert api.queue.state.lsn == before.lsn, "something was stored"
    after = await api.post("/v1/counters/alive", {"by": 1})
    assert after.status == 200
    return answer


def entry(**fields: Any) -> dict[str, Any]:
    return {"member": "m", "add": 1} | fields


# (path, body, status, code, what the detail names)
CASES: list[tuple[str, Any, int, str, str]] = [
    (ENTRIES, entry(add="1"), 400, "malformed", "add"),
    (ENTRIES, entry(add=True), 400, "malformed", "add"),
    (ENTRIES, entry(add=[1]), 400, "malformed", "add"),
    (ENTRIES, entry(add=236.5), 400, "malformed", "add: 236.5"),
    (ENTRIES, entry(add=None), 400, "malformed", "add: missing"),
    (ENTRIES, entry(member=7), 400, "malformed", "member"),
    (ENTRIES, {"add": 1}, 400, "malformed", "member"),
    (ENTRIES, entry(adds=1), 400, "malformed", "adds"),
    (ENTRIES, entry(score=1), 400, "malformed", "score"),
    (ENTRIES, entry(data={"x": 1}), 400, "malformed", "data"),
    (ENTRIES, entry(key="k"), 400, "malformed", "at: missing; an entry with a `key`"),
    (ENTRIES, entry(key="k" * 129, at=1), 400, "malformed", "key"),
    (ENTRIES, entry(key="k", at="2020-01-01T00:00:00Z"), 410, "key_expired", "remembered"),
    (ENTRIES, entry(actor="a"), 400, "malformed", "actor"),
    (ENTRIES, entry(present=True), 400, "malformed", "present"),
    (ENTRIES, entry(at="yesterday"), 400, "malformed", "at"),
    (ENTRIES, entry(at="2026-11-30T13:00:00"), 400, "malformed", "at"),
    (ENTRIES, entry(at="2926-11-30T13:00:00Z"), 422, "out_of_range", "ahead"),
    (ENTRIES, entry(at=2**60), 422, "out_of_range", "at"),
    (ENTRIES, entry(member=""), 400, "malformed", "member: empty"),
    (ENTRIES, entry(member="x" * 257), 400, "malformed", "257 bytes"),
    (ENTRIES, entry(member="ä" * 129), 400, "malformed", "258 bytes"),
    (ENTRIES, entry(member="a\0b"), 400, "malformed", "NUL"),
    (ENTRIES, entry(add=SCORE_MAX + 1), 422, "out_of_range", "2^53 - 1"),
    (ENTRIES, entry(add=-SCORE_MAX - 1), 422, "out_of_range", "2^53 - 1"),
    (ENTRIES, entry(add=10**30), 422, "out_of_range", "2^53 - 1"),
    (ENTRIES, entry(add=1e300), 422, "out_of_range", "2^53 - 1"),
    (ENTRIES, entry(add=2**27), 422, "out_of_range", "134217727"),
    (BEST, {"member": "m", "score": SCORE_MAX + 1}, 422, "out_of_range", "2^53 - 1"),
    (BEST, {"member": "m", "score": -1}, 422, "out_of_range", "score"),
    (BEST, {"member": "m", "add": 1}, 400, "malformed", "add"),
    (BEST, {"member": "m", "score": 1, "data": "x" * 1100}, 413, "too_large", "data"),
    (BEST, {"member": "m", "score": 1, "data": 2**70}, 400, "malformed", "data"),
    (BEST, {"member": "m", "score": 1, "key": ""}, 400, "malformed", "key"),
    (GROWS, entry(add=-1), 422, "grow_only", "only grows"),
    (LIKES, {"member": "m"}, 400, "malformed", "actor: missing"),
    (LIKES, {"member": "m", "actor": ""}, 400, "malformed", "actor: empty"),
    (LIKES, {"member": "m", "actor": "a", "present": 1}, 400, "malformed", "present"),
    (LIKES, entry(actor="a"), 400, "malformed", "add"),
    (UNIQUE, {"member": "m", "actor": "a", "present": False}, 400, "malformed", "present"),
    (TREND, entry(add=0), 422, "out_of_range", "at least 1"),
    (TREND, entry(key="k", at=1), 400, "malformed", "key"),
    (RESULTS, {"member": "m", "score": 1}, 400, "malformed", "key: missing"),
    (SEASON, entry(), 422, "window_closed", "no window of the board is open"),
    ("/v1/boards/nope/entries", entry(), 404, "unknown_board", "nope"),
    ("/v1/boards/NO%00PE/entries", entry(), 404, "unknown_board", "NO"),
    (ENTRIES, {"entries": []}, 400, "malformed", "entries"),
    (ENTRIES, {"entries": [entry()], "member": "m"}, 400, "malformed", "member"),
    (ENTRIES, {"entries": [entry()] * 10_001}, 413, "too_large", "10000"),
    ("/v1/entries", {"entries": [entry(board="s")] * 10_001}, 413, "too_large", "10000"),
    ("/v1/entries", {"entries": [entry()]}, 400, "malformed", "board"),
    ("/v1/counters/x", {"by": "3"}, 400, "malformed", "by"),
    ("/v1/counters/x", {"by": 1.5}, 400, "malformed", "by: 1.5"),
    ("/v1/counters/x", {"add": 1}, 400, "malformed", "add"),
    ("/v1/counters/x", {}, 400, "malformed", "by"),
    ("/v1/counters/x", [], 400, "malformed", "object"),
    ("/v1/counters/x", {"by": 1, "key": "k"}, 400, "malformed", "at: missing"),
    ("/v1/counters/x", {"by": 1, "key": "", "at": 1}, 400, "malformed", "key"),
    ("/v1/counters/x", {"by": 1, "key": "k", "at": 1}, 410, "key_expired", "remembered"),
    ("/v1/counters/x", {"by": 1, "at": "now"}, 400, "malformed", "at"),
    ("/v1/counters/%00", {"by": 1}, 400, "malformed", "name"),
    ("/v1/counters/%ff", {"by": 1}, 400, "malformed", "UTF-8"),
    ("/v1/counters/" + "x" * 257, {"by": 1}, 400, "malformed", "name: 257 bytes"),
    ("/v1/counters", {}, 400, "malformed", "length"),
    ("/v1/counters", {"x": 1, "": 1}, 400, "malformed", "'': empty"),
    ("/v1/counters", {"x": 1, "y": "1"}, 400, "malformed", "'y': expected an integer"),
    ("/v1/counters", {"x": 1, "y": True}, 400, "malformed", "'y'"),
    ("/v1/counters", {"x": 1, "y": 1.5}, 400, "malformed", "'y': 1.5"),
    ("/v1/counters", {"x": SCORE_MAX, "y": 2**60}, 422, "out_of_range", "2^53 - 1"),
    ("/v1/counters", {str(i): 1 for i in range(10_001)}, 413, "too_large", "10000"),
    ("/v1/boards/s/reset", {"rule": "nope"}, 400, "malformed", "rule"),
    ("/v1/boards/nope/reset", {"rule": "sum"}, 404, "unknown_board", "nope"),
]


@pytest.mark.parametrize(("path", "body", "status", "code", "names"), CASES)
async def test_bad_body(api: Api, path: str, body: Any, status: int, code: str, names: str) -> None:
    answer = await refused(api, "POST", path, body=body)
    assert (answer.status, answer.code) == (status, code)
    shown = answer.body["detail"] + str(answer.body.get("errors", ""))
    assert names in shown


NOW = {"start": "2020-01-01T00:00:00Z", "end": "2063-01-01T00:00:00Z"}
DEFINITIONS: list[tuple[str, Any, int, str, str]] = [
    ("x", {}, 400, "malformed", "rule"),
    ("x", {"rule": "sum", "colour": "red"}, 400, "malformed", "colour"),
    ("x", {"rule": "average"}, 400, "malformed", "rule"),
    ("x", {"rule": "best", "grow_only": True}, 400, "malformed", "grow_only"),
    ("x", {"rule": "sum", "windows": []}, 400, "malformed", "windows"),
    ("x", {"rule": "sum", "windows": [{"name": "fortnight"}]}, 400, "malformed", "windows[0].name"),
    ("x", {"rule": "sum", "windows": [{"name": "day"}] * 2}, 400, "malformed", "there twice"),
    (
        "x",
        {"rule": "sum", "windows": [{"name": "all", "zone": "Europe/Berlin"}]},
        400,
        "malformed",
        "zone",
    ),
    (
        "x",
        {"rule": "sum", "windows": [{"name": "day", "zone": "Mars/Base"}]},
        400,
        "malformed",
        "zone",
    ),
    ("x", {"rule": "sum", "windows": [{"name": "day", "keep": "8 d"}]}, 400, "malformed", "keep"),
    ("x", {"rule": "sum", "windows": [{"name": "season:s"}]}, 400, "malformed", "start"),
    ("x", {"rule": "sum", "rate": {"per_member": 0}}, 400, "malformed", "rate.per_member"),
    ("x", {"rule": "sum", "results": "keep"}, 400, "malformed", "results"),
    ("x", {"rule": "best", "key_retention": "1h"}, 400, "malformed", "key_retention"),
    ("x", {"rule": "sum", "key_retention": "8d"}, 422, "out_of_range", "key_retention"),
    ("x", {"rule": "sum", "half_life": "1h"}, 400, "malformed", "half_life"),
    ("x", {"rule": "distinct", "ties": "first"}, 400, "malformed", "ties"),
    (
        "s",
        {"rule": "sum", "windows": [{"name": "all"}, {"name": "season:now", **NOW}]},
        409,
        "board_conflict",
        "begun",
    ),
    ("x", {"rule": "sum", "score": {"min": 5, "max": 1}}, 400, "malformed", "score.min"),
    ("x", {"rule": "sum", "score": {"min": 0, "max": 1.5}}, 400, "malformed", "score.max"),
    ("x", {"rule": "sum", "score": {"min": 0, "max": 2**53}}, 422, "out_of_range", "score.max"),
    ("x", {"rule": "sum", "score": {"min": 0, "max": 2**40}}, 422, "tie_budget", "bits"),
    ("Not.A.Name", {"rule": "sum"}, 400, "malformed", "board name"),
    ("x" * 65, {"rule": "sum"}, 400, "malformed", "board name"),
    ("~ring", {"rule": "sum"}, 400, "malformed", "board name"),
    ("s", {"rule": "best"}, 409, "board_conflict", "rule"),
    ("counters", {"rule": "sum"}, 409, "board_conflict", "built in"),
]


@pytest.mark.parametrize("preview", ["", "?preview=true"])
@pytest.mark.parametrize(("board", "body", "status", "code", "names"), DEFINITIONS)
async def test_bad_definition(
    api: Api, board: str, body: Any, status: int, code: str, names: str, preview: str
) -> None:
    answer = await refused(api, "PUT", f"/v1/boards/{board}{preview}", body=body)
    assert (answer.status, answer.code) == (status, code)
    assert names in answer.body["detail"]


RAW: list[tuple[bytes, dict[str, str], int, str]] = [
    (b"", {}, 400, "malformed"),
    (b"{", {}, 400, "malformed"),
    (b'{"member": "m", "add": 1} x', {}, 400, "malformed"),
    (b'{"member": "m", "add": NaN}', {}, 400, "malformed"),
    (b'{"member": "m", "add": 1e999}', {}, 400, "malformed"),
    (b'{"member": "m", "add": ' + b"9" * 5000 + b"}", {}, 400, "malformed"),
    (b'{"member": "\\ud800", "add": 1}', {}, 400, "malformed"),
    (b'{"member": "\xff", "add": 1}', {}, 400, "malformed"),
    (b'{"member": "m", "data": ' + b"[" * 100_000, {}, 400, "malformed"),
    (b'{"entries": ' + b"[" * 100_000, {}, 400, "malformed"),
    (b'{"member": "m", "add": 1}', {"Content-Type": "text/plain"}, 415, "unsupported_media"),
    (
        b"member=m&add=1",
        {"Content-Type": "application/x-www-form-urlencoded"},
        415,
        "unsupported_media",
    ),
    (b"{}", {"Content-Type": "application/json; charset=utf-16"}, 415, "unsupported_media"),
    (b"not gzip", {"Content-Encoding": "gzip"}, 400, "malformed"),
    (b"\x82\xa6member\xa1m", MSGPACK, 400, "malformed"),
    (b"\x82\xa6member\xa1m\xa3add\xcb\x7f\xf0\0\0\0\0\0\0", MSGPACK, 400, "malformed"),
    (b"\x81\xa7entries\xdd\xff\xff\xff\xff", MSGPACK, 413, "too_large"),
    (b"\x81\xa7entries\xdd\x00\x00\x27\x10", MSGPACK, 400, "malformed"),
    (b"\x82\xa6member\xa1m\xa4data" + b"\xdd\xff\xff\xff\xff" * 500, MSGPACK, 400, "malformed"),
    (b"\x82\xa6member\xa1m\xa4data" + b"\x91" * 100_000, MSGPACK, 400, "malformed"),
]


@pytest.mark.parametrize(("raw", "headers", "status", "code"), RAW)
async def test_bad_bytes(
    api: Api,
    caplog: pytest.LogCaptureFixture,
    raw: bytes,
    headers: dict[str, str],
    status: int,
    code: str,
) -> None:
    answer = await refused(api, "POST", ENTRIES, raw=raw, headers=headers)
    assert (answer.status, answer.code) == (status, code)
    # Bad bytes are nothing that an operator should be woken for.
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


@pytest.mark.parametrize(
    "data", [msgpack.Timestamp(0), msgpack.ExtType(5, b"x"), b"bytes", {7: 1}, float("inf")]
)
async def test_data_that_json_does_not_have(api: Api, data: Any) -> None:
    raw = msgpack.packb({"member": "m", "score": 1, "data": data})
    answer = await refused(api, "POST", BEST, raw=raw, headers=MSGPACK)
    assert (answer.status, answer.code) == (400, "malformed")
    assert "data" in answer.body["detail"]


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
@pytest.mark.parametrize("path", [ENTRIES, "/v1/peer"])
async def test_a_bomb_is_refused_at_its_unpacked_size(api: Api, encoding: str, path: str) -> None:
    plain = b'{"entries": [' + b" " * (64 * 2**20) + b"]}"
    packed = (gzip.compress if encoding == "gzip" else zlib.compress)(plain, 9)
    assert len(packed) < 2**20
    del plain
    headers = {"Content-Encoding": encoding}
    answer = await refused(api, "POST", path, raw=packed, headers=headers)
    assert (answer.status, answer.code) == (413, "too_large")


async def test_a_compressed_body_within_the_limit_is_taken(api: Api) -> None:
    raw = gzip.compress(json.dumps(entry(member="zipped")).encode())
    answer = await api.call("POST", ENTRIES, raw=raw, headers={"Content-Encoding": "gzip"})
    assert answer.status == 200
    assert answer.body["entries"] == [{"member": "zipped", "score": {"all": 1}}]


async def test_a_body_over_the_limit(api: Api) -> None:
    raw = b" " * (REQUEST_BYTES_MAX + 1)
    answer = await refused(api, "POST", ENTRIES, raw=raw)
    assert (answer.status, answer.code) == (413, "too_large")
    assert str(REQUEST_BYTES_MAX) in answer.body["detail"]


async def test_a_batch_is_all_or_nothing_and_names_its_entries(api: Api) -> None:
    batch = [entry(member="a"), entry(member="", add=1), entry(member="b"), entry(add=1.5)]
    answer = await refused(api, "POST", ENTRIES, body={"entries": batch})
    assert [(e["index"], e["code"]) for e in answer.body["errors"]] == [
        (1, "malformed"),
        (3, "malformed"),
    ]
    shape = await refused(api, "POST", ENTRIES, body={"entries": [entry(), entry(add="2")]})
    assert shape.body["errors"][0]["index"] == 1
    assert "entries[1].add" in shape.body["detail"]
    several = [entry(board="s"), {"board": "best", "member": "m", "score": "1"}]
    answer = await refused(api, "POST", "/v1/entries", body={"entries": several})
    assert answer.body["errors"][0]["index"] == 1
    several = [entry(board="s"), entry(board="s"), {"board": "best", "member": "m", "score": -7}]
    answer = await refused(api, "POST", "/v1/entries", body={"entries": several})
    assert (answer.status, answer.body["errors"][0]["index"]) == (422, 2)
    several = [entry(board="s"), entry(board="unheard-of")]
    answer = await refused(api, "POST", "/v1/entries", body={"entries": several})
    assert (answer.status, answer.body["errors"][0]["index"]) == (404, 1)


QUERIES = [
    ("POST", f"{ENTRIES}?ack=two", "ack"),
    ("POST", f"{ENTRIES}?rank=yes", "rank"),
    ("GET", f"{ENTRIES}?limit=0", "limit"),
    ("GET", f"{ENTRIES}?limit=1001", "limit"),
    ("GET", f"{ENTRIES}?limit=ten", "limit"),
    ("GET", f"{ENTRIES}?limit=1&limit=2", "limit"),
    ("GET", f"{ENTRIES}?offset=-1", "offset"),
    ("GET", f"{ENTRIES}?offset=99999999999999999999", "offset"),
    ("GET", f"{ENTRIES}?after=nowhere", "after"),
    ("GET", f"{ENTRIES}?after=ffffffffffffffff-1-1", "after"),
    ("GET", f"{ENTRIES}/m?neighbors=101", "neighbors"),
    ("POST", f"{ENTRIES}?window=all", "window: goes with rank=true"),
    ("GET", "/v1/counters/x?generation=1", "generation"),
    ("GET", "/v1/counters/x?after=1-2", "after"),
    ("GET", "/v1/ring?%ff=1", "query"),
    ("GET", "/healthz?x=1", "x"),
]


@pytest.mark.parametrize(("method", "path", "names"), QUERIES)
async def test_bad_query(api: Api, method: str, path: str, names: str) -> None:
    body = entry() if method == "POST" else None
    answer = await refused(api, method, path, body=body)
    assert (answer.status, answer.code) == (400, "malformed")
    assert names in answer.body["detail"]


NOWHERE = [
    ("GET", "/v1/boards/s/windows/all/finals"),
    ("GET", "/v1/counters/"),
    ("GET", "/v1/counters/a/b"),
    ("GET", "/v1/boards/s/entries/m/n"),
    ("GET", "/"),
]


@pytest.mark.parametrize(("method", "path"), NOWHERE)
async def test_unknown_routes(api: Api, method: str, path: str) -> None:
    answer = await refused(api, method, path)
    assert (answer.status, answer.code) == (404, "unknown_route")


async def test_other_methods(api: Api) -> None:
    answer = await refused(api, "PATCH", "/v1/boards/s")
    assert (answer.status, answer.code) == (405, "method_not_allowed")
    assert answer.headers["Allow"] == "DELETE, GET, HEAD, PUT"


async def test_a_long_unknown_field_is_not_echoed_whole(api: Api) -> None:
    answer = await refused(api, "POST", ENTRIES, body=entry() | {"x" * 100_000: 1})
    assert len(answer.body["detail"]) < 1000


@pytest.mark.parametrize(
    ("method", "path"), [("DELETE", "/v1/members/m"), ("DELETE", "/v1/boards/s"), ("GET", ENTRIES)]
)
async def test_a_body_where_there_is_none_is_not_passed_over(
    api: Api, method: str, path: str
) -> None:
    answer = await refused(api, method, path, body={"dry_run": True})
    assert (answer.status, answer.code) == (400, "malformed")
    assert (await api.get("/v1/boards/s")).status == 200
