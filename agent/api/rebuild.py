"""Rebuilding: fill the region's Redis anew, one board or all of them, and see how far that is.

What stands in Redis is served until its replacement is complete; then the two change places.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from aiohttp import web

from agent.api.bodies import Decoder
from agent.api.route import Call
from agent.errors import Unavailable
from agent.projection.status import Phase

BOARDS_NAMED_MAX = 1_000


class RebuildRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The boards to fill anew; all without any."""

    boards: Annotated[list[str], msgspec.Meta(max_length=BOARDS_NAMED_MAX)] = []


class RebuildState(msgspec.Struct):
    """One rebuild: how far it is, and what was written anew for it.

    `windows` were put in place, with `members`; it has `ended` when there are no more. `done` of
    `total` members are in Redis, those of windows on their way too; `total` is null until known.
    """

    id: str
    ended: bool
    windows: int
    members: int
    done: int
    total: int | None


class RebuildAnswer(msgspec.Struct):
    """What is being filled now.

    `phase` is what the projector does. `boards` are those of which a window is being filled, `done`
    and `total` the members of these windows; `total` is null until it is known. `rebuild` is the
    one that was asked for; null without any, and where this agent doesn't know it (any more).
    """

    phase: str
    boards: list[str]
    done: int
    total: int | None
    rebuild: RebuildState | None


_request: Decoder[RebuildRequest] = Decoder(RebuildRequest)


async def start_rebuild(call: Call) -> web.Response:
    """POST /v1/rebuild."""
    projector, wanted = call.services.projector, RebuildRequest()
    if call.request.can_read_body:
        wanted = _request.decode(*await call.body())
    for name in wanted.boards:
        call.allow(name)
        call.services.queue.state.catalog.board(name)
    id_ = projector.rebuild(wanted.boards)
    if id_ is None:
        status = projector.status()
        raise Unavailable(
            "rebuilding" if status.phase == Phase.REBUILDING else "busy",
            f"this agent does not fill Redis now: {status.error or status.phase}",
            hint="ask the agent of the region that does: GET /readyz of each",
        )
    return call.answer(_answer(call, id_))


async def show_rebuild(call: Call) -> web.Response:
    """GET /v1/rebuild."""
    return call.answer(_answer(call, call.query["id"]))


def _answer(call: Call, id_: str | None) -> RebuildAnswer:
    projector = call.services.projector
    status = projector.status()
    boards = sorted({*status.boards_rebuilding, *projector.wishes.boards})
    done, total = status.refill_done, status.refill_total
    if projector.wishes.boards:
        total = None
    return RebuildAnswer(str(status.phase), boards, done, total, _state(call, id_))


def _state(call: Call, id_: str | None) -> RebuildState | None:
    projector = call.services.projector
    found = None if id_ is None else projector.wishes.rebuilds.look(id_, projector.places)
    if id_ is None or found is None:
        return None
    return RebuildState(id_, found.ended, found.windows, found.members, found.done, found.total)
