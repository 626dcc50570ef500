"""The catalog: every board that this agent knows, from the definition and generation cells.

Immutable, so that the writer, the projector and the API may hold one while a newer one is made.
A definition's cell is (generation x 2**32 + version, hybrid time, body), one per writing agent; the
greatest is in force. Within a generation versions rise by one, and a definition written together
with a reset belongs to the new generation, so it wins over every change of the old one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from agent.boards import definition as definitions
from agent.boards.definition import COUNTERS, COUNTERS_DEFINITION, Definition
from agent.boards.scale import Scale, scale_of
from agent.crdt import document
from agent.crdt.cell import Row, Value
from agent.crdt.slot import Kind, name_of
from agent.crdt.space import BOARD_NAME, BOARDS_SPACE, Space, encode_space
from agent.errors import Malformed, NotFound, OutOfRange

GENERATION_SHIFT = 32
BoardCells: TypeAlias = Mapping[bytes, Value]


@dataclass(frozen=True, slots=True)
class Overruled:
    """A definition that lost against one it did not know of. Its entries stay in `space`."""

    agent: str
    version: int
    definition: Definition
    space: bytes


@dataclass(frozen=True, slots=True)
class Board:
    """One board as its cells define it.

    `version` counts from 1 in each generation and is 0 for a built-in board. `definition` is None
    for a board that is retired, that only a newer version of the agent can read, or of which only
    the generation has arrived so far (readable, not retired).
    """

    name: str
    generation: int
    version: int
    agent: str
    definition: Definition | None
    retired: bool
    readable: bool
    scale: Scale | None
    spaces: Mapping[str, bytes]
    overruled: tuple[Overruled, ...] = ()
    cells: BoardCells = field(default_factory=dict)

    @property
    def space(self) -> bytes:
        """The space of the window `all`."""
        return self.spaces["all"]

    def seen(self) -> dict[str, int]:
        """By agent, the major of its definition known here."""
        return {
            name_of(slot): value[0]
            for slot, value in self.cells.items()
            if slot[0] == Kind.DEFINITION
        }


def board_of(name: str, cells: BoardCells) -> Board:
    """A board from the cells of its member in the boards' space (slot -> value)."""
    written = [(s, v) for s, v in cells.items() if s[0] == Kind.DEFINITION]
    latest = document.in_force(written)
    reset_to = cells.get(bytes([Kind.GENERATION]), (0, 0, b""))[0]
    if name == COUNTERS or latest is None:
        known = COUNTERS_DEFINITION if name == COUNTERS else None
        return _board(name, reset_to, 0, "", definitions.DefinitionBody(known, {}), cells, ())
    slot, value = latest
    content = definitions.from_body(value[2])
    generation = max(reset_to, value[0] >> GENERATION_SHIFT)
    version = value[0] & (2**GENERATION_SHIFT - 1)
    lost = tuple(
        overruled
        for other, its in sorted(written)
        if other != slot and its[0] > content.seen.get(name_of(other), -1)
        for overruled in _overruled(name, other, its, content.definition)
    )
    return _board(name, generation, version, name_of(slot), content, cells, lost)


def _board(
    name: str,
    generation: int,
    version: int,
    agent: str,
    content: definitions.DefinitionBody,
    cells: BoardCells,
    lost: tuple[Overruled, ...],
) -> Board:
    known = content.definition
    scale = None
    spaces = {}
    if known is not None:
        try:
            scale = scale_of(known)
            spaces["all"] = _space(name, generation, known)
        except (OutOfRange, Malformed):  # a generation beyond 32 bits has no space
            known = None
    return Board(
        name=name,
        generation=generation,
        version=version,
        agent=agent,
        definition=known,
        retired=content.readable and content.definition is None and _is_defined(cells),
        readable=content.readable and known is content.definition,
        scale=scale,
        spaces=spaces,
        overruled=lost,
        cells=cells,
    )


def _overruled(
    name: str, slot: bytes, value: Value, winner: Definition | None
) -> tuple[Overruled, ...]:
    content = definitions.from_body(value[2])
    if content.definition is None or content.definition == winner:
        return ()
    try:
        space = _space(name, value[0] >> GENERATION_SHIFT, content.definition)
    except Malformed:
        return ()
    version = value[0] & (2**GENERATION_SHIFT - 1)
    return (Overruled(name_of(slot), version, content.definition, space),)


def _is_defined(cells: BoardCells) -> bool:
    return any(slot[0] == Kind.DEFINITION for slot in cells)


def _space(name: str, generation: int, definition: Definition) -> bytes:
    return encode_space(Space(name, generation, definitions.shape_of(definition, "all"), "all"))


class Catalog:
    """All boards by name. `with_rows` gives a new catalog; this one never changes."""

    __slots__ = ("_boards", "_by_space")

    def __init__(self, boards: Mapping[str, Board] | None = None) -> None:
        self._boards = dict(boards or {})
        self._boards.setdefault(COUNTERS, board_of(COUNTERS, {}))
        self._by_space = {
            space: board for board in self._boards.values() for space in board.spaces.values()
        }

    def __iter__(self) -> Iterator[Board]:
        """The boards in use, by name; retired and unreadable ones are left out."""
        return iter([b for _, b in sorted(self._boards.items()) if b.definition is not None])

    def __len__(self) -> int:
        """How many boards have cells, retired ones included."""
        return len(self._boards)

    def find(self, name: str) -> Board | None:
        """The board of this name in any state, or None."""
        return self._boards.get(name)

    def board(self, name: str) -> Board:
        """The board of this name, in use.

        Raises:
            NotFound: (`unknown_board`) never defined, retired, or defined by a newer version.
        """
        board = self._boards.get(name)
        if board is not None and board.definition is not None:
            return board
        if board is None or (board.readable and not board.retired):
            hint = "define it with PUT /v1/boards/{board}; a new definition may still be on its way"
        elif board.retired:
            hint = "it was retired; PUT /v1/boards/{board} starts it anew"
        else:
            hint = "it was defined by a newer version of the agent: upgrade this one"
        raise NotFound("unknown_board", f"board: {name[:80]!r} is not known here", hint=hint)

    def board_in(self, space: bytes) -> Board | None:
        """The board in use whose entries are counted in this space now, or None."""
        return self._by_space.get(space)

    def with_rows(self, rows: Iterable[Row]) -> Catalog:
        """The catalog after these changed cells; rows of other spaces are passed over."""
        changed: dict[str, dict[bytes, Value]] = {}
        for row in rows:
            if row.space != BOARDS_SPACE:
                continue
            name = row.member.decode(errors="replace")
            if not BOARD_NAME.fullmatch(name):
                continue
            if name not in changed:
                known = self._boards.get(name)
                changed[name] = dict(known.cells) if known else {}
            changed[name][row.slot] = row.value
        if not changed:
            return self
        boards = self._boards | {name: board_of(name, cells) for name, cells in changed.items()}
        return Catalog(boards)
