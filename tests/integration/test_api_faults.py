"""What the API says while a part below it fails: the rank store, the queue, a route, a client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import cast

import pytest
import pytest_asyncio

from agent.gossip.link import Link
from tests.integration.api_node import Api, running_api

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(loop_scope="module")
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    async with running_api(tmp_path) as running:
        await running.define("b", rule="sum")
        await running.post("/v1/boards/b/entries", {"member": "m", "add": 1})
        yield running


async def test_an_empty_rank_store_is_never_shown_as_a_board(api: Api) -> None:
    member = "/v1/boards/b/entries/m"
    await api.until(lambda: found(api, member, 200))
    await api.redis.flushall()
    seen: set[int] = set()
    async with asyncio.timeout(60):
        while 200 not in seen or len(seen) < 2:
            answer = await api.get(member)
            seen.add(answer.status)
            if answer.status == 200:
                assert (answer.body["rank"], answer.body["score"]) == (1, 1)
            else:
                assert (answer.status, answer.code) == (503, "rebuilding")


async def found(api: Api, path: str, status: int) -> bool:
    return (await api.get(path)).status == status


async def test_without_a_rank_store_writes_and_counters_go_on(tmp_path: Path) -> None:
    unused = "redis://127.0.0.1:1/0"
    async with running_api(tmp_path, unused) as api:
        await api.define("b", rule="sum")
        one = {"member": "m", "add": 1}
        written = await api.post("/v1/boards/b/entries?rank=true", one)
        assert written.body["entries"] == [{"member": "m", "score": {"all": 1}}]
        counted = await api.post("/v1/counters/c", {"by": 2})
        position = counted.body["position"]
        read = await api.get(f"/v1/counters/c?after={position}&max_lag_ms=1000")
        assert read.body["value"] == 2
        for path in ("/v1/boards/b/entries", "/v1/boards/b/entries/m"):
            answer = await api.get(path)
            assert (answer.status, answer.code) == (503, "rank_store_down")
            assert answer.headers["Retry-After"] == "1"
        ready = await api.get("/readyz")
        assert (ready.status, ready.body["ready"]) == (503, False)
        assert "ranks" in ready.body["reasons"][0]
        assert (await api.get("/healthz")).status == 200


async def test_a_stopping_queue_refuses_definitely(api: Api) -> None:
    await api.queue.stop()
    answer = await api.post("/v1/counters/x", {"by": 1})
    assert (answer.status, answer.code, answer.body["definite"]) == (503, "busy", True)
    assert answer.headers["Retry-After"] == "1"
    assert (await api.get("/v1/counters/x")).body["value"] == 0


async def test_a_route_that_fails_answers_internal(api: Api) -> None:
    api.links["x"] = cast("Link", object())
    answer = await api.get("/v1/ring")
    assert (answer.status, answer.code, answer.body["definite"]) == (500, "internal", False)
    assert "AttributeError" not in answer.body["detail"]
    api.links.clear()
    assert (await api.get("/v1/ring")).status == 200


async def test_clients_that_leave_early_store_nothing(api: Api) -> None:
    before = api.queue.state.lsn
    host, port = api.url.removeprefix("http://").split(":")
    for body in (b"", b'{"by"', b'{"by": 1}'):
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(
            b"POST /v1/counters/left HTTP/1.1\r\nHost: 127.0.0.1\r\n"
            b"Content-Type: application/json\r\nContent-Length: 100\r\n\r\n" + body
        )
        await writer.drain()
        writer.close()
        await writer.wait_closed()
    assert (await api.get("/v1/counters/left")).body["value"] == 0
    assert api.queue.state.lsn == before
