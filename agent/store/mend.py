"""Mending a file: what peers hold takes the place of damaged cells, and sums are put right."""

from __future__ import annotations

import sqlite3

from agent.crdt.cell import Row, row_of
from agent.crdt.fingerprint import bucket_of, fingerprint, fits
from agent.crdt.slot import TALLIED_KINDS
from agent.crdt.space import is_own
from agent.operation import Correction
from agent.store.adding import add_up

# SQLite has no XOR; of two integers it is what one of them has and not both.
FLIP = "UPDATE buckets SET print = ~(print & ?1) & (print | ?1), cells = cells + ?2 WHERE id = ?3"


_TALLIED = ", ".join(f"x'{kind:02x}'" for kind in sorted(TALLIED_KINDS))
_ANY_TALLIED = (
    "SELECT slot FROM cells WHERE space = ? AND member = ?"  # noqa: S608 -- constants
    f" AND substr(slot, 1, 1) IN ({_TALLIED}) LIMIT 1"
)


def flips_of(row: Row, before: tuple[Row, int] | None) -> int | None:
    """What putting a row in the place of what stands there adds to the sums; None: it must not.

    Args:
        before: the row that stands there, and the fingerprint stored beside it; None where the
            damaged cell was dropped meanwhile, which it stays.
    """
    if before is None:
        return None
    mark = fingerprint(row)
    stands, stored = before
    if fits(stands, stored) and stands.value >= row.value:
        return None  # another write was faster: the cell is whole again, and greater
    # Where the value is right it was the fingerprint that decayed, and the sums do not know of it.
    return 0 if stands.value == row.value else mark ^ stored


def mend_cell(db: sqlite3.Connection, space: int, row: Row) -> bool:
    """Put a row in the place of a cell, as a change of the log; within a transaction.

    Returns whether anything was changed.
    """
    mark = fingerprint(row)
    key = (space, row.member, row.slot)
    found = db.execute(
        "SELECT major, minor, body, inc, seq, print FROM cells"
        " WHERE space = ? AND member = ? AND slot = ?",
        key,
    ).fetchone()
    before = None if found is None else (row_of((*row[:3], *found[:5])), found[5])
    flips = flips_of(row, before)
    if flips is None:
        return False
    db.execute(
        "UPDATE state SET lsn = lsn + 1, log_entries = log_entries + 1,"
        " root = ~(root & ?1) & (root | ?1)",
        (flips,),
    )
    lsn = db.execute("SELECT lsn FROM state").fetchone()[0]
    db.execute(
        "REPLACE INTO cells VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", (space, *row[1:], lsn, mark)
    )
    db.execute("INSERT INTO log VALUES (?, ?, ?, ?)", (lsn, *key))
    db.execute(FLIP, (flips, 0, bucket_of(row.key)))
    if row.slot[0] in TALLIED_KINDS and not is_own(row.space):
        _add_up(db, space, row.member, lsn)
    return True


def correct(db: sqlite3.Connection, ids: dict[bytes, int], correction: Correction) -> None:
    """Put sums right, within a transaction. What they lack is added, so that it may be late.

    Members whose total is added up anew are told to whoever follows the log.
    """
    db.executemany(FLIP, [(*change, bucket) for bucket, change in correction.buckets.items()])
    db.execute(
        "UPDATE state SET cells = cells + ?1, root = ~(root & ?2) & (root | ?2),"
        " facts = facts + ?3",
        (correction.cells, correction.flips, correction.facts),
    )
    for space, member in correction.members:
        if space in ids:
            _tell(db, ids[space], member)


def _tell(db: sqlite3.Connection, space: int, member: bytes) -> None:
    """Add up a member's total anew, and move one of its tallied cells to the end of the log."""
    lsn = db.execute("SELECT lsn + 1 FROM state").fetchone()[0]
    _add_up(db, space, member, lsn)
    slot = db.execute(_ANY_TALLIED, (space, member)).fetchone()
    if slot is None:
        return
    key = (space, member, slot[0])
    db.execute("UPDATE state SET lsn = lsn + 1, log_entries = log_entries + 1")
    db.execute("UPDATE cells SET lsn = ? WHERE space = ? AND member = ? AND slot = ?", (lsn, *key))
    db.execute("INSERT INTO log VALUES (?, ?, ?, ?)", (lsn, *key))


def _add_up(db: sqlite3.Connection, space: int, member: bytes, lsn: int) -> None:
    """Put a member's total right, from all of its cells."""
    db.execute("DELETE FROM totals WHERE space = ? AND member = ?", (space, member))
    total = add_up(db, space, member)
    if total is not None and total.slots > 1:
        db.execute("INSERT INTO totals VALUES (?, ?, ?, ?, ?, ?, ?)", (space, member, *total, lsn))
