"""Finals in the file: copies of windows' standings by their hash, in chunks of rows.

They are no cells: a copy is what an agent made of its own cells, or fetched and checked against a
certificate's hash, and never changes but for the names of the erased. It is complete once its row
in `finals` is there, which is written with its last chunk.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from agent.boards.final_rows import FinalRow, unpack_chunk
from agent.boards.finals import Discard, Shelve
from agent.crdt.slot import Kind
from agent.crdt.space import MARKS_SPACE, NO_SHAPE, board_prefix
from agent.store.lookup import above
from agent.store.snapshot import SqliteSnapshot


class Held(NamedTuple):
    """A complete copy. late: whether the live standings may differ from it."""

    space: bytes
    hash: bytes
    members: int
    late: bool


def keep_or_discard(db: sqlite3.Connection, operation: Shelve | Discard) -> bool:
    """Keep chunks or remove copies, within the writer's transaction; whether that changed any."""
    space = operation.space
    if isinstance(operation, Discard):
        kept = {*operation.kept}
        gone = hashes_in(db, space) - kept
        keys = [(space, each) for each in sorted(gone)]
        db.executemany("DELETE FROM final_chunks WHERE space = ? AND hash = ?", keys)
        db.executemany("DELETE FROM finals WHERE space = ? AND hash = ?", keys)
        return bool(gone)
    db.executemany(
        "REPLACE INTO final_chunks VALUES (?, ?, ?, ?)",
        [(space, operation.hash, number, chunk) for number, chunk in operation.chunks],
    )
    if operation.members is not None:
        db.execute(
            "REPLACE INTO finals VALUES (?, ?, ?, ?)",
            (space, operation.hash, operation.members, operation.late),
        )
    return True


def note_late(db: sqlite3.Connection, spaces: Iterable[bytes]) -> None:
    """Note, within the writer's transaction, that the live standings of windows have changed."""
    db.executemany("UPDATE finals SET late = 1 WHERE space = ?", [(space,) for space in spaces])


def note_lifted(db: sqlite3.Connection, lifted: Iterable[tuple[bytes, str]]) -> None:
    """Note, within the writer's transaction, that members are shown again in windows of boards.

    Args:
        lifted: (member, board), of all boards where that is empty.
    """
    for member, board in lifted:
        prefix = board_prefix(board)
        db.execute(
            "UPDATE finals SET late = 1 WHERE space >= ? AND space < ? AND EXISTS (SELECT 1"
            " FROM cells AS c JOIN spaces AS s ON s.id = c.space"
            " WHERE s.space = finals.space AND c.member = ?)",
            (prefix, above(prefix), member),
        )


def held_of(snapshot: SqliteSnapshot, space: bytes) -> list[Held]:
    """The complete copies of a window."""
    found = snapshot.connection.execute(
        "SELECT space, hash, members, late FROM finals WHERE space = ?", (space,)
    )
    return [Held(its, hash_, members, bool(late)) for its, hash_, members, late in found]


def hashes_of(snapshot: SqliteSnapshot, space: bytes) -> set[bytes]:
    """The hashes of all copies of a window, complete or not."""
    return hashes_in(snapshot.connection, space)


def hashes_in(db: sqlite3.Connection, space: bytes) -> set[bytes]:
    """As `hashes_of`, over a connection."""
    found = db.execute(
        "SELECT DISTINCT hash FROM final_chunks WHERE space = ?"
        " UNION SELECT hash FROM finals WHERE space = ?",
        (space, space),
    )
    return {each for (each,) in found}


def rows_of(snapshot: SqliteSnapshot, space: bytes, hash_: bytes) -> Iterator[FinalRow]:
    """All rows of a copy, in order.

    Raises:
        ValueError: a chunk can't be read.
    """
    found = snapshot.connection.execute(
        "SELECT body FROM final_chunks WHERE space = ? AND hash = ? ORDER BY number",
        (space, hash_),
    )
    for (chunk,) in found:
        yield from unpack_chunk(chunk)


def held_late(snapshot: SqliteSnapshot) -> list[Held]:
    """The complete copies from which the live standings may differ."""
    found = snapshot.connection.execute(
        "SELECT space, hash, members, late FROM finals WHERE late ORDER BY space, hash"
    )
    return [Held(its, hash_, members, bool(late)) for its, hash_, members, late in found]


def spaces_certified(snapshot: SqliteSnapshot, prefix: bytes) -> list[bytes]:
    """The windows' spaces of which anybody has certified a final, that begin with some bytes."""
    found = snapshot.connection.execute(
        "SELECT DISTINCT c.member FROM cells AS c JOIN spaces AS s ON s.id = c.space"
        " WHERE s.space = ? AND c.member >= ? AND c.member < ? AND substr(c.slot, 1, 1) = ?"
        " ORDER BY c.member",
        (MARKS_SPACE, prefix, above(prefix), bytes([Kind.CERTIFICATE])),
    )
    return [space for (space,) in found]


def shapes_said(snapshot: SqliteSnapshot, prefix: bytes) -> list[bytes]:
    """What the spaces of a generation begin with, by shape, as far as anything is said of them.

    Shapes are few, and their windows may be very many: so one look-up each.
    """
    found: list[bytes] = []
    after, end = prefix, above(prefix)
    while after < end:
        (member,) = snapshot.connection.execute(
            "SELECT min(c.member) FROM cells AS c WHERE c.member >= ? AND c.member < ?"
            " AND c.space = (SELECT id FROM spaces WHERE space = ?)",
            (after, end, MARKS_SPACE),
        ).fetchone()
        if member is None:
            break
        found.append(member[: len(prefix) + len(NO_SHAPE)])
        after = above(found[-1])
    return found


def chunk_of(snapshot: SqliteSnapshot, space: bytes, hash_: bytes, number: int) -> bytes | None:
    """One chunk of a copy; None where it is not here."""
    found = snapshot.connection.execute(
        "SELECT body FROM final_chunks WHERE space = ? AND hash = ? AND number = ?",
        (space, hash_, number),
    ).fetchone()
    return None if found is None else bytes(found[0])


def chunks_after(
    snapshot: SqliteSnapshot, rowid: int, limit: int
) -> list[tuple[int, bytes, bytes, int, bytes]]:
    """The next chunks of all copies, as (rowid, space, hash, number, body)."""
    found = snapshot.connection.execute(
        "SELECT rowid, space, hash, number, body FROM final_chunks WHERE rowid > ?"
        " ORDER BY rowid LIMIT ?",
        (rowid, limit),
    )
    return [(at, space, hash_, n, bytes(body)) for at, space, hash_, n, body in found]
