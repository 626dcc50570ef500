"""The HTTP server against callers that have proven nothing: what they can hold and see."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import web

from agent.api import bodies
from agent.api.connections import BoundedServer
from tests.integration.api_node import Api, running_api
from tests.integration.gossip_rig import until

pytestmark = pytest.mark.asyncio(loop_scope="module")

HOST = b"Host: 127.0.0.1\r\n"
PEER = b"POST /v1/peer HTTP/1.1\r\n" + HOST
KIB = 1024


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def api(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Api]:
    async with running_api(tmp_path_factory.mktemp("hardening")) as running:
        yield running


class Caller:
    """One connection, on which anything can be sent."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def of(cls, url: str, callers: AsyncExitStack) -> Caller:
        caller = cls(*await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2])))
        callers.callback(caller.writer.close)
        return caller

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def answer(self) -> tuple[int, Any]:
        """Status and problem of the next answer."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        assert b"application/problem+json" in head, head
        size = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        return int(head.split()[1]), json.loads(await self.reader.readexactly(size))

    async def ended(self) -> bool:
        """Wait for the server's end of the connection."""
        return await self.reader.read() == b""


@pytest.mark.parametrize(
    "sent",
    [
        b"GET /healthz HTTP/1.1\r\n" + HOST + b"X: " + b"a" * 100_000 + b"\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\n" + HOST + b"X: a\r\n" * 1000 + b"\r\n",
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n" + HOST + b"\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
        PEER + b"Content-Length: -5\r\n\r\n",
        PEER + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
    ],
    ids=["long header", "many headers", "long path", "TLS", "negative length", "two lengths"],
)
async def test_what_is_no_http_is_answered_with_a_problem(
    api: Api, sent: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    async with AsyncExitStack() as callers:
        caller = await Caller.of(api.url, callers)
        await caller.send(sent)
        status, problem = await caller.answer()
        assert (status, problem["code"], problem["definite"]) == (400, "malformed", True)
        assert await caller.ended()
    assert "Traceback" not in capfd.readouterr().err


async def test_unfinished_messages_of_strangers_hold_bounded_memory(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api.services.arriving, "bytes_max", 256 * KIB)
    head = PEER + b"Content-Length: 4000000\r\n\r\n"
    async with AsyncExitStack() as callers:
        for _ in range(2):
            holder = await Caller.of(api.url, callers)
            await holder.send(head + bytes(160 * KIB))
        await until(lambda: api.services.arriving.held_bytes >= 2 * 96 * KIB)
        third = await Caller.of(api.url, callers)
        await third.send(head + bytes(160 * KIB))
        status, problem = await third.answer()
        assert (status, problem["code"]) == (503, "busy")
        # What is small gets through all the same, also where it comes in two parts.
        small = await Caller.of(api.url, callers)
        await small.send(PEER + b"Content-Length: 2000\r\n\r\n" + bytes(1000))
        await small.send(bytes(1000))
        assert (await small.reader.readline()).startswith(b"HTTP/1.1 200")
    await until(lambda: not api.services.arriving.held_bytes)


@pytest.mark.parametrize("path", ["/v1/peer", "/v1/counters/slow"])
async def test_a_body_that_does_not_arrive_is_given_up(
    api: Api, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setattr(bodies, "BODY_TIME_S", 0.1)
    before = api.queue.state.lsn
    async with AsyncExitStack() as callers:
        caller = await Caller.of(api.url, callers)
        await caller.send(
            f"POST {path} HTTP/1.1\r\n".encode()
            + HOST
            + b'Content-Type: application/json\r\nContent-Length: 8\r\n\r\n{"by":'
        )
        status, problem = await caller.answer()
        assert (status, problem["code"]) == (400, "malformed")
        assert "did not arrive" in problem["detail"]
        assert await caller.ended()
    assert api.queue.state.lsn == before


async def test_where_connections_are_too_many_the_silent_one_goes() -> None:
    async def hello(request: web.BaseRequest) -> web.Response:
        server.spoke(request.protocol)
        return web.Response(text="hello")

    server = BoundedServer(hello, connections_max=3)
    async with AsyncExitStack() as callers:
        runner = web.ServerRunner(server)
        await runner.setup()
        callers.push_async_callback(runner.cleanup)
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        get = b"GET / HTTP/1.1\r\n" + HOST + b"\r\n"
        used = await Caller.of(url, callers)
        await used.send(get)
        await used.reader.readuntil(b"hello")
        silent = [await Caller.of(url, callers) for _ in range(2)]
        await silent[0].send(b"GET / HT")
        await until(lambda: len(server.connections) == 3)
        await used.send(get)
        await used.reader.readuntil(b"hello")
        another = await Caller.of(url, callers)
        assert await silent[0].ended()
        for caller in (used, another, silent[1]):
            await caller.send(get)
            await caller.reader.readuntil(b"hello")


@pytest.mark.parametrize("origin", ["http://[", "null", "http://evil.example", ""])
async def test_a_page_of_another_site_is_refused_whatever_it_calls_itself(
    api: Api, origin: str
) -> None:
    answer = await api.call("POST", "/v1/boards/counters/reset", headers={"Origin": origin})
    assert (answer.status, answer.code) == (403, "forbidden")
    assert api.queue.state.catalog.board("counters").generation == 0


@pytest.mark.parametrize("encoding", ["nope", "gzip, gzip"])
async def test_an_unknown_encoding_is_refused(api: Api, encoding: str) -> None:
    answer = await api.post("/v1/counters/x", {"by": 1}, **{"Content-Encoding": encoding})
    assert (answer.status, answer.code) == (415, "unsupported_media")
