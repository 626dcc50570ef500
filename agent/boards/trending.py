"""Trending: the entries of a `trend` board, counted in each of its windows' sketches."""

from __future__ import annotations

from collections.abc import Sequence

from agent.boards import trends
from agent.boards.catalog import Board
from agent.boards.entry import Entry, name_bytes, settled_ms
from agent.boards.placing import Placing
from agent.boards.tally import Needs, Tallying, Writer, refuse_fields
from agent.errors import Malformed


def needs(board: Board, entries: Sequence[Entry], writer: Writer, into: Needs) -> None:
    """Add what `tally_trending` will read for these entries."""
    placing = Placing(board, writer.marks, writer.agent, writer.now_ms)
    members: dict[bytes, set[bytes]] = {}
    for entry in entries:
        for spot in placing.at(settled_ms(entry, writer.now_ms)).open:
            members.setdefault(spot.space, set()).add(entry.member.encode(errors="replace"))
    for space, names in members.items():
        into.cells.update(trends.needs(space, names, writer.incs, writer.inc))


def tally_trending(tallying: Tallying) -> None:
    """Count the entries of a group on a `trend` board."""
    writer, effect = tallying.writer, tallying.effect
    half_life_ms = tallying.definition.half_life_ms
    sketches: dict[bytes, trends.TrendTally] = {}

    def sketch_of(space: bytes) -> trends.TrendTally:
        found = sketches.get(space)
        if found is None:
            found = sketches[space] = trends.TrendTally(
                space, tallying.cells.value, writer.inc, writer.incs, half_life_ms, writer.now_ms
            )
        return found

    def count(place: int, entry: Entry) -> dict[str, int]:
        member = name_bytes(entry.member)
        tallying.check_member(member)
        refuse_fields(entry, "trend", "score", "actor", "present", "data")
        if entry.key is not None:
            raise Malformed(
                "key: a board with rule 'trend' remembers none",
                hint="its counts are estimates: leave the key out",
            )
        amount = trends.amount_of(entry)
        at_ms = tallying.time_of(entry)
        spots = tallying.spots(place, at_ms)
        # Planned in all windows before it is counted in any.
        plans = [
            (spot, sketch_of(spot.space), sketch_of(spot.space).plan(member, amount, at_ms))
            for spot in spots.open
        ]
        for _, sketch, plan in plans:
            sketch.apply(plan)
        return {spot.window: plan.estimate for spot, _, plan in plans if spot.shown}

    tallying.each(count)
    for sketch in sketches.values():
        effect.values.update(sketch.values())
