"""Standings of a window: read from one snapshot, summed, put in order, and compared with a final.

What is larger than memory may be is ordered in a private temporary database of SQLite's, which
spills to disk by itself. Everything here runs on a reader's thread; `pace` is called between pages,
so that a large window leaves the other threads their turns.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from typing import NamedTuple, Protocol

from agent.boards.catalog import Placed
from agent.boards.final_rows import (
    SUM_MODULUS,
    FinalHash,
    FinalRow,
    ranked_rows,
    standing_digest,
    tie_of,
)
from agent.boards.standing import Standing, standing_of, standing_of_total
from agent.crdt.cell import Value
from agent.crdt.total import Total

PAGE_CELLS = 1_000
LATE_SHOWN_MAX = 1_000


class StandingsSnapshot(Protocol):
    """What of a snapshot is read here."""

    newest_lsn: int

    def members_after(
        self, space: bytes, member: bytes, cells_max: int
    ) -> list[tuple[bytes, list[tuple[bytes, Value]]]]:
        """The next members of a space, each with all of its cells."""

    def totals_after(self, space: bytes, member: bytes, limit: int) -> list[tuple[bytes, Total]]:
        """The next rows of `totals` of a space."""


PACE_TIMES = 1.0  # after a page, a rest as long as so many times what it took
PACE_MAX_S = 0.02
Closed = Callable[[bytes], bool]
"""Whether a name was erased, or is not to be shown."""
Paced = Callable[[], None]
"""Called after each page."""


class Pace:
    """Rests between the pages of a scan, on its thread: writes have the other half of the time."""

    def __init__(self) -> None:
        self._since = time.monotonic()

    def __call__(self) -> None:
        """One page is done."""
        took = time.monotonic() - self._since
        time.sleep(min(PACE_MAX_S, PACE_TIMES * took))
        self._since = time.monotonic()


def standings(
    snapshot: StandingsSnapshot, placed: Placed, erased: Closed, pace: Paced
) -> Iterator[tuple[bytes, Standing]]:
    """Every member of a window with its standing, by name; without the erased ones.

    Of no window of a `trend` board: its members have no cells of their own.
    """
    definition, space = placed.board.definition, placed.space
    assert definition is not None
    by_totals = definition.rule in ("distinct", "unique") or definition.results is not None
    after = b""
    while True:
        page: list[tuple[bytes, Standing | None]]
        if by_totals:
            totals = snapshot.totals_after(space, after, PAGE_CELLS)
            page = [(name, standing_of_total(definition, total)) for name, total in totals]
        else:
            cells = snapshot.members_after(space, after, PAGE_CELLS)
            page = [(name, standing_of(definition, slots)) for name, slots in cells]
        if not page:
            return
        for name, standing in page:
            if standing is not None and not erased(name):
                yield name, standing
        after = page[-1][0]
        pace()


class Summed(NamedTuple):
    """The sum over the digests of all standings, as of a snapshot; and how many there are."""

    total: int
    members: int
    lsn: int


def summed(snapshot: StandingsSnapshot, placed: Placed, erased: Closed, pace: Paced) -> Summed:
    """The sum over the digests of a window's standings."""
    total, members = 0, 0
    for name, standing in standings(snapshot, placed, erased, pace):
        total += standing_digest(name, standing)
        members += 1
    return Summed(total % SUM_MODULUS, members, snapshot.newest_lsn)


class Ordered:
    """The standings of a window in their order, best first, on disk until `close`.

    Args:
        hidden: who is banned: not among the rows, but in the sum.
    """

    def __init__(
        self,
        snapshot: StandingsSnapshot,
        placed: Placed,
        erased: Closed,
        hidden: frozenset[bytes],
        pace: Paced,
    ) -> None:
        self._db = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        self._placed = placed
        self.summed = Summed(0, 0, snapshot.newest_lsn)
        try:
            self._fill(snapshot, erased, hidden, pace)
        except BaseException:  # whatever ended it: the database goes with it
            self._db.close()
            raise

    def _fill(
        self, snapshot: StandingsSnapshot, erased: Closed, hidden: frozenset[bytes], pace: Paced
    ) -> None:
        db, scale = self._db, self._placed.scale
        db.execute("CREATE TABLE rows (score INTEGER, tie INTEGER, reached INTEGER, member BLOB)")
        db.execute("BEGIN")
        total, members = 0, 0
        for name, standing in standings(snapshot, self._placed, erased, pace):
            total += standing_digest(name, standing)
            if name not in hidden:
                members += 1
                tie = tie_of(scale, standing)
                row = (standing.score, tie, standing.reached_ms, name)
                db.execute("INSERT INTO rows VALUES (?, ?, ?, ?)", row)
        db.execute("COMMIT")
        self.summed = Summed(total % SUM_MODULUS, members, snapshot.newest_lsn)

    def rows(self, key: bytes) -> Iterator[FinalRow]:
        """The rows of the final."""
        placed = self._placed
        way = "ASC" if placed.scale.low else "DESC"
        found = self._db.execute(
            f"SELECT score, reached, member FROM rows ORDER BY score {way}, tie {way}, member {way}"  # noqa: S608 -- constants
        )
        return ranked_rows(found, placed.space, key, shared=placed.scale.ties == "shared")

    def hash(self, key: bytes, pace: Paced) -> bytes:
        """The hash of the final."""
        found = FinalHash(self._placed.space)
        for row in self.rows(key):
            found.add(row)
            if found.members % PAGE_CELLS == 0:
                pace()
        return found.digest()

    def close(self) -> None:
        """Remove the database."""
        self._db.close()


class Late(NamedTuple):
    """A member whose live score is not the one in the final; None: it is not there."""

    member: bytes
    final_score: int | None
    live_score: int | None
    reached_ms: int | None


class LateList(NamedTuple):
    """What came after a final: how many members differ, and the first of them by name."""

    members: int
    shown: tuple[Late, ...]
    lsn: int


NOTHING_LATE = LateList(0, (), 0)


def differences(
    snapshot: StandingsSnapshot,
    placed: Placed,
    erased: Closed,
    hidden: frozenset[bytes],
    rows: Iterable[FinalRow],
    pace: Paced,
) -> LateList:
    """How the live standings of a window differ from its final.

    Args:
        hidden: who is banned now: told beside the final, not here.
        rows: of the final.
    """
    with closing(sqlite3.connect("", isolation_level=None)) as db:
        db.execute(
            "CREATE TABLE rows (member BLOB PRIMARY KEY, score INTEGER, reached INTEGER)"
            " WITHOUT ROWID"
        )
        db.execute("BEGIN")
        for at, row in enumerate(rows):
            if row.member is not None and not erased(row.member):
                said = (row.member, row.score, row.reached_ms)
                db.execute("INSERT INTO rows VALUES (?, ?, ?)", said)
            if at % PAGE_CELLS == 0:
                pace()
        found: list[Late] = []
        count = 0
        for name, standing in standings(snapshot, placed, erased, pace):
            was = db.execute("SELECT score FROM rows WHERE member = ?", (name,)).fetchone()
            db.execute("DELETE FROM rows WHERE member = ?", (name,))
            score = None if was is None else was[0]
            if score == standing.score or name in hidden:
                continue
            count += 1
            if len(found) < LATE_SHOWN_MAX:
                found.append(Late(name, score, standing.score, standing.reached_ms))
        gone = db.execute("SELECT member, score FROM rows ORDER BY member").fetchall()
        db.execute("COMMIT")
    absent = [Late(name, score, None, None) for name, score in gone if name not in hidden]
    count += len(absent)
    shown = sorted(found + absent)[:LATE_SHOWN_MAX]
    return LateList(count, tuple(shown), snapshot.newest_lsn)
