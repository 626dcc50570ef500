"""The writer's side of the SQLite file: load what a batch touches, make its outcome durable.

Only the writer thread uses this. One outcome is one transaction with `synchronous = FULL`: cells,
log, totals, version vector, cursors, seq, lsn and clock change together or not at all (rules A, Q,
Y).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

from agent.apply import Outcome, State, WorkingSet
from agent.boards.catalog import Catalog
from agent.boards.tally import MemberKey
from agent.crdt import counter
from agent.crdt.cell import Key, Row, row_of
from agent.crdt.counter import Total
from agent.crdt.slot import COUNTER_KINDS, COUNTER_SLOTS_BEFORE, COUNTER_SLOTS_FROM
from agent.crdt.space import BOARDS_SPACE, RING_SPACE
from agent.errors import StoreError
from agent.membership import Ring
from agent.store.identity import Identity
from agent.store.schema import open_writer
from agent.store.snapshot import SqliteSnapshot

# The log is pruned while more than half of it is superseded, and then this many entries are
# looked at for each one appended: it never outgrows twice the cells.
PRUNE_FLOOR_ENTRIES = 10_000
PRUNE_LOOK_PER_APPEND = 4
PRUNE_LOOK_MIN = 2_000

_BLOCKS = (256, 16, 1)  # how many keys one statement looks up: few statements, all cached


def _lookup(columns: str, table: str, on: str, key: str, keys: int) -> str:
    values = ", ".join([key] * keys)
    names = ("s", "m", "l")[: key.count("?")]
    wanted = f"WITH wanted({', '.join(names)}) AS (VALUES {values})"
    return f"{wanted} SELECT {columns} FROM wanted CROSS JOIN {table} AS t ON {on}"  # noqa: S608 -- constants


_CELLS = {
    n: _lookup(
        "t.space, t.member, t.slot, t.major, t.minor, t.body, t.inc, t.seq",
        "cells",
        "t.space = s AND t.member = m AND t.slot = l",
        "(?, ?, ?)",
        n,
    )
    for n in _BLOCKS
}
_TOTALS = {
    n: _lookup(
        "t.space, t.member, t.score, t.reached_ms, t.rose, t.slots",
        "totals",
        "t.space = s AND t.member = m",
        "(?, ?)",
        n,
    )
    for n in _BLOCKS
}
_SINGLES = {
    n: _lookup(
        "t.space, t.member, t.slot, t.major, t.minor, t.body, t.inc, t.seq",
        "cells",
        "t.space = s AND t.member = m AND t.slot >= x'"
        f"{COUNTER_SLOTS_FROM.hex()}' AND t.slot < x'{COUNTER_SLOTS_BEFORE.hex()}'",
        "(?, ?)",
        n,
    )
    for n in _BLOCKS
}


class SqliteStore:
    """An agent's SQLite file, opened for writing. Created with its identity if it is new.

    Raises:
        StoreError: the file is foreign, newer, damaged, or belongs to another agent or ring.
    """

    def __init__(self, path: Path, identity: Identity) -> None:
        self._db = open_writer(path)
        self.path = path
        self.uncertain = False
        self._pruned_to = 0
        try:
            self.boot_number = self._begin_boot(identity)
            self._remember()
        except StoreError:
            self._db.close()
            raise

    def _begin_boot(self, identity: Identity) -> int:
        """Count this start, before anything else is written (ID5). Returns its number."""
        self._db.execute("BEGIN IMMEDIATE")
        self._db.execute(
            "INSERT OR IGNORE INTO state VALUES (1, ?, ?, ?, ?, ?, 0, 0, 0, 0, 0, 0)",
            (identity.ring, identity.agent, identity.region, identity.inc, identity.log),
        )
        row = self._db.execute("SELECT ring, agent, region, boot FROM state").fetchone()
        wanted = (identity.ring, identity.agent, identity.region)
        if row[:3] != wanted:
            self._db.execute("ROLLBACK")
            raise StoreError(
                f"{self.path}: belongs to ring {row[0]!r}, agent {row[1]!r}, region {row[2]!r},"
                f" not to {wanted}; give each agent a data_dir of its own"
            )
        self._db.execute("UPDATE state SET boot = boot + 1")
        self._db.execute("COMMIT")
        return int(row[3]) + 1

    def _remember(self) -> None:
        """Read what this object keeps of the file: anew after a COMMIT of unknown outcome."""
        self._spaces = dict(self._db.execute("SELECT id, space FROM spaces"))
        self._ids = {space: key for key, space in self._spaces.items()}
        counts = self._db.execute("SELECT cells, log_entries FROM state").fetchone()
        self._cells, self._log_entries = int(counts[0]), int(counts[1])

    def state(self) -> State:
        """The state as it is on disk. `times` start empty: they are learned again."""
        self._remember()
        snapshot = SqliteSnapshot(self._db)
        row = self._db.execute("SELECT agent, inc, log, seq, lsn, hlc FROM state").fetchone()
        return State(
            agent=row[0],
            inc=row[1],
            log=row[2],
            seq=row[3],
            lsn=row[4],
            hlc=row[5],
            vv=snapshot.vv,
            times={},
            cursors=snapshot.cursors,
            catalog=Catalog().with_rows(snapshot.rows_in(BOARDS_SPACE)),
            ring=Ring().with_rows(snapshot.rows_in(RING_SPACE)),
        )

    @property
    def cells(self) -> int:
        """How many cells are stored."""
        return self._cells

    def load(self, cells: Iterable[Key], members: Iterable[MemberKey]) -> WorkingSet:
        """The wanted cells and totals, in a few statements; None for those never written."""
        found_cells: dict[Key, Row | None] = dict.fromkeys(cells)
        found_totals: dict[MemberKey, Total | None] = dict.fromkeys(members)
        ids, spaces = self._ids, self._spaces
        pairs = [(ids[s], m) for s, m in found_totals if s in ids]
        for space, member, score, reached_ms, rose, slots in self._look_up(_TOTALS, pairs):
            found_totals[spaces[space], member] = Total(score, reached_ms, bool(rose), slots)
        # A member without a row in totals has one counter slot at the most: its total is what
        # that holds, and its other counter slots need no look-up.
        singles = [pair for pair in pairs if found_totals[spaces[pair[0]], pair[1]] is None]
        for space, member, slot, *rest in self._look_up(_SINGLES, singles):
            row = row_of((spaces[space], member, slot, *rest))
            found_totals[row[:2]] = counter.contribution(slot[0], row[3:6])
            if row[:3] in found_cells:
                found_cells[row[:3]] = row
        single = set(singles)
        keys = [
            (ids[s], m, slot)
            for s, m, slot in found_cells
            if s in ids and not (slot[0] in COUNTER_KINDS and (ids[s], m) in single)
        ]
        for space, member, slot, *rest in self._look_up(_CELLS, keys):
            row = row_of((spaces[space], member, slot, *rest))
            found_cells[row[:3]] = row
        return WorkingSet(found_cells, found_totals)

    def _look_up(
        self, statements: dict[int, str], keys: Sequence[tuple[int | bytes, ...]]
    ) -> list[tuple[Any, ...]]:
        """Run a look-up over all keys, in blocks."""
        found: list[tuple[Any, ...]] = []
        rest = iter(keys)
        left = len(keys)
        for block in _BLOCKS:
            while left >= block:
                left -= block
                values = [part for key in islice(rest, block) for part in key]
                found += self._db.execute(statements[block], values).fetchall()
        return found

    def commit(self, before: State, outcome: Outcome, new_cells: int) -> None:
        """Make an outcome durable, as one transaction.

        Args:
            before: the state that the outcome was applied to.
            new_cells: how many of the outcome's rows are cells that did not exist before.

        Raises:
            sqlite3.Error: nothing was changed, unless COMMIT itself failed (`self.uncertain`).
        """
        self.uncertain = False
        known = len(self._spaces)
        log_entries, pruned_to = self._log_entries, self._pruned_to
        try:
            self._db.execute("BEGIN IMMEDIATE")
            self._write(before, outcome, new_cells)
            self.uncertain = True
            self._db.execute("COMMIT")
        except BaseException:  # whatever ended the transaction, the counts go back with it
            self._log_entries, self._pruned_to = log_entries, pruned_to
            for key in [key for key in self._spaces if key > known]:
                del self._ids[self._spaces.pop(key)]
            with suppress(sqlite3.Error):
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                    self.uncertain = False
            raise
        self.uncertain = False
        self._cells += new_cells

    def _write(self, before: State, outcome: Outcome, new_cells: int) -> None:
        db, state = self._db, outcome.state
        rows, first = outcome.rows, before.lsn + 1
        ids = [self._id(row.space) for row in rows]
        db.executemany(
            "REPLACE INTO cells VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            [(ids[i], *row[1:], first + i) for i, row in enumerate(rows)],
        )
        db.executemany(
            "INSERT INTO log VALUES (?, ?, ?, ?)",
            [(first + i, ids[i], row[1], row[2]) for i, row in enumerate(rows)],
        )
        db.executemany(
            "REPLACE INTO totals VALUES (?, ?, ?, ?, ?, ?, ?)",
            [
                (self._id(space), member, *total, state.lsn)
                for (space, member), total in outcome.totals.items()
                if total.slots > 1
            ],
        )
        if state.vv is not before.vv:
            db.executemany("REPLACE INTO vv VALUES (?, ?)", state.vv.items() - before.vv.items())
        if state.cursors is not before.cursors:
            moved = state.cursors.items() - before.cursors.items()
            db.executemany(
                "REPLACE INTO cursors VALUES (?, ?, ?)", [(name, *at) for name, at in moved]
            )
        self._log_entries += len(rows)
        if self._log_entries - self._cells - new_cells > max(PRUNE_FLOOR_ENTRIES, self._cells):
            self._prune(max(PRUNE_LOOK_MIN, PRUNE_LOOK_PER_APPEND * len(rows)))
        db.execute(
            "UPDATE state SET inc = ?, log = ?, seq = ?, lsn = ?, hlc = ?, cells = ?,"
            " log_entries = ?",
            (
                state.inc,
                state.log,
                state.seq,
                state.lsn,
                state.hlc,
                self._cells + new_cells,
                self._log_entries,
            ),
        )

    def _id(self, space: bytes) -> int:
        known = self._ids.get(space)
        if known is None:
            known = len(self._ids) + 1
            self._db.execute("INSERT INTO spaces VALUES (?, ?)", (known, space))
            self._ids[space] = known
            self._spaces[known] = space
        return known

    def _prune(self, look: int) -> None:
        """Look at the next `look` log entries and delete the superseded ones."""
        looked = self._db.execute(
            "SELECT l.lsn, c.lsn IS NULL FROM"
            " (SELECT * FROM log WHERE lsn > ? ORDER BY lsn LIMIT ?) AS l LEFT JOIN cells AS c"
            " ON c.space = l.space AND c.member = l.member AND c.slot = l.slot AND c.lsn = l.lsn",
            (self._pruned_to, look),
        ).fetchall()
        superseded = [(lsn,) for lsn, gone in looked if gone]
        self._db.executemany("DELETE FROM log WHERE lsn = ?", superseded)
        self._log_entries -= len(superseded)
        self._pruned_to = max(lsn for lsn, _ in looked) if len(looked) == look else 0

    def close(self) -> None:
        """Close the file; the WAL is checkpointed into it."""
        self._db.close()
