"""The protocol under the simulator: with all its rules every seed is right, without one not."""

from __future__ import annotations

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

from agent import apply
from agent.apply import Outcome, State
from agent.crdt.cell import Row
from agent.crdt.slot import Kind
from agent.exchange import Boot, Chunk, Request
from agent.store.identity import Identity
from cluster.simulator import simulate
from cluster.simulator.agent import Disk, SimulatedAgent
from cluster.simulator.report import play, shortest
from cluster.simulator.script import script_of, settings_of

SEEDS = int(os.environ.get("TALLYRING_SIM_SEEDS", "320"))
BLOCKS = 8
# A rule that is left out must be missed within this many seeds.
OMISSION_SEEDS_MAX = 150
FAULT_SEEDS_MAX = 60
FAULTS = {
    "chunk behind a gap",
    "commit refused",
    "commit uncertain",
    "crash",
    "crash while answering",
    "definition overruled",
    "disk lost",
    "partition",
    "push for another process",
    "reply late",
    "reply lost",
    "reply reordered",
    "reply to a dead process",
    "reply twice",
    "request late",
    "request lost",
    "request reordered",
    "request twice",
    "transfer cut",
    "unknown board refused",
    "unknown kind",
    "vector asked for",
}


@pytest.mark.parametrize("block", range(BLOCKS))
def test_every_seed_ends_with_the_right_answer_everywhere(block: int) -> None:
    for seed in range(block, SEEDS, BLOCKS):
        report = simulate(seed)
        assert report.ok, f"{report.problems}\nrepeat it with: {report.command}"


def test_every_kind_of_fault_really_happens() -> None:
    seen: Counter[str] = Counter()
    for seed in range(FAULT_SEEDS_MAX):
        seen.update(simulate(seed).faults)
        if set(seen) >= FAULTS:
            return
    pytest.fail(f"never happened: {FAULTS - set(seen)}")


def test_a_seed_repeats_exactly_in_another_process() -> None:
    program = (
        "from cluster.simulator import simulate;"
        "[print(simulate(seed, trace=True)) for seed in (2, 11)]"
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


class ClaimsAnywhere(SimulatedAgent):
    """L: the version vector is claimed in the middle of a log."""

    def received(self, chunk: Chunk) -> Chunk:
        return replace(chunk, head=True)


class JoinsBehindGaps(SimulatedAgent):
    """C: a chunk is joined, and the cursor moved, wherever it begins."""

    def received(self, chunk: Chunk) -> Chunk:
        return replace(chunk, start=0)


class KeepsItsLogId(SimulatedAgent):
    """R: after a lost disk the log's numbers begin again under the same id."""

    def new_disk(self, chance: int, now_ms: int) -> Disk:
        disk = super().new_disk(chance, now_ms)
        log = int(self.name[1:]) + 1
        return self.store_type(Identity("sim", self.name, self.name, disk.state().inc, log))


class KeepsItsIncarnation(SimulatedAgent):
    """U: after a lost disk the agent writes as the incarnation that it was before."""

    def new_disk(self, chance: int, now_ms: int) -> Disk:
        disk = super().new_disk(chance, now_ms)
        inc = int(self.name[1:]) + 1
        return self.store_type(Identity("sim", self.name, self.name, inc, disk.state().log))


class TakesAnyReply(SimulatedAgent):
    """E: a reply reaches the process that runs now, whichever asked."""

    def reaches(self, process: Boot) -> bool:  # noqa: ARG002 - that is the rule left out
        return True


class TakesAnyPush(SimulatedAgent):
    """A push is joined by a process that it was not filtered for."""

    def pushed(self, request: Request) -> Chunk | None:
        return request.push


class DropsUnknownKinds(SimulatedAgent):
    """D: what this version can't read is dropped, and claimed."""

    def received(self, chunk: Chunk) -> Chunk:
        kinds = set(Kind)
        return replace(chunk, rows=tuple(row for row in chunk.rows if row.slot[0] in kinds))


class ComparesWithoutData(SimulatedAgent):
    """T: at the same score and time each side keeps its own data."""

    def received(self, chunk: Chunk) -> Chunk:
        return replace(chunk, rows=tuple(row for row in chunk.rows if not self._tied(row)))

    def _tied(self, row: Row) -> bool:
        mine = self.disk.value(row.key)
        return mine is not None and mine[:2] == row.value[:2]


class RowsStay(Disk):
    """B: a cell that changes keeps its place in the log."""

    def commit(self, before: State, outcome: Outcome, new_cells: int) -> None:
        places = dict(self._lsns)
        super().commit(before, outcome, new_cells)
        both = {key: places.get(key, lsn) for key, lsn in self._lsns.items()}
        self._lsns = dict(sorted(both.items(), key=lambda place: place[1]))


class NeverMovesRows(SimulatedAgent):
    """B, in its store."""

    store_type = RowsStay


@contextmanager
def last_row_wins() -> Iterator[None]:
    """Join: what was received last is kept, not the greatest."""
    join = apply._Draft._join

    def keep_theirs(draft: apply._Draft, row: Row) -> bool:
        mine = draft.row(row.key)
        if mine is not None and mine.value > row.value and row.slot[0] in b"ML":
            draft.put(row)
            return True
        return join(draft, row)

    with mock.patch.object(apply._Draft, "_join", keep_theirs):
        yield


# The rule left out, and a seed from which it does not take long to notice it.
OMISSIONS: list[tuple[type[SimulatedAgent], int]] = [
    (ClaimsAnywhere, 0),
    (JoinsBehindGaps, 0),
    (KeepsItsLogId, 0),
    (KeepsItsIncarnation, 0),
    (TakesAnyReply, 0),
    (TakesAnyPush, 20),
    (DropsUnknownKinds, 0),
    (ComparesWithoutData, 50),
    (NeverMovesRows, 0),
]


def first_failure(agent_type: type[SimulatedAgent], start: int = 0) -> int | None:
    """The first seed at which these agents go wrong."""
    for seed in range(start, start + OMISSION_SEEDS_MAX):
        if not simulate(seed, agent_type=agent_type).ok:
            return seed
    return None


@pytest.mark.parametrize(
    ("agent_type", "start"), OMISSIONS, ids=lambda o: getattr(o, "__name__", "")
)
def test_a_rule_that_is_left_out_is_missed(agent_type: type[SimulatedAgent], start: int) -> None:
    assert first_failure(agent_type, start) is not None


def test_a_join_that_keeps_the_last_is_noticed() -> None:
    with last_row_wins():
        assert first_failure(SimulatedAgent) is not None


def test_a_failing_script_is_cut_down_and_still_fails() -> None:
    seed = first_failure(ClaimsAnywhere)
    assert seed is not None
    settings = settings_of(seed, 60)
    script = script_of(settings)
    short = shortest(settings, script, ClaimsAnywhere)
    assert play(settings, short, ClaimsAnywhere).problems
    assert not play(settings, short).problems
    assert len(short) <= 12
    report = simulate(seed, steps=60, agent_type=ClaimsAnywhere, shrink=True, trace=True)
    assert not report.ok
    assert report.events == len(short)
    assert report.command == f"tallyring simulate --seed {seed} --steps 60"
