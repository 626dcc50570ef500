"""Disks: copies of an agent's database, putting them back, and what only one disk has.

Files are read straight from SQLite, also while agents run, are stopped or dead: what counts is what
is durable, not what an agent says of it.
"""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import quote

from agent.crdt.slot import Kind
from agent.crdt.space import BOARDS_SPACE, decode_space
from agent.store.lock import DATABASE
from agent.store.token import FILE as TOKEN
from cluster.chaos.ledger import Cell
from cluster.local_agent import LocalAgent

BUSY_S = 10.0
KINDS = (Kind.UP, Kind.DOWN, Kind.BEST, Kind.LATEST)
NOT_COPIED = ("valkey", "valkey.port", "tallyring.lock")
WAL_FILES = (f"{DATABASE}-wal", f"{DATABASE}-shm")

Majors = dict[Cell, int]
"""The `major` of each cell."""

Put = Callable[[LocalAgent, Path], None]
"""Puts a copy in the place of what a stopped agent has."""


def cells_of(agent: LocalAgent, boards: Collection[str]) -> Majors:
    """The `major` of every cell of these boards on an agent's disk; empty without a database."""
    return _cells_in(agent.data_dir / DATABASE, boards)


def copied_cells(copy: Path, boards: Collection[str]) -> Majors:
    """The same of a copy."""
    return _cells_in(copy / DATABASE, boards)


def _cells_in(path: Path, boards: Collection[str]) -> Majors:
    found: Majors = {}
    with _reading(path) as file:
        if file is None:
            return {}
        rows = file.execute(
            "SELECT s.space, c.member, c.slot, c.major"
            " FROM cells AS c JOIN spaces AS s ON s.id = c.space"
        )
        for packed, member, slot, major in rows:
            space = decode_space(packed)
            if space is not None and space.board in boards and slot[0] in KINDS:
                found[space.board, member.decode(), slot] = major
    return found


def incarnation_on(agent: LocalAgent) -> str:
    """The incarnation that a database names as its own, hexadecimal; empty without one."""
    path = agent.data_dir / DATABASE
    with _reading(path) as file:
        if file is None:
            return ""
        row = file.execute("SELECT inc FROM state").fetchone()
        return "" if row is None else f"{row[0]:x}"


def knows(agent: LocalAgent, boards: Collection[str]) -> bool:
    """Whether an agent's disk has the definitions of these boards."""
    path = agent.data_dir / DATABASE
    with _reading(path) as file:
        if file is None:
            return False
        rows = file.execute(
            "SELECT c.member FROM cells AS c JOIN spaces AS s ON s.id = c.space WHERE s.space = ?",
            (BOARDS_SPACE,),
        )
        return set(boards) <= {member.decode() for (member,) in rows}


def false_claims(agents: Collection[LocalAgent]) -> list[str]:
    """What a disk claims to have, and has not: its vector covers a write, its cells do not.

    This is how a loss begins, long before a total is wrong: nobody sends the row again. Disks are
    compared in pairs, whatever has changed between reading one and the other: a claim is for good.
    """
    found: list[str] = []
    read = {agent.name: _claims_and_rows(agent.data_dir / DATABASE) for agent in agents}
    for name, (vv, rows) in read.items():
        for other, (_, theirs) in read.items():
            for key, (value, inc, seq) in theirs.items():
                mine = rows.get(key)
                if seq <= vv.get(inc, 0) and (mine is None or mine[0] < value):
                    space = decode_space(key[0])
                    board = "?" if space is None else space.board
                    has = "nothing" if mine is None else mine[0]
                    found.append(
                        f"{name} claims commit {vv[inc]} of {inc:x}; {other} has {board}"
                        f" {key[1]!r} {key[2].hex()} of commit {seq} with {value}, it has {has}"
                    )
    return found


_Value = tuple[int, int, bytes]
_Rows = dict[tuple[bytes, bytes, bytes], tuple[_Value, int, int]]


def _claims_and_rows(path: Path) -> tuple[dict[int, int], _Rows]:
    """A disk's vector, and by cell (its value, incarnation, commit)."""
    with _reading(path) as file:
        if file is None:
            return {}, {}
        file.execute("BEGIN")
        vv = dict(file.execute("SELECT inc, seq FROM vv"))
        rows = file.execute(
            "SELECT s.space, c.member, c.slot, c.major, c.minor, c.body, c.inc, c.seq"
            " FROM cells AS c JOIN spaces AS s ON s.id = c.space"
        )
        return vv, {tuple(row[:3]): (tuple(row[3:6]), row[6], row[7]) for row in rows}


def copy_disk(agent: LocalAgent, to: Path) -> None:
    """Copy a data folder to a new one: the database as one snapshot, also while it is written."""
    shutil.rmtree(to, ignore_errors=True)
    to.mkdir(parents=True)
    with (
        closing(_opened(agent.data_dir / DATABASE)) as source,
        closing(sqlite3.connect(to / DATABASE)) as target,
    ):
        source.backup(target)
    for path in agent.data_dir.iterdir():
        if path.is_file() and path.name not in (DATABASE, *WAL_FILES, *NOT_COPIED):
            shutil.copy2(path, to)


def put_back(agent: LocalAgent, copy: Path) -> None:
    """Put a copy in the place of a stopped agent's database, as an operator does; no more of it."""
    for name in (DATABASE, *WAL_FILES):
        (agent.data_dir / name).unlink(missing_ok=True)
    shutil.copy2(copy / DATABASE, agent.data_dir)


def roll_back(agent: LocalAgent, copy: Path) -> None:
    """Make a stopped agent's folder what it was, as a disk image that is put back does.

    The files stay the same ones (the database keeps its inode), so nothing in the folder tells.
    """
    for path in agent.data_dir.iterdir():
        if path.is_file() and path.name not in (DATABASE, *NOT_COPIED):
            path.unlink()
    for path in copy.iterdir():
        shutil.copyfile(path, agent.data_dir / path.name)  # writes into the file that is there


def empty(agent: LocalAgent) -> None:
    """Empty a stopped agent's data folder."""
    shutil.rmtree(agent.data_dir)
    agent.data_dir.mkdir()


def free_bytes(folder: Path) -> int:
    """How much room is left on a folder's disk."""
    return shutil.disk_usage(folder).free


def lose_token(agent: LocalAgent) -> bool:
    """Delete the identity token of a stopped agent. Returns whether there was one."""
    path = agent.data_dir / TOKEN
    found = path.exists()
    path.unlink(missing_ok=True)
    return found


def only_on(gone: Majors, others: Iterable[Majors]) -> dict[Cell, tuple[int, int | None]]:
    """What a disk that is taken away has, and no other: by cell, (its number, theirs)."""
    held: Majors = {}
    for other in others:
        for cell, major in other.items():
            held[cell] = max(held.get(cell, major), major)
    return {
        cell: (major, held.get(cell))
        for cell, major in gone.items()
        if cell not in held or major > held[cell]
    }


@contextmanager
def _reading(path: Path) -> Iterator[sqlite3.Connection | None]:
    """A database to read; None where there is none, or an agent is only just making it."""
    if not path.exists():
        yield None
        return
    with closing(_opened(path)) as file:
        made = file.execute("SELECT 1 FROM sqlite_master WHERE name = 'cursors'").fetchone()
        yield file if made else None


def _opened(path: Path) -> sqlite3.Connection:
    """A connection that only reads; one that may also recover where the agent was killed."""
    uri = f"file:{quote(str(path))}?mode=ro"
    try:
        file = sqlite3.connect(uri, uri=True, timeout=BUSY_S)
        file.execute("SELECT 1 FROM sqlite_master").fetchone()
    except sqlite3.OperationalError:
        file = sqlite3.connect(path, timeout=BUSY_S)
    return file
