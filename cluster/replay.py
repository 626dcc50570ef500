"""Replays a workload: each region's rows go to its own agent, in batches, several at a time.

    rows --> one batch a region (ENTRIES_MAX) --> bounded queue --> IN_FLIGHT senders --> agent

Everything that is sent is counted in the expectation first, so that the checker knows what must
come out. A batch that an agent refuses for a while (503, definite) is sent again; any other refusal
ends the replay, because then nobody could say what the right answer is.
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

from cluster.expected import Entry, Expectation
from cluster.workload import Workload

ENTRIES_MAX = 4_000  # of one request: large enough to be quick, small enough to flow
IN_FLIGHT = 3  # requests at a time to one agent: while one is committed the next is parsed
QUEUED_MAX = 2  # batches that wait for a sender; the reader of the input waits beyond
REQUEST_S = 60.0
BUSY_S = 0.2


class ReplayError(Exception):
    """An agent refused a batch; the text is its problem document's."""


@dataclass(slots=True)
class Progress:
    """How far a replay is. Rows and entries count once they are acknowledged."""

    rows_total: int
    rows: int = 0
    entries: int = 0
    requests: int = 0
    busy: int = 0
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


@dataclass(slots=True)
class _Batch:
    """What waits to be sent to one region."""

    rows: int = 0
    entries: list[dict[str, Any]] = field(default_factory=list)
    counters: Counter[str] = field(default_factory=Counter)

    def add(self, entry: Entry, number_field: str) -> None:
        """Take in one entry; `number_field` is `add` or `score`."""
        document = {
            "board": entry.board,
            "member": entry.member,
            number_field: entry.number,
            "at": entry.at_ms,
        }
        if entry.data is not None:
            document["data"] = entry.data
        self.entries.append(document)

    def bodies(self) -> list[tuple[str, bytes, int]]:
        """The requests to send: (path, JSON, entries in it)."""
        found = []
        if self.entries:
            document = {"entries": self.entries}
            found.append(("/v1/entries", msgspec.json.encode(document), len(self.entries)))
        if self.counters:
            body = msgspec.json.encode(dict(self.counters))
            found.append(("/v1/counters", body, self.counters.total()))
        return found


class Replay:
    """One replay of a workload into running agents.

    Args:
        urls: by region, its agent's URL.
        expectation: everything that is sent is counted in it.
        checkpoints: by row number, what to await before that row is read. Batches that were
            handed over before go on.
    """

    def __init__(
        self,
        workload: Workload,
        urls: Mapping[str, str],
        expectation: Expectation,
        checkpoints: Mapping[int, Callable[[], Awaitable[None]]] | None = None,
    ) -> None:
        self._workload = workload
        self._urls = dict(urls)
        self._expectation = expectation
        self._checkpoints = dict(checkpoints or {})
        self._fields = {
            name: "add" if spec.rule == "sum" else "score" for name, spec in workload.boards.items()
        }
        self.progress = Progress(workload.rows_total)

    async def define_boards(self, session: aiohttp.ClientSession) -> None:
        """Define the boards at one agent, and wait until all agents know them.

        Raises:
            ReplayError: a definition was refused, or did not arrive in REQUEST_S.
        """
        first = next(iter(self._urls.values()))
        for name, spec in self._workload.boards.items():
            async with session.put(f"{first}/v1/boards/{name}", json=spec.document()) as response:
                await _checked(response)
        try:
            async with asyncio.timeout(REQUEST_S):
                for url in self._urls.values():
                    for name in self._workload.boards:
                        while not await _knows(session, url, name):  # noqa: ASYNC110 -- remote
                            await asyncio.sleep(0.02)
        except TimeoutError:
            raise ReplayError(f"not all agents knew the boards after {REQUEST_S:.0f} s") from None

    async def run(self) -> Progress:
        """Send everything; returns when the last entry is acknowledged.

        Raises:
            ReplayError: an agent refused a batch.
            aiohttp.ClientError: an agent can't be reached.
        """
        timeout = aiohttp.ClientTimeout(total=REQUEST_S)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            await self.define_boards(session)
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
        async with asyncio.TaskGroup() as group:
            for region, queue in queues.items():
                for _ in range(IN_FLIGHT):
                    group.create_task(self._sender(session, region, queue))
            await self._feed(queues)
            for queue in queues.values():
                for _ in range(IN_FLIGHT):
                    await queue.put(None)

    async def _feed(self, queues: Mapping[str, asyncio.Queue[_Batch | None]]) -> None:
        batches = {region: _Batch() for region in queues}
        # Small inputs are cut into several requests, too: a replay of one request shows nothing.
        entries_max = min(ENTRIES_MAX, max(1, self._workload.rows_total // 8))
        for number, row in enumerate(self._workload.rows()):
            if number in self._checkpoints:
                await self._checkpoints[number]()
            batch = batches[row.region]
            batch.rows += 1
            for entry in row.entries:
                self._expectation.count(entry)
                batch.add(entry, self._fields[entry.board])
            for name in row.counters:
                self._expectation.count_counter(name, 1)
                batch.counters[name] += 1
            if len(batch.entries) >= entries_max:
                batches[row.region] = _Batch()
                await queues[row.region].put(batch)
        for region, batch in batches.items():
            if batch.rows:
                await queues[region].put(batch)

    async def _sender(
        self, session: aiohttp.ClientSession, region: str, queue: asyncio.Queue[_Batch | None]
    ) -> None:
        while (batch := await queue.get()) is not None:
            for path, body, entries in batch.bodies():
                await self._post(session, self._urls[region] + path, body)
                self.progress.requests += 1
                self.progress.entries += entries
            self.progress.rows += batch.rows
            self.progress.rows_by_region[region] += batch.rows

    async def _post(self, session: aiohttp.ClientSession, url: str, body: bytes) -> None:
        headers = {"Content-Type": "application/json"}
        while True:
            async with session.post(url, data=body, headers=headers) as response:
                if response.status == 503 and (await response.json()).get("definite"):
                    self.progress.busy += 1
                else:
                    await _checked(response)
                    return
            await asyncio.sleep(BUSY_S)


async def _knows(session: aiohttp.ClientSession, url: str, board: str) -> bool:
    async with session.get(f"{url}/v1/boards/{board}") as response:
        return response.status == 200


async def _checked(response: aiohttp.ClientResponse) -> None:
    """Read the answer away; raise what a problem document says."""
    if response.status < 300:
        await response.read()
        return
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
