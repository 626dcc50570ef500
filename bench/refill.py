"""Refill: how fast an agent's Redis is whole again after it lost everything."""

from __future__ import annotations

import asyncio
import time

from redis.asyncio import Redis

from bench.figures import Aim, Figure
from bench.world import LARGE, World

ROUNDS_MAX = 3
POLL_S = 0.01
REFILLED_S = 180.0


async def refill(world: World) -> list[Figure]:
    """FLUSHALL, then wait until every board is whole; from the flush on, noticing it included."""
    rates = []
    async with Redis.from_url(world.agent.redis_url) as redis:
        members = await _members(redis)
        for _ in range(min(ROUNDS_MAX, world.scale.rounds)):
            await redis.flushall()
            started = time.perf_counter()
            async with asyncio.timeout(REFILLED_S):
                while await _members(redis) != members:  # noqa: ASYNC110 -- a remote server
                    await asyncio.sleep(POLL_S)
            rates.append(members / (time.perf_counter() - started))
            await world.settle()
    return [
        Figure(
            f"refill of Redis, {members:,} members",
            "members/s",
            tuple(rates),
            Aim(100_000),
            note="from the flush on; it is noticed within a second",
        )
    ]


async def _members(redis: Redis) -> int:
    """How many members all live boards have together."""
    count = 0
    for board in ("hot", "new", LARGE.name):
        count += await redis.zcard(f"lb:{{s0}}:{board}:all")
    return count
