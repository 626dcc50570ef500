"""The writer's side of the SQLite file: load what a batch touches, make its outcome durable.

Only the writer thread uses this. One outcome is one transaction with `synchronous = FULL`: cells,
log, totals, version vector, cursors, seq, lsn and clock change together or not at all (rules A, Q,
Y).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from agent.boards.catalog import Catalog
from agent.boards.tally import MemberKey
from agent.crdt import counter
from agent.crdt.cell import Key, Row, row_of
from agent.crdt.counter import Total
from agent.crdt.slot import COUNTER_KINDS
from agent.crdt.space import BOARDS_SPACE, RING_SPACE
from agent.errors import DamagedCell, StoreError
from agent.exchange import Boot
from agent.membership import Ring
from agent.operation import Correction
from agent.state import Outcome, State, WorkingSet
from agent.store.identity import Identity, Life
from agent.store.lookup import CELLS, SINGLES, TOTALS, look_up
from agent.store.mend import FLIP, correct, mend_cell
from agent.store.schema import damage, is_damage, open_writer
from agent.store.snapshot import SqliteSnapshot, checked

# The log is pruned while more than half of it is superseded, and then this many entries are
# looked at for each one appended: it never outgrows twice the cells.
PRUNE_FLOOR_ENTRIES = 10_000
PRUNE_LOOK_PER_APPEND = 4
PRUNE_LOOK_MIN = 2_000


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
        try:
            self._claim(identity)
            self._remember()
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
        counts = self._db.execute("SELECT cells, log_entries FROM state").fetchone()
        self._cells, self._log_entries = int(counts[0]), int(counts[1])

    def state(self) -> State:
        """The state as it is on disk. `times` start empty: they are learned again."""
        self._remember()
        snapshot = SqliteSnapshot(self._db)
        row = self._db.execute(
            "SELECT agent, inc, log, seq, lsn, hlc, boot, nonce, burnt, root, complete FROM state"
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
        )

    def damage(self, error: sqlite3.Error) -> StoreError | None:
        """What to say where an error means that the file is damaged for good."""
        return StoreError(f"{self.path}: {damage(error)}") if is_damage(error) else None

    @property
    def cells(self) -> int:
        """How many cells are stored."""
        return self._cells

    def load(self, cells: Iterable[Key], members: Iterable[MemberKey]) -> WorkingSet:
        """The wanted cells and totals, in a few statements; None for those never written.

        Raises:
            DamagedCell: a cell does not hold what was written to it.
        """
        found_cells: dict[Key, Row | None] = dict.fromkeys(cells)
        found_totals: dict[MemberKey, Total | None] = dict.fromkeys(members)
        prints: dict[Key, int] = {}
        ids, spaces = self._ids, self._spaces
        pairs = [(ids[s], m) for s, m in found_totals if s in ids]
        for space, member, score, reached_ms, rose, slots in look_up(self._db, TOTALS, pairs):
            if not type(score) is type(reached_ms) is type(slots) is int:  # SQLite takes anything
                raise DamagedCell((spaces[space], member, b""))
            found_totals[spaces[space], member] = Total(score, reached_ms, bool(rose), slots)
        # A member without a row in totals has one counter slot at the most: its total is what
        # that holds, and its other counter slots need no look-up.
        singles = [pair for pair in pairs if found_totals[spaces[pair[0]], pair[1]] is None]
        for space, member, slot, *rest, mark in look_up(self._db, SINGLES, singles):
            row = checked(row_of((spaces[space], member, slot, *rest)), mark)
            found_totals[row[:2]] = counter.contribution(slot[0], row[3:6])
            if row[:3] in found_cells:
                found_cells[row[:3]] = row
                prints[row[:3]] = mark
        single = set(singles)
        keys = [
            (ids[s], m, slot)
            for s, m, slot in found_cells
            if s in ids and not (slot[0] in COUNTER_KINDS and (ids[s], m) in single)
        ]
        for space, member, slot, *rest, mark in look_up(self._db, CELLS, keys):
            row = checked(row_of((spaces[space], member, slot, *rest)), mark)
            found_cells[row[:3]] = row
            prints[row[:3]] = mark
        return WorkingSet(found_cells, found_totals, prints)

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
                if total.slots > 1
            ],
        )
        db.executemany(FLIP, [(*change, bucket) for bucket, change in outcome.buckets.items()])
        self._write_knowledge(before, state)
        self._log_entries += len(rows)
        if self._log_entries - self._cells - new_cells > max(PRUNE_FLOOR_ENTRIES, self._cells):
            self._prune(max(PRUNE_LOOK_MIN, PRUNE_LOOK_PER_APPEND * len(rows)))
        db.execute(
            "UPDATE state SET inc = ?, log = ?, seq = ?, lsn = ?, hlc = ?, burnt = ?, root = ?,"
            " complete = ?, cells = ?, log_entries = ?",
            (
                state.inc,
                state.log,
                state.seq,
                state.lsn,
                state.hlc,
                state.burnt,
                state.root,
                state.complete,
                self._cells + new_cells,
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
        self.uncertain = False
        try:
            self._db.execute("BEGIN IMMEDIATE")
            changed = sum([mend_cell(self._db, self._id(row.space), row) for row in rows])
            if correction is not None:
                correct(self._db, self._ids, correction)
            self.uncertain = True
            self._db.execute("COMMIT")
        except BaseException:  # whatever ended the transaction
            with suppress(sqlite3.Error):
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                    self.uncertain = False
            raise
        finally:
            self._remember()
        self.uncertain = False
        return changed

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
