"""A projector beside a real SQLite file and a real Valkey, for the tests of the projection."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from agent.boards.catalog import Board, Placed
from agent.boards.definition import Definition, check
from agent.boards.entry import Entry
from agent.boards.tally import Group
from agent.committer import Committer
from agent.config import AgentSection, Config, ProjectionSection, RedisSection, RingSection
from agent.errors import Indefinite, Refused, Unavailable
from agent.exchange import Chunk
from agent.operation import (
    Define,
    Drop,
    Erase,
    LiftBan,
    Merge,
    Operation,
    Reset,
    Retire,
    SetBan,
    Write,
    Written,
)
from agent.projection.connection import RankClient
from agent.projection.embedded import EmbeddedValkey
from agent.projection.keys import WATERMARK_KEY, Claim, Watermark, watermark_in
from agent.projection.link import Link
from agent.projection.projector import Projector
from agent.projection.reads import Ranks
from agent.projection.status import Phase
from agent.store.identity import Identity
from agent.store.readers import Readers
from agent.store.schema import open_reader
from agent.store.snapshot import SqliteSnapshot
from agent.store.sqlite import SqliteStore

NOW_MS = 1_760_000_000_000
PAGE = 1_000
POLL_S = 0.002
_numbers = itertools.count(1)


def config_of(
    folder: Path,
    url: str,
    *,
    agent: str = "eu-1",
    ring: str = "demo",
    region: str = "eu",
    check_s: float = 0.05,
    lease_s: float = 5.0,
    clock: str = "manual",
    derived_s: float = 0.02,
) -> Config:
    return Config(
        agent=AgentSection(region=region, name=agent, data_dir=folder, clock=clock),
        ring=RingSection(name=ring, secret_file=folder / "secret"),
        redis=RedisSection(url=url, timeout_s=5.0),
        projection=ProjectionSection(
            batch_members_max=50,
            check_s=check_s,
            lease_s=lease_s,
            sliding_s=derived_s,
            trend_s=derived_s,
        ),
    )


async def eventually(condition: Callable[[], Awaitable[bool]], timeout_s: float = 60.0) -> None:
    """Wait for a condition; fails when it does not come."""
    async with asyncio.timeout(timeout_s):
        while not await condition():  # noqa: ASYNC110 -- what others change has no event
            await asyncio.sleep(POLL_S)


class Rig:
    """One agent's store, committer, projector and ranks.

    Its board's clock is a manual one, which moves with each commit: `at_ms`.
    """

    def __init__(
        self, folder: Path, url: str, *, skew_ms: int = 0, new_log: bool = False, **settings: Any
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.config = config_of(folder, url, **settings)
        number = next(_numbers)
        identity = Identity(
            ring=self.config.ring.name,
            agent=self.config.name,
            region=self.config.agent.region,
            inc=number + 100,
            log=number + 1_000_000,
        )
        path = self.path = folder / "tallyring.db"
        self._store = SqliteStore(path, identity)
        self._store.begin(number, number + 2_000_000 if new_log else None)
        self.committer = Committer(self._store, lambda _now_ms, inc: (inc + 1_000, inc + 3_000_000))
        self.readers = Readers(path)
        self.client = RankClient(url, 5.0, 4)
        self.redis: Redis = Redis.from_url(url)
        self.projector = Projector(
            self.config,
            self.readers,
            lambda: self.committer.state,
            self.client,
            lambda: time.time_ns() // 10**6 + skew_ms,
            board_now_ms=self.now_ms,
            identity=lambda: (self.committer.state.log, 1),
        )
        self.ranks = Ranks(self.config, self.client, self.readers)
        self.at_ms = NOW_MS
        self._commits = itertools.count()

    def now_ms(self) -> int:
        """The board's time."""
        return self.at_ms if self.config.agent.clock == "manual" else time.time_ns() // 10**6

    def run(self, *operations: Operation) -> list[Any]:
        """Commit operations; all of them must be taken."""
        self.at_ms += 1_000
        commit = self.committer.run(operations, self.now_ms())
        for answer in commit.answers:
            assert not isinstance(answer, Refused | Indefinite), answer
        # Every second commit is missed by the projector's copy of the log's end, so that both ways
        # to follow it are used: from memory, and from the file.
        if next(self._commits) % 2:
            self.projector.committed(commit)
        else:
            self.projector.wake()
        return commit.answers

    def pull(self, other: Rig) -> None:
        """Take over everything that another agent has committed, as gossip does."""
        theirs = other.committer.state
        reading = self.committer.state.cursors.get(theirs.log)
        start = 0 if reading is None else reading.lsn
        db = open_reader(other.path)
        rows = [row for _, row in SqliteSnapshot(db).log_after(start, 10**6) if row is not None]
        db.close()
        chunk = Chunk(theirs.log, start, theirs.lsn, head=True, rows=tuple(rows))
        self.run(Merge(other.config.name, chunk, theirs.vv))

    def define(self, board: str, **fields: Any) -> None:
        self.run(Define(board, check(Definition(**fields))))

    def reset(self, board: str) -> None:
        self.run(Reset(board, None))

    def retire(self, board: str) -> None:
        self.run(Retire(board))

    def write(self, board: str, entries: Sequence[Entry]) -> None:
        answers = self.run(Write((Group(board, entries, range(len(entries))),)))
        assert isinstance(answers[0], Written)

    def add(self, board: str, amounts: Mapping[str, int]) -> None:
        self.write(board, [Entry(member, add=amount) for member, amount in amounts.items()])

    def ban(self, member: str, board: str = "") -> None:
        """Ban a member on a board, or on all."""
        self.run(SetBan(member.encode(), board, None, "cheats", "admin"))

    def lift(self, member: str, board: str = "") -> None:
        """Lift a member's ban."""
        self.run(LiftBan(member.encode(), board, "", "admin"))

    def erase(self, name: str) -> bytes:
        """Close a name, and drop what was stored of it; returns the id of its tombstone."""
        self.run(Erase(name.encode(), b"k" * 16))
        self.purge(name)
        found = self.committer.state.erased.find(name.encode())
        assert found is not None
        return found.id

    def purge(self, name: str) -> None:
        """Drop every cell that stands under an erased name as a member."""
        db = open_reader(self.path)
        snapshot = SqliteSnapshot(db)
        cells = [
            (space, name.encode(), slot)
            for space in snapshot.spaces()
            for slot, _ in snapshot.slots_of(space, name.encode())
        ]
        db.close()
        self.run(Drop(tuple(cells)))

    def board(self, name: str) -> Board:
        return self.committer.state.catalog.board(name)

    def placed(self, board: str, window: str | None = None) -> Placed:
        """A window of a board, by name or id; the first one where none is named."""
        found = self.board(board)
        return found.place(found.resolve(window, self.now_ms()))

    async def projected(self, board: str, window: str | None = None) -> None:
        """Wait until everything committed so far is in the ranks."""
        name = self.placed(board, window).window.id
        assert await self.projector.wait_for(board, name, 30, lsn=self.committer.state.lsn)

    async def page(self, board: str, window: str | None = None) -> list[tuple[int, str, int]]:
        """The whole window, in pages, as (rank, member, score)."""
        found: list[tuple[int, str, int]] = []
        while True:
            view = await self.ranks.page(self.placed(board, window), len(found), PAGE)
            found += [(entry.rank, entry.member, entry.score) for entry in view.entries]
            if len(found) >= view.total:
                return found

    async def scores(self, board: str, window: str | None = None) -> dict[str, int]:
        return {member: score for _, member, score in await self.page(board, window)}

    async def serves(
        self, board: str, scores: Mapping[str, int], window: str | None = None
    ) -> bool:
        """Whether the window is served with exactly these scores."""
        with suppress(Unavailable):
            return await self.scores(board, window) == scores
        return False

    def fill(self, members: int) -> dict[str, int]:
        """Define the board `points`, give it members, and return their scores."""
        scores = {f"player-{number:06}": number * 7 % 1000 + 1 for number in range(members)}
        self.define("points", rule="sum", ties="shared")
        self.add("points", scores)
        return scores

    async def serving(
        self, scores: Mapping[str, int], board: str = "points", window: str | None = None
    ) -> None:
        """Wait until the window is served with exactly these scores."""
        await eventually(lambda: self.serves(board, scores, window))

    async def in_phase(self, phase: Phase) -> None:
        """Wait until the projector is in a phase."""

        async def check() -> bool:
            return self.projector.status().phase == phase

        await eventually(check)

    async def holding(self) -> None:
        """Wait until it is this agent that holds the lease in Redis."""

        async def check() -> bool:
            found = watermark_in(await self.client.command("HGETALL", WATERMARK_KEY))
            held = found is not None and found.lease_until_ms > 0
            return held and found is not None and found.claim.agent == self.config.name

        await eventually(check)

    async def moving(self, changes: int = 1) -> None:
        """Wait until the projector has made some more changes of Redis."""
        before = self.projector.status().counts.batches

        async def check() -> bool:
            return self.projector.status().counts.batches >= before + changes

        await eventually(check)

    @asynccontextmanager
    async def projecting(self) -> AsyncIterator[None]:
        """Run the projector meanwhile; if it ends by itself, that is an error."""
        with suppress(asyncio.CancelledError):
            async with asyncio.TaskGroup() as group:
                task = group.create_task(self.projector.run())
                try:
                    yield
                finally:
                    task.cancel()

    async def watermark(self) -> Watermark:
        """The watermark in Redis; fails where there is none."""
        found = watermark_in(await self.client.command("HGETALL", WATERMARK_KEY))
        assert found is not None
        return found

    async def close(self) -> None:
        await self.client.close()
        await self.redis.aclose()
        self.readers.close()
        self._store.close()


@contextmanager
def dying() -> Iterator[None]:
    """A projector that ends in here ends as by kill -9: it gives nothing up."""

    async def nothing(_link: Link, _claim: Claim) -> bool:
        return False

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Link, "give_up", nothing)
        yield


@asynccontextmanager
async def valkey(folder: Path) -> AsyncIterator[EmbeddedValkey]:
    """A Valkey server, restarted when it dies."""
    server = EmbeddedValkey(folder, 0)
    await server.start()
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(server.run())
            try:
                yield server
            finally:
                await server.stop()
    finally:
        await server.stop()


@asynccontextmanager
async def rig(
    folder: Path, url: str, *, skew_ms: int = 0, new_log: bool = False, **settings: Any
) -> AsyncIterator[Rig]:
    made = Rig(folder, url, skew_ms=skew_ms, new_log=new_log, **settings)
    try:
        yield made
    finally:
        await made.close()
