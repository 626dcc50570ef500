"""What one batch of operations does to the state: pure, with everything it needs as arguments.

    state + working set of cells + operations + now  ->  changed cells, vectors, cursors, answers

Operations of clients and chunks of peers enter here and take the same steps: the changes of the
first get this commit's stamp, the rows of the second keep theirs. An operation that is refused
leaves no trace in the batch. Nothing here is durable: the store makes the whole outcome so, or none
of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import assert_never

from agent import exchange, finals, members, membership
from agent.boards import change, rules
from agent.boards.finals import Discard, MakeHashKey, OverrideFinal, SayFinal, Shelve
from agent.boards.tally import Effect, Group, refusal
from agent.crdt import hybrid_clock
from agent.crdt.cell import Row
from agent.draft import Draft
from agent.errors import NotFound, Refused
from agent.exchange import Chunk, Reading, VersionVector
from agent.late import with_late
from agent.membership import incarnation_key, member_key
from agent.operation import (
    Announce,
    Answer,
    BoardChanged,
    Burn,
    ChangeMember,
    Complete,
    ConfirmErasures,
    Define,
    Drop,
    Erase,
    Fence,
    ForgetNames,
    Import,
    LiftBan,
    Mend,
    Merge,
    Merged,
    Mint,
    Operation,
    Repair,
    Reset,
    Retire,
    Retract,
    SetBan,
    SetMarks,
    Singles,
    Write,
    Written,
)
from agent.state import Outcome, State, WorkingSet, read_further, seen_further
from agent.wanted import Wanted


def apply(
    state: State,
    loaded: WorkingSet,
    operations: Sequence[Operation | Singles],
    now_ms: int,
    want: Wanted,
    facts_max: int,
) -> Outcome:
    """Apply operations in order. Those that are refused answer their error and change nothing.

    A `Singles` has one answer for each of its entries.

    Args:
        want: what `wanted` said of these operations.
        facts_max: how many facts are stored at the most.

    Raises:
        Unloaded: something else is needed as well; nothing has happened.
    """
    own_seq, incs = state.seq + want.keyed + 1, sorted(want.incs)
    applying = _Applying(Draft(state, loaded, now_ms, own_seq, incs, facts_max))
    answers: list[Answer] = []
    for operation in operations:
        if isinstance(operation, Singles):
            answers += applying.write_singles(operation.group)
            continue
        try:
            answers.append(applying.apply(operation))
        except Refused as error:
            answers.append(error)
    return with_late(applying.draft.outcome(answers), loaded)


class _Applying:
    """The operations of one batch, on its draft."""

    def __init__(self, draft: Draft) -> None:
        self.draft = draft

    def apply(self, operation: Operation) -> Answer:
        """Apply one operation.

        Raises:
            Refused: nothing of it was applied.
        """
        draft = self.draft
        match operation:
            case Write(groups):
                return self._write_groups(groups)
            case Define() | Reset() | Retire():
                return self._change(operation)
            case Retract() | SetBan() | LiftBan() | Erase() | ConfirmErasures() | ForgetNames():
                return BoardChanged(members.change(draft, operation))
            case SetMarks() | Drop():
                return BoardChanged(members.tend(draft, operation))
            case SayFinal() | OverrideFinal() | MakeHashKey():
                return BoardChanged(finals.change(draft, operation))
            case Announce() | Mint() | Burn() | Fence() | Complete() | ChangeMember():
                return BoardChanged(self._change_ring(operation))
            case Import(rows):
                return Merged(True, sum([draft.adopt(row) for row in rows]))
            case Mend() | Shelve() | Discard():
                raise AssertionError("the store does that: see agent/committer.py")
            case Merge(peer, chunk, vv):
                return self._merge(peer, chunk, vv)
            case Repair(rows):
                return self._repair(rows)
            case _:
                assert_never(operation)

    def _write_groups(self, groups: tuple[Group, ...]) -> Written:
        draft = self.draft
        hlc = draft.state.hlc
        effects = []
        writer = draft.writer()
        for group in groups:
            board = draft.state.catalog.board(group.board)
            effect = rules.tally(board, group, draft, writer, hlc)
            hlc = effect.hlc
            effects.append(effect)
            left = writer.facts_left - len(effect.facts)
            writer = replace(writer, facts_left=left)
        for effect in effects:
            self._take_effect(effect)
        return Written(
            tuple(effect.scores for effect in effects), tuple(effect.notes for effect in effects)
        )

    def write_singles(self, group: Group) -> list[Answer]:
        """Apply requests of one entry each; one answer for each, in order."""
        draft = self.draft
        try:
            board = draft.state.catalog.board(group.board)
        except Refused as error:
            return [error] * len(group.entries)
        effect = rules.tally_each(board, group, draft, draft.writer(), draft.state.hlc)
        self._take_effect(effect)
        notes = effect.notes
        answers: list[Answer] = [
            Written(([scores],), ({0: notes[i]} if i in notes else {},))
            for i, scores in enumerate(effect.scores)
        ]
        for index, refused in effect.refused:
            answers[index] = refusal([(0, refused)])
        return answers

    def _take_effect(self, effect: Effect) -> None:
        draft = self.draft
        for key, said in effect.facts:
            draft.tell(key, said)
        for key, value in effect.values.items():
            draft.write(key, value)
        draft.totals.update(effect.totals)
        if effect.hlc != draft.state.hlc:
            draft.state = replace(draft.state, hlc=effect.hlc)

    def _change(self, operation: Define | Reset | Retire) -> BoardChanged:
        draft = self.draft
        catalog, agent = draft.state.catalog, draft.state.agent
        hlc = hybrid_clock.tick(draft.state.hlc, draft.now_ms)
        writes: change.Writes
        change.check_expected(catalog, operation.board, operation.expected)
        match operation:
            case Define(name, definition):
                writes = change.define(catalog, agent, name, definition, hlc)
            case Reset(name, new):
                writes = change.reset(catalog, agent, name, new, hlc)
            case Retire(name):
                writes = change.retire(catalog, agent, name, hlc)
        for key, value in writes:
            draft.write(key, value)
        if writes:
            draft.state = replace(draft.state, hlc=hlc)
        return BoardChanged(bool(writes))

    def _change_ring(
        self, operation: Announce | Mint | Burn | Fence | Complete | ChangeMember
    ) -> bool:
        draft = self.draft
        match operation:
            case Announce(region, url):
                return self._announce(region, url)
            case Mint(inc, new_log):
                return self._mint(inc, new_log)
            case Burn(inc, reason):
                if inc == draft.state.inc:
                    draft.burn(reason)
                return inc == draft.state.inc
            case Fence(inc, boot):
                return draft.fence(inc, boot)
            case Complete():
                draft.state = replace(draft.state, complete=True)
                return True
            case ChangeMember():
                return self._change_member(operation)
            case _:
                assert_never(operation)

    def _announce(self, region: str, url: str) -> bool:
        draft = self.draft
        state = draft.state
        key = member_key(state.agent)
        said = membership.pack_member(region, url)
        current = draft.value(key)
        moved = current is None or current[2] != said
        if moved:
            epoch = 1 if current is None else current[0] + 1
            draft.write(key, (epoch, 0 if current is None else current[1], said))
        if not state.burnt:
            draft.write(incarnation_key(state.agent, state.inc), (*state.boot, b""))
        return moved

    def _mint(self, inc: int, new_log: int) -> bool:
        draft = self.draft
        state = draft.state = replace(draft.state, inc=inc, log=new_log, seq=0, burnt="")
        draft.own_seq = 1  # it is alone in its transaction: see `changes_catalog`
        draft.write(incarnation_key(state.agent, inc), (*state.boot, b""))
        return True

    def _change_member(self, operation: ChangeMember) -> bool:
        draft = self.draft
        key = member_key(operation.name)
        current = draft.value(key)
        if current is None:
            raise NotFound("unknown_agent", f"the ring has no agent {operation.name!r}")
        new = membership.changed(current, operation.status, operation.url)
        if new is not None:
            draft.write(key, new)
        return new is not None

    def _merge(self, peer: str, chunk: Chunk, vv: VersionVector | None) -> Merged:
        draft = self.draft
        state = draft.state
        reading = state.cursors.get(chunk.log)
        read_to = None if reading is None else reading.lsn
        if state.ring.was_removed(peer) or not exchange.contiguous(chunk, read_to):
            return Merged(False, 0)
        changed = 0
        for row in chunk.rows:
            changed += draft.join(row)
        moved = Reading(peer, exchange.advanced(chunk, read_to))
        if moved != reading:
            draft.state = replace(
                draft.state, cursors=read_further(draft.state.cursors, chunk.log, moved)
            )
        draft.state = replace(draft.state, seen=seen_further(state.seen, chunk.rows))
        if chunk.head and vv is not None:
            if not draft.state.burnt and vv.get(state.inc, 0) > state.seq:
                draft.alarms.peer_ahead += 1
                draft.burn(f"{peer} holds a later commit of it than this file")
            times = exchange.times_join(draft.state.times, chunk.times or {})
            joined = exchange.vv_join(draft.state.vv, vv)
            draft.state = replace(draft.state, vv=joined, times=times)
        return Merged(True, changed)

    def _repair(self, rows: Sequence[Row]) -> Merged:
        """Join what should have been here: no cursor moves, and nothing is claimed."""
        draft = self.draft
        before = draft.alarms.covered_changed
        changed = sum([draft.join(row) for row in rows])
        draft.alarms.covered_changed = before + changed
        return Merged(True, changed)
