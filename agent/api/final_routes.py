"""The routes about finals."""

from __future__ import annotations

from agent.api import final_answers, final_export, final_override, finals
from agent.api.route import Query, Route
from agent.limits import PAGE_MEMBERS_MAX

OFFSET = Query("offset", "integer", "how many to leave out from the beginning", 0)
LIMIT = Query("limit", "integer", "how many to show", 100, 1, PAGE_MEMBERS_MAX)
ROWS = Query("limit", "integer", "how many to show; default 100", None, 1, PAGE_MEMBERS_MAX)
GENERATION = Query("generation", "integer", "of the board; default: the present one")
VERSION = Query("version", "integer", "of the final; default: the one in force")
FORMAT = Query("format", "string", "`json`, or `jsonl`: all rows as signed JSON lines")
DRY_RUN = Query("dry_run", "boolean", "say what would happen, and change nothing", False)

MATCHES = (
    ("If-Match", "the ETag of the final that the caller goes on with; another one is a 412"),
    ("If-None-Match", "the ETag of the final that the caller has; the same one is a 304"),
)
FINAL_CODES = ("unknown_board", "unknown_generation", "unknown_window", "not_certified", "busy")
_WINDOW = "/v1/boards/{board}/windows/{window}"

FINAL_ROUTES: tuple[Route, ...] = (
    Route(
        "GET",
        f"{_WINDOW}/final",
        finals.show_final,
        "read",
        "The certified final of a window: a page of it, or all of it as signed JSON lines.",
        final_answers.FinalAnswer,
        query=(OFFSET, ROWS, GENERATION, VERSION, FORMAT),
        codes=(*FINAL_CODES, "final_changed"),
        streamed=final_export.JSON_LINES,
        headers=MATCHES,
        statuses=(200, 304),
    ),
    Route(
        "GET",
        f"{_WINDOW}/late",
        finals.show_late,
        "read",
        "What came after the final of a window: live scores that differ, and who is banned now.",
        final_answers.LateAnswer,
        query=(OFFSET, LIMIT, GENERATION),
        codes=FINAL_CODES,
    ),
    Route(
        "POST",
        f"{_WINDOW}/certify",
        final_override.certify_window,
        "admin",
        "Begin the next version of a window's final, without agents that are down.",
        final_answers.OverrideAnswer,
        (final_override.OverrideRequest,),
        body_required=False,
        query=(DRY_RUN,),
        codes=(
            "unknown_board",
            "unknown_window",
            "unknown_agent",
            "final_conflict",
            "not_excludable",
            "removed",
            "leaving",
            "fork",
        ),
    ),
    Route(
        "GET",
        "/v1/ring/keys",
        final_export.show_keys,
        "read",
        "The public keys that exports of finals are signed with.",
        final_answers.KeysAnswer,
    ),
)
