"""The route table: everything that this agent answers over HTTP."""

from __future__ import annotations

import msgspec
from aiohttp import web

from agent.api import (
    among,
    answers,
    audit,
    boards,
    counters,
    entries,
    explain,
    explain_answers,
    live,
    members,
    quarantine,
    ranks,
    rebuild,
    ring,
    ring_answers,
    several,
    status,
    windows,
)
from agent.api.final_routes import FINAL_ROUTES, GENERATION
from agent.api.member_routes import MEMBER_ROUTES, NAME_AFTER
from agent.api.openapi import document
from agent.api.route import Call, Query, Route
from agent.api.top import PAGE_ENTRIES_MAX
from agent.boards.definition import Definition
from agent.boards.entry import Entry
from agent.limits import NEIGHBORS_MAX, PAGE_MEMBERS_MAX

WINDOW = Query("window", "string", "a window's name (the open one) or id; default: the first one")
RANK_WINDOW = Query("window", "string", "with `rank`: as in reads; default: the first one")
EXPECTED = ("If-Match", "the ETag of the board that is to be changed; another one is a 409")
LOST_GENERATION = Query("generation", "integer", "default: the newest that holds any of it")
AFTER = Query("after", "string", "wait until the read includes the write of this position (2 s)")
MAX_LAG = Query("max_lag_ms", "integer", "refuse an answer that is staler than this (too_stale)")
OFFSET = Query("offset", "integer", "how many to leave out from the beginning", 0)
LIMIT = Query("limit", "integer", "how many to show", 100, 1, PAGE_MEMBERS_MAX)
TOP = Query("limit", "integer", "how many to show", 10, 1, PAGE_ENTRIES_MAX)
CURSOR = Query("cursor", "string", "`next` or `previous` of a page: whatever moves meanwhile")
PREVIOUS = Query("previous", "boolean", "also its rank in the window before", False)
NEIGHBORS = Query("neighbors", "integer", "how many to show on each side", 0, 0, NEIGHBORS_MAX)
ACK = Query("ack", "string", "`local`, or `replicated`: another region durably has it", "local")
RANK = Query("rank", "boolean", "wait for the ranks of up to 100 entries, at most 500 ms", False)
PREVIEW = Query("preview", "boolean", "say what would change, and change nothing", False)

# What a write meets beside what is wrong with it.
CLOSED_CODES = ("removed", "leaving", "fork")
ACK_CODES = ("not_replicated", *CLOSED_CODES)
KEY_CODES = ("key_conflict", "key_expired", "member_erased")
COUNTER_CODES = ("out_of_range", *KEY_CODES, *ACK_CODES)
WRITE_CODES = (
    "unknown_board",
    "out_of_range",
    "grow_only",
    "window_closed",
    "rate_limited",
    "clock_off",
    *KEY_CODES,
    *ACK_CODES,
)
RANK_CODES = ("unknown_board", "unknown_window", "too_stale", "rebuilding", "rank_store_down")


async def show_openapi(call: Call) -> web.Response:
    """GET /openapi.json."""
    return call.answer(OPENAPI)


ROUTES: tuple[Route, ...] = (
    Route(
        "POST",
        "/v1/counters/{name}",
        entries.add_to_counter,
        "write",
        "Add to a counter.",
        answers.CounterAnswer,
        (entries.CounterAdd,),
        query=(ACK,),
        codes=COUNTER_CODES,
    ),
    Route(
        "GET",
        "/v1/counters/{name}",
        counters.read_counter,
        "read",
        "Read a counter.",
        answers.CounterAnswer,
        query=(AFTER, MAX_LAG),
        codes=("too_stale", "busy"),
    ),
    Route(
        "POST",
        "/v1/counters",
        entries.add_to_counters,
        "write",
        "Add to several counters, all or none.",
        answers.CountersAnswer,
        (entries.CounterBatch,),
        query=(ACK,),
        codes=("out_of_range", "member_erased", *ACK_CODES),
    ),
    Route(
        "POST",
        "/v1/boards/{board}/entries",
        entries.write_entries,
        "write",
        "Write one entry, or a batch, all or none.",
        answers.WriteAnswer,
        (Entry, entries.EntryBatch),
        query=(RANK, RANK_WINDOW, ACK),
        codes=(*WRITE_CODES, "unknown_window"),
    ),
    Route(
        "POST",
        "/v1/entries",
        entries.write_entries_of_boards,
        "write",
        "Write entries of several boards, all or none.",
        answers.WriteAnswer,
        (entries.BoardEntryBatch,),
        query=(ACK,),
        codes=WRITE_CODES,
    ),
    Route(
        "GET",
        "/v1/boards/{board}/entries",
        ranks.show_page,
        "read",
        "A page of a window of a board, best first.",
        answers.PageAnswer,
        query=(WINDOW, OFFSET, LIMIT, CURSOR, AFTER, MAX_LAG),
        codes=RANK_CODES,
        headers=(("If-None-Match", "the ETag of a page: 304 where it is still the same"),),
        statuses=(200, 304),
    ),
    Route(
        "GET",
        "/v1/boards/{board}/entries/{member}",
        ranks.show_member,
        "read",
        "A member's rank and score, with its neighbours.",
        answers.MemberAnswer,
        query=(WINDOW, NEIGHBORS, PREVIOUS, AFTER, MAX_LAG),
        codes=(*RANK_CODES, "not_ranked"),
    ),
    Route(
        "POST",
        "/v1/boards/{board}/among",
        among.show_among,
        "read",
        "Some members of a window, up to 5,000, ranked among themselves.",
        answers.AmongAnswer,
        (among.AmongRequest,),
        query=(WINDOW, AFTER, MAX_LAG),
        codes=RANK_CODES,
    ),
    Route(
        "POST",
        "/v1/ranks",
        several.show_several,
        "read",
        "Several reads of ranks and tops, of any boards; each has its own answer or problem.",
        answers.ReadsAnswer,
        (several.ReadsRequest,),
    ),
    Route(
        "PUT",
        "/v1/boards/{board}",
        boards.define_board,
        "admin",
        "Define a board, or change it.",
        answers.BoardAnswer,
        (Definition,),
        query=(PREVIEW,),
        headers=(EXPECTED,),
        codes=("board_conflict", "out_of_range", "tie_budget", *CLOSED_CODES),
    ),
    Route(
        "GET",
        "/v1/boards/{board}",
        boards.show_board,
        "read",
        "Show a board.",
        answers.BoardAnswer,
        codes=("unknown_board",),
    ),
    Route(
        "DELETE",
        "/v1/boards/{board}",
        boards.retire_board,
        "admin",
        "Retire a board: it takes no entries and has no ranks until it is defined anew.",
        answers.RetiredAnswer,
        headers=(EXPECTED,),
        codes=("unknown_board", "board_conflict", *CLOSED_CODES),
    ),
    Route(
        "POST",
        "/v1/boards/{board}/reset",
        boards.reset_board,
        "admin",
        "Start a new generation of a board, with a new definition if one is given.",
        answers.BoardAnswer,
        (Definition,),
        body_required=False,
        query=(PREVIEW,),
        headers=(EXPECTED,),
        codes=("unknown_board", "board_conflict", "out_of_range", "tie_budget", *CLOSED_CODES),
    ),
    Route(
        "GET",
        "/v1/boards/{board}/overruled/{agent}/entries",
        boards.list_overruled,
        "read",
        "What was counted under a definition that was overruled, by member.",
        answers.OverruledEntriesAnswer,
        query=(WINDOW, LOST_GENERATION, NAME_AFTER, LIMIT),
        codes=("unknown_board", "unknown_generation", "unknown_window", "unknown_agent"),
    ),
    Route(
        "GET",
        "/v1/boards",
        boards.list_boards,
        "read",
        "List the boards in use.",
        answers.BoardsAnswer,
        query=(OFFSET, LIMIT),
    ),
    Route(
        "GET",
        "/v1/boards/{board}/windows",
        windows.list_windows,
        "read",
        "List the windows of a board that are open, hold anything, or have a final.",
        answers.WindowsAnswer,
        query=(OFFSET, LIMIT, GENERATION),
        codes=("unknown_board", "unknown_generation"),
    ),
    Route(
        "GET",
        "/v1/explain/{board}/{member}",
        explain.explain,
        "read",
        "Everything behind one score and one rank, by region.",
        explain_answers.ExplainAnswer,
        query=(WINDOW,),
        codes=("unknown_board", "unknown_window", "member_erased"),
    ),
    Route(
        "GET",
        "/v1/boards/{board}/live",
        live.show_live,
        "read",
        "The top of a window as it changes, as server-sent events.",
        query=(WINDOW, TOP),
        codes=(*RANK_CODES, "busy"),
        headers=(("Last-Event-ID", "the id of the newest event that was heard"),),
        media="text/event-stream",
    ),
    *FINAL_ROUTES,
    *MEMBER_ROUTES,
    Route(
        "GET",
        "/v1/ring",
        ring.show_ring,
        "read",
        "The ring as this agent sees it.",
        ring_answers.RingAnswer,
    ),
    Route(
        "POST",
        "/v1/ring/leave",
        members.leave,
        "admin",
        "Have this agent leave the ring, once everybody has everything that it has.",
        ring_answers.MemberChangeAnswer,
        (members.LeaveRequest,),
        body_required=False,
        codes=("ring_conflict", "removed"),
    ),
    Route(
        "POST",
        "/v1/ring/members/{name}/remove",
        members.remove,
        "admin",
        "Remove a dead agent from the ring, for ever.",
        ring_answers.MemberChangeAnswer,
        (members.RemoveRequest,),
        body_required=False,
        codes=("unknown_agent", "ring_conflict"),
    ),
    Route(
        "PUT",
        "/v1/ring/members/{name}/url",
        members.readdress,
        "admin",
        "Tell the ring under which URL an agent is reached.",
        ring_answers.MemberChangeAnswer,
        (members.UrlChange,),
        codes=("unknown_agent", "ring_conflict", "removed"),
    ),
    Route(
        "POST",
        "/v1/ring/import",
        quarantine.import_rows,
        "admin",
        "Take over cells of a removed agent's file, as this agent's own writes.",
        quarantine.ImportAnswer,
        (quarantine.ImportRows,),
        codes=("fork",),
    ),
    Route(
        "POST",
        "/v1/audit",
        audit.start_audit,
        "admin",
        "Compare everything with the other agents and with Redis; mend it if that is wanted.",
        audit.AuditAnswer,
        (audit.AuditRequest,),
        body_required=False,
        codes=("unknown_board",),
    ),
    Route(
        "GET",
        "/v1/audit",
        audit.show_audit,
        "admin",
        "How far the newest audit is, and what it found.",
        audit.AuditAnswer,
    ),
    Route(
        "POST",
        "/v1/rebuild",
        rebuild.start_rebuild,
        "admin",
        "Fill the region's Redis anew, some boards or all; what is there is served meanwhile.",
        rebuild.RebuildAnswer,
        (rebuild.RebuildRequest,),
        body_required=False,
        codes=("unknown_board", "rebuilding", "busy"),
    ),
    Route(
        "GET",
        "/v1/rebuild",
        rebuild.show_rebuild,
        "admin",
        "What of the region's Redis is being filled, and how far that is.",
        rebuild.RebuildAnswer,
        query=(Query("id", "string", "the `id` of a rebuild: also how far that one is"),),
    ),
    Route(
        "POST",
        "/v1/clock",
        status.set_clock,
        "admin",
        'Set the time of entries; only where agent.clock is "manual".',
        answers.ClockAnswer,
        (status.ClockSet,),
        codes=("unknown_route", "out_of_range"),
    ),
    Route("GET", "/healthz", status.health, None, "The process is alive.", answers.HealthAnswer),
    Route(
        "GET",
        "/readyz",
        status.ready,
        None,
        "Whether the agent can serve everything; 503 and the reasons if not.",
        answers.ReadyAnswer,
        statuses=(200, 503),
    ),
    Route("GET", "/metrics", status.metrics, "read", "Metrics.", media="text/plain"),
    Route("GET", "/openapi.json", show_openapi, "read", "This document."),
    Route(
        "POST",
        "/v1/peer",
        ring.peer,
        None,
        "For agents of the ring: one call, framed and proven as docs/protocol.md says.",
        codes=("too_large",),
        media="application/octet-stream",
    ),
)

OPENAPI = msgspec.Raw(msgspec.json.encode(document(ROUTES)))
