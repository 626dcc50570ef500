"""Mending a file: what peers hold takes the place of damaged cells, and sums are put right."""

from __future__ import annotations

import sqlite3

from agent.crdt.cell import Row, row_of
from agent.crdt.fingerprint import bucket_of, fingerprint, fits
from agent.crdt.slot import COUNTER_SLOTS_BEFORE, COUNTER_SLOTS_FROM
from agent.operation import Correction
from agent.store.snapshot import total_of_member

# SQLite has no XOR; of two integers it is what one of them has and not both.
FLIP = "UPDATE buckets SET print = ~(print & ?1) & (print | ?1), cells = cells + ?2 WHERE id = ?3"


def flips_of(row: Row, before: tuple[Row, int] | None) -> int | None:
    """What putting a row in the place of what stands there adds to the sums; None: it must not.

    Args:
        before: the row that stands there, and the fingerprint stored beside it.
    """
    mark = fingerprint(row)
    if before is None:
        return mark
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
        "UPDATE state SET lsn = lsn + 1, log_entries = log_entries + 1, cells = cells + ?1,"
        " root = ~(root & ?2) & (root | ?2)",
        (int(before is None), flips),
    )
    lsn = db.execute("SELECT lsn FROM state").fetchone()[0]
    db.execute(
        "REPLACE INTO cells VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", (space, *row[1:], lsn, mark)
    )
    db.execute("INSERT INTO log VALUES (?, ?, ?, ?)", (lsn, *key))
    db.execute(FLIP, (flips, int(before is None), bucket_of(row.key)))
    add_up(db, space, row.member, lsn)
    return True


def correct(db: sqlite3.Connection, ids: dict[bytes, int], correction: Correction) -> None:
    """Put sums right, within a transaction. What they lack is added, so that it may be late.

    Members whose total is added up anew are told to whoever follows the log.
    """
    db.executemany(FLIP, [(*change, bucket) for bucket, change in correction.buckets.items()])
    db.execute(
        "UPDATE state SET cells = cells + ?1, root = ~(root & ?2) & (root | ?2)",
        (correction.cells, correction.flips),
    )
    for space, member in correction.members:
        if space in ids:
            _tell(db, ids[space], member)


def _tell(db: sqlite3.Connection, space: int, member: bytes) -> None:
    """Add up a member's total anew, and move one of its counter slots to the end of the log."""
    lsn = db.execute("SELECT lsn + 1 FROM state").fetchone()[0]
    add_up(db, space, member, lsn)
    slot = db.execute(
        "SELECT slot FROM cells WHERE space = ? AND member = ? AND slot >= ? AND slot < ? LIMIT 1",
        (space, member, COUNTER_SLOTS_FROM, COUNTER_SLOTS_BEFORE),
    ).fetchone()
    if slot is None:
        return
    key = (space, member, slot[0])
    db.execute("UPDATE state SET lsn = lsn + 1, log_entries = log_entries + 1")
    db.execute("UPDATE cells SET lsn = ? WHERE space = ? AND member = ? AND slot = ?", (lsn, *key))
    db.execute("INSERT INTO log VALUES (?, ?, ?, ?)", (lsn, *key))


def add_up(db: sqlite3.Connection, space: int, member: bytes, lsn: int) -> None:
    """Add up a member's total anew from its counter slots."""
    db.execute("DELETE FROM totals WHERE space = ? AND member = ?", (space, member))
    total = total_of_member(db, space, member)
    if total is not None and total.slots > 1:
        db.execute("INSERT INTO totals VALUES (?, ?, ?, ?, ?, ?, ?)", (space, member, *total, lsn))
