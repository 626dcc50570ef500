"""Mending a damaged cell: a range comparison with peers, of one cell."""

from __future__ import annotations

from collections.abc import Iterable

from agent.crdt.cell import Key, Row
from agent.crdt.fingerprint import fingerprint
from agent.operation import Burn, Mend
from cluster.simulator.agent import SimulatedAgent
from cluster.simulator.disk import Disk


def mend(
    agent: SimulatedAgent, disk: Disk, key: Key, peers: Iterable[Disk], now_ms: int
) -> Row | None:
    """Put what peers hold in the place of a damaged cell; None where none of them holds it.

    A slot of my own may then be behind what I wrote: I go on under another incarnation.
    """
    found = [cell[0] for peer in peers if (cell := _intact(peer, key)) is not None]
    if not found:
        return None
    best = max(found, key=lambda row: row.value)
    if key[2][1:9] == agent.state.inc.to_bytes(8):
        agent.run([Burn(agent.state.inc, "a slot of mine was damaged")], now_ms)
    if key not in disk.damaged:  # the new incarnation's own write took its place
        agent.damaged.discard(key)
        return None
    agent.run([Mend((best,))], now_ms)
    agent.damaged.discard(key)
    return best


def _intact(disk: Disk, key: Key) -> tuple[Row, int] | None:
    """A peer's cell, if it holds what its fingerprint says."""
    cell = disk.snapshot().cell(key)
    return cell if cell is not None and fingerprint(cell[0]) == cell[1] else None


def scrub(disk: Disk) -> set[Key]:
    """The cells that do not hold what their fingerprints say."""
    snapshot, found = disk.snapshot(), set()
    for space in snapshot.spaces():
        for row, mark in snapshot.cells_after(space, b"", b"", 1_000_000):
            if fingerprint(row) != mark:
                found.add(row.key)
    return found
