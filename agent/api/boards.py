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
from agent.api.etags import tags_in
from agent.api.final_choosing import generation_of
from agent.api.route import Call
from agent.api.showing import full, windows_of
from agent.boards import definition as definitions
from agent.boards.catalog import Board
from agent.boards.change import check_expected, define, next_version, reset, tag_of
from agent.boards.definition import Definition, ScoreRange
from agent.boards.entry import name_bytes, rfc3339
from agent.boards.overruled import Overruled
from agent.boards.scale import check_budget
from agent.boards.series import Series
from agent.boards.standing import standing_of
from agent.boards.windows import Window
from agent.crdt import hybrid_clock
from agent.crdt.cell import Row
from agent.crdt.space import BOARD_NAME
from agent.crdt.total import NEVER_MS
from agent.errors import Malformed, NotFound
from agent.operation import BoardChanged, Define, Reset, Retire
from agent.store.snapshot import SqliteSnapshot

PAGE_CELLS = 1_000
PAGES_MAX = 20  # read for one answer: where most members have no score, a page is short
OVERRULED_WINDOWS_MAX = 100  # of each series, the newest: what is counted for a list stays cheap
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
    receipt = await call.services.queue.submit(Define(name, definition, _expected(call)))
    assert isinstance(receipt.answer, BoardChanged)
    board = receipt.state.catalog.board(name)
    return _changed(call, _shown(call, board), before, changed=receipt.answer.changed)


def _preview(call: Call, name: str, definition: Definition) -> web.Response:
    """What would be in force: the cells that a definition would write are read, and not written."""
    state = call.services.queue.state
    check_expected(state.catalog, name, _expected(call))
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
        check_expected(state.catalog, name, _expected(call))
        hlc = hybrid_clock.tick(state.hlc, call.services.board_now_ms())
        rows = [
            Row(*key, *value, state.inc, state.seq + 1)
            for key, value in reset(state.catalog, state.agent, name, definition, hlc)
        ]
        board = state.catalog.with_rows(rows).board(name)
        return _changed(call, _shown(call, board), before, preview=True)
    receipt = await call.services.queue.submit(Reset(name, definition, _expected(call)))
    return _changed(call, _shown(call, receipt.state.catalog.board(name)), before)


async def retire_board(call: Call) -> web.Response:
    """DELETE /v1/boards/{board}."""
    name = call.board_name()
    await call.services.queue.submit(Retire(name, _expected(call)))
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
    response = call.answer(answer)
    response.headers["ETag"] = f'"{tag_of(board)}"'
    return response


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
    series, window = _window_of(lost, query["window"], services.board_now_ms())
    generations = lost.generations
    if query["generation"] is not None:
        generations = (generation_of(call, board),)
    spaces = [lost.prefix(series, number) + window.id.encode() for number in generations]
    after = b"" if query["after"] is None else name_bytes(query["after"], "after")

    def read(snapshot: SqliteSnapshot) -> OverruledEntriesAnswer:
        held = [index for index, space in enumerate(spaces) if snapshot.count_members(space, 1)]
        chosen = held[-1] if held else -1  # what the newest generation that holds any has
        page = _entries(snapshot, spaces[chosen], lost.definition, after, query["limit"])
        return OverruledEntriesAnswer(board.name, agent, generations[chosen], window.id, *page)

    return call.answer(await services.readers.read(read))


def _entries(
    snapshot: SqliteSnapshot, space: bytes, definition: Definition, after: bytes, limit: int
) -> tuple[list[OverruledEntry], str | None]:
    """The next members of a space that have a score, and the name to go on after."""
    found: list[OverruledEntry] = []
    last = after
    for _ in range(PAGES_MAX):
        page = snapshot.members_after(space, last, PAGE_CELLS)
        if not page:
            return found, None
        for name, slots in page:
            standing = standing_of(definition, slots)
            last = name
            if standing is not None:
                reached = None if standing.reached_ms == NEVER_MS else standing.reached_ms
                at = None if reached is None else rfc3339(reached)
                found.append(OverruledEntry(name.decode(errors="replace"), standing.score, at))
            if len(found) == limit:
                return found, last.decode(errors="replace")
    return found, last.decode(errors="replace")


def _window_of(lost: Overruled, text: str | None, now_ms: int) -> tuple[Series, Window]:
    """A window that an overruled definition's entries are counted in.

    Raises:
        NotFound: (`unknown_window`)
    """
    found = lost.window(text, now_ms)
    if found is None:
        names = ", ".join(series.name for series in lost.series())
        wanted = "open now" if text is None else f"{text[:80]!r}"
        raise NotFound(
            "unknown_window",
            f"window: the definition counts in none that is {wanted}",
            hint=f"it counts in: {names}",
        )
    return found


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
            generation=its.generation,
            version=its.version,
            definition=full(its.definition),
            members=_members(snapshot, its),
        )
        for its in overruled
    ]


def _members(snapshot: SqliteSnapshot, its: Overruled) -> int:
    """How many members the fullest window of a definition has."""
    prefixes = [its.prefix(series, gen) for series in its.series() for gen in its.generations]
    newest = (snapshot.spaces_of(prefix)[-OVERRULED_WINDOWS_MAX:] for prefix in prefixes)
    counts = (
        snapshot.count_members(space, OVERRULED_MEMBERS_MAX)
        for spaces in newest
        for space in spaces
    )
    return max(counts, default=0)


def _expected(call: Call) -> frozenset[str] | None:
    """The tags of the board that the caller has seen, if it says so."""
    header = call.request.headers.get("If-Match")
    return None if header is None else tags_in(header)


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
