"""Backups as files: one snapshot, no identity, checked byte by byte, adopted as somebody new."""

from __future__ import annotations

import shutil
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from agent.beginning import mint_identity
from agent.committer import Committer
from agent.crdt.cell import Row
from agent.crdt.space import Space, encode_space
from agent.errors import StoreError
from agent.exchange import Chunk, Reading
from agent.operation import Announce, Import, Merge
from agent.store import archive, backup
from agent.store.archive import Backup, verify
from agent.store.backup import adopt, describe, opened, write_backup
from agent.store.identity import Identity
from agent.store.sqlite import SqliteStore
from tests.integration.fault_rig import remount, small_disk

INC, LOG, OTHER_LOG = 5_000 << 22, 77, 60
SPACE = encode_space(Space("b", 1, bytes(8), "all"))
SLOT = b"+" + INC.to_bytes(8)
IDENTITY = Identity("demo", "eu-1", "eu", INC, LOG)
PAIRS = 200  # of cells that every commit writes together


class Bench:
    """A store and what writes to it, without an agent around it."""

    def __init__(self, database: Path) -> None:
        self.database = database
        self.store = SqliteStore(database, IDENTITY)
        self.store.begin(9)
        self.committer = Committer(self.store, mint_identity)
        self.committer.run([Announce("eu", "http://eu:7401")], 1)

    def write(self, number: int) -> None:
        """One commit: all members get this number."""
        rows = tuple(
            Row(SPACE, f"m{i}".encode(), SLOT, number, number, b"", 1, 1) for i in range(PAIRS)
        )
        (answer,) = self.committer.run([Import(rows)], 1).answers
        assert not isinstance(answer, Exception), answer


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path / "tallyring.db")
    yield made
    made.store.close()


def identity(agent: str = "eu-1", log: int = 99, inc: int = 1) -> Callable[[int], Identity]:
    return lambda above: Identity("demo", agent, "eu", max(inc, above + 1), log)


def state_of(database: Path) -> dict[str, object]:
    with closing(sqlite3.connect(database)) as file:
        file.row_factory = sqlite3.Row
        return dict(file.execute("SELECT * FROM state").fetchone())


def test_a_backup_under_writes_is_one_snapshot(bench: Bench, tmp_path: Path) -> None:
    bench.write(1)
    stop = threading.Event()
    written = 1

    def keep_writing() -> None:
        nonlocal written
        while not stop.is_set():
            written += 1
            bench.write(written)

    seen = []
    writer = threading.Thread(target=keep_writing)
    writer.start()
    try:
        for number in range(5):
            before = written
            done = write_backup(bench.database, tmp_path / f"{number}.backup", 1)
            seen.append(written - before)  # commits that fell into the copy
            with opened(tmp_path / f"{number}.backup") as (_, snapshot):
                cells = snapshot.cells_after(SPACE, b"", b"", PAIRS + 1)
                assert {row.major for row, _ in cells} == {done.seq - 1}  # one is the announcement
                assert {row.seq for row, _ in cells} == {done.seq} == {snapshot.vv[INC]}
                assert snapshot.newest_lsn == done.lsn
                assert len(cells) == PAIRS
    finally:
        stop.set()
        writer.join()
    assert any(seen), "no commit fell into a backup"


def test_nothing_of_the_identity_is_in_a_backup(bench: Bench, tmp_path: Path) -> None:
    bench.write(1)
    file, database = tmp_path / "a.backup", tmp_path / "content.db"
    done = write_backup(bench.database, file, 1_700_000_000_000)
    archive.unpack(file, done, database, archive.in_silence)
    said = state_of(database)
    assert {said[name] for name in ("inc", "log", "boot", "nonce", "clean", "seq")} == {0}
    assert (said["ring"], said["lsn"], said["complete"]) == ("demo", done.lsn, 0)
    assert (done.agent, done.inc, done.log) == ("eu-1", INC, LOG)
    assert verify(file)[0] == done


@pytest.mark.parametrize("kept", ["truncated", "flipped"])
def test_a_damaged_backup_is_refused_wherever_it_is_damaged(
    bench: Bench, tmp_path: Path, kept: str
) -> None:
    file, damaged = tmp_path / "a.backup", tmp_path / "damaged.backup"
    write_backup(bench.database, file, 1)
    whole = file.read_bytes()
    target = tmp_path / "new" / "tallyring.db"
    target.parent.mkdir()
    for at in range(0, len(whole), 29):
        data = bytearray(whole)
        if kept == "truncated":
            del data[at:]
        else:
            data[at] ^= 0x10
        damaged.write_bytes(data)
        with pytest.raises(StoreError, match=r"truncated|damaged|newer version|not a backup"):
            adopt(damaged, target, identity())
        assert list(target.parent.iterdir()) == []


def test_other_rings_and_other_files_are_refused(bench: Bench, tmp_path: Path) -> None:
    file, target = tmp_path / "a.backup", tmp_path / "new.db"
    write_backup(bench.database, file, 1)
    with pytest.raises(StoreError, match="is of ring 'demo', this agent belongs to 'other'"):
        adopt(file, target, lambda above: Identity("other", "eu-1", "eu", above + 1, 5))
    with pytest.raises(StoreError, match="is not a backup"):
        adopt(bench.database, target, identity())
    with pytest.raises(StoreError, match="no such file"):
        write_backup(tmp_path / "nothing.db", tmp_path / "b.backup", 1)
    foreign = tmp_path / "foreign.db"
    with closing(sqlite3.connect(foreign)) as made:
        made.execute("CREATE TABLE t (x)")
    with pytest.raises(StoreError, match="but not Tallyring's"):
        write_backup(foreign, tmp_path / "b.backup", 1)
    assert not target.exists()
    left = sorted(path.name for path in tmp_path.iterdir() if "backup" in path.name)
    assert left == ["a.backup"]


def test_a_file_that_is_there_is_not_overwritten(bench: Bench, tmp_path: Path) -> None:
    file = tmp_path / "a.backup"
    file.write_bytes(b"precious")
    with pytest.raises(StoreError, match="exists already"):
        write_backup(bench.database, file, 1)
    assert file.read_bytes() == b"precious"
    write_backup(bench.database, file, 1, overwrite=True)
    assert verify(file)[0].agent == "eu-1"


def test_a_backup_that_is_given_up_leaves_nothing(bench: Bench, tmp_path: Path) -> None:
    def give_up(stage: str, _done: int, _total: int) -> None:
        if stage == "compress":
            raise StoreError("stopped")

    with pytest.raises(StoreError, match="stopped"):
        write_backup(bench.database, tmp_path / "a.backup", 1, progress=give_up)
    assert not [path for path in tmp_path.iterdir() if "backup" in path.name]


def test_an_own_backup_is_adopted_as_somebody_new(bench: Bench, tmp_path: Path) -> None:
    row = Row(SPACE, b"m", b"M", 5, 0, b"", 3 << 22, 4)
    bench.committer.run([Merge("us-1", Chunk(OTHER_LOG, 0, 12, True, (row,), {}), {3 << 22: 4})], 1)
    bench.write(1)
    file = tmp_path / "a.backup"
    write_backup(bench.database, file, 1)
    bench.write(2)
    aside = [tmp_path / f"tallyring.db.before-restore-{number}" for number in (1, 2)]
    assert adopt(file, bench.database, identity()).moved_to == aside[0]
    done = adopt(file, bench.database, identity())
    assert done.moved_to == aside[1]
    assert done.identity.inc > INC
    assert (state_of(bench.database)["boot"], describe(bench.database).log) == (0, 99)
    assert describe(aside[0]).seq == 3  # with its last commit
    opened_again = SqliteStore(bench.database, identity()(0))
    try:
        state = opened_again.state()
        assert state.vv == {INC: 2, 3 << 22: 4}
        assert state.cursors == {OTHER_LOG: Reading("us-1", 12)}  # none on the own, former log
        assert (state.inc, state.seq, state.complete) == (done.identity.inc, 0, False)
        assert opened_again.life.boot == 0
    finally:
        opened_again.close()


def test_another_agents_backup_brings_a_cursor_on_its_log(bench: Bench, tmp_path: Path) -> None:
    bench.write(1)
    file, database = tmp_path / "a.backup", tmp_path / "new.db"
    done: Backup = write_backup(bench.database, file, 1)
    adopted = adopt(file, database, identity("us-1"))
    assert adopted.moved_to is None
    store = SqliteStore(database, identity("us-1")(0))
    try:
        assert store.state().cursors == {LOG: Reading("eu-1", done.lsn)}
        assert store.state().agent == "us-1"
        assert store.cells == done.cells
    finally:
        store.close()


def test_a_damaged_database_is_not_backed_up(bench: Bench, tmp_path: Path) -> None:
    bench.write(1)
    bench.store.close()
    data = bytearray(bench.database.read_bytes())
    data[4096 * 3 : 4096 * 4] = bytes(4096)
    broken = tmp_path / "broken.db"
    broken.write_bytes(data)
    with pytest.raises(StoreError, match=r"damaged|restore"):
        write_backup(broken, tmp_path / "a.backup", 1)
    assert not (tmp_path / "a.backup").exists()


def test_copies_are_made_beside_the_target(bench: Bench, tmp_path: Path) -> None:
    stages = set()
    folder = tmp_path / "elsewhere"
    folder.mkdir()

    def told(stage: str, done: int, total: int) -> None:
        assert 0 <= done <= total
        stages.add(stage)

    write_backup(bench.database, folder / "a.backup", 1, progress=told)
    assert stages == {"copy", "compress"}
    assert [path.name for path in folder.iterdir()] == ["a.backup"]
    assert backup.COPY_PAGES > 0


def test_a_disk_that_fills_up_anywhere_in_a_backup_is_said_and_leaves_nothing(
    bench: Bench, tmp_path: Path
) -> None:
    bench.write(1)
    size = bench.database.stat().st_size
    with small_disk(tmp_path / "small", "1g"):
        remount(tmp_path / "small", f"size={2 * size + 2**20}")
        target = tmp_path / "small" / "eu.backup"
        ballast = tmp_path / "small" / "ballast"
        failed = 0
        for room in range(4096, 2 * size + 2**18, 16 * 1024):
            ballast.unlink(missing_ok=True)
            ballast.write_bytes(bytes(shutil.disk_usage(tmp_path / "small").free - room))
            said = ""
            try:
                write_backup(bench.database, target, 1)
            except StoreError as error:
                said = str(error)
            if not said:
                target.unlink()
                continue
            failed += 1
            assert "disk" in said or "space" in said
            assert [path.name for path in (tmp_path / "small").iterdir()] == ["ballast"]
        assert failed
