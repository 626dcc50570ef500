"""A link that can be broken: a TCP proxy that stands between two agents.

A fault test is worth something only if its fault really happened. So the proxy does not just stop
forwarding: what a cut refuses is accepted, read, counted and then reset, and a test asserts that
`traffic.refused_bytes` is not zero. One proxy is one link. It listens on its own address, relays
every connection to `upstream`, and can be cut, healed, delayed and throttled while it runs.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Collection
from contextlib import suppress
from types import TracebackType
from typing import Any, Self, TypeAlias

from cluster.link import (
    CHUNK_BYTES,
    Bandwidth,
    Conditions,
    Connection,
    Direction,
    Fuse,
    Traffic,
    reset,
    unread_bytes,
)

REFUSAL_READ_S = 0.05  # how long a refused client is listened to before its reset
CONNECT_S = 5.0  # how long the other end may take to accept

Address: TypeAlias = tuple[str, int]
"""Host and port."""


class Proxy:
    """One link to `upstream` that a test or the demo can cut, heal, delay and throttle.

    The controls take effect at once and never block; they must be called in the loop that runs
    the proxy. The counters of a cut are complete when `open_connections` is 0. `upstream` may be
    replaced at any time (an agent that restarts on another port); new connections use it.
    """

    def __init__(self, upstream: Address, *, host: str = "127.0.0.1", port: int = 0) -> None:
        self.upstream = upstream
        self._listen: Address = (host, port)
        self._server: asyncio.Server | None = None
        self._handlers: set[asyncio.Task[Any]] = set()
        self._connections: dict[Connection, str] = {}
        self._is_cut = False
        self._cut_sources: frozenset[str] = frozenset()
        self._conditions = Conditions()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Listen. A port of 0 is chosen by the system, and kept over `stop` and `start`."""
        if self._server is not None:
            return
        host, port = self._listen
        server = await asyncio.start_server(self._accept, host, port, limit=CHUNK_BYTES)
        self._listen = (host, server.sockets[0].getsockname()[1])
        self._server = server

    async def stop(self) -> None:
        """Stop listening, reset what is open and wait until all is closed. May be called twice."""
        server, self._server = self._server, None
        if server is None:
            return
        server.close()
        for handler in self._handlers:
            handler.cancel()
        if self._handlers:
            await asyncio.wait(self._handlers)
        await server.wait_closed()

    @property
    def address(self) -> Address:
        """Where clients connect to, while the proxy runs or has run."""
        if not self._listen[1]:
            raise RuntimeError("the proxy has no address before start()")
        return self._listen

    @property
    def traffic(self) -> Traffic:
        """What has gone through, and what was refused, since this proxy was made."""
        return self._conditions.traffic

    @property
    def open_connections(self) -> int:
        """How many connections are being relayed, refused or closed right now."""
        return len(self._handlers)

    @property
    def is_cut(self) -> bool:
        """Whether new connections are refused, from anyone or from some sources."""
        return self._is_cut or bool(self._cut_sources)

    def cut(self, sources: Collection[str] | None = None) -> None:
        """Reset connections and refuse new ones until `heal`; count what that refuses.

        `sources` are the IP addresses of the clients that are cut off, added to those of earlier
        calls; None cuts off everybody.
        """
        if sources is None:
            self._is_cut = True
        else:
            self._cut_sources |= frozenset(sources)
        for connection, source in list(self._connections.items()):
            if self._refuses(source):
                connection.sever()

    def heal(self, sources: Collection[str] | None = None) -> None:
        """Relay new connections again: of these sources, or (None) of everybody.

        Delay, throttle and an armed `cut_after` stay.
        """
        if sources is not None:
            self._cut_sources -= frozenset(sources)
            return
        self._is_cut = False
        self._cut_sources = frozenset()

    def _refuses(self, source: str) -> bool:
        return self._is_cut or source in self._cut_sources

    def delay(self, seconds: float) -> None:
        """Hold every chunk this long, each way; 0 ends it. What is held keeps its due time."""
        if not (math.isfinite(seconds) and seconds >= 0):
            raise ValueError(f"a delay is a time of 0 s or more, not {seconds!r}")
        self._conditions.delay_s = seconds

    def throttle(self, bytes_per_s: float | None) -> None:
        """Forward at most this much a second, each way, over all connections; None ends it."""
        if bytes_per_s is not None and not (math.isfinite(bytes_per_s) and bytes_per_s > 0):
            raise ValueError(f"a throttle is a rate above 0 bytes/s, or None, not {bytes_per_s!r}")
        self._conditions.bandwidth = Bandwidth(bytes_per_s)

    def cut_after(self, size: int, direction: Direction | None = None) -> None:
        """Once: after `size` more forwarded bytes, reset the connection that carries them.

        Only that one connection; the next is relayed again, so that a transfer can be resumed.
        Bytes of all connections count, in one direction or (None) in both. A later call replaces
        one that has not come to pass; `traffic.cut_transfers` tells whether it has.
        """
        if size < 0:
            raise ValueError(f"a transfer is cut after 0 bytes or more, not {size!r}")
        self._conditions.fuse = Fuse(size, direction)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is None or self._server is None:  # stopped before this connection was looked at
            reset(writer)
            return
        self._handlers.add(task)
        try:
            peer = writer.get_extra_info("peername")
            source = str(peer[0]) if peer else ""
            if self._refuses(source):
                await self._refuse(reader, writer)
            else:
                await self._relay(reader, writer, source)
        finally:
            reset(writer)
            with suppress(OSError):
                await writer.wait_closed()
            self._handlers.discard(task)

    async def _refuse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.traffic.refused_connections += 1
        with suppress(OSError):  # a time-out is one, too
            async with asyncio.timeout(REFUSAL_READ_S):
                while data := await reader.read(CHUNK_BYTES):
                    self.traffic.refused_bytes += len(data)
        self.traffic.refused_bytes += unread_bytes(writer)

    async def _relay(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, source: str
    ) -> None:
        try:
            async with asyncio.timeout(CONNECT_S):
                upstream = await asyncio.open_connection(*self.upstream, limit=CHUNK_BYTES)
        except OSError:
            self.traffic.failed_connections += 1
            return
        if self._refuses(source):  # the cut fell into the handshake
            reset(upstream[1])
            await self._refuse(reader, writer)
            return
        self.traffic.connections += 1
        connection = Connection(self._conditions, (reader, writer), upstream)
        self._connections[connection] = source
        try:
            await connection.run()
        finally:
            self._connections.pop(connection, None)
