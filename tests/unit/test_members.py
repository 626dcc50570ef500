"""What is done to members: bans, erasures, retractions, and what is dropped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from agent import committer
from agent.boards.bans import BY_ITSELF, Bans, ban_key, history_of
from agent.boards.definition import Definition
from agent.boards.entry import Entry
from agent.boards.erasures import Erasures
from agent.boards.marks import Due, Marks, series_bytes
from agent.boards.windows import WindowSpec
from agent.crdt.cell import Row
from agent.crdt.slot import Kind
from agent.crdt.space import BANS_SPACE
from agent.errors import Refused, TooLarge
from agent.limits import HISTORY_BANS_MAX
from agent.operation import (
    Erase,
    LiftBan,
    Operation,
    SetBan,
)
from tests.unit.core_agents import (
    DAILY,
    NOW_MS,
    CoreAgent,
    check_equal,
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


def counted(monkeypatch: pytest.MonkeyPatch, owner: object, name: str) -> list[str]:
    """A list that gets longer by each call of a function, which goes on doing what it did."""
    calls: list[str] = []
    its = getattr(owner, name)

    def called(*args: Any) -> Any:
        calls.append(name)
        return its(*args)

    monkeypatch.setattr(owner, name, called)
    return calls


def refusal(agent: CoreAgent, operation: Operation) -> Refused:
    before = agent.cells()
    (answer,) = agent.run(operation)
    assert isinstance(answer, Refused)
    assert agent.cells() == before
    return answer


# --- bans ---------------------------------------------------------------------------------------


def test_a_ban_hides_and_its_lift_shows_again() -> None:
    (a,) = three(DAILY, names="a")
    a.write("b", Entry("m", add=7))
    assert a.changed(ban())
    assert a.state.bans.hides(b"m", "b")
    assert not a.state.bans.hides(b"m", "other")
    assert a.state.bans.hidden("b") == [b"m"]
    assert a.one("b", Entry("m", add=1))[0]["all"] == 8, "scores go on being counted"
    assert a.changed(lift())
    assert not a.changed(lift())
    assert not a.state.bans.hides(b"m", "b")
    a.check()


def test_a_ban_on_all_boards_hides_on_each() -> None:
    (a,) = three(DAILY, names="a")
    a.must(ban(board=""), ban(member=b"n", board="b"))
    assert a.state.bans.hides(b"m", "b")
    assert a.state.bans.hides(b"m", "any")
    assert sorted(a.state.bans.hidden("b")) == [b"m", b"n"]
    assert a.state.bans.standing == 2
    a.must(lift(board="b"))
    assert a.state.bans.hides(b"m", "b"), "another ban than the one on all"


def test_a_ban_and_a_score_at_once_and_a_region_that_returns() -> None:
    a, b, c = three(DAILY)
    c.write("b", Entry("m", add=900))
    a.must(ban())
    b.write("b", Entry("m", add=5))
    meet(a, b)
    assert all(agent.state.bans.hides(b"m", "b") for agent in (a, b))
    meet(a, b, c)
    check_equal([a, b, c])
    assert all(agent.state.bans.hides(b"m", "b") for agent in (a, b, c))
    c.must(lift())
    meet(a, b, c)
    assert not any(agent.state.bans.hides(b"m", "b") for agent in (a, b, c))
    assert a.score("b", "all") == 905


def test_a_ban_outlives_a_lift_that_had_not_seen_it() -> None:
    a, b = three(DAILY, names="ab")
    a.must(ban())
    meet(a, b)
    b.must(lift())
    a.must(SetBan(b"m", "b", None, "again", "ops"))  # raises the standing ban by two
    meet(a, b)
    check_equal([a, b])
    assert a.state.bans.hides(b"m", "b")
    (its,) = b.state.bans.of(b"m")
    assert (its.reason, its.length) == ("again", 3)


def test_the_same_ban_again_changes_nothing() -> None:
    (a,) = three(DAILY, names="a")
    assert a.changed(ban(until_ms=NOW_MS + 5))
    assert not a.changed(ban(until_ms=NOW_MS + 5))
    assert a.changed(ban())
    (its,) = a.state.bans.of(b"m")
    assert (its.length, its.until_ms, its.on) == (3, None, True)


def test_a_ban_ends_by_itself_and_its_lift_is_the_same_whoever_writes_it() -> None:
    a, b = three(DAILY, names="ab")
    until_ms = NOW_MS + 1_000
    a.must(ban(until_ms=until_ms))
    meet(a, b)
    assert a.state.bans.over(until_ms - 1) == []
    assert a.state.bans.over(until_ms) == [(b"m", "b")]
    assert not a.changed(lift(expired=True), now_ms=until_ms - 1)
    assert a.changed(lift(expired=True), now_ms=until_ms)
    assert b.changed(lift(expired=True), now_ms=until_ms + 77_000)
    key = ban_key(b"m", "b")
    assert a.cells()[key] == b.cells()[key]
    assert a.state.bans.over(until_ms) == []
    meet(a, b)
    check_equal([a, b])
    assert not a.changed(lift(expired=True), now_ms=until_ms)
    a.must(ban())
    assert not a.changed(lift(expired=True), now_ms=until_ms * 2), "it has no end"


def test_the_history_of_a_ban_is_kept_newest_first_and_bounded() -> None:
    a, b = three(DAILY, names="ab")
    a.must(ban())
    meet(a, b)
    b.must(lift())
    meet(a, b)
    a.must(ban(until_ms=NOW_MS + 5), ban(board=""))
    history = history_of(a.store.snapshot().slots_of(BANS_SPACE, b"m"), "b")
    assert [(its.length, its.on, its.reason, its.by) for its in history] == [
        (3, True, "cheats", "ops"),
        (2, False, "sorry", "ops"),
        (1, True, "cheats", "ops"),
    ]
    for n in range(HISTORY_BANS_MAX):
        a.must(SetBan(b"m", "b", None, f"r{n}", "ops"), lift())
    history = history_of(a.store.snapshot().slots_of(BANS_SPACE, b"m"), "b")
    assert [its.length for its in history[:3]] == [2 * HISTORY_BANS_MAX + n for n in (4, 3, 2)][:3]
    assert len(history) <= 2 * HISTORY_BANS_MAX
    a.check()


@pytest.mark.parametrize("other", [ban, lift, lambda who: Erase(who, KEY_16)])
def test_many_changes_of_members_in_one_batch_are_applied_once(
    monkeypatch: pytest.MonkeyPatch, other: Callable[[bytes], Operation]
) -> None:
    (a,) = three(DAILY, names="a")
    names = [b"m%d" % n for n in range(20)]
    a.must(*map(ban, names))
    a.must(*map(ban, names[::2]), *map(lift, names[1::2]))
    times = counted(monkeypatch, committer, "apply")
    a.must(write("b", Entry("m", add=1)), *map(other, names))
    assert len(times) == 1
    a.check()


def test_what_a_batch_notes_is_not_seen_in_the_state_before_it() -> None:
    (a,) = three(DAILY, names="a")
    a.must(ban(b"m"), ban(b"n", until_ms=NOW_MS + 5), Erase(b"x", KEY_16))
    before = a.state
    seen = [before.bans.of(b"m"), before.bans.over(NOW_MS + 5), before.erased.all()]
    a.must(lift(b"m"), ban(b"n"), ban(b"o"), Erase(b"y", KEY_16), Erase(b"n", KEY_16))
    a.drop(*[key for key in a.cells() if key[:2] == (BANS_SPACE, b"n")])
    assert seen == [before.bans.of(b"m"), before.bans.over(NOW_MS + 5), before.erased.all()]
    assert (len(before.bans), len(a.state.bans)) == (2, 2)
    assert a.state.bans.over(NOW_MS + 5) == []
    assert [a.state.bans.hides(its, "b") for its in (b"m", b"n", b"o")] == [False, False, True]


@pytest.mark.parametrize("kind", [Marks, Bans, Erasures])
def test_own_spaces_are_copied_once_in_a_batch(
    monkeypatch: pytest.MonkeyPatch, kind: type[Marks | Bans | Erasures]
) -> None:
    """There may be hundreds of thousands of them: a copy for each row stops the writer."""
    a, b = three(DAILY, names="ab")
    series = [series_bytes(f"b{n}", 0, b"12345678", "day") for n in range(20)]
    marks = [Due(Kind.CLOSE, its, a.window("b", "day")) for its in series]
    a.set_marks(*marks)
    a.must(*(ban(b"m%d" % n) for n in range(20)), *(Erase(b"e%d" % n, KEY_16) for n in range(20)))
    copies = counted(monkeypatch, kind, "copy")
    b.pull(a)
    assert len(copies) == 1
    check_equal([a, b])
    assert b.state.marks.window(Kind.CLOSE, series[7], "a") == a.window("b", "day").id


def test_banned_members_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent.members.BANS_MAX", 2)
    (a,) = three(DAILY, names="a")
    a.must(ban(b"m"), ban(b"n"))
    assert isinstance(refusal(a, ban(b"o")), TooLarge)
    assert a.changed(ban(b"m", "other")), "one that is remembered may be banned elsewhere, too"


@pytest.mark.parametrize("body", [b"", b"\xc1", b"\x93\x01", b"\x91\xa1x"])
def test_a_ban_of_another_form_is_one_all_the_same(body: bytes) -> None:
    (a,) = three(DAILY, names="a")
    a.take(Row(*ban_key(b"m", "b"), 1, 0, body, 9, 1))
    assert a.state.bans.hides(b"m", "b")
    assert [(its.reason, its.by) for its in a.state.bans.of(b"m")] == [("", "")]
    assert a.changed(lift())


# --- erasures -----------------------------------------------------------------------------------


def test_a_ban_that_ends_by_itself_has_one_lift_in_its_history() -> None:
    a, b = three(DAILY, names="ab")
    a.must(ban(until_ms=NOW_MS + 5))
    meet(a, b)
    for agent in (a, b):
        agent.must(lift(expired=True), now_ms=NOW_MS + 9)
    meet(a, b)
    check_equal([a, b])
    slots = [(row.slot, row.value) for row in a.rows() if row.space == BANS_SPACE]
    assert [change.on for change in history_of(slots, "b")] == [False, True]
