"""Reading one consistent state of the SQLite file, within one read transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping

from agent.boards.marks import Marks, place_of
from agent.boards.tally import MemberKey
from agent.crdt.cell import Key, Row, Value, row_of
from agent.crdt.fingerprint import Stored
from agent.crdt.slot import (
    COUNTER_KINDS,
    TALLIED_KINDS,
)
from agent.crdt.space import MARKS_SPACE, is_own
from agent.crdt.total import Total, contribution, total_with
from agent.exchange import Reading
from agent.store.adding import add_up, retracted_in
from agent.store.lookup import CELLS, SINGLES, TOTALS, above, checked, look_up

# An entry whose lsn is no longer its cell's is superseded: no cell is joined to it.
_ENTRIES = """
FROM log AS l
LEFT JOIN cells AS c
  ON c.space = l.space AND c.member = l.member AND c.slot = l.slot AND c.lsn = l.lsn
"""
_COLUMNS = "SELECT l.lsn, c.space, c.member, c.slot, c.major, c.minor, c.body, c.inc, c.seq"
_PRINT = ", c.print "
_ABOVE = "WHERE l.lsn > ? ORDER BY l.lsn LIMIT ?"
_LOG = _COLUMNS + _PRINT + _ENTRIES + _ABOVE
_CHANGES = (
    _COLUMNS
    + ", t.score, t.reached_ms, t.rose, t.slots"
    + _ENTRIES
    + "LEFT JOIN totals AS t ON t.space = c.space AND t.member = c.member "
    + _ABOVE
)
_STORED = "SELECT member, slot, major, minor, body, inc, seq, print, lsn FROM cells"
_KEPT = "SELECT member, score, reached_ms, rose, slots FROM totals"
_SLOTS = "SELECT slot, major, minor, body FROM cells WHERE space = ? AND member = ?"
_ROW = "SELECT member, slot, major, minor, body, inc, seq FROM cells"


class _Spaces(dict[int, bytes]):
    """Spaces by their ids, as they are asked for: a part of the log names few of them."""

    def __init__(self, db: sqlite3.Connection) -> None:
        super().__init__()
        self._db = db

    def __missing__(self, key: int) -> bytes:
        found = self._db.execute("SELECT space FROM spaces WHERE id = ?", (key,)).fetchone()
        space: bytes = found[0]
        self[key] = space
        return space


class SqliteSnapshot:
    """One consistent state. Valid inside the transaction that it was made in (rule S)."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._db = self.connection = connection
        self.newest_lsn: int = connection.execute("SELECT lsn FROM state").fetchone()[0]

    @property
    def vv(self) -> Mapping[int, int]:
        """The version vector of this state."""
        return dict(self._db.execute("SELECT inc, seq FROM vv"))

    @property
    def root(self) -> int:
        """The fingerprint of all cells."""
        root: int = self._db.execute("SELECT root FROM state").fetchone()[0]
        return root

    @property
    def cursors(self) -> Mapping[int, Reading]:
        """By log, how far it was read; in the order in which they were begun."""
        found = self._db.execute("SELECT log, agent, lsn FROM cursors ORDER BY rowid")
        return {log: Reading(agent, lsn) for log, agent, lsn in found}

    def read_to(self, log: int) -> int | None:
        """How far another agent's log was read; None where nothing of it was."""
        found = self._db.execute("SELECT lsn FROM cursors WHERE log = ?", (log,)).fetchone()
        return None if found is None else int(found[0])

    def log_after(self, lsn: int, limit: int) -> Iterator[tuple[int, Row | None]]:
        """At most `limit` log entries above `lsn`, in order; None for a superseded one.

        Raises:
            DamagedCell: a cell does not hold what was written to it: it is never sent.
        """
        spaces = _Spaces(self._db)
        for at, space, *rest, mark in self._db.execute(_LOG, (lsn, limit)):
            if space is None:
                yield at, None
            else:
                yield at, checked(row_of((spaces[space], *rest)), mark)

    def changes_after(self, lsn: int, limit: int) -> Iterator[tuple[int, Row | None, Total | None]]:
        """As `log_after`, and for a cell of a tallied kind on a board the total of its member."""
        spaces = _Spaces(self._db)
        for at, space, *rest in self._db.execute(_CHANGES, (lsn, limit)):
            if space is None:
                yield at, None, None
                continue
            row = row_of((spaces[space], *rest[:7]))
            kind = row[2][0]
            if kind not in TALLIED_KINDS or is_own(row[0]):
                yield at, row, None
            elif rest[7] is not None:
                yield at, row, total_with((rest[7], rest[8], bool(rest[9]), rest[10]))
            elif kind in COUNTER_KINDS:  # its only tallied cell: see agent.crdt.total.Total
                yield at, row, contribution(kind, row[3:6])
            else:
                yield at, row, None

    def entries_after(self, lsn: int, limit: int) -> list[tuple[int, bytes, bytes, bytes]]:
        """The next log entries above `lsn` as (lsn, space, member, slot), superseded ones too.

        The space is empty where it is not stored any more.
        """
        found = self._db.execute(
            "SELECT l.lsn, ifnull(s.space, x''), l.member, l.slot FROM log AS l"
            " LEFT JOIN spaces AS s ON s.id = l.space WHERE l.lsn > ? ORDER BY l.lsn LIMIT ?",
            (lsn, limit),
        )
        return found.fetchall()

    def _space_id(self, space: bytes) -> int | None:
        found = self._db.execute("SELECT id FROM spaces WHERE space = ?", (space,)).fetchone()
        return None if found is None else found[0]

    def rows_in(self, space: bytes) -> list[Row]:
        """All rows of one of the agents' own spaces (`~boards`, `~ring`): these are small."""
        found = self._db.execute(f"{_ROW} WHERE space = ?", (self._space_id(space),))
        return [Row(space, *columns) for columns in found]

    def slots_of(self, space: bytes, member: bytes) -> list[tuple[bytes, Value]]:
        """All cells of one member, as (slot, value)."""
        found = self._db.execute(_SLOTS, (self._space_id(space), member))
        return [(slot, (major, minor, body)) for slot, major, minor, body in found]

    def slots_from(
        self, space: bytes, member: bytes, prefix: bytes, after: bytes, limit: int
    ) -> list[tuple[bytes, Value]]:
        """The next of a member's cells whose slots begin with `prefix`, as (slot, value).

        At most `limit`, in the order of their slots; `after` is the last slot of the page before,
        or empty.
        """
        found = self._db.execute(
            f"{_SLOTS} AND slot {'>' if after else '>='} ? AND slot < ? ORDER BY slot LIMIT ?",
            (self._space_id(space), member, after or prefix, above(prefix), limit),
        )
        return [(slot, (major, minor, body)) for slot, major, minor, body in found]

    def rows_of_member(self, space: bytes, member: bytes, limit: int) -> list[Row]:
        """A member's cells with their stamps, at most `limit`, in the order of their slots."""
        found = self._db.execute(
            f"{_ROW} WHERE space = ? AND member = ? ORDER BY slot LIMIT ?",
            (self._space_id(space), member, limit),
        )
        return [row_of((space, *each)) for each in found]

    def retracted(self, space: bytes, member: bytes) -> frozenset[bytes]:
        """Which results of a member are taken back: their slots without the kind."""
        return retracted_in(self._db, self._space_id(space), member)

    def keys_in(self, space: bytes, limit: int) -> list[Key]:
        """The first cells of a space: all cells of some members, at most `limit` of them.

        Of a member that has `limit` cells or more, the first ones. Empty only where the space is.
        """
        found = self._db.execute(
            "SELECT member, slot FROM cells WHERE space = ? ORDER BY member, slot LIMIT ?",
            (self._space_id(space), limit),
        ).fetchall()
        keys: list[Key] = [(space, member, slot) for member, slot in found]
        if len(keys) < limit:
            return keys
        last = keys[-1][1]
        return [key for key in keys if key[1] != last] or keys

    def totals_of(self, members: Iterable[MemberKey]) -> dict[MemberKey, Total]:
        """The totals of those members of boards that have cells of tallied kinds.

        In few statements, however many members: each one costs a thread its turn.
        """
        keys = [key for key in dict.fromkeys(members) if not is_own(key[0])]
        names = self._spaces_named(key[0] for key in keys)
        ids = {space: at for at, space in names.items()}
        pairs = [(ids[space], member) for space, member in keys if space in ids]
        found = {
            (names[space], member): Total(score, reached_ms, bool(rose), slots)
            for space, member, score, reached_ms, rose, slots in look_up(self._db, TOTALS, pairs)
        }
        # Whoever has no row has one counter slot at the most, and its total is what that holds.
        singles = [pair for pair in pairs if (names[pair[0]], pair[1]) not in found]
        for space, member, slot, major, minor, *_ in look_up(self._db, SINGLES, singles):
            found[names[space], member] = contribution(slot[0], (major, minor, b""))
        return found

    def values_of(self, keys: Iterable[Key]) -> dict[Key, Value]:
        """The values of those cells that are there, in few statements."""
        wanted = list(keys)
        names = self._spaces_named(key[0] for key in wanted)
        ids = {space: at for at, space in names.items()}
        cells = [(ids[key[0]], key[1], key[2]) for key in wanted if key[0] in ids]
        return {
            (names[space], member, slot): (major, minor, body)
            for space, member, slot, major, minor, body, *_ in look_up(self._db, CELLS, cells)
        }

    def _spaces_named(self, spaces: Iterable[bytes]) -> dict[int, bytes]:
        """The spaces that are stored, by their numbers."""
        found = {}
        for space in dict.fromkeys(spaces):
            number = self._space_id(space)
            if number is not None:
                found[number] = space
        return found

    def added_up(self, space: bytes, member: bytes, without: bytes) -> Total | None:
        """What all cells of a member but one add up to: not its total as kept."""
        return add_up(self._db, self._space_id(space), member, without)

    def total_checked(self, member: MemberKey) -> Total | None:
        """A member's total; a counter slot that is the total itself is checked before.

        Raises:
            DamagedCell: it does not hold what was written to it.
        """
        total = self.totals_of([member]).get(member)
        if total is not None and total.slots == 1:
            for slot, _ in self.slots_of(*member):
                found = self.cell((*member, slot)) if slot[0] in COUNTER_KINDS else None
                if found is not None:
                    checked(*found)
        return total

    def members_after(
        self, space: bytes, member: bytes, cells_max: int
    ) -> list[tuple[bytes, list[tuple[bytes, Value]]]]:
        """The next members of a space in the order of their names, each with all of its cells.

        About `cells_max` cells are read, and at least one member; an empty list ends the scan.
        """
        found = self._db.execute(
            "SELECT member, slot, major, minor, body FROM cells"
            " WHERE space = ? AND member > ? ORDER BY member, slot LIMIT ?",
            (self._space_id(space), member, cells_max),
        ).fetchall()
        members: list[tuple[bytes, list[tuple[bytes, Value]]]] = []
        name: bytes | None = None
        slots: list[tuple[bytes, Value]] = []
        for owner, slot, major, minor, body in found:  # a plain loop: refills run through it
            if owner != name:
                name, slots = owner, []
                members.append((owner, slots))
            slots.append((slot, (major, minor, body)))
        if len(found) == cells_max:  # the last member may have been cut
            last = members.pop()[0]
            if not members:
                members = [(last, self.slots_of(space, last))]
        return members

    def count_members(self, space: bytes, limit: int) -> int:
        """How many members a space has, counted up to `limit`."""
        found = self._db.execute(
            "SELECT count(*) FROM (SELECT DISTINCT member FROM cells WHERE space = ? LIMIT ?)",
            (self._space_id(space), limit),
        )
        return int(found.fetchone()[0])

    def count_totals(self, space: bytes, without_ms: int) -> int:
        """How many members of a space have a row in `totals` that was reached at another time."""
        found = self._db.execute(
            "SELECT count(*) FROM totals WHERE space = ? AND reached_ms <> ?",
            (self._space_id(space), without_ms),
        )
        return int(found.fetchone()[0])

    def spaces(self) -> list[bytes]:
        """All spaces, in the order of their bytes."""
        return [space for (space,) in self._db.execute("SELECT space FROM spaces ORDER BY space")]

    def spaces_of(self, prefix: bytes) -> list[bytes]:
        """The spaces that begin with `prefix`, in the order of their bytes."""
        found = self._db.execute(
            "SELECT space FROM spaces WHERE space >= ? AND space < ? ORDER BY space",
            (prefix, above(prefix)),
        )
        return [space for (space,) in found]

    def space_after(self, space: bytes) -> bytes | None:
        """The next space in the order of their bytes."""
        found = self._db.execute("SELECT min(space) FROM spaces WHERE space > ?", (space,))
        following: bytes | None = found.fetchone()[0]
        return following

    def collects(self, space: bytes) -> bool:
        """Whether a mark says that a space is collected: what is left of it is being dropped."""
        place = place_of(space)
        if place is None:
            return False
        marks = [
            row_of((MARKS_SPACE, place.series, slot, *value, 0, 0))
            for slot, value in self.slots_of(MARKS_SPACE, place.series)
        ]
        return Marks().with_rows(marks).collects(space)

    def cells_after(
        self, space: bytes, member: bytes, slot: bytes, limit: int
    ) -> list[tuple[Row, int]]:
        """The next cells of a space by (member, slot), each with the fingerprint stored beside it.

        The rows are as they stand: whether they fit their fingerprint is for the caller to see.
        """
        return [cell[:2] for cell in self.stored_after(space, (member, slot), None, limit)]

    def stored_after(
        self, space: bytes, after: tuple[bytes, bytes], upto: tuple[bytes, bytes] | None, limit: int
    ) -> list[Stored]:
        """The cells of a space above one (member, slot), up to another one or to the end.

        At most `limit`, in the order of their keys, as they stand.
        """
        bound = "" if upto is None else " AND (member, slot) <= (?, ?)"
        found = self._db.execute(
            f"{_STORED} WHERE space = ? AND (member, slot) > (?, ?){bound}"
            " ORDER BY member, slot LIMIT ?",
            (self._space_id(space), *after, *(upto or ()), limit),
        )
        return [Stored(row_of((space, *rest)), mark, lsn) for *rest, mark, lsn in found]

    def totals_kept(
        self, space: bytes, first: bytes, before: bytes | None
    ) -> list[tuple[bytes, Total]]:
        """The rows of `totals` of the members from one on, up to before another or to the end."""
        bound = "" if before is None else " AND member < ?"
        found = self._db.execute(
            f"{_KEPT} WHERE space = ? AND member >= ?{bound} ORDER BY member",
            (self._space_id(space), first, *(() if before is None else (before,))),
        )
        return [(name, Total(score, at, bool(rose), n)) for name, score, at, rose, n in found]

    def totals_after(self, space: bytes, member: bytes, limit: int) -> list[tuple[bytes, Total]]:
        """The next rows of `totals` of a space in the order of their members' names.

        Of counters not every member has one: see agent.crdt.total.Total.
        """
        found = self._db.execute(
            f"{_KEPT} WHERE space = ? AND member > ? ORDER BY member LIMIT ?",
            (self._space_id(space), member, limit),
        )
        return [(name, Total(score, at, bool(rose), n)) for name, score, at, rose, n in found]

    @property
    def facts(self) -> int:
        """How many facts there are, as kept with each change."""
        facts: int = self._db.execute("SELECT facts FROM state").fetchone()[0]
        return facts

    @property
    def cells_kept(self) -> int:
        """How many cells there are, as kept with each change."""
        cells: int = self._db.execute("SELECT cells FROM state").fetchone()[0]
        return cells

    def cell(self, key: Key) -> tuple[Row, int] | None:
        """One cell as it stands, with the fingerprint stored beside it; None where it is not."""
        found = self._db.execute(
            "SELECT major, minor, body, inc, seq, print FROM cells"
            " WHERE space = ? AND member = ? AND slot = ?",
            (self._space_id(key[0]), *key[1:]),
        ).fetchone()
        return None if found is None else (row_of((*key, *found[:5])), found[5])

    def buckets(self) -> list[tuple[int, int]]:
        """(fingerprint, cells) of every bucket, as kept with each change."""
        return list(self._db.execute("SELECT print, cells FROM buckets ORDER BY id"))
