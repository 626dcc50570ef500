"""The disk of a simulated agent: the store in memory, with everything that can happen to a disk.

Its whole content is an `Image`: what a backup, a copy or a snapshot of the machine would hold, the
identity token included. It also checks each commit: no cell goes back, every change gets a place of
its own at the end of the log (I4), and totals are the sums of their slots.
"""

from __future__ import annotations

import sqlite3
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from agent.boards.finals import Discard, Shelve
from agent.boards.tally import MemberKey
from agent.crdt.cell import Key, Row, Value
from agent.crdt.slot import Kind
from agent.crdt.total import Total
from agent.exchange import Reading
from agent.operation import Correction
from agent.state import NO_BOOT, Outcome, State
from agent.store.identity import Identity
from agent.store.memory import MemoryStore
from agent.store.token import Token
from cluster.simulator import plain

UNDO_MAX = 3


Copies = dict[bytes, dict[bytes, tuple[dict[int, bytes], int | None]]]
"""space -> hash -> (chunks by number, how many rows once it is complete): see MemoryStore."""


@dataclass(frozen=True, slots=True)
class Image:
    """Everything that is on a disk at one moment."""

    rows: dict[Key, Row]
    lsns: dict[Key, int]
    prints: dict[Key, int]
    totals: dict[MemberKey, Total]
    state: State
    clean: bool
    token: Token | None
    finals: Copies
    late: frozenset[tuple[bytes, bytes]]
    damaged: dict[Key, Row] = field(default_factory=dict)


class Disk(MemoryStore):
    """A store that keeps a record of what its agent wrote, and fails when told to.

    omit: the rules that are left out (cluster/simulator/rules.py).
    file: which file it is: a copy is another one.
    token: the identity token beside the database.
    fails: what the next commit does: "works", "refuses" (nothing is stored) or "is uncertain" (all
        is stored, and the commit fails).
    own_rows, changed: what this agent wrote itself, and all changes, since they were last taken.
    damaged: the cells that were damaged in place, as they were.
    last_clean: the image at the last clean end.
    problems: what commits did that no commit may do.
    """

    def __init__(self, identity: Identity, file: str, omit: frozenset[str] = frozenset()) -> None:
        super().__init__(identity)
        self.omit = omit
        self.file = file
        self.token: Token | None = None
        self.fails = "works"
        self.own_rows: list[Row] = []
        self.changed: list[Row] = []
        self.damaged: dict[Key, Row] = {}
        self.last_clean: Image | None = None
        self.problems: list[str] = []
        self._undo: deque[tuple[Image, bool]] = deque(maxlen=UNDO_MAX)

    # --- images ----------------------------------------------------------------------------

    def image(self) -> Image:
        """All that is on this disk."""
        return Image(
            rows=dict(self._rows),
            lsns=dict(self._lsns),
            prints=dict(self._prints),
            totals=dict(self._totals),
            state=replace(self._state, times={}),
            clean=self.clean,
            token=self.token,
            finals=_copied(self.finals),
            late=frozenset(self.late),
            damaged=dict(self.damaged),
        )

    def put(self, image: Image) -> None:
        """Put an image in the place of all that is on this disk."""
        self._rows, self._lsns = dict(image.rows), dict(image.lsns)
        self._prints, self._totals = dict(image.prints), dict(image.totals)
        self._state, self.clean = image.state, image.clean
        self.token = image.token
        self.finals, self.late = _copied(image.finals), set(image.late)
        self.damaged = dict(image.damaged)
        self._undo.clear()

    def adopt(self, identity: Identity) -> None:
        """Give what is on this disk another identity, as a restore or a bootstrap does."""
        self._state = replace(
            self._state,
            agent=identity.agent,
            inc=identity.inc,
            log=identity.log,
            seq=0,
            burnt="",
            boot=NO_BOOT,
            times={},
            complete=False,
        )
        self.token, self.clean = None, False

    def set_cursors(self, cursors: Mapping[int, Reading]) -> None:
        """How far other logs are read, as a snapshot of one of them says."""
        self._state = replace(self._state, cursors=cursors)

    def begun(self, *, incomplete: bool) -> None:
        """A process has begun: what it found is durable, but may not be all that there was."""
        self._undo.clear()
        if incomplete:
            self._state = replace(self._state, complete=False)

    def end(self) -> None:
        """A clean end."""
        self.clean = True
        self.last_clean = self.image()

    def lose_tail(self, commits: int) -> int:
        """Lose up to so many commits of this process; returns how many were lost."""
        lost = 0
        while self._undo and lost < commits:
            image = self._undo.pop()[0]
            rest = list(self._undo)
            self.put(image)
            self._undo.extend(rest)
            lost += 1
        return lost

    def tear(self) -> bool:
        """Undo the rows of the last commit, if it was a merge, and nothing else of it."""
        if not self._undo or not self._undo[-1][1]:
            return False
        image, state = self._undo[-1][0], self._state
        self.put(image)
        self._state = replace(state, root=image.state.root)
        return True

    # --- commits ---------------------------------------------------------------------------

    def commit(self, before: State, outcome: Outcome, new_cells: int) -> None:
        """Make an outcome durable, or fail as told."""
        fails, self.fails = self.fails, "works"
        self.uncertain = False
        if fails == "refuses":
            raise sqlite3.OperationalError("database or disk is full")
        old = {row.key: self.value(row.key) for row in outcome.rows}
        now = outcome.state
        # Facts have numbers of their own, below that of the commit.
        least = before.seq if now.inc == before.inc else 0
        own = [r for r in outcome.rows if r.inc == now.inc and least < r.seq <= now.seq]
        self._undo.append((self.image(), not own and bool(outcome.rows)))
        newest = max(self._lsns.values(), default=0)
        super().commit(before, outcome, new_cells)
        for row in outcome.rows:
            self.damaged.pop(row.key, None)
        self._check(outcome, old, newest)
        self.own_rows += own
        self.changed += outcome.rows
        if fails == "is uncertain":
            self.uncertain = True
            raise sqlite3.OperationalError("disk I/O error")

    def _check(self, outcome: Outcome, old: dict[Key, Value | None], newest: int) -> None:
        for number, row in enumerate(outcome.rows, 1):
            was = old[row.key]
            if was is not None and row.value < was:
                self.problems.append(f"{row.key} went back from {was} to {row.value}")
            lsn = outcome.state.lsn - len(outcome.rows) + number
            if lsn <= newest or self._lsns[row.key] != lsn:
                self.problems.append(f"I4: {row.key} changed and got lsn {lsn} after {newest}")
        root = 0
        for mark in self._prints.values():
            root ^= mark
        facts = sum(key[2][0] == Kind.FACT for key in self._rows)
        if (root, facts) != (self._state.root, self._state.facts):
            self.problems.append("the root or the number of facts is not that of the cells")
        self._check_totals(outcome)

    def _check_totals(self, outcome: Outcome) -> None:
        slots: dict[MemberKey, dict[bytes, Value]] = {owner: {} for owner in outcome.totals}
        for _, row in self.rows() if slots else ():
            if row[:2] in slots:
                slots[row[:2]][row.slot] = row.value
        for owner, total in outcome.totals.items():
            wanted = plain.total(slots[owner])
            if total is not None and total.score != wanted:
                self.problems.append(f"total of {owner[1]!r} is {total.score}, not {wanted}")

    def shelve(self, operation: Shelve | Discard) -> bool:
        """Keep rows of a final, or remove them: a transaction of its own, that a crash may lose."""
        self._undo.append((self.image(), False))
        return super().shelve(operation)

    def mend(self, rows: Sequence[Row], correction: Correction | None = None) -> int:
        """Put rows in the place of damaged cells."""
        changed = super().mend(rows, correction)
        for row in rows:
            self.damaged.pop(row.key, None)
        return changed

    # --- what is on it ---------------------------------------------------------------------

    def decay(self, key: Key) -> None:
        """Change a cell in place: nobody is told, and its fingerprint stays."""
        row = self._rows[key]
        self.damaged[key] = row
        self._rows[key] = row._replace(major=row.major ^ 64)

    def value(self, key: Key) -> Value | None:
        """The durable value of a cell; of a damaged one, what was written."""
        row = self.damaged.get(key) or self._rows.get(key)
        return None if row is None else row.value

    def rows(self) -> list[tuple[int, Row]]:
        """Every cell as it was written with its lsn, in the order of the log."""
        return [(lsn, self.damaged.get(key) or self._rows[key]) for key, lsn in self._lsns.items()]

    def values(self) -> dict[Key, Value]:
        """Every cell's value, as it was written."""
        return {row.key: row.value for _, row in self.rows()}


def _copied(finals: Copies) -> Copies:
    """The same copies; chunks are never changed in place."""
    return {space: dict(held) for space, held in finals.items()}
