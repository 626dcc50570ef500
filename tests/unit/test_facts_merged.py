"""Facts of several regions: each key counts once, whatever meets in whichever order."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest

from agent import committer
from agent.apply import apply
from agent.boards.definition import Definition, check
from agent.boards.entry import Entry
from agent.boards.marks import Due, keys_series
from agent.boards.windows import KEYS
from agent.crdt.slot import Kind, key_in, slot_of_key
from agent.exchange import Chunk
from agent.operation import Define, Drop, Import, Merge, Reset, Written
from agent.state import Outcome
from tests.unit.core_agents import (
    DAILY,
    DAY_MS,
    INCS,
    NOW_MS,
    TODAY,
    CoreAgent,
    check_equal,
    keyed,
    meet,
    three,
    write,
)


def test_whoever_has_a_fact_has_its_slots() -> None:
    a, b, c = three(DAILY)
    a.write("b", keyed("k1"), Entry("m", add=1), keyed("k2", add=-2))
    facts = a.of_kind(Kind.FACT)
    for agent, rows in ((b, facts[:1]), (c, facts[1:])):
        agent.take(*rows)
        agent.check()
    assert (b.score("b", "all"), c.score("b", TODAY)) == (5, -2)
    slots = [row for row in b.rows() if row.slot[0] == Kind.UP]
    assert [row[6:] for row in slots] == [facts[0][6:]] * 2, "with the fact's stamp"
    a_totals = dict(a.store._totals)
    meet(a, b, c)
    check_equal([a, b, c])
    assert a.store._totals == a_totals == b.store._totals == c.store._totals


def test_a_chunk_of_one_row_at_a_time_raises_no_alarm() -> None:
    a, b, c = three(DAILY)
    a.write("b", keyed("k1"), Entry("m", add=1), keyed("k2"))
    b.write("b", keyed("k1"), keyed("k3"))
    meet(a, b, c, rows_max=1)
    check_equal([a, b, c])
    assert c.score("b", "all") == 5 + 1 + 5 + 5


@pytest.mark.parametrize("order", list(permutations("abc")))
def test_one_key_in_three_regions_counts_once_in_every_order(order: tuple[str, ...]) -> None:
    agents = {agent.name: agent for agent in three(DAILY)}
    for late, agent in enumerate(agents.values()):
        agent.write("b", Entry("m", add=late), now_ms=NOW_MS + late)
        agent.one("b", keyed("k"), now_ms=NOW_MS + late)
    everyone = [agents[name] for name in order]
    meet(*everyone, rows_max=2)
    check_equal(everyone)
    for agent in everyone:
        assert (agent.score("b", "all"), agent.score("b", TODAY)) == (0 + 1 + 2 + 5, 8)
        voids = {(row.slot, row.value) for row in agent.of_kind(Kind.VOID)}
        assert voids == {
            (slot_of_key(Kind.VOID, b"k", INCS[name]), (5, 0, b"")) for name in ("b", "c")
        }
        later = NOW_MS + 60_000
        assert agent.one("b", keyed("k"), now_ms=later)[1].counted_ms == NOW_MS, "the first stands"


def test_other_content_elsewhere_conflicts_everywhere_and_the_first_stands() -> None:
    a, b = three(DAILY, names="ab")
    b.one("b", keyed("k", add=7), now_ms=NOW_MS)
    a.one("b", keyed("k", add=5), now_ms=NOW_MS + 1)
    meet(a, b)
    for agent in (a, b):
        assert agent.score("b", "all") == 7
        assert agent.refused("b", keyed("k", add=5)).code == "key_conflict"
        assert agent.one("b", keyed("k", add=7))[1].counted_ms == NOW_MS


def test_a_negative_entry_is_voided_upwards() -> None:
    a, b = three(DAILY, names="ab")
    for agent in (a, b):
        agent.one("b", keyed("k", add=-4))
    meet(a, b)
    assert a.score("b", "all") == b.score("b", TODAY) == -4
    assert {row.value for row in a.of_kind(Kind.VOID)} == {(0, 4, b"")}


def test_different_windows_count_once_in_each_that_anybody_knew() -> None:
    a, b = three(Definition(rule="sum"), names="ab")
    b.define("b", DAILY)  # of which `a` has not heard
    then = NOW_MS + DAY_MS
    a.one("b", keyed("k", at=then), now_ms=then)
    b.one("b", keyed("k", at=then), now_ms=then + 1)
    meet(a, b, now_ms=then)
    check_equal([a, b])
    # a's is the first in `all`; b's alone has an effect in the day.
    for agent in (a, b):
        assert (agent.score("b", "all"), agent.score("b", "day:2026-12-01")) == (5, 5)
    (void,) = a.of_kind(Kind.VOID)
    assert (void.space, key_in(void.slot)) == (a.space("b", "all"), (b"k", INCS["b"]))


def test_a_key_counted_before_and_after_a_reset_counts_once_in_each_generation() -> None:
    a, b = three(DAILY, names="ab")
    a.one("b", keyed("k"))
    b.must(Reset("b", None))
    b.one("b", keyed("k"))
    meet(a, b)
    check_equal([a, b])
    assert not a.of_kind(Kind.VOID)
    assert a.score("b", "all") == 5
    assert a.one("b", keyed("k"))[1].counted_ms == NOW_MS, "and is remembered over the reset"


def test_a_key_at_a_peer_is_known_in_the_same_batch_as_its_chunk() -> None:
    a, b = three(DAILY, names="ab")
    b.one("b", keyed("k"))
    rows = tuple(row for row in b.rows() if row.slot[:1] in b"F+")
    chunk = Merge("b", Chunk(b.state.log, 0, 99, False, rows, {}), None)
    _, retried = a.must(chunk, write("b", keyed("k")))
    assert isinstance(retried, Written)
    assert retried.notes[0][0].counted_ms == NOW_MS
    other, _ = three(DAILY, names="ab")
    other.must(write("b", keyed("k")), chunk)
    assert other.score("b", "all") == 5
    other.check()
    assert len(other.of_kind(Kind.VOID)) == 2


def test_a_batch_in_which_keys_meet_is_applied_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each void that is only found missing meanwhile would apply the whole batch once more."""
    agents = three(DAILY)
    keys = [keyed(f"k{number}") for number in range(9)]
    chunks = []
    for agent, mine in zip(agents[1:], (keys[:6], keys[3:]), strict=True):
        agent.write("b", *mine)
        rows = tuple(row for row in agent.rows() if row.slot[:1] in b"F+")
        chunks.append(Merge(agent.name, Chunk(agent.state.log, 0, 99, False, rows, {}), None))
    applied = []

    def counted(*args: Any) -> Outcome:
        applied.append(args)
        return apply(*args)

    monkeypatch.setattr(committer, "apply", counted)
    agents[0].must(write("b", *keys[::2]), *chunks)
    assert len(applied) == 1
    assert agents[0].score("b", "all") == 9 * 5
    agents[0].check()


def test_voids_come_from_whoever_sees_both_and_are_equal() -> None:
    a, b, c = three(DAILY)
    a.one("b", keyed("k"), now_ms=NOW_MS)
    b.one("b", keyed("k"), now_ms=NOW_MS + 1)
    c.pull(a)
    c.pull(b)
    assert c.score("b", "all") == 5
    assert {row.inc for row in c.of_kind(Kind.VOID)} == {c.inc}
    b.pull(a)  # a second agent sees both, and has not heard of the void
    meet(a, b, c)
    check_equal([a, b, c])
    assert a.score("b", "all") == 5


def test_imported_facts_come_before_their_slots_with_stamps_of_their_own() -> None:
    a, b, c = three(DAILY)
    lost = CoreAgent("d")
    lost.pull(a)
    lost.one("b", keyed("k"))
    lost.one("b", keyed("k2"), now_ms=NOW_MS + 1)
    lost.write("b", Entry("m", add=4))
    a.one("b", keyed("k"), now_ms=NOW_MS + 2)
    a.must(Import(tuple(lost.rows())))
    a.check()
    assert a.score("b", "all") == a.score("b", TODAY) == 5 + 5 + 4
    meet(a, b, c, rows_max=1)
    check_equal([a, b, c])
    facts = [row for row in b.of_kind(Kind.FACT) if key_in(row.slot)[1] == lost.inc]
    assert [row.inc for row in facts] == [a.inc] * 2
    assert len({row.seq for row in facts}) == 2


# --- after collection -----------------------------------------------------------------------------


def collected(agent: CoreAgent, at_ms: int = NOW_MS) -> None:
    """The bucket of a time is collected, and its facts are dropped."""
    bucket = KEYS.at(at_ms)
    assert bucket is not None
    agent.set_marks(Due(Kind.COLLECTED, keys_series("b"), bucket))
    agent.must(Drop(tuple(row.key for row in agent.of_kind(Kind.FACT))))
    assert agent.state.facts == 0


def test_a_late_fact_counts_and_is_not_kept() -> None:
    a, b = three(DAILY, names="ab")
    b.one("b", keyed("k"))
    collected(a)
    a.pull(b)
    assert a.commits[-1].alarms.late_facts == 1
    assert (a.score("b", "all"), a.state.facts, a.of_kind(Kind.FACT)) == (5, 0, [])
    a.check()
    before = a.state.root
    a.take(*b.of_kind(Kind.FACT))
    assert (a.commits[-1].alarms.late_facts, a.state.root) == (0, before), "once"


def test_a_late_fact_alone_brings_its_slots() -> None:
    a, b = three(DAILY, names="ab")
    b.one("b", keyed("k"))
    collected(a)
    (row,) = b.of_kind(Kind.FACT)
    assert a.take(row).changed == 1
    assert a.score("b", TODAY) == 5
    a.check()


def test_voids_outlive_the_facts() -> None:
    a, b = three(DAILY, names="ab")
    for agent in (a, b):
        agent.one("b", keyed("k"))
    meet(a, b)
    for agent in (a, b):
        collected(agent)
        agent.check()
        assert agent.score("b", "all") == 5


def test_a_collected_window_takes_neither_slots_nor_voids() -> None:
    a, b = three(DAILY, names="ab")
    for agent in (a, b):
        agent.one("b", keyed("k"))
    day = a.window("b", "day")
    series = next(c.marks for c in a.board("b").counted if c.series.name == "day")
    a.set_marks(Due(Kind.COLLECTED, series, day))
    gone = [row.key for row in a.rows() if row.space == a.space("b", TODAY)]
    assert gone
    a.drop(*gone)
    a.pull(b)
    assert not [row for row in a.rows() if row.space == a.space("b", TODAY)]
    assert (a.score("b", "all"), a.score("b", TODAY)) == (5, None)
    a.check()


def test_a_board_that_is_not_defined_here_yet_keeps_facts_and_slots() -> None:
    (a,) = three(DAILY, names="a")
    a.one("b", keyed("k"))
    b = CoreAgent("b")
    b.take(*a.of_kind(Kind.FACT))
    space = a.space("b", "all")
    assert b.store._totals[space, b"m"].score == 5
    b.must(Define("b", check(DAILY)))
    assert b.one("b", keyed("k"))[1].counted_ms == NOW_MS
