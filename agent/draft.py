"""The state and the cells as a batch has changed them so far: what `apply` works on. Pure.

Everything that follows from one changed cell is done here, whichever way it came: a total, the
slots that a fact implies, the voids of a key that was counted twice, the windows that a retraction
belongs to. What may not be here any more (collected, erased) is not let in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from agent.boards.finals import PASSING_KINDS
from agent.boards.placing import Placing
from agent.boards.results import retraction_slot
from agent.boards.sums import fact_groups
from agent.boards.tally import MemberKey, SlotGroup, Writer
from agent.crdt import fact, hybrid_clock, hyperloglog, result
from agent.crdt.cell import Key, Row, Value, row_of
from agent.crdt.fact import Fact
from agent.crdt.fingerprint import changes_of
from agent.crdt.slot import (
    COUNTER_KINDS,
    TALLIED_KINDS,
    Kind,
    incarnation_of,
    key_in,
    slot_of_key,
    slot_of_replica,
)
from agent.crdt.space import (
    BANS_SPACE,
    ERASED_SPACE,
    MARKS_SPACE,
    RING_SPACE,
    decode_space,
    is_own,
)
from agent.crdt.total import (
    Total,
    grown,
    more_cells,
    of_results,
    with_registers,
    with_result,
)
from agent.errors import Malformed
from agent.exchange import Boot
from agent.facts import implied
from agent.state import NO_BOOT, Alarms, Outcome, State, Unloaded, WorkingSet

_RESULT, _RETRACTION, _FACT = bytes([Kind.RESULT]), bytes([Kind.RETRACTION]), int(Kind.FACT)
_GROUPED = frozenset({Kind.FACT, Kind.RESULT, Kind.RETRACTION})


@dataclass(slots=True)
class Draft:
    """The state and the cells as this batch has changed them so far.

    own_seq: of this batch's own rows, but for facts: each of those has one of its own below it, so
        that the value of a slot after it and the slot's newest value never bear the same stamp.
    incs: all incarnations known, those of this batch's rows among them.
    entries: of the log, to be removed where they lead nowhere.
    copied: the own spaces of which `state` holds this batch's own copy.
    """

    state: State
    loaded: WorkingSet
    now_ms: int
    own_seq: int
    incs: Sequence[int]
    facts_max: int
    rows: dict[Key, Row] = field(default_factory=dict)
    gone: dict[Key, Row] = field(default_factory=dict)
    totals: dict[MemberKey, Total | None] = field(default_factory=dict)
    alarms: Alarms = field(default_factory=Alarms)
    wrote: bool = False
    facts_written: int = 0
    more_facts: int = 0
    grouped: dict[SlotGroup, dict[bytes, Row]] = field(default_factory=dict)
    copied: set[bytes] = field(default_factory=set)
    entries: list[int] = field(default_factory=list)

    # --- reading (agent.boards.tally.Cells) ------------------------------------------------

    def row(self, key: Key) -> Row | None:
        """The newest row of a cell.

        Raises:
            Unloaded: it was not loaded.
        """
        found = self.rows.get(key)
        if found is not None:
            return found
        if key in self.gone:
            return None
        try:
            return self.loaded.cells[key]
        except KeyError:
            raise Unloaded(cell=key) from None

    def value(self, key: Key) -> Value | None:
        """The newest value of a cell."""
        row = self.row(key)
        return None if row is None else row[3:6]

    def total(self, key: MemberKey) -> Total | None:
        """The newest total of a member."""
        try:
            return self.totals[key] if key in self.totals else self.loaded.totals[key]
        except KeyError:
            raise Unloaded(total=key) from None

    def rows_of(self, group: SlotGroup) -> list[Row]:
        """The newest rows of a group of slots."""
        try:
            loaded = self.loaded.groups[group]
        except KeyError:
            raise Unloaded(group=group) from None
        changed = self.grouped.get(group)
        if not changed and not self.gone:
            return list(loaded)
        rows = {row.slot: row for row in loaded}
        rows.update(changed or {})
        return [row for _, row in sorted(rows.items()) if row[:3] not in self.gone]

    def facts(self, groups: Sequence[SlotGroup]) -> list[tuple[int, Fact]]:
        """The facts in these groups of slots, by incarnation."""
        found = []
        loaded, changed = self.loaded.groups, self.grouped or self.gone
        for group in groups:
            rows = self.rows_of(group) if changed or group not in loaded else loaded[group]
            for row in rows:
                said = fact.unpack(row.value)
                if said is not None:
                    found.append((int.from_bytes(row.slot[-8:]), said))
        return found

    def erased(self, name: bytes) -> bool:
        """Whether a name was erased."""
        return self.state.erased.closed(name)

    def writer(self) -> Writer:
        """Who writes entries now."""
        state = self.state
        members = [member.name for member in state.ring.active()]
        return Writer(
            agent=state.agent,
            inc=state.inc,
            now_ms=self.now_ms,
            marks=state.marks,
            incs=self.incs,
            facts_max=self.facts_max,
            facts_left=self.facts_max - state.facts - self.more_facts,
            facts_held_by=lambda series: state.marks.held_by(series, state.agent, members),
        )

    # --- writing ---------------------------------------------------------------------------

    def put(self, row: Row) -> None:
        """Change a cell. A change moves its row to the end of the batch (rule B)."""
        key = row[:3]
        self.gone.pop(key, None)
        self.rows.pop(key, None)
        self.rows[key] = row
        if row.slot[0] in _GROUPED:
            prefix = row.slot[:1] if row.slot[0] != _FACT else row.slot[:-8]
            group = (row.space, row.member, prefix)
            if group in self.grouped:
                self.grouped[group][row.slot] = row
            else:
                self.grouped[group] = {row.slot: row}
        elif row.space in (MARKS_SPACE, BANS_SPACE, ERASED_SPACE):
            # Looked at by what comes next, be it in the same batch.
            self.own(row.space).note(row)

    def own(self, space: bytes) -> State:
        """The state, with a copy of what an own space says that is this batch's to change."""
        if space not in self.copied:
            self.copied.add(space)
            self.state = self.state.copied(space)
        return self.state

    def write(self, key: Key, value: Value) -> None:
        """Change a cell as this agent's own write."""
        self.put(row_of((*key, *value, self.state.inc, self.own_seq)))
        self.wrote = True

    def tell(self, key: Key, said: Fact) -> None:
        """Write a fact of this agent's own, before its slots (rule O)."""
        self._write_fact(key, fact.pack(said))
        self.more_facts += 1

    def _write_fact(self, key: Key, value: Value) -> None:
        self.facts_written += 1
        seq = self.state.seq + self.facts_written
        assert seq < self.own_seq
        self.put(row_of((*key, *value, self.state.inc, seq)))
        self.wrote = True

    # --- what comes from elsewhere ---------------------------------------------------------

    def burn(self, reason: str) -> None:
        """Never write as this incarnation again: somebody knows more of it than this file."""
        if not self.state.burnt:
            self.state = replace(self.state, burnt=reason)

    def fence(self, inc: int, boot: Boot) -> bool:
        """Remember the newest process of an incarnation; whether this is one."""
        if boot <= self.state.fences.get(inc, NO_BOOT):
            return False
        self.state = replace(self.state, fences={**self.state.fences, inc: boot})
        return True

    def join(self, row: Row) -> bool:
        """Join one received row; it keeps its stamp. Returns whether it changed my state."""
        state = self.state
        if self.keeps_out(row):
            return row.slot[0] == _FACT and self._late(row)
        mine = row.inc == state.inc and not state.burnt
        if mine and row.seq > state.seq:
            self.alarms.peer_ahead += 1
            self.burn("a peer sent a later write of it than this file holds")
        current = self.row(row[:3])
        if current is not None and row[6:] == current[6:] and row[3:6] != current[3:6]:
            self.alarms.forked += 1
            if mine:
                self.burn("the same write came back with another value: another process wrote it")
        if current is not None and row[3:6] <= current[3:6]:
            return False
        if row.seq <= state.vv.get(row.inc, 0):
            self.alarms.covered_changed += 1
            if mine:
                self.burn("a peer holds a greater value of it than this file")
        if row.slot[0] in COUNTER_KINDS and row.slot[1:9] == state.inc.to_bytes(8):
            # Whatever its stamp: an imported cell bears the importer's.
            self.burn("a slot of it came back greater than this file has it")
        self.put(row)
        self.took(row, current, self.join)
        return True

    def adopt(self, row: Row) -> bool:
        """Join one cell as this agent's own write. Returns whether it changed my state."""
        if row.space == RING_SPACE or self.keeps_out(row):
            return False
        current = self.row(row[:3])
        if current is not None and row[3:6] <= current[3:6]:
            return False
        (self._write_fact if row.slot[0] == _FACT else self.write)(row[:3], row[3:6])
        self.took(self.rows[row[:3]], current, self.adopt)
        return True

    def keeps_out(self, row: Row) -> bool:
        """Whether a cell may not be here any more: its window is collected, or its name erased."""
        state = self.state
        passing = row.space == MARKS_SPACE and row.slot[0] in PASSING_KINDS
        space = row.member if passing else row.space
        return state.marks.collects(space) or state.erased.forbids(row)

    def _late(self, row: Row) -> bool:
        """Count an entry whose key can't be told from others any more: only its slots count."""
        if self.state.erased.forbids(row):
            return False
        changed = [self.join(slot) for slot in implied(row)]
        self.alarms.late_facts += any(changed)
        return any(changed)

    def took(self, row: Row, current: Row | None, take: Callable[[Row], bool]) -> None:
        """What a value that has come from elsewhere, and stands in its cell now, brings about.

        Args:
            current: what the cell held before.
            take: joins what the row implies, as the row itself was joined.
        """
        kind = row.slot[0]
        if is_own(row.space):
            self._took_own(row)
        elif kind in TALLIED_KINDS:
            self.tally(row, current)
            if kind == Kind.RETRACTION and current is None:
                self._retract_siblings(row)
        elif kind == Kind.LATEST:
            self.hear(row.major)
        elif kind == _FACT:
            self.more_facts += current is None
            for slot in implied(row):  # rule V: whoever has a fact has what it did
                take(slot)
            self._void_excess(row)

    def _took_own(self, row: Row) -> None:
        if row.slot[0] == Kind.DEFINITION:
            self.hear(row.minor)
        elif row.space == RING_SPACE and row.slot[0] == Kind.INCARNATION and len(row.slot) == 9:
            inc = incarnation_of(row.slot)
            self.fence(inc, Boot(row.major, row.minor))
            if inc == self.state.inc and not self.state.burnt:
                self.alarms.forked += 1
                self.burn("another process writes as it")

    def hear(self, hybrid_time: int) -> None:
        """Let the hybrid clock follow a time from elsewhere."""
        hlc = hybrid_clock.hear(self.state.hlc, hybrid_time, self.now_ms)
        if hlc != self.state.hlc:
            self.state = replace(self.state, hlc=hlc)

    # --- what follows from a cell ----------------------------------------------------------

    def tally(self, row: Row, current: Row | None) -> None:
        """Keep the total of a member of which a cell rose from `current`."""
        kind, owner = row.slot[0], row[:2]
        total, old = self.total(owner), None if current is None else current[3:6]
        if kind == Kind.HLL:
            self.totals[owner] = self._with_segment(row, current)
        elif kind == Kind.RESULT and old is None:
            retracted = self.row((*owner, _RETRACTION + row.slot[1:])) is not None
            self.totals[owner] = (
                more_cells(total, 1) if retracted else with_result(total, row[3:6], new=True)
            )
        elif kind in (Kind.RESULT, Kind.RETRACTION):
            cells = [*self.rows_of((*owner, _RESULT)), *self.rows_of((*owner, _RETRACTION))]
            self.totals[owner] = of_results((cell.slot, cell.value) for cell in cells)
        else:
            self.totals[owner] = grown(total, kind, old, row[3:6])

    def _with_segment(self, row: Row, current: Row | None) -> Total:
        owner, segment, mine = row[:2], row.slot[9:], row.slot
        slots = {slot_of_replica(Kind.HLL, inc, segment) for inc in self.incs} - {mine}
        others = [value for slot in sorted(slots) if (value := self.value((*owner, slot)))]
        old = [] if current is None else [current[3:6]]
        before = hyperloglog.merged([*others, *old])
        after = hyperloglog.merged([*others, row[3:6]])
        return with_registers(self.total(owner), before, after, new=current is None)

    def _void_excess(self, row: Row) -> None:
        """Take out what a fact has in common with others of its key (rule W)."""
        space, said = decode_space(row.space), fact.unpack(row.value)
        try:
            key, inc = key_in(row.slot)
        except Malformed:
            return
        if space is None or said is None:
            return
        groups = fact_groups(space.board, row.member, key, said.at_ms)
        others = [its for its in self.facts(groups) if its != (inc, said)]
        for place, loser, amount in fact.excess(space.board, (inc, said), others):
            cell = (place, row.member, slot_of_key(Kind.VOID, key, loser))
            if self.state.marks.collects(place) or self.value(cell) is not None:
                continue
            self.write(cell, fact.void(amount))
            self.tally(self.rows[cell], None)

    def _retract_siblings(self, row: Row) -> None:
        """Take a result back in the windows that its retraction did not know of."""
        placed = self.state.catalog.placed(row.space)
        if placed is None:
            return
        placing = Placing(placed.board, self.state.marks, self.state.agent, self.now_ms)
        spots = placing.at(row.minor)
        for spot in (*spots.open, *spots.closed):
            self.retract(spot.space, row.member, row.slot[1:], row.minor)

    def retract(self, space: bytes, member: bytes, key: bytes, at_ms: int) -> bool:
        """Take a result back in one window; returns whether that is new."""
        cell = (space, member, retraction_slot(key))
        if self.state.marks.collects(space) or self.value(cell) is not None:
            return False
        self.write(cell, result.retraction(at_ms))
        self.tally(self.rows[cell], None)
        return True

    # --- the end ---------------------------------------------------------------------------

    def outcome(self, answers: list) -> Outcome:  # type: ignore[type-arg]  # of agent.operation
        """The whole batch's outcome: its own changes bear this agent's stamps."""
        state = self.state
        rows = list(self.rows.values())
        # By its stamp a received row may look like one: of a commit that this file has lost.
        if self.wrote:
            seq = self.own_seq
            state = replace(state, seq=seq, vv={**state.vv, state.inc: seq})
        cells = self.loaded.cells
        dropped = [was for key in self.gone if (was := cells.get(key)) is not None]
        prints, buckets, flips = changes_of(rows, cells, self.loaded.prints, dropped)
        if rows or dropped:
            state = replace(
                state,
                facts=state.facts + self.more_facts,
                lsn=state.lsn + len(rows),
                catalog=state.catalog.with_rows(rows),
                ring=state.ring.with_rows(rows),
                root=state.root ^ flips,
            )
        return Outcome(
            state, rows, prints, buckets, self.totals, answers, self.alarms, dropped, self.entries
        )
