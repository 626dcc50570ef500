"""Actors of `distinct` boards: a like, an unlike, whether somebody likes, and who does.

The two writes are entries like any other: `POST .../entries` with `actor` and `present` does the
same.
"""

from __future__ import annotations

from aiohttp import web
from msgspec import UNSET

from agent.api.member_answers import ActorAnswer, ActorChange, ActorsAnswer
from agent.api.position import position_of
from agent.api.route import Call
from agent.api.slot_pages import check_open, read_page, spaces_of
from agent.api.waiting import wait_stored
from agent.api.writing import answers_of, submit
from agent.boards.actors import actor_slot
from agent.boards.catalog import Board
from agent.boards.entry import Entry, name_bytes
from agent.boards.tally import Group
from agent.crdt import flag
from agent.crdt.slot import Kind
from agent.errors import Malformed, Refused
from agent.store.snapshot import SqliteSnapshot


async def put_actor(call: Call) -> web.Response:
    """PUT /v1/boards/{board}/actors/{member}/{actor}."""
    return await _write(call, present=True)


async def delete_actor(call: Call) -> web.Response:
    """DELETE /v1/boards/{board}/actors/{member}/{actor}."""
    return await _write(call, present=False)


async def _write(call: Call, *, present: bool) -> web.Response:
    name, at = call.board_name(), call.query["at"]
    _check_distinct(call.services.queue.state.catalog.board(name))
    entry = Entry(
        call.path("member"),
        actor=call.path("actor"),
        present=present,
        at=int(at) if at is not None and at.isascii() and at.isdigit() else at,
    )
    group = Group(name, (entry,), (0,))
    try:
        receipt = await submit(call, group)
    except Refused as error:
        if error.errors:  # as of an entry that stood alone
            error.errors, error.detail = (), error.detail.removeprefix("entries[0].")
        raise
    answer = answers_of(receipt, group)[0][0]
    fresh = call.services.freshness.of(receipt.state)
    return call.answer(
        ActorChange(
            board=name,
            member=entry.member,
            actor=call.path("actor"),
            present=present,
            score=answer.score,
            rounded={} if answer.rounded is UNSET else answer.rounded,
            late=[] if answer.late is UNSET else answer.late,
            position=position_of(receipt.state),
            as_of=fresh.as_of,
            max_lag_ms=fresh.max_lag_ms,
        )
    )


async def show_actor(call: Call) -> web.Response:
    """GET /v1/boards/{board}/actors/{member}/{actor}."""
    services = call.services
    placed = call.placed()
    _check_distinct(placed.board)
    member, actor = name_bytes(call.path("member")), name_bytes(call.path("actor"), "actor")
    await wait_stored(services, call.query["after"])
    # The state is older than the snapshot, so the answer includes at least what it claims.
    state = services.queue.state
    check_open(state, member, actor)
    fresh = services.freshness.of(state)
    spaces, slot = spaces_of(placed, services.board_now_ms()), actor_slot(actor)

    def look(snapshot: SqliteSnapshot) -> bool:
        cells = (snapshot.cell((space, member, slot)) for space in spaces)
        return any(cell is not None and flag.is_on(cell[0].value) for cell in cells)

    present = await services.readers.read(look)
    return call.answer(
        ActorAnswer(
            board=placed.board.name,
            window=placed.window.id,
            member=call.path("member"),
            actor=call.path("actor"),
            present=present,
            as_of=fresh.as_of,
            max_lag_ms=fresh.max_lag_ms,
        )
    )


async def list_actors(call: Call) -> web.Response:
    """GET /v1/boards/{board}/actors/{member}."""
    services, query = call.services, call.query
    placed = call.placed()
    _check_distinct(placed.board)
    member = name_bytes(call.path("member"))
    after = b"" if query["after"] is None else name_bytes(query["after"], "after")
    state = services.queue.state
    check_open(state, member)
    fresh = services.freshness.of(state)
    spaces, limit = spaces_of(placed, services.board_now_ms()), query["limit"]
    page = await services.readers.read(
        lambda snapshot: read_page(snapshot, spaces, member, Kind.FLAG, after, limit, flag.is_on)
    )
    return call.answer(
        ActorsAnswer(
            board=placed.board.name,
            window=placed.window.id,
            member=call.path("member"),
            actors=[found.name.decode(errors="replace") for found in page.found],
            next=None if page.next is None else page.next.decode(errors="replace"),
            as_of=fresh.as_of,
            max_lag_ms=fresh.max_lag_ms,
        )
    )


def _check_distinct(board: Board) -> None:
    """Refuse a board that does not keep who its actors are.

    Raises:
        Malformed
    """
    assert board.definition is not None
    rule = board.definition.rule
    if rule != "distinct":
        raise Malformed(
            f"board: {board.name!r} has rule {rule!r}; actors are kept with rule 'distinct' only",
            hint="a 'unique' board only estimates how many there are; write to it with"
            " POST .../entries"
            if rule == "unique"
            else "",
        )
