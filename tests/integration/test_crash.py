"""Kill -9 in the middle of commits: what was acknowledged is there, once, and all of it fits."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from contextlib import closing
from pathlib import Path
from random import Random

from agent.boards.definition import COUNTERS
from agent.crdt.cell import Row
from agent.crdt.fingerprint import BUCKETS, bucket_of, fingerprint
from agent.crdt.slot import Kind
from agent.crdt.total import total_of
from agent.store.identity import Identity
from agent.store.snapshot import SqliteSnapshot
from agent.store.sqlite import SqliteStore

ROUNDS = 12
ROOT = Path(__file__).parents[2]
INC, PEER = 7, 99


def killed_after(path: Path, seed: int, lines: int) -> tuple[Counter[str], Counter[str]]:
    """Run the child until it has said so many lines, kill it; (acknowledged, asked) by member."""
    child = subprocess.Popen(
        [sys.executable, str(ROOT / "tests" / "integration" / "commit_child.py"), path, str(seed)],
        stdout=subprocess.PIPE,
        env={"PYTHONPATH": str(ROOT)},
    )
    assert child.stdout is not None
    said = [child.stdout.readline() for _ in range(lines)]
    os.kill(child.pid, signal.SIGKILL)
    said += child.stdout.readlines()
    child.stdout.close()
    assert child.wait() == -signal.SIGKILL
    acknowledged: Counter[str] = Counter()
    asked: Counter[str] = Counter()
    for line in said:
        if line.endswith(b"\n"):
            verb, member, amount = line.decode().split()
            (acknowledged if verb == "ack" else asked)[f"{member} {amount}"] += 1
    return acknowledged, asked


def plain(entries: Counter[str], member: str, *, up: bool) -> int:
    """What these entries add to one member's `+` or `-` slot."""
    amounts = [(int(e.split()[1]), n) for e, n in entries.items() if e.split()[0] == member]
    return sum(abs(amount) * n for amount, n in amounts if (amount > 0) == up)


def check_fingerprints(db: sqlite3.Connection, rows: list[Row]) -> None:
    """Every cell fits its own; the buckets and the root are their sums."""
    sums = [[0, 0] for _ in range(BUCKETS)]
    root = 0
    for row in rows:
        mark = fingerprint(row)
        bucket = sums[bucket_of(row.key)]
        bucket[0] ^= mark
        bucket[1] += 1
        root ^= mark
    snapshot = SqliteSnapshot(db)
    assert snapshot.root == root
    assert snapshot.buckets() == [tuple(bucket) for bucket in sums]


def check_file(path: Path, boot: int) -> dict[bytes, dict[int, int]]:
    """Everything in the file fits together; returns the counter slots by member and kind."""
    store = SqliteStore(path, Identity("ring", "eu", "eu", 1234, 1234))
    try:
        assert store.life.boot == boot
        state = store.state()
        space = state.catalog.board(COUNTERS).space
    finally:
        store.close()
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        db.execute("BEGIN")
        snapshot = SqliteSnapshot(db)
        log = list(snapshot.log_after(0, 10**9))
        rows = [row for _, row in log if row is not None]
        cells = db.execute("SELECT count(*) FROM cells").fetchone()[0]
        counts = db.execute("SELECT cells, log_entries FROM state").fetchone()
        assert counts == (cells, len(log))
        assert len(rows) == cells, "the log names every cell once"
        assert max(lsn for lsn, _ in log) == snapshot.newest_lsn == state.lsn
        assert state.inc == INC
        assert snapshot.vv.get(INC, 0) == state.seq == max(r.seq for r in rows if r.inc == INC)
        merged = max((r.seq for r in rows if r.inc == PEER), default=0)
        assert snapshot.vv.get(PEER, 0) == merged
        assert (snapshot.read_to(9) or 0) == merged
        check_fingerprints(db, rows)
        found: dict[bytes, dict[int, int]] = {}
        for member, slots in snapshot.members_after(space, b"", 10**6):
            found[member] = {slot[0]: value[0] for slot, value in slots}
            total = total_of(slots)
            assert snapshot.totals_of([(space, member)]) == {(space, member): total}
            kept = db.execute("SELECT score FROM totals WHERE member = ?", (member,)).fetchone()
            assert (kept is not None) == (len(slots) > 1)
        return found


def test_every_acknowledged_write_survives_kill_9_and_none_counts_twice(tmp_path: Path) -> None:
    path, chance = tmp_path / "tallyring.db", Random(20)
    acknowledged: Counter[str] = Counter()
    asked: Counter[str] = Counter()
    for number in range(ROUNDS):
        new_acks, new_asks = killed_after(path, number, lines=chance.randint(1, 400))
        acknowledged += new_acks
        asked += new_asks
        found = check_file(path, boot=number + 1)
        for member in {entry.split()[0] for entry in asked}:
            for kind, up in ((Kind.UP, True), (Kind.DOWN, False)):
                counted = found.get(member.encode(), {}).get(kind, 0)
                least, most = plain(acknowledged, member, up=up), plain(asked, member, up=up)
                assert least <= counted <= most, (number, member, kind)
    assert acknowledged.total() > 100
    assert asked.total() > acknowledged.total(), "the kills came between asking and answering"
