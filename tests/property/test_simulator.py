"""The protocol under the simulator: with all its rules every seed is right.

That without any one of them some seed is not, is in test_simulator_rules.py.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest
from click.testing import CliRunner

from agent.crdt.cell import Row
from agent.draft import Draft
from cluster.commands.simulate import simulate as command
from cluster.simulator import events as ev
from cluster.simulator import simulate
from cluster.simulator.report import play, shortest
from cluster.simulator.script import script_of, settings_of
from cluster.simulator.soak import soak
from cluster.simulator.themes import THEMES

SEEDS = int(os.environ.get("TALLYRING_SIM_SEEDS", "40"))
BLOCKS = 10
OMISSION_SEEDS_MAX = 60
# Few seeds that together have every kind of fault: the whole suite has to stay short.
FAULT_SEEDS = (
    ("finals", 6),
    ("finals", 1),
    ("finals", 20),
    ("finals", 44),
    ("finals", 140),
    ("disks", 93),
    ("identity", 115),
    ("identity", 234),
    ("members", 298),
    ("members", 354),
    ("keyed", 4),
    ("windows", 4),
    ("boards", 4),
    ("boards", 1),
    ("boards", 5),
)
FAULTS = {
    "Redis flushed",
    "back",
    "ban done",
    "ban ended",
    "call of a removed agent",
    "call of an older process",
    "cell damaged",
    "cell mended",
    "cells dropped",
    "cells erased",
    "came after a final",
    "certificate adopted",
    "certified",
    "certified without somebody",
    "chunk behind a gap",
    "clock jump",
    "clone admitted",
    "collected",
    "commit refused",
    "commit uncertain",
    "crash",
    "crash while answering",
    "deaf",
    "definition overruled",
    "erase done",
    "final fetched",
    "frozen",
    "incarnation renewed",
    "joined",
    "joined by snapshot",
    "key conflict",
    "key counted twice",
    "key expired refused",
    "key known",
    "late entry",
    "leaving",
    "left",
    "lift done",
    "member erased refused",
    "move",
    "name forgotten",
    "not admitted: removed",
    "not admitted: twin",
    "override",
    "override of a final",
    "partition",
    "partition of 25 h",
    "push for another process",
    "refused: fork",
    "refused: removed",
    "refused: stale_boot",
    "removed",
    "reply late",
    "reply lost",
    "reply of an older process",
    "reply of a removed agent",
    "reply reordered",
    "reply to a dead process",
    "reply twice",
    "request late",
    "request lost",
    "request reordered",
    "request twice",
    "restart",
    "restore",
    "result known",
    "retract done",
    "rollback",
    "set back, and not noticed by anybody",
    "sum compared",
    "tail",
    "thawed",
    "transfer cut",
    "twin met",
    "twin noticed by a peer",
    "unknown board refused",
    "unknown kind",
    "unlike here, like there",
    "vector asked for",
    "window acknowledged",
    "window closed",
    "window closed refused",
    "wipe",
    "write refused: fork",
    "write refused: leaving",
    "write refused: removed",
}


@pytest.mark.parametrize("block", range(BLOCKS))
def test_every_seed_ends_with_the_right_answer_everywhere(block: int) -> None:
    for seed in range(block, SEEDS, BLOCKS):
        report = simulate(seed)
        assert report.ok, f"{report.problems}\nrepeat it with: {report.command}"


def test_every_kind_of_fault_really_happens() -> None:
    seen: Counter[str] = Counter()
    for theme, seed in FAULT_SEEDS:
        seen.update(simulate(seed, theme=theme).faults)
    assert not FAULTS - set(seen), "never happened; look for other seeds"


def test_a_seed_repeats_exactly_in_another_process() -> None:
    program = (
        "from cluster.simulator import simulate;"
        "[print(simulate(seed, steps=80, trace=True)) for seed in (2, 3, 5, 8, 9)]"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONHASHSEED": hash_seed},
            cwd=Path(__file__).parents[2],
            check=True,
            capture_output=True,
        ).stdout
        for hash_seed in ("1", "2")
    }
    assert len(outputs) == 1
    assert b"a1 answers" in outputs.pop()


def first_failure(omit: str, theme: str) -> int | None:
    """The first seed that fails without these rules."""
    for seed in range(OMISSION_SEEDS_MAX):
        if not simulate(seed, theme=theme, omit=frozenset(omit)).ok:
            return seed
    return None


@contextmanager
def last_row_wins() -> Iterator[None]:
    """Join: what was received last is kept, not the greatest."""
    join = Draft.join

    def keep_theirs(draft: Draft, row: Row) -> bool:
        mine = draft.row(row.key)
        if mine is not None and mine.value > row.value and row.slot[0] in b"ML":
            draft.put(row)
            return True
        return join(draft, row)

    with mock.patch.object(Draft, "join", keep_theirs):
        yield


def test_a_join_that_keeps_the_last_is_noticed() -> None:
    with last_row_wins():
        assert first_failure("", "network") is not None


def test_a_failing_script_is_cut_down_and_still_fails() -> None:
    seed, omit = 0, frozenset("O")
    settings = settings_of(seed, 80, theme="keyed", omit=omit)
    script = script_of(settings)
    short = shortest(settings, script)
    assert play(settings, short).problems
    assert not play(replace(settings, omit=frozenset()), short).problems
    assert 2 <= len(short) <= 12
    report = simulate(seed, steps=80, theme="keyed", omit=omit, shrink=True)
    assert not report.ok
    assert report.script == tuple(ev.told(event) for event in short)
    assert report.command == f"tallyring simulate --seed {seed} --steps 80 --theme keyed --omit O"


def test_every_event_is_told_as_a_sentence() -> None:
    kinds = set()
    for seed in range(10 * 4):
        for event in script_of(settings_of(seed, 100)):
            kinds.add(type(event).__name__)
            assert " ms  " in ev.told(event)
    assert kinds >= {
        "Writes",
        "Start",
        "Clone",
        "Join",
        "Depart",
        "Damage",
        "Keep",
        "Moderate",
        "Certify",
        "Override",
    }


def test_the_command_shows_what_fails_and_exits_with_1() -> None:
    arguments = ["--seed", "0", "--steps", "80", "--theme", "keyed", "--omit", "o", "--shrink"]
    result = CliRunner().invoke(command, [*arguments, "--json"])
    assert result.exit_code == 1
    failed = json.loads(result.output)["failed"][0]
    assert failed["command"].endswith("--theme keyed --omit O")
    assert failed["script"]
    shown = CliRunner().invoke(command, arguments)
    assert "the shortest script that fails:" in shown.output
    assert CliRunner().invoke(command, ["--seed", "0", "--omit", "A,%"]).exit_code == 2
    assert CliRunner().invoke(command, []).exit_code == 2


def test_a_soak_runs_seeds_until_the_time_is_up() -> None:
    told = []
    found = soak(0.02, 700, lambda so_far, failed: told.append((so_far.runs, failed)), 1)
    assert found.runs >= len(THEMES)
    assert found.first == 700
    assert found.last == 700 + found.runs - 1
    assert found.writes > 0
    assert not found.failed
    assert told[-1] == (found.runs, [])
