"""Gaps of pages: what SQLite leaves in them is emptied, and nothing else in the file is changed."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from random import Random
from threading import Event, Thread

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.store import gaps
from agent.store.gaps import LATER, gap_of
from agent.store.schema import PAGE_BYTES, open_reader, open_writer

NAMES = 2_000
ERASED = 200
SEEDS = 40  # about one in three of these workloads leaves a name in a gap


def put(db: sqlite3.Connection, random: Random, name: bytes) -> None:
    cell = (random.randrange(8), name, b"+12345678", 1, 1_790_000_000_000)
    body = random.randbytes(random.choice([0, 0, 0, 20, 200]))
    stamp = (402_371_326_775_100_625, 5, 1, random.getrandbits(62))
    db.execute(f"REPLACE INTO cells VALUES ({','.join('?' * 10)})", (*cell, body, *stamp))


def filled(path: Path, seed: int) -> tuple[sqlite3.Connection, list[bytes]]:
    """A file whose pages were divided often, and the names that were deleted from it."""
    db, random = open_writer(path), Random(seed)
    names = [
        b"player-%012x" % random.getrandbits(48) + b"y" * random.randrange(20) for _ in range(NAMES)
    ]
    for start in range(0, NAMES, 20):
        db.execute("BEGIN")
        for name in names[start : start + 20]:
            put(db, random, name)
            put(db, random, random.choice(names[: start + 20]))
        db.execute("COMMIT")
    for start in range(0, ERASED, 10):
        delete(db, names[start : start + 10])
    return db, names[:ERASED]


def with_traces(folder: Path) -> tuple[Path, sqlite3.Connection, list[bytes]]:
    """A file in which deleted names can be read, although SQLite overwrites what it deletes."""
    for seed in range(SEEDS):
        path = folder / f"{seed}.db"
        db, names = filled(path, seed)
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        if traces(path, names):
            return path, db, names
        db.close()
    raise AssertionError("SQLite leaves none any more: then agent/store/gaps.py can go")


def delete(db: sqlite3.Connection, names: list[bytes]) -> None:
    db.execute("BEGIN")
    db.executemany("DELETE FROM cells WHERE member = ?", [(name,) for name in names])
    db.execute("COMMIT")


def traces(path: Path, names: list[bytes]) -> int:
    """How many names can be read in the file and its log.

    Read by another process: one that closes a file gives up the locks of its SQLite connections.
    """
    files = [str(each) for each in path.parent.glob(f"{path.name}*")]
    found = subprocess.run(["/bin/cat", *files], check=True, timeout=60, stdout=subprocess.PIPE)
    return sum(name in found.stdout for name in names)


def emptied(path: Path) -> int:
    return subprocess.run(
        [sys.executable, "-m", "agent.store.gaps", str(path)], check=False, timeout=60
    ).returncode


def content(db: sqlite3.Connection) -> list[tuple[object, ...]]:
    assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    return db.execute("SELECT * FROM cells").fetchall()


def test_deleted_names_that_secure_delete_has_left_are_gone_and_stay_so(tmp_path: Path) -> None:
    path, db, names = with_traces(tmp_path)
    with closing(db), closing(open_reader(path)) as reader:
        before = content(db)
        assert len(reader.execute("SELECT * FROM cells").fetchall()) == len(before)
        assert emptied(path) == 0
        assert traces(path, names) == 0
        assert content(db) == before
        # Whoever has remembered pages from before does not write their gaps again.
        random = Random(0)
        for number in range(300):
            put(db, random, b"new-%d" % number)
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        assert traces(path, names) == 0
        assert reader.execute("SELECT count(*) FROM cells").fetchone()[0] > len(before)


def test_pages_that_a_writer_remembers_from_a_moment_before_are_read_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, db, names = with_traces(tmp_path)
    begun = gaps._begun

    def begun_after_a_look(connection: sqlite3.Connection) -> bool:
        assert db.execute("SELECT count(body) FROM cells").fetchone()[0]
        return begun(connection)

    monkeypatch.setattr(gaps, "_begun", begun_after_a_look)
    with closing(db):
        assert gaps.empty_gaps(path)  # here, as there is no other process
        assert traces(path, names) == 0
        db.execute("UPDATE cells SET lsn = lsn + 1")
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        assert traces(path, names) == 0
        content(db)


def test_it_is_left_for_later_while_somebody_reads_an_older_state(tmp_path: Path) -> None:
    path = tmp_path / "tallyring.db"
    db, _ = filled(path, 0)
    with closing(db), closing(open_reader(path)) as reader:
        reader.execute("BEGIN")
        before = reader.execute("SELECT count(*) FROM cells").fetchone()
        put(db, Random(1), b"later")
        assert emptied(path) == LATER
        assert reader.execute("SELECT count(*) FROM cells").fetchone() == before
        reader.execute("COMMIT")
        assert emptied(path) == 0


def test_writers_go_on_meanwhile(tmp_path: Path) -> None:
    path, db, names = with_traces(tmp_path)
    with closing(db):
        stop, written = Event(), list[bytes]()

        def write() -> None:
            with closing(open_writer(path)) as mine:
                random = Random(2)
                while not stop.is_set():
                    name = b"more-%d" % len(written)
                    put(mine, random, name)
                    written.append(name)

        writer = Thread(target=write)
        writer.start()
        try:
            while not written:
                stop.wait(0.01)
            codes = {emptied(path) for _ in range(3)}
        finally:
            stop.set()
            writer.join()
        assert codes <= {0, LATER}
        assert emptied(path) == 0
        assert traces(path, names) == 0
        members = {row[1] for row in content(db)}
        assert members >= {*written}
        assert members.isdisjoint(names)


@given(st.binary(min_size=64, max_size=64), st.sampled_from([2, 5, 10, 13, 0]))
def test_a_gap_is_between_pointers_and_content_or_there_is_none(page: bytes, kind: int) -> None:
    page = bytes([kind]) + page[1:]
    found = gap_of(page, first=False)
    if found is not None:
        cells = int.from_bytes(page[3:5])
        assert found[0] == (12 if kind in (2, 5) else 8) + 2 * cells
        assert found[0] <= found[1] == int.from_bytes(page[5:7]) <= 64


def test_pages_of_other_kinds_have_no_gap() -> None:
    assert gap_of(bytes(PAGE_BYTES), first=False) is None
    empty_leaf = b"\x0a\0\0\0\0" + PAGE_BYTES.to_bytes(2) + bytes(PAGE_BYTES - 7)
    assert gap_of(empty_leaf, first=False) == (8, PAGE_BYTES)
    one = b"\x0a\0\0\0\1" + (4_000).to_bytes(2) + b"\0" + (3_999).to_bytes(2)
    assert gap_of(one + bytes(PAGE_BYTES - len(one)), first=False) is None, "a cell in the gap"
