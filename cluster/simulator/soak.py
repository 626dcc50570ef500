"""Soaking: seeds in as many processes as are asked for, until the time is up."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field

from cluster.simulator.report import Report, simulate

SEEDS_A_TASK = 10  # one of each theme
SHOWN_EVERY_S = 10.0


@dataclass(slots=True)
class Soak:
    """What a soak has found so far.

    runs, first, last: how many seeds were run, and which.
    writes, exchanges: what they did; each write was followed to the end of its run.
    faults: by kind, how many really happened.
    failed: the reports of the seeds that failed.
    """

    first: int
    runs: int = 0
    last: int = 0
    writes: int = 0
    exchanges: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    failed: list[Report] = field(default_factory=list)

    def add(self, report: Report) -> None:
        """Take in one seed's report."""
        self.runs += 1
        self.last = max(self.last, report.seed)
        self.writes += report.writes
        self.exchanges += report.exchanges
        self.faults.update(report.faults)
        if not report.ok:
            self.failed.append(report)


def soak(
    minutes: float, first: int, tell: Callable[[Soak, list[Report]], None], processes: int | None
) -> Soak:
    """Run seeds from `first` on until the time is up.

    Args:
        tell: told now and then how far it is, with the reports that failed since.
        processes: how many work at once; by default one a core.
    """
    ends = time.monotonic() + minutes * 60
    found = Soak(first)
    failed: list[Report] = []
    shown = time.monotonic()
    workers = processes or os.cpu_count() or 1
    # Spawned, not forked: the parent may have threads, and a fork would copy their locks.
    context = multiprocessing.get_context("spawn")
    start = first
    with ProcessPoolExecutor(workers, context) as pool:
        waiting: set[Future[list[Report]]] = set()
        while waiting or time.monotonic() < ends:
            while len(waiting) < workers and time.monotonic() < ends:
                waiting.add(pool.submit(_block, start))
                start += SEEDS_A_TASK
            done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            for report in [report for task in done for report in task.result()]:
                found.add(report)
                failed += [] if report.ok else [report]
            if failed or time.monotonic() - shown > SHOWN_EVERY_S:
                shown = time.monotonic()
                tell(found, failed)
                failed = []
    tell(found, failed)
    return found


def _block(start: int) -> list[Report]:
    return [simulate(seed) for seed in range(start, start + SEEDS_A_TASK)]
