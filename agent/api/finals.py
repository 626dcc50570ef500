"""Finals: certified standings in pages, and what came after them."""

from __future__ import annotations

from aiohttp import web

from agent.api.final_answers import BannedEntry, FinalAnswer, FinalEntry, LateAnswer, LateEntry
from agent.api.final_choosing import (
    Chosen,
    certificate_answer,
    certificate_of,
    check_held,
    check_match,
    choose,
    history_of,
    pending_of,
)
from agent.api.final_export import export, is_export
from agent.api.route import Call
from agent.boards.entry import rfc3339
from agent.boards.final_lines import name_of_row
from agent.boards.final_rows import CHUNK_ROWS, FinalRow, unpack_chunk
from agent.boards.finals import Certificate
from agent.errors import Malformed
from agent.state import State
from agent.store.finals import chunk_of, rows_of
from agent.store.snapshot import SqliteSnapshot
from agent.store.standings import LATE_SHOWN_MAX, NOTHING_LATE, Late, Pace

PAGE_DEFAULT = 100


async def show_final(call: Call) -> web.StreamResponse:
    """GET /v1/boards/{board}/windows/{window}/final."""
    exports = is_export(call)
    chosen = await choose(call)
    told = certificate_of(call, chosen)
    known = check_match(call, told)
    headers = {"ETag": f'"{told.hash.hex()}"', "Cache-Control": "no-cache"}
    if known:
        return web.Response(status=304, headers=headers)
    check_held(chosen, told)
    if exports:
        if call.query["limit"] is not None:
            raise Malformed("limit: does not go with jsonl", hint="an export has all rows")
        return await export(call, chosen, told, headers)
    response = call.answer(await _page(call, chosen, told))
    response.headers.update(headers)
    return response


async def _page(call: Call, chosen: Chosen, told: Certificate) -> FinalAnswer:
    offset = call.query["offset"]
    limit = call.query["limit"] or PAGE_DEFAULT
    services = call.services
    state = services.queue.state
    rows = await services.readers.read(
        lambda snapshot: _rows(snapshot, chosen.space, told, offset, limit)
    )
    certifier = services.certifier
    late = NOTHING_LATE if certifier is None else certifier.late_of(chosen.space)
    return FinalAnswer(
        board=chosen.board.name,
        generation=chosen.generation,
        window=chosen.window,
        certificate=certificate_answer(chosen.final, told),
        history=history_of(chosen.final, told),
        pending=pending_of(state, chosen),
        conflict=chosen.final.conflict,
        late=late.members,
        offset=offset,
        total=told.members,
        entries=[_entry(state, chosen.board.name, row) for row in rows],
    )


def _rows(
    snapshot: SqliteSnapshot, space: bytes, told: Certificate, offset: int, limit: int
) -> list[FinalRow]:
    """The rows of a page, out of the chunks that they are in."""
    found: list[FinalRow] = []
    last = min(offset + limit, told.members)
    for number in range(offset // CHUNK_ROWS, -(-last // CHUNK_ROWS)):
        chunk = chunk_of(snapshot, space, told.hash, number)
        if chunk is None:
            break
        begin = number * CHUNK_ROWS
        found += unpack_chunk(chunk)[max(0, offset - begin) : last - begin]
    return found


def _entry(state: State, board: str, row: FinalRow) -> FinalEntry:
    if row.member is not None and state.erased.closed(row.member):
        row = row.erased()  # the file follows in a moment
    name = name_of_row(row)
    entry = FinalEntry(
        rank=row.rank,
        member=name,
        score=row.score,
        reached_at=None if row.reached_ms is None else rfc3339(row.reached_ms),
    )
    if row.member is not None and state.bans.hides(row.member, board):
        entry.banned = True
    if name is None:
        entry.member_digest = row.member_digest.hex()
    return entry


async def show_late(call: Call) -> web.Response:
    """GET /v1/boards/{board}/windows/{window}/late."""
    chosen = await choose(call)
    told = certificate_of(call, chosen)
    check_held(chosen, told)
    services, board = call.services, chosen.board.name
    state, certifier = services.queue.state, services.certifier
    hidden = frozenset(state.bans.hidden(board))
    count, banned = 0, list[BannedEntry]()
    if hidden:
        count, banned = await services.readers.read(
            lambda snapshot: _banned(snapshot, chosen.space, told, hidden)
        )
    late = NOTHING_LATE if certifier is None else certifier.late_of(chosen.space)
    offset, limit = call.query["offset"], call.query["limit"]
    end = offset + limit
    return call.answer(
        LateAnswer(
            board=board,
            generation=chosen.generation,
            window=chosen.window,
            version=told.version,
            hash=told.hash.hex(),
            late=late.members,
            banned=count,
            offset=offset,
            shown_max=LATE_SHOWN_MAX,
            entries=[
                _late(its) for its in late.shown[offset:end] if not state.erased.closed(its.member)
            ],
            banned_entries=banned[offset:end],
        )
    )


def _late(its: Late) -> LateEntry:
    return LateEntry(
        member=its.member.decode(errors="replace"),
        final_score=its.final_score,
        live_score=its.live_score,
        reached_at=None if its.reached_ms is None else rfc3339(its.reached_ms),
    )


def _banned(
    snapshot: SqliteSnapshot, space: bytes, told: Certificate, hidden: frozenset[bytes]
) -> tuple[int, list[BannedEntry]]:
    """How many members of a final are banned now, and the first of them."""
    count, found, pace = 0, list[BannedEntry](), Pace()
    for number, row in enumerate(rows_of(snapshot, space, told.hash), 1):
        if row.member is not None and row.member in hidden:
            count += 1
            if len(found) < LATE_SHOWN_MAX:
                name = row.member.decode(errors="replace")
                found.append(BannedEntry(row.rank, name, row.score))
        if number % CHUNK_ROWS == 0:
            pace()
    return count, found
