"""Damage to a tallyring.db by hand, as a disk or an operator would do it: past the agent."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any


def edit(path: Path, statement: str, *values: Any) -> int:
    """Run one statement on the file; how many rows it changed."""
    with closing(sqlite3.connect(path, timeout=20.0)) as db, db:
        return db.execute(statement, values).rowcount


def cells(path: Path) -> dict[tuple[bytes, bytes, bytes], tuple[int, int, bytes]]:
    """All cells of a file: what must be equal in all regions."""
    with closing(sqlite3.connect(path, timeout=20.0)) as db:
        found = db.execute(
            "SELECT s.space, c.member, c.slot, c.major, c.minor, c.body"
            " FROM cells AS c JOIN spaces AS s ON s.id = c.space"
        )
        return {row[:3]: row[3:] for row in found}


def sums(path: Path) -> tuple[int, int, list[tuple[int, int]]]:
    """(root, number of cells, buckets) as a file keeps them."""
    with closing(sqlite3.connect(path, timeout=20.0)) as db:
        root, count = db.execute("SELECT root, cells FROM state").fetchone()
        return root, count, db.execute("SELECT print, cells FROM buckets ORDER BY id").fetchall()
