"""What a snapshot says is to be done about spaces: see agent/keeping.py."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from agent.boards.finals import certifiable, final_of
from agent.boards.marks import Due, due, place_of
from agent.crdt.cell import Key, Row, Value
from agent.crdt.fingerprint import Stored
from agent.crdt.space import MARKS_SPACE, shape_prefix
from agent.state import State
from agent.store.scrub import whole


class MarkedSnapshot(Protocol):
    """What of a snapshot is read here."""

    def spaces(self) -> list[bytes]:
        """All spaces."""

    def spaces_of(self, prefix: bytes) -> list[bytes]:
        """The spaces that begin with some bytes."""

    def slots_of(self, space: bytes, member: bytes) -> list[tuple[bytes, Value]]:
        """All cells of one member."""

    def cell(self, key: Key) -> tuple[Row, int] | None:
        """One cell, with its stored fingerprint."""


class Look(NamedTuple):
    """What the marks and the spaces say: see KeepingStatus."""

    due: Sequence[Due] = ()
    collected: Sequence[bytes] = ()
    held: Mapping[str, int] = {}
    mended: frozenset[Key] = frozenset()


def look(
    snapshot: MarkedSnapshot,
    state: State,
    now_ms: int,
    damaged: Iterable[Key],
    *,
    promises: bool,
) -> Look:
    """What is to be done about spaces. `promises`: whether marks may be set."""
    marks, members = state.marks, [member.name for member in state.ring.active()]
    spaces = snapshot.spaces()
    found: list[Due] = []
    if promises and state.agent in members:
        found = due(
            spaces,
            state.catalog,
            marks,
            state.agent,
            members,
            state.vv,
            now_ms,
            lambda series, upto: _uncertified(snapshot, state, members, series, upto),
        )
    collected: list[bytes] = []
    held: Counter[str] = Counter()
    for space in spaces:
        place = place_of(space)
        if place is None:
            continue
        if marks.collects(space):
            collected.append(space)
        elif marks.closed_by(state.agent, place.series, place.window):
            held.update(marks.behind(place.series, place.window, members))
    mended = frozenset(key for key in damaged if _is_whole(snapshot, key))
    return Look(found, collected, held, mended)


def _uncertified(
    snapshot: MarkedSnapshot, state: State, members: list[str], series: bytes, upto: str
) -> str:
    """The oldest window of a series, up to one, whose final not all members have certified yet."""
    collected = state.marks.collected(series)
    waiting = []
    for space in snapshot.spaces_of(shape_prefix(series)):
        place, placed = place_of(space), state.catalog.placed(space)
        if place is None or placed is None or place.series != series or not certifiable(placed):
            continue
        if collected < place.window <= upto:
            final = final_of(snapshot.slots_of(MARKS_SPACE, space))
            if not final.certified_by(members):
                waiting.append(place.window)
    return min(waiting, default="")


def _is_whole(snapshot: MarkedSnapshot, key: Key) -> bool:
    """Whether a cell that was found damaged is so no more, or is gone."""
    found = snapshot.cell(key)
    return found is None or whole(Stored(*found, 0))
