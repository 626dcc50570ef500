"""A process that commits increments and prints what was acknowledged, until it is killed.

    python commit_child.py FILE SEED

Each line on stdout is one acknowledged request: member and amount. Written at once, so that the
parent, which kills this process at any moment, knows at least of every acknowledgement it read.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path
from random import Random

from agent.boards.definition import COUNTERS
from agent.boards.entry import Entry
from agent.boards.tally import Group
from agent.commit import CommitQueue
from agent.committer import Committer
from agent.crdt.cell import Row
from agent.exchange import Chunk, Reading
from agent.operation import Merge, Write
from agent.store.identity import Identity
from agent.store.sqlite import SqliteStore

WRITERS = 8
MEMBERS = 5


def now_ms() -> int:
    return time.time_ns() // 1_000_000


async def write(queue: CommitQueue, chance: Random) -> None:
    """Add, wait for the acknowledgement, say so; for ever."""
    while True:
        member, amount = f"m{chance.randrange(MEMBERS)}", chance.choice((1, 1, 2, 7, -1, -3))
        entries = [Entry(member, add=amount)]
        os.write(1, f"ask {member} {amount}\n".encode())
        await queue.submit(Write((Group(COUNTERS, entries, [0]),)))
        os.write(1, f"ack {member} {amount}\n".encode())


async def merge(queue: CommitQueue) -> None:
    """Merge a peer's log, row by row, from the durable cursor on; for ever."""
    while True:
        lsn = queue.state.cursors.get(9, Reading("peer", 0)).lsn + 1
        row = Row(b"\xffspace", b"p%d" % (lsn % 7), b"M", lsn, 0, b"", 99, lsn)
        await queue.submit(Merge("peer", Chunk(9, lsn - 1, lsn, True, (row,)), {99: lsn}))


async def main(path: Path, seed: int) -> None:
    store = SqliteStore(path, Identity("ring", "eu", "eu", 7, 8))
    store.begin(seed)
    queue = CommitQueue(Committer(store, lambda _, inc: (inc, inc)), now_ms, lambda _: None)
    queue.start()
    async with asyncio.TaskGroup() as tasks:
        for number in range(WRITERS):
            tasks.create_task(write(queue, Random(seed * 100 + number)))
        tasks.create_task(merge(queue))
        tasks.create_task(queue.watch())


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2])))
