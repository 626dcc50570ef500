"""Boards: define, preview, reset, retire, list and show."""

from __future__ import annotations

from aiohttp import web

from agent.api.answers import (
    BoardAnswer,
    BoardsAnswer,
    FullDefinition,
    OverruledDefinition,
    RetiredAnswer,
)
from agent.api.bodies import Decoder
from agent.api.route import Call
from agent.boards import definition as definitions
from agent.boards.catalog import Board, Overruled
from agent.boards.change import next_version
from agent.boards.definition import Definition, ScoreRange
from agent.boards.scale import scale_of
from agent.crdt.space import BOARD_NAME
from agent.errors import Malformed
from agent.operation import BoardChanged, Define, Reset, Retire
from agent.store.snapshot import SqliteSnapshot

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
    state = call.services.queue.state
    if call.query["preview"]:
        planned = next_version(state.catalog, name, definition)
        if planned is not None:
            return _changed(call, _answer(name, definition, *planned, state.agent), preview=True)
        board = state.catalog.board(name)
        return _changed(call, _shown(board), changed=False, preview=True)
    receipt = await call.services.queue.submit(Define(name, definition))
    assert isinstance(receipt.answer, BoardChanged)
    board = receipt.state.catalog.board(name)
    return _changed(call, _shown(board), changed=receipt.answer.changed)


async def reset_board(call: Call) -> web.Response:
    """POST /v1/boards/{board}/reset, with a definition or without a body."""
    name = call.board_name()
    definition = None
    if call.request.can_read_body:
        definition = _checked(*await call.body())
    receipt = await call.services.queue.submit(Reset(name, definition))
    return _changed(call, _shown(receipt.state.catalog.board(name)))


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
    return call.answer(BoardsAnswer([_shown(board) for board in part], offset, len(boards)))


async def show_board(call: Call) -> web.Response:
    """GET /v1/boards/{board}."""
    board = call.services.queue.state.catalog.board(call.board_name())
    answer = _shown(board)
    answer.overruled = []
    if board.overruled:
        answer.overruled = await call.services.readers.read(
            lambda snapshot: _overruled(snapshot, board.overruled)
        )
    return call.answer(answer)


def _checked(data: bytes, media: str) -> Definition:
    """A definition that can be in force.

    Raises:
        Malformed, OutOfRange: see agent/boards/definition.py and scale.py (`tie_budget`).
    """
    definition = definitions.check(_definition.decode(data, media))
    scale_of(definition)
    return definition


def _overruled(
    snapshot: SqliteSnapshot, overruled: tuple[Overruled, ...]
) -> list[OverruledDefinition]:
    return [
        OverruledDefinition(
            agent=its.agent,
            version=its.version,
            definition=_full(its.definition),
            members=snapshot.count_members(its.space, OVERRULED_MEMBERS_MAX),
        )
        for its in overruled
    ]


def _changed(
    call: Call, answer: BoardAnswer, *, changed: bool = True, preview: bool = False
) -> web.Response:
    answer.changed = changed
    answer.preview = preview
    return call.answer(answer)


def _shown(board: Board) -> BoardAnswer:
    assert board.definition is not None
    return _answer(
        board.name, board.definition, board.generation, board.version, board.agent or None
    )


def _answer(
    name: str, definition: Definition, generation: int, version: int, written_by: str | None
) -> BoardAnswer:
    scale = scale_of(definition)
    return BoardAnswer(
        board=name,
        definition=_full(definition),
        generation=generation,
        version=version,
        written_by=written_by,
        score=ScoreRange(*definition.score_range()),
        tick_ms=scale.tick_ms if scale.b else None,
        b=scale.b,
    )


def _full(definition: Definition) -> FullDefinition:
    return FullDefinition(
        rule=definition.rule,
        order=definition.order,
        grow_only=definition.grow_only,
        ties=definition.ties,
        windows=list(definition.windows),
        score=definition.score,
    )
