"""Cells at the ends of 64 bits, as only a faulty peer writes them: no agent ends of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from agent.boards.definition import Definition, check
from agent.boards.entry import Entry
from agent.boards.tally import Group
from agent.committer import Commit, Committer
from agent.crdt.cell import Row
from agent.crdt.slot import Kind, slot_of_one, slot_of_replica
from agent.errors import Unavailable
from agent.exchange import Chunk
from agent.limits import COUNTER_SLOT_MAX, INT64_MAX
from agent.operation import Define, Merge, Merged, Write, Written
from agent.store.identity import Identity
from agent.store.sqlite import SqliteStore

NOW_MS = 1_800_000_000_000


@pytest.fixture
def committer(tmp_path: Path) -> Iterator[Committer]:
    with closing(SqliteStore(tmp_path / "t.db", Identity("ring", "eu", "eu", 5, 50))) as store:
        yield Committer(store, lambda _now_ms, inc: (inc + 1, inc + 1))


def merge(*rows: Row) -> Merge:
    return Merge("us", Chunk(log=9, start=0, to=len(rows), head=False, rows=rows), None)


def write(board: str, entry: Entry) -> Write:
    return Write((Group(board, [entry], range(1)),))


def scores(commit: Commit) -> list[int]:
    """The score after the only entry of each write."""
    answers = [answer for answer in commit.answers if isinstance(answer, Written)]
    return [entry["all"] for answer in answers for group in answer.scores for entry in group]


def test_a_register_at_the_end_of_time_can_still_be_written(committer: Committer) -> None:
    committer.run([Define("b", check(Definition(rule="latest", ties="member")))], NOW_MS)
    space = committer.state.catalog.board("b").space
    row = Row(space, b"m", slot_of_one(Kind.LATEST), INT64_MAX, 7, b"", 99, 1)
    assert committer.run([merge(row)], NOW_MS).answers == [Merged(True, 1)]
    higher, lower = (committer.run([write("b", Entry("m", score=n))], NOW_MS) for n in (8, 3))
    assert scores(higher) == [8]
    assert scores(lower) == [8]  # of equal times the higher score


def test_a_total_beyond_64_bits_is_refused_and_the_next_write_is_not(committer: Committer) -> None:
    space = committer.state.catalog.board("counters").space
    rows = [
        Row(space, b"m", slot_of_replica(Kind.UP, 100 + n), COUNTER_SLOT_MAX, 0, b"", 100 + n, 1)
        for n in range(129)
    ]
    (answer,) = committer.run([merge(*rows)], NOW_MS).answers
    assert isinstance(answer, Unavailable)
    for member in ("m", "other"):
        assert scores(committer.run([write("counters", Entry(member, add=1))], NOW_MS)) == [1]
