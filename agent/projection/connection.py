"""Clients of the rank store: bounded, impatient, and without retries of their own.

A retry inside the client would only hide how Redis does: every change is safe to send again, and
the projector does so after it has looked at the watermark. Answers are bytes.
"""

from __future__ import annotations

from typing import Any

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

READ_CONNECTIONS_MAX = 16  # each serves thousands of reads a second
WRITE_CONNECTIONS_MAX = 2  # the projector sends one command at a time


def client_of(url: str, timeout_s: float, connections_max: int) -> Redis:
    """A client; nothing is connected before its first command.

    A command raises redis.exceptions.RedisError (or OSError) after `timeout_s` at the latest, also
    when it waited that long for a free connection.
    """
    pool = BlockingConnectionPool.from_url(
        url,
        max_connections=connections_max,
        timeout=timeout_s,
        socket_timeout=timeout_s,
        socket_connect_timeout=timeout_s,
        socket_keepalive=True,
        retry=Retry(NoBackoff(), 0),
        protocol=2,
        decode_responses=False,
        client_name="tallyring",
    )
    return Redis.from_pool(pool)


async def command(client: Redis, *parts: str | bytes | int) -> Any:
    """Send one command as it stands; answers are bytes, integers and lists of them.

    Raises:
        redis.exceptions.RedisError: the outcome is unknown where the connection failed.
    """
    return await client.execute_command(*parts)  # type: ignore[no-untyped-call]  # redis-py's own
