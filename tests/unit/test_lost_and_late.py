"""What the simulator found of finals: close marks of lost files, copies that are late already."""

from __future__ import annotations

from agent.boards.definition import Definition
from agent.boards.entry import Entry
from agent.boards.finals import Shelve
from agent.boards.marks import Due, cell_of, due
from agent.boards.windows import WindowSpec
from agent.crdt.cell import Row, row_of
from agent.crdt.slot import Kind, slot_of_one
from tests.unit.core_agents import HOUR_MS, NOW_MS, CoreAgent, three

BOARD = Definition(rule="best", windows=(WindowSpec("hour", grace="5m", keep="1h"),))
LATER_MS = NOW_MS + 2 * HOUR_MS
LOST_INC, LOST_SEQ = 77, 7


def mark_of_lost_file(agent: CoreAgent) -> Row:
    """The close mark of an agent as others have it, of a file that was lost."""
    key, value = cell_of(Kind.CLOSE, series_of(agent), "a", agent.window("b", "hour"))
    return row_of((*key, *value, LOST_INC, LOST_SEQ))


def series_of(agent: CoreAgent) -> bytes:
    return agent.board("b").counted[0].marks


def due_now(agent: CoreAgent, now_ms: int = NOW_MS + HOUR_MS + 300_000) -> list[Due]:
    state = agent.state
    names = [member.name for member in state.ring.active()]
    spaces = agent.store.snapshot().spaces()
    found = due(spaces, state.catalog, state.marks, agent.name, names, state.vv, now_ms)
    return [its for its in found if its.kind == Kind.CLOSE and its.series == series_of(agent)]


def test_a_close_mark_of_a_lost_file_is_written_once_more() -> None:
    a, b = three(BOARD, names="ab")
    a.write("b", Entry("m", score=1))
    for agent in (a, b):
        agent.take(mark_of_lost_file(agent))
    window = a.window("b", "hour").id

    def settled() -> bool:
        return b.state.marks.settled(series_of(b), window, "a", b.state.vv)

    b.pull(a)
    assert not settled()
    found = due_now(a)
    assert [its.again for its in found] == [True]
    assert not due_now(b)[0].again, "another agent's mark is not its own"
    assert a.set_marks(*found)
    assert not due_now(a)
    assert not a.set_marks(*found), "once is enough"
    b.pull(a)
    assert settled()
    assert b.state.marks.closed_by("a", series_of(b), window)


def test_a_close_mark_that_was_set_again_before_the_lost_one_was_read_is_covered() -> None:
    a, b = three(BOARD, names="ab")
    a.write("b", Entry("m", score=1))
    b.take(mark_of_lost_file(b))
    assert a.set_marks(*due_now(a)), "it knows of no mark of its own"
    for _ in range(2):
        b.pull(a)
        a.pull(b)
    assert b.state.marks.settled(series_of(b), a.window("b", "hour").id, "a", b.state.vv)
    assert b.cells() == a.cells()


def test_a_mark_that_the_vector_covers_is_not_written_again() -> None:
    (a,) = three(BOARD, names="a")
    a.write("b", Entry("m", score=1))
    (mark,) = due_now(a)
    assert a.set_marks(mark)
    assert not due_now(a)
    assert not a.set_marks(Due(mark.kind, mark.series, mark.window, again=True))


def test_a_copy_says_whether_its_window_has_changed_since() -> None:
    (a,) = three(BOARD, names="a")
    a.write("b", Entry("m", score=1))
    space = a.space("b", a.window("b", "hour").id)
    a.set_marks(*due_now(a))
    copied = a.state.lsn

    def keep(hash_: bytes, lsn: int | None) -> bool:
        a.changed(Shelve(space, hash_, ((0, b"rows"),), 1, lsn=lsn))
        return (space, hash_) in a.store.late

    assert not keep(b"before", copied)
    a.take(row_of((space, b"late", slot_of_one(Kind.BEST), 9, -NOW_MS, b"", LOST_INC, LOST_SEQ)))
    assert (space, b"before") in a.store.late
    assert keep(b"while it was copied", copied)
    assert not keep(b"after", a.state.lsn)
