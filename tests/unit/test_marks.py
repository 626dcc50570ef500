"""Marks: who may close, acknowledge and collect what, step by step, and what they keep out."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from agent.boards.catalog import Catalog
from agent.boards.definition import Definition
from agent.boards.entry import Entry
from agent.boards.marks import Due, Marks, cell_of, due, keys_series, place_of
from agent.boards.windows import FACTS_MS, KEYS, WindowSpec
from agent.crdt.cell import Row
from agent.crdt.slot import Kind
from agent.crdt.space import MARKS_SPACE, RING_SPACE
from agent.operation import Drop, Retire, SetMarks
from tests.unit.core_agents import (
    DAY_MS,
    HOUR_MS,
    INCS,
    NOW_MS,
    CoreAgent,
    check_equal,
    keyed,
    meet,
    three,
)

HOURLY = Definition(rule="sum", windows=(WindowSpec("hour", grace="5m", keep="1h"),))
HOUR = "hour:2026-11-30T13"
END_MS = NOW_MS + HOUR_MS
CLOSE_MS, GONE_MS = END_MS + 5 * 60_000, END_MS + 65 * 60_000


def found(agent: CoreAgent, now_ms: int, members: Iterable[str] | None = None) -> list[Due]:
    """What an agent can set now; facts are left out, and windows before any entry."""
    state = agent.state
    names = [its.name for its in state.ring.active()] if members is None else members
    spaces = agent.store.snapshot().spaces()
    marks = due(spaces, state.catalog, state.marks, agent.name, names, state.vv, now_ms)
    return [its for its in marks if its.series != keys_series("b") and its.window.id >= HOUR]


def kinds(agent: CoreAgent, now_ms: int, members: Iterable[str] | None = None) -> str:
    return "".join(chr(its.kind) for its in found(agent, now_ms, members))


def keep_house(agent: CoreAgent, now_ms: int) -> str:
    """Set what is due, until nothing is; returns the kinds in order."""
    done = ""
    while marks := found(agent, now_ms):
        assert agent.set_marks(*marks), "each mark that is due is a change"
        done += "".join(chr(its.kind) for its in marks)
    return done


def series_of(agent: CoreAgent) -> bytes:
    return agent.board("b").counted[0].marks


def test_alone_a_region_closes_acknowledges_and_collects() -> None:
    (a,) = three(HOURLY, names="a")
    a.write("b", Entry("m", add=1))
    assert kinds(a, CLOSE_MS - 1) == ""
    assert [(its.kind, its.window.id) for its in found(a, CLOSE_MS)] == [(Kind.CLOSE, HOUR)]
    assert keep_house(a, CLOSE_MS) == "ca"
    assert keep_house(a, GONE_MS - 1) == ""
    assert keep_house(a, GONE_MS) == "cga", "the next hour is over too"
    assert a.state.marks.collected(series_of(a)) == HOUR
    assert a.state.marks.collects(a.space("b", HOUR))
    assert not a.state.marks.collects(a.space("b", "hour:2026-11-30T14"))
    a.must(Drop(tuple(row.key for row in a.rows())))
    assert a.space("b", HOUR) not in a.store.snapshot().spaces()
    assert keep_house(a, GONE_MS) == "", "no cell is left to set marks for"
    a.check()


def test_two_regions_wait_for_each_others_marks_and_writes() -> None:
    a, b = three(HOURLY, names="ab")
    a.write("b", Entry("m", add=1))
    meet(a, b)
    assert keep_house(a, GONE_MS) == "c"
    b.write("b", Entry("m", add=2, at=NOW_MS), now_ms=CLOSE_MS - 1)  # b's clock is behind
    assert keep_house(b, GONE_MS) == "c"
    assert kinds(a, GONE_MS) == "", "b's mark has not arrived"
    a.pull(b)
    assert a.score("b", HOUR) == 3, "it came with what was written before it"
    assert keep_house(a, GONE_MS) == "a"
    b.pull(a)
    assert keep_house(b, GONE_MS) == "ag"
    a.pull(b)
    assert a.state.marks.collects(a.space("b", HOUR)), "collected for all, whoever says so"
    assert keep_house(a, GONE_MS) == ""
    for agent in (a, b):
        agent.must(Drop(tuple(row.key for row in agent.rows())))
        assert agent.total("b", HOUR) is None
    meet(a, b)
    check_equal([a, b])


def test_a_mark_that_the_vector_does_not_cover_is_not_acknowledged() -> None:
    a, b = three(HOURLY, names="ab")
    a.write("b", Entry("m", add=1))
    meet(a, b)
    keep_house(a, GONE_MS)
    b.write("b", Entry("late", add=2, at=NOW_MS))
    keep_house(b, GONE_MS)
    a.take(*[row for row in b.rows() if row.space == MARKS_SPACE])  # and nothing before it
    assert a.state.marks.of(Kind.CLOSE, series_of(a)).keys() == {"a", "b"}
    assert kinds(a, GONE_MS) == ""
    a.pull(b)
    assert a.score("b", HOUR, "late") == 2
    assert kinds(a, GONE_MS) == "a"


def test_a_member_that_is_missing_holds_everything_and_its_removal_lets_go() -> None:
    a, b, c = three(HOURLY)
    a.write("b", Entry("m", add=1))
    meet(a, b, c)
    for _ in range(2):
        for agent in (a, b):
            keep_house(agent, GONE_MS)
        meet(a, b)
    marks = a.state.marks
    assert {kind: sorted(marks.of(kind, series_of(a))) for kind in (Kind.CLOSE, Kind.ACK)} == {
        Kind.CLOSE: ["a", "b"],
        Kind.ACK: [],
    }
    assert marks.held_by(series_of(a), "a", "abc") == ["c"]
    assert kinds(a, GONE_MS) == ""
    assert kinds(a, GONE_MS, members="ab") == "a"
    keep_house(c, GONE_MS)
    meet(a, b, c)
    assert a.state.marks.held_by(series_of(a), "a", "abc") == ["a", "b", "c"]
    assert [keep_house(agent, GONE_MS) for agent in (a, b, c)] == ["a", "a", "a"]
    meet(a, b, c)
    assert a.state.marks.held_by(series_of(a), "a", "abc") == []
    assert keep_house(b, GONE_MS) == "g"


def test_a_member_that_joins_is_waited_for() -> None:
    a, b = three(HOURLY, names="ab")
    a.write("b", Entry("m", add=1))
    meet(a, b)
    for agent in (a, b):
        keep_house(agent, CLOSE_MS)
    meet(a, b)
    for agent in (a, b):
        keep_house(agent, CLOSE_MS)
    d = CoreAgent("d")
    meet(a, b, d)
    assert kinds(a, GONE_MS, members="abd") == "c", "the next hour; this one waits for `d`"
    assert keep_house(d, CLOSE_MS) == "ca"
    meet(a, b, d)
    (collected,) = [its for its in found(a, GONE_MS) if its.kind == Kind.COLLECTED]
    assert collected.window.id == HOUR


def test_an_agent_that_lags_collects_only_up_to_where_all_have_acknowledged() -> None:
    a, b = three(HOURLY, names="ab")
    for hour in range(3):
        then = NOW_MS + hour * HOUR_MS
        a.write("b", Entry("m", add=1, at=then), now_ms=then)
    meet(a, b)
    keep_house(b, CLOSE_MS)  # its clock is two hours behind
    late = GONE_MS + 2 * HOUR_MS
    keep_house(a, late)
    meet(a, b)
    keep_house(b, CLOSE_MS)
    assert keep_house(a, late) == "a"
    a.pull(b)
    assert [its.window.id for its in found(a, late)] == [HOUR]


def test_marks_only_move_on() -> None:
    (a,) = three(HOURLY, names="a")
    series, windows = series_of(a), [a.window("b", "hour", NOW_MS + n * HOUR_MS) for n in range(3)]
    assert a.set_marks(Due(Kind.CLOSE, series, windows[1]))
    assert not a.set_marks(Due(Kind.CLOSE, series, windows[0]))
    assert not a.set_marks(Due(Kind.CLOSE, series, windows[1]))
    assert a.set_marks(Due(Kind.CLOSE, series, windows[0]), Due(Kind.CLOSE, series, windows[2]))
    assert a.state.marks.window(Kind.CLOSE, series, "a") == windows[2].id


def test_the_buckets_of_facts_close_by_the_boards_retention() -> None:
    (a,) = three(Definition(rule="sum", key_retention="30m"), names="a")
    a.write("b", keyed("k"))
    bucket = KEYS.at(NOW_MS)
    assert bucket is not None

    def marks(now_ms: int) -> list[str]:
        state, spaces = a.state, a.store.snapshot().spaces()
        its = due(spaces, state.catalog, state.marks, "a", "a", state.vv, now_ms)
        assert {mark.series for mark in its} <= {keys_series("b")}
        its = [mark for mark in its if mark.window.id >= bucket.id]
        assert {mark.window for mark in its} <= {bucket}
        a.must(SetMarks(tuple(its)))
        return [chr(mark.kind) for mark in its]

    over = bucket.start_ms + FACTS_MS + 30 * 60_000
    assert [marks(now_ms) for now_ms in (over - 1, over, over, over, over)] == [
        [],
        ["c"],
        ["a"],
        ["g"],
        [],
    ]
    assert a.state.marks.collects(a.of_kind(Kind.FACT)[0].space)


def test_boards_that_are_retired_or_not_of_this_series_set_no_marks() -> None:
    (a,) = three(Definition(rule="sum", windows=(WindowSpec("all"), WindowSpec("day"))), names="a")
    a.write("b", Entry("m", add=1))
    far, spaces = NOW_MS + 5_000 * DAY_MS, a.store.snapshot().spaces()
    its = due(spaces, a.state.catalog, a.state.marks, "a", "a", a.state.vv, far)
    assert {mark.window.name for mark in its} == {"day"}, "`all` never closes"
    assert due(spaces, Catalog(), a.state.marks, "a", "a", a.state.vv, far) == []
    a.must(Retire("b"))
    assert due(spaces, a.state.catalog, a.state.marks, "a", "a", a.state.vv, far) == []


def test_marks_of_others_forms_are_passed_over() -> None:
    window = KEYS.at(NOW_MS)
    assert window is not None
    key, value = cell_of(Kind.CLOSE, keys_series("b"), "a", window)
    row = Row(*key, *value, INCS["a"], 4)
    none = Marks()
    assert none.with_rows([row._replace(space=RING_SPACE), row._replace(slot=b"?a")]) is none
    marks = none.with_rows([row])
    assert marks.window(Kind.CLOSE, keys_series("b"), "a") == window.id
    assert not marks.closed_by("b", keys_series("b"), window.id)
    assert not marks.collects(RING_SPACE)
    assert place_of(RING_SPACE) is None
    assert place_of(b"\xff") is None


@pytest.mark.parametrize("body", [b"", b"\xff\xfe", b"keys:zzz", b"x" * 999])
def test_a_mark_that_names_no_window_breaks_nothing(body: bytes) -> None:
    a, b = three(HOURLY, names="ab")
    a.write("b", Entry("m", add=1))
    for kind in (Kind.CLOSE, Kind.ACK):
        key, value = cell_of(kind, series_of(a), "b", a.window("b", "hour"))
        a.take(Row(*key, value[0], 0, body, b.inc, 9_000 + kind))
    keep_house(a, CLOSE_MS)
    a.write("b", Entry("m", add=1, at=CLOSE_MS), now_ms=CLOSE_MS)
    a.check()


def test_a_series_is_collected_as_far_as_anybody_says() -> None:
    a, b = three(HOURLY, names="ab")
    hours = [a.window("b", "hour", NOW_MS + n * HOUR_MS) for n in range(2)]
    a.set_marks(Due(Kind.COLLECTED, series_of(a), hours[0]))
    b.set_marks(Due(Kind.COLLECTED, series_of(b), hours[1]))
    meet(a, b)
    for agent in (a, b):
        assert agent.state.marks.collected(series_of(agent)) == hours[1].id
        assert all(agent.state.marks.collects(agent.space("b", hour.id)) for hour in hours)
