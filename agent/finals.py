"""What is written about finals: pure, on a draft. What comes next is agent/boards/finals.py."""

from __future__ import annotations

from typing import TypeAlias, assert_never

from agent.boards import erasures
from agent.boards.finals import (
    PASSING_KINDS,
    VERSION_BYTES,
    MakeHashKey,
    OverrideFinal,
    SayFinal,
    override_body,
    said_key,
    versioned_key,
)
from agent.crdt.cell import Key
from agent.crdt.slot import Kind
from agent.draft import Draft
from agent.errors import Conflict
from agent.late import changed_since
from agent.state import State

VERSIONS_MAX = 2 ** (8 * VERSION_BYTES) - 1
Change: TypeAlias = SayFinal | OverrideFinal | MakeHashKey


def cells_of(state: State, operation: Change) -> set[Key]:
    """The cells that an operation reads, as far as they are known before."""
    match operation:
        case SayFinal():
            return {_said(state, operation)}
        case OverrideFinal(space, version):
            return {versioned_key(Kind.OVERRIDE, space, version, state.agent)}
        case MakeHashKey(key):
            return {erasures.key_cell(key)[0]}
        case _:
            assert_never(operation)


def change(draft: Draft, operation: Change) -> bool:
    """Write what is said of a final; returns whether that changed anything.

    Raises:
        Refused: nothing was changed.
    """
    match operation:
        case SayFinal():
            return _say(draft, operation)
        case OverrideFinal():
            return _override(draft, operation)
        case MakeHashKey(key):
            if draft.state.erased.key is not None:
                return False
            cell, value = erasures.key_cell(key)
            draft.value(cell)
            draft.write(cell, value)
            return True
        case _:
            assert_never(operation)


def _said(state: State, operation: SayFinal) -> Key:
    if operation.kind in PASSING_KINDS:
        return said_key(operation.kind, operation.space, state.agent)
    return versioned_key(operation.kind, operation.space, operation.version, state.agent)


def _say(draft: Draft, operation: SayFinal) -> bool:
    state, space = draft.state, operation.space
    if operation.lsn is not None:
        touched = changed_since(state, space, operation.lsn)
        if touched or any(key[0] == space for key in draft.rows):
            return False
    key = _said(state, operation)
    current = draft.value(key)
    if operation.kind not in PASSING_KINDS:
        if current is not None:
            return False
        draft.write(key, (1, draft.now_ms, operation.said))
        return True
    number = 1
    if current is not None:
        if current[0] > operation.version or current[::2] == (operation.version, operation.said):
            return False
        number = current[1] + 1 if current[0] == operation.version else 1
    draft.write(key, (operation.version, number, operation.said))
    return True


def _override(draft: Draft, operation: OverrideFinal) -> bool:
    if not 0 < operation.version <= VERSIONS_MAX:
        raise Conflict("final_conflict", f"version: {VERSIONS_MAX} is the greatest there is")
    key = versioned_key(Kind.OVERRIDE, operation.space, operation.version, draft.state.agent)
    if draft.value(key) is not None:
        raise Conflict(
            "final_conflict",
            f"version: {operation.version} of this final was begun here already",
            hint="read the window's final again",
        )
    said = override_body(operation.without, operation.reason, operation.by)
    draft.write(key, (1, draft.now_ms, said))
    return True
