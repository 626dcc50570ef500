"""Boards: define, preview, reset, retire, list and show."""

from __future__ import annotations

import msgspec
from aiohttp import web

from agent.api.answers import (
    BoardAnswer,
    BoardsAnswer,
    FieldChange,
    FullDefinition,
    OverruledDefinition,
    OverruledEntriesAnswer,
    OverruledEntry,
    RetiredAnswer,
)
from agent.api.bodies import Decoder
from agent.api.route import Call
from agent.api.showing import full, windows_of
from agent.boards import definition as definitions
from agent.boards.catalog import Board, Overruled
from agent.boards.change import define, next_version, reset
from agent.boards.definition import Definition, ScoreRange
from agent.boards.entry import name_bytes, rfc3339
from agent.boards.scale import check_budget
from agent.boards.standing import standing_of
from agent.crdt import hybrid_clock
from agent.crdt.cell import Row
from agent.crdt.space import BOARD_NAME
from agent.crdt.total import NEVER_MS
from agent.errors import Malformed, NotFound
from agent.operation import BoardChanged, Define, Reset, Retire
from agent.store.snapshot import SqliteSnapshot

PAGE_CELLS = 1_000
OVERRULED_MEMBERS_MAX = 10_001  # a count beyond this says "many", and stays cheap
_definition: Decoder[Definition] = Decoder(Definition)


async def define_board(call: Call) -> web.Response:
    """PUT /v1/boards/{board}."""
    name = call.board_name()
    if not BOARD_NAME.fullmatch(name):
        raise Malformed(
            f"board: {name[:80]!r} is not a board name",
            hint="1 to 64 of a-z, 0-9, '.', '_', '-', beginning with a letter or a digit",
        )
    definition = _checked(*await call.body())
    if call.query["preview"]:
        return _preview(call, name, definition)
    before = _definition_of(call, name)
    receipt = await call.services.queue.submit(Define(name, definition))
    assert isinstance(receipt.answer, BoardChanged)
    board = receipt.state.catalog.board(name)
    return _changed(call, _shown(call, board), before, changed=receipt.answer.changed)


def _preview(call: Call, name: str, definition: Definition) -> web.Response:
    """What would be in force: the cells that a definition would write are read, and not written."""
    state = call.services.queue.state
    hlc = hybrid_clock.tick(state.hlc, call.services.board_now_ms())
    planned = next_version(state.catalog, name, definition, hybrid_clock.ms_of(hlc))
    rows = [
        Row(*key, *value, state.inc, state.seq + 1)
        for key, value in define(state.catalog, state.agent, name, definition, hlc)
    ]
    board = state.catalog.with_rows(rows).board(name)
    before, changed = _definition_of(call, name), planned is not None
    return _changed(call, _shown(call, board), before, changed=changed, preview=True)


async def reset_board(call: Call) -> web.Response:
    """POST /v1/boards/{board}/reset, with a definition or without a body."""
    name = call.board_name()
    definition = None
    if call.request.can_read_body:
        definition = _checked(*await call.body())
    before = _definition_of(call, name)
    if call.query["preview"]:
        state = call.services.queue.state
        hlc = hybrid_clock.tick(state.hlc, call.services.board_now_ms())
        rows = [
            Row(*key, *value, state.inc, state.seq + 1)
            for key, value in reset(state.catalog, state.agent, name, definition, hlc)
        ]
        board = state.catalog.with_rows(rows).board(name)
        return _changed(call, _shown(call, board), before, preview=True)
    receipt = await call.services.queue.submit(Reset(name, definition))
    return _changed(call, _shown(call, receipt.state.catalog.board(name)), before)


async def retire_board(call: Call) -> web.Response:
    """DELETE /v1/boards/{board}."""
    name = call.board_name()
    await call.services.queue.submit(Retire(name))
    return call.answer(RetiredAnswer(name, retired=True))


async def list_boards(call: Call) -> web.Response:
    """GET /v1/boards: those that the caller's token is for."""
    boards = [b for b in call.services.queue.state.catalog if call.caller.allows(b.name)]
    offset = call.query["offset"]
    part = boards[offset : offset + call.query["limit"]]
    return call.answer(BoardsAnswer([_shown(call, board) for board in part], offset, len(boards)))


async def show_board(call: Call) -> web.Response:
    """GET /v1/boards/{board}."""
    board = call.services.queue.state.catalog.board(call.board_name())
    answer = _shown(call, board)
    answer.overruled = []
    if board.overruled:
        answer.overruled = await call.services.readers.read(
            lambda snapshot: _overruled(snapshot, board.overruled)
        )
    return call.answer(answer)


async def list_overruled(call: Call) -> web.Response:
    """GET /v1/boards/{board}/overruled/{agent}/entries."""
    services, query = call.services, call.query
    board = services.queue.state.catalog.board(call.board_name())
    agent = call.path("agent")
    lost = next((its for its in board.overruled if its.agent == agent), None)
    if lost is None:
        raise NotFound(
            "unknown_agent",
            f"agent: no definition of board {board.name!r} by {agent[:80]!r} is overruled",
            hint="GET /v1/boards/{board} lists those that are",
        )
    window, space = _window_of(lost, query["window"], services.board_now_ms())
    after = b"" if query["after"] is None else name_bytes(query["after"], "after")
    limit, definition = query["limit"], lost.definition

    def read(snapshot: SqliteSnapshot) -> tuple[list[OverruledEntry], str | None]:
        found: list[OverruledEntry] = []
        last = after
        while len(found) < limit:
            page = snapshot.members_after(space, last, PAGE_CELLS)
            if not page:
                return found, None
            for name, slots in page:
                standing = standing_of(definition, slots)
                last = name
                if standing is not None:
                    reached = None if standing.reached_ms == NEVER_MS else standing.reached_ms
                    at = None if reached is None else rfc3339(reached)
                    shown = name.decode(errors="replace")
                    found.append(OverruledEntry(shown, standing.score, at))
                if len(found) == limit:
                    break
        return found, last.decode(errors="replace")

    entries, following = await services.readers.read(read)
    return call.answer(OverruledEntriesAnswer(board.name, agent, window, entries, following))


def _window_of(lost: Overruled, text: str | None, now_ms: int) -> tuple[str, bytes]:
    """A window of an overruled definition: its id, and its space.

    Raises:
        NotFound: (`unknown_window`)
    """
    names = [series.name for series, shown in lost.definition.counted() if shown]
    for (series, shown), prefix in zip(lost.definition.counted(), lost.prefixes, strict=True):
        wanted = names[0] if text is None else text
        if not shown:
            continue
        window = series.at(now_ms) if series.name == wanted else series.window(wanted)
        if window is not None:
            return window.id, prefix + window.id.encode()
    hint = f"its windows: {', '.join(names)}"
    raise NotFound("unknown_window", f"window: the definition has none {text!r}", hint=hint)


def _checked(data: bytes, media: str) -> Definition:
    """A definition that can be in force.

    Raises:
        Malformed, OutOfRange: see agent/boards/definition.py and scale.py (`tie_budget`).
    """
    definition = definitions.check(_definition.decode(data, media))
    check_budget(definition)
    return definition


def _overruled(
    snapshot: SqliteSnapshot, overruled: tuple[Overruled, ...]
) -> list[OverruledDefinition]:
    return [
        OverruledDefinition(
            agent=its.agent,
            version=its.version,
            definition=full(its.definition),
            members=_members(snapshot, its),
        )
        for its in overruled
    ]


def _members(snapshot: SqliteSnapshot, its: Overruled) -> int:
    """How many members the fullest window of a definition has."""
    spaces = [space for prefix in its.prefixes for space in snapshot.spaces_of(prefix)]
    counts = (snapshot.count_members(space, OVERRULED_MEMBERS_MAX) for space in spaces)
    return max(counts, default=0)


def _definition_of(call: Call, name: str) -> FullDefinition | None:
    """A board's definition in force; None where it has none."""
    board = call.services.queue.state.catalog.find(name)
    return None if board is None or board.definition is None else full(board.definition)


def _changed(
    call: Call,
    answer: BoardAnswer,
    before: FullDefinition | None,
    *,
    changed: bool = True,
    preview: bool = False,
) -> web.Response:
    answer.changed = changed
    if before is not None and before != answer.definition:
        was, now = msgspec.to_builtins(before), msgspec.to_builtins(answer.definition)
        answer.changes = [
            FieldChange(field, was[field], value)
            for field, value in now.items()
            if was[field] != value
        ]
    answer.preview = preview
    return call.answer(answer)


def _shown(call: Call, board: Board) -> BoardAnswer:
    assert board.definition is not None
    return BoardAnswer(
        board=board.name,
        definition=full(board.definition),
        generation=board.generation,
        version=board.version,
        written_by=board.agent or None,
        score=ScoreRange(*board.definition.score_range()),
        windows=windows_of(board, call.services.board_now_ms()),
    )
