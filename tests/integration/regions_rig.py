"""Three regions as real processes, whose links and disks fail, and whose time is set by hand.

What a board must show is given as plain integers and looked for in every region that runs, over
HTTP and straight in its Redis. `holds` waits for it; `holds_after_rebuild` also empties every
Redis and waits again.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias, cast
from urllib.parse import quote

import aiohttp
from redis.asyncio import Redis

from agent.boards.marks import keys_series
from agent.boards.windows import KEYS
from agent.crdt.slot import Kind, name_of
from agent.crdt.space import MARKS_SPACE, decode_space
from agent.store.lock import DATABASE
from cluster.chaos import disks
from cluster.expected import BoardSpec, ranked
from cluster.local_ring import LocalRing
from tests.integration.fault_rig import answer, eventually, succeeding
from tests.integration.membership_rig import all_met, metric

REGIONS = ("a", "b", "c")
SETTINGS: dict[str, dict[str, Any]] = {
    "agent": {"clock": "manual"},
    "gossip": {"backoff_max_s": 0.3, "interval_s": 0.2},
    "ring": {"confirm_s": 0.5},
    "projection": {"check_s": 0.1, "sliding_s": 0.3},
    "keeping": {"interval_s": 0.2},
}
NOON = datetime(2026, 11, 30, 12, tzinfo=UTC)  # a Monday
HOLDS_S = 60.0

Shown: TypeAlias = dict[str, dict[str, dict[str, int]]]
"""What boards show: board -> window id -> member -> score."""


def at(**later: float) -> str:
    """A time after NOON, as entries carry it and answers name it: `at(minutes=5)`."""
    moment = NOON + timedelta(**later)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def path(*parts: str) -> str:
    """A path of the API: `path("boards", "b", "entries")`."""
    return "/v1/" + "/".join(quote(part, safe="") for part in parts)


@dataclass
class Regions:
    """A ring of three regions, and the clients' connections to it."""

    ring: LocalRing
    session: aiohttp.ClientSession
    now: str = at()
    orders: dict[str, str] = field(default_factory=dict)

    @property
    def running(self) -> list[str]:
        """The regions whose agents run."""
        return [name for name in self.ring.agents if self.ring[name].process is not None]

    # --- requests -------------------------------------------------------------------------

    async def ask(
        self, name: str, method: str, where: str, body: Any = None
    ) -> tuple[int, dict[str, Any]]:
        """Status and document of any answer of one region. An agent that has died says why."""
        agent = self.ring[name]
        try:
            return await answer(self.session, agent, method, where, body)
        except aiohttp.ClientError as error:
            raise AssertionError(f"{name}: {error}\n{agent.end_of_log}") from error

    async def send(self, name: str, method: str, where: str, body: Any = None) -> dict[str, Any]:
        """The document of an answer that must be a success."""
        return await succeeding(method, lambda: self.ask(name, method, where, body))

    async def write(self, name: str, board: str, **entry: Any) -> dict[str, Any]:
        """Write an entry; what the answer says of it."""
        document = await self.send(name, "POST", path("boards", board, "entries"), entry)
        said: dict[str, Any] = document["entries"][0]
        return said

    async def refuses(self, name: str, board: str, **entry: Any) -> tuple[int, str]:
        """Write an entry that must be refused: (status, code)."""
        status, document = await self.ask(name, "POST", path("boards", board, "entries"), entry)
        assert status >= 400, document
        return status, document["code"]

    async def define(self, board: str, first: str = "a", **definition: Any) -> None:
        """Define a board in one region and wait until all that run serve this version of it."""
        document = {"ties": "member", **definition}
        self.orders[board] = document.get("order", "high")
        made = await self.send(first, "PUT", path("boards", board), document)
        for name in self.running:
            await self.knows(name, board, made["version"])

    async def knows(self, name: str, board: str, version: int) -> None:
        """Wait until a region serves a version of a board."""

        async def served() -> bool:
            status, shown = await self.ask(name, "GET", path("boards", board))
            if status != 200 or shown["version"] != version:
                return False
            status, _ = await self.ask(name, "GET", path("boards", board, "entries"))
            return status == 200

        await eventually(served)

    async def set_clock(self, now: str, *names: str) -> None:
        """Set the time of some regions, by default of all that run and of those to be started."""
        if not names:
            self.now = now
        for name in names or self.running:
            await self.send(name, "POST", "/v1/clock", {"now": now})

    # --- faults ---------------------------------------------------------------------------

    async def kill(self, name: str) -> None:
        """Kill -9 the agent of a region."""
        self.ring.kill(name)

    async def start(self, name: str) -> None:
        """Start a region's agent again, at the present time."""
        await self.ring.start(name)
        await self.set_clock(self.now, name)

    def put_away(self, name: str) -> None:
        """Copy the data folder of a region, as it is now."""
        disks.copy_disk(self.ring[name], self.ring.folder / f"{name}.copy")

    def bring_back(self, name: str) -> None:
        """Bring a stopped region's copy back, in the place of all that it has learned since."""
        disks.put_back(self.ring[name], self.ring.folder / f"{name}.copy")

    def lose_disk(self, name: str) -> None:
        """Empty a stopped region's data folder."""
        disks.empty(self.ring[name])

    @asynccontextmanager
    async def parted(self, *names: str) -> AsyncIterator[None]:
        """Cut these regions off, by default all from each other; healed at the end.

        The end waits until the cut was met by somebody who tried.
        """
        before = self.ring.refused[0]
        for name in names or REGIONS:
            self.ring.cut_off(name)
        try:
            yield

            async def was_met() -> bool:
                return self.ring.refused[0] > before

            await eventually(was_met)
        finally:
            self.ring.heal()

    async def flush(self) -> None:
        """FLUSHALL in the Redis of every region that runs, and wait until all is filled anew."""
        before = {name: await self._rebuilds(name) for name in self.running}
        for name in self.running:
            async with Redis.from_url(self.ring[name].redis_url) as redis:
                await redis.flushall()
        for name in self.running:

            async def filled(name: str = name) -> bool:
                status, _ = await self.ask(name, "GET", "/readyz")
                return status == 200 and await self._rebuilds(name) > before[name]

            await eventually(filled)

    async def _rebuilds(self, name: str) -> float:
        return await self.metric(name, "tallyring_projection_rebuilds_total")

    # --- what is there ----------------------------------------------------------------------

    async def metric(self, name: str, which: str) -> float:
        """A metric of one region."""
        return await metric(self.session, self.ring[name], which)

    async def holds(self, want: Shown, *names: str) -> None:
        """Wait until these regions, by default all that run, show exactly this.

        Ranks and totals are compared as well: the order must be the one that these scores have.
        """
        for name in names or self.running:
            for board, windows in want.items():
                for window, scores in windows.items():
                    await self._shows(name, board, window, scores)

    async def _shows(self, name: str, board: str, window: str, scores: dict[str, int]) -> None:
        spec = BoardSpec(board, "sum", order=self.orders.get(board, "high"), ties="member")
        places = ranked(spec, ((member, score, 0) for member, score in scores.items()))
        wanted: list[Any] = [(place.rank, place.member, place.score) for place in places]
        seen: tuple[Any, Any] = (None, None)

        async def equal() -> bool:
            nonlocal seen
            over_http = await self._page(name, board, window)
            seen = (over_http, await self._in_redis(name, board, window, spec))
            return seen == (wanted, wanted)

        try:
            async with asyncio.timeout(HOLDS_S):
                await eventually(equal)
        except TimeoutError:
            found = {"region": name, "board": board, "window": window}
            raise AssertionError(f"{found}\nHTTP, Redis: {seen}\nwanted: {wanted}") from None

    async def _page(self, name: str, board: str, window: str) -> Any:
        where = f"{path('boards', board, 'entries')}?limit=1000&window={quote(window)}"
        status, page = await self.ask(name, "GET", where)
        if status != 200:
            return status, page["code"]
        lines = [(line["rank"], line["member"], line["score"]) for line in page["entries"]]
        return lines if len(lines) == page["total"] else (lines, page["total"])

    async def _in_redis(self, name: str, board: str, window: str, spec: BoardSpec) -> Any:
        key = f"lb:{{s0}}:{board}:{window}"
        async with Redis.from_url(self.ring[name].redis_url) as redis:
            meta = cast("dict[bytes, bytes]", await redis.hgetall(f"{key}:meta"))
            rows = cast(
                "list[tuple[bytes, float]]",
                await redis.zrange(key, 0, -1, desc=not spec.low, withscores=True),
            )
        if not meta:
            return rows  # a window in which nothing was ever counted
        low, b = meta[b"order"] == b"low", int(meta[b"b"])
        if low != spec.low or b:
            return meta
        return [(rank, who.decode(), int(score)) for rank, (who, score) in enumerate(rows, 1)]

    async def holds_after_rebuild(self, want: Shown) -> None:
        """Wait until every region shows exactly this, also from a Redis that was emptied."""
        await self.holds(want)
        await self.flush()
        await self.holds(want)

    async def page_of(self, name: str, board: str, **query: Any) -> dict[str, Any]:
        """The first page of a board in one region."""
        asked = "&".join(f"{field}={quote(str(value))}" for field, value in query.items())
        return await self.send(name, "GET", f"{path('boards', board, 'entries')}?{asked}")

    async def facts(self, *names: str) -> Mapping[str, int]:
        """By region, how many keys of entries are remembered."""
        return {
            name: int(await self.metric(name, "tallyring_facts")) for name in names or self.running
        }

    def cells_of(self, name: str, member: str) -> int:
        """How many cells a region's file has of a member, anywhere."""
        return sum(1 for _, who, _ in self._cells(name) if who == member.encode())

    def cells_in(self, name: str, board: str, window: str) -> int:
        """How many cells a region's file has in a window of a board."""
        spaces = [decode_space(space) for space, _, _ in self._cells(name)]
        return sum(1 for its in spaces if its and (its.board, its.window) == (board, window))

    def closed_by(self, name: str, board: str, at_time: str) -> set[str]:
        """Whose marks a region's file has that a board's keys of a time are closed."""
        moment = datetime.fromisoformat(at_time)
        of_keys, upto = keys_series(board), KEYS.at(int(moment.timestamp() * 1000))
        assert upto is not None
        file = self.ring[name].data_dir / DATABASE
        with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as opened:
            rows = opened.execute(
                "SELECT c.slot, c.body FROM cells AS c JOIN spaces AS s ON s.id = c.space"
                " WHERE s.space = ? AND c.member = ?",
                (MARKS_SPACE, of_keys),
            ).fetchall()
        marks = {name_of(slot): body.decode() for slot, body in rows if slot[0] == Kind.CLOSE}
        return {agent for agent, window in marks.items() if window >= upto.id}

    def _cells(self, name: str) -> list[tuple[bytes, bytes, bytes]]:
        """(space, member, slot) of each cell in a region's file."""
        file = self.ring[name].data_dir / DATABASE
        with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as opened:
            query = (
                "SELECT s.space, c.member, c.slot FROM cells AS c JOIN spaces AS s"
                " ON s.id = c.space"
            )
            return opened.execute(query).fetchall()

    async def traces_of(self, name: str, member: str) -> list[str]:
        """Where a region still has a name: the files of its database and keys of its Redis.

        Of a file with what stands around the first place, so that a failure says what it was.
        """
        word = member.encode()
        found = []
        for file in self.ring[name].data_dir.glob(f"{DATABASE}*"):
            data = file.read_bytes()
            at = data.find(word)
            if at >= 0:
                around = data[max(0, at - 200) : at + 200]
                found.append(f"{file.name}, {data.count(word)} times, at {at}: {around!r}")
        async with Redis.from_url(self.ring[name].redis_url) as redis:
            for key in cast("list[bytes]", await redis.keys("*")):
                of_type = await redis.type(key)
                is_in = of_type == b"zset" and await redis.zscore(key, word) is not None
                if is_in or word in key:
                    found.append(key.decode())
        return found

    async def keys_of(self, name: str, board: str) -> list[str]:
        """The windows of a board that have a place in a region's Redis."""
        prefix = f"lb:{{s0}}:{board}:"
        async with Redis.from_url(self.ring[name].redis_url) as redis:
            found = cast("list[bytes]", await redis.keys(f"{prefix}*"))
        return sorted({key.decode().removeprefix(prefix).removesuffix(":meta") for key in found})


@asynccontextmanager
async def three_regions() -> AsyncIterator[Regions]:
    """Three regions that have met, at NOON."""
    async with (
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=15)) as session,
        LocalRing(REGIONS, links=True, settings=SETTINGS) as ring,
    ):
        regions = Regions(ring, session)
        await regions.set_clock(regions.now)
        await all_met(session, ring)
        yield regions
