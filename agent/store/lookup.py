"""Look-ups of many cells, totals and groups by their keys, in a few prepared statements."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from itertools import islice
from typing import Any

from agent.crdt.slot import COUNTER_SLOTS_BEFORE, COUNTER_SLOTS_FROM
from agent.limits import SLOT_BYTES_MAX

_BLOCKS = (256, 16, 1)  # how many keys one statement looks up: few statements, all cached


def _lookup(columns: str, table: str, on: str, key: str, keys: int) -> str:
    values = ", ".join([key] * keys)
    names = ("s", "m", "l", "b")[: key.count("?")]
    wanted = f"WITH wanted({', '.join(names)}) AS (VALUES {values})"
    return f"{wanted} SELECT {columns} FROM wanted CROSS JOIN {table} AS t ON {on}"  # noqa: S608 -- constants


CELLS = {
    n: _lookup(
        "t.space, t.member, t.slot, t.major, t.minor, t.body, t.inc, t.seq, t.print",
        "cells",
        "t.space = s AND t.member = m AND t.slot = l",
        "(?, ?, ?)",
        n,
    )
    for n in _BLOCKS
}
TOTALS = {
    n: _lookup(
        "t.space, t.member, t.score, t.reached_ms, t.rose, t.slots",
        "totals",
        "t.space = s AND t.member = m",
        "(?, ?)",
        n,
    )
    for n in _BLOCKS
}
SINGLES = {
    n: _lookup(
        "t.space, t.member, t.slot, t.major, t.minor, t.body, t.inc, t.seq, t.print",
        "cells",
        "t.space = s AND t.member = m AND t.slot >= x'"
        f"{COUNTER_SLOTS_FROM.hex()}' AND t.slot < x'{COUNTER_SLOTS_BEFORE.hex()}'",
        "(?, ?)",
        n,
    )
    for n in _BLOCKS
}

GROUPS = {
    n: _lookup(
        "t.space, m, l, t.slot, t.major, t.minor, t.body, t.inc, t.seq, t.print",
        "cells",
        "t.space = s AND t.member = m AND t.slot >= l AND t.slot < b",
        "(?, ?, ?, ?)",
        n,
    )
    for n in _BLOCKS
}
"""Few cells of a member each, from one slot up to before another: see `above`."""

_ABOVE_ALL = b"\xff" * (SLOT_BYTES_MAX + 1)


def above(prefix: bytes) -> bytes:
    """The first bytes above all that begin with a prefix; of slots, above all where it is empty."""
    kept = prefix.rstrip(b"\xff")
    return kept[:-1] + bytes([kept[-1] + 1]) if kept else _ABOVE_ALL


def look_up(
    db: sqlite3.Connection,
    statements: dict[int, str],
    keys: Sequence[tuple[int | bytes, ...]],
) -> list[tuple[Any, ...]]:
    """Run one of CELLS, TOTALS, SINGLES and GROUPS over all keys, in blocks; only what is there."""
    found: list[tuple[Any, ...]] = []
    rest = iter(keys)
    left = len(keys)
    for block in _BLOCKS:
        while left >= block:
            left -= block
            values = [part for key in islice(rest, block) for part in key]
            found += db.execute(statements[block], values).fetchall()
    return found
