"""Live: the top of a board as it changes, as server-sent events.

    retry: 2000                        once, at the beginning
    id: all/7f3c...                    the window and a digest of what is shown
    event: top
    data: {...}                        a page, as GET .../entries answers it

A listener that is slow skips states, as it always gets the newest one; one whose socket takes
nothing for DRAIN_S is dropped. The id says what was shown, so any agent of the region can go on
from it: whoever has the newest state already is told nothing.

    event: stale       data: a problem: ranks can't be read now; `top` follows when they can
    event: end         data: a problem: there is nothing more to hear; the stream ends
"""

from __future__ import annotations

import asyncio
import hashlib

from aiohttp import web

from agent.api.answers import PageAnswer
from agent.api.bodies import JSON, encode
from agent.api.channels import IDLE_S, Channel, event
from agent.api.problem import problem_of
from agent.api.ranks import page_answer
from agent.api.route import Call
from agent.errors import Refused

RETRY_MS = 2_000
DRAIN_S = 10.0
EVENT_STREAM = "text/event-stream"


async def show_live(call: Call) -> web.StreamResponse:
    """GET /v1/boards/{board}/live."""
    services, request, query = call.services, call.request, call.query
    placed = call.placed()  # refuses what is not there before anything is sent
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    response = web.StreamResponse(headers=headers)
    response.content_type = EVENT_STREAM
    if request.method == "HEAD":
        await response.prepare(request)
        await response.write_eof()
        return response
    live = services.live
    window, limit = query["window"], query["limit"]

    async def look() -> tuple[str, bytes]:
        now = services.windows.find(services, services.queue.state, placed.board.name, window)
        page, _ = await page_answer(services, now, 0, limit)
        return _id_of(page, now.board.generation), encode(page, JSON)

    channel = live.join(placed.board.name, window, limit, services.projector, look)
    try:
        await response.prepare(request)
        await _write(response, f"retry: {RETRY_MS}\n\n".encode())
        await _stream(call, response, channel, request.headers.get("Last-Event-ID", ""))
        await response.write_eof()
    except TimeoutError:
        live.dropped += 1
        if request.transport is not None:
            request.transport.abort()
    except OSError:  # the listener has gone
        pass
    finally:
        live.leave(channel)
    return response


async def _stream(call: Call, response: web.StreamResponse, channel: Channel, known: str) -> None:
    """Tell a listener each state that it does not have, until there is nothing more to tell."""
    live, services = call.services.live, call.services
    was_stale = False
    while True:
        changed = channel.changed
        live.keep(call.request.protocol)
        try:
            services.auth.caller(call.request, "read")  # its token may be one no more
        except Refused as error:
            await _write(response, event("end", encode(problem_of(error), JSON)))
            return
        if channel.stale:
            if not was_stale:
                await _write(response, channel.stale)
            was_stale = True
        elif channel.id and (channel.id != known or was_stale):
            known, was_stale = channel.id, False
            await _write(response, channel.event)
            live.sent += 1
        if channel.over:
            await _write(response, channel.over)
            return
        if changed.is_set():
            continue
        try:
            async with asyncio.timeout(IDLE_S):
                await changed.wait()
        except TimeoutError:
            await _write(response, b":\n\n")


async def _write(response: web.StreamResponse, data: bytes) -> None:
    """Send bytes.

    Raises:
        TimeoutError: the listener's socket takes nothing.
        OSError: it is closed.
    """
    async with asyncio.timeout(DRAIN_S):
        await response.write(data)


def _id_of(page: PageAnswer, generation: int) -> str:
    said = encode([generation, page.total, page.entries], JSON)
    return f"{page.window}/{hashlib.blake2b(said, digest_size=9).hexdigest()}"
