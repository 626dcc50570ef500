"""Registers: entries that say a score: the best one counts, or the newest one.

Such an entry is idempotent by itself: a key is accepted, not remembered, and never a conflict.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from agent.boards import body
from agent.boards.catalog import Board
from agent.boards.definition import Definition
from agent.boards.entry import Entry, integer, key_bytes, name_bytes, settled_ms, time_in
from agent.boards.placing import Placing
from agent.boards.tally import Needs, Tallying, Writer, refuse_fields, refuse_range
from agent.crdt import hybrid_clock, lww_register, max_register
from agent.crdt.cell import Value
from agent.crdt.slot import Kind, slot_of_one
from agent.errors import Malformed
from agent.limits import DATA_BYTES_MAX, INT64_MAX

Write: TypeAlias = Callable[[Value | None, int, int | None, bytes, int, int], tuple[Value, int]]
"""(current value, score, at or None, data, hybrid clock, now) -> (new value, hybrid clock)."""


def register_slot(rule: str) -> bytes:
    """The slot of a member's register."""
    return slot_of_one(Kind.BEST if rule == "best" else Kind.LATEST)


def needs(board: Board, entries: Sequence[Entry], writer: Writer, into: Needs) -> None:
    """Add what `tally_registers` will read for these entries."""
    assert board.definition is not None
    placing = Placing(board, writer.marks, writer.agent, writer.now_ms)
    slot = register_slot(board.definition.rule)
    for entry in entries:
        member = entry.member.encode(errors="replace")
        for spot in placing.at(settled_ms(entry, writer.now_ms)).open:
            into.cells.add((spot.space, member, slot))


def tally_registers(tallying: Tallying) -> None:
    """Count the entries of a group on a `best` or `latest` board."""
    definition, cells, effect = tallying.definition, tallying.cells, tallying.effect
    write = _best(definition) if definition.rule == "best" else _latest
    least, greatest = definition.score_range()
    slot, now_ms, values = register_slot(definition.rule), tallying.writer.now_ms, effect.values

    def count(place: int, entry: Entry) -> dict[str, int]:
        member = name_bytes(entry.member)
        tallying.check_member(member)
        score = score_in(entry, definition.rule)
        if not least <= score <= greatest:
            refuse_range("score", score, score, least, greatest)
        if entry.key is not None:
            key_bytes(entry.key)
            if entry.at is None:
                entry.at = time_in(entry.key)
        at_ms = None if entry.at is None else tallying.time_of(entry)
        data = body.pack(entry.data, "data", DATA_BYTES_MAX)
        spots = tallying.spots(place, now_ms if at_ms is None else at_ms)
        scores = {}
        for spot in spots.open:
            key = (spot.space, member, slot)
            current = values.get(key) or cells.value(key)
            value, effect.hlc = write(current, score, at_ms, data, effect.hlc, now_ms)
            if value is not current:
                values[key] = value
            if spot.shown:
                scores[spot.window] = _shown(definition, value)
        return scores

    tallying.each(count)


def _shown(definition: Definition, value: Value) -> int:
    if definition.rule == "best":
        return max_register.score_of(value, low=definition.low)
    return lww_register.score_of(value)


def _best(definition: Definition) -> Write:
    low = definition.low

    def write(
        current: Value | None, score: int, at_ms: int | None, data: bytes, hlc: int, now_ms: int
    ) -> tuple[Value, int]:
        at_ms = now_ms if at_ms is None else at_ms
        return max_register.offer(current, score, at_ms, data, low=low), hlc

    return write


def _latest(
    current: Value | None, score: int, at_ms: int | None, data: bytes, hlc: int, now_ms: int
) -> tuple[Value, int]:
    if at_ms is not None:
        return lww_register.write(current, hybrid_clock.of_ms(at_ms), score, data), hlc
    hlc = hybrid_clock.tick(hlc, now_ms)
    # Above what it has seen, even a stamp from the future that did not move the clock.
    stamp = hlc if current is None else max(hlc, min(current[0] + 1, INT64_MAX))
    return lww_register.write(current, stamp, score, data), hlc


def score_in(entry: Entry, rule: str) -> int:
    """The `score` of an entry.

    Raises:
        Malformed: it has none, or a field that does not go with its board.
    """
    if entry.actor is not None or entry.present is not None:
        refuse_fields(entry, rule, "actor", "present")
    if entry.add is not None:
        raise Malformed(f"add: a board with rule {rule!r} takes 'score'")
    if entry.score is None:
        raise Malformed(f"score: missing; a board with rule {rule!r} needs it")
    return integer(entry.score, "score")
