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
from msgspec import UNSET

from agent.api.answers import MemberAnswer, PageAnswer, RankedEntry
from agent.api.choosing import window_of
from agent.api.freshness import freshness_of
from agent.api.rounding import ROUNDED_RULES, rounded
from agent.api.route import Call
from agent.api.services import Services
from agent.api.waiting import wait_ranked
from agent.boards import body
from agent.boards.catalog import Placed
from agent.boards.definition import Rule
from agent.boards.entry import name_bytes, rfc3339
from agent.boards.standing import Standing, is_register, standing_of, standing_of_total
from agent.boards.windows import is_sliding
from agent.crdt.total import NEVER_MS
from agent.errors import NotFound, NotRanked, Unavailable
from agent.projection.reads import Ranked
from agent.state import State
from agent.store.snapshot import SqliteSnapshot

RANK_WAIT_S = 0.5
RANK_ENTRIES_MAX = 100  # each is a look at the rank store
ESTIMATED_RULES: tuple[Rule, ...] = ("unique", "trend")


async def show_page(call: Call) -> web.Response:
    """GET /v1/boards/{board}/entries."""
    services, query = call.services, call.query
    placed = call.placed()
    await wait_ranked(services, placed, query["after"])
    view = await services.ranks.page(placed, query["offset"], query["limit"])
    fresh = freshness_of(view.as_of, services.now_ms())
    fresh.require(query["max_lag_ms"])
    entries = await _completed(services, placed, view.entries)
    name, window = placed.board.name, placed.window.id
    return call.answer(PageAnswer(name, window, query["offset"], view.total, entries, *fresh))


async def show_member(call: Call) -> web.Response:
    """GET /v1/boards/{board}/entries/{member}."""
    services, query = call.services, call.query
    placed, member = call.placed(), call.path("member")
    name_bytes(member)
    await wait_ranked(services, placed, query["after"])
    view = await services.ranks.member(placed, member, query["neighbors"])
    fresh = freshness_of(view.as_of, services.now_ms())
    fresh.require(query["max_lag_ms"])
    if view.entry is None:
        raise _not_ranked(services, placed, member, view.total)
    around = await _completed(services, placed, view.around)
    mine = around[view.around.index(view.entry)]
    return call.answer(
        MemberAnswer(
            board=placed.board.name,
            window=placed.window.id,
            member=member,
            rank=mine.rank,
            exact=_rule(placed) not in ESTIMATED_RULES,
            score=mine.score,
            reached_at=mine.reached_at,
            data=mine.data,
            top_percent=float(f"{100 * mine.rank / view.total:.4g}"),
            total=view.total,
            neighbors=[entry for entry in around if entry is not mine],
            as_of=fresh.as_of,
            max_lag_ms=fresh.max_lag_ms,
            rounded=mine.rounded,
        )
    )


async def ranks_of(
    services: Services, board_name: str, window: str | None, members: Collection[str], state: State
) -> dict[str, int]:
    """The ranks of members in a window (by name or id; None: the board's first one), once the rank
    store includes `state`; none where that takes too long.

    A write was stored already when this is asked, so nothing here is an error.
    """
    board = state.catalog.find(board_name)
    if board is None or board.definition is None or len(members) > RANK_ENTRIES_MAX:
        return {}
    found = {}
    try:
        placed = window_of(services, state, board, window)
        async with asyncio.timeout(RANK_WAIT_S):
            stamp = (state.inc, state.seq)  # where another agent of the region projects
            if await services.projector.wait_for(
                board_name, placed.window.id, RANK_WAIT_S, lsn=state.lsn, stamp=stamp
            ):
                for member in members:
                    entry = (await services.ranks.member(placed, member, 0)).entry
                    if entry is not None:
                        found[member] = entry.rank
    except (TimeoutError, Unavailable, NotFound):
        return {}
    return found


def _not_ranked(services: Services, placed: Placed, member: str, total: int) -> NotRanked:
    board = placed.board.name
    error = NotRanked(
        f"member: {member[:80]!r} is not on board {board!r}, which has {total}", total
    )
    if services.queue.state.bans.hides(member.encode(), board):
        error.hint = "it is banned: its score shows again when the ban is lifted"
    return error


async def _completed(
    services: Services, placed: Placed, shown: Sequence[Ranked]
) -> list[RankedEntry]:
    """The entries of a view with what this agent's own file knows of them."""
    if not shown:
        return []
    rounds = _rule(placed) in ROUNDED_RULES
    standings: Sequence[Standing | None] = [None] * len(shown)
    if not _computed(placed):
        standings = await services.readers.read(partial(_standings, placed=placed, shown=shown))
    return [_entry(ranked, own, rounds) for ranked, own in zip(shown, standings, strict=True)]


def _rule(placed: Placed) -> Rule:
    assert placed.board.definition is not None
    return placed.board.definition.rule


def _computed(placed: Placed) -> bool:
    """Whether a window's scores are made of many cells by the projector, and are no member's."""
    return _rule(placed) == "trend" or is_sliding(placed.window.name)


def _standings(
    snapshot: SqliteSnapshot, placed: Placed, shown: Sequence[Ranked]
) -> list[Standing | None]:
    """What the file says of each member shown; all of one snapshot."""
    definition = placed.board.definition
    assert definition is not None
    keys = [(placed.space, ranked.member.encode(errors="replace")) for ranked in shown]
    if is_register(definition):
        return [standing_of(definition, snapshot.slots_of(*key)) for key in keys]
    totals = snapshot.totals_of(keys)
    return [standing_of_total(definition, totals.get(key)) for key in keys]


def _entry(ranked: Ranked, own: Standing | None, rounds: bool) -> RankedEntry:
    score, reached_ms, data = ranked.score, ranked.reached_ms, None
    if own is not None and (own.score == score or ranked.clamped):
        score, data = own.score, body.unpack(own.data)
        reached_ms = None if own.reached_ms == NEVER_MS else own.reached_ms
    reached_at = None if reached_ms is None else rfc3339(reached_ms)
    short = rounded(score) if rounds else UNSET
    return RankedEntry(ranked.rank, ranked.member, score, reached_at, data, short)
