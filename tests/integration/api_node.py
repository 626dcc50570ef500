"""One agent's API with everything real below it: SQLite, commit queue, Valkey, projector, a socket.

Only gossip is absent. Every answer that passes through `Api.call` is checked against the OpenAPI
document that the agent itself gives out.
"""

from __future__ import annotations

import asyncio
import io
import json
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import aiohttp
import msgspec
from aiohttp import web
from redis.asyncio import Redis
from yarl import URL

from agent.api.app import make_server
from agent.api.choosing import window_of
from agent.api.clock import ManualClock
from agent.api.services import Services
from agent.api.table import OPENAPI
from agent.beginning import mint_identity
from agent.certifying.certifier import Certifier
from agent.commit import CommitQueue
from agent.committer import Commit, Committer
from agent.config import Config, parse
from agent.crdt.cell import Row
from agent.exchange import Chunk
from agent.gossip.leaving import Leaving
from agent.gossip.link import Link
from agent.gossip.peers import Peers
from agent.gossip.secrets import Secrets
from agent.keeping import Keeper
from agent.operation import Announce, Complete, Merge, Merged
from agent.projection.connection import RankClient
from agent.projection.embedded import EmbeddedValkey
from agent.projection.projector import Projector
from agent.projection.reads import Ranks
from agent.store.identity import Identity
from agent.store.readers import Readers
from agent.store.sqlite import SqliteStore
from tests.integration.json_schema import faults

DOCUMENT: dict[str, Any] = msgspec.json.decode(OPENAPI)
_PATHS = [
    (re.compile(re.sub(r"\{\w+\}", "[^/]+", path)), operations)
    for path, operations in DOCUMENT["paths"].items()
]


@dataclass(frozen=True)
class Answer:
    """What came back: status, headers, and the decoded body."""

    status: int
    headers: dict[str, str]
    body: Any

    @property
    def code(self) -> str:
        """The code of a problem."""
        assert self.headers["Content-Type"] == "application/problem+json", self
        return str(self.body["code"])


@dataclass
class Api:
    """A running agent and a client of it."""

    url: str
    session: aiohttp.ClientSession
    queue: CommitQueue
    readers: Readers
    redis: Redis
    services: Services
    clock: ManualClock | None
    links: dict[str, Link] = field(default_factory=dict)

    async def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        raw: bytes | None = None,
        headers: dict[str, str] | None = None,
    ) -> Answer:
        """Send a request; `body` goes as JSON, `raw` as it is."""
        sent = dict(headers or {})
        data: bytes | io.BytesIO | None = raw if raw is None else io.BytesIO(raw)
        if body is not None:
            data = io.BytesIO(json.dumps(body).encode())
        if data is not None:
            sent.setdefault("Content-Type", "application/json")
        # The path is sent as it is written.
        url = URL(self.url + path, encoded=True)
        async with self.session.request(method, url, data=data, headers=sent) as response:
            content = await response.read()
            found = response.headers.get("Content-Type", "").split(";")[0]
            decoded: Any = content
            if found.endswith("json"):
                decoded = json.loads(content) if content else None
            elif found == "application/msgpack":
                decoded = msgspec.msgpack.decode(content)
            answer = Answer(response.status, dict(response.headers), decoded)
        if decoded is not None and answer.status != 304:
            check_documented(method, path, answer)
        return answer

    async def get(self, path: str) -> Answer:
        """A read."""
        return await self.call("GET", path)

    async def post(self, path: str, body: Any, **headers: str) -> Answer:
        """A write."""
        return await self.call("POST", path, body, headers=headers)

    async def define(self, board: str, **definition: Any) -> Answer:
        """Define a board, successfully."""
        answer = await self.call("PUT", f"/v1/boards/{board}", definition)
        assert answer.status == 200, answer
        return answer

    async def until(self, ready: Callable[[], Awaitable[bool]], timeout_s: float = 60.0) -> None:
        """Wait for a condition."""
        async with asyncio.timeout(timeout_s):
            while not await ready():  # noqa: ASYNC110 -- the condition is another process's
                await asyncio.sleep(0)


def check_documented(method: str, path: str, answer: Answer) -> None:
    """Check an answer against the OpenAPI document."""
    bare = path.partition("?")[0]
    operations = next((o for p, o in _PATHS if p.fullmatch(bare)), None)
    operation = (operations or {}).get(method.lower())
    if operation is None:
        schema = {"$ref": "#/components/schemas/Problem"}
    else:
        content = operation["responses"][str(answer.status)]["content"]
        media = answer.headers["Content-Type"].split(";")[0]
        schema = content[media].get("schema", {})
        code = isinstance(answer.body, dict) and answer.body.get("code")
        if code and media == "application/problem+json":
            described = operation["responses"][str(answer.status)]["description"]
            assert code in described, f"{code} is not documented for {method} {bare}"
    found = faults(schema, answer.body, DOCUMENT)
    assert not found, f"{method} {path}: {found} in {answer.body}"


def config_of(folder: Path, **auth: str) -> Config:
    """The configuration of a test's agent."""
    secret = folder / "ring.secret"
    secret.write_text("an integration test's secret")
    return parse(
        {
            "agent": {"region": "eu", "name": "eu-1", "data_dir": str(folder)},
            "ring": {"name": "test", "secret_file": str(secret)},
            "auth": auth,
        },
        folder,
        {},
    )


def now_ms() -> int:
    """The machine's clock."""
    return time.time_ns() // 1_000_000


async def echo(message: bytes) -> tuple[int, str, bytes]:
    """Stands for gossip: the peers' door hands on what it was given."""
    return 200, "application/octet-stream", message


async def nobody_has_it(_space: bytes, _hash: bytes, _number: int) -> bytes | None:
    """Stands for gossip: there is no other agent that could have a final's rows."""
    return None


async def _begin(queue: CommitQueue) -> None:
    queue.start()
    await queue.submit(Announce("eu", "http://127.0.0.1:1"))
    await queue.submit(Complete())  # what gossip finds out where there are no others


class Heard(list[Callable[[Commit], None]]):
    """Whoever is told of each commit."""

    def __call__(self, commit: Commit) -> None:
        for listener in self:
            listener(commit)


async def _serve(services: Services) -> tuple[web.ServerRunner, str]:
    """A server on a free port, and its URL."""
    runner = web.ServerRunner(make_server(services))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    return runner, f"http://127.0.0.1:{runner.addresses[0][1]}"


@asynccontextmanager
async def running_api(
    folder: Path,
    redis_url: str = "",
    clock: ManualClock | None = None,
    *,
    keeps: bool = False,
    **auth: str,
) -> AsyncIterator[Api]:
    """An agent without gossip, its socket open, until the end of the block.

    It has a Valkey of its own, unless it is told of another one. `keeps`: it closes windows,
    certifies their finals and collects them.
    """
    config = config_of(folder, **auth)
    server = EmbeddedValkey(folder, 0)
    if not redis_url:
        await server.start()
        redis_url = server.url
    path = folder / "tallyring.db"
    store = SqliteStore(path, Identity("test", "eu-1", "eu", *mint_identity(now_ms(), 0)))
    store.begin(nonce=7)
    readers = Readers(path)
    heard = Heard()
    boards_own = None if clock is None else clock.now_ms
    queue = CommitQueue(Committer(store, mint_identity), boards_own or now_ms, heard)
    reads, writes = RankClient(redis_url, 2.0, 8), RankClient(redis_url, 2.0, 2)
    plain = Redis.from_url(redis_url)
    projector = Projector(
        config, readers, lambda: queue.state, writes, now_ms, board_now_ms=boards_own
    )
    peers = Peers(config, Secrets(config.ring.secret_file, time.monotonic), queue, readers, now_ms)
    peers.refused["replay"] = 1
    leaving = Leaving(peers)
    keeper = Keeper(queue, readers, path, boards_own or now_ms, 0.05)
    certifier = Certifier(queue, readers, lambda: True, nobody_has_it, 0.05)
    services = Services(
        config=config,
        queue=queue,
        readers=readers,
        ranks=Ranks(config, reads, readers),
        projector=projector,
        now_ms=now_ms,
        answer=echo,
        peers=peers,
        leaving=leaving,
        keeper=keeper,
        certifier=certifier,
        clock=clock,
    )
    heard += [services.counts.committed, leaving.committed, projector.committed]
    heard += [keeper.committed, certifier.committed] if keeps else []
    await _begin(queue)
    runner, url = await _serve(services)
    try:
        async with asyncio.TaskGroup() as tasks, aiohttp.ClientSession() as session:
            parts = [projector, services.live, *((keeper, certifier) if keeps else ())]
            running = [tasks.create_task(part.run()) for part in parts]
            yield Api(url, session, queue, readers, plain, services, clock, peers.links)
            for task in running:
                task.cancel()
    finally:
        await runner.cleanup()
        await queue.stop()
        readers.close()
        store.close()
        await plain.aclose()
        await reads.close()
        await writes.close()
        if server.url == redis_url:
            await server.stop()


async def is_ready(api: Api) -> bool:
    """Whether the agent serves everything."""
    return (await api.get("/readyz")).status == 200


async def page(api: Api, board: str, query: str = "") -> Any:
    """A page that includes everything that is stored so far, also what peers wrote."""
    state, text = api.queue.state, dict(parse_qsl(query)).get("window")
    window = window_of(api.services, state, state.catalog.board(board), text).window.id
    assert await api.services.projector.wait_for(board, window, 60.0, lsn=state.lsn)
    answer = await api.get(f"/v1/boards/{board}/entries?{query}")
    assert answer.status == 200, answer
    return answer.body


def row_of(
    space: bytes, member: bytes, slot: bytes, value: tuple[int, int, bytes], seq: int
) -> Row:
    """A row as another agent, of incarnation 99, would send it."""
    return Row(space, member, slot, *value, 99, seq)


async def merge(api: Api, rows: list[Row], seq: int = 0) -> None:
    """Merge rows as if a peer had sent them; `seq` > 0 claims its writes up to there."""
    reading = api.queue.state.cursors.get(5)
    start = 0 if reading is None else reading.lsn
    chunk = Chunk(log=5, start=start, to=start + len(rows), rows=tuple(rows), head=bool(seq))
    receipt = await api.queue.submit(Merge("us-1", chunk, {99: seq} if seq else None))
    assert receipt.answer == Merged(joined=True, changed=len(rows))
