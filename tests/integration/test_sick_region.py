"""One sick region never slows the others beyond a bound, and no buffer grows while it is away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

import aiohttp
import pytest

from cluster import probe
from cluster.local_ring import LocalRing
from cluster.probe import Latencies, Prober
from tests.integration.fault_rig import SETTINGS, SUM, add, define, show

PROBES_PER_S = 20.0
MEASURE_S = 2.5
# Far above what is usual (tens of ms) and far below one time-out of a request (10 s): a loaded
# machine passes, an exchange that waits for the sick region does not.
VISIBLE_P99_MS_MAX = 1_500.0
GROWTH_BYTES_MAX = 32 * 2**20
TRICKLE_S = 1.0

Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]


async def never(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Take everything, answer nothing."""
    while await reader.read(65_536):
        pass
    writer.close()


async def error_500(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer each request with a 500, as a broken proxy does."""
    while await reader.read(65_536):
        body = b"oops"
        writer.write(b"HTTP/1.1 500 Oops\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        await writer.drain()
    writer.close()


async def trickle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Begin an answer, and go on with a byte a second."""
    await reader.read(65_536)
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
    while not writer.is_closing():
        writer.write(b"x")
        await writer.drain()
        await asyncio.sleep(TRICKLE_S)


@asynccontextmanager
async def impostor(answer: Answer) -> AsyncIterator[tuple[tuple[str, int], Callable[[], int]]]:
    """A server that answers so: its address, and how many connections it has had."""
    connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        with suppress(OSError, asyncio.CancelledError):
            await answer(reader, writer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname(), lambda: connections
    finally:
        server.close()


async def measured(prober: Prober) -> Latencies:
    """How long writes of a and b take to be visible at the other, for a while."""
    loop = asyncio.get_running_loop()
    ends = loop.time() + MEASURE_S
    return await prober.run("ab", PROBES_PER_S, lambda: loop.time() > ends)


def bounded(latencies: Latencies) -> None:
    p99 = latencies.quantile(0.99)
    assert latencies.lost == 0
    assert p99 is not None
    assert p99 < VISIBLE_P99_MS_MAX, f"p50 {latencies.quantile(0.5)} ms, p99 {p99} ms"


@pytest.mark.parametrize("sickness", ["hangs", never, error_500, trickle])
async def test_the_others_go_on_at_their_pace_and_it_catches_up(sickness: str | Answer) -> None:
    async with (
        aiohttp.ClientSession() as session,
        LocalRing(("a", "b", "c"), links=True, settings=SETTINGS) as ring,
        AsyncExitStack() as parts,
    ):
        await define(session, ring, SUM, probe.SPEC)
        # One for all: another would begin with members that are there already.
        prober = await parts.enter_async_context(Prober([ring[name].region for name in "ab"]))
        bounded(await measured(prober))
        before = [ring[name].resident_bytes for name in "ab"]
        if isinstance(sickness, str):
            ring.pause("c")
            bounded(await measured(prober))
            ring.resume("c")
        else:
            ring.kill("c")
            proxy = ring["c"].proxy
            assert proxy is not None
            async with impostor(sickness) as (address, connections):
                well, proxy.upstream = proxy.upstream, address
                bounded(await measured(prober))
                assert connections() > 0, "nobody called the sick region: this proves nothing"
                proxy.upstream = well
                proxy.cut()  # connections to the impostor end
                proxy.heal()
            await ring.start("c")
        await add(session, ring["a"], "m", 1)
        after = [ring[name].resident_bytes for name in "ab"]
        grown = [a - b for a, b in zip(after, before, strict=True)]
        assert max(grown) < GROWTH_BYTES_MAX, grown
        await show(session, ring, {"m": 1})
