"""Agents without an API and without Redis: real files, real sockets, the real gossip."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from aiohttp import web

from agent.boards.entry import Entry
from agent.boards.tally import Group
from agent.certifying.certifier import Certifier
from agent.commit import CommitQueue
from agent.committer import Commit, Committer
from agent.config import Config, parse
from agent.crdt.incarnation import mint
from agent.exchange import ChunkLimits
from agent.gossip.answering import Answering
from agent.gossip.client import PATH, Client
from agent.gossip.finals import FinalCalls
from agent.gossip.frame import Kind
from agent.gossip.gossip import Gossip
from agent.gossip.peers import Peers
from agent.gossip.ranges import Ranges
from agent.gossip.repair import Repairer
from agent.gossip.secrets import Secrets
from agent.keeping import Keeper
from agent.limits import INT64_MAX
from agent.operation import Announce, Operation, Write
from agent.store.identity import Identity
from agent.store.readers import Readers
from agent.store.sqlite import SqliteStore

SECRET = b"the secret of a test's ring"
POLL_S = 0.005  # a loop that never rests would starve the readers' threads
TAKEN_TURNS = 5  # of the event loop, in which a server has taken a connection


def now_ms() -> int:
    """The machine's clock."""
    return time.time_ns() // 1_000_000


@dataclass(frozen=True)
class House:
    """How an agent keeps house. `keeps`: it does.

    clock: by which entries are placed in windows. facts_max: how many facts it stores.
    put_back: its file is an old copy, as the start of a process would find out.
    shown: see Keeper.
    """

    keeps: bool = False
    clock: Callable[[], int] = now_ms
    facts_max: int = INT64_MAX
    put_back: bool = False
    shown: Callable[[int], bool] = lambda _lsn: True


@dataclass
class Agent:
    """One running agent. `inbox` has every message that its peers sent to it."""

    name: str
    url: str
    config: Config
    queue: CommitQueue
    readers: Readers
    peers: Peers
    answering: Answering
    repairer: Repairer
    ranges: Ranges
    keeper: Keeper
    certifier: Certifier
    inbox: list[bytes] = field(default_factory=list)

    async def do(self, operation: Operation) -> object:
        """Have an operation committed; its answer."""
        return (await self.queue.submit(operation)).answer

    async def add(self, member: str, amount: int, board: str = "counters") -> None:
        """One increment."""
        await self.do(Write((Group(board, [Entry(member, add=amount)], range(1)),)))

    async def total(self, member: str, board: str = "counters") -> int | None:
        """A member's total as it is durable here; None while the board is not known."""
        known = self.queue.state.catalog.find(board)
        if known is None or known.definition is None:
            return None
        key = (known.space, member.encode())
        found = await self.readers.read(lambda snapshot: snapshot.totals_of([key]))
        return found[key].score if key in found else 0


def config_of(folder: Path, name: str, url: str, ring: str, seeds: list[str]) -> Config:
    """An agent's configuration: quick rounds, small chunks."""
    return parse(
        {
            "agent": {"region": name, "name": name, "data_dir": str(folder / name)},
            "ring": {
                "name": ring,
                "secret_file": str(folder / "ring.secret"),
                "advertise": url,
                "seeds": seeds,
            },
            "gossip": {
                "interval_s": 0.05,
                "poke_s": 0.005,
                "backoff_max_s": 0.1,
                "chunk_rows_max": 7,
                "chunk_bytes_max": 1024,
            },
            "repair": {"cells_per_s": 5_000, "rest_s": 0.05, "recount_s": 3_600},
            "keeping": {"interval_s": 0.05},
        },
        folder,
        {},
    )


@asynccontextmanager
async def running(
    folder: Path,
    name: str,
    seeds: list[str] | None = None,
    *,
    ring: str = "test",
    secret: bytes = SECRET,
    calls: bool = True,
    repairs: bool = False,
    house: House = House(),
) -> AsyncIterator[Agent]:
    """An agent until the end of the block. `calls=False`: it only answers.

    `repairs`: it also looks for what is wrong and mends it.
    """
    (folder / name).mkdir(exist_ok=True)
    path = folder / name / "tallyring.db"
    random = Random(f"{path} {time.time_ns()}")  # each file has another identity
    inc, log = mint(now_ms(), random.getrandbits(22)), random.getrandbits(62) + 1
    store = SqliteStore(path, Identity(ring, name, name, inc, log))
    _begin(store, random.getrandbits(62) + 1, put_back=house.put_back)
    readers = Readers(path)
    tell: list[Callable[[Commit], None]] = []
    queue = _queue(store, random, tell, house)
    inbox: list[bytes] = []

    async def exchange(request: web.Request) -> web.Response:
        inbox.append(await request.read())
        status, kind, body = await answering.answer(inbox[-1])
        return web.Response(status=status, content_type=kind, body=body)

    app = web.Application(client_max_size=2**24)
    app.router.add_post(PATH, exchange)
    runner, url = await _serve(app)
    config = config_of(folder, name, url, ring, seeds or [])
    peers = Peers(config, _secrets(folder / name, secret), queue, readers, now_ms)
    limits = ChunkLimits(config.gossip.chunk_rows_max, config.gossip.chunk_bytes_max)
    client = Client(config.gossip)
    scrubbing = Readers(path)
    ranges = Ranges(peers, client, scrubbing)
    repairer = Repairer(peers, ranges, scrubbing, config.repair)
    finals = FinalCalls(peers, client, scrubbing)
    answering = Answering(peers, limits, {Kind.RANGE: ranges.answer, Kind.FINAL: finals.answer})
    gossip = Gossip(peers, client, limits, random)
    housekeeping = Readers(path)
    every_s = config.keeping.interval_s
    keeper = Keeper(queue, housekeeping, path, house.clock, every_s, shown=house.shown)
    certifier = Certifier(queue, housekeeping, lambda: True, finals.fetch, every_s)
    tell += [gossip.committed, repairer.committed, keeper.committed, certifier.committed]
    await queue.submit(Announce(name, url))
    parts = (answering, repairer, ranges, keeper, certifier)
    agent = Agent(name, url, config, queue, readers, peers, *parts, inbox)
    loops = [gossip.run()] if calls else []
    loops += [repairer.run()] if repairs else []
    loops += [keeper.run(), certifier.run()] if house.keeps else []
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(loop) for loop in loops]
            yield agent
            for task in tasks:
                task.cancel()
    finally:
        await _close(runner)
        await client.close()
        await queue.stop()
        for each in (readers, scrubbing, housekeeping, store):
            each.close()


def _secrets(folder: Path, secret: bytes) -> Secrets:
    (folder / "ring.secret").write_bytes(secret)
    return Secrets(folder / "ring.secret", time.monotonic)


def _begin(store: SqliteStore, nonce: int, *, put_back: bool) -> None:
    if put_back:
        store.begin(nonce, time.time_ns(), "the file was put back", incomplete=True)
    else:
        store.begin(nonce)


def _queue(
    store: SqliteStore,
    random: Random,
    tell: list[Callable[[Commit], None]],
    house: House,
) -> CommitQueue:
    """A commit queue that is running; after each commit it tells whoever is in the list then."""

    def committed(commit: Commit) -> None:
        for told in tell:
            told(commit)

    queue = CommitQueue(
        Committer(
            store, lambda ms, inc: (mint(ms, random.getrandbits(22), inc), inc), house.facts_max
        ),
        house.clock,
        committed,
    )
    queue.start()
    return queue


async def _serve(app: web.Application) -> tuple[web.AppRunner, str]:
    """A server on a free port, and its URL."""
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    return runner, f"http://127.0.0.1:{runner.addresses[0][1]}"


async def _close(runner: web.AppRunner) -> None:
    """End a server, and a connection that it was just about to take."""
    server = runner.server
    await runner.cleanup()
    for _ in range(TAKEN_TURNS):
        await asyncio.sleep(0)
    if server is not None:
        await server.shutdown(0)


async def until(check: Callable[[], object], timeout_s: float = 60.0) -> None:
    """Wait until a check (or what it awaits) is true."""
    async with asyncio.timeout(timeout_s):
        while True:
            found = check()
            if asyncio.iscoroutine(found):
                found = await found
            if found:
                return
            await asyncio.sleep(POLL_S)
