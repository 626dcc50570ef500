"""The sentinel: by which an agent that starts knows its region's Redis again.

    tr:{s0}:agent:NAME    string: LOG:BOOT, the id of the local log (hexadecimal) and the number of
                          the boot (decimal) of the agent that last ran under this name

It is evidence, never needed: one that names another log or a later boot tells of a file that was
restored or copied; a missing one tells of nothing (a FLUSHALL removes it, too).
"""

from __future__ import annotations

from agent.projection.connection import RankClient
from agent.projection.keys import sentinel_key


async def read_sentinel(client: RankClient, agent: str) -> tuple[int, int] | None:
    """The (log id, boot number) in an agent's sentinel; None where there is none of this form.

    Raises:
        redis.exceptions.RedisError, OSError: Redis does not answer.
    """
    found = await client.command("GET", sentinel_key(agent))
    if found is None:
        return None
    log, _, boot = found.decode(errors="replace").partition(":")
    try:
        return int(log, 16), int(boot)
    except ValueError:
        return None


async def write_sentinel(client: RankClient, agent: str, log: int, boot: int) -> None:
    """Write an agent's sentinel, in place of what stands there.

    Raises:
        redis.exceptions.RedisError, OSError: it is unknown whether it was written.
    """
    await client.command("SET", sentinel_key(agent), _text(log, boot))


async def restore_sentinel(client: RankClient, agent: str, log: int, boot: int) -> None:
    """Write an agent's sentinel where it is missing; raises as `write_sentinel` does.

    One that stands there is left alone: if it is another process's, that one has started later.
    """
    await client.command("SET", sentinel_key(agent), _text(log, boot), "NX")


def _text(log: int, boot: int) -> str:
    return f"{log:x}:{boot}"
