"""Which boards Redis holds, which are being filled, and the steps that change one into the other.

A board is filled under a new key, by a scan over its members in SQLite; from the moment its filling
begins, its changes go to the new key. The scan reads states that only get newer, so when it is
through, the new key is complete up to the watermark, and one script puts it in place. While a board
is being filled it has no meta in Redis, and without meta nobody serves it.

Unless what stands in its place is only old: after a take-over (and in a repair) the board goes on
being served, its changes go to both keys, and the swap replaces what the last one left behind. The
meta of such a board names another tenure than the watermark does: that is how a crash in between is
found out about. While there is any, nothing newer may be claimed than what was taken over.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from agent.boards.catalog import Board, Catalog
from agent.boards.definition import COUNTERS
from agent.crdt.cell import Row
from agent.projection.keys import (
    COUNTER_PREFIX,
    NO_TENURE,
    TENURE,
    Fields,
    board_key,
    filling_key,
    meta_key,
    meta_of,
)
from agent.projection.scripts import Change
from agent.projection.source import Projected
from agent.projection.status import Counts

WINDOW = "all"


@dataclass(slots=True)
class Filling:
    """A board on its way into Redis.

    key: the sorted set being filled; it exists once `filled` is set.
    served: what stands in the board's place is served meanwhile, and gets its changes too.
    after: the last member that the scan has covered.
    scanned: whether the scan is through.
    strings_at: where the search for strings of counters that are no more stands; None at its end.
    """

    board: Board
    key: str
    served: bool = False
    after: bytes = b""
    filled: bool = False
    scanned: bool = False
    strings_at: int | None = None
    members: int = 0
    total: int | None = None

    @property
    def counts(self) -> bool:
        """Whether it is the board of counters, whose values are strings too."""
        return self.board.name == COUNTERS

    @property
    def ready(self) -> bool:
        """Whether the new key can take the board's place."""
        return self.scanned and self.strings_at is None


@dataclass(slots=True)
class _Place:
    board: Board
    filling: Filling | None


class Places:
    """Where each board in use stands in Redis. Its catalog is that of the watermark's lsn."""

    def __init__(self, catalog: Catalog, counts: Counts) -> None:
        self.catalog = catalog
        self._counts = counts
        self._places: dict[str, _Place] = {}
        self._turns: deque[Filling] = deque()
        self._tenure = ""

    def adopt(self, metas: Mapping[str, Fields], nonce: str, tenure: str) -> Change:
        """Compare Redis with the catalog: what differs is to be filled.

        Args:
            metas: by board.
            tenure: the watermark's; a board of another one is served, and filled anew.
        """
        self._tenure = tenure
        change = Change()
        for board in self.catalog:
            wanted = {name.encode(): value.encode() for name, value in meta_of(board).items()}
            meta = dict(metas.get(board.name, {}))
            filled_in = meta.pop(TENURE.encode(), b"").decode(errors="replace")
            if meta != wanted:
                self._fill(board, nonce, change)
                continue
            self._places[board.name] = _Place(board, None)
            if filled_in != tenure:
                self._begin(board, nonce, served=True)
        return change

    def refill(self, name: str, nonce: str, change: Change, *, serve: bool) -> bool:
        """Begin to fill a complete board anew; returns whether it is one.

        Args:
            serve: what stands in its place is served meanwhile.
        """
        place = self._places.get(name)
        if place is None or place.filling is not None:
            return False
        if serve:  # marked, so that it is not forgotten when this agent dies
            change.fields(meta_key(name, WINDOW), {TENURE: NO_TENURE})
            self._begin(place.board, nonce, served=True)
        else:
            self._fill(place.board, nonce, change)
        return True

    def follow(self, rows: Iterable[Row], nonce: str) -> Change:
        """Take over changed definitions and generations: the steps that go before their rows."""
        rows = list(rows)
        self.catalog = self.catalog.with_rows(rows)
        change = Change()
        for name in sorted({row.member.decode(errors="replace") for row in rows}):
            board = self.catalog.find(name)
            place = self._places.get(name)
            if board is None or board.definition is None:
                if place is not None:
                    self._remove(place, change)
            elif place is None or meta_of(place.board) != meta_of(board):
                self._fill(board, nonce, change)
            else:
                place.board = board
                if place.filling is not None:
                    place.filling.board = board
        return change

    def _fill(self, board: Board, nonce: str, change: Change) -> None:
        place = self._places.get(board.name)
        if place is not None:
            self._abandon(place, change)
        change.unlink(meta_key(board.name, WINDOW))
        self._begin(board, nonce, served=False)

    def _begin(self, board: Board, nonce: str, *, served: bool) -> None:
        filling = Filling(board, filling_key(board.name, WINDOW, nonce), served)
        self._places[board.name] = _Place(board, filling)
        self._counts.refills += 1
        self._turns.appendleft(filling)  # a new board is small: it need not wait for big ones

    def _abandon(self, place: _Place, change: Change) -> None:
        if place.filling is not None:
            change.unlink(place.filling.key)
            self._turns.remove(place.filling)

    def _remove(self, place: _Place, change: Change) -> None:
        self._abandon(place, change)
        change.unlink(board_key(place.board.name, WINDOW))
        change.unlink(meta_key(place.board.name, WINDOW))
        del self._places[place.board.name]

    def complete(self, name: str) -> bool:
        """Whether a board stands in Redis as a whole, up to the watermark."""
        place = self._places.get(name)
        return place is not None and place.filling is None

    def served(self, name: str) -> bool:
        """Whether a board's ranks can be read: it is complete, or what was taken over is served."""
        place = self._places.get(name)
        return place is not None and (place.filling is None or place.filling.served)

    @property
    def owing(self) -> bool:
        """Whether a board is served that is not complete up to the watermark."""
        return any(filling.served for filling in self._turns)

    def board(self, name: str) -> Board:
        """A board that has a place."""
        return self._places[name].board

    def names(self) -> list[str]:
        """All boards that have a place."""
        return list(self._places)

    def fillings(self) -> list[Filling]:
        """What is being filled."""
        return list(self._turns)

    def next_turn(self) -> Filling | None:
        """The filling whose turn it is; None where all are ready for their places.

        Boards that are not served go first, each in turn. Those that are go one after the other,
        so that no more than one of them stands in Redis twice.
        """
        for _ in range(len(self._turns)):
            filling = self._turns[0]
            self._turns.rotate(-1)
            if not filling.ready and not filling.served:
                return filling
        served = (filling for filling in self._turns if filling.served and not filling.ready)
        return min(served, key=lambda filling: not filling.after, default=None)

    def put(self, change: Change, members: Iterable[Projected]) -> int:
        """Add the steps that set these members' scores; returns how many there are."""
        by_key: dict[str, list[bytes]] = {}
        count = 0
        for row in members:
            board = self.catalog.board_in(row.space)
            place = None if board is None else self._places.get(board.name)
            if place is None or place.board.space != row.space:
                continue
            filling, pair = place.filling, (row.composite, row.member)
            if filling is None or filling.served:
                by_key.setdefault(board_key(place.board.name, WINDOW), []).extend(pair)
            if filling is not None:
                filling.filled = True
                by_key.setdefault(filling.key, []).extend(pair)
            if place.board.name == COUNTERS:
                change.put(COUNTER_PREFIX + row.member, b"%d" % row.score)
            count += 1
        for key, pairs in by_key.items():
            change.add(key, pairs)
        return count

    def swap(self, filling: Filling, change: Change) -> None:
        """Add the steps that put a filled board in its place, where it is served."""
        name = filling.board.name
        live, meta = board_key(name, WINDOW), meta_key(name, WINDOW)
        # Unlinked first: a rename over a big key would free it within the script.
        change.unlink(live)
        if filling.filled:
            change.move(filling.key, live)
        change.unlink(meta)
        change.fields(meta, meta_of(filling.board) | {TENURE: self._tenure})

    def swapped(self, filling: Filling) -> None:
        """Note that a filled board is in place."""
        self._turns.remove(filling)
        self._places[filling.board.name].filling = None

    def known_keys(self) -> set[bytes]:
        """All keys of boards that belong in Redis now."""
        keys = {board_key(name, WINDOW) for name in self._places}
        keys |= {meta_key(name, WINDOW) for name in self._places}
        keys |= {filling.key for filling in self._turns}
        return {key.encode() for key in keys}
