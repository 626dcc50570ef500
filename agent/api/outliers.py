"""Outliers: entries that were accepted and counted, and are flagged for somebody to look at."""

from __future__ import annotations

from aiohttp import web

from agent.api.freshness import freshness_of
from agent.api.member_answers import OutlierEntry, OutlierRule, OutliersAnswer
from agent.api.route import Call
from agent.boards.entry import rfc3339
from agent.projection.outliers import MEMBERS_MIN, Fence, Outliers, read_outliers
from agent.projection.reads import Ranked

RULE = "tukey far out"


async def list_outliers(call: Call) -> web.Response:
    """GET /v1/boards/{board}/outliers."""
    services, query = call.services, call.query
    placed = call.placed()
    assert placed.board.definition is not None
    low = placed.board.definition.low
    found = await read_outliers(services.ranks, placed, query["offset"], query["limit"])
    fresh = freshness_of(found.as_of, services.now_ms())
    fresh.require(query["max_lag_ms"])
    return call.answer(
        OutliersAnswer(
            board=placed.board.name,
            window=placed.window.id,
            offset=query["offset"],
            rule=_rule(found, low=low),
            flagged=found.flagged,
            entries=[_entry(its, found.fence, low=low) for its in found.entries if found.fence],
            as_of=fresh.as_of,
            max_lag_ms=fresh.max_lag_ms,
        )
    )


def _rule(found: Outliers, *, low: bool) -> OutlierRule:
    fence = found.fence
    return OutlierRule(
        name=RULE,
        order="low" if low else "high",
        members=found.total,
        members_min=MEMBERS_MIN,
        q1=None if fence is None else fence.q1,
        median=None if fence is None else fence.median,
        q3=None if fence is None else fence.q3,
        spread=None if fence is None else fence.spread,
        fence=None if fence is None else fence.fence,
    )


def _entry(its: Ranked, fence: Fence, *, low: bool) -> OutlierEntry:
    away = fence.q1 - its.score if low else its.score - fence.q3
    return OutlierEntry(
        rank=its.rank,
        member=its.member,
        score=its.score,
        reached_at=None if its.reached_ms is None else rfc3339(its.reached_ms),
        beyond=float(f"{away / fence.spread:.6g}"),
    )
