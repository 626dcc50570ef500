"""Rank reads over HTTP, beside ZREVRANK, and beside what a server costs that does nothing.

ZREVRANK is measured twice: by the lean client that also drives the agent (RESP on raw sockets, one
command at a time on each of 64 connections), which is what Valkey can do, and through redis-py, by
64 callers with a command each, which is what a game's backend in Python gets from it.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from random import Random

from aiohttp import web
from redis.asyncio import BlockingConnectionPool, Redis

from bench import requests
from bench.figures import Aim, Figure
from bench.load import Load
from bench.world import LARGE, OURS, World

CALLERS = 64
NAMES = 20_000
TOGETHER = 100  # ranks asked for in one request: as many as there may be
CONNECTIONS_OF_PYTHON = 16


async def ranks(world: World) -> list[Figure]:
    """The rank of a random member of the large board, alone and several in a request; its top."""
    population = world.scale.population
    values = await world.alternate(
        lambda resp, number: Load(
            requests.ranks,
            (LARGE.name, resp, population, number, NAMES),
            replies=1 if resp else 0,
        )
    )
    beside = {f"valkey {name}": its for name, its in values.items() if name != OURS}
    beside["redis-py"] = tuple([await _through_python(world) for _ in range(world.scale.rounds)])
    of_one = f"rank of a random one of {population:,} members"
    figures = [
        Figure(of_one, "requests/s", values[OURS], Aim(0.2), beside, "valkey everysec"),
    ]
    together = await world.in_turns(
        ["together"],
        lambda _, number: Load(
            requests.ranks_together, (LARGE.name, population, number, TOGETHER, 200)
        ),
        TOGETHER,
    )
    raw = {"valkey everysec": beside["valkey everysec"]}
    name = f"the same, {TOGETHER} in a request"
    figures.append(Figure(name, "ranks/s", together["together"], Aim(0.2), raw, "valkey everysec"))
    return [*figures, await _top(world)]


async def _top(world: World) -> Figure:
    """The first page, of 100 members, beside a handler that answers nothing."""
    page = Load(requests.top, (LARGE.name,))
    bare = web.ServerRunner(web.Server(_nothing))
    await bare.setup()
    try:
        site = web.TCPSite(bare, "127.0.0.1", 0)
        await site.start()
        port = bare.addresses[0][1]
        tops, nothings = [], []
        for _ in range(world.scale.rounds):
            driven = await world.clients.drive(page.at(world.agent.port, world.scale.seconds))
            tops.append(driven.per_s)
            load = Load(requests.bare, ()).at(port, world.scale.seconds)
            nothings.append((await world.clients.drive(load)).per_s)
    finally:
        await bare.cleanup()
    beside = {"a bare handler": tuple(nothings)}
    return Figure("top page of 100 members", "requests/s", tuple(tops), Aim(10_000), beside)


async def _nothing(_request: web.BaseRequest) -> web.Response:
    return web.Response(body=b"{}", content_type="application/json")


async def _through_python(world: World) -> float:
    """ZREVRANK through redis-py: commands a second."""
    random = Random(0)
    names = [requests.member(random.randrange(world.scale.population)) for _ in range(NAMES)]
    waiting = itertools.cycle(names)
    port = world.valkeys["everysec"]
    pool = BlockingConnectionPool(
        host="127.0.0.1", port=port, max_connections=CONNECTIONS_OF_PYTHON, timeout=None
    )
    done = 0
    async with Redis.from_pool(pool) as redis:
        began = time.perf_counter()
        ends = began + world.scale.seconds

        async def call() -> None:
            nonlocal done
            while time.perf_counter() < ends:
                await redis.zrevrank(LARGE.name, next(waiting))
                done += 1

        await asyncio.gather(*(call() for _ in range(CALLERS)))
        return done / (time.perf_counter() - began)
