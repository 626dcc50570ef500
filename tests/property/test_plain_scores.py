"""Boards of every rule in three regions, in windows, against plain Python: each answer is the one.

A model of a region is what it has accepted and read, as dictionaries of plain numbers; a region
that reads another one's log knows what that one knew. Windows are worked out with `datetime`. The
clock goes on with every step, so that which result was accepted first is plain, too.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from datetime import UTC, datetime
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.boards.definition import Definition
from agent.boards.entry import Entry
from agent.boards.windows import WindowSpec
from agent.crdt import hyperloglog
from agent.crdt.slot import Kind
from agent.errors import Refused
from agent.operation import Erase, Retract, Written
from tests.unit.core_agents import DAY_MS, NOW_MS, CoreAgent, check_equal, meet, three, write

WINDOWS = (WindowSpec("day", grace="3d"), WindowSpec("week", grace="3d"))
MEMBERS, ACTORS, KEYS = "mn", "wxyz", ["k1", "k2", "k3", "k4"]
Place = tuple[str, str]  # window, member


def ids_of(at_ms: int) -> list[str]:
    """The windows of a time."""
    day = datetime.fromtimestamp(at_ms / 1000, UTC)
    year, week, _ = day.isocalendar()
    return [f"day:{day:%Y-%m-%d}", f"week:{year}-W{week:02d}"]


@dataclass
class Plain:
    """What a region knows; each rule has a dictionary of its own form."""

    known: dict[Place, Any] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)  # keys taken back, "member key"
    erased: set[str] = field(default_factory=set)


class Rule:
    """A rule in plain Python: an entry, what it makes of what is known, and the score."""

    now_ms = NOW_MS

    def entry(self, chance: Random) -> Entry:
        raise NotImplementedError

    def take(self, plain: Plain, place: Place, entry: Entry) -> None:
        raise NotImplementedError

    def score(self, plain: Plain, place: Place) -> int:
        raise NotImplementedError

    def has_score(self, plain: Plain, place: Place) -> bool:
        return place in plain.known

    def refuses(self, plain: Plain, entry: Entry) -> bool:
        return bool({entry.member, entry.actor} & plain.erased)

    def merge(self, mine: Any, theirs: Any) -> Any:
        return max(mine, theirs)


@dataclass
class Best(Rule):
    low: bool = False

    def entry(self, chance: Random) -> Entry:
        score, ago_ms = chance.randint(0, 9), chance.randint(0, 2 * DAY_MS)
        return Entry(chance.choice(MEMBERS), score=score, at=self.now_ms - ago_ms)

    def take(self, plain: Plain, place: Place, entry: Entry) -> None:
        score = -entry.score if self.low else entry.score  # type: ignore[operator]
        plain.known[place] = max(plain.known.get(place, -99), score)

    def score(self, plain: Plain, place: Place) -> int:
        return abs(int(plain.known[place]))


class Latest(Best):
    def take(self, plain: Plain, place: Place, entry: Entry) -> None:
        plain.known[place] = max(plain.known.get(place, (-1, 0)), (entry.at, entry.score))

    def score(self, plain: Plain, place: Place) -> int:
        return int(plain.known[place][1])


class Distinct(Rule):
    """Lengths: a like goes to the next odd number above, an unlike adds one to an odd one."""

    def entry(self, chance: Random) -> Entry:
        actor, present = chance.choice(ACTORS), chance.random() < 0.6
        at = self.now_ms - chance.choice([0, DAY_MS])
        return Entry(chance.choice(MEMBERS), actor=actor, present=present, at=at)

    def take(self, plain: Plain, place: Place, entry: Entry) -> None:
        lengths = plain.known.setdefault(place, {})
        length = lengths.get(entry.actor, 0)
        if entry.present:
            lengths[entry.actor] = length + 1 + length % 2
        elif length % 2:
            lengths[entry.actor] = length + 1

    def score(self, plain: Plain, place: Place) -> int:
        return sum(length % 2 for length in plain.known[place].values())

    def merge(self, mine: Any, theirs: Any) -> Any:
        return {actor: max(mine.get(actor, 0), theirs.get(actor, 0)) for actor in mine | theirs}


class Unique(Rule):
    """A set of actors: the estimate is that of a sketch which has seen just these."""

    def entry(self, chance: Random) -> Entry:
        at = self.now_ms - chance.choice([0, DAY_MS])
        return Entry(chance.choice(MEMBERS), actor=f"actor {chance.randint(0, 300)}", at=at)

    def take(self, plain: Plain, place: Place, entry: Entry) -> None:
        plain.known.setdefault(place, set()).add(entry.actor)

    def score(self, plain: Plain, place: Place) -> int:
        registers: dict[tuple[int, int], int] = {}
        for actor in plain.known[place]:
            segment, index, rho = hyperloglog.place(actor.encode())
            registers[segment, index] = max(registers.get((segment, index), 0), rho)
        empty = hyperloglog.REGISTERS - len(registers)
        total = sum(2 ** (48 - rho) for rho in registers.values()) + empty * 2**48
        return hyperloglog.estimate(total, empty)

    def merge(self, mine: Any, theirs: Any) -> Any:
        return mine | theirs


class Trend(Rule):
    """Few members: none of their estimates is too high."""

    def entry(self, chance: Random) -> Entry:
        at = self.now_ms - chance.choice([0, DAY_MS])
        return Entry(chance.choice(MEMBERS), add=chance.randint(1, 9), at=at)

    def take(self, plain: Plain, place: Place, entry: Entry) -> None:
        by_entry = plain.known.setdefault(place, {})
        by_entry[self.now_ms, len(by_entry)] = entry.add

    def score(self, plain: Plain, place: Place) -> int:
        return sum(plain.known[place].values())

    def merge(self, mine: Any, theirs: Any) -> Any:
        return mine | theirs


@dataclass
class Results(Rule):
    """Key -> (when it was accepted, score): the earliest stands, unless it was taken back."""

    add_up: Callable[[list[int]], int]
    sums: bool = False

    def entry(self, chance: Random) -> Entry:
        key = chance.choice(KEYS)
        number = chance.choice([1, 2, 5]) + KEYS.index(key)
        numbers = {"add": number} if self.sums else {"score": number}
        at = NOW_MS - KEYS.index(key) * DAY_MS // 3
        return Entry(chance.choice(MEMBERS), key=key, at=at, **numbers)  # type: ignore[arg-type]

    def refuses(self, plain: Plain, entry: Entry) -> bool:
        number = entry.add if self.sums else entry.score
        known = [plain.known.get((window, entry.member), {}) for window in ids_of(int(entry.at))]  # type: ignore[arg-type]
        other = any(entry.key in its and its[entry.key][1] != number for its in known)
        return other or super().refuses(plain, entry)

    def take(self, plain: Plain, place: Place, entry: Entry) -> None:
        number = entry.add if self.sums else entry.score
        plain.known.setdefault(place, {}).setdefault(entry.key, (self.now_ms, number))

    def _standing(self, plain: Plain, place: Place) -> list[int]:
        its = plain.known.get(place, {}).items()
        return [n for key, (_, n) in its if f"{place[1]} {key}" not in plain.gone]

    def has_score(self, plain: Plain, place: Place) -> bool:
        return bool(self._standing(plain, place))

    def score(self, plain: Plain, place: Place) -> int:
        standing = self._standing(plain, place)
        return self.add_up(standing) if standing else 0

    def merge(self, mine: Any, theirs: Any) -> Any:
        return {
            key: min(its[key] for its in (mine, theirs) if key in its)
            for key in mine.keys() | theirs.keys()
        }


RULES: dict[str, tuple[Definition, Rule]] = {
    "best": (Definition(rule="best", windows=WINDOWS), Best()),
    "low": (Definition(rule="best", order="low", windows=WINDOWS), Best(low=True)),
    "latest": (Definition(rule="latest", windows=WINDOWS), Latest()),
    "distinct": (Definition(rule="distinct", windows=WINDOWS), Distinct()),
    "unique": (Definition(rule="unique", windows=WINDOWS), Unique()),
    "trend": (Definition(rule="trend", windows=WINDOWS), Trend()),
    "results": (Definition(rule="best", results="keep", windows=WINDOWS), Results(max)),
    "low results": (
        Definition(rule="best", order="low", results="keep", windows=WINDOWS),
        Results(min),
    ),
    "sum results": (
        Definition(rule="sum", results="keep", windows=WINDOWS),
        Results(sum, sums=True),
    ),
}
ACTS = st.lists(
    st.tuples(
        st.sampled_from("abc"),
        st.sampled_from(["write"] * 5 + ["pull"] * 2 + ["retract", "erase"]),
        st.integers(0, 2**32),
    ),
    min_size=1,
    max_size=20,
)


class World:
    """Three regions and their models."""

    def __init__(self, name: str) -> None:
        definition, self.rule = RULES[name]
        self.agents = {agent.name: agent for agent in three(definition)}
        self.plain = {agent: Plain() for agent in "abc"}
        self.now_ms = NOW_MS

    def write(self, name: str, chance: Random) -> None:
        """A request of some entries: all or nothing, in the model too."""
        self.rule.now_ms = self.now_ms
        entries = [self.rule.entry(chance) for _ in range(chance.randint(1, 4))]
        plain, scores = deepcopy(self.plain[name]), []
        refused = False
        for entry in entries:
            refused = refused or self.rule.refuses(plain, entry)
            if refused:
                break
            windows = ids_of(int(entry.at))  # type: ignore[arg-type]
            for window in windows:
                self.rule.take(plain, (window, entry.member), entry)
            scores.append(
                {
                    window: self.rule.score(plain, (window, entry.member))
                    for window in windows
                    if self.rule.has_score(plain, (window, entry.member))
                }
            )
        (answer,) = self.agents[name].run(write("b", *entries), now_ms=self.now_ms)
        if refused:
            assert isinstance(answer, Refused), answer
            return
        assert isinstance(answer, Written), answer
        assert [dict(its) for its in answer.scores[0]] == scores
        self.plain[name] = plain

    def pull(self, name: str, chance: Random) -> None:
        other = chance.choice([one for one in "abc" if one != name])
        rows_max = chance.randint(1, 9)
        self.agents[name].pull(self.agents[other], rows_max, now_ms=self.now_ms)
        self.learn(name, other)

    def learn(self, name: str, other: str) -> None:
        mine, theirs = self.plain[name], self.plain[other]
        for place, value in theirs.known.items():
            known = mine.known.get(place)
            mine.known[place] = deepcopy(value) if known is None else self.rule.merge(known, value)
        mine.gone |= theirs.gone
        mine.erased |= theirs.erased

    def retract(self, name: str, chance: Random) -> None:
        if isinstance(self.rule, Results):
            member, key = chance.choice(MEMBERS), chance.choice(KEYS)
            at_ms = NOW_MS - KEYS.index(key) * DAY_MS // 3
            changed = self.agents[name].changed(
                Retract("b", member.encode(), key.encode(), at_ms, ()), now_ms=self.now_ms
            )
            assert changed == (f"{member} {key}" not in self.plain[name].gone)
            self.plain[name].gone.add(f"{member} {key}")

    def erase(self, name: str, chance: Random) -> None:
        """A name that no entry has yet; what it leaves is another test's."""
        if chance.random() < 0.2:
            erased = chance.choice(["q", "actor 7"])
            self.agents[name].must(Erase(erased.encode(), bytes(16)))
            self.plain[name].erased.add(erased)

    def check(self) -> None:
        for name, agent in self.agents.items():
            plain = self.plain[name]
            for window, member in plain.known:
                if isinstance(self.rule, Best | Trend):
                    continue  # registers have no totals, trends no members: see their answers
                total = agent.total("b", window, member)
                score = 0 if total is None else total.score
                if isinstance(self.rule, Unique):
                    assert total is not None
                    score = hyperloglog.estimate(total.score, total.reached_ms)
                assert score == self.rule.score(plain, (window, member))
            agent.check()


@pytest.mark.parametrize("name", RULES)
@settings(max_examples=25)
@given(acts=ACTS)
def test_every_answer_is_the_plain_one(name: str, acts: list[tuple[str, str, int]]) -> None:
    world = World(name)
    for agent, act, seed in acts:
        getattr(world, act)(agent, Random(seed))
        world.now_ms += 1
    world.check()
    everyone = list(world.agents.values())
    meet(*everyone, now_ms=world.now_ms)
    for reader in "abc":
        for writer in "abc":
            world.learn(reader, writer)
    for writer in "ab":
        world.learn("c", writer)
        world.learn("a", "c")
        world.learn("b", "c")
    world.check()
    check_equal(everyone)


def test_two_thousand_likes_and_unlikes_in_three_regions_and_a_partition() -> None:
    chance, world = Random(4), World("distinct")
    players = [f"p{n}" for n in range(50)]
    for step in range(2_000):
        agent, player = chance.choice("abc"), chance.choice(players)
        present = chance.random() < 0.55
        taps = [Entry("m", actor=player, present=present, at=NOW_MS)] * chance.choice([1, 1, 2])
        answer = world.agents[agent].write("b", *taps)
        for entry in taps:
            world.rule.take(world.plain[agent], ("day:2026-11-30", "m"), entry)
        score = world.rule.score(world.plain[agent], ("day:2026-11-30", "m"))
        assert answer.scores[0][-1]["day:2026-11-30"] == score >= 0
        if step % 40 == 0 and not 800 < step < 1_600:  # a partition in between
            world.pull(agent, chance)
    everyone: list[CoreAgent] = list(world.agents.values())
    meet(*everyone)
    check_equal(everyone)
    day = everyone[0].space("b", "day:2026-11-30")
    lengths = [row.major for row in everyone[0].of_kind(Kind.FLAG) if row.space == day]
    assert everyone[0].score("b", "day:2026-11-30") == sum(n % 2 for n in lengths)
    a, b, c = everyone
    for one in everyone:
        one.write("b", Entry("post", actor="ann", at=NOW_MS))
    meet(*everyone)
    a.write("b", Entry("post", actor="ann", present=False, at=NOW_MS))
    b.write("b", Entry("post", actor="ann", at=NOW_MS))
    meet(*everyone)
    assert {one.score("b", "day:2026-11-30", "post") for one in (a, b, c)} == {1}
