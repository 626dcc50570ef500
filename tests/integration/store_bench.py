"""A store on the bench: with a committer, snapshots, and a way to open it again."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from agent.boards.definition import COUNTERS, Definition
from agent.boards.entry import Entry
from agent.boards.tally import Group, MemberKey
from agent.committer import Committer
from agent.crdt.cell import Row, Value
from agent.crdt.counter import Total
from agent.crdt.slot import Kind, slot_of_replica
from agent.exchange import Chunk
from agent.operation import Announce, Define, Merge, Operation, Write
from agent.state import State
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

    def buckets(self) -> Any: ...
    def log_after(self, lsn: int, limit: int) -> Iterator[tuple[int, Row | None]]: ...
    def slots_of(self, space: bytes, member: bytes) -> list[tuple[bytes, Value]]: ...
    def rows_in(self, space: bytes) -> list[Row]: ...
    def totals_of(self, members: list[MemberKey]) -> dict[MemberKey, Total]: ...
    def members_after(
        self, space: bytes, member: bytes, cells_max: int
    ) -> list[tuple[bytes, list[tuple[bytes, Value]]]]: ...
    def count_members(self, space: bytes, limit: int) -> int: ...


class Bench:
    """A store with a committer, and a way to take snapshots and to open it again."""

    store: SqliteStore | MemoryStore

    def __init__(self) -> None:
        self.committer = Committer(self.store, lambda _now_ms, inc: (inc + 1, inc + 1))

    def run(self, *operations: Operation) -> State:
        return self.committer.run(operations, NOW_MS).state

    def add(self, member: str, amount: int) -> None:
        self.run(Write((Group(COUNTERS, [Entry(member, add=amount)], [0]),)))

    def merge(self, *rows: Row, to: int = 0) -> None:
        self.run(Merge("us", Chunk(60, 0, to, False, rows), None))

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
        self.committer = Committer(self.store, lambda _now_ms, inc: (inc + 1, inc + 1))

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
        self.committer = Committer(self.store, lambda _now_ms, inc: (inc + 1, inc + 1))


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
