"""Entries with keys, in turns with the same ones without: throughput, and bytes."""

from __future__ import annotations

import asyncio
import sqlite3
import tempfile
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from pathlib import Path
from random import Random

from agent.boards.definition import Definition
from agent.boards.entry import Entry
from agent.boards.marks import Due, due
from agent.boards.tally import Group
from agent.boards.windows import FACTS_MS, KEYS
from agent.committer import Committer
from agent.crdt.space import decode_space
from agent.exchange import Boot, ChunkLimits, Sender, build_chunk, vv_digest
from agent.exchange import Reply as PeerReply
from agent.gossip import wire
from agent.gossip.frame import frame
from agent.operation import Announce, Define, Drop, SetMarks, Write
from agent.store.identity import Identity
from agent.store.schema import open_reader
from agent.store.snapshot import SqliteSnapshot
from agent.store.sqlite import SqliteStore
from bench import requests
from bench.figures import Aim, Figure
from bench.load import Load
from bench.merges import CHUNK_ROWS
from bench.requests import member
from bench.world import World
from bench.writes import BATCH, BATCH_CONNECTIONS, PREPARED
from cluster.expected import BoardSpec

KEYED = BoardSpec("keyed", "sum", ties="member")
SINGLES_PER_S = 10_000  # prepared for each second of a round: more than any agent takes
HOT_BATCHES_PER_S = 4_000
RATIO = Aim(0.5)
WITH, WITHOUT = "with keys", "without keys"

AT_MS = 1_800_000_000_000
STORED_PART = 10  # of the large board's members, a part of this size is stored with keys
STORED_BATCH = 100
SPREAD_MS = 60_000  # the times of their events
ON_DISK, ON_WIRE = Aim(110, at_least=False), Aim(45, at_least=False)  # what was estimated


async def keys(world: World) -> list[Figure]:
    """Singles, hot batches and new members over HTTP; then what the bytes of an entry are."""
    await world.define(KEYED)
    figures = [await _singles(world), await _hot(world), await _new(world)]
    with tempfile.TemporaryDirectory(prefix="tallyring-keys-") as folder:
        count = max(world.scale.population // STORED_PART, CHUNK_ROWS)
        return figures + await asyncio.to_thread(_bytes, Path(folder), count)


async def _singles(world: World) -> Figure:
    count = int(SINGLES_PER_S * world.scale.seconds)

    def load(name: str, number: int) -> Load:
        keyed = name == WITH
        build = (KEYED.name, keyed, 1, 1, count if keyed else 1, number)
        return Load(requests.keyed_batches, build, again=not keyed)

    return await _compare(world, "increments with keys, one a request, one hot key", 1, load)


async def _hot(world: World) -> Figure:
    count = int(HOT_BATCHES_PER_S * world.scale.seconds)

    def load(name: str, number: int) -> Load:
        keyed, members = name == WITH, requests.HOT_MEMBERS
        build = (KEYED.name, keyed, BATCH, members, count if keyed else 1, 1000 + number)
        return Load(requests.keyed_batches, build, BATCH_CONNECTIONS, again=not keyed)

    return await _compare(world, "batches of 100 with keys, hot keys", BATCH, load)


async def _new(world: World) -> Figure:
    count = int(PREPARED * max(1.0, world.scale.seconds))

    def load(name: str, number: int) -> Load:
        keyed = name == WITH
        build = (KEYED.name, keyed, BATCH, None, count, 2000 + 2 * number + keyed)
        return Load(requests.keyed_batches, build, BATCH_CONNECTIONS, again=False)

    return await _compare(world, "batches of 100 with keys, new members", BATCH, load)


async def _compare(
    world: World, name: str, per_request: int, make: Callable[[str, int], Load]
) -> Figure:
    values = await world.in_turns((WITH, WITHOUT), make, per_request)
    return Figure(name, "entries/s", values[WITH], RATIO, {WITHOUT: values[WITHOUT]}, WITHOUT)


# --- bytes --------------------------------------------------------------------------------------


def _bytes(folder: Path, count: int) -> list[Figure]:
    """What an entry takes in the file and in the log that a peer reads, with a key and without."""
    hot = [member(i % requests.HOT_MEMBERS) for i in range(count)]
    new = [member(i) for i in range(count)]
    figures = []
    for name, members, disk, onwire in (
        ("hot members", hot, ON_DISK, ON_WIRE),
        ("new members", new, None, None),
    ):
        with _Stored(folder / f"{name}.db", members, keyed=True) as stored:
            disk_bytes, wire_bytes = stored.disk_bytes, stored.wire_bytes()
            left = stored.collect()
        with _Stored(folder / f"{name} without keys.db", members, keyed=False) as plain:
            plain_disk, plain_wire = plain.disk_bytes, plain.wire_bytes()
        figures += [
            Figure(
                f"an entry with a key, {name}, on disk",
                "bytes",
                (disk_bytes / count,),
                disk,
                {WITHOUT: (plain_disk / count,)},
                note=f"{left / count:.1f} once its facts were collected and dropped",
            ),
            Figure(
                f"an entry with a key, {name}, on the wire",
                "bytes",
                (wire_bytes / count,),
                onwire,
                {WITHOUT: (plain_wire / count,)},
                note=f"messages of {CHUNK_ROWS:,} rows, compressed, without HTTP",
            ),
        ]
    return figures


class _Stored:
    """A file of its own, with these entries written to it. Use it with `with`.

    disk_bytes: what the entries added to the file, log and totals included.
    """

    def __init__(self, path: Path, members: Sequence[str], *, keyed: bool) -> None:
        self._path = path
        self._store = SqliteStore(path, Identity("bench", "me", "me", 5, 6))
        self._committer = Committer(self._store, lambda _now_ms, inc: (inc + 1, inc + 1))
        self._committer.run([Announce("here", "http://127.0.0.1:1")], AT_MS)
        self._committer.run([Define("b", Definition(rule="sum", ties="member"))], AT_MS)
        self._before = self._used()
        for group in _groups(members, keyed=keyed):
            commit = self._committer.run([Write((group,))], AT_MS)
            assert not commit.failures, commit.failures
            (answer,) = commit.answers
            assert not isinstance(answer, Exception), answer
        self.disk_bytes = self._used() - self._before

    def __enter__(self) -> _Stored:
        return self

    def __exit__(self, *_: object) -> None:
        self._store.close()

    def _used(self) -> int:
        """The bytes of all pages that are in use, once the write-ahead log is in the file."""
        with closing(sqlite3.connect(self._path)) as db:
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            pages, free, size = (
                db.execute(f"PRAGMA {name}").fetchone()[0]
                for name in ("page_count", "freelist_count", "page_size")
            )
        return int((pages - free) * size)

    def wire_bytes(self) -> int:
        """All that a peer reads that has nothing yet, as it is sent."""
        state = self._committer.state
        me = Sender(state.agent, state.inc, state.log, Boot(1, 1))
        sent = start = 0
        with closing(open_reader(self._path)) as reader:
            reader.execute("BEGIN")
            snapshot = SqliteSnapshot(reader)
            while True:
                limits = ChunkLimits(rows_max=CHUNK_ROWS)
                chunk = build_chunk(snapshot, state.log, start, {}, {}, limits)
                reply = PeerReply(me, vv_digest(state.vv), None, chunk, None, AT_MS)
                sent += sum(map(len, frame(wire.pack_reply(reply))))
                start = chunk.to
                if chunk.head:
                    return sent

    def collect(self) -> int:
        """Close and collect the facts, drop them, and tell what of the entries is left in bytes."""
        end_ms = AT_MS + FACTS_MS + 100 * Definition(rule="sum").key_retention_ms
        with closing(open_reader(self._path)) as reader:
            snapshot = SqliteSnapshot(reader)
            while marks := self._due(snapshot, end_ms):
                self._committer.run([SetMarks(marks)], end_ms)
            for space in snapshot.spaces():
                known = decode_space(space)
                if known is not None and KEYS.window(known.window) is not None:
                    while cells := snapshot.keys_in(space, CHUNK_ROWS):
                        self._committer.run([Drop(tuple(cells))], end_ms)
        return self._used() - self._before

    def _due(self, snapshot: SqliteSnapshot, now_ms: int) -> tuple[Due, ...]:
        state = self._committer.state
        members = [each.name for each in state.ring.active()]
        spaces = snapshot.spaces()
        return tuple(
            due(spaces, state.catalog, state.marks, state.agent, members, state.vv, now_ms)
        )


def _groups(members: Sequence[str], *, keyed: bool) -> Iterable[Group]:
    random = Random(1)
    for first in range(0, len(members), STORED_BATCH):
        entries = [Entry(name, add=1) for name in members[first : first + STORED_BATCH]]
        for entry in entries if keyed else ():
            entry.key = requests.key(random)
            entry.at = AT_MS - random.randrange(SPREAD_MS)  # as bytes, a time of its own
        yield Group("b", entries, range(len(entries)))
