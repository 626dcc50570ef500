"""Replays a workload: each region's rows go to its own agent, in batches, several at a time.

    rows --> one batch a region (ENTRIES_MAX) --> bounded queue --> IN_FLIGHT senders --> agent

Everything that is sent is counted in the expectation first, so that the checker knows what must
come out. A batch that an agent refuses for a while (503, definite) is sent again; any other refusal
ends the replay, because then nobody could say what the right answer is.

Where the workload has a pace, each agent's manual clock is moved to the newest time of a batch
before the batch is sent.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import msgspec

from cluster.clocks import Clocks
from cluster.expected import BoardSpec, Entry, Expectation
from cluster.workload import Row, Workload

ENTRIES_MAX = 4_000  # of one request: large enough to be quick, small enough to flow
IN_FLIGHT = 3  # requests at a time to one agent: while one is committed the next is parsed
QUEUED_MAX = 2  # batches that wait for a sender; the reader of the input waits beyond
REQUEST_S = 60.0
BUSY_S = 0.2
COUNTERS = "counters"  # the built-in board behind /v1/counters


class ReplayError(Exception):
    """An agent refused a batch; the text is its problem document's."""


@dataclass(slots=True)
class Progress:
    """How far a replay is. Rows and entries count once they are acknowledged.

    keys: entries with a key, each once. resent: those sent again. duplicates: how many of these
        were answered so: where the region knew the key already.
    late: entries that came too late for one of their windows.
    at_ms: the time of the newest row that was read.
    """

    rows_total: int
    rows: int = 0
    entries: int = 0
    requests: int = 0
    busy: int = 0
    keys: int = 0
    resent: int = 0
    duplicates: int = 0
    late: int = 0
    at_ms: int | None = None
    rows_by_region: Counter[str] = field(default_factory=Counter)
    started: float = field(default_factory=time.monotonic)
    ended: float | None = None

    @property
    def seconds(self) -> float:
        """How long it has taken so far, or took."""
        return (self.ended or time.monotonic()) - self.started

    @property
    def entries_per_s(self) -> float:
        """Acknowledged entries a second, over all regions."""
        return self.entries / max(self.seconds, 1e-9)


class _Counted(msgspec.Struct):
    """Of an answer to an entry, what is looked at."""

    duplicate: bool = False
    late: list[str] = []


class _Answer(msgspec.Struct):
    """Of an answer to entries, what is looked at."""

    entries: list[_Counted]


_answer = msgspec.json.Decoder(_Answer)


@dataclass(slots=True)
class _Batch:
    """What waits to be sent to one region. newest_ms: of its entries' times."""

    rows: int = 0
    newest_ms: int = -1
    entries: list[dict[str, Any]] = field(default_factory=list)
    counters: Counter[str] = field(default_factory=Counter)

    def add(self, entry: Entry, number_field: str) -> None:
        """Take in one entry; `number_field` is `add`, `score` or `actor`."""
        document: dict[str, Any] = {
            "board": entry.board,
            "member": entry.member,
            number_field: entry.number if entry.actor is None else entry.actor,
            "at": entry.at_ms,
        }
        if entry.data is not None:
            document["data"] = entry.data
        if entry.key is not None:
            document["key"] = entry.key
        self.newest_ms = max(self.newest_ms, entry.at_ms)
        self.entries.append(document)

    def body(self) -> tuple[bytes, int]:
        """The request to send, as JSON, and how many entries it stands for.

        Counters are members of a board like others: all goes in one request.
        """
        counters = [
            {"board": COUNTERS, "member": name, "add": by} for name, by in self.counters.items()
        ]
        document = {"entries": [*self.entries, *counters]}
        return msgspec.json.encode(document), len(self.entries) + self.counters.total()


class Replay:
    """One replay of a workload into running agents.

    Args:
        urls: by region, its agent's URL.
        expectation: everything that is sent is counted in it.
        checkpoints: by row number, what to await before that row is read. Batches that were
            handed over before go on.
        clocks: of the agents, where the workload has a pace.
    """

    def __init__(
        self,
        workload: Workload,
        urls: Mapping[str, str],
        expectation: Expectation,
        checkpoints: Mapping[int, Callable[[], Awaitable[None]]] | None = None,
        clocks: Clocks | None = None,
    ) -> None:
        self._workload = workload
        self._urls = dict(urls)
        self._expectation = expectation
        self._checkpoints = dict(checkpoints or {})
        self._boards: Mapping[str, BoardSpec] = workload.boards
        self._batches: dict[str, _Batch] = {}
        self._again: dict[str, list[Entry]] = {}
        self._clocks = clocks if workload.pace is not None else None
        self.progress = Progress(workload.rows_total)

    async def define_boards(self, session: aiohttp.ClientSession) -> None:
        """Define the boards at one agent, and wait until all agents know them.

        Raises:
            ReplayError: a definition was refused, or did not arrive in REQUEST_S.
        """
        first = next(iter(self._urls.values()))
        for name, spec in self._workload.boards.items():
            async with session.put(f"{first}/v1/boards/{name}", json=spec.document()) as response:
                await checked(response)
        try:
            async with asyncio.timeout(REQUEST_S):
                for url in self._urls.values():
                    for name in self._workload.boards:
                        while not await _knows(session, url, name):  # noqa: ASYNC110 -- remote
                            await asyncio.sleep(0.02)
        except TimeoutError:
            raise ReplayError(f"not all agents knew the boards after {REQUEST_S:.0f} s") from None

    async def run(self, session: aiohttp.ClientSession) -> Progress:
        """Send everything; returns when the last entry is acknowledged. The boards are defined.

        Raises:
            ReplayError: an agent refused a batch.
            ClockError: an agent refused to move its clock.
            aiohttp.ClientError: an agent can't be reached.
        """
        self.progress.started = time.monotonic()
        try:
            await self._send_all(session)
        except ExceptionGroup as group:
            raise first_error(group) from group
        self.progress.ended = time.monotonic()
        return self.progress

    async def _send_all(self, session: aiohttp.ClientSession) -> None:
        queues: dict[str, asyncio.Queue[_Batch | None]] = {
            region: asyncio.Queue(QUEUED_MAX) for region in self._urls
        }
        pace = self._workload.pace
        in_flight = IN_FLIGHT if pace is None else pace.in_flight
        async with asyncio.TaskGroup() as group:
            for region, queue in queues.items():
                for _ in range(in_flight):
                    group.create_task(self._sender(session, region, queue))
            await self._feed(queues)
            for queue in queues.values():
                for _ in range(in_flight):
                    await queue.put(None)

    async def _feed(self, queues: Mapping[str, asyncio.Queue[_Batch | None]]) -> None:
        self._batches = {region: _Batch() for region in queues}
        self._again = {region: [] for region in queues}
        pace = self._workload.pace
        step_ends_ms = None if pace is None else pace.starts_ms + pace.step_ms
        # Small inputs are cut into several requests, too: a replay of one request shows nothing.
        entries_max = min(ENTRIES_MAX, max(1, self._workload.rows_total // 8))
        for number, row in enumerate(self._workload.rows()):
            if number in self._checkpoints:
                await self._checkpoints[number]()
            self.progress.at_ms = at_ms = row.entries[0].at_ms
            if pace is not None and step_ends_ms is not None and at_ms >= step_ends_ms:
                step_ends_ms = at_ms + pace.step_ms
                for region in queues:
                    await self._hand_over(region, queues[region])
            self._take(row)
            for region in {row.region, *(retry.region for retry in row.retries)}:
                if len(self._batches[region].entries) >= entries_max:
                    await self._hand_over(region, queues[region])
        while any(batch.entries for batch in self._batches.values()):
            for region, queue in queues.items():
                await self._hand_over(region, queue)

    def _take(self, row: Row) -> None:
        """Put a row's entries into its region's batch, and its retries into those of others.

        One to the same region goes into the batch after, so that it is a request of its own.
        """
        batch = self._batches[row.region]
        batch.rows += 1
        for entry in row.entries:
            self._add(batch, entry)
            self.progress.keys += entry.key is not None
        for name in row.counters:
            self._expectation.count_counter(name, 1)
            batch.counters[name] += 1
        for region, entry in row.retries:
            self.progress.resent += 1
            if region == row.region:
                self._again[region].append(entry)
            else:
                self._add(self._batches[region], entry)

    def _add(self, batch: _Batch, entry: Entry) -> None:
        self._expectation.count(entry)
        batch.add(entry, self._boards[entry.board].number_field)

    async def _hand_over(self, region: str, queue: asyncio.Queue[_Batch | None]) -> None:
        """Hand a region's batch to its senders, and begin the next one with what is sent again."""
        batch, again = self._batches[region], self._again[region]
        self._batches[region], self._again[region] = _Batch(), []
        for entry in again:
            self._add(self._batches[region], entry)
        if batch.entries:
            await queue.put(batch)

    async def _sender(
        self, session: aiohttp.ClientSession, region: str, queue: asyncio.Queue[_Batch | None]
    ) -> None:
        while (batch := await queue.get()) is not None:
            if self._clocks is not None:
                await self._clocks.move(region, batch.newest_ms)
            body, entries = batch.body()
            answer = await self._post(session, f"{self._urls[region]}/v1/entries", body)
            self.progress.requests += 1
            self.progress.entries += entries
            for counted in answer.entries:
                self.progress.duplicates += counted.duplicate
                self.progress.late += bool(counted.late)
            self.progress.rows += batch.rows
            self.progress.rows_by_region[region] += batch.rows

    async def _post(self, session: aiohttp.ClientSession, url: str, body: bytes) -> _Answer:
        headers = {"Content-Type": "application/json"}
        while True:
            async with session.post(url, data=body, headers=headers) as response:
                if response.status == 503 and (await response.json()).get("definite"):
                    self.progress.busy += 1
                else:
                    return _answer.decode(await checked(response))
            await asyncio.sleep(BUSY_S)


async def _knows(session: aiohttp.ClientSession, url: str, board: str) -> bool:
    async with session.get(f"{url}/v1/boards/{board}") as response:
        return response.status == 200


async def checked(response: aiohttp.ClientResponse) -> bytes:
    """The answer's body.

    Raises:
        ReplayError: it is a refusal; the text is its problem document's.
    """
    if response.status < 300:
        return await response.read()
    try:
        problem = await response.json(content_type=None)
        text = f"{problem['code']}: {problem['detail']}"
    except (ValueError, KeyError, TypeError):
        text = (await response.text())[:300]
    raise ReplayError(f"{response.method} {response.url.path}: {response.status} {text}")


def first_error(group: ExceptionGroup[Exception]) -> Exception:
    """The error of the task that failed first; the others only followed."""
    first: Exception = group.exceptions[0]
    while isinstance(first, ExceptionGroup):
        first = first.exceptions[0]
    return first
