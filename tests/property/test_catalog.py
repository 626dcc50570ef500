"""The catalog: which definition is in force, which were overruled, and what a reset begins."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.boards import change
from agent.boards import definition as definitions
from agent.boards.catalog import Catalog
from agent.boards.definition import COUNTERS, Definition
from agent.boards.overruled import GENERATION_SHIFT
from agent.boards.windows import WindowSpec
from agent.crdt.cell import Key, Row, Value
from agent.crdt.slot import Kind, slot_of_name, slot_of_one
from agent.crdt.space import BOARDS_SPACE, decode_space
from agent.errors import Conflict, NotFound, TooLarge
from agent.limits import BOARDS_MAX

SUM = Definition(rule="sum")
BEST = Definition(rule="best")
LATEST = Definition(rule="latest", ties="member")
DAYS = Definition(rule="sum", windows=(WindowSpec("all"), WindowSpec("day")))


class Region:
    """One agent's cells of the boards' space, with a clock of its own."""

    def __init__(self, agent: str, hlc: int = 0) -> None:
        self.agent = agent
        self.hlc = hlc
        self.cells: dict[Key, Value] = {}

    @property
    def catalog(self) -> Catalog:
        return Catalog().with_rows(Row(*key, *value, 1, 1) for key, value in self.cells.items())

    def put(self, new: Definition, board: str = "b") -> bool:
        self.hlc += 1
        return self._write(change.define(self.catalog, self.agent, board, new, self.hlc))

    def reset(self, new: Definition | None = None, board: str = "b") -> bool:
        self.hlc += 1
        return self._write(change.reset(self.catalog, self.agent, board, new, self.hlc))

    def retire(self, board: str = "b") -> bool:
        self.hlc += 1
        return self._write(change.retire(self.catalog, self.agent, board, self.hlc))

    def _write(self, writes: change.Writes) -> bool:
        for key, value in writes:
            assert value > self.cells.get(key, (-1, 0, b"")), "a write must raise its cell"
            self.cells[key] = value
        return bool(writes)

    def hears(self, *others: Region) -> None:
        for other in others:
            for key, value in other.cells.items():
                self.cells[key] = max(self.cells.get(key, value), value)
            self.hlc = max(self.hlc, other.hlc)


def met(*regions: Region) -> None:
    for region in regions:
        region.hears(*regions)


def test_a_definition_is_in_force_from_version_one() -> None:
    eu = Region("eu")
    assert eu.put(SUM)
    board = eu.catalog.board("b")
    assert (board.generation, board.version, board.agent) == (0, 1, "eu")
    assert board.definition == SUM
    placed = eu.catalog.placed(board.space)
    assert placed is not None
    assert (placed.board, placed.space, placed.window.id) == (board, board.space, "all")
    assert not eu.put(SUM), "the same definition changes nothing"


def test_two_regions_that_define_at_the_same_moment_keep_both() -> None:
    eu, us = Region("eu"), Region("us")
    eu.put(SUM)
    us.put(BEST)
    spaces = {r.agent: r.catalog.board("b").space for r in (eu, us)}
    assert spaces["eu"] != spaces["us"], "cells of different shapes never meet"
    met(eu, us)
    for region in (eu, us):
        board = region.catalog.board("b")
        assert (board.agent, board.definition) == ("us", BEST)  # equal times: the greater body
        (lost,) = board.overruled
        assert (lost.agent, lost.definition) == ("eu", SUM)
        (series,) = lost.series()
        assert lost.prefix(series, lost.generation) + b"all" == spaces["eu"]


def test_a_later_put_that_has_seen_both_clears_the_list() -> None:
    eu, us = Region("eu"), Region("us")
    eu.put(SUM)
    us.put(BEST)
    met(eu, us)
    winner = eu.catalog.board("b").definition
    assert winner is not None
    assert eu.put(Definition(rule=winner.rule, ties="shared"))
    met(eu, us)
    for region in (eu, us):
        board = region.catalog.board("b")
        assert (board.version, board.overruled) == (2, ())


def test_two_equal_definitions_overrule_nothing() -> None:
    eu, us = Region("eu"), Region("us")
    eu.put(SUM)
    us.put(SUM)
    met(eu, us)
    assert eu.catalog.board("b").overruled == ()
    assert eu.catalog.board("b").space == us.catalog.board("b").space


def test_two_resets_at_once_are_one() -> None:
    eu, us = Region("eu"), Region("us")
    eu.put(SUM)
    met(eu, us)
    eu.reset()
    us.reset()
    met(eu, us)
    board = eu.catalog.board("b")
    assert (board.generation, board.definition) == (1, SUM)
    space = decode_space(board.space)
    assert space is not None
    assert space.generation == 1


def test_a_reset_may_bring_a_new_rule_and_wins_over_changes_of_the_old_generation() -> None:
    eu, us = Region("eu"), Region("us")
    eu.put(SUM)
    met(eu, us)
    eu.reset(BEST)
    for ties in ("shared", "last", "member"):
        us.put(Definition(rule="sum", ties=ties))  # versions 2, 3, 4 of generation 0
    met(eu, us)
    board = us.catalog.board("b")
    assert (board.generation, board.version, board.definition) == (1, 1, BEST)
    assert [lost.definition for lost in board.overruled] == [Definition(rule="sum", ties="member")]
    assert us.put(Definition(rule="best", ties="last"))
    assert us.catalog.board("b").overruled == ()


def test_a_board_that_is_retired_and_defined_anew_begins_a_new_generation() -> None:
    eu = Region("eu")
    eu.put(SUM)
    old = eu.catalog.board("b").space
    eu.retire()
    with pytest.raises(NotFound, match="b") as caught:
        eu.catalog.board("b")
    assert "retired" in caught.value.hint
    assert [board.name for board in eu.catalog] == [COUNTERS]
    assert eu.catalog.placed(old) is None
    for refused in (eu.retire, eu.reset):
        with pytest.raises(NotFound):
            refused()
    eu.put(SUM)
    board = eu.catalog.board("b")
    assert (board.generation, board.version) == (1, 1)
    assert board.space != old


def test_what_the_numbers_depend_on_can_not_be_changed() -> None:
    eu = Region("eu")
    eu.put(SUM)
    for new in (BEST, Definition(rule="sum", order="low")):
        with pytest.raises(Conflict, match="numbers depend") as caught:
            eu.put(new)
        assert caught.value.code == "board_conflict"
    assert eu.put(Definition(rule="sum", grow_only=True, ties="last"))


def test_the_built_in_board_can_be_reset_and_nothing_else() -> None:
    eu = Region("eu")
    refusals: list[Callable[[], bool]] = [
        lambda: eu.put(SUM, COUNTERS),
        lambda: eu.retire(COUNTERS),
        lambda: eu.reset(SUM, COUNTERS),
    ]
    for refused in refusals:
        with pytest.raises(Conflict):
            refused()
    before = eu.catalog.board(COUNTERS).space
    eu.reset(board=COUNTERS)
    assert eu.catalog.board(COUNTERS).generation == 1
    assert eu.catalog.board(COUNTERS).space != before
    stray = Row(
        BOARDS_SPACE,
        b"counters",
        b"Deu",
        9 << GENERATION_SHIFT,
        1,
        definitions.to_body(BEST, {}),
        1,
        1,
    )
    assert eu.catalog.with_rows([stray]).board(COUNTERS).generation == 1


def test_a_definition_from_a_newer_version_is_kept_and_takes_no_entries() -> None:
    eu, us = Region("eu"), Region("us")
    eu.put(SUM)
    met(eu, us)
    slot = slot_of_name(Kind.DEFINITION, "us")
    us.cells[BOARDS_SPACE, b"b", slot] = (2, 9, b"\x81\xaadefinition\x81\xa4rule\xa6median")
    met(eu, us)
    board = eu.catalog.find("b")
    assert board is not None
    assert (board.definition, board.readable, board.retired) == (None, False, False)
    with pytest.raises(NotFound) as caught:
        eu.catalog.board("b")
    assert "newer version" in caught.value.hint
    with pytest.raises(Conflict, match="newer version"):
        eu.put(SUM)
    with pytest.raises(NotFound):
        eu.reset()


def test_a_board_of_which_only_the_generation_has_arrived_is_not_retired() -> None:
    eu, us = Region("eu"), Region("us")
    eu.put(SUM)
    eu.reset()
    generation = (BOARDS_SPACE, b"b", slot_of_one(Kind.GENERATION))
    us.cells[generation] = eu.cells[generation]
    with pytest.raises(NotFound) as caught:
        us.catalog.board("b")
    assert "on its way" in caught.value.hint
    us.put(SUM)  # must not begin generation 2: that would hide what is counted in generation 1
    met(eu, us)
    assert eu.catalog.board("b").generation == 1


@pytest.mark.parametrize("act", ["reset", "redefine"])
def test_between_the_two_cells_of_a_change_the_board_is_whole(act: str) -> None:
    eu = Region("eu")
    eu.put(SUM)
    if act == "redefine":
        eu.retire()
        writes = change.define(eu.catalog, "eu", "b", BEST, 9)
    else:
        writes = change.reset(eu.catalog, "eu", "b", BEST, 9)
    assert len(writes) == 2
    eu._write(writes[:1])
    first = eu.catalog.board("b")
    eu._write(writes[1:])
    assert (first.generation, first.definition) == (1, BEST)
    assert eu.catalog.board("b").space == first.space


@pytest.mark.parametrize(
    ("slot", "value"),
    [
        (b"G", (2**40, 0, b"")),
        (b"G", (2**63 - 1, 0, b"")),
        (b"Dus", (-5, 0, definitions.to_body(SUM, {}))),
        (b"Dus", (2**63 - 1, 0, definitions.to_body(BEST, {}))),
        (b"Dus", (2**62, 2**62, b"\x81\x90\x01")),
        (b"D\xff", (5, 0, b"")),
        (b"?", (1, 1, b"?")),
    ],
)
@pytest.mark.parametrize("name", ["b", COUNTERS])
def test_no_cell_of_a_peer_can_break_the_catalog(name: str, slot: bytes, value: Value) -> None:
    eu = Region("eu")
    eu.put(SUM)
    eu.cells[BOARDS_SPACE, name.encode(), slot] = value
    assert eu.catalog.find(name) is not None
    assert eu.catalog.find("b") is not None
    list(eu.catalog)


def test_names_that_are_no_board_names_are_passed_over() -> None:
    rows = [Row(BOARDS_SPACE, m, b"G", 1, 0, b"", 1, 1) for m in (b"\xff", b"~ring", b"", b"A")]
    assert [board.name for board in Catalog().with_rows(rows)] == [COUNTERS]
    assert len(Catalog().with_rows(rows)) == 1


def test_the_catalog_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(change, "BOARDS_MAX", 3)
    eu = Region("eu")
    eu.put(SUM, "b1")
    eu.put(SUM, "b2")
    with pytest.raises(TooLarge, match="3"):
        eu.put(SUM, "b3")
    assert BOARDS_MAX > 3


ACTS = st.lists(
    st.tuples(
        st.sampled_from(["eu", "us", "ap"]),
        st.sampled_from(["put", "put", "reset", "reset to", "retire", "hear"]),
        st.sampled_from([SUM, BEST, LATEST, DAYS, Definition(rule="sum", ties="last")]),
    ),
    max_size=14,
)


@given(ACTS, st.randoms(use_true_random=False))
def test_the_order_of_arrival_never_matters(
    acts: list[tuple[str, str, Definition]], chance: Random
) -> None:
    regions = {name: Region(name) for name in ("eu", "us", "ap")}
    writes: list[tuple[Key, Value]] = []
    for name, act, new in acts:
        region = regions[name]
        before = dict(region.cells)
        try:
            match act:
                case "put":
                    region.put(new)
                case "reset":
                    region.reset()
                case "reset to":
                    region.reset(new)
                case "retire":
                    region.retire()
                case _:
                    region.hears(chance.choice(list(regions.values())))
        except (Conflict, NotFound):
            assert region.cells == before
        else:
            writes += [(k, v) for k, v in region.cells.items() if before.get(k) != v]
    met(*regions.values())
    expected = regions["eu"].catalog.find("b")
    assert all(region.catalog.find("b") == expected for region in regions.values())
    # The same cells, one row at a time, in another order, older values of a cell among them.
    chance.shuffle(writes)
    catalog, cells = Catalog(), dict[Key, Value]()
    for key, value in writes:
        if value > cells.get(key, (-1, 0, b"")):
            cells[key] = value
            catalog = catalog.with_rows([Row(*key, *value, 1, 1)])
    assert catalog.find("b") == expected
