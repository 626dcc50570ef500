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
from agent.commit import Commit, CommitQueue, Committer
from agent.config import Config, parse
from agent.crdt.incarnation import mint
from agent.exchange import Boot
from agent.gossip.client import PATH
from agent.gossip.gossip import Gossip
from agent.operation import Announce, Operation, Write
from agent.store.identity import Identity
from agent.store.readers import Readers
from agent.store.sqlite import SqliteStore

SECRET = b"the secret of a test's ring"
POLL_S = 0.005  # a loop that never rests would starve the readers' threads


def now_ms() -> int:
    """The machine's clock."""
    return time.time_ns() // 1_000_000


@dataclass
class Agent:
    """One running agent. `inbox` has every message that its peers sent to it."""

    name: str
    url: str
    config: Config
    queue: CommitQueue
    readers: Readers
    gossip: Gossip
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
                "secret_file": str(folder / "unused"),
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
) -> AsyncIterator[Agent]:
    """An agent until the end of the block. `calls=False`: it only answers."""
    (folder / name).mkdir(exist_ok=True)
    path = folder / name / "tallyring.db"
    random = Random(str(path))
    inc, log = mint(now_ms(), random.getrandbits(22)), random.getrandbits(62) + 1
    store = SqliteStore(path, Identity(ring, name, name, inc, log))
    readers = Readers(path)
    tell: list[Callable[[Commit], None]] = []

    def committed(commit: Commit) -> None:
        for told in tell:
            told(commit)

    queue = CommitQueue(Committer(store), now_ms, committed)
    queue.start()
    inbox: list[bytes] = []

    async def exchange(request: web.Request) -> web.Response:
        inbox.append(await request.read())
        status, kind, body = await gossip.answer(inbox[-1])
        return web.Response(status=status, content_type=kind, body=body)

    app = web.Application(client_max_size=2**24)
    app.router.add_post(PATH, exchange)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    config = config_of(folder, name, url, ring, seeds or [])
    boot = Boot(store.boot_number, random.getrandbits(62) + 1)
    gossip = Gossip(config, (secret,), boot, queue, readers, now_ms, random)
    tell.append(gossip.committed)
    await queue.submit(Announce(name, url, store.boot_number))
    try:
        async with asyncio.TaskGroup() as loops:
            task = loops.create_task(gossip.run() if calls else asyncio.Event().wait())
            yield Agent(name, url, config, queue, readers, gossip, inbox)
            task.cancel()
    finally:
        await runner.cleanup()
        await queue.stop()
        readers.close()
        store.close()


async def until(check: Callable[[], object], timeout_s: float = 20.0) -> None:
    """Wait until a check (or what it awaits) is true."""
    async with asyncio.timeout(timeout_s):
        while True:
            found = check()
            if asyncio.iscoroutine(found):
                found = await found
            if found:
                return
            await asyncio.sleep(POLL_S)
