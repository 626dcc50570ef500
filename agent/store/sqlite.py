"""The writer's side of the SQLite file: load what a batch touches, make its outcome durable.

Only the writer thread uses this. One outcome is one transaction with `synchronous = FULL`: cells,
log, totals, version vector, cursors, seq, lsn and clock change together or not at all (rules A, Q,
Y).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from agent.boards.bans import Bans
from agent.boards.catalog import Catalog
from agent.boards.erasures import Erasures
from agent.boards.finals import Discard, Shelve
from agent.boards.marks import Marks
from agent.boards.tally import MemberKey, SlotGroup
from agent.crdt.cell import Key, Row
from agent.crdt.space import (
    BANS_SPACE,
    BOARDS_SPACE,
    ERASED_SPACE,
    MARKS_SPACE,
    RING_SPACE,
)
from agent.errors import StoreError
from agent.exchange import Boot
from agent.membership import Ring
from agent.operation import Correction
from agent.state import Outcome, State, WorkingSet
from agent.store.dropping import drop_cells, drop_entries, erases, forget_spaces, prune
from agent.store.finals import keep_or_discard, note_late, note_lifted
from agent.store.identity import Identity, Life
from agent.store.lookup import load_working_set
from agent.store.mend import FLIP, correct, mend_cell
from agent.store.schema import damage, is_damage, open_writer
from agent.store.snapshot import SqliteSnapshot

# The log is pruned while more than half of it is superseded, and then this many entries are
# looked at for each one appended: it never outgrows twice the cells.
PRUNE_FLOOR_ENTRIES = 10_000
PRUNE_LOOK_PER_APPEND = 4
PRUNE_LOOK_MIN = 2_000
# Entries of the log name members. After cells of an erased one were dropped the whole log is gone
# through as well, from wherever that stands: twice to its end.
SWEEPS = 2


class SqliteStore:
    """An agent's SQLite file, opened for writing. Created with its identity if it is new.

    Nothing is written before `begin` has counted the process that writes.

    Raises:
        StoreError: the file is foreign, newer, damaged, or belongs to another agent or ring.
    """

    def __init__(self, path: Path, identity: Identity) -> None:
        self._db = open_writer(path)
        self.path = path
        self.uncertain = False
        self._pruned_to = 0
        self._next_id = 1
        try:
            self._claim(identity)
            self._remember()
            self._sweeps = SWEEPS if ERASED_SPACE in self._ids else 0  # it may have been cut short
        except StoreError:
            self._db.close()
            raise
        except sqlite3.Error as error:
            self._db.close()
            raise StoreError(f"{path}: {damage(error)}") from error

    def _claim(self, identity: Identity) -> None:
        """Give a new file its identity; check an existing one's."""
        self._db.execute("BEGIN IMMEDIATE")
        self._db.execute(
            "INSERT OR IGNORE INTO state (id, ring, agent, region, inc, log, boot, seq, lsn, hlc,"
            " cells, log_entries, complete) VALUES (1, ?, ?, ?, ?, ?, 0, 0, 0, 0, 0, 0, 0)",
            (identity.ring, identity.agent, identity.region, identity.inc, identity.log),
        )
        row = self._db.execute("SELECT ring, agent, region FROM state").fetchone()
        wanted = (identity.ring, identity.agent, identity.region)
        self._db.execute("ROLLBACK" if row != wanted else "COMMIT")
        if row != wanted:
            raise StoreError(
                f"{self.path}: belongs to ring {row[0]!r}, agent {row[1]!r}, region {row[2]!r},"
                f" not to {wanted}; give each agent a data_dir of its own"
            )

    @property
    def life(self) -> Life:
        """What the file says of the process that last wrote to it."""
        row = self._db.execute(
            "SELECT inc, log, boot, nonce, clean, burnt, seq, lsn FROM state"
        ).fetchone()
        return Life(row[0], row[1], row[2], row[3], bool(row[4]), row[5], row[6], row[7])

    def begin(
        self,
        nonce: int,
        new_log: int | None = None,
        burnt: str = "",
        above: int = 0,
        new_inc: int | None = None,
        incomplete: bool = False,
    ) -> Boot:
        """Count this process, before it writes anything else (ID5).

        Args:
            nonce: this process's random number.
            new_log: a fresh log id, where the old one may not go on (ID7).
            burnt: why the incarnation may not go on; empty if it may.
            above: a number that others have heard of; this process's is greater.
            new_inc: a fresh incarnation, for a file that no process has counted itself in.
            incomplete: the file may lack what this agent has acknowledged.
        """
        self._db.execute("BEGIN IMMEDIATE")
        self._db.execute(
            "UPDATE state SET boot = min(max(boot, ?), 1 << 62) + 1, nonce = ?, clean = 0,"
            " burnt = ?, log = ifnull(?, log), inc = ifnull(?, inc), complete = complete > ?",
            (above, nonce, burnt, new_log, new_inc, incomplete),
        )
        self._db.execute("COMMIT")
        return Boot(self.life.boot, nonce)

    def end(self) -> None:
        """Note that everything was answered and stored; the last thing that a process writes."""
        self._db.execute("UPDATE state SET clean = 1")

    def _remember(self) -> None:
        """Read what this object keeps of the file: anew after a COMMIT of unknown outcome."""
        self._spaces = dict(self._db.execute("SELECT id, space FROM spaces"))
        self._ids = {space: key for key, space in self._spaces.items()}
        self._next_id = max(self._next_id, max(self._spaces, default=0) + 1)
        counts = self._db.execute("SELECT cells, log_entries FROM state").fetchone()
        self._cells, self._log_entries = int(counts[0]), int(counts[1])

    def state(self) -> State:
        """The state as it is on disk. `times` start empty: they are learned again."""
        self._remember()
        snapshot = SqliteSnapshot(self._db)
        row = self._db.execute(
            "SELECT agent, inc, log, seq, lsn, hlc, boot, nonce, burnt, root, complete, facts"
            " FROM state"
        ).fetchone()
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
            boot=Boot(row[6], row[7]),
            burnt=row[8],
            seen=dict(self._db.execute("SELECT inc, seq FROM seen")),
            fences={
                inc: Boot(boot, nonce)
                for inc, boot, nonce in self._db.execute("SELECT inc, boot, nonce FROM fences")
            },
            root=row[9],
            complete=bool(row[10]),
            facts=row[11],
            touched_floor=row[4],
            marks=Marks().with_rows(snapshot.rows_in(MARKS_SPACE)),
            bans=Bans().with_rows(snapshot.rows_in(BANS_SPACE)),
            erased=Erasures().with_rows(snapshot.rows_in(ERASED_SPACE)),
        )

    def damage(self, error: sqlite3.Error) -> StoreError | None:
        """What to say where an error means that the file is damaged for good."""
        return StoreError(f"{self.path}: {damage(error)}") if is_damage(error) else None

    @property
    def cells(self) -> int:
        """How many cells are stored."""
        return self._cells

    def load(
        self,
        cells: Iterable[Key],
        members: Iterable[MemberKey],
        groups: Iterable[SlotGroup] = (),
    ) -> WorkingSet:
        """The wanted cells, totals and groups, in a few statements; None for those never written.

        Args:
            groups: (space, member, prefix) each: all cells of the member whose slots begin with
                the prefix. They are among the working set's cells as well.

        Raises:
            DamagedCell: a cell does not hold what was written to it.
        """
        return load_working_set(self._db, self._ids, self._spaces, cells, members, groups)

    def commit(self, before: State, outcome: Outcome, new_cells: int) -> None:
        """Make an outcome durable, as one transaction.

        Args:
            before: the state that the outcome was applied to.
            new_cells: how many of the outcome's rows are cells that did not exist before.

        Raises:
            sqlite3.Error: nothing was changed, unless COMMIT itself failed (`self.uncertain`).
        """
        self.uncertain = False
        counts = self._cells, self._log_entries, self._pruned_to, self._sweeps
        next_id = self._next_id
        try:
            self._db.execute("BEGIN IMMEDIATE")
            self._write(before, outcome, new_cells)
            forgotten = forget_spaces(self._db, self._ids, outcome) if outcome.dropped else []
            self.uncertain = True
            self._db.execute("COMMIT")
        except BaseException:  # whatever ended the transaction, the counts go back with it
            self._cells, self._log_entries, self._pruned_to, self._sweeps = counts
            for key in range(next_id, self._next_id):
                del self._ids[self._spaces.pop(key)]
            self._next_id = next_id
            with suppress(sqlite3.Error):
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                    self.uncertain = False
            raise
        self.uncertain = False
        for space in forgotten:
            del self._spaces[self._ids.pop(space)]

    def _write(self, before: State, outcome: Outcome, new_cells: int) -> None:
        db, state = self._db, outcome.state
        rows, first = outcome.rows, before.lsn + 1
        gone = (0, 0)
        if outcome.dropped:
            gone = drop_cells(db, self._ids, outcome)
            self._sweeps = SWEEPS if erases(outcome) else self._sweeps
        known = self._ids  # numbered from 1
        ids = [known.get(row.space) or self._id(row.space) for row in rows]
        db.executemany(
            "REPLACE INTO cells VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            [(ids[i], *row[1:], first + i, outcome.prints[i]) for i, row in enumerate(rows)],
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
                if total is not None and total.slots > 1
            ],
        )
        db.executemany(FLIP, [(*change, bucket) for bucket, change in outcome.buckets.items()])
        self._write_knowledge(before, state)
        self._cells += new_cells - gone[0]
        self._log_entries += len(rows) - gone[1]
        if outcome.entries:
            self._log_entries -= drop_entries(db, outcome.entries)
        if outcome.late:
            note_late(db, outcome.late)
        lifted = state.bans.lifted(before.bans, rows)
        if lifted:
            note_lifted(db, lifted)
        superseded = self._log_entries - self._cells
        if superseded > max(PRUNE_FLOOR_ENTRIES, self._cells) or self._sweeps:
            look = max(PRUNE_LOOK_MIN, PRUNE_LOOK_PER_APPEND * len(rows))
            pruned, self._pruned_to = prune(db, self._pruned_to, look)
            self._log_entries -= pruned
            self._sweeps -= self._sweeps > 0 and self._pruned_to == 0
        db.execute(
            "UPDATE state SET inc = ?, log = ?, seq = ?, lsn = ?, hlc = ?, burnt = ?, root = ?,"
            " complete = ?, facts = ?, cells = ?, log_entries = ?",
            (
                state.inc,
                state.log,
                state.seq,
                state.lsn,
                state.hlc,
                state.burnt,
                state.root,
                state.complete,
                state.facts,
                self._cells,
                self._log_entries,
            ),
        )

    def _write_knowledge(self, before: State, state: State) -> None:
        """What is known of other agents and of incarnations, as far as it changed."""
        db = self._db
        if state.vv is not before.vv:
            db.executemany("REPLACE INTO vv VALUES (?, ?)", state.vv.items() - before.vv.items())
        if state.seen is not before.seen:
            db.executemany(
                "REPLACE INTO seen VALUES (?, ?)", state.seen.items() - before.seen.items()
            )
        if state.fences is not before.fences:
            raised = state.fences.items() - before.fences.items()
            db.executemany(
                "REPLACE INTO fences VALUES (?, ?, ?)", [(inc, *boot) for inc, boot in raised]
            )
        if state.cursors is not before.cursors:
            moved = state.cursors.items() - before.cursors.items()
            db.executemany("REPLACE INTO cursors VALUES (?, ?, ?)", [(at, *to) for at, to in moved])
            gone = before.cursors.keys() - state.cursors.keys()
            db.executemany("DELETE FROM cursors WHERE log = ?", [(at,) for at in gone])

    def mend(self, rows: Sequence[Row], correction: Correction | None = None) -> int:
        """Put rows in the place of damaged cells, as changes of the log, and correct sums.

        Totals of their members are added up anew. As one transaction. Returns how many changed.

        Raises:
            sqlite3.Error: nothing was changed, unless COMMIT itself failed (`self.uncertain`).
        """
        ids = self._ids
        try:
            with self._transaction():
                known = [row for row in rows if row.space in ids]
                changed = sum([mend_cell(self._db, ids[row.space], row) for row in known])
                if correction is not None:
                    correct(self._db, ids, correction)
        finally:
            self._remember()
        return changed

    def shelve(self, operation: Shelve | Discard) -> bool:
        """Keep rows of a final, or remove them, as one transaction; whether that changed any.

        Raises:
            sqlite3.Error: nothing was changed, unless COMMIT itself failed (`self.uncertain`).
        """
        with self._transaction():
            return keep_or_discard(self._db, operation)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self.uncertain = False
        try:
            self._db.execute("BEGIN IMMEDIATE")
            yield
            self.uncertain = True
            self._db.execute("COMMIT")
        except BaseException:  # whatever ended the transaction
            with suppress(sqlite3.Error):
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                    self.uncertain = False
            raise
        self.uncertain = False

    def _id(self, space: bytes) -> int:
        known = self._ids.get(space)
        if known is None:
            known = self._next_id
            self._db.execute("INSERT INTO spaces VALUES (?, ?)", (known, space))
            self._next_id += 1
            self._ids[space] = known
            self._spaces[known] = space
        return known

    def close(self) -> None:
        """Close the file; the WAL is checkpointed into it."""
        self._db.close()
