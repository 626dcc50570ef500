"""Gaps: the part of a page between its pointers and its content, where SQLite may leave old bytes.

`secure_delete` overwrites what is deleted. But where SQLite lays out the cells of neighbouring
pages anew, the bytes of a cell that moved may stay in the gap of the page where it was; when it is
deleted later, that copy stays readable (docs/adr/0022-gaps-of-pages-are-emptied.md). So once names
are erased, and the write-ahead log is empty, the gaps of all pages are filled with zeros.

Only bytes that are in no use are written, so a write that is cut by a crash does no harm. It is
done while no transaction writes and the log holds nothing, so the file is all there is; a commit of
its own then makes every other connection drop the pages that it remembers.

This runs in a process of its own: a process that closes a file gives up all locks that it has on
it, those of its SQLite connections too (https://www.sqlite.org/howtocorrupt.html, 2.2).

    python -m agent.store.gaps FILE      exit code 0: done; 3: left for later, as the file is in use
"""

from __future__ import annotations

import os
import sqlite3
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

LATER = 3
PAGES_AT_ONCE = 256  # emptied in one go: a writer waits for some milliseconds
PAGES_READ = 256
TRIES = 400  # to find the log empty and nobody writing, for one go
REST_S = 0.005

_HEADER_BYTES = 100  # of the file, on its first page
_POINTERS_AT = {0x02: 12, 0x05: 12, 0x0A: 8, 0x0D: 8}  # by the kind of a page of a B-tree
# The first byte of a page of any other kind is that of a page's number, and 0 up to here.
_PAGES_MAX = 0x02000000


class _InUse(Exception):
    """Somebody reads an older state, or writes: later."""


def gap_of(page: bytes, *, first: bool) -> tuple[int, int] | None:
    """Where a page's gap begins and ends; None where the page is not one of a B-tree.

    The layout is that of https://www.sqlite.org/fileformat2.html#b_tree_pages.
    """
    at = _HEADER_BYTES if first else 0
    pointers = _POINTERS_AT.get(page[at])
    if pointers is None:
        return None
    cells = int.from_bytes(page[at + 3 : at + 5])
    content = int.from_bytes(page[at + 5 : at + 7]) or 65_536
    start = at + pointers
    end = start + 2 * cells
    if not end <= content <= len(page):
        return None
    where = (int.from_bytes(page[i : i + 2]) for i in range(start, end, 2))
    return (end, content) if all(content <= its < len(page) for its in where) else None


def truncate_wal(path: Path) -> bool:
    """Copy the write-ahead log into the file and empty it; whether that could be done now.

    Overwritten and deleted cells stay readable in it until then. Nobody is made to wait: while
    somebody reads an older state or writes, it is left for later. On a thread: it waits for disks.

    Raises:
        sqlite3.Error: the file can't be used.
    """
    connection = _connected(path)
    try:
        return _truncated(connection)
    finally:
        connection.close()


def empty_gaps(path: Path) -> int | None:
    """Fill the gaps of all pages of a file with zeros; in a process of its own.

    Returns how many had anything else in them, or None where the file was in use: then some may be
    left.

    Raises:
        sqlite3.Error, OSError: the file can't be used.
    """
    connection = _connected(path)
    file = os.open(path, os.O_RDWR)
    try:
        if not _truncated(connection):
            return None
        (size,) = connection.execute("PRAGMA page_size").fetchone()
        if os.fstat(file).st_size > size * _PAGES_MAX or os.pread(file, 1, 20) != b"\0":
            raise sqlite3.NotSupportedError("its pages can't be told apart")  # by their first bytes
        emptied = 0
        found = list(_with_gaps(file, size))
        for start in range(0, len(found), PAGES_AT_ONCE):
            emptied += _empty(connection, path, file, size, found[start : start + PAGES_AT_ONCE])
        return emptied
    except _InUse:
        return None
    finally:
        connection.close()
        os.close(file)  # after the connection, which loses its locks with it


def _connected(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(
        f"{path.resolve().as_uri()}?mode=rw", uri=True, isolation_level=None, timeout=0
    )


def _truncated(connection: sqlite3.Connection) -> bool:
    try:
        connection.execute("PRAGMA wal_checkpoint(PASSIVE)")  # most of it, beside the writer
        busy: int = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
    except sqlite3.OperationalError as error:
        if _is_busy(error):
            return False
        raise
    return not busy


def _begun(connection: sqlite3.Connection) -> bool:
    try:
        connection.execute("BEGIN IMMEDIATE")
    except sqlite3.OperationalError as error:
        if _is_busy(error):
            return False
        raise
    return True


def _is_busy(error: sqlite3.Error) -> bool:
    return error.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def _with_gaps(file: int, size: int) -> Iterator[int]:
    """The pages whose gaps are not empty, counted from 0."""
    at = 0
    while True:
        data = os.pread(file, PAGES_READ * size, at * size)
        if len(data) < size:
            return
        for number in range(len(data) // size):
            page = data[number * size : (number + 1) * size]
            if _is_used(page, gap_of(page, first=at + number == 0)):
                yield at + number
        at += len(data) // size


def _is_used(page: bytes, gap: tuple[int, int] | None) -> bool:
    return gap is not None and bool(page[gap[0] : gap[1]].strip(b"\0"))


def _empty(
    connection: sqlite3.Connection, path: Path, file: int, size: int, pages: Sequence[int]
) -> int:
    """Empty the gaps of some pages, while nobody writes; how many were not."""
    _begin(connection, path)
    emptied = 0
    try:
        for number in pages:
            page = os.pread(file, size, number * size)
            gap = gap_of(page, first=number == 0) if len(page) == size else None
            if gap is not None and _is_used(page, gap):
                os.pwrite(file, bytes(gap[1] - gap[0]), number * size + gap[0])
                emptied += 1
        os.fsync(file)
        # Whoever remembers pages reads them anew after a commit, and one without a change is none.
        # This number in the head of the file is in no other use.
        (count,) = connection.execute("PRAGMA user_version").fetchone()
        connection.execute(f"PRAGMA user_version = {(count + 1) % 2**31}")
        connection.execute("COMMIT")
    except BaseException:  # whatever ended it: the writer goes on
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    return emptied


def _begin(connection: sqlite3.Connection, path: Path) -> None:
    """Begin a transaction that writes, at a time when the log holds nothing."""
    log = path.with_name(path.name + "-wal")
    for _ in range(TRIES):
        if _truncated(connection) and _begun(connection):
            if not log.exists() or not log.stat().st_size:
                return
            connection.execute("ROLLBACK")  # somebody has written in between
        time.sleep(REST_S)
    raise _InUse


if __name__ == "__main__":
    os.nice(10)
    sys.exit(LATER if empty_gaps(Path(sys.argv[1])) is None else 0)
