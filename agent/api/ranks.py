"""Reading ranks: pages and members, and the ranks that a write can ask for.

Order and scores come from the rank store in one look, so a page never contradicts itself. What it
does not carry, the exact time and the entry's data, is read from this agent's own file, and shown
only where the score there is still the one that is shown.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from functools import partial

from aiohttp import web

from agent.api.answers import MemberAnswer, PageAnswer, RankedEntry
from agent.api.freshness import freshness_of
from agent.api.route import Call
from agent.api.services import Services
from agent.api.waiting import wait_ranked
from agent.boards import body
from agent.boards.catalog import Board
from agent.boards.entry import name_bytes, rfc3339
from agent.boards.standing import Standing, standing_of
from agent.errors import NotRanked, Unavailable
from agent.projection.reads import Ranked
from agent.state import State
from agent.store.snapshot import SqliteSnapshot

RANK_WAIT_S = 0.5
RANK_ENTRIES_MAX = 100  # each is a look at the rank store


async def show_page(call: Call) -> web.Response:
    """GET /v1/boards/{board}/entries."""
    services, query = call.services, call.query
    board = call.board()
    await wait_ranked(services, board.name, query["after"])
    view = await services.ranks.page(board, query["offset"], query["limit"])
    fresh = freshness_of(view.as_of, services.now_ms())
    fresh.require(query["max_lag_ms"])
    entries = await _completed(services, board, view.entries)
    return call.answer(PageAnswer(board.name, "all", query["offset"], view.total, entries, *fresh))


async def show_member(call: Call) -> web.Response:
    """GET /v1/boards/{board}/entries/{member}."""
    services, query = call.services, call.query
    board, member = call.board(), call.path("member")
    name_bytes(member)
    await wait_ranked(services, board.name, query["after"])
    view = await services.ranks.member(board, member, query["neighbors"])
    fresh = freshness_of(view.as_of, services.now_ms())
    fresh.require(query["max_lag_ms"])
    if view.entry is None:
        raise NotRanked(
            f"member: {member[:80]!r} is not on board {board.name!r}, which has {view.total}",
            view.total,
        )
    around = await _completed(services, board, view.around)
    mine = around[view.around.index(view.entry)]
    return call.answer(
        MemberAnswer(
            board=board.name,
            window="all",
            member=member,
            rank=mine.rank,
            exact=True,
            score=mine.score,
            reached_at=mine.reached_at,
            data=mine.data,
            top_percent=float(f"{100 * mine.rank / view.total:.4g}"),
            total=view.total,
            neighbors=[entry for entry in around if entry is not mine],
            as_of=fresh.as_of,
            max_lag_ms=fresh.max_lag_ms,
        )
    )


async def ranks_of(
    services: Services, board_name: str, members: Collection[str], state: State
) -> dict[str, int]:
    """The ranks of members once the rank store includes `state`; none where that takes too long.

    A write was stored already when this is asked, so nothing here is an error.
    """
    board = state.catalog.find(board_name)
    if board is None or board.definition is None or len(members) > RANK_ENTRIES_MAX:
        return {}
    found = {}
    try:
        async with asyncio.timeout(RANK_WAIT_S):
            stamp = (state.inc, state.seq)  # where another agent of the region projects
            if await services.projector.wait_for(
                board_name, RANK_WAIT_S, lsn=state.lsn, stamp=stamp
            ):
                for member in members:
                    entry = (await services.ranks.member(board, member, 0)).entry
                    if entry is not None:
                        found[member] = entry.rank
    except (TimeoutError, Unavailable):
        return {}
    return found


async def _completed(
    services: Services, board: Board, shown: Sequence[Ranked]
) -> list[RankedEntry]:
    """The entries of a view with what this agent's own file knows of them."""
    if not shown:
        return []
    standings = await services.readers.read(partial(_standings, board=board, shown=shown))
    return [_entry(ranked, own) for ranked, own in zip(shown, standings, strict=True)]


def _standings(
    snapshot: SqliteSnapshot, board: Board, shown: Sequence[Ranked]
) -> list[Standing | None]:
    """What the file says of each member shown; all of one snapshot."""
    assert board.definition is not None
    keys = [(board.space, ranked.member.encode(errors="replace")) for ranked in shown]
    if board.definition.rule == "sum":
        totals = snapshot.totals_of(keys)
        found = [totals.get(key) for key in keys]
        return [None if t is None else Standing(t.score, t.reached_ms) for t in found]
    return [standing_of(board.definition, snapshot.slots_of(*key)) for key in keys]


def _entry(ranked: Ranked, own: Standing | None) -> RankedEntry:
    score, reached_ms, data = ranked.score, ranked.reached_ms, None
    if own is not None and (own.score == score or ranked.clamped):
        score, reached_ms, data = own.score, own.reached_ms, body.unpack(own.data)
    reached_at = None if reached_ms is None else rfc3339(reached_ms)
    return RankedEntry(ranked.rank, ranked.member, score, reached_at, data)
