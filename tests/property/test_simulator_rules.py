"""Each rule of the protocol is needed: with it left out, a seed fails that is right with it.

The seeds are the first ones that fail, counted from 0; `FOUND_WITHIN` bounds them. Where a change
of the simulator moves them, this prints the table anew:

    python -m tests.property.test_simulator_rules
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from agent.boards.definition import Definition
from agent.exchange import ChunkLimits
from cluster.simulator import events as ev
from cluster.simulator import simulate
from cluster.simulator.events import Figure
from cluster.simulator.report import play
from cluster.simulator.rules import RULES
from cluster.simulator.script import settings_of

FOUND_WITHIN = 500
RARELY = {"6": 1_000}  # without it little goes wrong since a close mark names its incarnation
UNCAUGHT = ("3", "4", "5")  # no seed of finals needs them: docs/simulator.md says why

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
    "V": ("keyed", 6),
    "O": ("keyed", 0),
    "W": ("keyed", 9),
    "X": ("keyed", 4),
    "1": ("windows", 0),
    "F": ("boards", 0),
    "M": ("finals", 2),
    "G": ("finals", 12),
    "K": ("finals", 2),
    "2": ("finals", 1),
    "6": ("finals", 611),
    "N": ("identity", 8),
    "Z": ("identity", 24),
}


def test_every_rule_has_a_seed() -> None:
    assert CAUGHT.keys() | {"J", *UNCAUGHT} == RULES.keys()
    for rule, (_, seed) in CAUGHT.items():
        assert seed < RARELY.get(rule, FOUND_WITHIN), rule


MINUTE_MS = 60_000
J_SETTINGS = replace(
    settings_of(0, 1, agents=2, theme="keyed"),
    loss=0.0,
    limits=ChunkLimits(rows_max=3),
    skews_ms=(0, 0),
    acquainted=True,
)


def _exchanges(at: int, caller: int, times: int = 8) -> list[ev.Event]:
    return [
        ev.Exchange(at + i * 10, caller, 1 - caller, (1,), (1,), 0, waits=False)
        for i in range(times)
    ]


def _script_for_j() -> list[ev.Event]:
    """a1 hears nothing while a0 sees that both counted a key, takes the duplicate out and collects.

    Then a1 reads a part of a0's log, with the void and without what it is the excess of, and a0's
    disk is lost.
    """
    at = ev.START_MS
    board = Definition(rule="sum", key_retention="1m")
    once = Figure("clicks", "ada", 1, at_ms=at, key="k")
    more = Figure("clicks", "ada", 1)
    later = at + 30 * MINUTE_MS
    return [
        ev.Change(at, 0, "define", "clicks", board),
        *_exchanges(at + 10, 1),
        ev.Partition(at + 200, later, frozenset({1}), deaf=True),
        ev.Writes(at + 300, 0, ((once,),)),
        ev.Writes(at + 301, 1, ((once,),)),
        *_exchanges(at + 400, 1),
        ev.Keep(at + 20 * MINUTE_MS, 1),
        *_exchanges(at + 20 * MINUTE_MS + 10, 1),
        *(ev.Keep(at + 21 * MINUTE_MS + i, 0) for i in range(3)),
        ev.Writes(at + 22 * MINUTE_MS, 0, ((more,),)),
        *_exchanges(later + 10, 1, times=2),
        ev.Start(later + 100, 0, "wipe", 5),
    ]


J_SCRIPT = _script_for_j()


def test_rule_j_is_missed_by_a_script_of_its_own() -> None:
    """Too much bad luck for a seed: it needs a loss at the one moment that matters."""
    without = play(replace(J_SETTINGS, omit=frozenset("J")), J_SCRIPT)
    assert any(
        "'ada' in 'all' has 0, not 1" in its or "has 0, not 1" in its for its in without.problems
    )
    assert not play(J_SETTINGS, J_SCRIPT).problems
    page = (Path(__file__).parents[2] / "docs" / "simulator.md").read_text()
    assert f"| J | {RULES['J']} | keyed | - |" in page


def test_the_table_of_the_docs_is_this_one() -> None:
    page = (Path(__file__).parents[2] / "docs" / "simulator.md").read_text()
    for rule, (theme, seed) in CAUGHT.items():
        assert f"| {rule} | {RULES[rule]} | {theme} | {seed} |" in page
    for rule in UNCAUGHT:
        assert f"| {rule} | {RULES[rule]} | finals | - |" in page


@pytest.mark.parametrize("rule", CAUGHT)
def test_a_rule_that_is_left_out_is_missed(rule: str) -> None:
    theme, seed = CAUGHT[rule]
    without = simulate(seed, theme=theme, omit=frozenset(rule))
    assert not without.ok, f"rule {rule} was not missed by {without.command}"
    report = simulate(seed, theme=theme)
    assert report.ok, f"{report.problems}\nrepeat it with: {report.command}"


def first_failure(rule: str, theme: str) -> tuple[int, str] | None:
    """The first seed that fails without a rule, and what it reports."""
    for seed in range(FOUND_WITHIN):
        report = simulate(seed, theme=theme, omit=frozenset(rule))
        if not report.ok and simulate(seed, theme=theme).ok:
            return seed, report.problems[0]
    return None


if __name__ == "__main__":
    for letter, (about, _) in CAUGHT.items():
        print(letter, about, *(first_failure(letter, about) or ("none",)))  # noqa: T201
