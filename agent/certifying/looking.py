"""Looking: what a snapshot says about windows and their finals."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import NamedTuple, Protocol

import structlog

from agent.boards.final_waits import waits_of
from agent.boards.finals import Final, certifiable, final_of
from agent.boards.marks import name_of_space, place_of
from agent.certifying.window import Pending
from agent.crdt.cell import Row
from agent.crdt.slot import Kind
from agent.crdt.space import MARKS_SPACE
from agent.state import State
from agent.store.finals import Held, held_of
from agent.store.snapshot import SqliteSnapshot

log = structlog.get_logger("tallyring.certifying")


class SpacesSnapshot(Protocol):
    """What of a snapshot is read here, beside the copies."""

    def spaces(self) -> list[bytes]:
        """All spaces."""

    def rows_in(self, space: bytes) -> list[Row]:
        """All rows of a space."""


class Look(NamedTuple):
    """A window as one snapshot has it: what was said, and the complete copies by their hash."""

    final: Final
    held: Mapping[bytes, Held]


def concerns(space: bytes, state: State) -> bool:
    """Whether a window is one that gets a final here."""
    placed = state.catalog.placed(space)
    return placed is not None and certifiable(placed) and not state.marks.collects(space)


def note_wait(
    window: Pending, final: Final, members: list[str], state: State, space: bytes
) -> None:
    """Note for whom a window waits, and since when digests differ."""
    window.state = final.state(state.agent) or "closed"
    kind = Kind.FROZEN if final.said(Kind.FROZEN, state.agent) else Kind.DIGEST
    said = {name: final.said(kind, name) for name in final.required(members)}
    place = place_of(space)
    assert place is not None, "windows alone get finals"

    def closed(name: str) -> bool:
        return state.marks.closed_by(name, place.series, place.window)

    window.waits = waits_of(final, members, closed).agents
    if kind == Kind.FROZEN or not all(said.values()) or len(set(said.values())) == 1:
        window.differ_since = None
        return
    now = time.monotonic()
    before, window.differ_since = window.differ_since, window.differ_since or now
    if before is not None and window.disagrees(now):
        log.error("digests of a closed window differ", window=name_of_space(space), of=sorted(said))


def closed_windows(snapshot: SpacesSnapshot, state: State) -> set[bytes]:
    """The windows held here that this agent has closed and that get a final."""
    found = set()
    for space in snapshot.spaces():
        place = place_of(space)
        if place is None or not state.marks.closed_by(state.agent, place.series, place.window):
            continue
        if concerns(space, state):
            found.add(space)
    return found


def certified_windows(snapshot: SpacesSnapshot) -> set[bytes]:
    """The windows of which anybody has certified a final."""
    rows = snapshot.rows_in(MARKS_SPACE)
    return {row.member for row in rows if row.slot[0] == Kind.CERTIFICATE}


def look_at(snapshot: SqliteSnapshot, space: bytes) -> Look:
    """A window as a snapshot has it."""
    final = final_of(snapshot.slots_of(MARKS_SPACE, space))
    return Look(final, {held.hash: held for held in held_of(snapshot, space)})


def hash_in_force(snapshot: SqliteSnapshot, space: bytes) -> bytes | None:
    """The hash of a window's final; None where it has none."""
    told = final_of(snapshot.slots_of(MARKS_SPACE, space)).in_force
    return None if told is None else told.hash
