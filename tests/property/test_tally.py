"""Tallying: a group folds to what its entries do one by one, or is refused without a trace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.boards import rules
from agent.boards.catalog import Board, Catalog
from agent.boards.definition import SCORED_RULES, Definition, ScoreRange, to_body
from agent.boards.entry import Entry
from agent.boards.marks import Marks
from agent.boards.standing import standing_of
from agent.boards.tally import Effect, Group, MemberKey, Needs, SlotGroup, Writer
from agent.boards.windows import WindowSpec
from agent.crdt import hybrid_clock
from agent.crdt.cell import Key, Row, Value
from agent.crdt.fact import Fact, pack, unpack
from agent.crdt.slot import Kind, slot_of_one, slot_of_replica
from agent.crdt.space import BOARDS_SPACE
from agent.crdt.total import Total, contribution, total_of
from agent.errors import Refused
from agent.limits import BATCH_ERRORS_SHOWN_MAX, COUNTER_SLOT_MAX, SCORE_MAX

INC, NOW_MS = 5, 1_800_000_000_000
DEFINITIONS = {
    "sum": Definition(rule="sum", score=ScoreRange(-12, 12)),
    "grow_only": Definition(rule="sum", grow_only=True, score=ScoreRange(0, 12)),
    "best high": Definition(rule="best", score=ScoreRange(-12, 12)),
    "best low": Definition(rule="best", order="low", score=ScoreRange(-12, 12)),
    "latest": Definition(rule="latest", score=ScoreRange(-12, 12)),
}

WINDOWS = (WindowSpec("all"), WindowSpec("day", zone="Asia/Tokyo"), WindowSpec("last:2h"))
FOLDED = DEFINITIONS | {
    "sum in windows": Definition(rule="sum", score=ScoreRange(-12, 12), windows=WINDOWS),
    "best in windows": Definition(rule="best", score=ScoreRange(-12, 12), windows=WINDOWS),
    "distinct": Definition(rule="distinct", windows=WINDOWS),
    "unique": Definition(rule="unique", windows=WINDOWS),
    "sum of results": Definition(
        rule="sum", results="keep", score=ScoreRange(-12, 12), windows=WINDOWS[1:]
    ),
    "best of results": Definition(
        rule="best", results="keep", score=ScoreRange(-12, 12), windows=WINDOWS[1:]
    ),
}


def board_of(definition: Definition) -> Board:
    row = Row(BOARDS_SPACE, b"b", b"Deu", 1, 1, to_body(definition, {}), 1, 1)
    return Catalog().with_rows([row]).board("b")


@dataclass
class Cells:
    """An agent's cells, which fail on what `needs` did not name."""

    values: dict[Key, Value] = field(default_factory=dict)
    totals: dict[MemberKey, Total] = field(default_factory=dict)
    hlc: int = 0
    gone: frozenset[bytes] = frozenset()
    loaded: Needs = field(default_factory=Needs)

    def value(self, key: Key) -> Value | None:
        assert key in self.loaded.cells, key
        return self.values.get(key)

    def total(self, key: MemberKey) -> Total | None:
        assert key in self.loaded.totals, key
        return self.totals.get(key)

    def rows_of(self, group: SlotGroup) -> list[Row]:
        raise AssertionError(f"no rule reads a whole group to count an entry: {group}")

    def facts(self, groups: Sequence[SlotGroup]) -> list[tuple[int, Fact]]:
        assert self.loaded.groups >= set(groups)
        return [
            (int.from_bytes(key[2][-8:]), told)
            for key, value in self.values.items()
            if (*key[:2], key[2][:-8]) in groups and (told := unpack(value)) is not None
        ]

    def erased(self, name: bytes) -> bool:
        return name in self.gone

    def take(self, board: Board, entries: list[Entry], now_ms: int = NOW_MS) -> Effect:
        group = Group("b", entries, range(len(entries)))
        writer = Writer(
            agent="eu",
            inc=INC,
            now_ms=now_ms,
            marks=Marks(),
            incs=[INC, 99],
            facts_left=1_000,
            facts_max=1_000,
            facts_held_by=lambda _series: [],
        )
        self.loaded = Needs()
        rules.needs(board, group, writer, self.loaded)
        effect = rules.tally(board, group, self, writer, self.hlc)
        self.values |= {key: pack(told) for key, told in effect.facts} | effect.values
        self.totals |= effect.totals
        self.hlc = effect.hlc
        return effect


NUMBERS = st.one_of(st.integers(-6, 6), st.sampled_from([0, 2.0, -3.0]))
ATS = st.one_of(st.none(), st.integers(NOW_MS - 9, NOW_MS + 9), st.just(NOW_MS + 50_000))


# A keyed entry's time goes with its key, as in retries; the last one is in the next bucket.
KEYS = {"k1": NOW_MS - 5, "k2": NOW_MS - 7_200_000 // 3, "k3": NOW_MS + 50_000}


@st.composite
def entries_for(draw: st.DrawFn, definition: Definition) -> list[Entry]:
    rule, entries = definition.rule, []
    for _ in range(draw(st.integers(0, 8))):
        member, number, at = draw(st.sampled_from("abc")), draw(NUMBERS), draw(ATS)
        key = None
        if definition.results or (rule == "sum" and draw(st.booleans())):
            key = draw(st.sampled_from(list(KEYS)))
            at, number = KEYS[key], draw(st.sampled_from([1, 1, 5, 0, -2]))
        if rule in ("distinct", "unique"):
            present = draw(st.sampled_from([None, True, False])) if rule == "distinct" else None
            actor = draw(st.sampled_from("xyz"))
            entries.append(Entry(member, actor=actor, present=present, at=at))
        elif rule == "sum":
            entries.append(Entry(member, add=number, at=at, key=key))
        else:
            data = draw(st.sampled_from([None, "x", {"y": 1}]))
            entries.append(Entry(member, score=number, at=at, data=data, key=key))
    return entries


@pytest.mark.parametrize("name", FOLDED)
@settings(max_examples=50)
@given(data=st.data())
def test_a_group_equals_its_entries_one_by_one(name: str, data: st.DataObject) -> None:
    board = board_of(FOLDED[name])
    definition = board.definition
    assert definition is not None
    spaces = [counted.space_of(w) for counted in board.counted if (w := counted.series.at(NOW_MS))]
    folded, singly = Cells(), Cells()
    # Another agent's slots, so that totals are not this agent's alone.
    by_slots = definition.rule == "sum" and not definition.results
    for cells in (folded, singly) if by_slots else ():
        for space in spaces:
            value = (3, NOW_MS + 2, b"")
            cells.values[space, b"a", slot_of_replica(Kind.UP, 99)] = value
            cells.totals[space, b"a"] = contribution(Kind.UP, value)
    for entries in data.draw(st.lists(entries_for(definition), min_size=1, max_size=4)):
        before = (dict(folded.values), dict(folded.totals), folded.hlc)
        singly_before = (dict(singly.values), dict(singly.totals), singly.hlc)
        scores, refusals = [], []
        for index, entry in enumerate(entries):
            try:
                scores += singly.take(board, [entry]).scores
            except Refused as error:
                refusals.append((index, error.code))
        if not refusals:
            assert folded.take(board, entries).scores == scores
        else:
            with pytest.raises(Refused) as caught:
                folded.take(board, entries)
            assert [(e.index, e.code) for e in caught.value.errors] == refusals
            assert caught.value.detail.startswith(f"entries[{refusals[0][0]}].")
            assert (folded.values, folded.totals, folded.hlc) == before, "a refusal leaves no trace"
            singly.values, singly.totals, singly.hlc = singly_before
        assert folded == replace(singly, loaded=folded.loaded)
        check_totals(board, folded)


def check_totals(board: Board, cells: Cells) -> None:
    """The kept totals are those that all slots add up to."""
    assert board.definition is not None
    for (space, member), total in cells.totals.items():
        slots = [(k[2], v) for k, v in cells.values.items() if k[:2] == (space, member)]
        assert total == total_of(slots)
        if board.definition.rule not in SCORED_RULES or board.definition.results:
            continue
        standing = standing_of(board.definition, slots)
        assert standing is not None
        assert standing[:2] == total[:2]


@pytest.mark.parametrize(
    ("name", "entry", "code", "word"),
    [
        ("sum", Entry("a"), "malformed", "add"),
        ("sum", Entry("a", score=1), "malformed", "score"),
        ("sum", Entry("a", add=1, data="x"), "malformed", "data"),
        ("sum", Entry("a", add=1, key="k"), "malformed", "at"),
        ("sum", Entry("a", add=1, key="", at=NOW_MS), "malformed", "key"),
        ("sum", Entry("a", add=1, key="k" * 129, at=NOW_MS), "malformed", "key"),
        ("sum", Entry("a", add=1, key="k" * 70_000, at=NOW_MS), "malformed", "key"),
        ("sum", Entry("a", add=1, key="k", at=NOW_MS - 3_600_000), "key_expired", "3600000"),
        ("sum", Entry("a", add=1, key="k", at=-5), "key_expired", "3600000"),
        ("sum", Entry("a", add=1, actor="x"), "malformed", "actor"),
        ("sum", Entry("a", add=1, present=True), "malformed", "present"),
        ("best high", Entry("a", score=1, actor="x"), "malformed", "actor"),
        ("sum", Entry("a", add=1.5), "malformed", "add"),
        ("sum", Entry("a", add=float("nan")), "malformed", "add"),
        ("sum", Entry("a", add=13), "out_of_range", "13"),
        ("sum", Entry("a", add=-13), "out_of_range", "-13"),
        ("sum", Entry("a", add=2**53), "out_of_range", str(SCORE_MAX)),
        ("sum", Entry("a", add=1, at=NOW_MS + 60_001), "out_of_range", "60000"),
        ("sum", Entry("a", add=1, at="soon"), "malformed", "at"),
        ("sum", Entry("", add=1), "malformed", "member"),
        ("sum", Entry("a\0", add=1), "malformed", "member"),
        ("sum", Entry("\ud800", add=1), "malformed", "member"),
        ("grow_only", Entry("a", add=-1), "grow_only", "add"),
        ("grow_only", Entry("ok", add=-1), "grow_only", "add"),
        ("best high", Entry("a"), "malformed", "score"),
        ("best high", Entry("a", add=1), "malformed", "add"),
        ("best high", Entry("a", score=13), "out_of_range", "12"),
        ("best high", Entry("a", score=1, data={"x": "y" * 1024}), "too_large", "data"),
        ("best high", Entry("a", score=1, data=[float("inf")]), "malformed", "data"),
        ("best high", Entry("a", score=1, key=""), "malformed", "key"),
        ("best high", Entry("a", score=1, key="k" * 129), "malformed", "key"),
        ("latest", Entry("a", score=1, at=NOW_MS + 60_001), "out_of_range", "60000"),
        ("latest", Entry("a", score=0.5), "malformed", "score"),
    ],
)
def test_what_is_wrong_is_named_with_code_and_index(
    name: str, entry: Entry, code: str, word: str
) -> None:
    board, cells = board_of(DEFINITIONS[name]), Cells()
    fine = Entry("ok", add=1) if name in ("sum", "grow_only") else Entry("ok", score=1)
    with pytest.raises(Refused) as caught:
        cells.take(board, [fine, entry, fine])
    (error,) = caught.value.errors
    assert (error.index, error.code, caught.value.code) == (1, code, code)
    assert word in error.detail
    assert caught.value.definite
    assert (cells.values, cells.totals, cells.hlc) == ({}, {}, 0)


def test_errors_of_a_batch_are_bounded() -> None:
    board, cells = board_of(DEFINITIONS["sum"]), Cells()
    with pytest.raises(Refused) as caught:
        cells.take(board, [Entry("a", add=99)] * 50)
    assert len(caught.value.errors) == BATCH_ERRORS_SHOWN_MAX
    assert "49 more" in caught.value.detail


@pytest.mark.parametrize("name", ["best high", "latest"])
def test_keys_on_registers_are_accepted_and_not_remembered(name: str) -> None:
    board, cells = board_of(DEFINITIONS[name]), Cells()
    cells.take(board, [Entry("a", score=1, key="k" * 128)] * 2)
    assert len(cells.values) == 1


def test_a_total_that_regions_carried_out_of_range_may_come_back() -> None:
    board, cells = board_of(DEFINITIONS["sum"]), Cells()
    cells.totals[board.space, b"a"] = Total(20, NOW_MS, rose=True, slots=1)
    with pytest.raises(Refused):
        cells.take(board, [Entry("a", add=1)])
    assert cells.take(board, [Entry("a", add=-2)]).scores == [{"all": 18}]


def test_a_slot_has_a_limit_and_the_member_is_named() -> None:
    board, cells = board_of(Definition(rule="sum", ties="member")), Cells()
    up = (board.space, b"a", slot_of_replica(Kind.UP, INC))
    cells.values[up] = (COUNTER_SLOT_MAX - 1, NOW_MS, b"")
    with pytest.raises(Refused, match="a") as caught:
        cells.take(board, [Entry("b", add=1), Entry("a", add=2)])
    assert [error.index for error in caught.value.errors] == [1]
    assert cells.values == {up: (COUNTER_SLOT_MAX - 1, NOW_MS, b"")}


def test_a_member_with_an_entry_of_zero_is_known() -> None:
    board, cells = board_of(DEFINITIONS["sum"]), Cells()
    assert cells.take(board, [Entry("a", add=0, at=NOW_MS - 5)]).scores == [{"all": 0}]
    assert cells.totals[board.space, b"a"] == Total(0, NOW_MS - 5, rose=False, slots=1)
    assert cells.take(board, [Entry("a", add=0)]).values == {}


LATEST_SLOT = slot_of_one(Kind.LATEST)


@pytest.mark.parametrize("ahead_ms", [1, 59_000, 10**9])
def test_a_write_without_at_wins_over_a_stamp_from_the_future_that_it_has_seen(
    ahead_ms: int,
) -> None:
    board, cells = board_of(DEFINITIONS["latest"]), Cells()
    key = (board.space, b"a", LATEST_SLOT)
    future = hybrid_clock.of_ms(NOW_MS + ahead_ms)
    cells.values[key] = (future, 9, b"")
    assert cells.take(board, [Entry("a", score=1)]).scores == [{"all": 1}]
    assert cells.values[key] == (future + 1, 1, b"")
    assert hybrid_clock.ms_of(cells.hlc) == NOW_MS, "the future did not move the clock"
    cells.take(board, [Entry("b", score=1)])
    assert hybrid_clock.ms_of(cells.values[board.space, b"b", LATEST_SLOT][0]) == NOW_MS


def test_an_at_has_counter_zero_and_does_not_move_the_clock() -> None:
    board, cells = board_of(DEFINITIONS["latest"]), Cells()
    cells.take(board, [Entry("a", score=1, at=NOW_MS + 50_000)])
    assert cells.values[board.space, b"a", LATEST_SLOT][0] == (NOW_MS + 50_000) << 16
    assert cells.hlc == 0
    older: list[Any] = cells.take(board, [Entry("a", score=5, at=NOW_MS)]).scores
    assert older == [{"all": 1}], "an older time does not win"
