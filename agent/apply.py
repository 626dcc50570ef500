"""What one batch of operations does to the state: pure, with everything it needs as arguments.

    state + working set of cells + operations + now  ->  changed cells, vectors, cursors, answers

Operations of clients and chunks of peers enter here and take the same steps: the changes of the
first get this commit's stamp, the rows of the second keep theirs. An operation that is refused
leaves no trace in the batch. Nothing here is durable: the store makes the whole outcome so, or none
of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import assert_never

from agent import exchange, membership
from agent.boards import change
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
from agent.crdt.fingerprint import changes_of
from agent.crdt.slot import COUNTER_KINDS, Kind, incarnation_of
from agent.crdt.space import RING_SPACE
from agent.errors import NotFound, Refused
from agent.exchange import Boot, Chunk, Reading, VersionVector
from agent.membership import incarnation_key, member_key
from agent.operation import (
    Announce,
    Answer,
    BoardChanged,
    Burn,
    ChangeMember,
    Complete,
    Define,
    Fence,
    Import,
    Mend,
    Merge,
    Merged,
    Mint,
    Operation,
    Repair,
    Reset,
    Retire,
    Singles,
    Write,
    Written,
)
from agent.state import NO_BOOT, Alarms, Outcome, State, WorkingSet, read_further, seen_further


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
                cells.update((member_key(state.agent), incarnation_key(state.agent, state.inc)))
            case Mint(inc):
                cells.add(incarnation_key(state.agent, inc))
            case ChangeMember(name):
                cells.add(member_key(name))
            case Merge(_, Chunk(rows=rows)) | Import(rows) | Repair(rows):
                for row in rows:
                    cells.add(row[:3])
                    if row.slot[0] in COUNTER_KINDS:
                        members.add(row[:2])
            case Burn() | Complete() | Fence() | Mend():
                pass
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


@dataclass(slots=True)
class _Draft:
    """The state and the cells as this batch has changed them so far."""

    state: State
    loaded: WorkingSet
    now_ms: int
    rows: dict[Key, Row] = field(default_factory=dict)
    totals: dict[MemberKey, Total] = field(default_factory=dict)
    alarms: Alarms = field(default_factory=Alarms)
    wrote: bool = False

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
        self.wrote = True

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
            case Announce(region, url):
                return self._announce(region, url)
            case Mint(inc, new_log):
                return self._mint(inc, new_log)
            case Burn(inc, reason):
                if inc == self.state.inc:
                    self._burn(reason)
                return BoardChanged(inc == self.state.inc)
            case Fence(inc, boot):
                return BoardChanged(self._fence(inc, boot))
            case Complete():
                self.state = replace(self.state, complete=True)
                return BoardChanged(True)
            case ChangeMember():
                return self._change_member(operation)
            case Import(rows):
                return Merged(True, sum([self._import(row) for row in rows]))
            case Mend():
                raise AssertionError("the store mends: see agent/commit.py")
            case Merge(peer, chunk, vv):
                return self._merge(peer, chunk, vv)
            case Repair(rows):
                return self._repair(rows)
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

    def _announce(self, region: str, url: str) -> BoardChanged:
        state = self.state
        key = member_key(state.agent)
        said = membership.pack_member(region, url)
        current = self.value(key)
        moved = current is None or current[2] != said
        if moved:
            epoch = 1 if current is None else current[0] + 1
            self.write(key, (epoch, 0 if current is None else current[1], said))
        if not state.burnt:
            self.write(incarnation_key(state.agent, state.inc), (*state.boot, b""))
        return BoardChanged(moved)

    def _mint(self, inc: int, new_log: int) -> BoardChanged:
        state = self.state = replace(self.state, inc=inc, log=new_log, seq=0, burnt="")
        self.write(incarnation_key(state.agent, inc), (*state.boot, b""))
        return BoardChanged(True)

    def _fence(self, inc: int, boot: Boot) -> bool:
        if boot <= self.state.fences.get(inc, NO_BOOT):
            return False
        self.state = replace(self.state, fences={**self.state.fences, inc: boot})
        return True

    def _burn(self, reason: str) -> None:
        """Never write as this incarnation again: somebody knows more of it than this file."""
        if not self.state.burnt:
            self.state = replace(self.state, burnt=reason)

    def _change_member(self, operation: ChangeMember) -> BoardChanged:
        key = member_key(operation.name)
        current = self.value(key)
        if current is None:
            raise NotFound("unknown_agent", f"the ring has no agent {operation.name!r}")
        new = membership.changed(current, operation.status, operation.url)
        if new is not None:
            self.write(key, new)
        return BoardChanged(new is not None)

    def _merge(self, peer: str, chunk: Chunk, vv: VersionVector | None) -> Merged:
        state = self.state
        reading = state.cursors.get(chunk.log)
        read_to = None if reading is None else reading.lsn
        if state.ring.was_removed(peer) or not exchange.contiguous(chunk, read_to):
            return Merged(False, 0)
        changed = 0
        for row in chunk.rows:
            changed += self._join(row)
        moved = Reading(peer, exchange.advanced(chunk, read_to))
        if moved != reading:
            self.state = replace(
                self.state, cursors=read_further(self.state.cursors, chunk.log, moved)
            )
        self.state = replace(self.state, seen=seen_further(state.seen, chunk.rows))
        if chunk.head and vv is not None:
            if not self.state.burnt and vv.get(state.inc, 0) > state.seq:
                self.alarms.peer_ahead += 1
                self._burn(f"{peer} holds a later commit of it than this file")
            times = exchange.times_join(self.state.times, chunk.times or {})
            joined = exchange.vv_join(self.state.vv, vv)
            self.state = replace(self.state, vv=joined, times=times)
        return Merged(True, changed)

    def _join(self, row: Row) -> bool:
        """Join one received row; it keeps its stamp. Returns whether it changed my state."""
        state = self.state
        mine = row.inc == state.inc and not state.burnt
        if mine and row.seq > state.seq:
            self.alarms.peer_ahead += 1
            self._burn("a peer sent a later write of it than this file holds")
        current = self.row(row[:3])
        if current is not None and row[6:] == current[6:] and row[3:6] != current[3:6]:
            self.alarms.forked += 1
            if mine:
                self._burn("the same write came back with another value: another process wrote it")
        if current is not None and row[3:6] <= current[3:6]:
            return False
        if row.seq <= state.vv.get(row.inc, 0):
            self.alarms.covered_changed += 1
            if mine:
                self._burn("a peer holds a greater value of it than this file")
        if row.slot[0] in COUNTER_KINDS and row.slot[1:9] == state.inc.to_bytes(8):
            # Whatever its stamp: an imported cell bears the importer's.
            self._burn("a slot of it came back greater than this file has it")
        self._took(row, current)
        self.put(row)
        return True

    def _repair(self, rows: Sequence[Row]) -> Merged:
        """Join what should have been here: no cursor moves, and nothing is claimed."""
        before = self.alarms.covered_changed
        changed = sum([self._join(row) for row in rows])
        self.alarms.covered_changed = before + changed
        return Merged(True, changed)

    def _import(self, row: Row) -> bool:
        """Join one cell as this agent's own write. Returns whether it changed my state."""
        current = self.row(row[:3])
        if row.space == RING_SPACE or (current is not None and row[3:6] <= current[3:6]):
            return False
        self._took(row, current)
        self.write(row[:3], row[3:6])
        return True

    def _took(self, row: Row, current: Row | None) -> None:
        """What a value from elsewhere does beside changing its cell."""
        kind = row.slot[0]
        if kind in COUNTER_KINDS:
            member = row[:2]
            old = None if current is None else current[3:6]
            self.totals[member] = counter.replace(self.total(member), kind, old, row[3:6])
        elif kind == Kind.LATEST:
            self._hear(row.major)
        elif kind == Kind.DEFINITION:
            self._hear(row.minor)
        elif kind == Kind.INCARNATION and row.space == RING_SPACE and len(row.slot) == 9:
            inc = incarnation_of(row.slot)
            self._fence(inc, Boot(row.major, row.minor))
            if inc == self.state.inc and not self.state.burnt:
                self.alarms.forked += 1
                self._burn("another process writes as it")

    def _hear(self, hybrid_time: int) -> None:
        hlc = hybrid_clock.hear(self.state.hlc, hybrid_time, self.now_ms)
        if hlc != self.state.hlc:
            self.state = replace(self.state, hlc=hlc)

    def outcome(self, answers: list[Answer]) -> Outcome:
        """The whole batch's outcome: one seq if any of its changes is this agent's own."""
        state = self.state
        rows = list(self.rows.values())
        # By its stamp a received row may look like one: of a commit that this file has lost.
        if self.wrote:
            seq = state.seq + 1
            state = replace(state, seq=seq, vv={**state.vv, state.inc: seq})
        prints, buckets, flips = changes_of(rows, self.loaded.cells, self.loaded.prints)
        if rows:
            state = replace(
                state,
                lsn=state.lsn + len(rows),
                catalog=state.catalog.with_rows(rows),
                ring=state.ring.with_rows(rows),
                root=state.root ^ flips,
            )
        return Outcome(state, rows, prints, buckets, self.totals, answers, self.alarms)
