"""Problem documents (RFC 9457): the one place where an error becomes an answer."""

from __future__ import annotations

import msgspec
import structlog
from aiohttp import web

from agent.api.answers import PreviousRank
from agent.errors import (
    Indefinite,
    MethodNotAllowed,
    NotRanked,
    Refused,
    StoreError,
    TallyringError,
    Unauthorized,
)

DETAIL_CHARACTERS_MAX = 500  # a detail may quote what was sent; it never echoes a whole body

CODES = {
    "malformed": 400,
    "unauthorized": 401,
    "forbidden": 403,
    "unknown_route": 404,
    "unknown_board": 404,
    "unknown_window": 404,
    "not_ranked": 404,
    "method_not_allowed": 405,
    "unknown_agent": 404,
    "unknown_result": 404,
    "not_erased": 404,
    "not_certified": 404,
    "unknown_generation": 404,
    "removed": 403,
    "board_conflict": 409,
    "key_conflict": 409,
    "fork": 409,
    "leaving": 409,
    "ring_conflict": 409,
    "final_conflict": 409,
    "key_expired": 410,
    "member_erased": 410,
    "final_changed": 412,
    "too_large": 413,
    "unsupported_media": 415,
    "out_of_range": 422,
    "grow_only": 422,
    "not_excludable": 422,
    "tie_budget": 422,
    "window_closed": 422,
    "rate_limited": 429,
    "internal": 500,
    "busy": 503,
    "clock_off": 503,
    "too_stale": 503,
    "rebuilding": 503,
    "rank_store_down": 503,
    "not_replicated": 504,
}
"""Every code of the public routes, and its status. Codes are stable: docs/errors.md."""

_log = structlog.get_logger(__name__)


class EntryProblem(msgspec.Struct, omit_defaults=True):
    """Why one entry of a batch was refused; `index` counts from 0 in the request's order."""

    index: int
    code: str
    detail: str
    hint: str = ""


class Problem(msgspec.Struct):
    """What every error is answered with, as `application/problem+json`.

    `code` is stable. `definite` is true where nothing was stored, and false where it may have been.
    `errors` names refused entries of a batch; `total` is the board's size where a member is not
    on it, and `previous` its rank in the window before, if that was asked for.
    """

    type: str
    title: str
    status: int
    detail: str
    code: str
    definite: bool
    hint: str
    errors: list[EntryProblem] | msgspec.UnsetType = msgspec.UNSET
    total: int | msgspec.UnsetType = msgspec.UNSET
    previous: PreviousRank | msgspec.UnsetType | None = msgspec.UNSET


_encode = msgspec.json.Encoder().encode


def problem_of(error: Exception) -> Problem:
    """The problem document of any error. What is not ours is logged and shown as `internal`."""
    match error:
        case Refused():
            problem = _problem(error.code, error.title, error.status, error.detail, error.hint)
            if error.errors:
                problem.errors = [
                    EntryProblem(e.index, e.code, _bounded(e.detail), e.hint) for e in error.errors
                ]
            if isinstance(error, NotRanked):
                problem.total, problem.previous = error.total, error.previous
            return problem
        case Indefinite():
            hint = error.hint or "send it again with the same `key` and `at`: it counts once"
            problem = _problem(error.code, error.title, error.status, error.detail, hint)
        case StoreError():  # of a read: nothing was to be stored
            return _problem("busy", "Not available now", 503, str(error), "")
        case TallyringError():
            problem = _problem("internal", "Internal error", 500, str(error), "")
        case _:
            _log.error("request_failed", exc_info=error)
            text = "this agent met an error of its own; its log says which"
            problem = _problem("internal", "Internal error", 500, text, "")
    problem.definite = False
    return problem


def problem_response(error: Exception) -> web.Response:
    """The answer to a request that ended in `error`, with the headers that go with it."""
    problem = problem_of(error)
    headers = {}
    match error:
        case Unauthorized():
            headers["WWW-Authenticate"] = "Bearer"
        case MethodNotAllowed():
            headers["Allow"] = error.allow
    if problem.status in (429, 503):
        headers["Retry-After"] = str(getattr(error, "retry_after_s", None) or 1)
    return web.Response(
        body=_encode(problem),
        status=problem.status,
        headers=headers,
        content_type="application/problem+json",
    )


def _problem(code: str, title: str, status: int, detail: str, hint: str) -> Problem:
    kind = f"urn:tallyring:problem:{code}"
    return Problem(kind, title, status, _bounded(detail), code, definite=True, hint=hint)


def _bounded(detail: str) -> str:
    if len(detail) <= DETAIL_CHARACTERS_MAX:
        return detail
    return detail[:DETAIL_CHARACTERS_MAX] + "..."
