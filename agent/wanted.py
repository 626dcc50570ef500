"""What a batch of operations will read: found out before it is loaded, so that `apply` is pure.

What can't be known before (a cell that only another one points to) is asked for by `apply` itself:
see `Unloaded` in draft.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import assert_never

from agent import finals
from agent.boards import bans, change, erasures, rules
from agent.boards.finals import Discard, MakeHashKey, OverrideFinal, SayFinal, Shelve
from agent.boards.marks import cell_of
from agent.boards.results import retraction_slot
from agent.boards.sums import fact_groups
from agent.boards.tally import Group, Needs, Writer
from agent.crdt.cell import Key, Row
from agent.crdt.slot import COUNTER_KINDS, TALLIED_KINDS, Kind, slot_of_replica
from agent.crdt.space import decode_space, is_own
from agent.draft import Draft
from agent.exchange import Chunk
from agent.facts import implied, voids_of
from agent.membership import incarnation_key, member_key
from agent.operation import (
    Announce,
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
)
from agent.state import State, WorkingSet


@dataclass(slots=True)
class Wanted(Needs):
    """What to load before a batch: cells, totals, groups of slots.

    keyed: how many facts the batch may write at the most.
    incs: all incarnations of which it may meet cells.
    """

    keyed: int = 0
    incs: set[int] = field(default_factory=set)


def wanted(state: State, operations: Sequence[Operation | Singles], now_ms: int) -> Wanted:
    """What to load before `apply`, for operations that meet one catalog."""
    # Cells of an incarnation may come before the ring's row that says whose it is.
    into = Wanted(incs={*state.ring.agents, *state.seen, *state.vv, state.inc})
    for operation in operations:
        match operation:
            case Merge(_, Chunk(rows=rows)) | Import(rows) | Repair(rows):
                into.incs.update(
                    int.from_bytes(row.slot[1:9]) for row in rows if row.slot[0] == Kind.HLL
                )
                if isinstance(operation, Import):  # as own writes: see Draft.adopt
                    into.keyed += sum(row.slot[0] == Kind.FACT for row in rows)
            case _:
                pass
    writer = Draft(state, WorkingSet({}, {}), now_ms, 0, sorted(into.incs), 0).writer()
    for operation in operations:
        _wanted_of(state, operation, writer, into)
    return into


def _wanted_of(state: State, operation: Operation | Singles, writer: Writer, into: Wanted) -> None:
    cells = into.cells
    match operation:
        case Write(groups):
            for group in groups:
                _needs_of(state, group, writer, into)
        case Singles(group):
            _needs_of(state, group, writer, into)
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
                _wanted_of_row(row, into)
        case SetMarks() | Drop() | ConfirmErasures() | ForgetNames():
            _wanted_to_tend(state, operation, into)
        case Retract() | SetBan() | LiftBan() | Erase():
            _wanted_to_change(state, operation, into)
        case SayFinal() | OverrideFinal() | MakeHashKey():
            cells.update(finals.cells_of(state, operation))
        case Burn() | Complete() | Fence() | Mend() | Shelve() | Discard():
            pass
        case _:
            assert_never(operation)


def _wanted_to_tend(
    state: State, operation: SetMarks | Drop | ConfirmErasures | ForgetNames, into: Wanted
) -> None:
    """What an agent's own housekeeping reads."""
    cells = into.cells
    match operation:
        case SetMarks(marks):
            cells.update(cell_of(due.kind, due.series, state.agent, due.window)[0] for due in marks)
        case ConfirmErasures(ids):
            cells.update(erasures.confirmation_cell(its, state.agent) for its in ids)
        case ForgetNames(ids):
            cells.update(erasures.tombstone_cell(its) for its in ids)
        case Drop(keys):
            flags = [key for key in keys if key[2][0] == Kind.FLAG and not is_own(key[0])]
            cells.update(keys)
            into.totals.update(key[:2] for key in flags)
            for space, member, slot in flags:  # an erased actor's goes on under another name
                if state.erased.closed(slot[1:]):
                    cells.add((space, member, slot[:1] + erasures.pseudonym(slot[1:])))


def _wanted_to_change(
    state: State, operation: Retract | SetBan | LiftBan | Erase, into: Wanted
) -> None:
    """What a change to a member of boards reads, as far as it is known before."""
    match operation:
        case Retract(_, member, key, _, spaces):
            for space in spaces:
                _wanted_to_retract(space, member, key, into)
        case SetBan(member, board) | LiftBan(member, board):
            expired = isinstance(operation, LiftBan) and operation.expired
            agent = "" if expired else state.agent
            its = [ban.length for ban in state.bans.of(member) if ban.board == board]
            length = max(its, default=0)  # of its next change: see flag.py
            into.cells.add(bans.ban_key(member, board))
            into.cells.add(bans.history_key(member, board, length + 1, agent))
            into.cells.add(bans.history_key(member, board, length + 2, agent))
        case Erase(name, fresh):
            key = state.erased.key or fresh
            into.cells.add(erasures.key_cell(key)[0])
            into.cells.add(erasures.tombstone_cell(erasures.id_of(name, key)))


def _needs_of(state: State, group: Group, writer: Writer, into: Wanted) -> None:
    board = state.catalog.find(group.board)
    if board is not None and board.definition is not None:
        rules.needs(board, group, writer, into)
        if board.definition.rule == "sum":
            into.keyed += sum(1 for entry in group.entries if entry.key is not None)


def _wanted_of_row(row: Row, into: Wanted) -> None:
    """What joining a row reads, and what follows from it."""
    into.cells.add(row[:3])
    kind = row.slot[0]
    if kind in COUNTER_KINDS:
        into.totals.add(row[:2])
    elif kind == Kind.FACT:
        for slot in implied(row):
            into.cells.add(slot[:3])
            into.totals.add(slot[:2])
        space = decode_space(row.space)
        if space is not None and len(row.slot) >= 11:
            key = row.slot[3:-8]
            into.groups.update(fact_groups(space.board, row.member, key, row.minor))
    elif kind in TALLIED_KINDS and not is_own(row.space):
        into.totals.add(row[:2])
        if kind == Kind.RETRACTION:
            _wanted_to_retract(row.space, row.member, row.slot[1:], into)
        elif kind == Kind.RESULT:
            into.cells.add((*row[:2], retraction_slot(row.slot[1:])))
        elif kind == Kind.HLL:
            into.cells.update(
                (*row[:2], slot_of_replica(Kind.HLL, inc, row.slot[9:])) for inc in into.incs
            )


def _wanted_to_retract(space: bytes, member: bytes, key: bytes, into: Wanted) -> None:
    into.totals.add((space, member))
    into.cells.add((space, member, retraction_slot(key)))
    into.groups.add((space, member, bytes([Kind.RESULT])))
    into.groups.add((space, member, bytes([Kind.RETRACTION])))


def voids_wanted(
    loaded: WorkingSet, operations: Sequence[Operation | Singles], inc: int
) -> set[Key]:
    """The voids that may be written: to be loaded, with their members' totals, once facts are.

    That is where a received fact meets others of its key: stored ones, received ones, and those
    that `inc` writes in the same batch.
    """
    found: set[Key] = set()
    facts: list[Row] = []
    for operation in operations:
        match operation:
            case Merge(_, Chunk(rows=rows)) | Import(rows) | Repair(rows):
                facts += [row for row in rows if row.slot[0] == Kind.FACT]
            case _:
                pass
    if not facts:
        return found
    written = _keys_written(operations)
    met: dict[tuple[bytes, bytes], list[Row]] = {}
    for row in facts:
        met.setdefault((row.member, row.slot[1:-8]), []).append(row)
    for row in facts:
        space = decode_space(row.space)
        if space is None or len(row.slot) < 11:
            continue
        key = row.slot[3:-8]
        groups = fact_groups(space.board, row.member, key, row.minor)
        known = [other for group in groups for other in loaded.groups.get(group, ())]
        known += met[row.member, row.slot[1:-8]]
        if (space.board, row.member, key) in written:
            known.append(row._replace(slot=row.slot[:-8] + inc.to_bytes(8)))
        if any(other.slot != row.slot for other in known):
            for other in (row, *known):
                found.update(voids_of(other))
    return found


def _keys_written(operations: Sequence[Operation | Singles]) -> set[tuple[str, bytes, bytes]]:
    """(board, member, key) of all entries with a key."""
    found = set()
    for operation in operations:
        groups: Sequence[Group] = ()
        if isinstance(operation, Write):
            groups = operation.groups
        elif isinstance(operation, Singles):
            groups = (operation.group,)
        for group in groups:
            for entry in group.entries:
                if entry.key is not None:
                    member, key = (
                        entry.member.encode(errors="replace"),
                        entry.key.encode(errors="replace"),
                    )
                    found.add((group.board, member, key))
    return found
