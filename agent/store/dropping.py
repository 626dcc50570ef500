"""Deleting, within the writer's transaction: cells that cease to exist, what hangs on them, and
entries of the log that lead nowhere.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence

from agent.crdt.space import MARKS_SPACE
from agent.state import Outcome

_WHICH = "space = ? AND member = ? AND slot = ?"
_DELETE_ENTRY = f"DELETE FROM log WHERE lsn = (SELECT lsn FROM cells WHERE {_WHICH})"  # noqa: S608 -- constants
_DELETE_CELL = f"DELETE FROM cells WHERE {_WHICH}"  # noqa: S608 -- constants


def drop_cells(
    db: sqlite3.Connection, ids: Mapping[bytes, int], outcome: Outcome
) -> tuple[int, int]:
    """Delete an outcome's dropped cells, their log entries, and the totals of what has none left.

    A cell that the outcome also writes stays. Returns (cells, log entries) that were deleted.

    Args:
        ids: the spaces that are stored.
    """
    stay = {row[:3] for row in outcome.rows}
    keys = [
        (ids[row.space], row.member, row.slot)
        for row in outcome.dropped
        if row.space in ids and row[:3] not in stay
    ]
    entries = db.executemany(_DELETE_ENTRY, keys).rowcount if keys else 0
    cells = db.executemany(_DELETE_CELL, keys).rowcount if keys else 0
    db.executemany(
        "DELETE FROM totals WHERE space = ? AND member = ?",
        [
            (ids[space], member)
            for (space, member), total in outcome.totals.items()
            if space in ids and (total is None or total.slots <= 1)
        ],
    )
    return cells, entries


def erases(outcome: Outcome) -> bool:
    """Whether cells are dropped that no collected window explains: those of an erased member."""
    marks = outcome.state.marks
    spaces = {row.space for row in outcome.dropped} - {MARKS_SPACE}
    return not all(marks.collects(space) for space in spaces)


def drop_entries(db: sqlite3.Connection, lsns: Sequence[int]) -> int:
    """Delete those of these log entries that are superseded; returns how many."""
    return db.executemany(
        "DELETE FROM log WHERE lsn = ? AND NOT EXISTS (SELECT 1 FROM cells AS c WHERE c.space ="
        " log.space AND c.member = log.member AND c.slot = log.slot AND c.lsn = log.lsn)",
        [(lsn,) for lsn in lsns],
    ).rowcount


def forget_spaces(
    db: sqlite3.Connection, ids: Mapping[bytes, int], outcome: Outcome
) -> list[bytes]:
    """Delete those spaces of an outcome's dropped cells that hold none any more; returns which."""
    forgotten = []
    for space in sorted({row.space for row in outcome.dropped} & ids.keys()):
        key = (ids[space],)
        if db.execute("SELECT 1 FROM cells WHERE space = ? LIMIT 1", key).fetchone() is None:
            db.execute("DELETE FROM totals WHERE space = ?", key)
            db.execute("DELETE FROM spaces WHERE id = ?", key)
            forgotten.append(space)
    return forgotten


def prune(db: sqlite3.Connection, after: int, look: int) -> tuple[int, int]:
    """Look at the next `look` log entries above an lsn, and delete the superseded ones.

    Returns (how many were deleted, the lsn to go on after: 0 at the end of the log).
    """
    looked = db.execute(
        "SELECT l.lsn, c.lsn IS NULL FROM"
        " (SELECT * FROM log WHERE lsn > ? ORDER BY lsn LIMIT ?) AS l LEFT JOIN cells AS c"
        " ON c.space = l.space AND c.member = l.member AND c.slot = l.slot AND c.lsn = l.lsn",
        (after, look),
    ).fetchall()
    superseded = [(lsn,) for lsn, gone in looked if gone]
    db.executemany("DELETE FROM log WHERE lsn = ?", superseded)
    return len(superseded), max(lsn for lsn, _ in looked) if len(looked) == look else 0
