"""The SQLite store's own: failures in the middle, pruning, readers, files of others."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from random import Random

import pytest
import sqlite_utils

from agent.boards.definition import COUNTERS
from agent.boards.entry import Entry
from agent.boards.tally import Group
from agent.committer import Committer
from agent.crdt.fingerprint import fingerprint
from agent.errors import DamagedCell, Indefinite, StoreError, Unavailable
from agent.exchange import Boot, Chunk, Reading
from agent.operation import Fence, Mend, Merge, Merged, Operation, Write, Written
from agent.store import schema, sqlite
from agent.store.identity import Identity
from agent.store.readers import Readers
from agent.store.schema import open_reader
from agent.store.sqlite import SqliteStore
from tests.integration.store_bench import (
    IDENTITY,
    NOW_MS,
    OTHER,
    SPACE,
    FailingOnce,
    SqliteBench,
    cell,
    everything,
    fill,
    log_of,
)


@pytest.fixture
def on_disk(tmp_path: Path) -> Iterator[SqliteBench]:
    made = SqliteBench(tmp_path / "t.db")
    yield made
    made.close()


STATEMENTS = [
    "BEGIN IMMEDIATE",
    "INTO spaces",
    "INTO cells",
    "INTO log",
    "INTO totals",
    "INTO vv",
    "INTO cursors",
    "INTO seen",
    "INTO fences",
    "UPDATE buckets",
    "UPDATE state",
    "COMMIT",
]


@pytest.mark.parametrize("word", STATEMENTS)
def test_a_failure_at_any_statement_leaves_everything_as_it_was(
    on_disk: SqliteBench, word: str
) -> None:
    fill(on_disk)
    before, cells = everything(on_disk), on_disk.store.cells
    assert isinstance(on_disk.store, SqliteStore)
    failing = FailingOnce(on_disk.store._db, word)
    on_disk.store._db = failing  # type: ignore[assignment]
    rows = (cell("n", 3, space=b"\xffnew"), cell("u", 2, b"~unknown", 2))
    operations: list[Operation] = [
        Write((Group(COUNTERS, [Entry("m", add=1)], [0]),)),
        Merge("us", Chunk(60, 12, 20, False, rows), None),
        Fence(77, Boot(3, 4)),
    ]
    commit = on_disk.committer.run(operations, NOW_MS)
    assert failing.failed
    assert [type(answer) for answer in commit.answers] == [Unavailable] * 3
    assert everything(on_disk) == before
    assert on_disk.store.cells == cells
    again = on_disk.committer.run(operations, NOW_MS)  # and nothing of it stays behind
    assert again.rows == 3
    after = everything(on_disk)
    on_disk.reopen()
    assert everything(on_disk) == after
    assert on_disk.store.cells == cells + 1


def test_a_commit_of_unknown_outcome_is_answered_so_and_the_file_decides(
    on_disk: SqliteBench,
) -> None:
    fill(on_disk)
    assert isinstance(on_disk.store, SqliteStore)
    on_disk.store._db = FailingOnce(  # type: ignore[assignment]
        on_disk.store._db, "COMMIT", after=True
    )
    row = cell("n", 3, space=b"\xffnew")
    merge = Merge("us", Chunk(60, 12, 20, False, (row,)), None)
    add = Write((Group(COUNTERS, [Entry("m", add=1)], [0]),))
    commit = on_disk.committer.run([add, merge], NOW_MS)
    assert [type(answer) for answer in commit.answers] == [Indefinite, Indefinite]
    assert on_disk.committer.state.cursors[60] == Reading("us", 20), "it was stored"
    assert on_disk.store.load([row.key], []).cells[row.key] == row
    # The new space, the counts and the totals are known as the file has them.
    on_disk.merge(cell("n", 4, seq=2, space=b"\xffnew"))
    on_disk.add("m", 1)
    after, cells = everything(on_disk), on_disk.store.cells
    on_disk.reopen()
    assert everything(on_disk) == after
    assert on_disk.store.cells == cells == len(log_of(on_disk.snapshot()))


def test_the_log_is_pruned_and_no_reader_ever_misses_a_cell(
    on_disk: SqliteBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "PRUNE_FLOOR_ENTRIES", 50)
    monkeypatch.setattr(sqlite, "PRUNE_LOOK_MIN", 30)
    chance = Random(3)
    newest: dict[bytes, int] = {}
    readers: dict[int, tuple[int, dict[bytes, int]]] = {}
    for step in range(1, 1500):
        member = f"m{chance.randint(0, 40)}"
        on_disk.merge(cell(member, step, seq=step))
        newest[member.encode()] = step
        if step % 100 == 0:  # a reader that has read up to here, and comes back later
            readers[step] = (on_disk.committer.state.lsn, dict(newest))
    reader = open_reader(on_disk.path)
    entries = reader.execute("SELECT count(*) FROM log").fetchone()[0]
    counted = reader.execute("SELECT log_entries, cells FROM state").fetchone()
    reader.close()
    assert counted == (entries, len(newest))
    assert entries <= 2 * len(newest) + 50 + 30, "bounded by the cells"
    for lsn, seen in [(0, {}), *readers.values()]:
        snapshot = on_disk.snapshot()
        caught_up = dict(seen)
        for _, row in log_of(snapshot, lsn):
            caught_up[row.member] = row.major
        assert caught_up == newest


async def test_readers_see_what_was_committed_before_they_were_asked(
    on_disk: SqliteBench,
) -> None:
    readers = Readers(on_disk.path)
    for step in range(1, 20):
        on_disk.merge(cell("m", step, seq=step))
        assert await readers.read(lambda snapshot: snapshot.newest_lsn) == step
    rows = await readers.read(lambda snapshot: snapshot.rows_in(SPACE))
    assert [row.major for row in rows] == [19]
    with pytest.raises(StoreError, match="readonly"):
        await readers.read(lambda snapshot: snapshot._db.execute("DELETE FROM log"))
    assert await readers.read(lambda snapshot: snapshot.newest_lsn) == 19
    readers.close()


def test_another_agents_file_is_refused_and_left_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    SqliteStore(path, IDENTITY).close()
    for other in (
        Identity("other", "eu-1", "eu", 7, 7),
        Identity("ring", "eu-2", "eu", 7, 7),
        Identity("ring", "eu-1", "us", 7, 7),
    ):
        with pytest.raises(StoreError, match="belongs to"):
            SqliteStore(path, other)
    again = SqliteStore(path, IDENTITY)
    assert again.begin(9).number == 1, "a refused start is not counted"
    again.close()


def test_a_foreign_file_is_refused(tmp_path: Path) -> None:
    text = tmp_path / "text.db"
    text.write_bytes(b"this is not a database" * 100)
    foreign = tmp_path / "foreign.db"
    db = sqlite3.connect(foreign)
    db.execute("CREATE TABLE t (x)")
    db.close()
    content = foreign.read_bytes()
    for path in (text, foreign, tmp_path / "no" / "folder.db"):
        with pytest.raises(StoreError, match=path.name):
            SqliteStore(path, IDENTITY)
    assert foreign.read_bytes() == content


def test_a_file_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    SqliteStore(path, IDENTITY).close()
    with closing(sqlite3.connect(path)) as db, db:
        db.execute(
            "INSERT INTO _sqlite_migrations (migration_set, name, applied_at)"
            " VALUES ('tallyring', 'from_the_future', '2030')"
        )
    with pytest.raises(StoreError, match="from_the_future"):
        SqliteStore(path, IDENTITY)


@pytest.mark.parametrize("version", [1, 2])
def test_a_file_of_an_older_version_is_brought_up_to_date(tmp_path: Path, version: int) -> None:
    path = tmp_path / "t.db"
    rows = [cell(f"m{i}", i, seq=i) for i in range(1, 297)]
    # Of kinds that these versions stored without knowing them.
    rows += [cell(f"m{i}", i, b"F" + bytes([i % 256]), seq=i) for i in range(297, 300)]
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute(f"PRAGMA application_id = {schema.APPLICATION_ID}")
        first = sqlite_utils.Migrations("tallyring")
        first(name="cells_log_totals")(schema.cells_log_totals)
        first.apply(sqlite_utils.Database(db))
        db.execute(
            "INSERT INTO state VALUES (1, 'ring', 'eu-1', 'eu', 5, 50, 4, 0, 299, 0, 299, 299)"
        )
        db.execute("INSERT INTO spaces VALUES (1, ?)", (SPACE,))
        db.execute("INSERT INTO cursors VALUES ('us', 60, 7)")
        for lsn, row in enumerate(rows, 1):
            db.execute("INSERT INTO cells VALUES (1, ?, ?, ?, ?, ?, ?, ?, ?)", (*row[1:], lsn))
            db.execute("INSERT INTO log VALUES (?, 1, ?, ?)", (lsn, row.member, row.slot))
        if version == 2:
            second = sqlite_utils.Migrations("tallyring")
            for earlier in (schema.cells_log_totals, schema.identity_and_fingerprints):
                second(name=earlier.__name__)(earlier)
            second.apply(sqlite_utils.Database(db))
    store = SqliteStore(path, IDENTITY)
    loaded = store.load([row.key for row in rows], [])  # each fits its fingerprint
    state = store.state()
    store.close()
    assert list(loaded.cells.values()) == rows
    assert state.cursors == {60: Reading("us", 7)}
    assert (state.seen, state.complete, state.facts) == ({OTHER: 299}, True, 3)
    root = 0
    for row in rows:
        root ^= fingerprint(row)
    assert state.root == root


def test_a_value_that_was_changed_by_hand_is_neither_loaded_nor_sent(on_disk: SqliteBench) -> None:
    on_disk.merge(cell("a", 1), cell("b", 2))
    assert isinstance(on_disk.store, SqliteStore)
    on_disk.store._db.execute("UPDATE cells SET major = 9 WHERE member = ?", (b"b",))
    assert on_disk.store.load([cell("a", 1).key], []).cells
    with pytest.raises(DamagedCell, match="member 'b'"):
        on_disk.store.load([cell("b", 1).key], [])
    with pytest.raises(DamagedCell, match="member 'b'"):
        log_of(on_disk.snapshot())
    # It ends neither the writer nor the other writes, and says so; then it is mended.
    on_disk.committer = Committer(on_disk.store, lambda _, inc: (inc, inc))
    bad = on_disk.committer.run([Merge("us", Chunk(60, 0, 3, False, (cell("b", 3),)), None)], 1)
    assert [type(answer) for answer in bad.answers] == [Unavailable]
    assert bad.damaged == [cell("b", 1).key]
    good = on_disk.committer.run([Mend((cell("b", 2),))], 1)
    assert good.answers == [Merged(True, 1)]
    assert [row.major for _, row in log_of(on_disk.snapshot())] == [1, 2]
    root = fingerprint(cell("a", 1)) ^ fingerprint(cell("b", 2))
    assert on_disk.snapshot().root == on_disk.committer.state.root == root


def test_a_total_that_is_no_number_refuses_its_member_and_nobody_else(
    on_disk: SqliteBench,
) -> None:
    fill(on_disk)  # m has two slots, and so a total of its own
    assert isinstance(on_disk.store, SqliteStore)
    on_disk.store._db.execute("UPDATE totals SET score = 'many'")
    on_disk.committer = Committer(on_disk.store, lambda _, inc: (inc, inc))
    operations = [Write((Group(COUNTERS, [Entry(member, add=1)], [0]),)) for member in "mo"]
    for operation, answer in zip(operations, (Unavailable, Written), strict=True):
        commit = on_disk.committer.run([operation], NOW_MS)
        assert [type(each) for each in commit.answers] == [answer]


def test_the_settings_that_durability_stands_on(on_disk: SqliteBench) -> None:
    assert isinstance(on_disk.store, SqliteStore)
    pragma = {
        name: on_disk.store._db.execute(f"PRAGMA {name}").fetchone()[0]
        for name in ("journal_mode", "synchronous", "application_id")
    }
    assert pragma == {
        "journal_mode": "wal",
        "synchronous": 2,  # FULL
        "application_id": schema.APPLICATION_ID,
    }


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE vv SET seq = 'x'",
        "UPDATE cursors SET lsn = x'00'",
        "UPDATE seen SET seq = 'x'",
        "UPDATE fences SET boot = 1.5",
        "UPDATE state SET seq = 'x'",
        "UPDATE state SET root = 0.5",
        "UPDATE state SET facts = 'x'",
        "UPDATE state SET burnt = x'ff'",
        "UPDATE buckets SET print = 'x' WHERE id = 3",
    ],
)
def test_a_number_that_is_none_any_more_is_damage(tmp_path: Path, change: str) -> None:
    """SQLite keeps any value in any column, so a flipped bit can make a number something else."""
    path = tmp_path / "t.db"
    SqliteStore(path, IDENTITY).close()
    with closing(sqlite3.connect(path)) as file:
        file.execute("INSERT INTO vv VALUES (5, 5)")
        file.execute("INSERT INTO cursors VALUES (5, 'a', 5)")
        file.execute("INSERT INTO seen VALUES (5, 5)")
        file.execute("INSERT INTO fences VALUES (5, 5, 5)")
        file.execute("INSERT OR IGNORE INTO buckets VALUES (3, 0, 0)")
        file.commit()
        SqliteStore(path, IDENTITY).close()
        file.execute(change)
        file.commit()
    with pytest.raises(StoreError, match=r"is damaged .*tallyring restore"):
        SqliteStore(path, IDENTITY)


def test_a_boot_number_stays_a_number_whatever_a_peer_has_heard_of(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "t.db", IDENTITY)
    assert store.begin(7, above=2**63 - 1).number == 2**62 + 1
    store.close()
    SqliteStore(tmp_path / "t.db", IDENTITY).close()
