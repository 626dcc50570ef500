"""One conformance suite for every store: SQLite through its readers, and the one in memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from agent.crdt import counter
from agent.crdt.cell import Key, Value
from agent.crdt.slot import Kind, slot_of_replica
from agent.exchange import Chunk, Reading
from agent.operation import Merge
from tests.integration.store_bench import (
    INC,
    OTHER,
    SPACE,
    Bench,
    MemoryBench,
    SqliteBench,
    cell,
    everything,
    fill,
    log_of,
)


@pytest.fixture(params=["sqlite", "memory"])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    made = SqliteBench(tmp_path / "t.db") if request.param == "sqlite" else MemoryBench()
    yield made
    made.close()


def test_what_was_never_written_is_none(bench: Bench) -> None:
    keys: list[Key] = [(SPACE, b"m", b"M"), (bench.space, b"m", b"M")]
    loaded = bench.store.load(keys, [(SPACE, b"m"), (bench.space, b"m")])
    assert dict(loaded.cells) == dict.fromkeys(keys)
    assert dict(loaded.totals) == {(SPACE, b"m"): None, (bench.space, b"m"): None}


def test_what_was_committed_is_loaded(bench: Bench) -> None:
    rows = [cell(f"m{i}", i, space=SPACE + bytes([i % 3])) for i in range(700)]
    bench.merge(*rows)
    wanted = [row.key for row in rows] + [(SPACE, b"no", b"M")]
    loaded = bench.store.load(wanted, [])
    assert dict(loaded.cells) == {row.key: row for row in rows} | {(SPACE, b"no", b"M"): None}
    assert bench.store.cells == 700


def test_a_snapshot_is_not_changed_by_later_commits(bench: Bench) -> None:
    bench.merge(cell("a", 1))
    bench.add("m", 1)
    before = bench.snapshot()
    seen = (before.newest_lsn, dict(before.vv), log_of(before), before.rows_in(SPACE))
    bench.merge(cell("a", 2, seq=2), cell("b", 1), to=7)
    bench.add("m", 1)
    again = (before.newest_lsn, dict(before.vv), log_of(before), before.rows_in(SPACE))
    assert again == seen
    after = bench.snapshot()
    assert after.newest_lsn == 5
    assert (dict(after.vv), dict(after.cursors)) == ({INC: 2}, {60: Reading("us", 7)})


def test_the_log_is_in_order_and_superseded_entries_are_empty(bench: Bench) -> None:
    for number, member in enumerate("abcab", start=1):
        bench.merge(cell(member, number, seq=number))
    snapshot = bench.snapshot()
    assert [(lsn, row.member) for lsn, row in log_of(snapshot)] == [(3, b"c"), (4, b"a"), (5, b"b")]
    entries = list(snapshot.log_after(0, 100))
    assert [lsn for lsn, _ in entries] == sorted(lsn for lsn, _ in entries)
    assert [row.major for _, row in log_of(snapshot, lsn=3)] == [4, 5]
    assert len(list(snapshot.log_after(0, 2))) == 2
    assert list(snapshot.log_after(5, 10)) == []


def test_totals_equal_what_all_slots_add_up_to(bench: Bench) -> None:
    chance = Random(1)
    for step in range(60):
        member = chance.choice("abc")
        if chance.random() < 0.5:
            bench.add(member, chance.randint(-5, 5))
        else:
            kind = chance.choice((Kind.UP, Kind.DOWN))
            inc = chance.choice((OTHER, OTHER + 1))
            slot = slot_of_replica(kind, inc)
            bench.merge(cell(member, step + 1, slot, step + 1, bench.space))
        members = [(bench.space, m) for m in (b"a", b"b", b"c", b"d")]
        snapshot = bench.snapshot()
        plain = {}
        for key in members:
            total = counter.total_of((s[0], v) for s, v in snapshot.slots_of(*key))
            if total is not None:
                plain[key] = total
        assert snapshot.totals_of(members) == plain
        loaded = bench.store.load([], members).totals
        assert {key: total for key, total in loaded.items() if total is not None} == plain


def test_other_kinds_of_a_member_are_not_in_its_total(bench: Bench) -> None:
    bench.add("m", 3)
    for slot in (b"*x", b".x", b"/x", b"M", b"~"):
        bench.merge(cell("m", 9, slot, space=bench.space))
    (total,) = bench.store.load([], [(bench.space, b"m")]).totals.values()
    assert total is not None
    assert (total.score, total.slots) == (3, 1)
    assert bench.snapshot().totals_of([(bench.space, b"m")]) == {(bench.space, b"m"): total}


@pytest.mark.parametrize("cells_max", [1, 2, 3, 4, 7, 100])
def test_a_scan_meets_every_member_once_with_all_of_its_cells(bench: Bench, cells_max: int) -> None:
    rows = [cell(m, i, slot, i) for i, m in enumerate("abcdef", 1) for slot in (b"M", b"L", b"C1")]
    rows = [row for row in rows if row.member != b"c" or row.slot == b"M"]
    bench.merge(*rows, cell("z", 1, space=SPACE + b"2"))
    snapshot = bench.snapshot()
    scanned: list[tuple[bytes, list[tuple[bytes, Value]]]] = []
    last = b""
    while chunk := snapshot.members_after(SPACE, last, cells_max):
        scanned += chunk
        last = chunk[-1][0]
    assert [name for name, _ in scanned] == [b"a", b"b", b"c", b"d", b"e", b"f"]
    expected = {
        m: sorted((row.slot, row.value) for row in rows if row.member == m) for m, _ in scanned
    }
    assert {name: sorted(slots) for name, slots in scanned} == expected
    assert snapshot.members_after(b"\xfenowhere", b"", 9) == []
    assert snapshot.count_members(SPACE, 100) == 6
    assert snapshot.count_members(SPACE, 4) == 4


def test_opening_it_again_keeps_everything_and_counts_the_boot(bench: Bench) -> None:
    fill(bench)
    bench.run(Merge("us", Chunk(60, 12, 12, True, (), {"us": 9}), {OTHER: 1}))
    before, boot = everything(bench), bench.store.life.boot
    bench.reopen()
    assert everything(bench) == before
    assert bench.store.life.boot == boot + 1
    assert bench.committer.state.times == {}, "learned again"
    bench.add("m", 1)
    assert bench.committer.state.seq == before[0][3] + 1
