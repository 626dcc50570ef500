"""A store in memory, for the simulator: what `commit` was given is what a crash leaves.

It passes the same conformance suite as the SQLite store (tests/integration/test_store.py).
"""

from __future__ import annotations

import sqlite3
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice

from agent.boards.catalog import Catalog
from agent.boards.finals import Discard, Shelve
from agent.boards.tally import MemberKey, SlotGroup
from agent.crdt.cell import Key, Row, Value
from agent.crdt.fingerprint import BUCKETS, Stored, bucket_of, fingerprint, fits
from agent.crdt.space import board_prefix, is_own
from agent.crdt.total import Total, total_of
from agent.errors import DamagedCell, StoreError
from agent.exchange import Boot, Reading
from agent.membership import Ring
from agent.operation import Correction
from agent.state import Outcome, State, WorkingSet
from agent.store.identity import Identity, Life
from agent.store.mend import flips_of


class MemoryStore:
    """Cells, log and state in memory. Superseded log entries are dropped at once."""

    def __init__(self, identity: Identity) -> None:
        self._rows: dict[Key, Row] = {}
        self._lsns: dict[Key, int] = {}
        self._prints: dict[Key, int] = {}
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
            complete=False,
        )
        self.clean = False
        self.uncertain = False
        # space -> hash -> (chunks by number, how many rows once it is complete)
        self.finals: dict[bytes, dict[bytes, tuple[dict[int, bytes], int | None]]] = {}
        # (space, hash) of complete ones from which the live standings may differ
        self.late: set[tuple[bytes, bytes]] = set()

    @property
    def life(self) -> Life:
        """What the store says of the process that last wrote to it."""
        state = self._state
        boot, nonce = state.boot
        return Life(
            state.inc, state.log, boot, nonce, self.clean, state.burnt, state.seq, state.lsn
        )

    def begin(
        self, nonce: int, new_log: int | None = None, burnt: str = "", above: int = 0
    ) -> Boot:
        """Begin a process with what was durable: see SqliteStore.begin."""
        boot = Boot(max(self._state.boot.number, above) + 1, nonce)
        log = self._state.log if new_log is None else new_log
        floor = self._state.lsn
        self._state = replace(
            self._state,
            times={},
            boot=boot,
            log=log,
            burnt=burnt,
            touched={},
            touched_floor=floor,
        )
        self.clean = False
        return boot

    def state(self) -> State:
        """The state as it is durable."""
        return self._state

    def damage(self, error: sqlite3.Error) -> StoreError | None:  # noqa: ARG002 -- see Store
        """Memory does not decay."""
        return None

    @property
    def cells(self) -> int:
        """How many cells are stored."""
        return len(self._rows)

    def load(
        self,
        cells: Iterable[Key],
        members: Iterable[MemberKey],
        groups: Iterable[SlotGroup] = (),
    ) -> WorkingSet:
        """The wanted cells, totals and groups; None for those never written."""
        found = {key: self._checked(key) for key in cells}
        found_groups: dict[SlotGroup, tuple[Row, ...]] = dict.fromkeys(groups, ())
        slots: dict[MemberKey, list[bytes]] = {group[:2]: [] for group in found_groups}
        if slots:
            for key in self._rows:
                if key[:2] in slots:
                    slots[key[:2]].append(key[2])
        for group in found_groups:
            of_group = sorted(slot for slot in slots[group[:2]] if slot.startswith(group[2]))
            rows = {(*group[:2], slot): self._checked((*group[:2], slot)) for slot in of_group}
            found.update(rows)
            found_groups[group] = tuple([row for row in rows.values() if row is not None])
        totals = {key: self._totals.get(key) for key in members}
        return WorkingSet(found, totals, groups=found_groups)

    def _checked(self, key: Key) -> Row | None:
        row = self._rows.get(key)
        if row is not None and not fits(row, self._prints[key]):
            raise DamagedCell(key)
        return row

    def commit(self, before: State, outcome: Outcome, new_cells: int) -> None:
        """Make an outcome durable."""
        assert before.lsn == self._state.lsn
        assert new_cells == sum(row[:3] not in self._rows for row in outcome.rows)
        for row in outcome.dropped:
            for kept in (self._rows, self._lsns, self._prints):
                kept.pop(row[:3], None)
        for lsn, row in enumerate(outcome.rows, before.lsn + 1):
            key = row[:3]
            self._rows[key] = row
            self._lsns.pop(key, None)
            self._lsns[key] = lsn
            self._prints[key] = outcome.prints[lsn - before.lsn - 1]
        for member, total in outcome.totals.items():
            if total is None:
                self._totals.pop(member, None)
            else:
                self._totals[member] = total
        if outcome.dropped:
            held = {key[0] for key in self._rows}
            self._totals = {key: total for key, total in self._totals.items() if key[0] in held}
        for space in outcome.late:
            self.late |= {(space, each) for each in self.complete_copies(space)}
        for name, board in outcome.state.bans.lifted(before.bans, outcome.rows):
            for there in {key[0] for key in self._rows if key[1] == name}:
                if there.startswith(board_prefix(board)):
                    self.late |= {(there, each) for each in self.complete_copies(there)}
        self._state = outcome.state

    def mend(self, rows: Sequence[Row], correction: Correction | None = None) -> int:
        """Put rows in the place of damaged cells: see SqliteStore.mend.

        There are no sums to correct: buckets are added up whenever somebody asks.
        """
        changed = 0
        for row in rows:
            key, mark = row[:3], fingerprint(row)
            stands = self._rows.get(key)
            flips = flips_of(row, None if stands is None else (stands, self._prints[key]))
            if flips is None:
                continue
            changed += 1
            state, one = self._state, [row]
            self._state = replace(
                state,
                lsn=state.lsn + 1,
                root=state.root ^ flips,
                catalog=state.catalog.with_rows(one),
                ring=state.ring.with_rows(one),
                marks=state.marks.with_rows(one),
                bans=state.bans.with_rows(one),
                erased=state.erased.with_rows(one),
            )
            self._rows[key] = row
            self._prints[key] = mark
            self._lsns.pop(key, None)
            self._lsns[key] = self._state.lsn
            total = self.snapshot().totals_of([row[:2]]).get(row[:2])
            if total is not None:
                self._totals[row[:2]] = total
        if correction is not None:
            state = self._state
            self._state = replace(
                state, root=state.root ^ correction.flips, facts=state.facts + correction.facts
            )
        return changed

    def shelve(self, operation: Shelve | Discard) -> bool:
        """Keep rows of a final, or remove them: see SqliteStore.shelve."""
        held = self.finals.setdefault(operation.space, {})
        if isinstance(operation, Discard):
            gone = held.keys() - set(operation.kept)
            for each in gone:
                del held[each]
                self.late.discard((operation.space, each))
            return bool(gone)
        chunks, members = held.get(operation.hash, ({}, None))
        if operation.members is not None:
            members = operation.members
            self.late.discard((operation.space, operation.hash))
            self.late |= {(operation.space, operation.hash)} if operation.late else set()
        held[operation.hash] = ({**chunks, **dict(operation.chunks)}, members)
        return True

    def complete_copies(self, space: bytes) -> dict[bytes, int]:
        """The complete copies of a window: hash -> how many rows."""
        held = self.finals.get(space, {})
        return {each: members for each, (_, members) in held.items() if members is not None}

    def snapshot(self) -> MemorySnapshot:
        """One consistent state, which later commits do not change."""
        return MemorySnapshot(dict(self._rows), dict(self._lsns), dict(self._prints), self._state)

    def close(self) -> None:
        """Nothing to close."""


class MemorySnapshot:
    """One consistent state of a MemoryStore: the same reads as SqliteSnapshot."""

    def __init__(
        self, rows: dict[Key, Row], lsns: dict[Key, int], prints: dict[Key, int], state: State
    ) -> None:
        self._rows = rows
        self._prints = prints
        self._log = [(lsn, key) for key, lsn in lsns.items()]  # in order: see commit
        self._state = state
        self.newest_lsn = state.lsn

    @property
    def vv(self) -> Mapping[int, int]:
        """The version vector of this state."""
        return self._state.vv

    @property
    def cursors(self) -> Mapping[int, Reading]:
        """By log, how far it was read."""
        return self._state.cursors

    @property
    def root(self) -> int:
        """The fingerprint of all cells."""
        return self._state.root

    @property
    def facts(self) -> int:
        """How many facts there are, as kept with each change."""
        return self._state.facts

    def read_to(self, log: int) -> int | None:
        """How far another agent's log was read; None where nothing of it was."""
        reading = self._state.cursors.get(log)
        return None if reading is None else reading.lsn

    def spaces(self) -> list[bytes]:
        """All spaces, in the order of their bytes."""
        return sorted({key[0] for key in self._rows})

    def spaces_of(self, prefix: bytes) -> list[bytes]:
        """The spaces that begin with `prefix`, in the order of their bytes."""
        return [space for space in self.spaces() if space.startswith(prefix)]

    def space_after(self, space: bytes) -> bytes | None:
        """The next space in the order of their bytes."""
        return next((known for known in self.spaces() if known > space), None)

    def collects(self, space: bytes) -> bool:
        """Whether a mark says that a space is collected: what is left of it is being dropped."""
        return self._state.marks.collects(space)

    def cells_after(
        self, space: bytes, member: bytes, slot: bytes, limit: int
    ) -> list[tuple[Row, int]]:
        """The next cells of a space by (member, slot), each with its stored fingerprint."""
        return [cell[:2] for cell in self.stored_after(space, (member, slot), None, limit)]

    def stored_after(
        self, space: bytes, after: tuple[bytes, bytes], upto: tuple[bytes, bytes] | None, limit: int
    ) -> list[Stored]:
        """The cells of a space above one (member, slot), up to another one or to the end."""
        lsns = {key: lsn for lsn, key in self._log}
        keys = sorted(key for key in self._rows if key[0] == space and key[1:] > after)
        if upto is not None:
            keys = [key for key in keys if key[1:] <= upto]
        return [Stored(self._rows[key], self._prints[key], lsns[key]) for key in keys[:limit]]

    def cell(self, key: Key) -> tuple[Row, int] | None:
        """One cell as it stands, with its stored fingerprint; None where it is not."""
        row = self._rows.get(key)
        return None if row is None else (row, self._prints[key])

    def buckets(self) -> list[tuple[int, int]]:
        """(fingerprint, cells) of every bucket."""
        sums = [(0, 0)] * BUCKETS
        for key, mark in self._prints.items():
            bucket = bucket_of(key)
            sums[bucket] = (sums[bucket][0] ^ mark, sums[bucket][1] + 1)
        return sums

    def log_after(self, lsn: int, limit: int) -> Iterator[tuple[int, Row | None]]:
        """At most `limit` log entries above `lsn`, in order."""
        start = bisect_right(self._log, lsn, key=lambda entry: entry[0])
        for at, key in islice(self._log, start, start + limit):
            row = self._rows[key]
            if not fits(row, self._prints[key]):
                raise DamagedCell(key)
            yield at, row

    def rows_in(self, space: bytes) -> list[Row]:
        """All rows of a space, by member and slot."""
        return sorted(row for key, row in self._rows.items() if key[0] == space)

    def slots_of(self, space: bytes, member: bytes) -> list[tuple[bytes, Value]]:
        """All cells of one member, as (slot, value)."""
        return [(row.slot, row.value) for row in self.rows_in(space) if row.member == member]

    def slots_from(
        self, space: bytes, member: bytes, prefix: bytes, after: bytes, limit: int
    ) -> list[tuple[bytes, Value]]:
        """The next of a member's cells whose slots begin with `prefix`: see SqliteSnapshot."""
        found = self.slots_of(space, member)
        return [cell for cell in found if cell[0].startswith(prefix) and cell[0] > after][:limit]

    def keys_in(self, space: bytes, limit: int) -> list[Key]:
        """The first cells of a space, of whole members where possible: see SqliteSnapshot."""
        keys = sorted(key for key in self._rows if key[0] == space)[:limit]
        if len(keys) < limit:
            return keys
        return [key for key in keys if key[1] != keys[-1][1]] or keys

    def totals_of(self, members: Iterable[MemberKey]) -> dict[MemberKey, Total]:
        """The totals of those members of boards that have tallied cells, added up anew."""
        found = {}
        for key in members:
            total = None if is_own(key[0]) else total_of(self.slots_of(*key))
            if total is not None:
                found[key] = total
        return found

    def totals_after(self, space: bytes, member: bytes, limit: int) -> list[tuple[bytes, Total]]:
        """The next totals of a space in the order of their members' names."""
        names = sorted({row.member for row in self.rows_in(space) if row.member > member})
        found = self.totals_of([(space, name) for name in names[:limit]])
        return [(name, total) for (_, name), total in sorted(found.items())]

    def members_after(
        self, space: bytes, member: bytes, cells_max: int
    ) -> list[tuple[bytes, list[tuple[bytes, Value]]]]:
        """The next members of a space in the order of their names, each with all of its cells."""
        names = sorted({row.member for row in self.rows_in(space) if row.member > member})
        return [(name, self.slots_of(space, name)) for name in names[:cells_max]]

    def count_members(self, space: bytes, limit: int) -> int:
        """How many members a space has, counted up to `limit`."""
        return min(limit, len({row.member for row in self.rows_in(space)}))
