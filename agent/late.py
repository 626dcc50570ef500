"""Late changes: what a batch does to windows that this agent has closed.

Whoever follows the sum over the digests of such a window's standings is told what to add for each
member that changed, so that nothing is read again for one row that came late.
"""

from __future__ import annotations

from dataclasses import replace

from agent.boards.catalog import Placed
from agent.boards.definition import Definition
from agent.boards.final_rows import standing_digest
from agent.boards.finals import Shelve
from agent.boards.marks import place_of
from agent.boards.standing import (
    Standing,
    is_register,
    kinds_of,
    standing_of_register,
    standing_of_total,
)
from agent.crdt.cell import Row
from agent.state import Outcome, State, WorkingSet

TOUCHED_MAX = 4_096


def with_late(outcome: Outcome, loaded: WorkingSet) -> Outcome:
    """The outcome with what it does to windows that this agent has closed."""
    state = outcome.state
    spaces = {row[0] for row in outcome.rows}
    dropped = {row[0] for row in outcome.dropped}
    late: dict[bytes, int | None] = {}
    for space in spaces | dropped:
        placed = _closed(state, space)
        if placed is not None:
            late[space] = None if space in dropped else _added(placed, space, outcome, loaded)
    if not late:
        return outcome
    touched, floor = {**state.touched, **dict.fromkeys(late, state.lsn)}, state.touched_floor
    if len(touched) > TOUCHED_MAX:
        touched, floor = {}, state.lsn
    return replace(outcome, late=late, state=replace(state, touched=touched, touched_floor=floor))


def changed_since(state: State, space: bytes, lsn: int) -> bool:
    """Whether a window that this agent has closed may have changed after an lsn."""
    return max(state.touched.get(space, 0), state.touched_floor) > lsn


def shelved(operation: Shelve, state: State) -> Shelve:
    """The operation, told whether the live standings may differ from what it completes."""
    if operation.lsn is None or operation.late:
        return operation
    return replace(operation, late=changed_since(state, operation.space, operation.lsn))


def _closed(state: State, space: bytes) -> Placed | None:
    """A window of a board in use that this agent has closed, and that is kept."""
    place = place_of(space)
    if place is None or not state.marks.closed_by(state.agent, place.series, place.window):
        return None
    if state.marks.collects(space):
        return None
    placed = state.catalog.placed(space)
    return placed if placed is not None and placed.counted.shown else None


def _added(placed: Placed, space: bytes, outcome: Outcome, loaded: WorkingSet) -> int | None:
    definition = placed.board.definition
    assert definition is not None
    if definition.rule == "trend":
        return None
    kinds = kinds_of(definition)
    rows = {row[:2]: row for row in outcome.rows if row[0] == space and row[2][0] in kinds}
    added = 0
    for (_, member), row in rows.items():
        before, after = _change(definition, row, outcome, loaded)
        added += standing_digest(member, after) - standing_digest(member, before)
    return added


def _change(
    definition: Definition, row: Row, outcome: Outcome, loaded: WorkingSet
) -> tuple[Standing | None, Standing | None]:
    """The standing of a row's member before and after the batch."""
    if is_register(definition):
        old = loaded.cells.get(row[:3])
        before = None if old is None else standing_of_register(definition, old.value)
        return before, standing_of_register(definition, row.value)
    total = loaded.totals.get(row[:2])
    now = outcome.totals.get(row[:2], total)
    return standing_of_total(definition, total), standing_of_total(definition, now)
