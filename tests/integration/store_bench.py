"""A store on the bench: with a committer, snapshots, and a way to open it again."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn, Protocol

from agent.boards.definition import COUNTERS, Definition
from agent.boards.entry import Entry
from agent.boards.tally import Group, MemberKey
from agent.committer import Committer
from agent.crdt.cell import Key, Row, Value
from agent.crdt.fingerprint import Change, bucket_of, changes_of, fingerprint
from agent.crdt.slot import Kind, slot_of_replica
from agent.crdt.total import Total
from agent.exchange import Chunk
from agent.operation import Announce, Define, Merge, Operation, Write
from agent.state import Alarms, Outcome, State
from agent.store.identity import Identity
from agent.store.memory import MemoryStore
from agent.store.schema import open_reader
from agent.store.snapshot import SqliteSnapshot
from agent.store.sqlite import SqliteStore

NOW_MS = 1_800_000_000_000
INC, OTHER = 5, 6
IDENTITY = Identity("ring", "eu-1", "eu", INC, 50)
SPACE = b"\xffspace"


class Snapshot(Protocol):
    """What both snapshots can do."""

    newest_lsn: int

    @property
    def vv(self) -> Any: ...
    @property
    def cursors(self) -> Any: ...

    @property
    def root(self) -> int: ...
    @property
    def facts(self) -> int: ...

    def buckets(self) -> Any: ...
    def log_after(self, lsn: int, limit: int) -> Iterator[tuple[int, Row | None]]: ...
    def slots_of(self, space: bytes, member: bytes) -> list[tuple[bytes, Value]]: ...
    def rows_in(self, space: bytes) -> list[Row]: ...
    def totals_of(self, members: list[MemberKey]) -> dict[MemberKey, Total]: ...
    def members_after(
        self, space: bytes, member: bytes, cells_max: int
    ) -> list[tuple[bytes, list[tuple[bytes, Value]]]]: ...
    def count_members(self, space: bytes, limit: int) -> int: ...
    def spaces(self) -> list[bytes]: ...
    def spaces_of(self, prefix: bytes) -> list[bytes]: ...
    def space_after(self, space: bytes) -> bytes | None: ...
    def collects(self, space: bytes) -> bool: ...
    def cells_after(
        self, space: bytes, member: bytes, slot: bytes, limit: int
    ) -> list[tuple[Row, int]]: ...
    def slots_from(
        self, space: bytes, member: bytes, prefix: bytes, after: bytes, limit: int
    ) -> list[tuple[bytes, Value]]: ...
    def keys_in(self, space: bytes, limit: int) -> list[Key]: ...


class Bench:
    """A store with a committer, and a way to take snapshots and to open it again."""

    store: SqliteStore | MemoryStore

    def __init__(self) -> None:
        self.begin_anew()

    def begin_anew(self) -> None:
        """A committer that knows what the store holds and nothing else."""
        self.committer = Committer(self.store, lambda _now_ms, inc: (inc + 1, inc + 1))

    def run(self, *operations: Operation) -> State:
        return self.committer.run(operations, NOW_MS).state

    def add(self, member: str, amount: int) -> None:
        self.run(Write((Group(COUNTERS, [Entry(member, add=amount)], [0]),)))

    def merge(self, *rows: Row, to: int = 0) -> None:
        self.run(Merge("us", Chunk(60, 0, to, False, rows), None))

    def put(
        self,
        *rows: Row,
        dropped: Sequence[Row] = (),
        totals: Mapping[MemberKey, Total | None] | None = None,
        facts: int = 0,
    ) -> None:
        """Make an outcome durable as it is, past the rules that lead to one."""
        self.committer.state = put(
            self.store, self.committer.state, rows, dropped, totals or {}, facts
        )
        self.committer._forget()

    @property
    def space(self) -> bytes:
        return self.committer.state.catalog.board(COUNTERS).space

    def snapshot(self) -> Snapshot:
        raise NotImplementedError

    def reopen(self) -> None:
        raise NotImplementedError

    def close(self) -> None:
        self.store.close()


class SqliteBench(Bench):
    """A real file, read through a connection of its own."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.store = SqliteStore(path, IDENTITY)
        self._readers: list[sqlite3.Connection] = []
        super().__init__()

    def snapshot(self) -> Snapshot:
        reader = open_reader(self.path)
        reader.execute("BEGIN")
        self._readers.append(reader)
        return SqliteSnapshot(reader)

    def reopen(self) -> None:
        self.close()
        self.store = SqliteStore(self.path, Identity("ring", "eu-1", "eu", 999, 999))
        self.store.begin(7)
        self.begin_anew()

    def close(self) -> None:
        for reader in self._readers:
            reader.close()
        self._readers = []
        self.store.close()


class MemoryBench(Bench):
    """The store of the simulator."""

    def __init__(self) -> None:
        self.store = MemoryStore(IDENTITY)
        super().__init__()

    def snapshot(self) -> Snapshot:
        assert isinstance(self.store, MemoryStore)
        return self.store.snapshot()

    def reopen(self) -> None:
        assert isinstance(self.store, MemoryStore)
        self.store.begin(7)
        self.begin_anew()


def put(
    store: SqliteStore | MemoryStore,
    before: State,
    rows: Sequence[Row],
    dropped: Sequence[Row],
    totals: Mapping[MemberKey, Total | None],
    facts: int = 0,
) -> State:
    """Commit an outcome that writes some rows and drops others; returns the state after it.

    facts: how many more there are.
    """
    cells = store.load([row.key for row in rows], []).cells
    prints, buckets, root = changes_of(rows, cells, {})
    for row in dropped:
        if row.key in cells:
            continue  # it is written as well: that is one change of the cell
        bucket, mark = bucket_of(row.key), fingerprint(row)
        flips, more = buckets.get(bucket, (0, 0))
        buckets[bucket] = Change(flips ^ mark, more - 1)
        root ^= mark
    after = replace(
        before,
        lsn=before.lsn + len(rows),
        root=before.root ^ root,
        facts=before.facts + facts,
        marks=before.marks.with_rows(rows),
    )
    outcome = Outcome(after, list(rows), prints, buckets, dict(totals), [], Alarms(), list(dropped))
    store.commit(before, outcome, sum(cells[row.key] is None for row in rows))
    return after


def cell(member: str, major: int, slot: bytes = b"M", seq: int = 1, space: bytes = SPACE) -> Row:
    return Row(space, member.encode(), slot, major, -major, b"d", OTHER, seq)


def log_of(snapshot: Snapshot, lsn: int = 0, limit: int = 10**6) -> list[tuple[int, Row]]:
    """The log without its superseded entries, which a store may drop at any time."""
    return [(at, row) for at, row in snapshot.log_after(lsn, limit) if row is not None]


def everything(bench: Bench) -> tuple[Any, ...]:
    """All that must survive."""
    state, snapshot = bench.committer.state, bench.snapshot()
    return (
        (state.agent, state.inc, state.log, state.seq, state.lsn, state.hlc),
        (dict(state.vv), dict(state.cursors), dict(state.seen), dict(state.fences)),
        (state.burnt, state.complete, state.root, snapshot.root, snapshot.buckets()),
        (state.facts, snapshot.facts, snapshot.spaces()),
        (list(state.catalog), state.ring.members),
        log_of(snapshot),
        (snapshot.newest_lsn, dict(snapshot.vv), dict(snapshot.cursors)),
        snapshot.totals_of([(bench.space, b"m")]),
    )


def fill(bench: Bench) -> None:
    bench.run(Announce("eu", "http://a"), Define("b", Definition(rule="latest")))
    bench.run(Write((Group("b", [Entry("x", score=4)], [0]),)))
    bench.add("m", 5)
    slot = slot_of_replica(Kind.UP, OTHER)
    bench.merge(cell("m", 9, slot, space=bench.space), cell("u", 1, b"~unknown"), to=12)


class FailingOnce:
    """A connection of which one statement fails, once."""

    def __init__(self, db: sqlite3.Connection, word: str, *, after: bool = False) -> None:
        self._db = db
        self._word = word
        self._after = after
        self.failed = False

    def execute(self, sql: str, *arguments: Any) -> sqlite3.Cursor:
        if not self.failed and self._word in sql:
            if self._after:
                self._db.execute(sql, *arguments)
            self._fail()
        return self._db.execute(sql, *arguments)

    def executemany(self, sql: str, rows: Any) -> sqlite3.Cursor:
        rows = list(rows)
        if not self.failed and self._word in sql:
            self._db.executemany(sql, rows[: len(rows) // 2])
            self._fail()
        return self._db.executemany(sql, rows)

    def _fail(self) -> NoReturn:
        self.failed = True
        raise sqlite3.OperationalError("disk I/O error")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._db, name)
