"""Standings: what a member's cells say its score is, by the board's rule."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from agent.boards.definition import Definition
from agent.crdt import counter, lww_register, max_register
from agent.crdt.cell import Value
from agent.crdt.slot import Kind


class Standing(NamedTuple):
    """A member's score, when it was reached (ms since 1970), and its data (packed)."""

    score: int
    reached_ms: int
    data: bytes = b""


def standing_of(definition: Definition, slots: Iterable[tuple[bytes, Value]]) -> Standing | None:
    """The standing of a member from all of its cells, given as (slot, value).

    None where no cell counts on a board of this rule. Cells of other kinds, also unknown ones, are
    passed over.
    """
    match definition.rule:
        case "sum":
            counts = ((s[0], value) for s, value in slots if s[0] in (Kind.UP, Kind.DOWN))
            total = counter.total_of(counts)
            return None if total is None else Standing(total.score, total.reached_ms)
        case "best":
            for slot, value in slots:
                if slot[0] == Kind.BEST:
                    return standing_of_best(value, low=definition.low)
        case "latest":
            for slot, value in slots:
                if slot[0] == Kind.LATEST:
                    return standing_of_latest(value)
    return None


def standing_of_best(value: Value, *, low: bool) -> Standing:
    """The standing in a max-register."""
    return Standing(
        max_register.score_of(value, low=low), max_register.reached_ms_of(value), value[2]
    )


def standing_of_latest(value: Value) -> Standing:
    """The standing in an LWW-register."""
    return Standing(lww_register.score_of(value), lww_register.reached_ms_of(value), value[2])
