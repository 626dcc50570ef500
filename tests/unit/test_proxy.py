"""The proxy relays faithfully, and its faults really happen: bytes are late, few, or refused."""

from __future__ import annotations

import asyncio
import fcntl
import sys
import termios
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
import uvloop

from cluster.link import Direction
from cluster.proxy import Proxy

POLL_S = 0.002
LONG_S = 3600.0  # a delay that no test waits for
MEGABYTE = bytes(range(256)) * 4096


async def eventually(condition: Callable[[], bool]) -> None:
    """Wait for a condition; the suite's time limit ends a wait in vain."""
    while not condition():  # noqa: ASYNC110 - counters have no event to wait for
        await asyncio.sleep(POLL_S)


def unacknowledged(writer: asyncio.StreamWriter) -> int:
    """How many bytes have not reached the other side's system yet."""
    count = fcntl.ioctl(writer.get_extra_info("socket").fileno(), termios.TIOCOUTQ, bytes(4))
    return writer.transport.get_write_buffer_size() + int.from_bytes(count, sys.byteorder)


class Upstream:
    """A server that stores what it gets, answers `reply` to the first bytes, and can echo."""

    def __init__(self, *, echo: bool = False, reply: bytes = b"") -> None:
        self.received = bytearray()
        self.resets = 0
        self.ends = 0
        self._echo = echo
        self._reply = reply

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        reply = self._reply
        try:
            while data := await reader.read(65536):
                self.received += data
                writer.write(data if self._echo else reply)
                reply = b""
                await writer.drain()
            self.ends += 1
        except ConnectionError:
            self.resets += 1
        finally:
            writer.transport.abort()


@asynccontextmanager
async def link(upstream: Upstream) -> AsyncIterator[Proxy]:
    server = await asyncio.start_server(upstream.serve, "127.0.0.1", 0)
    try:
        async with Proxy(server.sockets[0].getsockname()) as proxy:
            yield proxy
    finally:
        server.close()
        await server.wait_closed()
        assert proxy.open_connections == 0


@asynccontextmanager
async def dial(proxy: Proxy) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection(*proxy.address)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def read_until_reset(reader: asyncio.StreamReader) -> bytes:
    received = bytearray()
    try:
        while data := await reader.read(65536):
            received += data
    except ConnectionError:
        return bytes(received)
    pytest.fail("the connection ended with a goodbye, not with a reset")


async def test_bytes_arrive_unchanged_both_ways_and_are_counted() -> None:
    upstream = Upstream(echo=True)
    async with link(upstream) as proxy, dial(proxy) as (reader, writer):
        async with asyncio.TaskGroup() as group:
            group.create_task(writer.drain())
            writer.write(MEGABYTE)
            echoed = await reader.readexactly(len(MEGABYTE))
        assert echoed == MEGABYTE
        assert upstream.received == MEGABYTE
        assert proxy.traffic.forwarded_up == proxy.traffic.forwarded_down == len(MEGABYTE)
        assert proxy.traffic.connections == 1
        assert proxy.traffic.refused_bytes == proxy.traffic.refused_connections == 0


async def test_an_end_of_stream_is_passed_on_and_leaves_the_other_direction_open() -> None:
    upstream = Upstream(reply=b"late answer")
    async with link(upstream) as proxy, dial(proxy) as (reader, writer):
        writer.write(b"question")
        writer.write_eof()
        assert await reader.read() == b"late answer"
        await eventually(lambda: proxy.open_connections == 0)
        assert upstream.ends == 1
        assert proxy.traffic.reset_connections == 0


async def test_a_client_that_vanishes_resets_the_upstream() -> None:
    upstream = Upstream(reply=b"x")
    async with link(upstream) as proxy:
        async with dial(proxy) as (reader, writer):
            writer.write(b"hello")
            await reader.readexactly(1)
        await eventually(lambda: upstream.ends + upstream.resets == 1)
        await eventually(lambda: proxy.open_connections == 0)


async def test_a_cut_resets_what_is_open_and_counts_what_was_under_way() -> None:
    upstream = Upstream()
    async with link(upstream) as proxy, dial(proxy) as (reader, writer):
        writer.write(b"through")
        await eventually(lambda: upstream.received == b"through")
        proxy.delay(LONG_S)
        writer.write(b"under way")
        await writer.drain()
        proxy.cut()
        assert await read_until_reset(reader) == b""
        await eventually(lambda: proxy.open_connections == 0)
        assert proxy.traffic.reset_connections == 1
        assert proxy.traffic.forwarded_up == len(b"through")
        assert proxy.traffic.refused_bytes == len(b"under way")
        await eventually(lambda: upstream.resets == 1)
        assert upstream.received == b"through"


@pytest.mark.parametrize("reads", [True, False])
async def test_every_byte_of_a_cut_connection_is_either_forwarded_or_refused(reads: bool) -> None:
    # In the middle of a throttled transfer, bytes are held, read ahead, and unread in the kernel.
    size = 6 * len(MEGABYTE) if reads else 500_000
    upstream = Upstream()
    async with link(upstream) as proxy, dial(proxy) as (reader, writer):
        await eventually(lambda: proxy.traffic.connections == 1)
        proxy.throttle(1_000_000)
        writer.write(bytes(size))
        await eventually(lambda: proxy.traffic.forwarded_up > 0)
        if not reads:
            await eventually(lambda: unacknowledged(writer) == 0)
        proxy.cut()
        sent = size - unacknowledged(writer)
        await read_until_reset(reader)
        await eventually(lambda: proxy.open_connections == 0)
        await eventually(lambda: upstream.resets == 1)
        traffic = proxy.traffic
        assert 0 < len(upstream.received) <= traffic.forwarded_up < size
        assert traffic.forwarded_up + traffic.refused_bytes == sent


async def test_a_cut_refuses_new_connections_and_counts_what_they_sent() -> None:
    upstream = Upstream(echo=True)
    async with link(upstream) as proxy:
        proxy.cut()
        for attempt in (1, 2, 3):
            async with dial(proxy) as (reader, writer):
                writer.write(b"0123456789")
                assert await read_until_reset(reader) == b""
            await eventually(lambda: proxy.open_connections == 0)
            assert proxy.traffic.refused_connections == attempt
            assert proxy.traffic.refused_bytes == 10 * attempt
        assert proxy.traffic.connections == 0
        assert upstream.received == b""


async def test_a_healed_link_relays_again() -> None:
    async with link(Upstream(echo=True)) as proxy:
        proxy.cut()
        async with dial(proxy) as (reader, _):
            await read_until_reset(reader)
        proxy.heal()
        assert not proxy.is_cut
        async with dial(proxy) as (reader, writer):
            writer.write(b"again")
            assert await reader.readexactly(5) == b"again"


async def test_a_cut_can_concern_some_sources_only() -> None:
    upstream = Upstream(echo=True)
    async with link(upstream) as proxy:
        ends = [
            await asyncio.open_connection(*proxy.address, local_addr=(source, 0))
            for source in ("127.0.0.21", "127.0.0.22")
        ]
        for reader, writer in ends:
            writer.write(b"x")
            assert await reader.readexactly(1) == b"x"
        proxy.cut(["127.0.0.21"])
        await read_until_reset(ends[0][0])
        ends[1][1].write(b"y")
        assert await ends[1][0].readexactly(1) == b"y"
        refused = await asyncio.open_connection(*proxy.address, local_addr=("127.0.0.21", 0))
        refused[1].write(b"again")
        await read_until_reset(refused[0])
        await eventually(lambda: proxy.open_connections == 1)
        assert proxy.traffic.refused_bytes == len(b"again")
        assert proxy.traffic.refused_connections == 1
        proxy.heal(["127.0.0.21"])
        assert not proxy.is_cut
        healed = await asyncio.open_connection(*proxy.address, local_addr=("127.0.0.21", 0))
        healed[1].write(b"z")
        assert await healed[0].readexactly(1) == b"z"
        for _, writer in [*ends, refused, healed]:
            writer.transport.abort()


async def test_a_delay_makes_every_chunk_late_but_does_not_stretch_the_transfer() -> None:
    delay_s, chunks = 0.1, 50
    upstream = Upstream(echo=True)
    async with link(upstream) as proxy, dial(proxy) as (reader, writer):
        proxy.delay(delay_s)
        now = asyncio.get_running_loop().time
        start = now()
        for _ in range(chunks):
            writer.write(b"chunk")
            await asyncio.sleep(0)
        assert await reader.readexactly(5 * chunks) == b"chunk" * chunks
        assert 2 * delay_s <= now() - start < delay_s * chunks
        proxy.delay(0)
        writer.write(b"at once")
        assert await reader.readexactly(7) == b"at once"


async def test_a_lower_delay_does_not_reorder() -> None:
    upstream = Upstream()
    async with link(upstream) as proxy, dial(proxy) as (_, writer):
        proxy.delay(0.1)
        writer.write(b"first ")
        await eventually(lambda: proxy.traffic.connections == 1)
        proxy.delay(0)
        writer.write(b"second")
        await eventually(lambda: len(upstream.received) == 12)
        assert upstream.received == b"first second"


async def test_a_throttle_bounds_the_rate_over_all_connections() -> None:
    rate, size = 200_000, 20_000
    upstream = Upstream()
    async with link(upstream) as proxy, dial(proxy) as (_, one), dial(proxy) as (_, two):
        proxy.throttle(rate)
        now = asyncio.get_running_loop().time
        start = now()
        one.write(bytes(size))
        two.write(bytes(size))
        await eventually(lambda: len(upstream.received) == 2 * size)
        assert now() - start >= 2 * size / rate
        proxy.throttle(None)
        one.write(MEGABYTE)
        await eventually(lambda: len(upstream.received) == 2 * size + len(MEGABYTE))


async def test_a_transfer_is_cut_in_the_middle_once() -> None:
    size = 100_001
    async with link(Upstream(reply=MEGABYTE)) as proxy:
        proxy.cut_after(size, Direction.DOWN)
        async with dial(proxy) as (reader, writer):
            writer.write(b"get")
            assert MEGABYTE[:size].startswith(await read_until_reset(reader))
        await eventually(lambda: proxy.open_connections == 0)
        assert proxy.traffic.forwarded_down == size
        assert proxy.traffic.cut_transfers == proxy.traffic.reset_connections == 1
        assert proxy.traffic.refused_bytes > 0
        assert not proxy.is_cut
        async with dial(proxy) as (reader, writer):
            writer.write(b"get")
            assert await reader.readexactly(len(MEGABYTE)) == MEGABYTE


async def test_a_cut_after_n_bytes_may_span_connections_and_directions() -> None:
    async with link(Upstream(echo=True)) as proxy:
        proxy.cut_after(15)
        async with dial(proxy) as (reader, writer):
            writer.write(b"12345")
            assert await reader.readexactly(5) == b"12345"  # ten of them are through now
        async with dial(proxy) as (reader, writer):
            writer.write(b"1234567")
            assert await read_until_reset(reader) == b""
        assert (proxy.traffic.forwarded_up, proxy.traffic.forwarded_down) == (10, 5)
        assert proxy.traffic.cut_transfers == 1


async def test_an_upstream_that_is_down_is_a_failure_and_not_a_refusal() -> None:
    async with link(Upstream()) as proxy:
        address = proxy.upstream
        proxy.upstream = ("127.0.0.1", 1)
        async with dial(proxy) as (reader, _):
            await read_until_reset(reader)
        assert proxy.traffic.failed_connections == 1
        assert proxy.traffic.refused_connections == 0
        proxy.upstream = address
        async with dial(proxy):
            await eventually(lambda: proxy.traffic.connections == 1)


async def test_stop_ends_everything_and_start_takes_the_same_address() -> None:
    async with link(Upstream(echo=True)) as proxy, dial(proxy) as (reader, writer):
        address = proxy.address
        proxy.delay(LONG_S)
        proxy.throttle(1)
        writer.write(MEGABYTE)
        await eventually(lambda: proxy.traffic.connections == 1)
        await proxy.stop()
        await proxy.stop()
        await read_until_reset(reader)
        assert proxy.open_connections == 0
        assert proxy.traffic.refused_bytes == 0
        with pytest.raises(ConnectionError):
            await asyncio.open_connection(*address)
        proxy.delay(0)
        proxy.throttle(None)
        await proxy.start()
        assert proxy.address == address
        async with dial(proxy) as (new_reader, new_writer):
            new_writer.write(b"back")
            assert await new_reader.readexactly(4) == b"back"


async def test_a_slow_reader_holds_the_sender_back() -> None:
    async with link(Upstream()) as proxy, dial(proxy) as (_, writer):
        proxy.delay(LONG_S)
        await eventually(lambda: proxy.traffic.connections == 1)
        async with asyncio.TaskGroup() as group:
            # Far more than every buffer on the way takes: the sender has to wait.
            writer.write(MEGABYTE * 40)
            drained = group.create_task(writer.drain())
            before = -1
            while before != writer.transport.get_write_buffer_size():
                before = writer.transport.get_write_buffer_size()
                await asyncio.sleep(20 * POLL_S)
            assert not drained.done()
            assert before > 0
            drained.cancel()


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), float("inf")])
def test_a_delay_must_be_a_time(seconds: float) -> None:
    with pytest.raises(ValueError, match="a delay is a time"):
        Proxy(("127.0.0.1", 1)).delay(seconds)


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan")])
def test_a_throttle_must_be_a_rate(rate: float) -> None:
    with pytest.raises(ValueError, match="a throttle is a rate"):
        Proxy(("127.0.0.1", 1)).throttle(rate)


def test_a_transfer_cannot_be_cut_before_it_begins() -> None:
    with pytest.raises(ValueError, match="a transfer is cut"):
        Proxy(("127.0.0.1", 1)).cut_after(-1)


def test_a_proxy_has_no_address_before_its_start() -> None:
    with pytest.raises(RuntimeError, match="no address"):
        _ = Proxy(("127.0.0.1", 1)).address


def test_cuts_are_the_same_on_uvloop() -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(test_a_cut_resets_what_is_open_and_counts_what_was_under_way())
        runner.run(test_a_cut_refuses_new_connections_and_counts_what_they_sent())
        runner.run(test_a_transfer_is_cut_in_the_middle_once())
        runner.run(test_stop_ends_everything_and_start_takes_the_same_address())
