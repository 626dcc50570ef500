"""The agent about itself: alive, ready, measured, described; and its manual clock."""

from __future__ import annotations

import asyncio
import sqlite3

import msgspec
from aiohttp import web
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from agent.api.answers import ClockAnswer, HealthAnswer, ReadyAnswer
from agent.api.bodies import Decoder
from agent.api.route import Call
from agent.boards.entry import rfc3339, time_ms
from agent.errors import NotFound
from agent.limits import TIME_MS_MAX
from agent.projection.status import Phase

STORE_LOOK_S = 2.0


class ClockSet(msgspec.Struct, forbid_unknown_fields=True):
    """The time to set: RFC 3339, or integer milliseconds since 1970."""

    now: int | float | str


_clock_set: Decoder[ClockSet] = Decoder(ClockSet)


async def health(call: Call) -> web.Response:
    """GET /healthz."""
    return call.answer(HealthAnswer("ok"))


async def ready(call: Call) -> web.Response:
    """GET /readyz: 200, or 503 with the reasons. A ring that can't be reached is none of them."""
    closed = [f"writes: {e.code}: {e.detail}" for e in call.services.queue.closed.values()]
    reasons = [*await _store_reasons(call), *_rank_reasons(call), *closed]
    return call.answer(ReadyAnswer(not reasons, reasons), 503 if reasons else 200)


async def metrics(call: Call) -> web.Response:
    """GET /metrics, in the text format of Prometheus."""
    body = generate_latest(call.services.registry)
    return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})


async def set_clock(call: Call) -> web.Response:
    """POST /v1/clock."""
    clock = call.services.clock
    if clock is None:
        raise NotFound(
            "unknown_route",
            "the clock of this agent is the system's",
            hint='agent.clock = "manual" in the configuration makes it settable',
        )
    now = _clock_set.decode(*await call.body()).now
    clock.set_ms(time_ms(now, TIME_MS_MAX, "now"))
    await asyncio.to_thread(clock.keep)
    call.services.projector.wake()  # windows begin and end by it
    return call.answer(ClockAnswer(rfc3339(clock.now_ms()), clock.now_ms()))


async def _store_reasons(call: Call) -> list[str]:
    try:
        async with asyncio.timeout(STORE_LOOK_S):
            await call.services.readers.read(lambda snapshot: snapshot.newest_lsn)
    except (TimeoutError, sqlite3.Error, RuntimeError) as error:
        return [f"store: {str(error) or 'no answer'}"]
    return []


def _rank_reasons(call: Call) -> list[str]:
    status = call.services.projector.status()
    if status.phase in (Phase.FOLLOWING, Phase.WAITING):
        return []
    return [f"ranks: {status.phase}" + (f": {status.error}" if status.error else "")]
