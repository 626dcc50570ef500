"""The catalog: every board that this agent knows, from the definition and generation cells.

Immutable, so that the writer, the projector and the API may hold one while a newer one is made.
A definition's cell is (generation x 2**32 + version, hybrid time, body), one per writing agent; the
greatest is in force. Within a generation versions rise by one, and a definition written together
with a reset belongs to the new generation, so it wins over every change of the old one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple, TypeAlias

from agent.boards import definition as definitions
from agent.boards.definition import COUNTERS, COUNTERS_DEFINITION, Definition
from agent.boards.overruled import GENERATION_SHIFT, Overruled, overruled_of
from agent.boards.scale import Scale, check_budget, scale_of
from agent.boards.windows import (
    FACTS_MS,
    KEYS,
    Series,
    Window,
    buckets_of,
    is_sliding,
    name_of_id,
    series_of,
)
from agent.crdt import document
from agent.crdt.cell import Row, Value
from agent.crdt.slot import Kind, name_of
from agent.crdt.space import (
    BOARD_NAME,
    BOARDS_SPACE,
    NO_SHAPE,
    Space,
    decode_space,
    encode_space,
    is_own,
)
from agent.errors import Malformed, NotFound, OutOfRange
from agent.limits import TIME_MS_MIN

BoardCells: TypeAlias = Mapping[bytes, Value]


# Spaces that were looked up: windows open and end, so they are many over time.
PLACED_MAX = 20_000


class Counted(NamedTuple):
    """A series that a board's entries are counted in.

    prefix: what its spaces begin with; a window's id follows.
    opens_ms: no window that began before this takes entries: the series was added later.
    shown: whether it is a window of the board; else it is only the buckets of a sliding one.
    """

    series: Series
    prefix: bytes
    opens_ms: int
    shown: bool

    def space_of(self, window: Window) -> bytes:
        """The space of a window; of one that began before the series was added: an empty one."""
        unopened = b"~" if window.start_ms < self.opens_ms else b""
        return self.prefix + unopened + window.id.encode()

    @property
    def marks(self) -> bytes:
        """The member under which the marks of the series stand."""
        return self.prefix + self.series.name.encode()


class Sliding(NamedTuple):
    """A window that slides: the last windows of a series, so many, the open one among them."""

    name: str
    counted: Counted
    buckets: int

    def window(self, now_ms: int) -> Window:
        """The window as it is at a time."""
        newest = self.counted.series.recent(now_ms, self.buckets)
        return Window(self.name, self.name, newest[0].start_ms, newest[-1].end_ms)


class Placed(NamedTuple):
    """A window of a board in use.

    expires_ms: when it is kept no longer; None: never.
    """

    board: Board
    counted: Counted
    window: Window
    scale: Scale
    expires_ms: int | None

    @property
    def space(self) -> bytes:
        """The space of its cells."""
        return self.counted.space_of(self.window)


@dataclass(frozen=True, slots=True)
class Board:
    """One board as its cells define it.

    `version` counts from 1 in each generation and is 0 for a built-in board. `definition` is None
    for a board that is retired, that only a newer version of the agent can read, or of which only
    the generation has arrived so far (readable, not retired).

    counted: the series that entries are counted in; those of windows come first, in their order.
    slidings: the windows that are made of others.
    """

    name: str
    generation: int
    version: int
    agent: str
    definition: Definition | None
    retired: bool
    readable: bool
    counted: tuple[Counted, ...]
    slidings: tuple[Sliding, ...]
    opens: Mapping[str, int] = field(default_factory=dict)
    overruled: tuple[Overruled, ...] = ()
    cells: BoardCells = field(default_factory=dict)

    @property
    def space(self) -> bytes:
        """The space of the first series' only window: for boards of the window `all`."""
        first = self.counted[0]
        assert first.series.name == "all"
        return first.prefix + b"all"

    def seen(self) -> dict[str, int]:
        """By agent, the major of its definition known here."""
        return {
            name_of(slot): value[0]
            for slot, value in self.cells.items()
            if slot[0] == Kind.DEFINITION
        }

    def window_names(self) -> list[str]:
        """The names of its windows, in the order of the definition."""
        assert self.definition is not None
        return [spec.name for spec in self.definition.windows]

    def resolve(self, text: str | None, now_ms: int) -> Window:
        """The window that a reader means: by id, by name (the one open now), or the first one.

        Raises:
            NotFound: (`unknown_window`) the board has none of this name, or none that is open.
        """
        names = self.window_names()
        wanted = names[0] if text is None else text
        for sliding in self.slidings:
            if sliding.name == wanted:
                return sliding.window(now_ms)
        for counted in self.counted:
            if not counted.shown:
                continue
            series = counted.series
            window = series.at(now_ms) if series.name == wanted else series.window(wanted)
            if window is None and series.name == wanted:
                window = series.window(wanted)  # a season that is over, or has not begun
            if window is not None:
                return window
        raise NotFound(
            "unknown_window",
            f"window: board {self.name!r} has no window {wanted[:80]!r}",
            hint=f"its windows: {', '.join(names)}",
        )

    def place(self, window: Window) -> Placed:
        """A window of this board, with what its numbers mean."""
        definition = self.definition
        assert definition is not None
        for sliding in self.slidings:
            if sliding.name == window.name:
                span_ms = (sliding.buckets + 1) * sliding.counted.series.span_ms
                scale = scale_of(definition, window, span_ms)
                return Placed(self, sliding.counted, window, scale, None)
        counted = next(c for c in self.counted if c.series.name == window.name and c.shown)
        return _placed(self, counted, window)


def _placed(board: Board, counted: Counted, window: Window) -> Placed:
    assert board.definition is not None
    series = counted.series
    expires_ms = None
    if series.keep_ms is not None:
        expires_ms = window.end_ms + series.grace_ms + series.keep_ms
    scale = scale_of(board.definition, window, series.span_ms)
    return Placed(board, counted, window, scale, expires_ms)


def keys_space(board: str, at_ms: int) -> bytes:
    """The space of a board's facts of entries of a time, not before 1970."""
    return _keys_space(board, at_ms // FACTS_MS)


@lru_cache(4096)
def _keys_space(board: str, bucket: int) -> bytes:
    window = KEYS.at(bucket * FACTS_MS)
    assert window is not None
    return encode_space(Space(board, 0, NO_SHAPE, window.id))


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
    lost = (
        overruled_of(name, other, its, content.definition, generation)
        for other, its in sorted(written)
        if other != slot and its[0] > content.seen.get(name_of(other), -1)
    )
    overruled = tuple(its for its in lost if its is not None)
    return _board(name, generation, version, name_of(slot), content, cells, overruled)


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
    counted: tuple[Counted, ...] = ()
    if known is not None:
        try:
            check_budget(known)
            counted = _counted(name, generation, known, content.opens)
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
        counted=counted,
        slidings=() if known is None else _slidings(known, counted),
        opens=content.opens,
        overruled=lost,
        cells=cells,
    )


def _counted(
    name: str, generation: int, definition: Definition, opens: Mapping[str, int]
) -> tuple[Counted, ...]:
    return tuple(
        Counted(
            series,
            encode_space(Space(name, generation, definitions.shape_of(definition, series), "")),
            opens.get(series.name, TIME_MS_MIN),
            shown,
        )
        for series, shown in definition.counted()
    )


def _slidings(definition: Definition, counted: tuple[Counted, ...]) -> tuple[Sliding, ...]:
    found = []
    for spec in definition.windows:
        if is_sliding(spec.name):
            bucket, count = buckets_of(spec)
            its = next(c for c in counted if c.series.counts_as(series_of(bucket)))
            found.append(Sliding(spec.name, its, count))
    return tuple(found)


def _is_defined(cells: BoardCells) -> bool:
    return any(slot[0] == Kind.DEFINITION for slot in cells)


class Catalog:
    """All boards by name. `with_rows` gives a new catalog; this one never changes."""

    __slots__ = ("_boards", "_placed")

    def __init__(self, boards: Mapping[str, Board] | None = None) -> None:
        self._boards = dict(boards or {})
        self._boards.setdefault(COUNTERS, board_of(COUNTERS, {}))
        self._placed: dict[bytes, Placed | None] = {}

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

    def placed(self, space: bytes) -> Placed | None:
        """The window of a board in use whose entries are counted in this space now, or None."""
        try:
            return self._placed[space]
        except KeyError:
            pass
        if len(self._placed) >= PLACED_MAX:
            self._placed.clear()
        found = self._placed[space] = self._place(space)
        return found

    def _place(self, space: bytes) -> Placed | None:
        decoded = None if is_own(space) else decode_space(space)
        board = None if decoded is None else self._boards.get(decoded.board)
        if decoded is None or board is None or board.definition is None:
            return None
        name = name_of_id(decoded.window)
        for counted in board.counted:
            if counted.series.name == name and space.startswith(counted.prefix):
                window = counted.series.window(decoded.window)
                unopened = window is None or window.start_ms < counted.opens_ms
                return None if unopened or window is None else _placed(board, counted, window)
        return None

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
