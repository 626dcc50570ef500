"""Standings: what a member's cells say its score is, by the board's rule."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from agent.boards.definition import Definition
from agent.crdt import hyperloglog, lww_register, max_register
from agent.crdt.cell import Value
from agent.crdt.slot import COUNTER_KINDS, Kind
from agent.crdt.total import NEVER_MS, Total, total_of


class Standing(NamedTuple):
    """A member's score, when it was reached (ms since 1970), and its data (packed)."""

    score: int
    reached_ms: int
    data: bytes = b""


def kinds_of(definition: Definition) -> frozenset[Kind]:
    """The kinds of cells that count on a board of this rule."""
    if definition.results:
        return _RESULTS
    return _KINDS[definition.rule]


_RESULTS = frozenset({Kind.RESULT, Kind.RETRACTION})
_KINDS = {
    "sum": COUNTER_KINDS | {Kind.VOID},
    "best": frozenset({Kind.BEST}),
    "latest": frozenset({Kind.LATEST}),
    "distinct": frozenset({Kind.FLAG}),
    "unique": frozenset({Kind.HLL}),
    "trend": frozenset({Kind.SKETCH, Kind.TOP}),
}


def is_register(definition: Definition) -> bool:
    """Whether one cell alone is a member's score; else it has a total, or is estimated (trend)."""
    return definition.rule in ("best", "latest") and not definition.results


def standing_of(definition: Definition, slots: Iterable[tuple[bytes, Value]]) -> Standing | None:
    """The standing of a member from all of its cells, given as (slot, value).

    None where no cell counts on a board of this rule. Cells of other kinds, also unknown ones, are
    passed over. Members of a `trend` board have no cells of their own: see trends.py.
    """
    kinds = kinds_of(definition)
    mine = [(slot, value) for slot, value in slots if slot[0] in kinds]
    if not is_register(definition):
        return None if definition.rule == "trend" else standing_of_total(definition, total_of(mine))
    for _, value in mine:
        return standing_of_register(definition, value)
    return None


def standing_of_total(definition: Definition, total: Total | None) -> Standing | None:
    """The standing of a member from its total; None where it has none, or no result stands."""
    if total is None:
        return None
    if definition.rule == "unique":
        return Standing(hyperloglog.estimate(total.score, total.reached_ms), NEVER_MS)
    if definition.results and total.reached_ms == NEVER_MS:
        return None
    return Standing(total.score, total.reached_ms)


def standing_of_register(definition: Definition, value: Value) -> Standing:
    """The standing in a member's register."""
    if definition.rule == "best":
        score = max_register.score_of(value, low=definition.low)
        return Standing(score, max_register.reached_ms_of(value), value[2])
    return Standing(lww_register.score_of(value), lww_register.reached_ms_of(value), value[2])
