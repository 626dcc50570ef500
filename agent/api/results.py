"""Results: those that a board keeps, paged for review, and taking one back in every region."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from aiohttp import web

from agent.api.member_answers import ResultAnswer, ResultsAnswer, RetractionAnswer
from agent.api.position import position_of
from agent.api.route import Call
from agent.api.slot_pages import Found, check_open, read_page, spaces_of
from agent.boards import body
from agent.boards.catalog import Board
from agent.boards.entry import key_bytes, name_bytes, rfc3339
from agent.boards.results import result_slot, retraction_slot
from agent.boards.windows import name_of_id
from agent.crdt import hybrid_clock, result
from agent.crdt.slot import Kind
from agent.crdt.space import decode_space
from agent.crdt.total import NEVER_MS, Total
from agent.errors import Malformed, NotFound
from agent.operation import BoardChanged, Retract
from agent.state import State
from agent.store.snapshot import SqliteSnapshot


async def list_results(call: Call) -> web.Response:
    """GET /v1/boards/{board}/results/{member}."""
    services, query = call.services, call.query
    placed = call.placed()
    _check_keeps(placed.board)
    member = name_bytes(call.path("member"))
    after = b"" if query["after"] is None else key_bytes(query["after"])
    # The state is older than the snapshot, so the answer includes at least what it claims.
    state = services.queue.state
    check_open(state, member)
    fresh = services.freshness.of(state)
    spaces, limit = spaces_of(placed, services.board_now_ms()), query["limit"]

    def look(snapshot: SqliteSnapshot) -> tuple[list[ResultAnswer], bytes | None]:
        page = read_page(snapshot, spaces, member, Kind.RESULT, after, limit, lambda _: True)
        return [_result(snapshot, member, found) for found in page.found], page.next

    results, following = await services.readers.read(look)
    return call.answer(
        ResultsAnswer(
            board=placed.board.name,
            window=placed.window.id,
            member=call.path("member"),
            results=results,
            next=None if following is None else following.decode(errors="replace"),
            as_of=fresh.as_of,
            max_lag_ms=fresh.max_lag_ms,
        )
    )


def _result(snapshot: SqliteSnapshot, member: bytes, found: Found) -> ResultAnswer:
    hybrid, score, _ = found.value
    said = result.unpack(found.value)
    return ResultAnswer(
        key=found.name.decode(errors="replace"),
        score=score,
        at=rfc3339(said.at_ms),
        accepted_at=rfc3339(hybrid_clock.ms_of(-hybrid)),
        data=body.unpack(said.data),
        retracted=snapshot.cell((found.space, member, retraction_slot(found.name))) is not None,
    )


@dataclass(slots=True)
class _Standing:
    """Where a result is, by the time that its cells carry: spaces in which it stands or is taken
    back. `stands`: those of them in which it still counts."""

    by_time: dict[int, list[bytes]] = field(default_factory=dict)
    stands: list[bytes] = field(default_factory=list)

    def spaces(self) -> list[bytes]:
        """All spaces that know of it."""
        return [space for its in self.by_time.values() for space in its]


async def retract_result(call: Call) -> web.Response:
    """DELETE /v1/boards/{board}/results/{member}/{key}."""
    services, name, dry_run = call.services, call.board_name(), bool(call.query["dry_run"])
    state = services.queue.state
    board = state.catalog.board(name)
    _check_keeps(board)
    member, key = name_bytes(call.path("member")), key_bytes(call.path("key"))
    check_open(state, member)
    where = await services.readers.read(lambda snapshot: _find(snapshot, board, member, key, state))
    if not where.by_time:
        raise NotFound(
            "unknown_result",
            f"key: member {call.path('member')[:80]!r} has no result {call.path('key')[:80]!r} on"
            f" board {name!r} here",
            hint="it may still be on its way, or its windows are kept no longer",
        )
    changed = bool(where.stands)
    if not dry_run:
        changed = False
        for at_ms, spaces in where.by_time.items():
            receipt = await services.queue.submit(Retract(name, member, key, at_ms, tuple(spaces)))
            assert isinstance(receipt.answer, BoardChanged)
            changed, state = changed or receipt.answer.changed, receipt.state
    fresh = services.freshness.of(services.queue.state)
    owners = [(space, member) for space in where.spaces()]
    totals = await services.readers.read(lambda snapshot: snapshot.totals_of(owners))
    score = {space: _score(totals.get((space, member))) for space in where.spaces()}
    return call.answer(
        RetractionAnswer(
            board=name,
            member=call.path("member"),
            key=call.path("key"),
            dry_run=dry_run,
            changed=changed,
            windows=_windows(board, where.stands),
            score={_window(space): score[space] for space in _shown(board, score)},
            position=position_of(state),
            as_of=fresh.as_of,
            max_lag_ms=fresh.max_lag_ms,
        )
    )


def _find(
    snapshot: SqliteSnapshot, board: Board, member: bytes, key: bytes, state: State
) -> _Standing:
    """Where a result of the board's generation is; two exact cells a space are looked up."""
    found = _Standing()
    for prefix in sorted({counted.prefix for counted in board.counted}):
        for space in snapshot.spaces_of(prefix):
            if state.marks.collects(space):
                continue
            kept = snapshot.cell((space, member, result_slot(key)))
            taken = snapshot.cell((space, member, retraction_slot(key)))
            if kept is not None:
                at_ms = result.unpack(kept[0].value).at_ms
            elif taken is not None:
                at_ms = taken[0].minor
            else:
                continue
            found.by_time.setdefault(at_ms, []).append(space)
            if kept is not None and taken is None:
                found.stands.append(space)
    return found


def _score(total: Total | None) -> int | None:
    return None if total is None or total.reached_ms == NEVER_MS else total.score


def _shown(board: Board, spaces: Iterable[bytes]) -> list[bytes]:
    """Those spaces that are windows of the board, not only buckets of a sliding one."""
    shown = {(its.prefix, its.series.name) for its in board.counted if its.shown}
    found = []
    for space in spaces:
        window = _window(space)
        if (space.removesuffix(window.encode()), name_of_id(window)) in shown:
            found.append(space)
    return found


def _windows(board: Board, spaces: Iterable[bytes]) -> list[str]:
    return sorted(_window(space) for space in _shown(board, spaces))


def _window(space: bytes) -> str:
    decoded = decode_space(space)
    assert decoded is not None
    return decoded.window


def _check_keeps(board: Board) -> None:
    """Refuse a board that does not keep its results.

    Raises:
        Malformed
    """
    assert board.definition is not None
    if board.definition.results != "keep":
        raise Malformed(
            f"board: {board.name!r} does not keep its results",
            hint='define it with "results": "keep"; that can\'t be changed on a running board',
        )
