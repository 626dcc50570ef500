"""The SQLite file: its tables, its migrations and its settings.

    state    one row: who this agent is, and the numbers that must never repeat
    spaces   space bytes <-> a small integer, so that keys stay short
    cells    the replicated state, by key; lsn = the local change that made this value,
             print = its fingerprint, so that a value that decays is found
    log      lsn -> cell key, append-only; an entry whose lsn is no longer its cell's is superseded
    totals   (space, member) -> score, for members whose score is more than one counter slot
    vv       version vector: incarnation -> seq
    seen     incarnation -> the greatest seq of any row that was here, claimed or not
    fences   incarnation -> its newest process that was heard of
    cursors  how far each log of a peer has been read
    buckets  1024 sums of the cells' fingerprints, kept with every change
    finals   complete copies of windows' standings, by their hash: finals.py
    final_chunks  their rows, a thousand in one

Migrations are those of sqlite-utils: `sqlite-utils schema tallyring.db` and `sqlite-utils rows
tallyring.db cells` inspect a file that is in use.
"""

from __future__ import annotations

import sqlite3
from contextlib import ExitStack
from pathlib import Path

import sqlite_utils

from agent.crdt.fingerprint import BUCKETS, bucket_of, fingerprint
from agent.errors import StoreError

KNOWN_VERSIONS = frozenset(
    {"cells_log_totals", "identity_and_fingerprints", "windows_and_facts", "finals_of_windows"}
)
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


SECOND_VERSION = """
ALTER TABLE state ADD COLUMN nonce INTEGER NOT NULL DEFAULT 0;
ALTER TABLE state ADD COLUMN clean INTEGER NOT NULL DEFAULT 0;
ALTER TABLE state ADD COLUMN burnt TEXT NOT NULL DEFAULT '';
ALTER TABLE state ADD COLUMN root INTEGER NOT NULL DEFAULT 0;
ALTER TABLE state ADD COLUMN complete INTEGER NOT NULL DEFAULT 1;
ALTER TABLE cells ADD COLUMN print INTEGER NOT NULL DEFAULT 0;
CREATE TABLE seen (inc INTEGER PRIMARY KEY, seq INTEGER NOT NULL);
CREATE TABLE fences (inc INTEGER PRIMARY KEY, boot INTEGER NOT NULL, nonce INTEGER NOT NULL);
CREATE TABLE logs (log INTEGER NOT NULL UNIQUE, agent TEXT NOT NULL, lsn INTEGER NOT NULL);
INSERT INTO logs SELECT log, agent, lsn FROM cursors;
DROP TABLE cursors;
ALTER TABLE logs RENAME TO cursors;
CREATE TABLE buckets (id INTEGER PRIMARY KEY, print INTEGER NOT NULL, cells INTEGER NOT NULL);
INSERT INTO seen SELECT inc, max(seq) FROM cells GROUP BY inc
"""


@migrations()
def identity_and_fingerprints(db: sqlite_utils.Database) -> None:
    """What tells whether an identity may be kept, and whether a cell is still what it was."""
    for statement in SECOND_VERSION.split(";"):
        db.execute(statement)
    connection = db.conn
    assert connection is not None
    connection.create_function("fingerprint", 6, lambda *row: fingerprint(row), deterministic=True)
    connection.execute(
        "UPDATE cells SET print = fingerprint("
        "(SELECT space FROM spaces WHERE id = cells.space), member, slot, major, minor, body)"
    )
    sums = [[0, 0] for _ in range(BUCKETS)]
    for space, member, slot, mark in connection.execute(
        "SELECT s.space, c.member, c.slot, c.print"
        " FROM cells AS c JOIN spaces AS s ON s.id = c.space"
    ):
        bucket = sums[bucket_of((space, member, slot))]
        bucket[0] ^= mark
        bucket[1] += 1
    root = 0
    for bucket in sums:
        root ^= bucket[0]
    connection.executemany(
        "INSERT INTO buckets VALUES (?, ?, ?)", [(i, *bucket) for i, bucket in enumerate(sums)]
    )
    connection.execute("UPDATE state SET root = ?", (root,))


# Older versions stored cells of kinds that they did not know, too.
THIRD_VERSION = """
ALTER TABLE state ADD COLUMN facts INTEGER NOT NULL DEFAULT 0;
UPDATE state SET facts = (SELECT count(*) FROM cells WHERE substr(slot, 1, 1) = x'46')
"""


@migrations()
def windows_and_facts(db: sqlite_utils.Database) -> None:
    """How many facts are stored: at a bound of them, entries with keys are refused."""
    for statement in THIRD_VERSION.split(";"):
        db.execute(statement)


FOURTH_VERSION = """
CREATE TABLE finals (
    space BLOB NOT NULL, hash BLOB NOT NULL, members INTEGER NOT NULL, late INTEGER NOT NULL,
    PRIMARY KEY (space, hash)
) WITHOUT ROWID;
CREATE TABLE final_chunks (
    space BLOB NOT NULL, hash BLOB NOT NULL, number INTEGER NOT NULL, body BLOB NOT NULL,
    UNIQUE (space, hash, number)
)
"""


@migrations()
def finals_of_windows(db: sqlite_utils.Database) -> None:
    """Certified standings: rows of their own, as live cells go on changing."""
    for statement in FOURTH_VERSION.split(";"):
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
            # What was erased is overwritten: no measurable cost in CPU, see docs/adr/0005.
            connection.execute("PRAGMA secure_delete = ON")
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            migrations.apply(sqlite_utils.Database(connection))
            if what := _misread(connection):
                raise StoreError(f"{path}: is damaged ({what}): {ELSEWHERE}")
            on_failure.pop_all()
            return connection
    except sqlite3.Error as error:
        raise StoreError(
            f"{path}: can't be opened as a Tallyring store: {damage(error)}"
        ) from error


# What is read into memory, by its type. A cell has its fingerprint.
TEXTS = {"state": "burnt", "cursors": "agent"}
NUMBERS = {
    "state": "inc log boot nonce clean seq lsn hlc cells log_entries root complete facts",
    "spaces": "id",
    "vv": "inc seq",
    "cursors": "log lsn",
    "seen": "inc seq",
    "fences": "inc boot nonce",
    "buckets": "id print cells",
}


def _misread(connection: sqlite3.Connection) -> str:
    """What holds something else than its column is for; empty if nothing does.

    SQLite takes any value in any column, so one flipped bit can turn a number into something else.
    """
    for kind, tables in (("integer", NUMBERS), ("text", TEXTS)):
        for table, columns in tables.items():
            wrong = " OR ".join(f"typeof({column}) <> '{kind}'" for column in columns.split())
            if connection.execute(f"SELECT 1 FROM {table} WHERE {wrong} LIMIT 1").fetchone():  # noqa: S608 -- constants
                return f"a value in the table {table!r} is no {kind}"
    return ""


ELSEWHERE = (
    "restore a backup with 'tallyring restore', or move the data folder away and start with an"
    " empty one, which catches up from the other agents"
)
REMEDIES = {
    sqlite3.SQLITE_FULL: ": free space on the disk",
    sqlite3.SQLITE_IOERR: ": is the disk full, or does it fail?",
    sqlite3.SQLITE_READONLY: ": the file or its file system has to be writable",
    sqlite3.SQLITE_CANTOPEN: ": is the folder there and writable, and the disk not full?",
}


def is_damage(error: sqlite3.Error) -> bool:
    """Whether the file itself is not what SQLite wrote: no retry will help."""
    code: int = getattr(error, "sqlite_errorcode", 0)
    return code & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def damage(error: sqlite3.Error, remedy: str = ELSEWHERE) -> str:
    """What is wrong with a file, and what to do about it, in a sentence.

    Args:
        remedy: what to do where the file is damaged.
    """
    if not is_damage(error):
        code: int = getattr(error, "sqlite_errorcode", 0)
        return f"{error}{REMEDIES.get(code & 0xFF, '')}"
    return f"is damaged ({error}): {remedy}"


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
        if newer := ", ".join(sorted(ours - KNOWN_VERSIONS)):
            raise StoreError(f"{path}: was written by a newer version of the agent ({newer})")
