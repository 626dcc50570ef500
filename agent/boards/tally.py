"""Tallying: what a group of entries for one board does to its cells, by the board's rule.

A group is tallied as a whole or refused as a whole. The work per entry is kept small, since this is
the hot path: all entries for one member and window fold into one new value of its cell, with the
running score after each entry (tests hold the fold against entry-by-entry application).

Each rule has a module of its own; what they share is here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, NoReturn, Protocol, TypeAlias

from agent.boards.catalog import Board
from agent.boards.entry import Entry, time_ms
from agent.boards.marks import Marks
from agent.boards.placing import Placing, Spots
from agent.crdt.cell import Key, Row, Value
from agent.crdt.fact import Fact
from agent.crdt.total import Total
from agent.errors import EntryError, Gone, Malformed, OutOfRange, Refused, Unavailable
from agent.limits import BATCH_ERRORS_SHOWN_MAX, TIME_MS_MIN

MemberKey: TypeAlias = tuple[bytes, bytes]
"""(space, member)."""

SlotGroup: TypeAlias = tuple[bytes, bytes, bytes]
"""(space, member, what the slots begin with)."""


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
        """The total of a member; None where it has none."""

    def facts(self, groups: Sequence[SlotGroup]) -> list[tuple[int, Fact]]:
        """The facts in these groups of slots, by incarnation."""

    def rows_of(self, group: SlotGroup) -> list[Row]:
        """The rows of a group of slots."""

    def erased(self, name: bytes) -> bool:
        """Whether a name was erased."""


@dataclass(frozen=True, slots=True)
class Writer:
    """Who writes, and when.

    inc: the incarnation that writes; incs: all incarnations known.
    now_ms: the time of entries without `at`.
    facts_max, facts_left: how many facts may be stored in all, and how many more.
    facts_held_by: by a board's series of facts, the members for which they are kept so long.
    """

    agent: str
    inc: int
    now_ms: int
    marks: Marks
    incs: Sequence[int]
    facts_max: int
    facts_left: int
    facts_held_by: Callable[[bytes], Sequence[str]]


class Note(NamedTuple):
    """What is to be said of an entry beside its scores.

    late: windows that its time falls in and that are closed.
    counted_ms: its key was counted before, at this time (ms since 1970); None: it was not.
    """

    late: tuple[str, ...] = ()
    counted_ms: int | None = None


@dataclass(slots=True)
class Effect:
    """What a group does to its board.

    hlc: the hybrid clock afterwards.
    facts: new facts, each with what it says; they come before the values, in this order.
    values, totals: new values of cells, and new totals.
    scores: by window, the member's score after each entry; of no meaning for a refused one.
    notes: by place in the group, what else is to be said of an entry.
    refused: the entries that were refused, by their index, and why. They change nothing.
    """

    hlc: int
    facts: list[tuple[Key, Fact]] = field(default_factory=list)
    values: dict[Key, Value] = field(default_factory=dict)
    totals: dict[MemberKey, Total] = field(default_factory=dict)
    scores: list[dict[str, int]] = field(default_factory=list)
    notes: dict[int, Note] = field(default_factory=dict)
    refused: list[tuple[int, Refused]] = field(default_factory=list)


@dataclass(slots=True)
class Needs:
    """What has to be loaded before a group can be tallied."""

    cells: set[Key] = field(default_factory=set)
    totals: set[MemberKey] = field(default_factory=set)
    groups: set[SlotGroup] = field(default_factory=set)


class Tallying:
    """One group on its way through its rule's module: what all of them need."""

    def __init__(
        self, board: Board, group: Group, cells: Cells, writer: Writer, effect: Effect
    ) -> None:
        assert board.definition is not None
        self.board = board
        self.definition = board.definition
        self.group = group
        self.cells = cells
        self.writer = writer
        self.effect = effect
        self.placing = Placing(board, writer.marks, writer.agent, writer.now_ms)

    def each(self, count: Callable[[int, Entry], dict[str, int]]) -> None:
        """Count every entry, given its place and itself; the score by window is the answer.

        What one raises as `Refused` refuses that entry alone; it must then have changed nothing.
        """
        scores = self.effect.scores
        for place, entry in enumerate(self.group.entries):
            try:
                scores.append(count(place, entry))
            except Refused as error:
                self.effect.refused.append((self.group.indexes[place], error))
                scores.append({})

    def time_of(self, entry: Entry) -> int:
        """The time of an entry.

        Raises:
            Malformed, OutOfRange: see agent/boards/entry.py.
        """
        at, now_ms = entry.at, self.writer.now_ms
        if type(at) is int and TIME_MS_MIN <= at <= now_ms:
            return at
        return now_ms if at is None else time_ms(at, now_ms)

    def spots(self, place: int, at_ms: int) -> Spots:
        """The windows that take an entry; those that are closed are noted.

        Raises:
            OutOfRange: (`window_closed`)
        """
        spots = self.placing.taking(at_ms)
        if spots.closed:
            self.effect.notes[place] = Note(tuple(spots.late))
        return spots

    def check_member(self, name: bytes, field: str = "member") -> None:
        """Refuse an entry for, or by, somebody who was erased.

        Raises:
            Gone: (`member_erased`)
        """
        if self.cells.erased(name):
            raise Gone("member_erased", f"{field}: this name was erased and is closed for good")


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


def refuse_range(field: str, number: int, score: int, least: int, greatest: int) -> NoReturn:
    """Refuse an entry that would take a score out of the board's range."""
    raise OutOfRange(
        "out_of_range",
        f"{field}: {number} would make the score {score}, outside the board's {least}..{greatest}",
        hint="the board's definition sets the range with score.min and score.max",
    )


def refuse_fields(entry: Entry, rule: str, *fields: str) -> None:
    """Refuse an entry that has one of the fields that its board's rule does not take.

    Raises:
        Malformed: names the field.
    """
    for field_name in fields:
        if getattr(entry, field_name) is not None:
            raise Malformed(f"{field_name}: does not go with a board of rule {rule!r}")


def facts_are_full(held_by: Sequence[str], most: int) -> Unavailable:
    """The refusal of a keyed entry where no more keys can be remembered."""
    if held_by:
        why = f"they are kept until {', '.join(map(repr, held_by))} has read them"
        hint = "bring that agent back, or remove it from the ring"
    else:
        why = "they are kept for the boards' key_retention"
        hint = "try again later, or shorten key_retention"
    return Unavailable("busy", f"key: {most} keys are remembered, the limit; {why}", hint=hint)
