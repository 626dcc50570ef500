"""The routes about members of boards: actors, results, outliers, bans, erasure."""

from __future__ import annotations

from agent.api import actors, bans, erasure, member_answers, outliers, results
from agent.api.route import Query, Route
from agent.limits import PAGE_MEMBERS_MAX

WINDOW = Query("window", "string", "a window's name (the open one) or id; default: the first one")
NAME_AFTER = Query("after", "string", "go on after this name: `next` of the page before")
AFTER = Query("after", "string", "wait until the read includes the write of this position (2 s)")
MAX_LAG = Query("max_lag_ms", "integer", "refuse an answer that is staler than this (too_stale)")
LIMIT = Query("limit", "integer", "how many to show", 100, 1, PAGE_MEMBERS_MAX)
OFFSET = Query("offset", "integer", "how many to leave out from the beginning", 0)
AT = Query("at", "string", "when it happened: RFC 3339 or ms since 1970; default: now")
ACK = Query("ack", "string", "`local`, or `replicated`: another region durably has it", "local")
DRY_RUN = Query("dry_run", "boolean", "say what would happen, and change nothing", False)
REASON = Query("reason", "string", "why it is lifted, up to 500 characters")
BOARD = Query("board", "string", "only bans that hide on this board: its own, and those on all")

CLOSED_CODES = ("removed", "leaving", "fork")
PLACE_CODES = ("unknown_board", "unknown_window", "member_erased")
ACTOR_CODES = (
    "unknown_board",
    "member_erased",
    "out_of_range",
    "window_closed",
    "rate_limited",
    "clock_off",
    "not_replicated",
    *CLOSED_CODES,
)
BAN_CODES = ("member_erased", "out_of_range", "too_large", *CLOSED_CODES)

_ACTOR = "/v1/boards/{board}/actors/{member}/{actor}"
_BAN, _BAN_EVERYWHERE = "/v1/boards/{board}/bans/{member}", "/v1/bans/{member}"

ACTORS = (
    Route(
        "PUT",
        _ACTOR,
        actors.put_actor,
        "write",
        "An actor likes a member of a `distinct` board.",
        member_answers.ActorChange,
        query=(AT, ACK),
        codes=ACTOR_CODES,
    ),
    Route(
        "DELETE",
        _ACTOR,
        actors.delete_actor,
        "write",
        "An actor likes a member of a `distinct` board no longer.",
        member_answers.ActorChange,
        query=(AT, ACK),
        codes=ACTOR_CODES,
    ),
    Route(
        "GET",
        _ACTOR,
        actors.show_actor,
        "read",
        "Whether an actor is present.",
        member_answers.ActorAnswer,
        query=(WINDOW, AFTER, MAX_LAG),
        codes=(*PLACE_CODES, "too_stale"),
    ),
    Route(
        "GET",
        "/v1/boards/{board}/actors/{member}",
        actors.list_actors,
        "read",
        "A page of the actors that are present.",
        member_answers.ActorsAnswer,
        query=(WINDOW, NAME_AFTER, LIMIT),
        codes=PLACE_CODES,
    ),
)

RESULTS = (
    Route(
        "GET",
        "/v1/boards/{board}/results/{member}",
        results.list_results,
        "read",
        "A page of a member's kept results, for review.",
        member_answers.ResultsAnswer,
        query=(WINDOW, NAME_AFTER, LIMIT),
        codes=PLACE_CODES,
    ),
    Route(
        "DELETE",
        "/v1/boards/{board}/results/{member}/{key}",
        results.retract_result,
        "admin",
        "Take a result back in every region and window, for good.",
        member_answers.RetractionAnswer,
        query=(DRY_RUN,),
        codes=("unknown_board", "unknown_result", "member_erased", *CLOSED_CODES),
    ),
    Route(
        "GET",
        "/v1/boards/{board}/outliers",
        outliers.list_outliers,
        "read",
        "The entries that are flagged for review.",
        member_answers.OutliersAnswer,
        query=(WINDOW, OFFSET, LIMIT, MAX_LAG),
        codes=("unknown_board", "unknown_window", "too_stale", "rebuilding", "rank_store_down"),
    ),
)

BANS = (
    Route(
        "PUT",
        _BAN,
        bans.put_ban,
        "admin",
        "Hide a member from a board, or change its ban.",
        member_answers.BanAnswer,
        (bans.BanRequest,),
        body_required=False,
        codes=("unknown_board", *BAN_CODES),
    ),
    Route(
        "DELETE",
        _BAN,
        bans.delete_ban,
        "admin",
        "Lift a member's ban on a board.",
        member_answers.BanAnswer,
        query=(REASON,),
        codes=("unknown_board", "member_erased", "too_large", *CLOSED_CODES),
    ),
    Route(
        "GET",
        _BAN,
        bans.show_ban,
        "admin",
        "A member's ban on a board, with its history.",
        member_answers.BanAnswer,
        codes=("unknown_board", "member_erased"),
    ),
    Route(
        "PUT",
        _BAN_EVERYWHERE,
        bans.put_ban_everywhere,
        "admin",
        "Hide a member from all boards, or change its ban.",
        member_answers.BanAnswer,
        (bans.BanRequest,),
        body_required=False,
        codes=BAN_CODES,
    ),
    Route(
        "DELETE",
        _BAN_EVERYWHERE,
        bans.delete_ban_everywhere,
        "admin",
        "Lift a member's ban on all boards.",
        member_answers.BanAnswer,
        query=(REASON,),
        codes=("member_erased", "too_large", *CLOSED_CODES),
    ),
    Route(
        "GET",
        _BAN_EVERYWHERE,
        bans.show_ban_everywhere,
        "admin",
        "A member's ban on all boards, with its history.",
        member_answers.BanAnswer,
        codes=("member_erased",),
    ),
    Route(
        "GET",
        "/v1/bans",
        bans.list_bans,
        "admin",
        "A page of the bans that stand.",
        member_answers.BansAnswer,
        query=(BOARD, NAME_AFTER, LIMIT),
    ),
)

ERASURE = (
    Route(
        "DELETE",
        "/v1/members/{member}",
        erasure.erase_member,
        "admin",
        "Erase a member everywhere and close its name for good.",
        member_answers.ErasureAnswer,
        query=(DRY_RUN,),
        codes=CLOSED_CODES,
    ),
    Route(
        "GET",
        "/v1/members/{member}",
        erasure.show_erasure,
        "admin",
        "The receipt of an erasure: which agents have confirmed.",
        member_answers.ErasureAnswer,
        codes=("not_erased",),
    ),
)

MEMBER_ROUTES: tuple[Route, ...] = (*ACTORS, *RESULTS, *BANS, *ERASURE)
