"""The rules of an exchange (docs/protocol.md), pure: no I/O, no clock, no async.

One exchange is push-pull. The caller sends what it knows (version vector), how far it has read the
other's log (cursor), and a chunk of its own log; the other joins that chunk, and answers with a
chunk of its log, read in one snapshot. Rows travel in log order, so every chunk is a safe stopping
point; the version vector only filters, and is claimed only at the head of a log. The HTTP rim
(agent/gossip) and the simulator (cluster/simulator) both drive these functions and nothing else.

What keeps a push safe: it was filtered with a version vector that the receiver had in one process,
so it names that process (`to_boot`), within which vector and cursor only grow; in another one it is
ignored.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol, TypeAlias

from agent.crdt.cell import Row
from agent.limits import CHUNK_SCANNED_ROWS_MAX

VersionVector: TypeAlias = Mapping[int, int]
"""incarnation -> seq: every write up to it is included in my state."""

Times: TypeAlias = Mapping[str, int]
"""agent -> ms since 1970: up to when a state holds all of that agent's commits."""


class Cursor(NamedTuple):
    """How far one agent has read another's log: the log's id, and the last lsn covered."""

    log: int
    lsn: int


class Boot(NamedTuple):
    """One process of an agent: a durable number that rises at each start, and random bits."""

    number: int
    nonce: int


@dataclass(frozen=True, slots=True)
class Sender:
    """Who sends a message: the agent's name, its incarnation, log and process."""

    agent: str
    inc: int
    log: int
    boot: Boot


@dataclass(frozen=True, slots=True)
class Chunk:
    """Consecutive changes of one agent's log, all of them with start < lsn <= to.

    Rows that the receiver's version vector covers are left out. `head` tells that nothing lies
    above `to`: only then may the receiver claim the sender's version vector (rule L), and only
    then are `times` given.
    """

    log: int
    start: int
    to: int
    head: bool
    rows: tuple[Row, ...]
    times: Times | None = None


@dataclass(frozen=True, slots=True)
class Request:
    """What the caller of an exchange sends, all of one snapshot.

    digest, vv: the caller's durable version vector; `vv` is None where the other was told it.
    known: the digest of the other's vector that the caller has; empty without one.
    cursor: the caller's cursor on the other's log; None before the first chunk.
    push: the caller's own changes; None while it does not know the other's process and vector.
    to_boot: the process for which `push` was filtered.
    """

    sender: Sender
    digest: bytes
    vv: VersionVector | None
    known: bytes
    cursor: Cursor | None
    push: Chunk | None = None
    to_boot: Boot | None = None


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to a request, all of one snapshot taken after the push was joined.

    digest, vv: the answerer's durable version vector; `vv` is None where the caller has it.
    chunk: the answerer's changes; None where it must first be told the caller's vector
        (`need_vv`).
    cursor: the answerer's cursor on the caller's log, after the push.
    now_ms: the answerer's clock.
    """

    sender: Sender
    digest: bytes
    vv: VersionVector | None
    chunk: Chunk | None
    cursor: Cursor | None
    now_ms: int
    need_vv: bool = False


@dataclass(frozen=True, slots=True)
class ChunkLimits:
    """How much one chunk carries at the most. A chunk always carries at least one row.

    rows_max: bounds how long the receiver's writer is busy with one chunk.
    bytes_max: bounds a message; of the rows as packed, before compression.
    scanned_max: log entries looked at; bounds the time a reply takes.
    """

    rows_max: int = 2_000
    bytes_max: int = 256 * 1024
    scanned_max: int = CHUNK_SCANNED_ROWS_MAX


class LogSnapshot(Protocol):
    """One consistent state of an agent, as of one read transaction (rule S)."""

    @property
    def newest_lsn(self) -> int:
        """The lsn of the newest change in this state."""

    @property
    def vv(self) -> VersionVector:
        """The version vector of this state."""

    @property
    def cursors(self) -> Mapping[str, Cursor]:
        """By agent, the cursor on its log."""

    def log_after(self, lsn: int, limit: int) -> Iterator[tuple[int, Row | None]]:
        """At most `limit` log entries above `lsn`, in order; None for a superseded one."""


def vv_digest(vv: VersionVector) -> bytes:
    """An 8-byte digest of a version vector, equal for equal vectors."""
    hasher = hashlib.blake2b(digest_size=8)
    for inc, seq in sorted(vv.items()):
        hasher.update(inc.to_bytes(8) + seq.to_bytes(8))
    return hasher.digest()


def vv_join(mine: VersionVector, theirs: VersionVector) -> VersionVector:
    """The element-wise maximum of two version vectors; `mine` itself where nothing changes."""
    news = {inc: seq for inc, seq in theirs.items() if seq > mine.get(inc, 0)}
    return {**mine, **news} if news else mine


def times_join(mine: Times, theirs: Times) -> Times:
    """The element-wise maximum of two times maps, joined exactly where the vectors are."""
    news = {agent: ms for agent, ms in theirs.items() if ms > mine.get(agent, -(2**63))}
    return {**mine, **news} if news else mine


def row_bytes(row: Row) -> int:
    """An upper bound of a row's size on the wire, before compression."""
    return len(row.space) + len(row.member) + len(row.slot) + len(row.body) + 40


def build_chunk(
    snapshot: LogSnapshot,
    log: int,
    start: int,
    covered: VersionVector,
    times: Times,
    limits: ChunkLimits,
) -> Chunk:
    """The next chunk of my log for a reader at `start` that covers `covered`.

    `times` must be no later than the snapshot. Everything in the chunk is of one snapshot.
    """
    rows: list[Row] = []
    size, to, head, scanned = 0, start, True, 0
    for lsn, row in snapshot.log_after(start, limits.scanned_max):
        scanned += 1
        if row is not None and row.seq > covered.get(row.inc, 0):
            size += row_bytes(row)
            if rows and (len(rows) == limits.rows_max or size > limits.bytes_max):
                head = False
                break
            rows.append(row)
        to = lsn
    newest = snapshot.newest_lsn
    if head and scanned == limits.scanned_max and to < newest:
        head = False
    if head:
        return Chunk(log, start, max(newest, start), True, tuple(rows), times)
    return Chunk(log, start, to, False, tuple(rows))


def contiguous(chunk: Chunk, cursor: Cursor | None) -> bool:
    """Whether a chunk begins at or below what its receiver has already covered.

    From 0 a chunk always does. Otherwise it must continue the same log (rules C and P): a chunk
    behind a gap, or of a log whose numbers began again, is ignored, and asked for anew.
    """
    if chunk.start == 0:
        return True
    return cursor is not None and cursor.log == chunk.log and chunk.start <= cursor.lsn


def advanced(chunk: Chunk, cursor: Cursor | None) -> Cursor:
    """The cursor after a contiguous chunk was joined."""
    if cursor is not None and cursor.log == chunk.log:
        return Cursor(chunk.log, max(cursor.lsn, chunk.to))
    return Cursor(chunk.log, chunk.to)


@dataclass(frozen=True, slots=True)
class PeerView:
    """What I know of another agent's process; volatile, and void when it restarts.

    boot: the process it is true of.
    vv, digest: its version vector as it last told it. It has this and more.
    acked: its cursor on my log.
    told: the digest of the vector that I last told it in full.
    """

    boot: Boot | None = None
    vv: VersionVector | None = None
    digest: bytes = b""
    acked: Cursor | None = None
    told: bytes = b""


def met(view: PeerView, sender: Sender) -> PeerView:
    """The view after hearing from a sender: everything is forgotten if its process changed."""
    return view if view.boot == sender.boot else PeerView(boot=sender.boot)


def heard_request(view: PeerView, request: Request) -> PeerView:
    """The view of the caller after its request."""
    view = met(view, request.sender)
    if request.vv is not None:
        return replace(view, vv=request.vv, digest=request.digest)
    return view


def heard_reply(view: PeerView, request: Request, reply: Reply) -> PeerView:
    """The view of the answerer after its reply to `request`."""
    view = replace(met(view, reply.sender), acked=reply.cursor)
    view = replace(view, told=b"" if reply.need_vv else request.digest)
    if reply.vv is not None:
        view = replace(view, vv=reply.vv, digest=reply.digest)
    return view


def vector_of(message: Request | Reply, view: PeerView) -> VersionVector | None:
    """The sender's version vector: as it stands in the message, or as its digest names it.

    None where the digest names one that is not known here (any more).
    """
    if message.vv is not None:
        return message.vv
    known = view.boot == message.sender.boot and view.digest == message.digest
    return view.vv if known else None


def build_request(
    snapshot: LogSnapshot,
    me: Sender,
    peer: str,
    view: PeerView,
    times: Times,
    limits: ChunkLimits,
) -> Request:
    """My request to a peer of which I know `view`."""
    digest = vv_digest(snapshot.vv)
    push = None
    if view.vv is not None:
        start = view.acked.lsn if view.acked is not None and view.acked.log == me.log else 0
        push = build_chunk(snapshot, me.log, start, view.vv, times, limits)
    return Request(
        sender=me,
        digest=digest,
        vv=None if view.told == digest else snapshot.vv,
        known=view.digest,
        cursor=snapshot.cursors.get(peer),
        push=push,
        to_boot=view.boot,
    )


def push_to_join(request: Request, me: Sender) -> Chunk | None:
    """The pushed chunk, if it was filtered for this very process; else None (ignored)."""
    return request.push if request.to_boot == me.boot else None


def build_reply(
    snapshot: LogSnapshot,
    me: Sender,
    request: Request,
    view: PeerView,
    times: Times,
    now_ms: int,
    limits: ChunkLimits,
) -> Reply:
    """My answer to a request; `view` is mine of the caller, after `heard_request`."""
    cursor = snapshot.cursors.get(request.sender.agent)
    digest = vv_digest(snapshot.vv)
    vv = None if request.known == digest else snapshot.vv
    covered = vector_of(request, view)
    if covered is None:
        return Reply(me, digest, vv, None, cursor, now_ms, need_vv=True)
    start = 0
    if request.cursor is not None and request.cursor.log == me.log:
        start = request.cursor.lsn
    chunk = build_chunk(snapshot, me.log, start, covered, times, limits)
    return Reply(me, digest, vv, chunk, cursor, now_ms)
