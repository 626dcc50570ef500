"""The client of the rank store: bounded, impatient, and without retries of its own.

A retry inside the client would only hide how Redis does: every change is safe to send again, and
the projector does so after it has looked at the watermark. Answers are bytes.

The time limit is set here, around each command, and not by redis-py's `socket_timeout`: that one
sends through `asyncio.wait_for`, which in Python 3.11 loses a cancellation that arrives while the
write ends, and then the agent would not stop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

READ_CONNECTIONS_MAX = 16  # each serves thousands of reads a second
WRITE_CONNECTIONS_MAX = 2  # the projector sends one command at a time


class RankClient:
    """A client; nothing is connected before its first command.

    Every command raises redis.exceptions.RedisError or OSError (TimeoutError is one) after
    `timeout_s` at the latest, also when it waited that long for a free connection. Then it is
    unknown whether it was carried out.
    """

    def __init__(self, url: str, timeout_s: float, connections_max: int) -> None:
        self._timeout_s = timeout_s
        pool = BlockingConnectionPool.from_url(
            url,
            max_connections=connections_max,
            timeout=timeout_s,
            socket_timeout=None,
            socket_connect_timeout=timeout_s,
            socket_keepalive=True,
            retry=Retry(NoBackoff(), 0),
            protocol=2,
            decode_responses=False,
            client_name="tallyring",
        )
        self._redis: Redis = Redis.from_pool(pool)

    async def command(self, *parts: str | bytes | int) -> Any:
        """Send one command as it stands; answers are bytes, integers and lists of them."""
        async with asyncio.timeout(self._timeout_s):
            return await self._redis.execute_command(*parts)  # type: ignore[no-untyped-call]  # redis-py's own

    async def hashes(self, keys: Sequence[str]) -> list[dict[bytes, bytes]]:
        """Whole hashes, in one round trip; empty ones for keys that are not there."""
        async with asyncio.timeout(self._timeout_s):
            async with self._redis.pipeline(transaction=False) as pipeline:
                for key in keys:
                    pipeline.hgetall(key)
                return await pipeline.execute()

    async def existing(self, keys: Sequence[str]) -> list[bool]:
        """Whether each key is there, in one round trip."""
        async with asyncio.timeout(self._timeout_s):
            async with self._redis.pipeline(transaction=False) as pipeline:
                for key in keys:
                    pipeline.exists(key)
                return [bool(found) for found in await pipeline.execute()]

    async def close(self) -> None:
        """Close the connections."""
        await self._redis.aclose()
