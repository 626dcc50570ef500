"""Among: some members only, ranked among themselves, as friends are."""

from __future__ import annotations

from typing import Annotated

import msgspec
from aiohttp import web

from agent.api.answers import AmongAnswer
from agent.api.bodies import Decoder
from agent.api.freshness import freshness_of
from agent.api.ranks import completed
from agent.api.route import Call
from agent.api.waiting import wait_ranked
from agent.boards.entry import name_bytes
from agent.projection.reads import AMONG_MAX


class AmongRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The members; one that is named twice is shown once."""

    members: Annotated[list[str], msgspec.Meta(min_length=1, max_length=AMONG_MAX)]


_among: Decoder[AmongRequest] = Decoder(AmongRequest)


async def show_among(call: Call) -> web.Response:
    """POST /v1/boards/{board}/among."""
    services, query = call.services, call.query
    placed = call.placed()
    request = _among.decode(*await call.body())
    names = list(dict.fromkeys(request.members))
    members = [name_bytes(name, f"members[{at}]") for at, name in enumerate(names)]
    await wait_ranked(services, placed, query["after"])
    view = await services.ranks.among(placed, members)
    fresh = freshness_of(view.as_of, services.now_ms())
    fresh.require(query["max_lag_ms"])
    entries = await completed(services, placed, view.entries)
    there = {entry.member for entry in entries}
    return call.answer(
        AmongAnswer(
            board=placed.board.name,
            window=placed.window.id,
            total=len(entries),
            entries=entries,
            missing=[name for name in names if name not in there],
            as_of=fresh.as_of,
            max_lag_ms=fresh.max_lag_ms,
        )
    )
