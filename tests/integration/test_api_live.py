"""The top of a board as it changes: in order, resumable, bounded, and ended where it must be."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import aiohttp
import pytest

from agent.api import channels, live
from agent.api.clock import ManualClock
from agent.boards.entry import time_ms
from agent.limits import TIME_MS_MAX
from tests.integration.api_node import Api, is_ready, running_api

EVENING = time_ms("2026-11-30T23:59:00Z", TIME_MS_MAX)
WAIT_S = 60.0


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    async with running_api(tmp_path, clock=ManualClock(EVENING)) as running:
        await running.until(lambda: is_ready(running))
        await running.define("cup", rule="best", windows=[{"name": "day"}, {"name": "all"}])
        yield running


@dataclass
class Event:
    """One server-sent event."""

    name: str = ""
    id: str = ""
    data: Any = None
    comment: bool = False


@dataclass
class Listener:
    """One stream."""

    response: aiohttp.ClientResponse
    ids: list[str] = field(default_factory=list)

    async def next(self) -> Event:
        """The next event; a comment is one, too."""
        event = Event()
        async with asyncio.timeout(WAIT_S):
            while True:
                line = (await self.response.content.readuntil(b"\n")).decode()
                assert line, "the stream has ended"
                name, _, value = line.rstrip("\n").partition(": ")
                match name:
                    case "id":
                        event.id = value
                        self.ids.append(value)
                    case "event":
                        event.name = value
                    case "data":
                        event.data = json.loads(value)
                    case ":":
                        event.comment = True
                    case "" if event.name or event.comment:
                        return event

    async def until(self, *members: str) -> Event:
        """The next event that shows these members, best first."""
        while True:
            event = await self.next()
            if event.name == "top" and shown(event) == list(members):
                return event

    async def ended(self) -> bool:
        """Whether nothing follows."""
        async with asyncio.timeout(WAIT_S):
            return await self.response.content.read() == b""


def shown(event: Event) -> list[str]:
    return [line["member"] for line in event.data["entries"]]


@asynccontextmanager
async def listening(api: Api, query: str = "", **headers: str) -> AsyncIterator[Listener]:
    url = f"{api.url}/v1/boards/cup/live?{query}"
    async with api.session.get(url, headers=headers) as response:
        assert response.status == 200, await response.text()
        assert response.content_type == "text/event-stream"
        assert response.headers["Cache-Control"] == "no-store"
        yield Listener(response)


async def write(api: Api, **scores: int) -> None:
    entries = [{"member": name, "score": score} for name, score in scores.items()]
    answer = await api.post("/v1/boards/cup/entries", {"entries": entries})
    assert answer.status == 200, answer


async def test_the_top_is_told_and_told_again_when_it_changes(api: Api) -> None:
    async with listening(api, "limit=2") as ear:
        first = await ear.next()
        assert (first.name, shown(first), first.data["total"]) == ("top", [], 0)
        await write(api, a=5)
        one = await ear.until("a")
        assert one.data["entries"][0] | {"reached_at": None} == {
            "rank": 1,
            "member": "a",
            "score": 5,
            "reached_at": None,
            "data": None,
        }
        await write(api, b=7, c=6)
        await ear.until("b", "c")
        await api.call("PUT", "/v1/boards/cup/bans/b")
        await ear.until("c", "a")
        assert len({*ear.ids}) == len(ear.ids)


async def test_whoever_comes_back_with_the_newest_id_is_told_nothing(api: Api) -> None:
    await write(api, a=5)
    async with listening(api) as ear:
        event = await ear.until("a")
    async with listening(api, **{"Last-Event-ID": event.id}) as again:
        await write(api, b=7)
        assert shown(await again.next()) == ["b", "a"]
    async with listening(api, **{"Last-Event-ID": event.id}) as behind:
        assert shown(await behind.next()) == ["b", "a"]
    async with listening(api, **{"Last-Event-ID": "another/one"}) as other:
        assert shown(await other.next()) == ["b", "a"]


async def test_a_window_by_its_name_goes_on_with_the_next_one(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channels, "IDLE_S", 0.1)
    await write(api, a=5)
    async with (
        listening(api, "window=day") as by_name,
        listening(api, "window=day:2026-11-30") as by_id,
    ):
        assert (await by_name.until("a")).data["window"] == "day:2026-11-30"
        await by_id.until("a")
        await api.post("/v1/clock", {"now": EVENING + 120_000})
        following = await by_name.until()
        assert following.data["window"] == "day:2026-12-01"
        await write(api, b=1)
        assert (await by_name.until("b")).data["window"] == "day:2026-12-01"


async def test_a_retired_board_ends_the_stream_and_a_reset_does_not(api: Api) -> None:
    await write(api, a=5)
    async with listening(api) as ear:
        await ear.until("a")
        assert (await api.post("/v1/boards/cup/reset", None)).status == 200
        await ear.until()
        assert (await api.call("DELETE", "/v1/boards/cup")).status == 200
        while (event := await ear.next()).name != "end":
            assert event.name == "stale"
        assert event.data["code"] == "unknown_board"
        assert await ear.ended()
    assert (api.services.live.listeners, api.services.live.channels) == (0, 0)


async def test_ranks_that_can_t_be_read_are_told_once_and_then_it_goes_on(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channels, "LOOK_EVERY_S", 0.05)
    await write(api, a=5)
    async with listening(api) as ear:
        await ear.until("a")
        await api.redis.delete("lb:{s0}:cup:day:2026-11-30:meta")
        await write(api, b=7)
        stale = await ear.next()
        assert (stale.name, stale.data["code"]) == ("stale", "rebuilding")
        await ear.until("b", "a")


async def test_a_sign_of_life_is_given_where_nothing_changes(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "IDLE_S", 0.05)
    async with listening(api) as ear:
        await ear.until()
        assert (await ear.next()).comment
        assert (await ear.next()).comment


async def test_one_reader_serves_all_who_listen_to_the_same(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "IDLE_S", 0.1)  # when it is seen that somebody has gone
    async with (
        listening(api) as one,
        listening(api) as two,
        listening(api, "limit=3") as other,
    ):
        for ear in (one, two, other):
            await ear.until()
        assert (api.services.live.listeners, api.services.live.channels) == (3, 2)
        await write(api, a=1)
        events = [await ear.until("a") for ear in (one, two, other)]
        assert len({event.id for event in events}) == 1

    async def alone() -> bool:
        return (api.services.live.listeners, api.services.live.channels) == (0, 0)

    await api.until(alone)


async def test_one_more_than_may_listen_is_refused(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "IDLE_S", 0.1)  # when it is seen that somebody has gone
    monkeypatch.setattr(channels, "LISTENERS_MAX", 2)
    async with listening(api), listening(api):
        refused = await api.get("/v1/boards/cup/live")
        assert (refused.status, refused.code) == (503, "busy")
        assert refused.headers["Retry-After"] == "1"
    monkeypatch.setattr(channels, "LIVE_BOARDS_MAX", 1)

    async def empty() -> bool:
        return api.services.live.channels == 0

    await api.until(empty)
    async with listening(api):
        assert (await api.get("/v1/boards/cup/live?limit=3")).code == "busy"


@pytest.mark.parametrize("query", ["limit=0", "limit=101", "window=hour", "top=3"])
async def test_what_can_t_be_listened_to_is_refused_before_anything_is_sent(
    api: Api, query: str
) -> None:
    answer = await api.get(f"/v1/boards/cup/live?{query}")
    assert answer.code in ("malformed", "unknown_window")


async def test_a_listener_that_takes_nothing_is_dropped_and_disturbs_nobody(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "DRAIN_S", 0.2)
    monkeypatch.setattr(channels, "READ_EVERY_S", 0.0)
    host, port = urlparse(api.url).hostname, urlparse(api.url).port
    assert host is not None
    assert port is not None
    deaf = socket.socket()
    deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    deaf.connect((host, port))
    deaf.sendall(b"GET /v1/boards/cup/live?limit=100 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
    names, data = [f"m{number}" for number in range(100)], "x" * 1_000  # 100 KB an event
    try:
        async with listening(api, "limit=100") as ear, asyncio.timeout(60):
            number = 0
            while not api.services.live.dropped:
                number += 1
                entries = [{"member": name, "score": number, "data": data} for name in names]
                await api.post("/v1/boards/cup/entries", {"entries": entries})
                await heard(ear, number)
        assert api.services.live.dropped == 1
    finally:
        deaf.close()


async def heard(ear: Listener, score: int) -> None:
    """Wait until all of the top have this score."""
    while True:
        event = await ear.next()
        if (
            event.name == "top"
            and [line["score"] for line in event.data["entries"]] == [score] * 100
        ):
            return


async def test_an_agent_that_stops_ends_its_streams_at_once(tmp_path: Path) -> None:
    async with aiohttp.ClientSession() as session:
        async with running_api(tmp_path) as api:
            await api.until(lambda: is_ready(api))
            await api.define("cup", rule="best")
            response = await session.get(f"{api.url}/v1/boards/cup/live")
            ear = Listener(response)
            await ear.until()
            began = asyncio.get_running_loop().time()
        assert (await ear.next()).name == "end"
        assert asyncio.get_running_loop().time() - began < 4.0
        response.close()


async def test_head_tells_the_type_and_ends(api: Api) -> None:
    async with api.session.head(f"{api.url}/v1/boards/cup/live") as response:
        assert (response.status, response.content_type) == (200, "text/event-stream")


async def test_a_thousand_listeners_cost_their_sockets(api: Api) -> None:
    host, port = urlparse(api.url).hostname, urlparse(api.url).port
    asked = b"GET /v1/boards/cup/live HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    ears = []
    try:
        for _ in range(1_000):
            reader, writer = await asyncio.open_connection(host, port)
            writer.write(asked)
            ears.append((reader, writer))
        async with asyncio.timeout(30):
            for reader, _ in ears:
                await reader.readuntil(b"event: top")
            assert (api.services.live.listeners, api.services.live.channels) == (1_000, 1)
            await write(api, a=1)
            for reader, _ in ears:
                await reader.readuntil(b'"member":"a"')
    finally:
        for _, writer in ears:
            writer.close()
