"""Backups: one consistent snapshot of an agent's file, without its identity, in one small file.

Rows, version vector, cursors, lsns and fingerprints are of one read transaction, so that what the
vector and the cursors claim is there (docs/protocol.md, I2 and I3). Who wrote it is information
only: a file that is made from a backup gets a new incarnation and a new log, and counts as
incomplete until the other members' logs were read. The same format carries an empty region's first
state from a seed.

The format is agent/store/archive.py's. A file appears under its name whole or not at all.
"""

from __future__ import annotations

import os
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from agent.crdt.space import RING_SPACE
from agent.errors import StoreError
from agent.membership import Ring
from agent.store.archive import (
    SQLITE_MAGIC,
    Backup,
    Progress,
    first_bytes,
    in_silence,
    is_backup,
    pack,
    unpack,
    verify,
)
from agent.store.identity import Identity
from agent.store.schema import APPLICATION_ID, ELSEWHERE, damage, open_reader, open_writer
from agent.store.snapshot import SqliteSnapshot

UNREADABLE = "nothing can be taken over from it"
COPY_PAGES = 512  # 2 MiB a step: how often progress is told, and a copy can be given up


class Adopted(NamedTuple):
    """A database that was made from a backup: as whom it begins, and where the former one went."""

    backup: Backup
    identity: Identity
    moved_to: Path | None


def write_backup(
    database: Path,
    target: Path,
    taken_ms: int,
    *,
    progress: Progress = in_silence,
    overwrite: bool = False,
) -> Backup:
    """Back up an agent's file, also while the agent writes to it.

    Raises:
        StoreError: `database` can't be read or is damaged, or `target` exists or can't be written.
            There is no new file then.
    """
    if target.exists() and not overwrite:
        raise StoreError(f"{target}: exists already; name another file, or use --force")
    copy, draft = _beside(target, ".copy"), _beside(target, ".part")
    try:
        _copy(database, copy, progress)
        backup = _without_identity(copy, taken_ms)
        pack(backup, copy, draft, progress)
        draft.replace(target)
        sync_folder(target.parent)
    except sqlite3.Error as error:  # the disk filled up beside the copy
        raise StoreError(f"{target}: can't be written: {damage(error)}") from error
    except OSError as error:
        raise StoreError(f"{target}: can't be written: {error.strerror or error}") from error
    finally:
        _remove(copy)
        _remove(draft)
    return backup


def adopt(
    path: Path,
    database: Path,
    identity_above: Callable[[int], Identity],
    progress: Progress = in_silence,
) -> Adopted:
    """Make an agent's database from a backup; one that is there is moved aside, never deleted.

    Whoever calls it holds the folder's lock (agent/store/lock.py).

    Args:
        path: the backup, of this agent or of another one of its ring.
        database: the agent's `tallyring.db`.
        identity_above: the newest incarnation that the backup knows of this agent -> who the new
            file belongs to, with an incarnation above that one.

    Raises:
        StoreError: the backup can't be used, or the folder can't be written. The database is then
            as before.
    """
    backup, _ = verify(path, progress)
    fresh = _beside(database, ".new")
    try:
        _remove(fresh)
        unpack(path, backup, fresh, progress)
        with closing(open_writer(fresh)) as connection:
            identity = _take_over(connection, path, backup, identity_above)
        _sync(fresh)
        moved_to = _move_aside(database)
        fresh.replace(database)
        sync_folder(database.parent)
    except sqlite3.Error as error:
        raise StoreError(f"{database}: can't be written: {damage(error)}") from error
    except OSError as error:
        raise StoreError(f"{database}: can't be written: {error.strerror or error}") from error
    finally:
        _remove(fresh)
    return Adopted(backup, identity, moved_to)


@contextmanager
def opened(path: Path, progress: Progress = in_silence) -> Iterator[tuple[Backup, SqliteSnapshot]]:
    """The state in a backup, or in an agent's `tallyring.db`, from a private copy of it.

    Raises:
        StoreError: the file can't be used.
    """
    with tempfile.TemporaryDirectory(prefix="tallyring-") as folder:
        copy = Path(folder) / "copy.db"
        if is_backup(path):
            backup, _ = verify(path, progress)
            unpack(path, backup, copy, progress)
        else:
            if first_bytes(path, len(SQLITE_MAGIC)) != SQLITE_MAGIC:
                raise StoreError(f"{path}: is neither a backup nor a tallyring.db")
            _copy(path, copy, progress, UNREADABLE)
            backup = describe(path)
        with closing(open_writer(copy)) as connection:
            connection.execute("BEGIN")
            yield backup, SqliteSnapshot(connection)


def describe(database: Path) -> Backup:
    """What an agent's file says of itself, as a backup of it would.

    Raises:
        StoreError: it can't be read.
    """
    try:
        with closing(open_reader(database)) as connection:
            return _describe(connection, database, database.stat().st_mtime_ns // 1_000_000)
    except sqlite3.Error as error:
        raise StoreError(f"{database}: {damage(error)}") from error


def where_aside(database: Path) -> Path:
    """The name that a database would be moved to: the first one that is free."""
    number = 1
    while (aside := _beside(database, f".before-restore-{number}")).exists():
        number += 1
    return aside


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable.

    Raises:
        OSError: they may not be.
    """
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _copy(database: Path, copy: Path, progress: Progress, remedy: str = ELSEWHERE) -> None:
    """Copy a database that may be in use, as of one read transaction.

    Args:
        remedy: what to do where it is damaged.
    """
    if not database.is_file():
        raise StoreError(f"{database}: there is no such file")
    _remove(copy)

    def told(_status: int, left: int, pages: int) -> None:
        progress("copy", pages - left, pages)

    try:
        with closing(open_reader(database)) as source, closing(sqlite3.connect(copy)) as target:
            # An open transaction of its own keeps the copy to this snapshot: without one it would
            # begin anew with each commit in between.
            source.execute("BEGIN")
            tables = source.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
            owner = source.execute("PRAGMA application_id").fetchone()[0]
            if tables and owner != APPLICATION_ID:
                raise StoreError(f"{database}: is a SQLite file, but not Tallyring's")
            target.execute("PRAGMA synchronous = OFF")  # a draft: what is kept is synced later
            source.backup(target, pages=COPY_PAGES, progress=told, sleep=0)
            whole = target.execute("PRAGMA quick_check(1)").fetchone()[0] == "ok"
    except sqlite3.Error as error:
        raise StoreError(f"{database}: {damage(error, remedy)}") from error
    if not whole:
        # What the check says is several lines about pages, of no use to an operator.
        raise StoreError(f"{database}: is damaged (its pages do not fit together): {remedy}")


def _without_identity(copy: Path, taken_ms: int) -> Backup:
    """Take the identity out of a copy; returns what the backup will say of itself."""
    with closing(open_writer(copy)) as connection:  # brings an older version's tables up to date
        backup = _describe(connection, copy, taken_ms)
        connection.execute(
            "UPDATE state SET inc = 0, log = 0, boot = 0, nonce = 0, clean = 0, burnt = '',"
            " seq = 0, complete = 0"
        )
        connection.execute("PRAGMA journal_mode = DELETE")
    return replace(backup, database_bytes=copy.stat().st_size)


def _describe(connection: sqlite3.Connection, path: Path, taken_ms: int) -> Backup:
    row = connection.execute(
        "SELECT ring, agent, region, inc, seq, log, lsn, cells FROM state"
    ).fetchone()
    if row is None:
        raise StoreError(f"{path}: holds nothing yet")
    return Backup(*row, taken_ms, path.stat().st_size)  # type: ignore[call-arg]  # 8 of 10 are its


def _take_over(
    connection: sqlite3.Connection,
    path: Path,
    backup: Backup,
    identity_above: Callable[[int], Identity],
) -> Identity:
    """Give a database that came from a backup its new owner, in one transaction."""
    ring = Ring().with_rows(SqliteSnapshot(connection).rows_in(RING_SPACE))
    identity = identity_above(0)
    newest = ring.newest_inc(identity.agent)
    if identity.agent == backup.agent:
        newest = max(newest, backup.inc)
    if identity.inc <= newest:
        identity = identity_above(newest)
    if identity.ring != backup.ring:
        raise StoreError(
            f"{path}: is of ring {backup.ring!r}, this agent belongs to {identity.ring!r}"
        )
    connection.execute("BEGIN IMMEDIATE")
    connection.execute(
        "UPDATE state SET ring = ?, agent = ?, region = ?, inc = ?, log = ?, boot = 0, nonce = 0,"
        " clean = 0, burnt = '', seq = 0, complete = 0",
        (identity.ring, identity.agent, identity.region, identity.inc, identity.log),
    )
    if backup.agent != identity.agent:
        # All of that log's rows are here. One's own former log is written by nobody any more.
        connection.execute(
            "REPLACE INTO cursors VALUES (?, ?, ?)", (backup.log, backup.agent, backup.lsn)
        )
    connection.execute("COMMIT")
    return identity


def _move_aside(database: Path) -> Path | None:
    """Rename a database; its write-ahead log is brought into it first, where that can be done."""
    if not database.exists():
        return None
    aside = where_aside(database)
    with suppress(sqlite3.Error), closing(sqlite3.connect(database)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    for suffix in ("-wal", "-shm", ""):
        with suppress(FileNotFoundError):
            _beside(database, suffix).rename(_beside(aside, suffix))
    return aside


def _sync(path: Path) -> None:
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def _beside(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


def _remove(path: Path) -> None:
    """Remove a draft and what SQLite may have left beside it."""
    for suffix in ("", "-wal", "-shm", "-journal"):
        _beside(path, suffix).unlink(missing_ok=True)
