"""What one batch of operations does to the state: pure, with everything it needs as arguments.

    state + working set of cells + operations + now  ->  changed cells, vectors, cursors, answers

Operations of clients and chunks of peers enter here and take the same steps: the changes of the
first get this commit's stamp, the rows of the second keep theirs. An operation that is refused
leaves no trace in the batch. Nothing here is durable: the store makes the whole outcome so, or none
of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import assert_never

from agent import exchange, membership
from agent.boards import change
from agent.boards.catalog import Catalog
from agent.boards.tally import (
    Effect,
    Group,
    MemberKey,
    needs,
    refusal,
    tally,
    tally_each,
)
from agent.crdt import counter, hybrid_clock
from agent.crdt.cell import Key, Row, Value, row_of
from agent.crdt.counter import Total
from agent.crdt.slot import COUNTER_KINDS, Kind, slot_of_one, slot_of_replica
from agent.crdt.space import RING_SPACE
from agent.errors import Refused
from agent.exchange import Chunk, Cursor, Times, VersionVector
from agent.membership import Ring
from agent.operation import (
    Announce,
    Answer,
    BoardChanged,
    Define,
    Merge,
    Merged,
    Operation,
    Reset,
    Retire,
    Singles,
    Write,
    Written,
)


@dataclass(frozen=True, slots=True)
class State:
    """What an agent knows beside its cells; durable with them, but for `times`."""

    agent: str
    inc: int
    log: int
    seq: int
    lsn: int
    hlc: int
    vv: VersionVector
    times: Times
    cursors: Mapping[str, Cursor]
    catalog: Catalog
    ring: Ring


@dataclass(frozen=True, slots=True)
class WorkingSet:
    """The cells and totals that the operations need, as loaded; None for those never written."""

    cells: Mapping[Key, Row | None]
    totals: Mapping[MemberKey, Total | None]


@dataclass(slots=True)
class Alarms:
    """Counts of what must never happen (docs/metrics.md). Each has a metric that should stay 0.

    covered_changed: a received row changed my state although my version vector covered it.
    forked: the same (incarnation, seq, cell) came with another value.
    peer_ahead: a peer knows of a later write of mine than I do.
    """

    covered_changed: int = 0
    forked: int = 0
    peer_ahead: int = 0


@dataclass(frozen=True, slots=True)
class Outcome:
    """Everything that one batch changed. The row at index i gets the lsn `state.lsn + 1 + i`."""

    state: State
    rows: list[Row]
    totals: dict[MemberKey, Total]
    answers: list[Answer]
    alarms: Alarms

    def durable_change(self, before: State) -> bool:
        """Whether there is anything to write (`times` alone is not)."""
        now = self.state
        same = now.vv is before.vv and now.cursors is before.cursors and now.hlc == before.hlc
        return bool(self.rows) or not same


def wanted(
    state: State, operations: Sequence[Operation | Singles]
) -> tuple[set[Key], set[MemberKey]]:
    """The cells and totals to load before `apply`, for operations that meet one catalog."""
    cells: set[Key] = set()
    members: set[MemberKey] = set()
    for operation in operations:
        match operation:
            case Write(groups):
                for group in groups:
                    _needs_of(state, group, cells, members)
            case Singles(group):
                _needs_of(state, group, cells, members)
            case Define(name) | Reset(name) | Retire(name):
                cells.update(change.keys_of(name, state.agent))
            case Announce():
                cells.update(_own_ring_cells(state))
            case Merge(_, chunk):
                for row in chunk.rows:
                    cells.add(row[:3])
                    if row.slot[0] in COUNTER_KINDS:
                        members.add(row[:2])
            case _:
                assert_never(operation)
    return cells, members


def _needs_of(state: State, group: Group, cells: set[Key], members: set[MemberKey]) -> None:
    board = state.catalog.find(group.board)
    if board is not None and board.definition is not None:
        needs(board, group, state.inc, cells, members)


def apply(
    state: State, loaded: WorkingSet, operations: Sequence[Operation | Singles], now_ms: int
) -> Outcome:
    """Apply operations in order. Those that are refused answer their error and change nothing.

    A `Singles` has one answer for each of its entries.
    """
    draft = _Draft(state, loaded, now_ms)
    answers: list[Answer] = []
    for operation in operations:
        if isinstance(operation, Singles):
            answers += draft.write_singles(operation.group)
            continue
        try:
            answers.append(draft.apply(operation))
        except Refused as error:
            answers.append(error)
    return draft.outcome(answers)


def _own_ring_cells(state: State) -> tuple[Key, Key]:
    name = state.agent.encode()
    return (
        (RING_SPACE, name, slot_of_one(Kind.MEMBER)),
        (RING_SPACE, name, slot_of_replica(Kind.INCARNATION, state.inc)),
    )


@dataclass(slots=True)
class _Draft:
    """The state and the cells as this batch has changed them so far."""

    state: State
    loaded: WorkingSet
    now_ms: int
    rows: dict[Key, Row] = field(default_factory=dict)
    totals: dict[MemberKey, Total] = field(default_factory=dict)
    alarms: Alarms = field(default_factory=Alarms)

    def row(self, key: Key) -> Row | None:
        """The newest row of a cell. A cell that was not loaded is a KeyError: a bug in `wanted`."""
        return self.rows.get(key) or self.loaded.cells[key]

    def value(self, key: Key) -> Value | None:
        """The newest value of a cell (agent.boards.tally.Cells)."""
        row = self.row(key)
        return None if row is None else row[3:6]

    def total(self, key: MemberKey) -> Total | None:
        """The newest total of a member (agent.boards.tally.Cells)."""
        return self.totals.get(key) or self.loaded.totals[key]

    def put(self, row: Row) -> None:
        """Change a cell. A change moves its row to the end of the batch (rule B)."""
        key = row[:3]
        self.rows.pop(key, None)
        self.rows[key] = row

    def write(self, key: Key, value: Value) -> None:
        """Change a cell as this agent's own write."""
        self.put(row_of((*key, *value, self.state.inc, self.state.seq + 1)))

    def apply(self, operation: Operation) -> Answer:
        """Apply one operation.

        Raises:
            Refused: nothing of it was applied.
        """
        match operation:
            case Write(groups):
                return self._write_groups(groups)
            case Define() | Reset() | Retire():
                return self._change(operation)
            case Announce():
                return self._announce(operation)
            case Merge(peer, chunk, vv):
                return self._merge(peer, chunk, vv)
            case _:
                assert_never(operation)

    def _write_groups(self, groups: tuple[Group, ...]) -> Written:
        hlc = self.state.hlc
        effects = []
        for group in groups:
            board = self.state.catalog.board(group.board)
            effect = tally(board, group, self, self.state.inc, hlc, self.now_ms)
            hlc = effect.hlc
            effects.append(effect)
        for effect in effects:
            self._take_effect(effect)
        return Written(tuple(effect.scores for effect in effects))

    def write_singles(self, group: Group) -> list[Answer]:
        """Apply requests of one entry each; one answer for each, in order."""
        try:
            board = self.state.catalog.board(group.board)
        except Refused as error:
            return [error] * len(group.entries)
        effect = tally_each(board, group, self, self.state.inc, self.state.hlc, self.now_ms)
        self._take_effect(effect)
        answers: list[Answer] = [Written(([score],)) for score in effect.scores]
        for index, refused in effect.refused:
            answers[index] = refusal([(0, refused)])
        return answers

    def _take_effect(self, effect: Effect) -> None:
        for key, value in effect.values.items():
            self.write(key, value)
        self.totals.update(effect.totals)
        if effect.hlc != self.state.hlc:
            self.state = replace(self.state, hlc=effect.hlc)

    def _change(self, operation: Define | Reset | Retire) -> BoardChanged:
        catalog, agent = self.state.catalog, self.state.agent
        hlc = hybrid_clock.tick(self.state.hlc, self.now_ms)
        writes: change.Writes
        match operation:
            case Define(name, definition):
                writes = change.define(catalog, agent, name, definition, hlc)
            case Reset(name, new):
                writes = change.reset(catalog, agent, name, new, hlc)
            case Retire(name):
                writes = change.retire(catalog, agent, name, hlc)
        for key, value in writes:
            self.write(key, value)
        if writes:
            self.state = replace(self.state, hlc=hlc)
        return BoardChanged(bool(writes))

    def _announce(self, operation: Announce) -> BoardChanged:
        member_key, incarnation_key = _own_ring_cells(self.state)
        said = membership.pack_member(operation.region, operation.url)
        current = self.value(member_key)
        if current is None or current[2] != said:
            epoch = 1 if current is None else current[0] + 1
            self.write(member_key, (epoch, 0 if current is None else current[1], said))
        self.write(incarnation_key, (operation.boot_number, 0, b""))
        return BoardChanged(True)

    def _merge(self, peer: str, chunk: Chunk, vv: VersionVector | None) -> Merged:
        cursor = self.state.cursors.get(peer)
        if not exchange.contiguous(chunk, cursor):
            return Merged(False, 0)
        changed = 0
        for row in chunk.rows:
            changed += self._join(row)
        moved = exchange.advanced(chunk, cursor)
        if moved != cursor:
            self.state = replace(self.state, cursors={**self.state.cursors, peer: moved})
        if chunk.head and vv is not None:
            mine = self.state.inc
            if vv.get(mine, 0) > self.state.seq:
                self.alarms.peer_ahead += 1
                vv = {inc: seq for inc, seq in vv.items() if inc != mine}
            times = exchange.times_join(self.state.times, chunk.times or {})
            joined = exchange.vv_join(self.state.vv, vv)
            self.state = replace(self.state, vv=joined, times=times)
        return Merged(True, changed)

    def _join(self, row: Row) -> bool:
        """Join one received row; it keeps its stamp. Returns whether it changed my state."""
        key, value = row[:3], row[3:6]
        current = self.row(key)
        old = None
        if current is not None:
            old = current[3:6]
            if value != old and row[6:] == current[6:]:
                self.alarms.forked += 1
            if value <= old:
                return False
        if row.seq <= self.state.vv.get(row.inc, 0):
            self.alarms.covered_changed += 1
        kind = row.slot[0]
        if kind in COUNTER_KINDS:
            member = row[:2]
            self.totals[member] = counter.replace(self.total(member), kind, old, value)
        elif kind == Kind.LATEST:
            self._hear(row.major)
        elif kind == Kind.DEFINITION:
            self._hear(row.minor)
        self.put(row)
        return True

    def _hear(self, hybrid_time: int) -> None:
        hlc = hybrid_clock.hear(self.state.hlc, hybrid_time, self.now_ms)
        if hlc != self.state.hlc:
            self.state = replace(self.state, hlc=hlc)

    def outcome(self, answers: list[Answer]) -> Outcome:
        """The whole batch's outcome: one seq if any of its changes is this agent's own."""
        state = self.state
        rows = list(self.rows.values())
        if any(row.inc == state.inc and row.seq == state.seq + 1 for row in rows):
            seq = state.seq + 1
            state = replace(state, seq=seq, vv={**state.vv, state.inc: seq})
        if rows:
            state = replace(
                state,
                lsn=state.lsn + len(rows),
                catalog=state.catalog.with_rows(rows),
                ring=state.ring.with_rows(rows),
            )
        return Outcome(state, rows, self.totals, answers, self.alarms)
