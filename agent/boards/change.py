"""Changes of boards: the cells that a definition, a reset or a retirement writes. Pure.

Every change is one or two cells of the board's member in the boards' space, written by the agent
that took the request; catalog.py says how the cells of all agents resolve to one board. The
definition comes first: it names its generation, so a peer that has read the log up to between the
two still sees the board whole.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from agent.boards import definition as definitions
from agent.boards.catalog import Board, Catalog
from agent.boards.definition import COUNTERS, Definition
from agent.boards.overruled import GENERATION_SHIFT
from agent.crdt import hybrid_clock
from agent.crdt.cell import Key, Value
from agent.crdt.slot import Kind, slot_of_name, slot_of_one
from agent.crdt.space import BOARDS_SPACE
from agent.errors import Conflict, TooLarge
from agent.limits import BOARDS_MAX

Writes: TypeAlias = list[tuple[Key, Value]]


def keys_of(name: str, agent: str) -> tuple[Key, Key]:
    """The two cells of a board that an agent may write: its definition, and the generation."""
    member = name.encode()
    return (
        (BOARDS_SPACE, member, slot_of_name(Kind.DEFINITION, agent)),
        (BOARDS_SPACE, member, slot_of_one(Kind.GENERATION)),
    )


def tag_of(board: Board) -> str:
    """What a board's definition and generation are called by those who change what they have seen.

    Two definitions of one version, written in two regions at once, have two tags.
    """
    return f"{board.generation}.{board.version}.{board.agent}"


def check_expected(catalog: Catalog, name: str, expected: frozenset[str] | None) -> None:
    """Check that a board is still what its changer has seen.

    Args:
        expected: tags (`tag_of`), any of them; `*`: any board in use. None: whatever there is.

    Raises:
        Conflict: (`board_conflict`) it is not; nothing is to be written.
    """
    if expected is None:
        return
    board = catalog.find(name)
    if board is None or board.definition is None:
        raise Conflict(
            "board_conflict",
            f"board: {name!r} is not in use, so it isn't what If-Match names",
            hint="GET /v1/boards lists the boards in use",
        )
    if expected.isdisjoint({"*", tag_of(board)}):
        by = f", by agent {board.agent!r}" if board.agent else ""
        raise Conflict(
            "board_conflict",
            f"board: {name!r} was changed meanwhile: it is in generation {board.generation},"
            f" version {board.version}{by}",
            hint="look at it with GET /v1/boards/{board}, and send If-Match with that ETag",
        )


class Version(NamedTuple):
    """Under what a definition would be in force: `opens` as in agent/boards/definition.py."""

    generation: int
    number: int
    opens: dict[str, int]


def next_version(
    catalog: Catalog, name: str, definition: Definition, now_ms: int
) -> Version | None:
    """What `definition` would be in force under; None if it already is.

    Raises:
        Conflict: (`board_conflict`) what the stored numbers depend on would change; or the board
            is built in, or was defined by a newer version of the agent.
        TooLarge: the catalog is full.
    """
    if name == COUNTERS:
        raise _built_in()
    board = catalog.find(name)
    if board is None:
        if len(catalog) >= BOARDS_MAX:
            raise TooLarge(f"boards: {BOARDS_MAX} are known, which is the limit")
        return Version(0, 1, {})
    if board.retired:
        return Version(board.generation + 1, 1, {})
    if board.definition is None and board.readable:  # its definition is still on its way
        return Version(board.generation, 1, {})
    if board.definition is None:
        raise Conflict(
            "board_conflict",
            f"board: {name!r} was defined by a newer version of the agent",
            hint="upgrade this agent first",
        )
    if definition == board.definition:
        return None
    definitions.changeable(board.definition, definition, name)
    opens = definitions.opening(board.definition, dict(board.opens), definition, name, now_ms)
    return Version(board.generation, board.version + 1, opens)


def define(catalog: Catalog, agent: str, name: str, new: Definition, hlc: int) -> Writes:
    """The cells that define or change a board; none where nothing changes.

    Args:
        hlc: the hybrid time of the change.

    Raises:
        Conflict, TooLarge: as `next_version`; nothing is to be written.
    """
    version = next_version(catalog, name, new, hybrid_clock.ms_of(hlc))
    if version is None:
        return []
    board = catalog.find(name)
    writes = [_definition(board, agent, name, version, new, hlc)]
    if board is not None and board.retired:
        writes.append(_generation(name, agent, version.generation))
    return writes


def reset(catalog: Catalog, agent: str, name: str, new: Definition | None, hlc: int) -> Writes:
    """The cells that start a new generation of a board, with a new definition if one is given.

    Raises:
        NotFound: (`unknown_board`).
        Conflict: (`board_conflict`) a definition for a built-in board.
    """
    board = catalog.board(name)
    generation = _generation(name, agent, board.generation + 1)
    if new is None:
        return [generation]
    if name == COUNTERS:
        raise _built_in()
    version = Version(board.generation + 1, 1, {})
    return [_definition(board, agent, name, version, new, hlc), generation]


def retire(catalog: Catalog, agent: str, name: str, hlc: int) -> Writes:
    """The cell that retires a board.

    Raises:
        NotFound: (`unknown_board`).
        Conflict: (`board_conflict`) the board is built in.
    """
    board = catalog.board(name)
    if name == COUNTERS:
        raise _built_in()
    version = Version(board.generation, board.version + 1, {})
    return [_definition(board, agent, name, version, None, hlc)]


def _generation(name: str, agent: str, number: int) -> tuple[Key, Value]:
    return keys_of(name, agent)[1], (number, 0, b"")


def _definition(
    board: Board | None,
    agent: str,
    name: str,
    version: Version,
    new: Definition | None,
    hlc: int,
) -> tuple[Key, Value]:
    body = definitions.to_body(new, {} if board is None else board.seen(), version.opens)
    major = (version.generation << GENERATION_SHIFT) | version.number
    return keys_of(name, agent)[0], (major, hlc, body)


def _built_in() -> Conflict:
    return Conflict("board_conflict", "board: 'counters' is built in and can't be redefined")
