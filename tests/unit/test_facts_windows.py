"""A key counts once in every window that it belongs to, also where a region learned of one late."""

from __future__ import annotations

from agent.boards.definition import Definition, check
from agent.boards.windows import WindowSpec
from agent.crdt.slot import Kind
from agent.errors import Refused
from agent.operation import Reset
from tests.unit.core_agents import NOW_MS, CoreAgent, check_equal, keyed, meet, three, write

PLAIN = check(Definition(rule="sum"))
WIDE = check(Definition(rule="sum", windows=(WindowSpec("all"), WindowSpec("day"))))


def two() -> tuple[CoreAgent, CoreAgent]:
    """A knows the window `all` alone; B's definition, which stands, has the day as well."""
    a, b = CoreAgent("a"), CoreAgent("b")
    a.define("b", PLAIN)
    b.define("b", WIDE, now_ms=NOW_MS + 1)
    return a, b


def test_a_retry_counts_in_the_windows_that_the_first_region_did_not_know() -> None:
    a, b = two()
    day = b.window("b", "day").id
    assert a.one("b", keyed("k"))[0] == {"all": 5}
    meet(a, b)
    for _ in range(2):  # and a further retry counts nothing more
        scores, note = b.one("b", keyed("k"), now_ms=NOW_MS + 5)
        assert scores == {"all": 5, day: 5}
        assert note.counted_ms == NOW_MS, "it was counted before, all the same"
    meet(a, b)
    check_equal([a, b])
    for agent in (a, b):
        agent.check()
        assert (agent.score("b", "all"), agent.score("b", day)) == (5, 5)
        assert not agent.of_kind(Kind.VOID)
        assert agent.one("b", keyed("k"), now_ms=NOW_MS + 9)[0] == {"all": 5, day: 5}


def test_a_retry_after_a_reset_counts_nothing_in_the_new_generation() -> None:
    a, b = two()
    a.one("b", keyed("k"))
    meet(a, b)
    b.must(Reset("b", None))
    scores, note = b.one("b", keyed("k"), now_ms=NOW_MS + 5)
    assert set(scores.values()) == {0}
    assert note.counted_ms == NOW_MS


def test_the_refusals_of_single_entries_are_each_their_own() -> None:
    (agent,) = three(WIDE, names="a")
    agent.one("b", keyed("k"))
    answers = agent.run(
        write("b", keyed("k", add=9)), write("b", keyed("k")), write("b", keyed("n", at=0))
    )
    codes = [answer.code if isinstance(answer, Refused) else "" for answer in answers]
    assert codes == ["key_conflict", "", "key_expired"]


def test_a_window_left_out_and_added_again_shows_nothing_of_its_middle() -> None:
    (agent,) = three(WIDE, names="a")
    agent.write("b", keyed("k"))
    day = agent.window("b", "day")
    before = agent.board("b").place(day).space
    assert agent.state.catalog.placed(before) is not None
    agent.define("b", PLAIN, now_ms=NOW_MS + 1)
    agent.define("b", WIDE, now_ms=NOW_MS + 2)
    assert agent.state.catalog.placed(before) is None
    place = agent.board("b").place(day)
    assert not [row for row in agent.rows() if row.space == place.space]
    tomorrow = place.counted.series.after(day)
    assert tomorrow is not None
    space = agent.board("b").place(tomorrow).space
    assert agent.state.catalog.placed(space) is not None
