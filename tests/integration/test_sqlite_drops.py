"""The SQLite store where cells cease to exist, and where members have totals of every kind."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from itertools import chain
from pathlib import Path
from shutil import copyfile

import pytest

from agent.boards.tally import MemberKey
from agent.crdt.cell import Row
from agent.crdt.slot import TALLIED_KINDS, Kind, slot_of_name, slot_of_replica
from agent.crdt.space import BANS_SPACE, ERASED_SPACE
from agent.crdt.total import Total, total_of
from agent.operation import Correction
from agent.store import lookup, sqlite
from agent.store.schema import open_reader
from agent.store.snapshot import SqliteSnapshot
from agent.store.sqlite import SqliteStore
from tests.integration.store_bench import (
    OTHER,
    SPACE,
    FailingOnce,
    SqliteBench,
    cell,
    everything,
    log_of,
)


@pytest.fixture
def on_disk(tmp_path: Path) -> Iterator[SqliteBench]:
    made = SqliteBench(tmp_path / "t.db")
    yield made
    made.close()


def some_spaces(bench: SqliteBench) -> tuple[dict[bytes, list[Row]], MemberKey]:
    """Three spaces of cells, by space, and a member with a total in the first."""
    rows = {
        SPACE + name: [
            Row(SPACE + name, b"m", slot_of_replica(Kind.UP, inc), inc, 0, b"", OTHER, 1)
            for inc in (1, 2, 3)
        ]
        for name in (b"a", b"b", b"c")
    }
    member = (SPACE + b"a", b"m")
    bench.put(*chain(*rows.values()), totals={member: Total(6, 0, True, 3)})
    return rows, member


@pytest.mark.parametrize(
    "word",
    [
        "DELETE FROM log",
        "DELETE FROM cells",
        "DELETE FROM totals",
        "DELETE FROM spaces",
        "INTO spaces",
        "INTO cells",
        "UPDATE state",
        "COMMIT",
    ],
)
def test_a_failure_while_cells_are_dropped_leaves_everything_as_it_was(
    on_disk: SqliteBench, word: str
) -> None:
    rows, member = some_spaces(on_disk)
    before, cells = everything(on_disk), on_disk.store.cells
    assert isinstance(on_disk.store, SqliteStore)
    good = on_disk.store._db
    failing = FailingOnce(good, word)
    on_disk.store._db = failing  # type: ignore[assignment]
    new = cell("n", 1, space=SPACE + b"new")
    with pytest.raises(sqlite3.OperationalError):
        on_disk.put(new, dropped=rows[member[0]], totals={member: None})
    assert failing.failed
    assert not on_disk.store.uncertain
    assert everything(on_disk) == before
    assert on_disk.store.cells == cells
    assert on_disk.store.load([], [member]).totals[member] == Total(6, 0, True, 3)
    # What comes next finds the spaces where they are.
    more = [cell("n", 1, space=SPACE + name) for name in (b"new", b"newer", b"a")]
    on_disk.put(*more, dropped=rows[SPACE + b"b"])
    left = {row.key: row for row in (*more, *rows[SPACE + b"a"], *rows[SPACE + b"c"])}
    assert {row.key: row for _, row in log_of(on_disk.snapshot())} == left
    on_disk.reopen()
    assert dict(on_disk.store.load(left, []).cells) == left
    assert on_disk.store.cells == len(left)


def test_a_space_written_again_after_a_crash_is_a_new_one(
    on_disk: SqliteBench, tmp_path: Path
) -> None:
    rows, member = some_spaces(on_disk)
    ids = [spaces_in(on_disk.path)[SPACE + b"c"]]
    for turn in range(4):
        on_disk.put(dropped=rows[SPACE + b"c"])
        assert SPACE + b"c" not in spaces_in(on_disk.path)
        if turn % 2:  # what a crash leaves: the file and its write-ahead log as they are
            crashed = SqliteBench.__new__(SqliteBench)
            crashed.path = tmp_path / f"crashed{turn}.db"
            for suffix in ("", "-wal"):
                copyfile(f"{on_disk.path}{suffix}", f"{crashed.path}{suffix}")
            on_disk.path = crashed.path
            on_disk.reopen()
        on_disk.put(*rows[SPACE + b"c"])
        ids.append(spaces_in(on_disk.path)[SPACE + b"c"])
        found = {row.key: row for _, row in log_of(on_disk.snapshot())}
        assert found == {row.key: row for row in chain(*rows.values())}
        assert dict(on_disk.store.load(found, []).cells) == found
    assert ids[1] > ids[0]
    assert on_disk.store.load([], [member]).totals[member] == Total(6, 0, True, 3)


def spaces_in(path: Path) -> dict[bytes, int]:
    """The spaces of a file, with their ids."""
    with closing(open_reader(path)) as reader:
        return dict(reader.execute("SELECT space, id FROM spaces"))


@pytest.mark.parametrize("told", [True, False])
def test_nothing_of_a_dropped_space_is_left_in_the_tables(
    on_disk: SqliteBench, *, told: bool
) -> None:
    rows, member = some_spaces(on_disk)
    on_disk.put(dropped=rows[member[0]], totals={member: None} if told else {})
    with closing(open_reader(on_disk.path)) as reader:
        for table in ("cells", "log", "totals"):
            found = reader.execute(f"SELECT count(*), min(space) FROM {table}").fetchone()
            assert found[0] == (0 if table == "totals" else 6), table
        assert reader.execute("SELECT cells, log_entries FROM state").fetchone() == (6, 6)


def test_only_the_spaces_of_a_part_of_the_log_are_read(on_disk: SqliteBench) -> None:
    on_disk.put(*[cell("m", 1, space=SPACE + b"%d" % number) for number in range(50)])
    snapshot = on_disk.snapshot()
    assert isinstance(snapshot, SqliteSnapshot)
    asked: list[str] = []
    snapshot._db.set_trace_callback(asked.append)
    assert len(list(snapshot.changes_after(0, 3))) == 3
    assert len(list(snapshot.log_after(47, 30))) == 3
    assert len(asked) == 2 + 3 + 3
    snapshot._db.set_trace_callback(None)


def test_groups_are_sought_and_not_scanned(on_disk: SqliteBench) -> None:
    assert isinstance(on_disk.store, SqliteStore)
    for keys, statement in lookup.GROUPS.items():
        plan = on_disk.store._db.execute(
            f"EXPLAIN QUERY PLAN {statement}", [1, b"m", b"F", b"G"] * keys
        )
        assert "SEARCH t USING PRIMARY KEY (space=? AND member=? AND slot>? AND slot<?)" in [
            step[3] for step in plan
        ]


def test_changes_carry_the_total_of_every_tallied_kind_on_boards(on_disk: SqliteBench) -> None:
    tallied_slots = [bytes([kind]) + b"12345678xx" for kind in sorted(TALLIED_KINDS)]
    rows = [Row(SPACE, b"m", slot, 1, 1, b"", OTHER, 1) for slot in tallied_slots]
    rows += [cell("m", 1), cell("m", 1, b"S123")]
    own = (b"Cx", slot_of_replica(Kind.UP, 1))
    rows += [Row(BANS_SPACE, b"m", slot, 1, 1, b"", OTHER, 1) for slot in own]
    alone = Row(SPACE, b"alone", slot_of_replica(Kind.DOWN, 3), 4, 5, b"", OTHER, 1)
    total = Total(7, 8, True, 9)
    on_disk.put(*rows, alone, totals={(SPACE, b"m"): total})
    snapshot = on_disk.snapshot()
    assert isinstance(snapshot, SqliteSnapshot)
    told = {row.key: of for _, row, of in snapshot.changes_after(0, 100) if row is not None}
    expected = {row.key: total if row in rows[:-4] else None for row in rows}
    assert told == expected | {alone.key: Total(-4, 5, False, 1)}


def test_a_mended_cell_of_any_tallied_kind_adds_its_total_up_anew(on_disk: SqliteBench) -> None:
    def of(name: str) -> Row:
        return Row(SPACE, b"m", slot_of_name(Kind.FLAG, name), 1, 0, b"", OTHER, 1)

    rows = [of("a"), of("b"), of("c")]
    on_disk.put(*rows, totals={(SPACE, b"m"): Total(2, 0, False, 6)})  # wrong, say
    store = on_disk.store
    assert isinstance(store, SqliteStore)
    store._db.execute("UPDATE cells SET major = 2 WHERE slot = ?", (rows[0].slot,))
    assert store.mend(rows[:1]) == 1
    total = total_of((row.slot, row.value) for row in rows)
    assert total is not None
    assert total.score == 3
    assert store.load([], [(SPACE, b"m")]).totals == {(SPACE, b"m"): total}
    # Recounted and told again, through one of its cells.
    store._db.execute("UPDATE totals SET score = 9")
    lsn = store.state().lsn
    store.mend([], Correction(members=((SPACE, b"m"),), facts=5))
    assert store.load([], [(SPACE, b"m")]).totals == {(SPACE, b"m"): total}
    assert [row.member for _, row in log_of(on_disk.snapshot(), lsn)] == [b"m"]
    assert store.state().facts == 5


def test_a_damaged_cell_that_was_dropped_meanwhile_stays_dropped(on_disk: SqliteBench) -> None:
    rows, _ = some_spaces(on_disk)
    first, second = rows[SPACE + b"a"], rows[SPACE + b"b"]
    on_disk.put(dropped=[first[0], *second])
    before = everything(on_disk)
    assert on_disk.store.mend([first[0], second[0]]) == 0
    assert everything(on_disk) == before


@pytest.mark.parametrize("cut", [False, True])
def test_an_erased_name_leaves_the_file(
    on_disk: SqliteBench, monkeypatch: pytest.MonkeyPatch, *, cut: bool
) -> None:
    monkeypatch.setattr(sqlite, "PRUNE_LOOK_MIN", 7)
    name = b"somebody who was here"
    for turn in range(40):
        members = ["a", "b", name.decode()] if turn % 3 else ["a", "b"]
        on_disk.put(*[cell(member, turn, seq=turn) for member in members])
    assert isinstance(on_disk.store, SqliteStore)
    on_disk.store._pruned_to = on_disk.committer.state.lsn // 2  # wherever pruning stands
    mine = [row for _, row in log_of(on_disk.snapshot()) if row.member == name]
    tombstone = Row(ERASED_SPACE, b"hash of it", b"E", 1, 0, b"", OTHER, 1)
    on_disk.put(tombstone, dropped=mine)
    assert entries_of(on_disk.path, name) > 10, "superseded ones"
    for turn in range(60):
        if cut and turn == 5:
            on_disk.reopen()
        on_disk.put(cell("a", 100 + turn, seq=100 + turn))
    assert entries_of(on_disk.path, name) == 0
    on_disk.close()
    assert name not in on_disk.path.read_bytes()
    on_disk.reopen()


def entries_of(path: Path, member: bytes) -> int:
    """How many entries of the log name a member."""
    with closing(open_reader(path)) as reader:
        found = reader.execute("SELECT count(*) FROM log WHERE member = ?", (member,)).fetchone()
        return int(found[0])
