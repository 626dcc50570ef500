"""Tallying: what a group of entries for one board does to its cells, by the board's rule.

A group is tallied as a whole or refused as a whole. The work per entry is kept small, since this is
the hot path: all entries for one member fold into one new value of its cell, with the running
score after each entry (tests hold the fold against entry-by-entry application).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NoReturn, Protocol, TypeAlias

from agent.boards import body
from agent.boards.catalog import Board
from agent.boards.definition import Definition
from agent.boards.entry import Entry, integer, name_bytes, time_ms
from agent.crdt import counter, hybrid_clock, lww_register, max_register
from agent.crdt.cell import Key, Value
from agent.crdt.counter import Total
from agent.crdt.slot import Kind, slot_of_one, slot_of_replica
from agent.errors import EntryError, Malformed, OutOfRange, Refused
from agent.limits import (
    BATCH_ERRORS_SHOWN_MAX,
    COUNTER_SLOT_MAX,
    DATA_BYTES_MAX,
    INT64_MAX,
    KEY_BYTES_MAX,
    SCORE_MAX,
)

MemberKey: TypeAlias = tuple[bytes, bytes]
"""(space, member)."""


@dataclass(frozen=True, slots=True)
class Group:
    """The entries of one request for one board. `indexes` are their places in the request."""

    board: str
    entries: Sequence[Entry]
    indexes: Sequence[int]


class Cells(Protocol):
    """The state that entries meet: loaded cells and totals, with this batch's changes on top."""

    def value(self, key: Key) -> Value | None:
        """The value of a cell; None where it was never written."""

    def total(self, key: MemberKey) -> Total | None:
        """The total of a member's counter slots; None where it has none."""


@dataclass(slots=True)
class Effect:
    """What a group does to its board.

    hlc: the hybrid clock afterwards.
    values, totals: new values of cells, and new totals.
    scores: the member's score after each entry; of no meaning for a refused one.
    refused: the entries that were refused, by their index, and why. They change nothing.
    """

    hlc: int
    values: dict[Key, Value] = field(default_factory=dict)
    totals: dict[MemberKey, Total] = field(default_factory=dict)
    scores: list[int] = field(default_factory=list)
    refused: list[tuple[int, Refused]] = field(default_factory=list)


class _Tally:
    """One member's share of a group on a `sum` board."""

    __slots__ = ("down", "down_ms", "first_ms", "key", "room", "score", "total", "up", "up_ms")

    def __init__(self, key: MemberKey, total: Total | None, up: Value | None) -> None:
        self.key = key
        self.total = total
        self.score = 0 if total is None else total.score
        self.room = COUNTER_SLOT_MAX - (0 if up is None else up[0])  # left in the `+` slot
        self.up = self.down = 0
        self.up_ms = self.down_ms = -(2**63)
        self.first_ms: int | None = None  # of an entry that adds 0 to an unknown member


def needs(board: Board, group: Group, inc: int, cells: set[Key], members: set[MemberKey]) -> None:
    """Add the cells and the totals that `tally` will read for this group."""
    assert board.definition is not None
    space = board.space
    names = {entry.member.encode(errors="replace") for entry in group.entries}
    if board.definition.rule == "sum":
        up, down = slot_of_replica(Kind.UP, inc), slot_of_replica(Kind.DOWN, inc)
        members.update((space, name) for name in names)
        cells.update((space, name, up) for name in names)
        if not board.definition.grow_only:
            cells.update(
                (space, entry.member.encode(errors="replace"), down)
                for entry in group.entries
                if entry.add is not None and entry.add < 0
            )
    else:
        slot = slot_of_one(Kind.BEST if board.definition.rule == "best" else Kind.LATEST)
        cells.update((space, name, slot) for name in names)


def tally(board: Board, group: Group, cells: Cells, inc: int, hlc: int, now_ms: int) -> Effect:
    """What a group does to its board, all of it or nothing.

    Args:
        inc: the incarnation that writes.
        hlc: the hybrid clock.
        now_ms: the time of entries without `at`.

    Raises:
        Refused: one or more entries were refused; all of them (up to a bound) are named by index.
    """
    effect = tally_each(board, group, cells, inc, hlc, now_ms)
    if effect.refused:
        raise refusal(effect.refused)
    return effect


def tally_each(board: Board, group: Group, cells: Cells, inc: int, hlc: int, now_ms: int) -> Effect:
    """What a group does to its board where each entry stands alone: see `Effect.refused`."""
    assert board.definition is not None
    effect = Effect(hlc)
    match board.definition.rule:
        case "sum":
            _tally_sum(board, group, cells, inc, now_ms, effect)
        case "best":
            _tally_register(board, group, cells, _best(board.definition), now_ms, effect)
        case "latest":
            _tally_register(board, group, cells, _latest, now_ms, effect)
    return effect


def refusal(refused: Sequence[tuple[int, Refused]]) -> Refused:
    """The first refusal, carrying all of them up to a bound, by index in the request."""
    index, first = refused[0]
    first.errors = tuple(
        EntryError(i, error.code, error.detail, error.hint)
        for i, error in refused[:BATCH_ERRORS_SHOWN_MAX]
    )
    more = f" (and {len(refused) - 1} more)" if len(refused) > 1 else ""
    first.detail = f"entries[{index}].{first.detail}{more}"
    return first


def _tally_sum(
    board: Board, group: Group, cells: Cells, inc: int, now_ms: int, effect: Effect
) -> None:
    assert board.definition is not None
    least, greatest = board.definition.score_range()
    grow_only = board.definition.grow_only
    space = board.space
    up, down = slot_of_replica(Kind.UP, inc), slot_of_replica(Kind.DOWN, inc)
    tallies: dict[str, _Tally] = {}
    scores = effect.scores
    for index, entry in zip(group.indexes, group.entries, strict=True):
        score = 0
        try:
            mine = tallies.get(entry.member)
            if mine is None:
                key = (space, name_bytes(entry.member))
                mine = _Tally(key, cells.total(key), cells.value((*key, up)))
                tallies[entry.member] = mine
            amount = entry.add
            if (
                type(amount) is not int
                or not -SCORE_MAX <= amount <= SCORE_MAX
                or entry.score is not None
                or entry.key is not None
                or entry.data is not None
            ):
                amount = _amount(entry)
            at_ms = now_ms if entry.at is None else time_ms(entry.at, now_ms)
            score = mine.score + amount
            # Concurrent regions may have carried the total out of the range: back in is allowed.
            too_low = score < least and amount < 0 and not grow_only
            if too_low or (score > greatest and amount > 0):
                _out_of_range("add", amount, score, least, greatest)
            if amount > 0:
                if mine.up + amount > mine.room:
                    _slot_is_full()
                mine.up += amount
                if at_ms > mine.up_ms:
                    mine.up_ms = at_ms
            elif amount < 0:
                if grow_only:
                    raise OutOfRange(
                        "grow_only", f"add: {amount} on board {board.name!r}, which only grows"
                    )
                _take(mine, -amount, at_ms, cells.value((*mine.key, down)))
            elif mine.total is None and not mine.up and not mine.down and mine.first_ms is None:
                mine.first_ms = at_ms
            mine.score = score
        except Refused as error:
            effect.refused.append((index, error))
        scores.append(score)
    for mine in tallies.values():
        _settle(mine, cells, up, down, effect)


def _take(mine: _Tally, amount: int, at_ms: int, down: Value | None) -> None:
    if mine.down + amount > COUNTER_SLOT_MAX - (0 if down is None else down[0]):
        _slot_is_full()
    mine.down += amount
    mine.down_ms = max(mine.down_ms, at_ms)


def _slot_is_full() -> NoReturn:
    raise OutOfRange(
        "out_of_range",
        f"add: what this agent added to the member would be over {COUNTER_SLOT_MAX} in all",
    )


def _settle(mine: _Tally, cells: Cells, up: bytes, down: bytes, effect: Effect) -> None:
    """Turn one member's tally into new values of its two slots, and its new total."""
    total = mine.total
    if mine.up or mine.first_ms is not None:
        at_ms = mine.up_ms if mine.up or mine.first_ms is None else mine.first_ms
        total = _grow((*mine.key, up), mine.up, at_ms, total, cells, effect)
    if mine.down:
        total = _grow((*mine.key, down), mine.down, mine.down_ms, total, cells, effect)
    if total is not None and total is not mine.total:
        effect.totals[mine.key] = total


def _grow(
    key: Key, amount: int, at_ms: int, total: Total | None, cells: Cells, effect: Effect
) -> Total:
    old = cells.value(key)
    new = effect.values[key] = counter.add(old, amount, at_ms)
    return counter.replace(total, key[2][0], old, new)


def _amount(entry: Entry) -> int:
    """The `add` of an entry for a `sum` board, once the quick check did not pass it."""
    if entry.score is not None:
        raise Malformed("score: a board with rule 'sum' takes 'add'")
    if entry.data is not None:
        raise Malformed("data: a board with rule 'sum' keeps no data with a score")
    if entry.key is not None:
        raise Malformed("key: boards with rule 'sum' take no idempotency keys in this version")
    if entry.add is None:
        raise Malformed("add: missing; a board with rule 'sum' needs it")
    return integer(entry.add, "add")


Write: TypeAlias = Callable[[Value | None, int, int | None, bytes, int, int], tuple[Value, int]]
"""(current value, score, at or None, data, hybrid clock, now) -> (new value, hybrid clock)."""


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


def _tally_register(
    board: Board, group: Group, cells: Cells, write: Write, now_ms: int, effect: Effect
) -> None:
    assert board.definition is not None
    definition = board.definition
    least, greatest = definition.score_range()
    slot = slot_of_one(Kind.BEST if definition.rule == "best" else Kind.LATEST)
    values, scores = effect.values, effect.scores
    for index, entry in zip(group.indexes, group.entries, strict=True):
        score = 0
        try:
            key = (board.space, name_bytes(entry.member), slot)
            score = _score(entry, definition.rule)
            if not least <= score <= greatest:
                _out_of_range("score", score, score, least, greatest)
            at_ms = None if entry.at is None else time_ms(entry.at, now_ms)
            data = body.pack(entry.data, "data", DATA_BYTES_MAX)
            current = values.get(key) or cells.value(key)
            value, effect.hlc = write(current, score, at_ms, data, effect.hlc, now_ms)
            if value is not current:
                values[key] = value
            if definition.rule == "best":
                score = max_register.score_of(value, low=definition.low)
            else:
                score = lww_register.score_of(value)
        except Refused as error:
            effect.refused.append((index, error))
        scores.append(score)


def _score(entry: Entry, rule: str) -> int:
    """The `score` of an entry for a `best` or `latest` board."""
    if entry.add is not None:
        raise Malformed(f"add: a board with rule {rule!r} takes 'score'")
    if entry.score is None:
        raise Malformed(f"score: missing; a board with rule {rule!r} needs it")
    if entry.key is not None and not 0 < len(entry.key.encode(errors="replace")) <= KEY_BYTES_MAX:
        raise Malformed(f"key: 1 to {KEY_BYTES_MAX} bytes are needed")
    return integer(entry.score, "score")


def _out_of_range(field: str, number: int, score: int, least: int, greatest: int) -> NoReturn:
    raise OutOfRange(
        "out_of_range",
        f"{field}: {number} would make the score {score}, outside the board's {least}..{greatest}",
        hint="the board's definition sets the range with score.min and score.max",
    )
