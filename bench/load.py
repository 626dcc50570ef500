"""A lean client, the same for HTTP and for RESP: N connections, one request at a time on each.

It runs in a process of its own and does as little as possible per answer (find its end, send the
next prepared request), so that what is measured is the server. Requests are prepared before the
clock starts. A status other than 200, or a RESP error, ends the run.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from itertools import cycle
from typing import cast

import uvloop

CONNECT_S = 10.0


class LoadError(Exception):
    """A server answered with an error; the text is the beginning of its answer."""


@dataclass(frozen=True, slots=True)
class Load:
    """What to send.

    build: makes the requests, in the client's process (so it must be importable there).
    arguments: of `build`.
    replies: how many RESP lines end one answer; 0 for HTTP.
    again: start over when all requests were sent; else that ends the run.
    """

    build: Callable[..., list[bytes]]
    arguments: tuple[object, ...]
    connections: int = 64
    replies: int = 0
    again: bool = True
    port: int = 0
    seconds: float = 0.0

    def at(self, port: int, seconds: float) -> Load:
        """The same load on a server, for a time."""
        return replace(self, port=port, seconds=seconds)


@dataclass(frozen=True, slots=True)
class Driven:
    """What came of a load: the time it took, and the latency of each request, in order of size."""

    seconds: float
    latencies_s: array[float]

    @property
    def requests(self) -> int:
        """How many were answered."""
        return len(self.latencies_s)

    @property
    def per_s(self) -> float:
        """Requests answered a second."""
        return self.requests / self.seconds

    @property
    def p50_ms(self) -> float:
        """The median latency."""
        return percentile_ms(self.latencies_s, 0.5)

    @property
    def p99_ms(self) -> float:
        """What one in a hundred took longer than."""
        return percentile_ms(self.latencies_s, 0.99)


def percentile_ms(ordered_s: Sequence[float], share: float) -> float:
    """A percentile, in ms, of latencies in s that are in order."""
    return ordered_s[int(len(ordered_s) * share)] * 1000


class _Connection(asyncio.Protocol):
    """Sends a request, finds the end of its answer, sends the next."""

    def __init__(self, run: _Run) -> None:
        self._run = run
        self._transport: asyncio.Transport | None = None
        self._buffer = b""
        self._sent = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport; `go` starts."""
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the run."""
        self._run.ended(exc)

    def go(self) -> None:
        """Send the next request, or nothing when the run is over."""
        request = self._run.next()
        assert self._transport is not None
        if request is None:
            self._transport.close()
            return
        self._sent = time.perf_counter()
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        """Look whether the answer is complete."""
        if self._buffer:
            data = self._buffer + data
        try:
            is_complete = self._run.complete(data)
        except LoadError as error:
            self._run.fail(error)
            return
        if is_complete:
            self._buffer = b""
            self._run.latencies.append(time.perf_counter() - self._sent)
            self.go()
        else:
            self._buffer = data


class _Run:
    """One run of a load."""

    def __init__(self, load: Load, requests: Sequence[bytes], ended: asyncio.Future[None]) -> None:
        self._is_exhausted = False
        self._requests: Iterator[bytes] = cycle(requests) if load.again else iter(requests)
        self._deadline = 0.0
        self._seconds = load.seconds
        self._open = load.connections
        self.complete = _resp_complete(load.replies) if load.replies else _http_complete
        self.latencies: list[float] = []
        self._ended = ended

    def begin(self) -> None:
        """Start the clock."""
        self._deadline = time.perf_counter() + self._seconds

    def next(self) -> bytes | None:
        """The next request; None when time is up or all were sent."""
        if time.perf_counter() >= self._deadline:
            return None
        request = next(self._requests, None)
        self._is_exhausted = request is None
        return request

    def ended(self, error: Exception | None) -> None:
        """Count a connection that has ended; one that ends early is an error."""
        self._open -= 1
        is_early = time.perf_counter() < self._deadline and not self._is_exhausted
        if error is not None or is_early:
            self.fail(error or LoadError("the server closed a connection"))
        elif not self._open and not self._ended.done():
            self._ended.set_result(None)

    def fail(self, error: Exception) -> None:
        """End the run with an error."""
        if not self._ended.done():
            self._ended.set_exception(error)


def _http_complete(data: bytes) -> bool:
    head = data.find(b"\r\n\r\n")
    if head < 0:
        return False
    if not data.startswith(b"HTTP/1.1 200"):
        raise LoadError(data[:600].decode(errors="replace"))
    at = data.find(b"Content-Length: ", 0, head)
    length = int(data[at + 16 : data.find(b"\r\n", at)])
    return len(data) >= head + 4 + length


def _resp_complete(lines: int) -> Callable[[bytes], bool]:
    def complete(data: bytes) -> bool:
        if data.startswith(b"-"):
            raise LoadError(data[:300].decode(errors="replace"))
        return data.count(b"\r\n") >= lines

    return complete


async def _drive(load: Load) -> Driven:
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()
    run = _Run(load, load.build(*load.arguments), ended)
    connections = []
    async with asyncio.timeout(CONNECT_S):
        for _ in range(load.connections):
            _, connection = await loop.create_connection(
                lambda: _Connection(run), "127.0.0.1", load.port
            )
            connections.append(connection)
    started = time.perf_counter()
    run.begin()
    for connection in connections:
        connection.go()
    await ended
    seconds = time.perf_counter() - started
    return Driven(seconds, array("d", sorted(run.latencies)))


def _in_process(load: Load) -> Driven:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_drive(load))


class Clients:
    """The client's process, kept for all loads. Use it with `with`."""

    def __init__(self) -> None:
        self._pool = ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))

    def __enter__(self) -> Clients:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown()

    async def drive(self, load: Load) -> Driven:
        """Run a load to its end.

        Raises:
            LoadError: the server refused a request or closed a connection.
        """
        return await asyncio.get_running_loop().run_in_executor(self._pool, _in_process, load)
