"""A store in memory, for the simulator: what `commit` was given is what a crash leaves.

It passes the same conformance suite as the SQLite store (tests/integration/test_store.py).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import islice

from agent.apply import Outcome, State, WorkingSet
from agent.boards.catalog import Catalog
from agent.boards.tally import MemberKey
from agent.crdt import counter
from agent.crdt.cell import Key, Row, Value
from agent.crdt.counter import Total
from agent.crdt.slot import COUNTER_SLOTS_BEFORE, COUNTER_SLOTS_FROM
from agent.exchange import Cursor
from agent.membership import Ring
from agent.store.identity import Identity


class MemoryStore:
    """Cells, log and state in memory. Superseded log entries are dropped at once."""

    def __init__(self, identity: Identity) -> None:
        self._rows: dict[Key, Row] = {}
        self._lsns: dict[Key, int] = {}
        self._totals: dict[MemberKey, Total] = {}
        self._state = State(
            agent=identity.agent,
            inc=identity.inc,
            log=identity.log,
            seq=0,
            lsn=0,
            hlc=0,
            vv={},
            times={},
            cursors={},
            catalog=Catalog(),
            ring=Ring(),
        )
        self.boot_number = 1
        self.uncertain = False

    def reboot(self) -> None:
        """Start again with what was durable: as opening the file anew."""
        self.boot_number += 1
        self._state = replace(self._state, times={})

    def state(self) -> State:
        """The state as it is durable."""
        return self._state

    @property
    def cells(self) -> int:
        """How many cells are stored."""
        return len(self._rows)

    def load(self, cells: Iterable[Key], members: Iterable[MemberKey]) -> WorkingSet:
        """The wanted cells and totals; None for those never written."""
        return WorkingSet(
            {key: self._rows.get(key) for key in cells},
            {key: self._totals.get(key) for key in members},
        )

    def commit(self, before: State, outcome: Outcome, new_cells: int) -> None:
        """Make an outcome durable."""
        assert before.lsn == self._state.lsn
        assert new_cells == sum(row[:3] not in self._rows for row in outcome.rows)
        for lsn, row in enumerate(outcome.rows, before.lsn + 1):
            key = row[:3]
            self._rows[key] = row
            self._lsns.pop(key, None)
            self._lsns[key] = lsn
        self._totals.update(outcome.totals)
        self._state = outcome.state

    def snapshot(self) -> MemorySnapshot:
        """One consistent state, which later commits do not change."""
        return MemorySnapshot(dict(self._rows), dict(self._lsns), self._state)

    def close(self) -> None:
        """Nothing to close."""


class MemorySnapshot:
    """One consistent state of a MemoryStore: the same reads as SqliteSnapshot."""

    def __init__(self, rows: dict[Key, Row], lsns: dict[Key, int], state: State) -> None:
        self._rows = rows
        self._log = [(lsn, key) for key, lsn in lsns.items()]  # in order: see commit
        self._state = state
        self.newest_lsn = state.lsn

    @property
    def vv(self) -> Mapping[int, int]:
        """The version vector of this state."""
        return self._state.vv

    @property
    def cursors(self) -> Mapping[str, Cursor]:
        """By agent, the cursor on its log."""
        return self._state.cursors

    def log_after(self, lsn: int, limit: int) -> Iterator[tuple[int, Row | None]]:
        """At most `limit` log entries above `lsn`, in order."""
        start = bisect_right(self._log, lsn, key=lambda entry: entry[0])
        for at, key in islice(self._log, start, start + limit):
            yield at, self._rows[key]

    def rows_in(self, space: bytes) -> list[Row]:
        """All rows of a space, by member and slot."""
        return sorted(row for key, row in self._rows.items() if key[0] == space)

    def slots_of(self, space: bytes, member: bytes) -> list[tuple[bytes, Value]]:
        """All cells of one member, as (slot, value)."""
        return [(row.slot, row.value) for row in self.rows_in(space) if row.member == member]

    def totals_of(self, members: Iterable[MemberKey]) -> dict[MemberKey, Total]:
        """The totals of those members that have counter slots, added up anew."""
        found = {}
        for key in members:
            total = counter.total_of(
                (slot[0], value)
                for slot, value in self.slots_of(*key)
                if COUNTER_SLOTS_FROM <= slot < COUNTER_SLOTS_BEFORE
            )
            if total is not None:
                found[key] = total
        return found

    def members_after(
        self, space: bytes, member: bytes, cells_max: int
    ) -> list[tuple[bytes, list[tuple[bytes, Value]]]]:
        """The next members of a space in the order of their names, each with all of its cells."""
        names = sorted({row.member for row in self.rows_in(space) if row.member > member})
        return [(name, self.slots_of(space, name)) for name in names[:cells_max]]

    def count_members(self, space: bytes, limit: int) -> int:
        """How many members a space has, counted up to `limit`."""
        return min(limit, len({row.member for row in self.rows_in(space)}))
