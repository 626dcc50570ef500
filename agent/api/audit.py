"""The routes of the audit: begin one, and see how far it is and what it found."""

from __future__ import annotations

from dataclasses import asdict

import msgspec
from aiohttp import web
from msgspec import UNSET, UnsetType

from agent.api.audit_report import Part, Report, Wish
from agent.api.bodies import Decoder
from agent.api.route import Call
from agent.boards.entry import rfc3339
from agent.errors import Malformed, Unavailable

LISTED_MAX = 1_000
BOARDS_NAMED_MAX = 1_000


class AuditRequest(msgspec.Struct, forbid_unknown_fields=True):
    """What an audit is to do: mend what it finds, look at some boards only, list how many."""

    repair: bool = False
    boards: list[str] | None = None
    limit: int = 100


class DifferenceAnswer(msgspec.Struct):
    """One difference.

    `kind`: `damaged` (the cell does not hold what was written to it), `lacking` (another agent has
    a value that this one should have), `forked` (one write, two values), `damaged_there` and
    `lacking_there` (the other one is wrong), `bucket` and `total` (a sum is wrong), `rank` (Redis
    differs). `other` is whom it was compared with: an agent, `redis`, or empty for this agent
    itself. `note` says where a mended value came from, or why there is none.
    """

    kind: str
    board: str
    member: str
    slot: str
    other: str
    here: str
    there: str
    mended: bool
    note: str


class AuditPart(msgspec.Struct):
    """A peer, or a board in Redis: how many cells or members were compared, and why not all."""

    name: str
    compared: int
    differences: int
    skipped: str


class PatrolAnswer(msgspec.Struct):
    """The audit in the background: a part of every window in Redis, round after round.

    `round_ended_at` and `scan_ended_at` (of every member, once a day) are null before the first.
    `differences` were found since the start; `repaired` members were written anew, of `keys`
    windows the meta or the end, and `refilled` windows were filled anew. `recent` are the newest
    differences, in words.
    """

    rounds: int
    scans: int
    windows: int
    members: int
    differences: int
    repaired: int
    keys: int
    refilled: int
    round_ended_at: str | None
    scan_ended_at: str | None
    recent: list[str]


class AuditAnswer(msgspec.Struct):
    """The newest audit of this process.

    `state`: `never`, `running`, `done` or `failed` (`error` says why). `progress` is from 0 to 1,
    `step` what is looked at now. `found` and `mended` count all differences; the first ones are
    listed. `background` is there where one is shown and Redis is compared all the time.
    """

    state: str
    repair: bool
    began_at: str | None
    ended_at: str | None
    step: str
    progress: float
    cells: int
    found: int
    mended: int
    peers: list[AuditPart]
    boards: list[AuditPart]
    differences: list[DifferenceAnswer]
    error: str
    background: PatrolAnswer | UnsetType = UNSET


_request: Decoder[AuditRequest] = Decoder(AuditRequest)


async def start_audit(call: Call) -> web.Response:
    """POST /v1/audit."""
    wanted = AuditRequest()
    if call.request.can_read_body:
        wanted = _request.decode(*await call.body())
    boards = tuple(wanted.boards or ())
    if not 0 <= wanted.limit <= LISTED_MAX:
        raise Malformed(f"limit: {wanted.limit} is outside 0..{LISTED_MAX}")
    if len(boards) > BOARDS_NAMED_MAX:
        raise Malformed(f"boards: {len(boards)}, at most {BOARDS_NAMED_MAX}")
    for board in boards:
        call.allow(board)
        call.services.queue.state.catalog.board(board)
    auditor = call.services.auditor
    if auditor is None:
        raise Unavailable("busy", "this agent makes no audits")
    return call.answer(answer_of(auditor.start(Wish(wanted.repair, boards, wanted.limit))))


async def show_audit(call: Call) -> web.Response:
    """GET /v1/audit."""
    auditor = call.services.auditor
    answer = answer_of(Report() if auditor is None else auditor.report)
    patrol = call.services.patrol
    if patrol is not None:
        counts, report = asdict(patrol.counts), patrol.report
        answer.background = PatrolAnswer(
            **counts,
            round_ended_at=_at(report.round_ended_ms),
            scan_ended_at=_at(report.scan_ended_ms),
            recent=list(report.recent),
        )
    return call.answer(answer)


def _at(ms: int | None) -> str | None:
    return None if ms is None else rfc3339(ms)


def answer_of(report: Report) -> AuditAnswer:
    """A report as it is answered."""
    return AuditAnswer(
        state=report.state,
        repair=report.wish.repair,
        began_at=rfc3339(report.began_ms) if report.began_ms else None,
        ended_at=rfc3339(report.ended_ms) if report.ended_ms else None,
        step=report.step,
        progress=round(report.progress, 3),
        cells=report.cells,
        found=report.found,
        mended=report.mended,
        peers=[_part(part) for part in report.peers],
        boards=[_part(part) for part in report.boards],
        differences=[
            DifferenceAnswer(
                kind=each.kind,
                board=each.board,
                member=each.member,
                slot=each.slot,
                other=each.other,
                here=each.here,
                there=each.there,
                mended=each.mended,
                note=each.note,
            )
            for each in report.differences
        ],
        error=report.error,
    )


def _part(part: Part) -> AuditPart:
    return AuditPart(part.name, part.compared, part.differences, part.skipped)
