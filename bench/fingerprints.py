"""What fingerprints cost: the same writes with them and without, in turns of one run.

Rates are per second of processor time, which is what they cost; waiting for the disk is left out.
"Without" is this program with the hashing, the check at loading and the bucket sums taken out; it
is for measuring only, on a file of its own.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from random import Random
from statistics import median
from unittest.mock import patch

from agent.boards.definition import COUNTERS
from agent.boards.entry import Entry
from agent.boards.tally import Group
from agent.committer import Committer
from agent.crdt.cell import Row
from agent.crdt.fingerprint import Change
from agent.operation import Write
from agent.store.identity import Identity
from agent.store.recount import recount
from agent.store.schema import open_reader
from agent.store.scrub import START, read_page
from agent.store.snapshot import SqliteSnapshot
from agent.store.sqlite import SqliteStore
from bench.figures import Aim, Figure
from bench.requests import member
from bench.world import Scale

AT_MS = 1_800_000_000_000
BATCH = 2_000
HOT_MEMBERS = 10
TURNS = 6


def fingerprints(folder: Path, scale: Scale) -> list[Figure]:
    """Random writes and hot ones, each in turns with and without; then what a scrub costs."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = folder / "with.db", folder / "without.db"
    stores = [SqliteStore(path, Identity("bench", "me", "me", 5, 6)) for path in paths]
    try:
        both = [Committer(store, lambda _now_ms, inc: (inc + 1, inc + 1)) for store in stores]
        for turn, committer in enumerate(both):
            with _without() if turn else nullcontext():
                for first in range(0, scale.population, BATCH):
                    _write(committer, range(first, min(first + BATCH, scale.population)))
        random = Random(2)
        figures = []
        for name, numbers, aim in (
            ("random", range(scale.population), 0.8),
            ("hot", range(HOT_MEMBERS), 0.9),
        ):
            rates = _in_turns(both, numbers, random)
            ratios = [one / other for one, other in zip(*rates, strict=True)]
            with_, without = (f"{median(each):,.0f}" for each in rates)
            figures.append(
                Figure(
                    f"{name} writes with fingerprints, to those without",
                    "x",
                    tuple(ratios),
                    Aim(aim),
                    note=f"{with_} and {without} entries per second of processor time",
                )
            )
        figures += _scrub(paths[0])
    finally:
        for store in stores:
            store.close()
    return figures


def _in_turns(
    both: Sequence[Committer], numbers: Sequence[int], random: Random
) -> tuple[list[float], list[float]]:
    """(rates with, rates without), turn by turn."""
    rates: tuple[list[float], list[float]] = ([], [])
    for turn in range(2 * TURNS):
        chosen = [random.choice(numbers) for _ in range(5 * BATCH)]
        with _without() if turn % 2 else nullcontext():
            began = time.process_time()
            for first in range(0, len(chosen), BATCH):
                _write(both[turn % 2], chosen[first : first + BATCH])
            rates[turn % 2].append(len(chosen) / (time.process_time() - began))
    return rates


def _write(committer: Committer, numbers: Sequence[int]) -> None:
    entries = [Entry(member(number), add=1) for number in numbers]
    group = Group(COUNTERS, entries, range(len(entries)))
    commit = committer.run([Write((group,))], AT_MS)
    assert not commit.failures, commit.failures


@contextmanager
def _without() -> Iterator[None]:
    """Take the fingerprints out of the writer, while the context lasts."""

    def unmarked(rows: Sequence[Row], *_: object) -> tuple[list[int], dict[int, Change], int]:
        return [0] * len(rows), {}, 0

    def unchecked(row: Row, _mark: int) -> Row:
        return row

    with (
        patch("agent.apply.changes_of", unmarked),
        patch("agent.store.sqlite.checked", unchecked),
    ):
        yield


def _scrub(path: Path) -> list[Figure]:
    """How fast one core reads pages of cells for a comparison, and adds up everything."""
    db = open_reader(path)
    try:
        db.execute("BEGIN")
        snapshot = SqliteSnapshot(db)
        began, cells = time.process_time(), 0
        for space in snapshot.spaces():
            after = START
            while True:
                page = read_page(snapshot, space, after, 0)
                cells += len(page.cells)
                if page.upto is None:
                    break
                after = page.upto
        compared = cells / (time.process_time() - began)
        began = time.process_time()
        found = recount(snapshot, lambda _cells: None)
        return [
            Figure("cells read and checked for a comparison", "cells/s", (compared,)),
            Figure("cells recounted", "cells/s", (found.cells / (time.process_time() - began),)),
        ]
    finally:
        db.close()
