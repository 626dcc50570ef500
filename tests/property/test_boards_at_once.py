"""Boards changed at several agents at once, with entries in between, through the whole pure core.

The model is plain: an entry that was acknowledged counts in the generation and under the definition
that its agent had then, and nowhere else; in the end all agents hold the same.
"""

from __future__ import annotations

from collections import defaultdict
from random import Random
from typing import TypeAlias

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.boards.catalog import Board
from agent.boards.definition import Definition, ScoreRange
from agent.boards.entry import Entry
from agent.boards.standing import standing_of
from agent.boards.windows import WindowSpec
from agent.crdt.cell import Value
from agent.crdt.space import is_own
from agent.errors import Conflict, NotFound, Refused
from agent.operation import Define, Operation, Reset, Retire, Written
from tests.unit.core_agents import DAILY, NOW_MS, CoreAgent, check_equal, meet, three, write

SUM = Definition(rule="sum")
WIDE = ScoreRange(-1_000, 1_000)  # no run leaves it
DEFINITIONS = (
    SUM,
    Definition(rule="sum", ties="last", score=WIDE),
    Definition(rule="sum", order="low"),
    DAILY,
    Definition(rule="best", score=WIDE),
    Definition(rule="best", order="low", windows=(WindowSpec("day"),), score=WIDE),
)
Model: TypeAlias = dict[bytes, dict[bytes, list[int]]]
"""Space -> member -> what was acknowledged."""

ACTS = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.sampled_from(
            ["write", "write", "write", "pull", "pull", "define", "reset", "reset to", "retire"]
        ),
        st.sampled_from(DEFINITIONS),
    ),
    min_size=4,
    max_size=30,
)


def spaces_of(board: Board) -> list[tuple[bytes, str]]:
    """The spaces that an entry of NOW_MS is counted in, and the ids of their windows."""
    found = []
    for counted in board.counted:
        window = counted.series.at(NOW_MS)
        assert window is not None
        if window.start_ms >= counted.opens_ms:
            found.append((counted.space_of(window), window.id))
    return found


def write_at(agent: CoreAgent, member: str, number: int, model: Model) -> None:
    """Write an entry; where it is acknowledged, the model has it."""
    board = agent.state.catalog.find("b")
    rule = None if board is None or board.definition is None else board.definition.rule
    entry = Entry(member, add=number) if rule == "sum" else Entry(member, score=number)
    (answer,) = agent.run(write("b", entry))
    if isinstance(answer, Refused):
        assert board is None or board.definition is None or not spaces_of(board), answer
        return
    assert isinstance(answer, Written)
    assert board is not None
    spaces = spaces_of(board)
    assert set(answer.scores[0][0]) == {window for _, window in spaces}
    for space, _ in spaces:
        model[space][member.encode()].append(number)


def change_at(agent: CoreAgent, operation: Operation) -> None:
    """Change the board; a refusal changes nothing."""
    before = agent.cells()
    (answer,) = agent.run(operation)
    if isinstance(answer, Refused):
        assert isinstance(answer, Conflict | NotFound), answer
        assert agent.cells() == before


def scores_in(agent: CoreAgent, shapes: dict[bytes, Definition]) -> dict[tuple[bytes, bytes], int]:
    """Space and member -> score, of all spaces, read from the cells alone."""
    cells: dict[tuple[bytes, bytes], list[tuple[bytes, Value]]] = defaultdict(list)
    for (space, member, slot), value in agent.cells().items():
        if not is_own(space):
            cells[space, member].append((slot, value))
    found = {}
    for key, slots in cells.items():
        standing = standing_of(shapes[key[0]], slots)
        assert standing is not None
        found[key] = standing.score
    return found


def holds(agents: list[CoreAgent], model: Model, shapes: dict[bytes, Definition]) -> None:
    """Every space has what was acknowledged in it, at every agent, and there is no other."""
    check_equal(agents)
    wanted = {}
    for space, members in model.items():
        definition = shapes[space]
        for member, numbers in members.items():
            if definition.rule == "sum":
                wanted[space, member] = sum(numbers)
            else:
                wanted[space, member] = min(numbers) if definition.low else max(numbers)
    for agent in agents:
        assert scores_in(agent, shapes) == wanted
        assert agent.state.catalog.find("b") == agents[0].state.catalog.find("b")


@settings(max_examples=60)
@given(ACTS, st.randoms(use_true_random=False))
def test_every_acknowledged_entry_counts_where_it_was_written(
    acts: list[tuple[int, str, Definition]], chance: Random
) -> None:
    agents = three(SUM)
    model: Model = defaultdict(lambda: defaultdict(list))
    shapes: dict[bytes, Definition] = {}
    generations = [0, 0, 0]
    for number, (index, act, new) in enumerate(acts):
        agent = agents[index]
        match act:
            case "write":
                board = agent.state.catalog.find("b")
                if board is not None and board.definition is not None:
                    shapes |= dict.fromkeys((s for s, _ in spaces_of(board)), board.definition)
                write_at(agent, chance.choice("pq"), number % 7 - 2, model)
            case "pull":
                agent.pull(chance.choice([its for its in agents if its is not agent]))
            case "define":
                change_at(agent, Define("b", new))
            case "reset":
                change_at(agent, Reset("b", None))
            case "reset to":
                change_at(agent, Reset("b", new))
            case _:
                change_at(agent, Retire("b"))
        board = agent.state.catalog.find("b")
        assert board is not None
        assert board.generation >= generations[index], "a generation never goes back"
        generations[index] = board.generation
    meet(*agents)
    holds(agents, model, shapes)
    assert agents[0].state.catalog.find("b").generation == max(generations)  # type: ignore[union-attr]


@pytest.mark.parametrize(("b_knows", "old", "new"), [(False, 16, None), (True, 10, 6)])
def test_six_more_beside_a_reset_is_sixteen_before_or_six_after(
    b_knows: bool, old: int, new: int | None
) -> None:
    agents = three(SUM)
    a, b, c = agents
    a.write("b", Entry("x", add=10))
    meet(*agents)
    before = a.space("b", "all")
    a.must(Reset("b", None))
    if b_knows:
        b.pull(a)
    b.write("b", Entry("x", add=6))
    for order in ((c, b), (c, a), (a, b), (b, a), (b, c), (a, c)):
        order[0].pull(order[1])
    check_equal(agents)
    for agent in agents:
        assert agent.board("b").generation == 1
        now = agent.space("b", "all")
        scores = scores_in(agent, {before: SUM, now: SUM})
        assert (scores[before, b"x"], scores.get((now, b"x"))) == (old, new)


def test_two_resets_of_one_generation_are_one_and_a_third_that_knows_is_another() -> None:
    a, b, c = agents = three(SUM)
    a.must(Reset("b", None))
    b.must(Reset("b", None))
    a.write("b", Entry("x", add=1))
    b.write("b", Entry("x", add=2))
    c.pull(a)
    c.must(Reset("b", None))  # it knows of a's: the generation after that
    c.write("b", Entry("x", add=4))
    meet(a, b)
    first = a.space("b", "all")
    assert scores_in(b, {first: SUM}) == {(first, b"x"): 3}
    meet(*agents)
    second = c.space("b", "all")
    for agent in agents:
        assert (agent.board("b").generation, agent.space("b", "all")) == (2, second)
        scores = scores_in(agent, {first: SUM, second: SUM})
        assert scores == {(first, b"x"): 3, (second, b"x"): 4}


def test_three_definitions_at_once_have_one_winner_and_two_that_are_shown() -> None:
    agents = [CoreAgent(name) for name in "abc"]
    news = (SUM, Definition(rule="best"), Definition(rule="best", order="low"))
    for agent, new in zip(agents, news, strict=True):
        agent.define("b", new)
        agent.write("b", Entry("m", add=3) if new.rule == "sum" else Entry("m", score=3))
    own = {agent.name: agent.space("b", "all") for agent in agents}
    meet(*agents)
    check_equal(agents)
    board = agents[0].board("b")
    assert all(agent.board("b") == board for agent in agents)
    lost, shapes = {its.agent: its for its in board.overruled}, {}
    assert {board.agent, *lost} == set("abc")
    assert board.space == own[board.agent]
    for name, its in lost.items():
        (series,) = its.series()
        space = its.prefix(series, its.generation) + b"all"
        assert space == own[name]
        shapes[space] = its.definition
    assert board.definition is not None
    shapes[board.space] = board.definition
    wanted = {(space, b"m"): 3 for space in own.values()}
    assert all(scores_in(agent, shapes) == wanted for agent in agents)


@pytest.mark.parametrize("later", ["retire", "define"])
def test_of_a_retirement_and_a_definition_at_once_the_later_stands(later: str) -> None:
    a, b, c = agents = three(SUM)
    a.must(Retire("b"), now_ms=NOW_MS + 10 * (later == "retire"))
    b.define("b", Definition(rule="sum", ties="last"), now_ms=NOW_MS + 10 * (later == "define"))
    b.write("b", Entry("m", add=3), now_ms=NOW_MS + 10)
    meet(*agents, now_ms=NOW_MS + 10)
    boards = [agent.state.catalog.find("b") for agent in agents]
    assert boards[0] == boards[1] == boards[2]
    assert boards[0] is not None
    assert boards[0].retired == (later == "retire")
    if later == "define":
        assert scores_in(c, {c.space("b", "all"): SUM}) == {(c.space("b", "all"), b"m"): 3}
    else:
        old = b.cells()
        c.define("b", SUM)
        assert c.board("b").generation == 1
        meet(*agents, now_ms=NOW_MS + 10)
        assert old.keys() <= c.cells().keys(), "what was counted is kept, and is not the new board"


def test_what_was_counted_under_a_loser_after_a_reset_is_found_in_the_newer_generation() -> None:
    a, b = CoreAgent("a"), CoreAgent("b")
    a.define("b", SUM)
    a.must(Reset("b", None))
    a.write("b", Entry("m", add=3))
    counted = a.space("b", "all")
    b.define("b", Definition(rule="best"), now_ms=NOW_MS + 10)
    meet(a, b, now_ms=NOW_MS + 10)
    (lost,) = b.board("b").overruled
    (series,) = lost.series()
    assert (lost.agent, lost.generation, lost.generations) == ("a", 0, (0, 1))
    assert lost.prefix(series, 1) + b"all" == counted
