"""Erasures: a name that is closed for good, and nothing of which is kept or comes back."""

from __future__ import annotations

import pytest

from agent.boards.bans import BY_ITSELF
from agent.boards.definition import Definition
from agent.boards.entry import Entry
from agent.boards.erasures import confirmation_cell, id_of, pseudonym
from agent.boards.windows import WindowSpec
from agent.crdt.cell import Row
from agent.crdt.slot import Kind
from agent.crdt.space import ERASED_SPACE
from agent.errors import Gone, Malformed, Refused, Unavailable
from agent.operation import (
    BoardChanged,
    ConfirmErasures,
    Drop,
    Erase,
    ForgetNames,
    LiftBan,
    Operation,
    Retract,
    SetBan,
)
from tests.unit.core_agents import (
    DAILY,
    NOW_MS,
    CoreAgent,
    check_equal,
    keyed,
    meet,
    three,
    write,
)

LIKES = Definition(rule="distinct")
KEY_16 = bytes(range(16))
RESULTS = Definition(
    rule="best", results="keep", windows=(WindowSpec("day"), WindowSpec("week", keep="90d"))
)
WEEK = "week:2026-W49"


def ban(member: bytes = b"m", board: str = "b", until_ms: int | None = None) -> SetBan:
    return SetBan(member, board, until_ms, "cheats", "ops")


def lift(member: bytes = b"m", board: str = "b", *, expired: bool = False) -> LiftBan:
    return LiftBan(
        member, board, "" if expired else "sorry", BY_ITSELF if expired else "ops", expired
    )


def refusal(agent: CoreAgent, operation: Operation) -> Refused:
    before = agent.cells()
    (answer,) = agent.run(operation)
    assert isinstance(answer, Refused)
    assert agent.cells() == before
    return answer


def purge(agent: CoreAgent) -> None:
    agent.must(Drop(tuple(row.key for row in agent.rows())))
    agent.check()


def test_an_erased_name_is_closed_for_good_on_every_board() -> None:
    (a,) = three(DAILY, names="a")
    a.define("likes", LIKES)
    a.define("u", Definition(rule="unique"))
    a.define("t", Definition(rule="trend"))
    a.define("h", Definition(rule="best"))
    a.define("r", RESULTS)
    assert a.changed(Erase(b"m", KEY_16))
    assert not a.changed(Erase(b"m", KEY_16))
    refused = [
        ("b", Entry("m", add=1)),
        ("b", keyed("k")),
        ("likes", Entry("m", actor="x")),
        ("likes", Entry("n", actor="m")),
        ("u", Entry("n", actor="m")),
        ("t", Entry("m", add=1)),
        ("h", Entry("m", score=1)),
        ("r", Entry("m", score=1, key="k", at=NOW_MS)),
    ]
    for board, entry in refused:
        error = a.refused(board, entry)
        assert (type(error), error.code) == (Gone, "member_erased"), board
    assert refusal(a, ban()).code == "member_erased"
    a.write("b", Entry("mm", add=1))


def test_erased_names_leave_every_cell_and_nothing_comes_back() -> None:
    a, b, c = three(DAILY)
    a.define("likes", LIKES)
    a.write("b", Entry("m", add=7), keyed("k"), Entry("n", add=1))
    a.write("likes", Entry("m", actor="x"))
    a.must(ban())
    meet(a, b, c)
    a.must(Erase(b"m", KEY_16))
    meet(a, b)
    for agent in (a, b):
        purge(agent)
        assert not [row for row in agent.rows() if row.member == b"m"]
        assert agent.state.facts == 0
        assert len(agent.state.bans) == 0
        assert (agent.score("b", "all"), agent.score("b", "all", "n")) == (None, 1)
    # The stale region has more of it, and has not heard.
    c.write("b", Entry("m", add=100), keyed("k2"), now_ms=NOW_MS + 5)
    c.must(ban(board="likes"))
    a.pull(c)
    assert not [row for row in a.rows() if row.member == b"m"]
    assert a.commits[-1].alarms.late_facts == 0
    meet(a, b, c)
    purge(c)
    meet(a, b, c)
    check_equal([a, b, c])
    assert not [row for row in c.rows() if b"m" in (row.member, row.slot[1:])]


def test_an_erased_actor_goes_on_without_a_name() -> None:
    a, b = three(LIKES, names="ab")
    a.write(
        "b", Entry("post", actor="ann"), Entry("post", actor="bob"), Entry("other", actor="ann")
    )
    meet(a, b)
    a.must(Erase(b"ann", KEY_16))
    b.write("b", Entry("post", actor="ann", present=False))  # has not heard
    b.write("b", Entry("post", actor="ann"))
    purge(a)
    meet(a, b)
    purge(b)
    meet(a, b)
    check_equal([a, b])
    assert (a.score("b", "all", "post"), a.score("b", "all", "other")) == (2, 1)
    slots = {row.slot[1:] for row in a.of_kind(Kind.FLAG)}
    assert slots == {b"bob", pseudonym(b"ann")}
    assert b"ann" not in pseudonym(b"ann")


def test_what_an_erased_actor_took_back_stays_taken_back() -> None:
    (a,) = three(LIKES, names="a")
    a.write("b", Entry("post", actor="ann"), Entry("post", actor="ann", present=False))
    a.must(Erase(b"ann", KEY_16))
    purge(a)
    assert a.score("b", "all", "post") == 0


def test_an_erased_member_leaves_the_candidates_of_a_trend() -> None:
    a, b = three(Definition(rule="trend"), names="ab")
    a.write("b", Entry("m", add=7), Entry("n", add=3))
    meet(a, b)
    a.must(Erase(b"m", KEY_16))
    purge(a)
    b.pull(a)
    purge(b)
    meet(a, b)
    check_equal([a, b])
    assert {row.body for row in b.of_kind(Kind.TOP)} == {b"n", b""}
    a.write("b", Entry("o", add=5))
    assert b"o" in {row.body for row in a.of_kind(Kind.TOP)}, "its own place goes on"


def test_a_tombstone_keeps_its_name_until_all_have_confirmed() -> None:
    a, b = three(DAILY, names="ab")
    a.must(Erase(b"m", KEY_16))
    meet(a, b)
    its = id_of(b"m", KEY_16)
    for agent in (a, b):
        stone = agent.state.erased.find(b"m")
        assert stone is not None
        assert (stone.id, stone.name, stone.erased_ms) == (its, b"m", NOW_MS)
        assert agent.changed(ConfirmErasures((its,)))
        assert not agent.changed(ConfirmErasures((its,)))
    assert a.state.erased.owed("ab", "a").ripe == ()
    meet(a, b)
    owed = a.state.erased.owed("ab", "a")
    assert (owed.ripe, owed.unconfirmed, owed.named) == ((its,), {}, 1)
    assert a.changed(ForgetNames((its,)))
    assert not a.changed(ForgetNames((its,)))
    meet(a, b)
    check_equal([a, b])
    assert not any(b"m" in (row.member, row.body) for row in b.rows())
    assert b.refused("b", Entry("m", add=1)).code == "member_erased"
    stone = b.state.erased.find(b"m")
    assert stone is not None
    assert (stone.name, stone.confirmed) == (None, {"a": NOW_MS, "b": NOW_MS})
    assert confirmation_cell(its, "a") in b.cells()


def test_names_erased_in_two_regions_at_once_have_two_keys() -> None:
    a, b = three(DAILY, names="ab")
    a.must(Erase(b"m", KEY_16))
    b.must(Erase(b"m", KEY_16[::-1]), Erase(b"n", KEY_16))
    meet(a, b)
    check_equal([a, b])
    for agent in (a, b):
        assert agent.state.erased.closed(b"m")
        assert agent.state.erased.closed(b"n")
        assert agent.state.erased.key == min(KEY_16, KEY_16[::-1])
    assert len(a.state.erased) == 3


@pytest.mark.parametrize("key", [b"", b"x" * 65, b"x" * 300])
def test_a_key_of_another_length_is_passed_over(key: bytes) -> None:
    (a,) = three(DAILY, names="a")
    stray = Row(ERASED_SPACE, b"key", bytes([Kind.FLAG]) + key, 1, 0, b"", 9, 1)
    a.take(stray, Row(ERASED_SPACE, b"t" * 16, bytes([Kind.ERASURE]), 1, 5, b"", 9, 2))
    a.write("b", Entry("m", add=1))
    assert a.changed(Erase(b"m", KEY_16))
    assert a.state.erased.key == KEY_16


def test_erasures_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent.members.ERASURES_MAX", 1)
    (a,) = three(DAILY, names="a")
    a.must(Erase(b"m", KEY_16))
    assert isinstance(refusal(a, Erase(b"n", KEY_16)), Unavailable)


@pytest.mark.parametrize("expired", [False, True])
def test_nothing_is_written_of_an_erased_name_before_its_cells_have_gone(expired: bool) -> None:
    """A change that was on its way when the name was erased: the pass may be over already."""
    (a,) = three(RESULTS, names="a")
    a.one("b", Entry("m", score=5, key="k", at=NOW_MS))
    a.must(ban(until_ms=NOW_MS + 5), Erase(b"m", KEY_16))
    before = a.cells()
    lifted, retracted = a.run(
        lift(expired=expired), Retract("b", b"m", b"k", NOW_MS, ()), now_ms=NOW_MS + 5
    )
    if expired:
        assert lifted == BoardChanged(False)
    else:
        assert isinstance(lifted, Gone)
    assert isinstance(retracted, Gone)
    assert a.cells() == before


def test_a_pseudonym_is_nobody_who_acts_or_is_erased() -> None:
    """Erased itself, it would be written here, and let in nowhere else."""
    a, b = three(LIKES, names="ab")
    name = "\N{SNOWMAN}"
    a.one("b", Entry("m", actor=name))
    a.must(Erase(name.encode(), KEY_16))
    stands_for = pseudonym(name.encode())
    assert isinstance(refusal(a, Erase(stands_for, KEY_16)), Malformed)
    a.drop(*[key for key in a.cells() if key[2] == b"C" + name.encode()])
    off = Entry("m", actor=stands_for.decode(), present=False)
    assert isinstance(a.refused("b", off), Malformed)
    meet(a, b)
    check_equal([a, b])
    assert (a.score("b", "all"), b.score("b", "all")) == (1, 1)


def test_a_refusal_says_which_name_was_erased() -> None:
    (a,) = three(LIKES, names="a")
    a.must(Erase(b"x", KEY_16))
    by, of = (a.refused("b", Entry(*its[:1], actor=its[1])) for its in (("m", "x"), ("x", "m")))
    assert by.detail.startswith("entries[0].actor: ")
    assert of.detail.startswith("entries[0].member: ")


def test_a_name_erased_in_a_batch_is_closed_to_what_comes_after_it() -> None:
    (a,) = three(DAILY, names="a")
    a.write("b", Entry("m", add=1))
    before, _, after = a.run(
        write("b", Entry("m", add=1)), Erase(b"m", KEY_16), write("b", Entry("m", add=1))
    )
    assert not isinstance(before, Refused)
    assert isinstance(after, Gone)
    a.check()
