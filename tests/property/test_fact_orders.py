"""Facts of three regions with different windows, in all orders: each key counts once in each space.

The regions never agree on which windows the board has (their definitions are on their way), clocks
differ, keys are sent again anywhere, rows come one by one, twice, and in whichever order. What must
come out is written down here as plain integers, from what was sent where alone.
"""

from __future__ import annotations

from random import Random

import msgspec
from hypothesis import example, given, settings
from hypothesis import strategies as st

from agent.boards.definition import Definition, check, shape_of
from agent.boards.entry import Entry
from agent.boards.marks import Due, keys_series
from agent.boards.windows import KEYS, WindowSpec, all_series
from agent.crdt import fact
from agent.crdt.cell import Key, Row
from agent.crdt.slot import Kind, key_in, slot_of_key
from agent.crdt.space import Space, encode_space, is_own
from agent.errors import Conflict
from agent.operation import Define, Written
from tests.unit.core_agents import NOW_MS, CoreAgent, check_equal, keyed, meet, write

BASE = Definition(rule="sum")
SETS = [
    (WindowSpec("all"),),
    (WindowSpec("all"), WindowSpec("day")),
    (WindowSpec("hour"), WindowSpec("day", zone="Asia/Tokyo")),
    (WindowSpec("week"), WindowSpec("last:3h")),
]
# A key has one time and one amount; sent again with another one it is refused where it is known.
KEYS_SENT = {f"k{n}": (NOW_MS - n * 600_000, amount) for n, amount in enumerate((5, 3, -2, 0))}

ACTS = st.lists(
    st.tuples(
        st.sampled_from("abc"),  # at which agent
        st.sampled_from(["key", "key", "key", "plain", "pull"]),
        st.sampled_from(list(KEYS_SENT)),
        st.integers(0, 2),  # whose log is pulled; how far its clock is off
    ),
    min_size=1,
    max_size=14,
)


def regions(sets: list[int]) -> dict[str, CoreAgent]:
    """Three agents, each with windows of its own for the board."""
    agents = {name: CoreAgent(name) for name in "abc"}
    for agent, number in zip(agents.values(), sets, strict=True):
        definition = msgspec.structs.replace(BASE, windows=SETS[number])
        agent.must(Define("b", check(definition)))
    return agents


def spaces_at(windows: tuple[WindowSpec, ...], at_ms: int) -> set[bytes]:
    """The spaces in which an entry counts, worked out from the specs alone."""
    found = set()
    for series in all_series(windows):
        window = series.at(at_ms)
        assert window is not None
        found.add(encode_space(Space("b", 0, shape_of(BASE, series), window.id)))
    return found


@settings(max_examples=60)
@example(
    [0, 1, 0], [("a", "key", "k0", 0), ("b", "pull", "k0", 0), ("b", "key", "k0", 0)], Random(0)
)
@given(
    st.lists(st.integers(0, len(SETS) - 1), min_size=3, max_size=3),
    ACTS,
    st.randoms(use_true_random=False),
)
def test_every_key_counts_once_in_every_space_in_any_order(
    sets: list[int], acts: list[tuple[str, str, str, int]], chance: Random
) -> None:
    agents = regions(sets)
    plain: dict[bytes, int] = {}  # by space, what entries without a key add up to
    sent: dict[bytes, set[str]] = {}  # by space, the keys that were counted there anywhere
    for name, act, key, number in acts:
        agent, now_ms = agents[name], NOW_MS + 1_000 * number
        at_ms, amount = KEYS_SENT[key]
        windows = agent.board("b").definition.windows  # type: ignore[union-attr]
        if act == "pull":
            other = agents["abc"[number]]
            # Not the boards: the regions keep their own windows until the end.
            agent.take(*[row for row in other.rows() if not is_own(row.space)])
        elif act == "plain":
            agent.write("b", Entry("m", add=number, at=at_ms), now_ms=now_ms)
            for space in spaces_at(windows, at_ms):
                plain[space] = plain.get(space, 0) + number
        else:
            # A retry counts as well, in the windows that whoever counted the key did not know of.
            agent.write("b", keyed(key, amount, at_ms), now_ms=now_ms)
            for space in spaces_at(windows, at_ms):
                sent.setdefault(space, set()).add(key)
    # Everything there is, one row at a time, in any order, some of it twice, to each of them.
    everything = [row for one in agents.values() for row in one.rows() if not is_own(row.space)]
    for agent in agents.values():
        rows = [*everything, *chance.sample(everything, len(everything) // 3)]
        chance.shuffle(rows)
        for row in rows:
            agent.take(row)
    meet(*agents.values())
    check_equal(list(agents.values()))
    expected = {
        space: plain.get(space, 0) + sum(KEYS_SENT[key][1] for key in sent.get(space, ()))
        for space in plain.keys() | sent.keys()
    }
    for agent in agents.values():
        totals = {space: its.score for (space, _), its in agent.store._totals.items()}
        assert totals == expected
        assert voids(agent) == expected_voids(agent)


def told(agent: CoreAgent) -> list[tuple[bytes, int, fact.Fact]]:
    """(key, incarnation, fact) of all facts."""
    found = []
    for row in agent.of_kind(Kind.FACT):
        said = fact.unpack(row.value)
        assert said is not None
        found.append((*key_in(row.slot), said))
    return found


def expected_voids(agent: CoreAgent) -> dict[Key, tuple[int, int, bytes]]:
    """Of each key and space, all effects but the least (hybrid time, incarnation)."""
    counted: dict[tuple[bytes, bytes], list[tuple[int, int, int]]] = {}
    for key, inc, said in told(agent):
        for effect in said.effects:
            space = encode_space(Space("b", said.generation, effect.shape, effect.window))
            counted.setdefault((space, key), []).append((said.hlc, inc, effect.amount))
    return {
        (space, b"m", slot_of_key(Kind.VOID, key, inc)): (max(n, 0), max(-n, 0), b"")
        for (space, key), its in counted.items()
        for _, inc, n in sorted(its)[1:]
    }


def voids(agent: CoreAgent) -> dict[Key, tuple[int, int, bytes]]:
    return {row.key: row.value for row in agent.of_kind(Kind.VOID)}


@settings(max_examples=40)
@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 9), st.integers(0, 5)), max_size=6),
    st.randoms(use_true_random=False),
)
def test_of_different_contents_the_first_by_the_documented_order_stands_everywhere(
    tries: list[tuple[str, int, int]], chance: Random
) -> None:
    agents = regions([0, 0, 0])
    accepted: list[tuple[int, int, int]] = []
    for name, amount, late in tries:
        agent = agents[name]
        (answer,) = agent.run(write("b", keyed("k", amount)), now_ms=NOW_MS + late)
        if isinstance(answer, Written) and not answer.notes[0]:
            (said,) = [its for _, inc, its in told(agent) if inc == agent.inc]
            accepted.append((said.hlc, agent.inc, amount))
        elif not isinstance(answer, Written):
            assert isinstance(answer, Conflict)
    everyone = list(agents.values())
    chance.shuffle(everyone)
    meet(*everyone, rows_max=chance.randint(1, 4))
    check_equal(everyone)
    if accepted:
        stands = min(accepted)[2]
        assert {agent.score("b", "all") for agent in everyone} == {stands}
        for agent in everyone:
            assert agent.one("b", keyed("k", stands))[1].counted_ms is not None
            assert agent.refused("b", keyed("k", stands + 1)).code == "key_conflict"


@settings(max_examples=40)
@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=3), st.booleans(), st.booleans())
def test_a_fact_that_comes_late_still_counts(names: list[str], first: bool, rows: bool) -> None:
    """Keys are collected at one agent before the others' facts reach it: nothing gets lost."""
    agents = regions([0, 0, 0])
    reader = agents["c"]
    if first:
        for name in names:
            agents[name].one("b", keyed("k"))
    bucket = KEYS.at(NOW_MS)
    assert bucket is not None
    reader.set_marks(Due(Kind.COLLECTED, keys_series("b"), bucket))
    facts: list[Row] = [] if reader.state.facts == 0 else reader.of_kind(Kind.FACT)
    if facts:
        reader.drop(*[row.key for row in facts])
    others = [agent for agent in agents.values() if agent is not reader]
    for agent in others:
        if not first and agent.name in names:
            agent.one("b", keyed("k"))
        taken = [row for row in agent.rows() if not is_own(row.space)]
        reader.take(*[row for row in taken if rows or row.slot[0] == Kind.FACT])
    counted = {agent.inc for agent in others if agent.name in names}
    counted |= {reader.inc} if first and "c" in names else set()
    assert (reader.score("b", "all") or 0) == 5 * len(counted), "once for each region that counted"
    assert not reader.of_kind(Kind.FACT)
    reader.check()
