"""Results kept: entries that stay one by one under their keys, so that one can be taken back.

The key is the slot, so a result counts once by itself, and the earliest acceptance of a key stands.
Keys are remembered as long as their windows are kept.
"""

from __future__ import annotations

from collections.abc import Sequence

from agent.boards import body
from agent.boards.catalog import Board
from agent.boards.definition import Definition
from agent.boards.entry import Entry, integer, key_bytes, name_bytes, settled_ms, time_in
from agent.boards.placing import Placing, Spot
from agent.boards.registers import score_in
from agent.boards.tally import Needs, Note, Tallying, Writer, refuse_fields, refuse_range
from agent.crdt import hybrid_clock, result
from agent.crdt.cell import Key, Value
from agent.crdt.slot import Kind
from agent.crdt.total import NEVER_MS, Total, with_result
from agent.errors import Conflict, Malformed, OutOfRange
from agent.limits import DATA_BYTES_MAX

_RESULT, _RETRACTION = bytes([Kind.RESULT]), bytes([Kind.RETRACTION])


def rule_letter(definition: Definition) -> str:
    """How the results of a board add up: see agent/crdt/result.py."""
    if definition.rule == "sum":
        return "s"
    return "l" if definition.low else "h"


def result_slot(key: bytes) -> bytes:
    """The slot of a kept result."""
    return _RESULT + key


def retraction_slot(key: bytes) -> bytes:
    """The slot that takes a kept result back."""
    return _RETRACTION + key


def needs(board: Board, entries: Sequence[Entry], writer: Writer, into: Needs) -> None:
    """Add what `tally_results` will read for these entries."""
    placing = Placing(board, writer.marks, writer.agent, writer.now_ms)
    for entry in entries:
        if entry.key is None:
            continue
        member, key = entry.member.encode(errors="replace"), entry.key.encode(errors="replace")
        spots = placing.at(settled_ms(entry, writer.now_ms))
        for spot in (*spots.open, *spots.closed):
            into.totals.add((spot.space, member))
            into.cells.add((spot.space, member, _RESULT + key))
            into.cells.add((spot.space, member, _RETRACTION + key))


def tally_results(tallying: Tallying) -> None:
    """Count the entries of a group on a board that keeps its results."""
    _Results(tallying).run()


class _Results:
    def __init__(self, tallying: Tallying) -> None:
        self._tallying = tallying
        self._effect = tallying.effect
        self._rule = tallying.definition.rule
        self._letter = rule_letter(tallying.definition)

    def run(self) -> None:
        self._tallying.each(self._count)

    def _value(self, key: Key) -> Value | None:
        return self._effect.values.get(key) or self._tallying.cells.value(key)

    def _total(self, owner: tuple[bytes, bytes]) -> Total | None:
        return self._effect.totals.get(owner) or self._tallying.cells.total(owner)

    def _count(self, place: int, entry: Entry) -> dict[str, int]:
        tallying, effect = self._tallying, self._effect
        member = name_bytes(entry.member)
        tallying.check_member(member)
        score = self._score(entry)
        if entry.key is None:
            raise Malformed("key: missing; this board keeps its results by their keys")
        key = key_bytes(entry.key)
        if entry.at is None:
            entry.at = time_in(entry.key)
        if entry.at is None:
            raise Malformed("at: missing; an entry with a `key` carries the time of its event")
        at_ms = tallying.time_of(entry)
        data = body.pack(entry.data, "data", DATA_BYTES_MAX - 16)
        spots = tallying.placing.at(at_ms)
        all_spots = (*spots.open, *spots.closed)
        known = [self._value((s.space, member, _RESULT + key)) for s in all_spots]
        stands = max((value for value in known if value is not None), default=None)
        if stands is not None:
            if (stands[1], *result.unpack(stands)[1:]) != (score, at_ms, data):
                raise Conflict(
                    "key_conflict",
                    f"key: {entry.key!r} was counted for this member with other content",
                    hint="a key names one result: the same in every retry",
                )
            effect.notes[place] = Note((), hybrid_clock.ms_of(-stands[0]))
        spots = tallying.placing.at(at_ms) if stands is not None else tallying.spots(place, at_ms)
        if stands is None:
            self._check_sums(member, score, spots.open)
            effect.hlc = hybrid_clock.tick(effect.hlc, tallying.writer.now_ms)
            stands = result.of(effect.hlc, score, self._letter, at_ms, data)
        # Also in a window that did not have it yet: its definition came after the result. But not
        # where that came after its retraction, which does not know of the window.
        taken = [self._value((s.space, member, _RETRACTION + key)) is not None for s in all_spots]
        for spot, is_taken in zip(spots.open, taken, strict=False):
            if is_taken or not any(taken):
                self._keep(spot.space, member, key, stands)
        shown = [spot for spot in (*spots.open, *spots.closed) if spot.shown]
        totals = {spot.window: self._total((spot.space, member)) for spot in shown}
        # Where none stands, all were taken back: there is no score, not even 0.
        standing = [(w, total) for w, total in totals.items() if total and total[1] != NEVER_MS]
        return {window: total.score for window, total in standing}

    def _keep(self, space: bytes, member: bytes, key: bytes, value: Value) -> None:
        cell, owner = (space, member, _RESULT + key), (space, member)
        if self._value(cell) is not None:
            return
        self._effect.values[cell] = value
        total = self._total(owner)
        if self._value((space, member, _RETRACTION + key)) is not None:
            slots = 2 if total is None else total.slots + 2
            total = (
                Total(0, -(2**63), False, slots) if total is None else total._replace(slots=slots)
            )
        else:
            total = with_result(total, value, new=True)
        self._effect.totals[owner] = total

    def _check_sums(self, member: bytes, amount: int, spots: Sequence[Spot]) -> None:
        """Refuse what would take a sum out of the board's range; back into it is allowed."""
        if self._rule != "sum":
            return
        least, greatest = self._tallying.definition.score_range()
        for spot in spots:
            total = self._total((spot.space, member))
            score = amount if total is None else total.score + amount
            if (amount > 0 and score > greatest) or (amount < 0 and score < least):
                refuse_range("add", amount, score, least, greatest)

    def _score(self, entry: Entry) -> int:
        definition = self._tallying.definition
        least, greatest = definition.score_range()
        if self._rule == "best":
            score = score_in(entry, self._rule)
            if not least <= score <= greatest:
                refuse_range("score", score, score, least, greatest)
            return score
        refuse_fields(entry, self._rule, "score", "actor", "present")
        if entry.add is None:
            raise Malformed("add: missing; a board with rule 'sum' needs it")
        amount = integer(entry.add, "add")
        if amount < 0 and definition.grow_only:
            raise OutOfRange(
                "grow_only",
                f"add: {amount} on board {self._tallying.board.name!r}, which only grows",
            )
        return amount
