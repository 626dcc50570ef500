"""Marks: how far windows and fact buckets are closed, acknowledged and collected.

A *series* is the windows of one name of one generation of a board, or the buckets of its facts. By
agent, a mark names the newest window of a series of which all up to it are

    closed        the agent takes no more entries for them
    acknowledged  it holds everything that any member wrote for them
    collected     everything of them may be dropped, and is not taken any more from anybody

Each mark only moves on, so it is a cell like any other; ids of one series sort by time, so nobody
needs a board's definition to compare them. An agent writes its close mark before anything that
relies on it, and what it closed it never writes again: the mark is looked at in the transaction of
every entry. (One whose file was lost writes the mark once more, as its own new write: nobody will
ever have read the rest of the lost log.) It acknowledges once its version vector covers the close
marks of all members, and may collect once all have acknowledged (`due`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from agent.boards.catalog import Catalog
from agent.boards.windows import KEYS, Series, Window, name_of_id
from agent.crdt.cell import Key, Row, Value
from agent.crdt.slot import Kind, name_of, slot_of_name
from agent.crdt.space import MARKS_SPACE, NO_SHAPE, Space, decode_space, encode_space, is_own
from agent.errors import Malformed
from agent.limits import KEY_RETENTION_MS_MAX

KINDS = (Kind.CLOSE, Kind.ACK, Kind.COLLECTED)


class Place(NamedTuple):
    """Where a space stands: its series (the member of the marks), and its window's id."""

    series: bytes
    window: str


@lru_cache(8192)
def place_of(space: bytes) -> Place | None:
    """The place of a board's space; None for own spaces and for those that can't be read."""
    decoded = None if is_own(space) else decode_space(space)
    if decoded is None:
        return None
    try:
        return Place(
            encode_space(decoded._replace(window=name_of_id(decoded.window))), decoded.window
        )
    except Malformed:
        return None


def name_of_space(space: bytes) -> str:
    """A board's window as a person reads it, for logs; its bytes where they can't be read."""
    decoded = decode_space(space)
    return space.hex() if decoded is None else f"{decoded.board} {decoded.window}"


def series_bytes(board: str, generation: int, shape: bytes, name: str) -> bytes:
    """The member under which the marks of a series stand."""
    return encode_space(Space(board, generation, shape, name))


@lru_cache(1024)
def keys_series(board: str) -> bytes:
    """The member under which the marks of a board's facts stand."""
    return series_bytes(board, 0, NO_SHAPE, KEYS.name)


class Mark(NamedTuple):
    """One mark as it stands: the newest window's id, its end, and the stamp of the cell."""

    window: str
    end_ms: int
    inc: int
    seq: int


class Marks:
    """All marks. `with_rows` gives new ones; a copy changes by `take` until it is given away.

    There are some for each series, so what is changed a row at a time is copied once.
    """

    __slots__ = ("_by_kind", "_collected")

    def __init__(self) -> None:
        self._by_kind: dict[Kind, dict[bytes, Mapping[str, Mark]]] = {kind: {} for kind in KINDS}
        self._collected: dict[bytes, str] = {}

    def copy(self) -> Marks:
        """The same marks, for `take`."""
        found = Marks()
        found._by_kind = {kind: dict(marks) for kind, marks in self._by_kind.items()}
        found._collected = dict(self._collected)
        return found

    def with_rows(self, rows: Iterable[Row]) -> Marks:
        """The marks after these changed cells; rows of other spaces are passed over."""
        mine = [row for row in rows if row.space == MARKS_SPACE and row.slot[0] in KINDS]
        if not mine:
            return self
        found = self.copy()
        for row in mine:
            found.take(row)
        return found

    def take(self, row: Row) -> None:
        """Take over one changed cell; one of another kind is passed over."""
        if row.slot[0] not in KINDS:
            return
        series, window = self._by_kind[Kind(row.slot[0])], row.body.decode(errors="replace")
        mark = Mark(window, row.major, row.inc, row.seq)
        its = series[row.member] = {**series.get(row.member, {}), name_of(row.slot): mark}
        if row.slot[0] == Kind.COLLECTED:
            self._collected[row.member] = max(other.window for other in its.values())

    def of(self, kind: Kind, series: bytes) -> Mapping[str, Mark]:
        """The marks of one kind of a series, by agent."""
        return self._by_kind[kind].get(series, {})

    def window(self, kind: Kind, series: bytes, agent: str) -> str:
        """The window up to which an agent has set a mark; empty where it has not."""
        mark = self._by_kind[kind].get(series, {}).get(agent)
        return "" if mark is None else mark.window

    def closed_by(self, agent: str, series: bytes, window: str) -> bool:
        """Whether an agent has said that it takes nothing more for a window."""
        return window <= self.window(Kind.CLOSE, series, agent)

    def held_by(self, series: bytes, agent: str, members: Iterable[str]) -> list[str]:
        """The members for which what `agent` has closed of a series can't be collected yet."""
        closed = self.window(Kind.CLOSE, series, agent)
        return self.behind(series, closed, members) if closed else []

    def behind(self, series: bytes, window: str, members: Iterable[str]) -> list[str]:
        """The members for which a window that is closed here can't be collected yet.

        Those that have not closed it; if all have, those that have not acknowledged it.
        """
        names = sorted(members)
        for kind in (Kind.CLOSE, Kind.ACK):
            found = [name for name in names if self.window(kind, series, name) < window]
            if found:
                return found
        return []

    def settled(
        self, series: bytes, window: str, members: Iterable[str], vv: Mapping[int, int]
    ) -> bool:
        """Whether all of these agents have closed a window, and `vv` covers their marks.

        Whoever has that version vector holds all that they wrote for it.
        """
        its = self._by_kind[Kind.CLOSE].get(series, {})
        for name in members:
            mark = its.get(name)
            if mark is None or mark.window < window or mark.seq > vv.get(mark.inc, 0):
                return False
        return True

    def collected(self, series: bytes) -> str:
        """The window up to which a series is collected; empty where nothing of it is."""
        return self._collected.get(series, "")

    def collects(self, space: bytes) -> bool:
        """Whether a space is collected: nothing of it is taken any more."""
        if not self._collected:
            return False
        place = place_of(space)
        return place is not None and place.window <= self._collected.get(place.series, "")


def cell_of(
    kind: Kind, series: bytes, agent: str, window: Window, inc: int = 0
) -> tuple[Key, Value]:
    """The cell of a mark.

    inc: of a close mark the incarnation that writes it. It is known by its stamp which of an
    agent's writes came before it, so one of a newer incarnation takes the place of the same one of
    a lost file everywhere.
    """
    key = (MARKS_SPACE, series, slot_of_name(kind, agent))
    return key, (window.end_ms, inc, window.id.encode())


@dataclass(frozen=True, slots=True)
class Due:
    """A mark that an agent can set now. again: it stands, and is to be written once more."""

    kind: Kind
    series: bytes
    window: Window
    again: bool = False


class _Line(NamedTuple):
    """A series that holds cells here: what is over, of it, and what is not kept any longer."""

    member: bytes
    series: Series
    closing: Window | None
    collecting: Window | None


def due(
    spaces: Iterable[bytes],
    catalog: Catalog,
    marks: Marks,
    agent: str,
    members: Iterable[str],
    vv: Mapping[int, int],
    now_ms: int,
    uncertified: Callable[[bytes, str], str] = lambda _series, _upto: "",
) -> list[Due]:
    """The marks that an agent can set now, for the series of which it holds cells.

    Args:
        spaces: all spaces that hold cells here.
        members: all members of the ring that are not removed.
        vv: this agent's version vector.
        now_ms: the board's time here.
        uncertified: (series, window) -> the oldest window up to that one which waits for its final;
            empty if none does. Nothing from it on is collected.
    """
    everybody = sorted(members)
    found = []
    for line in _lines(spaces, catalog, now_ms):
        closing = line.closing
        if closing is not None and not marks.closed_by(agent, line.member, closing.id):
            found.append(Due(Kind.CLOSE, line.member, closing))
        else:
            found += _uncovered(line, marks.of(Kind.CLOSE, line.member).get(agent), vv)
        closed = _least(line, marks.of(Kind.CLOSE, line.member), everybody, vv)
        if closed is not None and closed.id > marks.window(Kind.ACK, line.member, agent):
            found.append(Due(Kind.ACK, line.member, closed))
        acked = _least(line, marks.of(Kind.ACK, line.member), everybody, None)
        if acked is None or line.collecting is None:
            continue
        gone = min(acked, line.collecting, key=lambda window: window.id)
        if gone.id <= marks.collected(line.member):
            continue
        waits = uncertified(line.member, gone.id)
        if waits:
            kept = line.series.window(waits)
            before = None if kept is None else line.series.at(kept.start_ms - 1)
            if before is None or before.id <= marks.collected(line.member):
                continue
            gone = before
        found.append(Due(Kind.COLLECTED, line.member, gone))
    return found


def _uncovered(line: _Line, mine: Mark | None, vv: Mapping[int, int]) -> list[Due]:
    """This agent's own close mark, where its file was lost since: others had read it, and nobody
    the rest of that log, so no version vector would ever cover it."""
    if mine is None or mine.seq <= vv.get(mine.inc, 0):
        return []
    window = line.series.window(mine.window)
    return [] if window is None else [Due(Kind.CLOSE, line.member, window, again=True)]


def _least(
    line: _Line,
    marks: Mapping[str, Mark],
    members: list[str],
    vv: Mapping[int, int] | None,
) -> Window | None:
    """The newest window up to which all members have set a mark, all of them covered by `vv`."""
    least = None
    for name in members:
        mark = marks.get(name)
        if mark is None or (vv is not None and mark.seq > vv.get(mark.inc, 0)):
            return None
        least = mark.window if least is None else min(least, mark.window)
    return None if least is None else line.series.window(least)


def _lines(spaces: Iterable[bytes], catalog: Catalog, now_ms: int) -> list[_Line]:
    found: dict[bytes, _Line] = {}
    for space in spaces:
        place = place_of(space)
        if place is None or place.series in found:
            continue
        decoded = decode_space(space)
        board = None if decoded is None else catalog.find(decoded.board)
        if board is None or (board.definition is None and not board.retired):
            continue
        if place.series == keys_series(board.name):
            known = board.definition
            # A retired board's may be defined anew, with the longest retention there is.
            kept_ms = KEY_RETENTION_MS_MAX if known is None else known.key_retention_ms
            over = KEYS.latest_closed(now_ms - kept_ms)
            found[place.series] = _Line(place.series, KEYS, over, over)
            continue
        for counted in board.counted:
            series = counted.series
            if counted.marks == place.series and series.keep_ms is not None:
                gone = series.latest_closed(now_ms - series.keep_ms)
                found[place.series] = _Line(
                    place.series, series, series.latest_closed(now_ms), gone
                )
    return list(found.values())
