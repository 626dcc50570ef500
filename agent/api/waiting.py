"""Waiting: reads that must include a certain write (`?after=POSITION`)."""

from __future__ import annotations

import asyncio

from agent.api.position import parse_position
from agent.api.services import Services
from agent.boards.catalog import Placed
from agent.errors import Unavailable

AFTER_S = 2.0
LOOK_S = 0.01  # another agent's write arrives by gossip, which takes far longer than this


async def wait_stored(services: Services, after: str | None) -> None:
    """Return when this agent's own file includes the write; at once where none is named.

    Raises:
        Malformed: `after` is no position.
        Unavailable: (`too_stale`) not within 2 s.
    """
    if after is None:
        return
    position = parse_position(after)
    try:
        async with asyncio.timeout(AFTER_S):
            # An event for each commit would burden every write for a read that is rare.
            while not position.covered(services.queue.state):  # noqa: ASYNC110
                await asyncio.sleep(LOOK_S)
    except TimeoutError:
        raise _late(after) from None


async def wait_ranked(services: Services, placed: Placed, after: str | None) -> None:
    """Return when the window's ranks include the write; at once where there is none to wait for.

    Raises:
        Malformed: `after` is no position.
        Unavailable: (`too_stale`) not within 2 s.
    """
    if after is None:
        return
    position = parse_position(after)
    own = position.inc == services.queue.state.inc
    stamp = (position.inc, position.seq)
    lsn = position.lsn if own else None
    board, window = placed.board.name, placed.window.id
    if not await services.projector.wait_for(board, window, AFTER_S, lsn=lsn, stamp=stamp):
        raise _late(after)


def _late(after: str) -> Unavailable:
    return Unavailable(
        "too_stale",
        f"after: the write {after[:60]!r} did not arrive here within {AFTER_S:g} s",
        hint="try again, or read without `after`",
    )
