"""Totals, root, buckets and the number of facts, kept with every change, equal a recount.

Any sequence of writes, merges, imports, retractions, erasures, marks and drops, for all rules, at
three agents; `CoreAgent.check` adds up everything anew after each step. In the end all agents meet
and hold the same cells.
"""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from agent.boards.definition import Definition
from agent.boards.entry import Entry
from agent.boards.marks import Due, place_of
from agent.boards.windows import WindowSpec
from agent.crdt.cell import Key
from agent.crdt.slot import Kind
from agent.crdt.space import is_own
from agent.errors import Refused
from agent.operation import Drop, Erase, Import, Operation, Reset, Retract
from tests.unit.core_agents import HOUR_MS, NOW_MS, CoreAgent, check_equal, meet, three, write

WINDOWS = (WindowSpec("day"), WindowSpec("hour"))
DEFINITIONS = {
    "sum": Definition(rule="sum", windows=(WindowSpec("all"), *WINDOWS)),
    "distinct": Definition(rule="distinct", windows=(WindowSpec("all"), *WINDOWS)),
    "unique": Definition(rule="unique", windows=(WindowSpec("all"), *WINDOWS)),
    "sum of results": Definition(rule="sum", results="keep", windows=WINDOWS),
    "best of results": Definition(rule="best", results="keep", windows=WINDOWS),
    "low of results": Definition(rule="best", order="low", results="keep", windows=WINDOWS),
    "trend": Definition(rule="trend", windows=(WindowSpec("all"), *WINDOWS)),
}
MEMBERS, ACTORS, KEYS = "mn", "xyz", ["k1", "k2", "k3"]
KEY_16 = bytes(16)

ACTS = st.lists(
    st.tuples(
        st.sampled_from("abc"),
        st.sampled_from(
            ["write"] * 6 + ["merge"] * 3 + ["pull", "import", "retract", "erase", "mark", "drop"]
        ),
        st.integers(0, 2**32),
    ),
    min_size=1,
    max_size=16,
)


def entry_for(rule: str, chance: Random) -> Entry:
    """An entry that its board may well refuse."""
    member, number = chance.choice(MEMBERS), chance.randint(-4, 9)
    at, key = NOW_MS - chance.choice([0, 1, HOUR_MS // 3]), None
    if rule == "distinct":
        return Entry(member, actor=chance.choice(ACTORS), present=chance.random() < 0.6, at=at)
    if rule == "unique":
        return Entry(member, actor=f"{chance.choice(ACTORS)}{chance.randint(0, 40)}", at=at)
    if rule == "trend":
        return Entry(member, add=max(number, 1), at=at)
    if rule != "sum" or chance.random() < 0.5:
        key = chance.choice(KEYS)
        at = NOW_MS - KEYS.index(key) * HOUR_MS // 4  # goes with the key
    if "best" in rule or "low" in rule:
        return Entry(member, score=abs(number), at=at, key=key)
    return Entry(member, add=number, at=at, key=key)


def act_of(agent: CoreAgent, others: list[CoreAgent], act: str, rule: str, chance: Random) -> None:
    """One act of one agent."""
    other = chance.choice(others)
    match act:
        case "write":
            requests: list[Operation] = [
                write("b", *[entry_for(rule, chance) for _ in range(chance.randint(1, 3))])
                for _ in range(chance.randint(1, 3))
            ]
            agent.run(*requests)
        case "merge":
            rows = [row for row in other.rows() if not is_own(row.space) or chance.random() < 0.5]
            chance.shuffle(rows)
            agent.take(*rows[: chance.randint(1, 6)])
        case "pull":
            agent.pull(other, rows_max=chance.randint(1, 9))
        case "import":
            agent.must(Import(tuple(chance.sample(other.rows(), min(9, len(other.rows()))))))
        case "retract":
            spaces = {row.space for row in agent.of_kind(Kind.RESULT)}
            if rule.endswith("results"):
                key = chance.choice(KEYS)
                at_ms = NOW_MS - KEYS.index(key) * HOUR_MS // 4
                named = tuple(chance.sample(sorted(spaces), min(1, len(spaces))))
                member = chance.choice(MEMBERS).encode()
                closed = agent.state.erased.closed(member)
                (answer,) = agent.run(Retract("b", member, key.encode(), at_ms, named))
                assert isinstance(answer, Refused) == closed, answer
        case "erase":
            agent.must(Erase(chance.choice(MEMBERS + ACTORS).encode(), KEY_16))
        case "mark":
            name = chance.choice(["day", "hour"])
            window = agent.window("b", name, NOW_MS - HOUR_MS)
            series = next(c.marks for c in agent.board("b").counted if c.series.name == name)
            agent.set_marks(Due(Kind.COLLECTED, series, window))
        case _:
            agent.run(Drop(to_drop(agent, chance)))


def to_drop(agent: CoreAgent, chance: Random | None = None) -> tuple[Key, ...]:
    """What may go, of whole members; some of it, where there is chance. Others are no harm."""
    state, found = agent.state, []
    groups: dict[tuple[bytes, bytes], list[Key]] = {}
    for row in agent.rows():
        if state.marks.collects(row.space) or state.erased.forbids(row):
            groups.setdefault(row[:2], []).append(row.key)
        elif chance is not None and chance.random() < 0.1:
            found.append(row.key)
    for group in groups.values():
        if chance is None or chance.random() < 0.7:
            found += group
    return tuple(found)


@pytest.mark.parametrize("rule", DEFINITIONS)
@settings(max_examples=50)
@example(acts=[("a", "write", 0), ("a", "erase", 26), ("a", "retract", 0)])
@given(acts=ACTS)
def test_what_is_kept_with_every_change_equals_a_recount(
    rule: str, acts: list[tuple[str, str, int]]
) -> None:
    agents = three(DEFINITIONS[rule])
    by_name = {agent.name: agent for agent in agents}
    for name, act, seed in acts:
        agent = by_name[name]
        act_of(agent, [one for one in agents if one is not agent], act, rule, Random(seed))
        agent.check()
    meet(*agents)
    for agent in agents:
        agent.run(Drop(to_drop(agent)))
        agent.check()
    meet(*agents)
    check_equal(agents)
    for agent in agents:
        assert not to_drop(agent), "nothing of it has come back"
        spaces = {row.space for row in agent.rows()}
        assert {key[0] for key in agent.store._totals} <= spaces


@pytest.mark.parametrize("rule", DEFINITIONS)
def test_a_collected_space_goes_with_its_totals_and_nothing_else(rule: str) -> None:
    (agent,) = three(DEFINITIONS[rule], names="a")
    chance = Random(5)
    for _ in range(30):
        agent.run(write("b", entry_for(rule, chance)))
    before = agent.cells()
    window = agent.window("b", "hour", NOW_MS - HOUR_MS)
    series = next(c.marks for c in agent.board("b").counted if c.series.name == "hour")
    agent.set_marks(Due(Kind.COLLECTED, series, window))
    hours = {key for key in before if (at := place_of(key[0])) and at.series == series}
    gone = {key for key in hours if key[0] == agent.space("b", window.id)}
    assert gone
    assert hours - gone
    agent.must(Drop(tuple(before)))
    after = agent.cells()
    assert before.keys() - after.keys() == gone
    assert all(after[key] == before[key] for key in after.keys() & before.keys())
    agent.check()


def test_a_reset_leaves_the_old_totals_and_begins_new_ones() -> None:
    (agent,) = three(DEFINITIONS["sum"], names="a")
    agent.write("b", Entry("m", add=3))
    old = agent.space("b", "all")
    agent.must(Reset("b", None))
    assert agent.write("b", Entry("m", add=4)).scores[0][0]["all"] == 4
    assert agent.store._totals[old, b"m"].score == 3
    agent.check()
