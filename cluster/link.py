"""One connection of a link: two ends, two lanes, and an exact account of what a cut took from it.

    source --> receive --> held (bounded, in order, each chunk when due) --> deliver --> sink

A delay shifts the due time of a chunk and does not stretch the transfer; a throttle is the
bandwidth of the link, shared by all its connections, in each direction. What is held, unsent or
unread when a connection is severed counts as refused, so that for such a connection

    bytes received = bytes forwarded + bytes refused

holds as soon as it is closed. "Forwarded" means handed to the operating system: as on any network,
the last bytes before a reset may still be lost to the receiver.
"""

from __future__ import annotations

import asyncio
import fcntl
import socket
import struct
import sys
import termios
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

CHUNK_BYTES = 64 * 1024  # the most that is read, or written, in one go
HELD_BYTES_MAX = 4 * 1024 * 1024  # of one direction of a connection; bounds bandwidth x delay
HELD_CHUNKS_MAX = 4096  # the same for a sender of tiny chunks
PIECE_S = 0.05  # a throttled write takes about this long, so that a change of rate is felt soon

End: TypeAlias = tuple[asyncio.StreamReader, asyncio.StreamWriter]
"""One side of a connection, as asyncio hands it out."""


class Direction(Enum):
    """Which way bytes go through a proxy."""

    UP = "from the client to the upstream"
    DOWN = "from the upstream to the client"


@dataclass(slots=True)
class Traffic:
    """What a proxy has done since it was made. The counters only rise."""

    connections: int = 0  # relayed
    failed_connections: int = 0  # the upstream did not accept
    refused_connections: int = 0  # attempts while the link was cut
    reset_connections: int = 0  # relayed ones that a cut ended
    cut_transfers: int = 0  # of the reset ones, those that `cut_after` ended
    refused_bytes: int = 0  # read, or waiting to be read, and not forwarded because of a cut
    forwarded_up: int = 0
    forwarded_down: int = 0

    def forward(self, direction: Direction, size: int) -> None:
        """Count `size` bytes that were handed on."""
        if direction is Direction.UP:
            self.forwarded_up += size
        else:
            self.forwarded_down += size


@dataclass(slots=True)
class Fuse:
    """A cut that is waiting for its byte."""

    size: int  # bytes to go
    direction: Direction | None


class Bandwidth:
    """Who may send when: each write books the link, after the writes booked before it."""

    def __init__(self, bytes_per_s: float | None = None) -> None:
        self._bytes_per_s = bytes_per_s
        self._free_at = dict.fromkeys(Direction, 0.0)

    async def take(self, direction: Direction, size: int) -> int:
        """Book a piece of at most `size` bytes, wait until it has passed, return its size."""
        if self._bytes_per_s is None:
            return size
        size = min(size, max(1, int(self._bytes_per_s * PIECE_S)))
        start = max(asyncio.get_running_loop().time(), self._free_at[direction])
        self._free_at[direction] = start + size / self._bytes_per_s
        await _sleep_until(self._free_at[direction])
        return size


class Conditions:
    """How good a link is: shared by all its connections, changed while they run."""

    def __init__(self) -> None:
        self.traffic = Traffic()
        self.delay_s = 0.0
        self.bandwidth = Bandwidth()
        self.fuse: Fuse | None = None

    async def admit(self, direction: Direction, size: int) -> tuple[int, bool]:
        """Wait for the link's bandwidth. How many of `size` bytes may pass; is it cut then?"""
        size = await self.bandwidth.take(direction, size)
        fuse = self.fuse
        if fuse is None or fuse.direction not in {None, direction}:
            return size, False
        if fuse.size > size:
            fuse.size -= size
            return size, False
        self.fuse = None
        self.traffic.cut_transfers += 1
        return fuse.size, True


class Connection:
    """One relayed connection: its two ends and its two lanes."""

    def __init__(self, link: Conditions, client: End, upstream: End) -> None:
        self._traffic = link.traffic
        self._writers = (client[1], upstream[1])
        self._lanes = (
            _Lane(link, Direction.UP, client, upstream[1], self.sever),
            _Lane(link, Direction.DOWN, upstream, client[1], self.sever),
        )
        self._tasks: list[asyncio.Task[None]] = []
        self._severed = False

    async def run(self) -> None:
        """Relay until both sides have ended, one side fails, or the link is severed."""
        ended = False
        try:
            async with asyncio.TaskGroup() as group:
                for lane in self._lanes:
                    self._tasks.append(group.create_task(lane.receive()))
                    self._tasks.append(group.create_task(lane.deliver()))
            ended = not self._severed
        except* OSError:
            pass  # one end was reset or is gone; resetting the other tells it so
        finally:
            for writer in self._writers:
                if ended:
                    writer.close()
                else:
                    reset(writer)
            for writer in self._writers:
                with suppress(OSError):
                    await writer.wait_closed()
        if self._severed:
            for lane in self._lanes:
                await lane.refuse_rest()

    def sever(self) -> None:
        """Reset both ends now; nothing more is forwarded, and what is under way counts as refused.

        A cancelled child does not fail its TaskGroup, so `run` goes on to clean up.
        """
        if self._severed:
            return
        self._severed = True
        self._traffic.reset_connections += 1
        for lane in self._lanes:
            lane.refuse_held()
        for writer in self._writers:
            reset(writer)
        for task in self._tasks:
            task.cancel()


class _Lane:
    """One direction of one connection."""

    def __init__(
        self,
        link: Conditions,
        direction: Direction,
        source: End,
        sink: asyncio.StreamWriter,
        sever: Callable[[], None],
    ) -> None:
        self._link = link
        self._direction = direction
        self._source, self._source_writer = source
        self._sink = sink
        self._sever = sever
        self._held: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(HELD_CHUNKS_MAX)
        self._held_bytes = 0  # received and not known to be forwarded
        self._writing = 0  # of these, given to the transport, which may not have sent them
        self._room = asyncio.Event()
        # drain() then returns only when the system has taken everything: that is "forwarded".
        sink.transport.set_write_buffer_limits(high=0)

    async def receive(self) -> None:
        """Read chunks and hold each until it is due; an empty one is the end of the stream."""
        now = asyncio.get_running_loop().time
        while True:
            while self._held_bytes >= HELD_BYTES_MAX:
                self._room.clear()
                await self._room.wait()
            data = await self._source.read(CHUNK_BYTES)
            self._held_bytes += len(data)
            await self._held.put((now() + self._link.delay_s, data))
            if not data:
                return

    async def deliver(self) -> None:
        """Write what is due, in order, as fast as the link's bandwidth allows."""
        while True:
            due, data = await self._held.get()
            await _sleep_until(due)
            if not data:
                self._sink.write_eof()
                return
            rest = memoryview(data)
            while rest:
                size, is_last = await self._link.admit(self._direction, len(rest))
                self._writing = size
                self._sink.write(rest[:size])
                await self._sink.drain()
                self._forwarded(size)
                rest = rest[size:]
                if is_last:
                    self._sever()
                    await asyncio.sleep(0)  # the cancellation arrives here

    def refuse_held(self) -> None:
        """Settle the account at the moment of a cut, before the connection is reset."""
        self._forwarded(self._writing - self._sink.transport.get_write_buffer_size())
        self._link.traffic.refused_bytes += self._held_bytes + unread_bytes(self._source_writer)

    async def refuse_rest(self) -> None:
        """Count what the stream had read ahead when the connection was reset."""
        with suppress(OSError):
            while data := await self._source.read(CHUNK_BYTES):
                self._link.traffic.refused_bytes += len(data)

    def _forwarded(self, size: int) -> None:
        self._link.traffic.forward(self._direction, size)
        self._held_bytes -= size
        self._writing = 0
        self._room.set()


async def _sleep_until(due: float) -> None:
    wait = due - asyncio.get_running_loop().time()
    if wait > 0:
        await asyncio.sleep(wait)


def reset(writer: asyncio.StreamWriter) -> None:
    """Close without a goodbye: the other side gets a reset and loses what it has not been sent."""
    if not writer.is_closing():
        linger = struct.pack("ii", 1, 0)
        with suppress(OSError):
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    writer.transport.abort()


def unread_bytes(writer: asyncio.StreamWriter) -> int:
    """How many bytes the system has received on this connection and nobody has read."""
    if writer.is_closing():
        return 0
    with suppress(OSError):
        count = fcntl.ioctl(writer.get_extra_info("socket").fileno(), termios.FIONREAD, bytes(4))
        return int.from_bytes(count, sys.byteorder)
    return 0
