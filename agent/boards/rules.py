"""Rules: which module counts the entries of a board, by the rule of its definition."""

from __future__ import annotations

from typing import assert_never

from agent.boards import actors, registers, results, sums, trending
from agent.boards.catalog import Board
from agent.boards.tally import Cells, Effect, Group, Needs, Tallying, Writer, refusal


def needs(board: Board, group: Group, writer: Writer, into: Needs) -> None:
    """Add the cells, totals and groups of slots that `tally` will read for this group."""
    definition = board.definition
    assert definition is not None
    if definition.results:
        results.needs(board, group.entries, writer, into)
        return
    match definition.rule:
        case "sum":
            sums.needs(board, group.entries, writer, into)
        case "best" | "latest":
            registers.needs(board, group.entries, writer, into)
        case "distinct" | "unique":
            actors.needs(board, group.entries, writer, into)
        case "trend":
            trending.needs(board, group.entries, writer, into)
        case _:
            assert_never(definition.rule)


def tally(board: Board, group: Group, cells: Cells, writer: Writer, hlc: int) -> Effect:
    """What a group does to its board, all of it or nothing.

    Args:
        hlc: the hybrid clock.

    Raises:
        Refused: one or more entries were refused; all of them (up to a bound) are named by index.
    """
    effect = tally_each(board, group, cells, writer, hlc)
    if effect.refused:
        raise refusal(effect.refused)
    return effect


def tally_each(board: Board, group: Group, cells: Cells, writer: Writer, hlc: int) -> Effect:
    """What a group does to its board where each entry stands alone: see `Effect.refused`."""
    tallying = Tallying(board, group, cells, writer, Effect(hlc))
    definition = tallying.definition
    if definition.results:
        results.tally_results(tallying)
        return tallying.effect
    match definition.rule:
        case "sum":
            sums.tally_sums(tallying)
        case "best" | "latest":
            registers.tally_registers(tallying)
        case "distinct":
            actors.tally_distinct(tallying)
        case "unique":
            actors.tally_unique(tallying)
        case "trend":
            trending.tally_trending(tallying)
        case _:
            assert_never(definition.rule)
    return tallying.effect
