"""Which windows have a place in Redis, and the steps that follow from what is known of them.

A window of a board in use has a place while it is open, and as long as it is kept where it has
entries; a sliding one always. Places begin and end by the board's time, with definitions, and with
the marks that say that windows are collected.

A window of which no cell was stored when this agent began to follow gets all of its members through
the log: its place is complete from the start, with a meta and no set. All others are filled.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from agent.boards.catalog import Board, Placed
from agent.boards.definition import COUNTERS
from agent.boards.windows import is_sliding
from agent.crdt.cell import Row
from agent.crdt.space import decode_space
from agent.projection.agenda import AHEAD_MS, Agenda, closes_ms, next_look_ms, open_windows
from agent.projection.keys import (
    AS_OF,
    COUNTER_PREFIX,
    NO_TENURE,
    TENURE,
    Fields,
    as_of_in,
    as_of_text,
    fits,
    meta_of,
    places_in,
    texts,
)
from agent.projection.knowledge import Knowledge
from agent.projection.place import Clock, Included, Place, PlaceId
from agent.projection.refill import Turns
from agent.projection.scripts import Change
from agent.projection.source import Projected
from agent.projection.status import Counts

LOOK_BOARDS_MAX = 100  # in one turn, where their time has come: a few milliseconds


class Places:
    """The place of each window. What it knows is of the watermark's lsn."""

    def __init__(self, knowledge: Knowledge, counts: Counts, clock: Clock) -> None:
        self.knowledge = knowledge
        self.turns = Turns(counts, clock)
        self.dirty: dict[PlaceId, None] = {}
        self._clock = clock
        self._boards: dict[str, dict[str, Place]] = {}
        self._by_space: dict[bytes, Place] = {}
        self._agenda: Agenda[str] = Agenda()

    # --- which there are --------------------------------------------------------------------

    def find(self, place: PlaceId) -> Place | None:
        """A window's place, if it has one."""
        return self._boards.get(place[0], {}).get(place[1])

    def uses(self, board: str) -> bool:
        """Whether a board is in use."""
        found = self.knowledge.catalog.find(board)
        return found is not None and found.definition is not None

    def of(self, board: str) -> list[Place]:
        """The places of a board; of all boards where the name is empty."""
        if board:
            return list(self._boards.get(board, {}).values())
        return [place for its in self._boards.values() for place in its.values()]

    def ids(self) -> list[PlaceId]:
        """All windows that have a place."""
        return [(name, window) for name, its in self._boards.items() for window in its]

    def expect(self, spaces: Iterable[bytes]) -> None:
        """Make all places that there should be; `adopt` compares them with what Redis holds.

        Args:
            spaces: all that hold cells.
        """
        by_board: dict[str, list[bytes]] = {}
        for space in spaces:
            placed = self.knowledge.catalog.placed(space)
            if placed is not None:
                by_board.setdefault(placed.board.name, []).append(space)
        for board in self.knowledge.catalog:
            wanted = self._wanted(board, by_board.get(board.name, ()))
            for placed, stored in wanted.values():
                self._enter(Place(placed, stored=stored))
            self._schedule(board)

    def _wanted(self, board: Board, spaces: Iterable[bytes]) -> dict[str, tuple[Placed, bool]]:
        """The windows of a board that should have a place, each with whether cells of it exist."""
        now_ms = self._clock.now_ms()
        found: dict[str, tuple[Placed, bool]] = {}
        for space in spaces:
            placed = self.knowledge.placed(space, now_ms)
            if placed is not None and placed.board.name == board.name:
                found[placed.window.id] = (placed, True)
        for counted in board.counted:
            if counted.shown:
                for window in open_windows(counted.series, now_ms + AHEAD_MS):
                    if window.id not in found:
                        found[window.id] = (board.place(window), False)
        for sliding in board.slidings:
            found[sliding.name] = (board.place(sliding.window(now_ms)), True)
        return found

    def _enter(self, place: Place) -> None:
        name, window = place.id
        self._boards.setdefault(name, {})[window] = place
        if not is_sliding(place.placed.window.name):
            self._by_space[place.placed.space] = place

    def _schedule(self, board: Board) -> None:
        its = ((place.placed, place.stored) for place in self.of(board.name))
        self._agenda.put(board.name, next_look_ms(board, its, self._clock.now_ms()))

    def remove(self, place: Place, change: Change) -> None:
        """Add the steps that end a place."""
        name, window = place.id
        self.turns.abandon(place, change)
        change.unlink(place.key)
        change.unlink(place.meta)
        del self._boards[name][window]
        if not self._boards[name]:
            del self._boards[name]
        if self._by_space.get(place.placed.space) is place:
            del self._by_space[place.placed.space]
        self.dirty.pop(place.id, None)

    # --- what Redis holds of them -----------------------------------------------------------

    def adopt(
        self,
        metas: Mapping[PlaceId, Fields],
        nonce: str,
        tenure: str,
        included: Mapping[str, int | None],
    ) -> Iterator[Change]:
        """Compare Redis with the expected places: what differs is to be filled.

        Args:
            metas: by place.
            tenure: the watermark's; a window of another one is served, and filled anew.
            included: the watermark's `as_of`.
        """
        self.turns.tenure = tenure
        change = Change()
        for place in self.of(""):
            meta = texts(metas.get(place.id, {}))
            if not fits(meta, place.placed):
                self._begin(place, nonce, change)
            else:
                self._go_on(place, meta, nonce, included, change)
            if change.full:
                yield change
                change = Change()
        yield change

    def _go_on(
        self,
        place: Place,
        meta: Mapping[str, str],
        nonce: str,
        included: Mapping[str, int | None],
        change: Change,
    ) -> None:
        """Serve what stands in Redis, and fill it anew where it is owed that."""
        self.turns.expire(place, change)
        ours = meta.get(TENURE) == self.turns.tenure
        if place.derivation is None:
            if not ours:
                self.turns.begin(place, nonce, served=True)
            return
        as_of = as_of_in(meta[AS_OF]) if AS_OF in meta else None
        if not ours and as_of is None:
            as_of = dict(included)
            change.fields(place.meta, {AS_OF: as_of_text(as_of)})
        if as_of is not None:
            place.included = Included({}, -1, as_of)
        wanted = meta_of(place.placed)
        moved = any(meta.get(name) != value for name, value in wanted.items())
        if as_of is not None or moved or place.half_life_ms is not None:
            self.to_compute(place)

    def to_compute(self, place: Place, *, at_once: bool = True) -> None:
        """Have a window that is computed computed again: soon, or when it is its time."""
        place.dirty = True
        if at_once:
            place.begun_s = float("-inf")
        self.dirty[place.id] = None

    def _begin(self, place: Place, nonce: str, change: Change) -> None:
        """Begin a place that Redis does not hold, or not as it should be."""
        self.turns.abandon(place, change)
        change.unlink(place.meta)
        if place.stored or place.placed.board.name == COUNTERS:
            self.turns.begin(place, nonce, served=False)
            return
        change.unlink(place.key)
        change.fields(place.meta, meta_of(place.placed) | {TENURE: self.turns.tenure})
        self.turns.expire(place, change)

    def refill(self, place: Place, nonce: str, change: Change, *, serve: bool) -> bool:
        """Begin to fill a complete window anew; returns whether it is one.

        Args:
            serve: what stands in its place is served meanwhile.
        """
        if place.filling is not None:
            return False
        if not serve:
            change.unlink(place.meta)
            self.turns.begin(place, nonce, served=False)
        elif place.derivation is not None:
            self.to_compute(place)
        else:  # marked, so that it is not forgotten when this agent dies
            change.fields(place.meta, {TENURE: NO_TENURE})
            self.turns.begin(place, nonce, served=True)
        return True

    # --- what changes them ------------------------------------------------------------------

    def follow(
        self, names: Iterable[str], spaces: Mapping[str, list[bytes]], nonce: str, change: Change
    ) -> None:
        """Take over changed boards, as `knowledge` has them now.

        Args:
            spaces: by board, all that hold cells now.
        """
        for name in names:
            board = self.knowledge.catalog.find(name)
            if board is None or board.definition is None:
                for place in self.of(name):
                    self.remove(place, change)
                self._agenda.put(name, None)
                continue
            wanted = self._wanted(board, spaces.get(name, ()))
            for place in self.of(name):
                if place.id[1] not in wanted:
                    self.remove(place, change)
            for placed, stored in wanted.values():
                self._become(placed, stored, nonce, change)
            self._schedule(board)

    def _become(self, placed: Placed, stored: bool, nonce: str, change: Change) -> None:
        """Have a window as its board is defined now."""
        place = self.find((placed.board.name, placed.window.id))
        if place is not None and fits(meta_of(place.placed), placed):
            expired_ms = place.placed.expires_ms
            place.placed = placed
            place.stored = place.stored or stored
            if place.filling is not None:
                place.filling.placed = placed
            if placed.expires_ms != expired_ms:
                self.turns.expire(place, change)
            if place.derivation is not None:
                self.to_compute(place)
            return
        if place is not None:
            self.remove(place, change)
        place = Place(placed, stored=stored)
        self._enter(place)
        self._begin(place, nonce, change)

    def look(self, nonce: str, change: Change) -> bool:
        """Begin and end the places whose time has come; returns whether that was all."""
        now_ms = self._clock.now_ms()
        names = self._agenda.due(now_ms, LOOK_BOARDS_MAX)
        for name in names:
            board = self.knowledge.catalog.find(name)
            if board is None or board.definition is None:
                continue
            for place in self.of(name):
                placed, series = place.placed, place.placed.counted.series
                if is_sliding(placed.window.name):
                    continue
                ends_ms = placed.expires_ms if place.stored else closes_ms(series, placed.window)
                if ends_ms is not None and ends_ms <= now_ms:
                    self.remove(place, change)
            for placed, stored in self._wanted(board, ()).values():
                known = self.find((name, placed.window.id))
                if known is None:
                    self._become(placed, stored, nonce, change)
                elif placed.window != known.placed.window:  # a sliding one moved on
                    known.placed = placed
                    self.to_compute(known)
            self._schedule(board)
        return len(names) < LOOK_BOARDS_MAX

    def collect(self, row: Row, change: Change) -> None:
        """Remove the windows that a mark says are collected."""
        series = decode_space(row.member)
        for place in self.of(series.board) if series is not None and series.board else ():
            counted = place.placed.counted
            if (
                counted.marks == row.member
                and not is_sliding(place.placed.window.name)
                and self.knowledge.marks.collects(place.placed.space)
            ):
                self.remove(place, change)

    def touch(self, spaces: Iterable[bytes], before: Included, change: Change) -> None:
        """Note that cells of these spaces changed: what is computed of them is behind.

        Args:
            before: what all sets include before this change.
        """
        for space in spaces:
            placed = self.knowledge.catalog.placed(space)
            if placed is None:
                continue
            for sliding in placed.board.slidings:
                if sliding.counted.prefix == placed.counted.prefix:
                    place = self.find((placed.board.name, sliding.name))
                    if place is not None:
                        self.fall_behind(place, before, change)
            definition = placed.board.definition
            if definition is not None and definition.rule == "trend":
                place = self._at(space, change)
                if place is not None:
                    self.fall_behind(place, before, change)

    def fall_behind(self, place: Place, before: Included, change: Change) -> None:
        """Note that a window that is computed does not include all any more."""
        self.to_compute(place, at_once=False)
        if place.included is None and place.served:
            place.included = before
            change.fields(place.meta, {AS_OF: as_of_text(before.as_of)})

    def _at(self, space: bytes, change: Change) -> Place | None:
        """The place of a space in which something changed; a new one where it had nothing yet."""
        place = self._by_space.get(space)
        if place is None:
            placed = self.knowledge.placed(space, self._clock.now_ms())
            if placed is None:
                return None
            place = Place(placed, stored=False)
            self._enter(place)
            self._begin(place, "", change)
        if not place.stored:
            place.stored = True
            self._agenda.sooner(place.id[0], place.placed.expires_ms)
        return place

    def put(self, change: Change, members: Iterable[Projected]) -> int:
        """Add the steps that set these members' scores; returns how many there are."""
        sets: dict[str, tuple[Place, list[bytes]]] = {}
        count = 0
        for row in members:
            place = self._at(row.space, change)
            if place is None:
                continue
            name = place.placed.board.name
            composite = row.composite
            if self.knowledge.hides(row.member, name):
                composite = None
            filling = place.filling
            keys = [place.key] if place.served else []
            if filling is not None:
                keys.append(filling.key)
                filling.filled = True
            for key in keys:
                if composite is None:
                    change.remove(key, row.member)
                else:
                    sets.setdefault(key, (place, []))[1].extend((composite, row.member))
            if name == COUNTERS and not self.knowledge.gone(row.member):
                if row.composite is None:
                    change.unlink(COUNTER_PREFIX + row.member)
                else:
                    change.put(COUNTER_PREFIX + row.member, b"%d" % row.score)
            count += 1
        for key, (place, pairs) in sets.items():
            self.turns.add(place, key, pairs, change)
        return count

    def take_out(self, place: Place, member: bytes, change: Change) -> None:
        """Add the steps that take a member out of a window."""
        change.remove(place.key, member)
        if place.filling is not None:
            change.remove(place.filling.key, member)

    def known(self, key: bytes) -> bool:
        """Whether a key of the boards belongs in Redis now."""
        for found in places_in(key):
            place = self.find(found)
            if place is not None:
                keys = {place.key, place.meta}
                if place.filling is not None:
                    keys.add(place.filling.key)
                if key in {name.encode() for name in keys}:
                    return True
        return False
