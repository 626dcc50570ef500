"""Each rule of the protocol is needed: with it left out, a seed fails that is right with it.

The seeds are the first ones that fail, counted from 0; `FOUND_WITHIN` bounds them. Where a change
of the simulator moves them, this prints the table anew:

    python -m tests.property.test_simulator_rules
"""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster.simulator import simulate
from cluster.simulator.rules import RULES

FOUND_WITHIN = 500
AGENTS = {"G": 3}  # else the seed decides: what G is for needs few agents and much bad luck

# rule: (theme, the first seed that fails without it)
CAUGHT: dict[str, tuple[str, int]] = {
    "A": ("disks", 0),
    "P": ("network", 0),
    "S": ("network", 9),
    "Q": ("identity", 1),
    "I": ("disks", 0),
    "U": ("disks", 9),
    "C": ("disks", 0),
    "R": ("disks", 0),
    "E": ("disks", 0),
    "T": ("network", 52),
    "H": ("network", 0),
    "D": ("network", 0),
    "L": ("network", 0),
    "B": ("network", 0),
    "Y": ("network", 0),
    "V": ("keyed", 1),
    "O": ("keyed", 0),
    "W": ("keyed", 44),
    "M": ("finals", 2),
    "G": ("finals", 481),
    "K": ("finals", 2),
    "N": ("identity", 8),
    "Z": ("identity", 24),
}


def test_every_rule_has_a_seed() -> None:
    assert CAUGHT.keys() == RULES.keys()
    assert all(seed < FOUND_WITHIN for _, seed in CAUGHT.values())


def test_the_table_of_the_docs_is_this_one() -> None:
    page = (Path(__file__).parents[2] / "docs" / "simulator.md").read_text()
    for rule, (theme, seed) in CAUGHT.items():
        assert f"| {rule} | {RULES[rule]} | {theme} | {seed} |" in page


@pytest.mark.parametrize("rule", CAUGHT)
def test_a_rule_that_is_left_out_is_missed(rule: str) -> None:
    theme, seed = CAUGHT[rule]
    without = simulate(seed, theme=theme, agents=AGENTS.get(rule), omit=frozenset(rule))
    assert not without.ok, f"rule {rule} was not missed by {without.command}"
    report = simulate(seed, theme=theme, agents=AGENTS.get(rule))
    assert report.ok, f"{report.problems}\nrepeat it with: {report.command}"


def first_failure(rule: str, theme: str) -> tuple[int, str] | None:
    """The first seed that fails without a rule, and what it reports."""
    for seed in range(FOUND_WITHIN):
        report = simulate(seed, theme=theme, agents=AGENTS.get(rule), omit=frozenset(rule))
        if not report.ok and simulate(seed, theme=theme, agents=AGENTS.get(rule)).ok:
            return seed, report.problems[0]
    return None


if __name__ == "__main__":
    for letter, (about, _) in CAUGHT.items():
        print(letter, about, *(first_failure(letter, about) or ("none",)))  # noqa: T201
