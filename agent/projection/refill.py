"""Which boards Redis holds, which are being filled, and the steps that change one into the other.

A board is filled under a new key, by a scan over its members in SQLite; from the moment its filling
begins, its changes go to the new key. The scan reads states that only get newer, so when it is
through, the new key is complete up to the watermark, and one script puts it in place. While a board
is being filled it has no meta in Redis, and without meta nobody serves it.
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
    after: the last member that the scan has covered.
    scanned: whether the scan is through.
    strings_at: where the search for strings of counters that are no more stands; None at its end.
    """

    board: Board
    key: str
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

    def adopt(self, metas: Mapping[str, Fields], nonce: str) -> Change:
        """Compare Redis with the catalog: what differs is to be filled. `metas` is by board."""
        change = Change()
        for board in self.catalog:
            wanted = {name.encode(): value.encode() for name, value in meta_of(board).items()}
            if metas.get(board.name) == wanted:
                self._places[board.name] = _Place(board, None)
            else:
                self._fill(board, nonce, change)
        return change

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
        filling = Filling(board, filling_key(board.name, WINDOW, nonce))
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
        """Whether a board stands in Redis as a whole."""
        place = self._places.get(name)
        return place is not None and place.filling is None

    def fillings(self) -> list[Filling]:
        """What is being filled."""
        return list(self._turns)

    def next_turn(self) -> Filling | None:
        """The filling whose turn it is, each in turn; None where all are ready for their places."""
        for _ in range(len(self._turns)):
            filling = self._turns[0]
            self._turns.rotate(-1)
            if not filling.ready:
                return filling
        return None

    def put(self, change: Change, members: Iterable[Projected]) -> int:
        """Add the steps that set these members' scores; returns how many there are."""
        by_key: dict[str, list[bytes]] = {}
        count = 0
        for row in members:
            board = self.catalog.board_in(row.space)
            place = None if board is None else self._places.get(board.name)
            if place is None or place.board.space != row.space:
                continue
            filling = place.filling
            if filling is None:
                key = board_key(place.board.name, WINDOW)
            else:
                key = filling.key
                filling.filled = True
            by_key.setdefault(key, []).extend((row.composite, row.member))
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
        change.fields(meta, meta_of(filling.board))

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
