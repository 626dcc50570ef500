"""What is done to members of boards, and what an agent does by itself: pure, on a draft.

Bans, erasures and retractions are cells like any other, written by the agent that took the request.
Marks, lifts at the end of a ban and what is dropped are the agent's own housekeeping
(agent/keeping.py finds out what is due).
"""

from __future__ import annotations

from typing import TypeAlias, assert_never

from agent.boards import bans, erasures
from agent.boards.marks import cell_of
from agent.boards.placing import Placing
from agent.crdt import flag, heaviest
from agent.crdt.cell import Key, Row, Value
from agent.crdt.slot import TALLIED_KINDS, Kind
from agent.crdt.space import BANS_SPACE, is_own
from agent.crdt.total import Total, grown
from agent.draft import Draft
from agent.errors import Gone, Malformed, TooLarge, Unavailable
from agent.limits import BANS_MAX, ERASURES_MAX
from agent.operation import (
    ConfirmErasures,
    Drop,
    Erase,
    ForgetNames,
    LiftBan,
    Retract,
    SetBan,
    SetMarks,
)

Change: TypeAlias = Retract | SetBan | LiftBan | Erase | ConfirmErasures | ForgetNames


def change(draft: Draft, operation: Change) -> bool:
    """Apply a change to a member; returns whether it changed anything.

    Raises:
        Refused: nothing was changed.
    """
    match operation:
        case Retract():
            return _retract(draft, operation)
        case SetBan():
            return _ban(draft, operation)
        case LiftBan():
            return _lift(draft, operation)
        case Erase(name, key):
            return _erase(draft, name, key)
        case ConfirmErasures(ids):
            confirmed = [_confirm(draft, its) for its in ids]
            return any(confirmed)
        case ForgetNames(ids):
            forgotten = [_forget(draft, its) for its in ids]
            return any(forgotten)
        case _:
            assert_never(operation)


def tend(draft: Draft, operation: SetMarks | Drop) -> bool:
    """Apply an agent's own housekeeping; returns whether it changed anything."""
    match operation:
        case SetMarks(marks):
            changed = False
            for due in marks:
                state = draft.state
                inc = state.inc if due.kind == Kind.CLOSE else 0
                key, value = cell_of(due.kind, due.series, state.agent, due.window, inc)
                current = draft.row(key)
                if current is None or current.body < value[2]:
                    draft.write(key, value)
                    changed = True
                elif due.again and current.seq > state.vv.get(current.inc, 0):
                    draft.write(key, (current.major, current.minor + 1, current.body))
                    changed = True
            return changed
        case Drop(keys, entries):
            dropped = [_drop(draft, key) for key in keys]
            draft.entries += entries
            return any(dropped) or bool(entries)
        case _:
            assert_never(operation)


def _retract(draft: Draft, operation: Retract) -> bool:
    state = draft.state
    board = state.catalog.board(operation.board)
    _check_name(draft, operation.member)
    placing = Placing(board, state.marks, state.agent, draft.now_ms)
    spots = placing.at(operation.at_ms)
    spaces = {spot.space for spot in (*spots.open, *spots.closed)} | set(operation.spaces)
    changed = [
        draft.retract(space, operation.member, operation.key, operation.at_ms)
        for space in sorted(spaces)
    ]
    return any(changed)


def _ban(draft: Draft, operation: SetBan) -> bool:
    _check_name(draft, operation.member)
    if len(draft.state.bans) >= BANS_MAX and not draft.state.bans.of(operation.member):
        raise TooLarge(f"bans: {BANS_MAX} members are remembered, which is the limit")
    key = bans.ban_key(operation.member, operation.board)
    current = draft.value(key)
    new = bans.banned(current, operation.until_ms, operation.reason, operation.by, draft.now_ms)
    if current is not None and flag.is_on(current):
        stands, wanted = bans.ban_of("", current), bans.ban_of("", new)
        if (stands.until_ms, stands.reason) == (wanted.until_ms, wanted.reason):
            return False
    _write_ban(draft, operation.member, operation.board, new, draft.state.agent)
    return True


def _lift(draft: Draft, operation: LiftBan) -> bool:
    if not operation.expired:
        _check_name(draft, operation.member)
    elif draft.erased(operation.member):
        return False  # its bans are about to go
    key = bans.ban_key(operation.member, operation.board)
    current = draft.value(key)
    if current is None or not flag.is_on(current):
        return False
    at_ms = draft.now_ms
    if operation.expired:
        if not 0 < current[1] <= draft.now_ms:
            return False
        at_ms = current[1]  # the same cell, whoever writes it
    new = bans.lifted(current, operation.reason, operation.by, at_ms)
    assert new is not None
    # Nobody's own change: one cell of the history as well.
    agent = "" if operation.expired else draft.state.agent
    _write_ban(draft, operation.member, operation.board, new, agent)
    return True


def _write_ban(draft: Draft, member: bytes, board: str, value: Value, agent: str) -> None:
    draft.write(bans.ban_key(member, board), value)
    _write(draft, bans.history_key(member, board, value[0], agent), value)


def _check_name(draft: Draft, name: bytes) -> None:
    if draft.erased(name):
        raise Gone("member_erased", "member: this name was erased and is closed for good")


def _erase(draft: Draft, name: bytes, fresh_key: bytes) -> bool:
    erased = draft.state.erased
    if erased.closed(name):
        return False
    if name.startswith(erasures.ERASED_ACTOR):
        raise Malformed("member: names that begin with '~erased:' stand for erased ones")
    if len(erased) >= ERASURES_MAX:
        raise Unavailable("busy", f"erasures: {ERASURES_MAX} are remembered, which is the limit")
    key = erased.key
    if key is None:
        key = fresh_key
        _write(draft, *erasures.key_cell(key))
    tombstone = erasures.tombstone_cell(erasures.id_of(name, key))
    _write(draft, tombstone, (1, draft.now_ms, name))
    return True


def _confirm(draft: Draft, its: bytes) -> bool:
    key = erasures.confirmation_cell(its, draft.state.agent)
    if draft.value(key) is not None:
        return False
    draft.write(key, (1, draft.now_ms, b""))
    return True


def _write(draft: Draft, key: Key, value: Value) -> None:
    """Change a cell, whatever it holds: what it was has to be loaded all the same."""
    draft.value(key)
    draft.write(key, value)


def _forget(draft: Draft, its: bytes) -> bool:
    key = erasures.tombstone_cell(its)
    current = draft.value(key)
    if current is None or current[0] != 1:
        return False
    draft.write(key, (2, current[1], b""))
    return True


def _drop(draft: Draft, key: Key) -> bool:
    """Remove a cell that may not be here any more; returns whether it was here."""
    row = draft.row(key)
    if row is None:
        return False
    if not draft.keeps_out(row):
        return False
    state = draft.state
    collected = state.marks.collects(row.space)
    draft.rows.pop(key, None)
    draft.gone[key] = row
    kind, owner = row.slot[0], row[:2]
    if kind == Kind.FACT:
        draft.more_facts -= 1
    elif row.space == BANS_SPACE:
        draft.own(BANS_SPACE).bans.drop(row.member)
    elif kind in TALLIED_KINDS and not is_own(row.space):
        if kind != Kind.FLAG or collected or draft.erased(row.member):
            draft.totals[owner] = None
        else:
            _rename_actor(draft, row)
    elif kind == Kind.TOP and row.slot[1:9] == state.inc.to_bytes(8) and not collected:
        # Its own place goes on, free: were it gone, its next version would be its first.
        draft.write(key, heaviest.vacated(row.value))
    return True


def _rename_actor(draft: Draft, row: Row) -> None:
    """An erased actor's flag of somebody else goes on under a name that says nothing."""
    owner = row[:2]
    total = draft.total(owner)
    if total is not None:
        score, slots = total.score - (row.major & 1), total.slots - 2
        draft.totals[owner] = Total(score, total.reached_ms, total.rose, slots)
    key = (*owner, bytes([Kind.FLAG]) + erasures.pseudonym(row.slot[1:]))
    current = draft.value(key)
    new = (row.major, 0, b"") if current is None else max(current, (row.major, 0, b""))
    if new != current:
        draft.write(key, new)
        draft.totals[owner] = grown(draft.totals.get(owner), Kind.FLAG, current, new)
    elif (pseudonym := draft.row(key)) is not None:
        # It came from a peer before: said again, as a score that fell is read by the log alone.
        draft.put(pseudonym)
