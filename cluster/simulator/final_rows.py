"""Rows of finals on simulated disks: whether they are what was certified, and what came late."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from hashlib import sha256

import msgpack

from agent.boards.final_rows import FinalRow, unpack_chunk
from agent.crdt.cell import Key, Value
from agent.store.standings import differences
from cluster.simulator import plain
from cluster.simulator.agent import SimulatedAgent


def hash_of(space: bytes, rows: list[FinalRow]) -> bytes:
    """The hash of a final's rows, written down once more."""
    digests = []
    for rank, score, reached_ms, member, proof in rows:
        digest = proof if member is None else sha256(proof + member).digest()
        digests.append(sha256(msgpack.packb([rank, score, reached_ms, digest])).digest())
    return sha256(b"tallyring final 1" + space + b"".join(digests)).digest()


def rows_on(agent: SimulatedAgent, space: bytes, hash_: bytes) -> list[FinalRow] | None:
    """The rows of a complete copy on an agent's disk; None where it is not there."""
    chunks, members = agent.disk.finals.get(space, {}).get(hash_, ({}, None))
    if members is None:
        return None
    return [row for _, chunk in sorted(chunks.items()) for row in unpack_chunk(chunk)]


def copy_problems(
    agent: SimulatedAgent, space: bytes, hash_: bytes, members: int, name: str
) -> list[str]:
    """Whether an agent holds the rows of a certificate, in their order and with their hash."""
    rows, window = rows_on(agent, space, hash_), plain.split(space)[1]
    if rows is None:
        return [f"{name} has certified {window} without its rows"]
    if hash_of(space, rows) != hash_ or len(rows) != members:
        return [f"{name} holds other rows of {window} than are certified"]
    return []


def name_problems(agent: SimulatedAgent, cells: Mapping[Key, Value]) -> list[str]:
    """At the end no erased name stands in any copy."""
    gone = plain.Gone(cells)
    return [
        f"{agent.name}: the erased {row.member!r} stands in a final of {plain.split(space)[1]}"
        for space, held in sorted(agent.disk.finals.items())
        for chunks, _ in held.values()
        for chunk in chunks.values()
        for row in unpack_chunk(chunk)
        if row.member is not None and gone.erased(row.member)
    ]


def late_problems(
    agent: SimulatedAgent,
    space: bytes,
    hash_: bytes,
    cells: Mapping[Key, Value],
    seen: Counter[str],
) -> list[str]:
    """What came after a final is listed beside it, and nothing else."""
    placed = agent.state.catalog.placed(space)
    if placed is None or agent.state.marks.collects(space):
        return []
    definition, rows = placed.board.definition, rows_on(agent, space, hash_)
    assert definition is not None
    hidden = frozenset(agent.state.bans.hidden(placed.board.name))
    closed = agent.state.erased.closed
    gone = plain.Gone(cells)
    was = {
        row.member: row.score
        for row in rows or ()
        if row.member is not None and not gone.erased(row.member)
    }
    now = {}
    for (its, member), slots in plain.by_owner(cells).items():
        standing = plain.score(definition, slots) if its == space else None
        if standing is not None and not gone.erased(member):
            now[member] = standing.score
    wanted = {
        (member, was.get(member), now.get(member))
        for member in was.keys() | now.keys()
        if was.get(member) != now.get(member) and member not in hidden
    }
    snapshot = agent.disk.snapshot()
    told = differences(snapshot, placed, closed, hidden, rows or (), lambda: None)
    found = []
    if {its[:3] for its in told.shown} != wanted or told.members != len(wanted):
        found.append(f"{agent.name}: late are {told.shown}, not {wanted}")
    # Who was banned then, and is not now, is listed with the others, and alone makes nobody look.
    banned = {key[1] for key in cells if key[0].startswith(plain.BANS)}
    if {its[0] for its in wanted} - banned and (space, hash_) not in agent.disk.late:
        found.append(f"{agent.name} would not look for what came late to {plain.split(space)[1]}")
    seen["came after a final"] += bool(wanted)
    return found
