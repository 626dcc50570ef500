"""Merging and serving, without HTTP: chunks of a peer through the commit pipeline, and back out."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from random import Random

from agent.boards.definition import Definition
from agent.committer import Committer
from agent.crdt.cell import Row
from agent.crdt.incarnation import RANDOM_BITS, mint
from agent.crdt.slot import Kind, slot_of_replica
from agent.exchange import Boot, Chunk, ChunkLimits, Reply, Sender, build_chunk, vv_digest
from agent.gossip import wire
from agent.gossip.frame import frame
from agent.operation import Define, Merge, Merged
from agent.store.identity import Identity
from agent.store.schema import open_reader
from agent.store.snapshot import SqliteSnapshot
from agent.store.sqlite import SqliteStore
from bench.figures import Aim, Figure
from bench.requests import member
from bench.world import Scale

CHUNK_ROWS = 2_000
UPDATES_PART = 5  # of the population, a part of this size is updated in each round
AT_MS = 1_800_000_000_000
PEER, PEER_LOG = "peer", 77


def merges(folder: Path, scale: Scale) -> list[Figure]:
    """New cells, then random updates of them, then serving them all to a peer that has none."""
    folder.mkdir(parents=True, exist_ok=True)
    random = Random(1)
    inc = mint(AT_MS, random.getrandbits(RANDOM_BITS))
    path = folder / "merges.db"
    store = SqliteStore(path, Identity("bench", "me", "me", inc, 1))
    try:
        committer = Committer(store, lambda _now_ms, inc: (inc + 1, inc + 1))
        committer.run([Define("b", Definition(rule="sum", ties="member"))], AT_MS)
        space = committer.state.catalog.board("b").space
        slot = slot_of_replica(Kind.UP, mint(AT_MS, random.getrandbits(RANDOM_BITS)) + 1)
        peer = _Peer(committer, space, slot)
        new = [peer.merge(part) for part in _parts(range(scale.population), scale.rounds)]
        updated = []
        for _ in range(scale.rounds):
            chosen = random.sample(range(scale.population), scale.population // UPDATES_PART)
            updated.append(peer.merge(chosen))
        served = [_serve(path, committer) for _ in range(min(3, scale.rounds))]
    finally:
        store.close()
    population = f"{scale.population:,}"
    return [
        Figure("cells merged, durable, new", "cells/s", tuple(new), Aim(60_000)),
        Figure(
            f"cells merged, durable, random over {population}",
            "cells/s",
            tuple(updated),
            Aim(25_000),
        ),
        Figure("rows served to a peer that catches up", "rows/s", tuple(served)),
    ]


def _parts(numbers: Sequence[int], count: int) -> Iterable[Sequence[int]]:
    size = len(numbers) // count
    return [numbers[i * size : (i + 1) * size] for i in range(count)]


class _Peer:
    """A peer whose log is made up: every chunk continues the one before."""

    def __init__(self, committer: Committer, space: bytes, slot: bytes) -> None:
        self._committer = committer
        self._space = space
        self._slot = slot
        self._inc = int.from_bytes(slot[1:9])
        self._lsn = self._seq = 0

    def merge(self, numbers: Sequence[int]) -> float:
        """Merge a new value for each of these members; cells a second."""
        chunks = [
            self._chunk(numbers[i : i + CHUNK_ROWS]) for i in range(0, len(numbers), CHUNK_ROWS)
        ]
        started = time.perf_counter()
        for chunk in chunks:
            (answer,) = self._committer.run([Merge(PEER, chunk, None)], AT_MS).answers
            assert isinstance(answer, Merged), answer
            assert answer.changed == len(chunk.rows), answer
        return len(numbers) / (time.perf_counter() - started)

    def _chunk(self, numbers: Sequence[int]) -> Chunk:
        self._seq += 1
        rows = tuple(
            Row(
                self._space,
                member(number).encode(),
                self._slot,
                self._seq,
                AT_MS + self._seq,
                b"",
                self._inc,
                self._seq,
            )
            for number in numbers
        )
        start, self._lsn = self._lsn, self._lsn + len(rows)
        return Chunk(PEER_LOG, start, self._lsn, head=False, rows=rows)


def _serve(path: Path, committer: Committer) -> float:
    """Read and pack everything, chunk by chunk, each in a snapshot of its own; rows a second."""
    state = committer.state
    me = Sender(state.agent, state.inc, state.log, Boot(1, 1))
    reader = open_reader(path)
    limits = ChunkLimits(rows_max=CHUNK_ROWS)
    rows = start = 0
    started = time.perf_counter()
    try:
        while True:
            reader.execute("BEGIN")
            snapshot = SqliteSnapshot(reader)
            chunk = build_chunk(snapshot, state.log, start, {}, {}, limits)
            reply = Reply(me, vv_digest(state.vv), None, chunk, None, AT_MS)
            reader.execute("ROLLBACK")
            frame(wire.pack_reply(reply))
            rows += len(chunk.rows)
            start = chunk.to
            if chunk.head:
                return rows / (time.perf_counter() - started)
    finally:
        reader.close()
