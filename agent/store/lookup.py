"""Look-ups of many cells, totals and groups by their keys, in a few prepared statements."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from agent.boards.tally import MemberKey, SlotGroup
from agent.crdt.cell import Key, Row, row_of
from agent.crdt.fingerprint import fits
from agent.crdt.slot import COUNTER_KINDS, COUNTER_SLOTS_BEFORE, COUNTER_SLOTS_FROM
from agent.crdt.total import Total, contribution
from agent.errors import DamagedCell
from agent.limits import SLOT_BYTES_MAX
from agent.state import WorkingSet

# How many keys one statement looks up: few statements, all cached. What is left over at the end
# goes in one, too, filled up with keys that nobody has: a statement costs a thread its turn.
_BLOCKS = (1, 4, 16, 64, 256)
_NOBODYS = (-1, b"", b"", b"")


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
    for start in range(0, len(keys), _BLOCKS[-1]):
        part = keys[start : start + _BLOCKS[-1]]
        block = next(size for size in _BLOCKS if size >= len(part))
        values = [value for key in part for value in key]
        values += [*_NOBODYS[: len(part[0])]] * (block - len(part))
        found += db.execute(statements[block], values).fetchall()
    return found


def load_working_set(
    db: sqlite3.Connection,
    ids: Mapping[bytes, int],
    spaces: Mapping[int, bytes],
    cells: Iterable[Key],
    members: Iterable[MemberKey],
    groups: Iterable[SlotGroup],
) -> WorkingSet:
    """The wanted cells, totals and groups; None for those never written.

    Args:
        ids, spaces: the numbers of spaces, and the reverse.

    Raises:
        DamagedCell: a cell does not hold what was written to it.
    """
    found_cells: dict[Key, Row | None] = dict.fromkeys(cells)
    found_totals: dict[MemberKey, Total | None] = dict.fromkeys(members)
    prints: dict[Key, int] = {}
    pairs = [(ids[s], m) for s, m in found_totals if s in ids]
    for space, member, score, reached_ms, rose, slots in look_up(db, TOTALS, pairs):
        if not type(score) is type(reached_ms) is type(slots) is int:  # SQLite takes anything
            raise DamagedCell((spaces[space], member, b""))
        found_totals[spaces[space], member] = Total(score, reached_ms, bool(rose), slots)
    # A member without a row in totals has one counter slot at the most, and nothing else that
    # is tallied: its total is what that holds, and its other ones need no look-up.
    singles = [pair for pair in pairs if found_totals[spaces[pair[0]], pair[1]] is None]
    for space, member, slot, *rest, mark in look_up(db, SINGLES, singles):
        row = checked(row_of((spaces[space], member, slot, *rest)), mark)
        found_totals[row[:2]] = contribution(slot[0], row[3:6])
        if row[:3] in found_cells:
            found_cells[row[:3]] = row
            prints[row[:3]] = mark
    single = set(singles)
    keys = [
        (ids[s], m, slot)
        for s, m, slot in found_cells
        if s in ids and not (slot[0] in COUNTER_KINDS and (ids[s], m) in single)
    ]
    for space, member, slot, *rest, mark in look_up(db, CELLS, keys):
        row = checked(row_of((spaces[space], member, slot, *rest)), mark)
        found_cells[row[:3]] = row
        prints[row[:3]] = mark
    found_groups: dict[SlotGroup, tuple[Row, ...]] = dict.fromkeys(groups, ())
    rows_of: dict[SlotGroup, list[Row]] = {}
    wanted = [(ids[s], m, first, above(first)) for s, m, first in found_groups if s in ids]
    wanted.sort()  # neighbours share pages: they are many, and few of their pages are cached
    for space, member, first, slot, *rest, mark in look_up(db, GROUPS, wanted):
        row = checked(row_of((spaces[space], member, slot, *rest)), mark)
        rows_of.setdefault((row.space, member, first), []).append(row)
        found_cells[row[:3]] = row
        prints[row[:3]] = mark
    for group, rows in rows_of.items():
        found_groups[group] = tuple(sorted(rows))
    return WorkingSet(found_cells, found_totals, prints, found_groups)


def checked(row: Row, mark: int) -> Row:
    """The row, if it fits the fingerprint that is stored beside it.

    Raises:
        DamagedCell: it does not.
    """
    if not fits(row, mark):
        raise DamagedCell(row.key)
    return row
