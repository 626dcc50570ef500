"""Reading a counter: from this agent's own file, so it includes every write answered here."""

from __future__ import annotations

from aiohttp import web

from agent.api.answers import CounterAnswer
from agent.api.route import Call
from agent.api.waiting import wait_stored
from agent.boards.definition import COUNTERS
from agent.boards.entry import name_bytes


async def read_counter(call: Call) -> web.Response:
    """GET /v1/counters/{name}."""
    services = call.services
    call.allow(COUNTERS)
    name = call.path("name")
    member = name_bytes(name, "name")
    await wait_stored(services, call.query["after"])
    # The state is older than the snapshot, so the answer includes at least what it claims.
    state = services.queue.state
    fresh = services.freshness.of(state)
    fresh.require(call.query["max_lag_ms"])
    key = (state.catalog.board(COUNTERS).space, member)
    total = await services.readers.read(lambda snapshot: snapshot.total_checked(key))
    return call.answer(CounterAnswer(name, 0 if total is None else total.score, *fresh))
