"""Keys: facts, voids, what is answered to a retry, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agent.boards.catalog import keys_space
from agent.boards.definition import Definition
from agent.boards.entry import Entry
from agent.boards.marks import Due, keys_series
from agent.boards.tally import Group, Note
from agent.boards.windows import FACTS_MS, KEYS
from agent.crdt import fact
from agent.crdt.cell import Row
from agent.crdt.fact import Effect, Fact
from agent.crdt.slot import Kind, key_in, slot_of_key, slot_of_replica
from agent.crdt.space import NO_SHAPE, Space, decode_space, encode_space
from agent.errors import Conflict, Gone, Malformed, Unavailable
from agent.operation import SetMarks, Write, Written
from tests.unit.core_agents import (
    DAILY,
    HOUR_MS,
    NOW_MS,
    TODAY,
    CoreAgent,
    keyed,
    meet,
    three,
    write,
)

GOLDEN: dict[str, Any] = json.loads(
    (Path(__file__).parents[1] / "golden" / "core-facts-v1.json").read_text("utf-8")
)


@pytest.fixture
def agent() -> CoreAgent:
    return three(DAILY, names="a")[0]


# --- the cell --------------------------------------------------------------------------------


@pytest.mark.parametrize("golden", GOLDEN["facts"], ids=lambda golden: golden["name"])
def test_bodies_of_facts_are_frozen(golden: dict[str, Any]) -> None:
    said = Fact(
        golden["hlc"],
        golden["at_ms"],
        bytes.fromhex(golden["content"]),
        golden["generation"],
        tuple(Effect(bytes.fromhex(shape), *rest) for shape, *rest in golden["effects"]),
    )
    value = (golden["hlc"], golden["at_ms"], bytes.fromhex(golden["body"]))
    assert fact.pack(said) == value
    assert fact.unpack(value) == said


@pytest.mark.parametrize(("amount", "at_ms", "frozen"), GOLDEN["contents"])
def test_digests_of_what_an_entry_says_are_frozen(amount: int, at_ms: int, frozen: str) -> None:
    assert fact.content_of(amount, at_ms).hex() == frozen


def test_a_void_takes_out_what_its_effect_added() -> None:
    assert (fact.void(7), fact.void(-7), fact.void(0)) == ((7, 0, b""), (0, 7, b""), (0, 0, b""))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xc1",
        b"\x93\x01\x02\x03",
        fact.pack(Fact(1, 1, b"c" * 8, 0, ()))[2] + b"x",
        fact.pack(Fact(1, 1, b"c" * 8, 0, (Effect(b"s", "w", 1, 2**63, 1),)))[2],
        fact.pack(Fact(1, 1, b"c" * 8, True, ()))[2],
        fact.pack(Fact(1, 1, b"c" * 8, 0, ("abcde",)))[2],  # type: ignore[arg-type]
    ],
)
def test_a_fact_that_can_not_be_read_is_kept_and_does_nothing(body: bytes) -> None:
    (one,) = three(DAILY, names="a")
    assert fact.unpack((1, NOW_MS, body)) is None
    space, slot = keys_space("b", NOW_MS), slot_of_key(Kind.FACT, b"k", 9)
    assert one.take(Row(space, b"m", slot, 1, NOW_MS, body, 9, 1)).changed == 1
    assert one.state.facts == 1
    assert one.one("b", keyed("k")) == ({"all": 5, TODAY: 5}, Note())
    one.check()


@pytest.mark.parametrize("slot", [b"F", b"Fab", b"F\x00\x05abcdefghijk", b"F\xff\xff" + bytes(20)])
@pytest.mark.parametrize("at_ms", [NOW_MS, -1, -(2**63), 2**63 - 1])
def test_a_fact_of_another_form_does_not_stop_a_chunk(slot: bytes, at_ms: int) -> None:
    (one,) = three(DAILY, names="a")
    said = Fact(7, at_ms, b"c" * 8, 0, ())
    row = Row(keys_space("b", NOW_MS), b"m", slot, *fact.pack(said), 9, 1)
    behind = Row(one.space("b", "all"), b"m", slot_of_replica(Kind.UP, 9), 3, 1, b"", 9, 2)
    assert one.take(row, behind).changed == 2
    assert one.score("b", "all") == 3
    one.check()


# --- counting once in one region ---------------------------------------------------------------


def test_a_keyed_entry_counts_once_and_retries_get_the_score_now(agent: CoreAgent) -> None:
    assert agent.one("b", keyed("k")) == ({"all": 5, TODAY: 5}, Note())
    agent.write("b", Entry("m", add=10), now_ms=NOW_MS + 60_000)
    again = agent.one("b", keyed("k"), now_ms=NOW_MS + 120_000)
    assert again == ({"all": 15, TODAY: 15}, Note((), NOW_MS))
    assert (agent.score("b", "all"), agent.state.facts) == (15, 1)
    agent.check()


@pytest.mark.parametrize("at", [float(NOW_MS - HOUR_MS // 2), "2026-11-30T12:30:00Z"])
def test_a_time_in_another_form_is_the_same_time(agent: CoreAgent, at: float | str) -> None:
    entry = Entry("m", add=5, at=at, key="k")
    assert agent.one("b", entry) == ({"all": 5, TODAY: 5}, Note())
    again = agent.one("b", keyed("k", at=NOW_MS - HOUR_MS // 2))
    assert again == ({"all": 5, TODAY: 5}, Note((), NOW_MS))
    agent.check()


@pytest.mark.parametrize("at", [0.5, float("nan"), float("inf"), 1e300, -1e300, "yesterday"])
def test_a_key_with_a_time_that_is_none_is_refused(agent: CoreAgent, at: float | str) -> None:
    refused = agent.refused("b", Entry("m", add=5, at=at, key="k"))
    assert refused.detail.startswith("entries[0].at: ")


def test_a_retry_changes_nothing(agent: CoreAgent) -> None:
    agent.one("b", keyed("k"))
    before = agent.state
    agent.one("b", keyed("k"))
    assert agent.state is before


def test_a_fact_stands_before_its_slots_and_has_a_seq_of_its_own(agent: CoreAgent) -> None:
    first = agent.state.seq
    agent.write("b", keyed("k1"), Entry("m", add=1), keyed("k2", add=-2), keyed("k3", member="n"))
    rows = [row for row in agent.rows() if row.seq > first]
    kinds = "".join(chr(row.slot[0]) for row in rows)
    assert kinds[:3] == "FFF"
    assert sorted(kinds[3:]) == sorted("+-+" * 2)
    facts = [row.seq for row in rows[:3]]
    assert facts == [first + 1, first + 2, first + 3]
    assert {row.seq for row in rows[3:]} == {first + 4}
    assert agent.state.seq == agent.state.vv[agent.inc] == first + 4
    assert all(row.inc == agent.inc for row in rows)


def test_facts_say_what_each_slot_was_after_them(agent: CoreAgent) -> None:
    agent.write(
        "b", keyed("k1", at=NOW_MS - 9), Entry("m", add=1, at=NOW_MS), keyed("k2"), keyed("k3", -4)
    )
    said = {key_in(row.slot)[0]: fact.unpack(row.value) for row in agent.of_kind(Kind.FACT)}
    shape = agent.board("b").counted[0].prefix[-8:]
    effects = {key: its.effects[0] for key, its in said.items() if its is not None}
    assert effects == {
        b"k1": Effect(shape, "all", 5, 5, NOW_MS - 9),
        b"k2": Effect(shape, "all", 5, 11, NOW_MS),
        b"k3": Effect(shape, "all", -4, 4, NOW_MS),
    }
    assert [effect.window for effect in said[b"k1"].effects] == ["all", TODAY]  # type: ignore[union-attr]
    assert [its.hlc for its in said.values() if its] == sorted(
        its.hlc for its in said.values() if its
    )
    assert {its.generation for its in said.values() if its} == {0}


def test_an_entry_of_zero_with_a_key_has_its_slot(agent: CoreAgent) -> None:
    agent.write("b", Entry("m", add=-3))
    agent.write("b", keyed("k", add=0, at=NOW_MS - 5))
    slot = slot_of_replica(Kind.UP, agent.inc)
    assert agent.cells()[agent.space("b", "all"), b"m", slot] == (0, NOW_MS - 5, b"")
    (row,) = agent.of_kind(Kind.FACT)
    said = fact.unpack(row.value)
    assert said is not None
    assert [its[2:] for its in said.effects] == [(0, 0, NOW_MS - 5)] * 2
    assert agent.one("b", keyed("k", add=0, at=NOW_MS - 5))[1].counted_ms == NOW_MS
    agent.check()


def test_the_same_key_twice_in_a_request_counts_once(agent: CoreAgent) -> None:
    answer = agent.write("b", keyed("k"), Entry("m", add=1), keyed("k"), keyed("k", member="n"))
    day = [{"all": n, TODAY: n} for n in (5, 6, 6, 5)]
    assert answer.scores[0] == day
    assert answer.notes[0] == {2: Note((), NOW_MS)}
    assert (agent.score("b", "all"), agent.score("b", "all", "n")) == (6, 5)
    assert agent.state.facts == 2


def test_the_same_key_with_other_content_in_a_request_refuses_it_all(agent: CoreAgent) -> None:
    error = agent.refused("b", keyed("k"), keyed("k", add=6))
    assert isinstance(error, Conflict)
    assert (error.code, [one.index for one in error.errors]) == ("key_conflict", [1])


def test_the_same_key_across_requests_of_one_batch_and_across_boards() -> None:
    (agent,) = three(DAILY, names="a")
    agent.define("c", DAILY)
    two = Write((Group("b", [keyed("k")], [0]), Group("c", [keyed("k")], [1])))
    answers = agent.must(write("b", keyed("k")), two, two, write("b", keyed("k"), keyed("x")))
    notes = [answer.notes for answer in answers if isinstance(answer, Written)]
    twice = {0: Note((), NOW_MS)}
    assert notes == [({},), (twice, {}), (twice, twice), (twice,)]
    assert (agent.score("b", "all"), agent.score("c", "all")) == (10, 5)
    agent.check()


def test_a_refused_request_leaves_no_fact(agent: CoreAgent) -> None:
    error = agent.refused("b", keyed("k"), Entry("m", add=2**40))
    assert error.code == "out_of_range"
    assert agent.one("b", keyed("k"))[1] == Note()


@pytest.mark.parametrize("other", [keyed("k", add=6), keyed("k", at=NOW_MS - 1)])
def test_a_key_with_other_content_is_a_conflict(agent: CoreAgent, other: Entry) -> None:
    agent.one("b", keyed("k"))
    error = agent.refused("b", other)
    assert (type(error), error.code) == (Conflict, "key_conflict")
    assert agent.one("b", keyed("k"))[1].counted_ms == NOW_MS


@pytest.mark.parametrize("bucket", [-1, 0, 1])
def test_a_conflict_is_seen_in_the_neighbours_of_a_bucket(bucket: int) -> None:
    (agent,) = three(DAILY, names="a")
    at = NOW_MS - FACTS_MS
    agent.one("b", keyed("k", at=at))
    assert agent.refused("b", keyed("k", at=at + bucket * FACTS_MS + 1)).code == "key_conflict"


def test_far_from_its_time_a_key_is_another_one(agent: CoreAgent) -> None:
    agent.one("b", keyed("k"))
    agent.one("b", keyed("k", at=NOW_MS - 2 * FACTS_MS))
    assert (agent.score("b", "all"), agent.state.facts) == (10, 2)


def test_keys_are_of_a_board_and_member(agent: CoreAgent) -> None:
    agent.define("c", DAILY)
    for board in "bc":
        for member in "mn":
            assert agent.one(board, keyed("k", member=member))[1] == Note()


# --- times --------------------------------------------------------------------------------------

UUID_7 = f"{NOW_MS:012x}"
UUID_7 = f"{UUID_7[:8]}-{UUID_7[8:]}-7abc-8def-0123456789ab"


def ulid(ms: int) -> str:
    letters = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
    return "".join(letters[ms >> 5 * place & 31] for place in range(9, -1, -1)) + "0123456789ABCDEF"


@pytest.mark.parametrize("key", [UUID_7, UUID_7.upper(), ulid(NOW_MS), ulid(NOW_MS).lower()])
def test_a_key_may_hold_the_time(agent: CoreAgent, key: str) -> None:
    late = NOW_MS + 10 * 60_000
    assert agent.one("b", Entry("m", add=5, key=key), now_ms=late)[1] == Note()
    (row,) = agent.of_kind(Kind.FACT)
    assert (row.minor, row.space) == (NOW_MS, keys_space("b", NOW_MS))
    again = agent.one("b", Entry("m", add=5, key=key), now_ms=late + 60_000)
    assert again[1].counted_ms == late
    # A time that is said goes before the key's own.
    assert agent.refused("b", keyed(key, at=late), now_ms=late).code == "key_conflict"


def test_a_key_without_any_time_is_refused(agent: CoreAgent) -> None:
    error = agent.refused("b", Entry("m", add=5, key="order-1"))
    assert isinstance(error, Malformed)
    assert "at" in error.detail


@pytest.mark.parametrize("retention", [None, "1m", "2h"])
def test_after_key_retention_a_key_has_expired(retention: str | None) -> None:
    (agent,) = three(Definition(rule="sum", key_retention=retention), names="a")
    ms = {None: HOUR_MS, "1m": 60_000, "2h": 2 * HOUR_MS}[retention]
    agent.one("b", keyed("k", at=NOW_MS))
    assert agent.one("b", keyed("k", at=NOW_MS), now_ms=NOW_MS + ms - 1)[1].counted_ms == NOW_MS
    for key in ("k", "new"):
        error = agent.refused("b", keyed(key, at=NOW_MS), now_ms=NOW_MS + ms)
        assert (type(error), error.code) == (Gone, "key_expired")
        assert str(ms) in error.detail
    agent.write("b", Entry("m", add=1, at=NOW_MS), now_ms=NOW_MS + ms)


@pytest.mark.parametrize("at", [-1, -5, "1969-12-31T23:59:59Z", -62_135_596_800_000])
def test_a_key_from_before_1970_has_expired(agent: CoreAgent, at: int | str) -> None:
    error = agent.refused("b", Entry("m", add=5, key="k", at=at))
    assert error.code == "key_expired"
    early = agent.refused("b", Entry("m", add=5, key="k", at=at), now_ms=5)
    assert early.code == "key_expired"


def test_a_key_that_is_too_long_fails_alone(agent: CoreAgent) -> None:
    answers = agent.run(write("b", keyed("k" * 70_000)), write("b", keyed("k")))
    assert [type(answer) for answer in answers] == [Malformed, Written]


def test_what_this_agent_has_closed_it_takes_no_more_whatever_its_clock_says() -> None:
    (agent,) = three(DAILY, names="a")
    bucket = KEYS.at(NOW_MS - FACTS_MS)
    assert bucket is not None
    agent.one("b", keyed("k", at=bucket.end_ms - 1))
    assert agent.set_marks(Due(Kind.CLOSE, keys_series("b"), bucket))
    for key in ("k", "new"):
        assert agent.refused("b", keyed(key, at=bucket.end_ms - 1)).code == "key_expired"
    assert agent.one("b", keyed("new", at=bucket.end_ms))[1] == Note()


def test_the_close_mark_of_another_agent_does_not_close_here() -> None:
    a, b = three(DAILY, names="ab")
    bucket = KEYS.at(NOW_MS - FACTS_MS)
    assert bucket is not None
    b.set_marks(Due(Kind.CLOSE, keys_series("b"), bucket))
    meet(a, b)
    assert a.one("b", keyed("k", at=bucket.start_ms))[1] == Note()


def test_what_was_collected_before_an_agent_joined_it_does_not_take() -> None:
    (a,) = three(DAILY, names="a")
    bucket = KEYS.at(NOW_MS - FACTS_MS)
    assert bucket is not None
    a.set_marks(Due(Kind.COLLECTED, keys_series("b"), bucket))
    b = CoreAgent("b")
    meet(a, b)
    assert b.refused("b", keyed("k", at=bucket.start_ms)).code == "key_expired"
    assert b.one("b", keyed("k", at=bucket.end_ms))[1] == Note()


# --- the cap ------------------------------------------------------------------------------------


def test_at_the_cap_keyed_entries_are_refused_and_others_go_on() -> None:
    (agent,) = three(DAILY, names="a", facts_max=2)
    agent.write("b", keyed("k1"), keyed("k2"))
    error = agent.refused("b", keyed("k3"))
    assert isinstance(error, Unavailable)
    assert "2 keys are remembered" in error.detail
    assert "key_retention" in error.detail
    assert agent.one("b", keyed("k1"))[1].counted_ms == NOW_MS, "a retry is answered all the same"
    agent.write("b", Entry("m", add=1))


def test_the_cap_holds_within_a_batch_and_over_the_boards_of_a_request() -> None:
    (agent,) = three(DAILY, names="a", facts_max=2)
    agent.define("c", DAILY)
    agent.refused("b", keyed("k1"), keyed("k2"), keyed("k3"))
    groups = Write((Group("b", [keyed("k1"), keyed("k2")], [0, 1]), Group("c", [keyed("k3")], [2])))
    answers = agent.run(groups, write("b", keyed("k1")), write("c", keyed("k1")), groups)
    assert [type(answer) for answer in answers] == [Unavailable, Written, Written, Unavailable]
    assert agent.state.facts == 2


def test_the_member_whose_absence_holds_the_keys_is_named() -> None:
    a, b, c = three(DAILY, facts_max=1)
    a.one("b", keyed("k"))
    later = NOW_MS + 2 * HOUR_MS
    bucket = KEYS.at(NOW_MS)
    assert bucket is not None
    close = SetMarks((Due(Kind.CLOSE, keys_series("b"), bucket),))
    for agent in (a, b):
        assert agent.changed(close)
    a.pull(b)
    detail = a.refused("b", keyed("k2", at=later), now_ms=later).detail
    assert "'c'" in detail
    assert "'b'" not in detail
    c.changed(close)
    a.pull(c)
    detail = a.refused("b", keyed("k2", at=later), now_ms=later).detail
    assert "'a', 'b', 'c'" in detail, "all have closed, nobody has acknowledged"


def test_peers_facts_count_and_collected_ones_make_room() -> None:
    a, b = three(DAILY, names="ab", facts_max=1)
    b.one("b", keyed("k"))
    a.pull(b)
    assert a.state.facts == 1
    assert a.refused("b", keyed("k2")).code == "busy"
    bucket = KEYS.at(NOW_MS)
    assert bucket is not None
    a.set_marks(Due(Kind.COLLECTED, keys_series("b"), bucket))
    (row,) = a.of_kind(Kind.FACT)
    assert a.drop(row.key)
    assert a.state.facts == 0
    later = NOW_MS + FACTS_MS
    assert a.one("b", keyed("k2", at=later), now_ms=later)[1] == Note()
    a.check()


def test_spaces_of_facts_belong_to_no_generation() -> None:
    space = decode_space(keys_space("b", NOW_MS))
    window = KEYS.at(NOW_MS)
    assert window is not None
    assert space == Space("b", 0, NO_SHAPE, window.id)
    assert encode_space(space) == bytes.fromhex(GOLDEN["keys_space"])
