"""Reading ranks: pages and members, and the ranks that a write can ask for.

Order and scores come from the rank store in one look, so a page never contradicts itself. What it
does not carry, the exact time and the entry's data, is read from this agent's own file, and shown
only where the score there is still the one that is shown.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence

from aiohttp import web
from msgspec import UNSET

from agent.api.answers import MemberAnswer, PageAnswer, PreviousRank, RankedEntry
from agent.api.bodies import JSON, answer_media
from agent.api.choosing import is_gone, window_of
from agent.api.cursor import cursor_text, parse_cursor
from agent.api.freshness import Freshness, freshness_of
from agent.api.rounding import ROUNDED_RULES, rounded
from agent.api.route import Call
from agent.api.services import Services
from agent.api.top import PAGE_ENTRIES_MAX, not_modified, tag_of
from agent.api.waiting import wait_ranked
from agent.boards import body
from agent.boards.catalog import Placed
from agent.boards.definition import Rule
from agent.boards.entry import name_bytes, rfc3339
from agent.boards.standing import Standing
from agent.boards.windows import is_sliding
from agent.crdt.total import NEVER_MS
from agent.errors import Malformed, NotFound, NotRanked, Unavailable
from agent.projection.reads import Ranked, View
from agent.state import State

RANK_WAIT_S = 0.5
RANK_ENTRIES_MAX = 100  # of one write: all are looked up in one call
ESTIMATED_RULES: tuple[Rule, ...] = ("unique", "trend")


async def show_page(call: Call) -> web.Response:
    """GET /v1/boards/{board}/entries."""
    services, query, request = call.services, call.query, call.request
    placed, offset, limit = call.placed(), query["offset"], query["limit"]
    if query["cursor"] is not None:
        return await _page_from(call, placed)
    await wait_ranked(services, placed, query["after"])
    top = not offset and limit <= PAGE_ENTRIES_MAX and query["after"] is None
    top = top and answer_media(request) is JSON
    top = top and "no-cache" not in request.headers.get("Cache-Control", "")
    state, now_ms, key = services.queue.state, services.now_ms(), ("", "", 0)
    if top:
        key = (placed.board.name, placed.window.id, limit)
        kept = services.top.find(key, state, now_ms, request, query["max_lag_ms"])
        if kept is not None:
            return kept
    since = services.top.since(state, placed.board.name)
    view = await services.ranks.page(placed, offset, limit)
    page = await _page(services, placed, view)
    freshness_of(view.as_of, now_ms).require(query["max_lag_ms"])
    if top:
        # Where another agent of the region projects, the lsn is one of its log.
        followed = view.lsn >= since or not services.projector.follows
        return services.top.answer(key, state, now_ms, page, view.as_of, request, keep=followed)
    return _tagged(call, page)


async def _page_from(call: Call, placed: Placed) -> web.Response:
    """The page behind a cursor, or before it."""
    services, query = call.services, call.query
    if query["offset"]:
        raise Malformed("offset: does not go with `cursor`")
    cursor = parse_cursor(query["cursor"], placed)
    await wait_ranked(services, placed, query["after"])
    view = await services.ranks.page_from(
        placed, cursor.row, query["limit"], backward=cursor.backward
    )
    page = await _page(services, placed, view)
    freshness_of(view.as_of, services.now_ms()).require(query["max_lag_ms"])
    return _tagged(call, page)


def _tagged(call: Call, page: PageAnswer) -> web.Response:
    headers = {"ETag": tag_of(page), "Cache-Control": "private, no-cache"}
    if not_modified(call.request, headers["ETag"]):
        return web.Response(status=304, headers=headers)
    response = call.answer(page)
    response.headers.update(headers)
    return response


async def page_answer(
    services: Services, placed: Placed, offset: int, limit: int
) -> tuple[PageAnswer, Mapping[str, int | None]]:
    """A page as it is answered, and by region the time up to which it includes it.

    Raises:
        Unavailable: `rebuilding`, `rank_store_down`
    """
    view = await services.ranks.page(placed, offset, limit)
    return await _page(services, placed, view), view.as_of


async def _page(services: Services, placed: Placed, view: View) -> PageAnswer:
    entries = await completed(services, placed, view.entries)
    fresh = services.freshness.shown(view.as_of)
    following = preceding = None
    if view.entries and view.first + len(view.entries) < view.total:
        following = cursor_text(placed, view.entries[-1], backward=False)
    if view.entries and view.first:
        preceding = cursor_text(placed, view.entries[0], backward=True)
    return PageAnswer(
        board=placed.board.name,
        window=placed.window.id,
        offset=view.first,
        total=view.total,
        entries=entries,
        next=following,
        previous=preceding,
        as_of=fresh.as_of,
        max_lag_ms=fresh.max_lag_ms,
    )


async def show_member(call: Call) -> web.Response:
    """GET /v1/boards/{board}/entries/{member}."""
    services, query = call.services, call.query
    placed, member = call.placed(), call.path("member")
    name_bytes(member)
    await wait_ranked(services, placed, query["after"])
    answer = await member_answer(
        services, placed, member, query["neighbors"], previous=query["previous"]
    )
    Freshness(answer.as_of, answer.max_lag_ms).require(query["max_lag_ms"])
    return call.answer(answer)


async def member_answer(
    services: Services, placed: Placed, member: str, neighbors: int, *, previous: bool
) -> MemberAnswer:
    """A member as it is answered.

    Args:
        previous: whether its rank in the window before is wanted, too.

    Raises:
        NotRanked: it is not on the board.
        Unavailable: `rebuilding`, `rank_store_down`
    """
    view = await services.ranks.member(placed, member, neighbors)
    before = await _previous(services, placed, member) if previous else UNSET
    if view.entry is None:
        error = _not_ranked(services, placed, member, view.total)
        error.previous = before
        raise error
    around = await completed(services, placed, view.around)
    mine = around[view.around.index(view.entry)]
    others = [entry for entry in around if entry is not mine]
    answer = _answer(placed, mine, view.total, others, services.freshness.shown(view.as_of))
    answer.previous = before
    return answer


async def member_answers(
    services: Services, placed: Placed, members: Sequence[str]
) -> list[MemberAnswer | NotRanked]:
    """Several members as they are answered, without neighbours, all of one look.

    Raises:
        Unavailable: `rebuilding`, `rank_store_down`
    """
    views = await services.ranks.members(placed, members)
    entries = [view.entry for view in views if view.entry is not None]
    shown = iter(await completed(services, placed, entries))
    found: list[MemberAnswer | NotRanked] = []
    for member, view in zip(members, views, strict=True):
        if view.entry is None:
            found.append(_not_ranked(services, placed, member, view.total))
        else:
            fresh = services.freshness.shown(view.as_of)
            found.append(_answer(placed, next(shown), view.total, [], fresh))
    return found


def _answer(
    placed: Placed, mine: RankedEntry, total: int, others: list[RankedEntry], fresh: Freshness
) -> MemberAnswer:
    return MemberAnswer(
        board=placed.board.name,
        window=placed.window.id,
        member=mine.member,
        rank=mine.rank,
        exact=_rule(placed) not in ESTIMATED_RULES,
        score=mine.score,
        reached_at=mine.reached_at,
        data=mine.data,
        top_percent=float(f"{100 * mine.rank / total:.4g}"),
        total=total,
        neighbors=others,
        as_of=fresh.as_of,
        max_lag_ms=fresh.max_lag_ms,
        rounded=mine.rounded,
    )


async def _previous(services: Services, placed: Placed, member: str) -> PreviousRank | None:
    """A member's rank in the window before; None where it has none, or none is kept."""
    series, window = placed.counted.series, placed.window
    if window.name != series.name or series.keep_ms is None:
        return None
    before = series.at(window.start_ms - 1)
    if before is None or before == window:
        return None
    earlier = placed.board.place(before)
    if is_gone(services.queue.state, earlier, services.board_now_ms()):
        return None
    view = await services.ranks.member(earlier, member, 0)
    if view.entry is None:
        return None
    return PreviousRank(before.id, view.entry.rank, view.entry.score, view.total)


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
    try:
        placed = window_of(services, state, board, window)
        async with asyncio.timeout(RANK_WAIT_S):
            stamp = (state.inc, state.seq)  # where another agent of the region projects
            if await services.projector.wait_for(
                board_name, placed.window.id, RANK_WAIT_S, lsn=state.lsn, stamp=stamp
            ):
                names = list(members)
                views = await services.ranks.members(placed, names)
                return {
                    name: view.entry.rank
                    for name, view in zip(names, views, strict=True)
                    if view.entry is not None
                }
    except (TimeoutError, Unavailable, NotFound):
        pass
    return {}


def _not_ranked(services: Services, placed: Placed, member: str, total: int) -> NotRanked:
    board = placed.board.name
    error = NotRanked(
        f"member: {member[:80]!r} is not on board {board!r}, which has {total}", total
    )
    if services.queue.state.bans.hides(member.encode(), board):
        error.hint = "it is banned: its score shows again when the ban is lifted"
    return error


async def completed(
    services: Services, placed: Placed, shown: Sequence[Ranked]
) -> list[RankedEntry]:
    """The entries of a view with what this agent's own file knows of them."""
    if not shown:
        return []
    rounds = _rule(placed) in ROUNDED_RULES
    standings: Sequence[Standing | None] = [None] * len(shown)
    if not _computed(placed):
        standings = await services.standings.of(placed, shown)
    return [_entry(ranked, own, rounds) for ranked, own in zip(shown, standings, strict=True)]


def _rule(placed: Placed) -> Rule:
    assert placed.board.definition is not None
    return placed.board.definition.rule


def _computed(placed: Placed) -> bool:
    """Whether a window's scores are made of many cells by the projector, and are no member's."""
    return _rule(placed) == "trend" or is_sliding(placed.window.name)


def _entry(ranked: Ranked, own: Standing | None, rounds: bool) -> RankedEntry:
    score, reached_ms, data = ranked.score, ranked.reached_ms, None
    if own is not None and (own.score == score or ranked.clamped):
        score, data = own.score, body.unpack(own.data)
        reached_ms = None if own.reached_ms == NEVER_MS else own.reached_ms
    reached_at = None if reached_ms is None else rfc3339(reached_ms)
    short = rounded(score) if rounds else UNSET
    return RankedEntry(ranked.rank, ranked.member, score, reached_at, data, short)
