"""Retractions: one kept result is taken back everywhere, whatever comes when."""

from __future__ import annotations

from agent.boards.definition import Definition
from agent.boards.entry import Entry
from agent.boards.windows import WindowSpec
from agent.crdt.cell import Row
from agent.crdt.slot import Kind
from agent.crdt.space import BOARDS_SPACE
from agent.operation import (
    Retract,
    Write,
)
from tests.unit.core_agents import (
    NOW_MS,
    TODAY,
    check_equal,
    meet,
    three,
    write,
)

RESULTS = Definition(
    rule="best", results="keep", windows=(WindowSpec("day"), WindowSpec("week", keep="90d"))
)
WEEK = "week:2026-W49"


def result(key: str, score: int, at: int = NOW_MS) -> Write:
    return write("b", Entry("m", score=score, key=key, at=at))


def test_the_next_best_shows_and_stays_while_the_best_is_sent_again_elsewhere() -> None:
    a, b = three(RESULTS, names="ab")
    a.must(result("k1", 900), result("k2", 700), result("k3", 500))
    meet(a, b)
    assert a.changed(Retract("b", b"m", b"k1", NOW_MS, ()))
    assert not a.changed(Retract("b", b"m", b"k1", NOW_MS, ()))
    scores, note = b.one("b", Entry("m", score=900, key="k1", at=NOW_MS))
    assert (scores[TODAY], note.counted_ms) == (900, NOW_MS), "b has not heard"
    meet(a, b)
    check_equal([a, b])
    for agent in (a, b):
        assert (agent.score("b", TODAY), agent.score("b", WEEK)) == (700, 700)
        assert agent.one("b", Entry("m", score=900, key="k1", at=NOW_MS))[0][TODAY] == 700


def test_a_result_that_comes_after_its_retraction_does_not_stand() -> None:
    a, b = three(RESULTS, names="ab")
    a.must(Retract("b", b"m", b"k1", NOW_MS, ()))
    assert a.one("b", Entry("m", score=900, key="k1", at=NOW_MS))[0] == {}
    b.must(result("k1", 900), result("k2", 5))
    meet(a, b)
    check_equal([a, b])
    assert a.score("b", TODAY) == b.score("b", WEEK) == 5


def test_a_retraction_reaches_windows_that_its_writer_did_not_know() -> None:
    a, b = three(Definition(rule="sum", results="keep", windows=(WindowSpec("day"),)), names="ab")
    both = Definition(rule="sum", results="keep", windows=(WindowSpec("day"), WindowSpec("hour")))
    b.define("b", both)
    later = NOW_MS + 3_600_000
    for n in (1, 2):
        b.write("b", Entry("m", add=n, key=f"k{n}", at=later), now_ms=later)
    a.take(*b.of_kind(Kind.RESULT), now_ms=later)
    a.must(Retract("b", b"m", b"k2", later, ()), now_ms=later)
    assert a.score("b", TODAY) == 1
    (row,) = a.of_kind(Kind.RETRACTION)
    b.take(row, now_ms=later)
    assert (b.score("b", TODAY), b.score("b", "hour:2026-11-30T14")) == (1, 1)
    meet(a, b, now_ms=later)
    check_equal([a, b])


def test_a_key_sent_again_does_not_stand_in_a_window_that_its_retraction_did_not_know() -> None:
    a, b = three(Definition(rule="sum", results="keep", windows=(WindowSpec("day"),)), names="ab")
    both = Definition(rule="sum", results="keep", windows=(WindowSpec("day"), WindowSpec("hour")))
    b.define("b", both)
    later = NOW_MS + 3_600_000
    entries = [Entry("m", add=n, key=f"k{n}", at=later) for n in (1, 2)]
    a.write("b", *entries, now_ms=later)
    a.must(Retract("b", b"m", b"k2", later, ()), now_ms=later)
    a.take(*(row for row in b.rows() if row.space == BOARDS_SPACE), now_ms=later)
    a.write("b", *entries, now_ms=later)
    assert (a.score("b", TODAY), a.score("b", "hour:2026-11-30T14")) == (1, 1)
    meet(a, b, now_ms=later)
    check_equal([a, b])
    assert (b.score("b", TODAY), b.score("b", "hour:2026-11-30T14")) == (1, 1)


def test_a_retraction_of_a_time_that_does_not_exist_breaks_nothing() -> None:
    (a,) = three(RESULTS, names="a")
    for n, at_ms in enumerate((2**63 - 1, -(2**63), -1)):
        slot = bytes([Kind.RETRACTION]) + b"k%d" % n
        a.take(Row(a.space("b", TODAY), b"m", slot, 1, at_ms, b"", 9, n + 1))
    a.check()
    a.must(result("k", 5))
    assert a.score("b", TODAY) == 5


def test_where_a_result_was_found_it_is_taken_back_too() -> None:
    (a,) = three(RESULTS, names="a")
    yesterday = a.board("b").counted[0].prefix + b"day:2026-11-29"
    a.take(Row(yesterday, b"m", b"Kk", -5, 900, b"", 9, 1))
    assert a.changed(Retract("b", b"m", b"k", NOW_MS, (yesterday,)))
    assert {row.space for row in a.of_kind(Kind.RETRACTION)} == {
        yesterday,
        a.space("b", TODAY),
        a.space("b", WEEK),
    }
    a.check()
