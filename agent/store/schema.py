"""The SQLite file: its tables, its migrations and its settings.

    state    one row: who this agent is, and the numbers that must never repeat
    spaces   space bytes <-> a small integer, so that keys stay short
    cells    the replicated state, by key; lsn = the local change that made this value
    log      lsn -> cell key, append-only; an entry whose lsn is no longer its cell's is superseded
    totals   (space, member) -> score, for members with two or more counter slots
    vv       version vector: incarnation -> seq
    cursors  how far each peer's log has been read

Migrations are those of sqlite-utils: `sqlite-utils schema tallyring.db` and `sqlite-utils rows
tallyring.db cells` inspect a file that is in use.
"""

from __future__ import annotations

import sqlite3
from contextlib import ExitStack
from pathlib import Path

import sqlite_utils

from agent.errors import StoreError

APPLICATION_ID = 0x544C5247  # "TLRG", in the file's header
PAGE_BYTES = 4096  # measured against 1024: see docs/adr/0005-sqlite-settings.md
CACHE_KIB = 16 * 1024  # of each connection: the writer, and one for each reader
WAL_PAGES = 4000  # checkpoint when the WAL holds this many pages: 16 MiB
BUSY_MS = 10_000

FIRST_VERSION = """
CREATE TABLE state (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    ring TEXT NOT NULL, agent TEXT NOT NULL, region TEXT NOT NULL,
    inc INTEGER NOT NULL, log INTEGER NOT NULL, boot INTEGER NOT NULL,
    seq INTEGER NOT NULL, lsn INTEGER NOT NULL, hlc INTEGER NOT NULL,
    cells INTEGER NOT NULL, log_entries INTEGER NOT NULL
);
CREATE TABLE spaces (id INTEGER PRIMARY KEY, space BLOB NOT NULL UNIQUE);
CREATE TABLE cells (
    space INTEGER NOT NULL, member BLOB NOT NULL, slot BLOB NOT NULL,
    major INTEGER NOT NULL, minor INTEGER NOT NULL, body BLOB NOT NULL,
    inc INTEGER NOT NULL, seq INTEGER NOT NULL, lsn INTEGER NOT NULL,
    PRIMARY KEY (space, member, slot)
) WITHOUT ROWID;
CREATE TABLE log (
    lsn INTEGER PRIMARY KEY, space INTEGER NOT NULL, member BLOB NOT NULL, slot BLOB NOT NULL
);
CREATE TABLE totals (
    space INTEGER NOT NULL, member BLOB NOT NULL,
    score INTEGER NOT NULL, reached_ms INTEGER NOT NULL, rose INTEGER NOT NULL,
    slots INTEGER NOT NULL, lsn INTEGER NOT NULL,
    PRIMARY KEY (space, member)
) WITHOUT ROWID;
CREATE TABLE vv (inc INTEGER PRIMARY KEY, seq INTEGER NOT NULL);
CREATE TABLE cursors (agent TEXT PRIMARY KEY, log INTEGER NOT NULL, lsn INTEGER NOT NULL);
"""

migrations = sqlite_utils.Migrations("tallyring")


@migrations()
def cells_log_totals(db: sqlite_utils.Database) -> None:
    """The first version."""
    for statement in FIRST_VERSION.split(";"):
        db.execute(statement)


def open_writer(path: Path) -> sqlite3.Connection:
    """The one connection that writes. Creates and migrates the file.

    Raises:
        StoreError: the file is not Tallyring's, is newer than this version, or can't be opened.
    """
    try:
        with ExitStack() as on_failure:
            connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            on_failure.callback(connection.close)
            connection.execute(f"PRAGMA busy_timeout = {BUSY_MS}")
            _check_owner(connection, path)
            connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute(f"PRAGMA wal_autocheckpoint = {WAL_PAGES}")
            connection.execute(f"PRAGMA journal_size_limit = {4 * WAL_PAGES * PAGE_BYTES}")
            connection.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            migrations.apply(sqlite_utils.Database(connection))
            on_failure.pop_all()
            return connection
    except sqlite3.Error as error:
        raise StoreError(f"{path}: can't be opened as a Tallyring store: {error}") from error


def open_reader(path: Path) -> sqlite3.Connection:
    """A connection that only reads."""
    connection = sqlite3.connect(
        f"{path.resolve().as_uri()}?mode=ro",
        uri=True,
        isolation_level=None,
        check_same_thread=False,
    )
    connection.execute(f"PRAGMA busy_timeout = {BUSY_MS}")
    connection.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
    connection.execute("PRAGMA query_only = 1")
    return connection


def _check_owner(connection: sqlite3.Connection, path: Path) -> None:
    owner = connection.execute("PRAGMA application_id").fetchone()[0]
    tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if tables and owner != APPLICATION_ID:
        raise StoreError(f"{path}: is a SQLite file, but not Tallyring's")
    db = sqlite_utils.Database(connection)
    if tables:
        ours = {migration.name for migration in migrations.applied(db)}
        known = {"cells_log_totals"}
        if ours - known:
            raise StoreError(
                f"{path}: was written by a newer version of the agent ({', '.join(ours - known)})"
            )
