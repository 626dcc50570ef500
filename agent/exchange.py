"""The rules of an exchange (docs/protocol.md), pure: no I/O, no clock, no async.

The caller sends what it knows (version vector), how far it has read the other's log (cursor), and
a chunk of its own log; the other joins that chunk, and answers with a chunk of its log, read in one
snapshot. Rows travel in log order, so every chunk is a safe stopping point; the version vector only
filters, and is claimed only at the head of a log. agent/gossip and cluster/simulator drive these
functions and nothing else.

What keeps a push safe: it was filtered with a version vector that the receiver had in one process,
so it names that process (`to_boot`), within which vector and cursor only grow; in another one it is
ignored.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
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


class Reading(NamedTuple):
    """How far a log has been read, and whose it is."""

    agent: str
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

    Rows that the receiver's version vector covers are left out. `head`: nothing lies above `to`;
    only then may the receiver claim the sender's version vector (rule L), and are `times` given.
    """

    log: int
    start: int
    to: int
    head: bool
    rows: tuple[Row, ...]
    times: Times | None = None
    newest: int = 0


@dataclass(frozen=True, slots=True)
class Request:
    """What the caller of an exchange sends, all of one snapshot.

    digest, vv: the caller's durable version vector; `vv` is None where the other was told it.
    base: empty, or the digest of a vector that the other was told: `vv` is then what is new since.
    known: the digest of the other's vector that the caller has; empty without one.
    cursor: the caller's cursor on the other's log; None before the first chunk.
    push: the caller's own changes; None while it does not know the other's process and vector.
    to_boot: the process for which `push` was filtered.
    root: the fingerprint of all of the caller's cells; 0 while cells are being dropped.
    whole: the caller's whole vector, for its own use; not sent.
    """

    sender: Sender
    digest: bytes
    vv: VersionVector | None
    known: bytes
    cursor: Cursor | None
    push: Chunk | None = None
    to_boot: Boot | None = None
    root: int = 0
    base: bytes = b""
    whole: VersionVector | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to a request, all of one snapshot taken after the push was joined.

    digest, vv, base, root, whole: as in a request, of the answerer.
    chunk: the answerer's changes; None where it must first be told the caller's vector
        (`need_vv`).
    cursor: the answerer's cursor on the caller's log, after the push.
    now_ms: the answerer's clock.
    behind: by agent, how many entries of the answerer's log it has not confirmed; at head only.
    """

    sender: Sender
    digest: bytes
    vv: VersionVector | None
    chunk: Chunk | None
    cursor: Cursor | None
    now_ms: int
    need_vv: bool = False
    root: int = 0
    base: bytes = b""
    behind: Mapping[str, int] | None = None
    whole: VersionVector | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class ChunkLimits:
    """How much one chunk carries at the most; it always carries at least one row.

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
    def root(self) -> int:
        """The fingerprint of all cells (agent/crdt/fingerprint.py)."""

    def read_to(self, log: int) -> int | None:
        """How far another agent's log was read; None where nothing of it was."""

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
    return Chunk(log, start, to, False, tuple(rows), newest=newest)


def contiguous(chunk: Chunk, read_to: int | None) -> bool:
    """Whether a chunk begins at or below what its receiver has read of that log.

    From 0 a chunk always does. Otherwise it must continue the same log (rules C and P): a chunk
    behind a gap, or of a log that is not known, is ignored, and asked for anew.
    """
    return chunk.start == 0 or (read_to is not None and chunk.start <= read_to)


def advanced(chunk: Chunk, read_to: int | None) -> int:
    """How far the log is read after a contiguous chunk was joined."""
    return max(read_to or 0, chunk.to)


def beyond(cursor: Cursor | None, me: Sender, newest_lsn: int) -> bool:
    """Whether a reader has read further in my log than I have written: I was set back."""
    return cursor is not None and cursor.log == me.log and cursor.lsn > newest_lsn


class Told(NamedTuple):
    """A version vector, and the digest that names it."""

    digest: bytes
    vv: VersionVector


@dataclass(frozen=True, slots=True)
class PeerView:
    """What I know of another agent's process; volatile, and void when it restarts.

    agent: whose process it is.
    boot: the process it is true of.
    vv, digest: its version vector as it last told it. It has this and more.
    acked: its cursor on my log.
    told: my vector that it has, as its last reply to me showed.
    offered: my vector in my last reply to it.
    """

    agent: str = ""
    boot: Boot | None = None
    vv: VersionVector | None = None
    digest: bytes = b""
    acked: Cursor | None = None
    told: Told | None = None
    offered: Told | None = None


def met(view: PeerView, sender: Sender) -> PeerView:
    """The view after hearing from a sender: everything is forgotten if its process changed."""
    return view if view.boot == sender.boot else PeerView(sender.agent, sender.boot)


def heard_request(view: PeerView, request: Request) -> PeerView:
    """The view of the caller after its request."""
    return _heard_vector(met(view, request.sender), request)


def heard_reply(view: PeerView, request: Request, reply: Reply) -> PeerView:
    """The view of the answerer after its reply to `request`."""
    told = None
    if not reply.need_vv and request.whole is not None:
        told = Told(request.digest, request.whole)
    view = replace(met(view, reply.sender), acked=reply.cursor, told=told)
    return _heard_vector(view, reply)


def answered(view: PeerView, reply: Reply) -> PeerView:
    """The view of the caller after my reply to it."""
    return replace(view, offered=Told(reply.digest, reply.whole or {}))


def _heard_vector(view: PeerView, message: Request | Reply) -> PeerView:
    vv = vector_of(message, view)
    return view if vv is None else replace(view, vv=vv, digest=message.digest)


def vector_of(message: Request | Reply, view: PeerView) -> VersionVector | None:
    """The sender's version vector; None where its message builds on one that is not known here."""
    if view.boot == message.sender.boot and view.digest == message.digest:
        return view.vv
    if message.vv is None:
        return None
    if not message.base:
        return message.vv
    if view.boot != message.sender.boot or view.digest != message.base or view.vv is None:
        return None
    vv = vv_join(view.vv, message.vv)
    return vv if vv_digest(vv) == message.digest else None


def _news(vv: VersionVector, told: Told | None) -> tuple[bytes, VersionVector]:
    """(base, what of a vector to send) to an agent that was told `told`."""
    if told is None or not told.digest:
        return b"", vv
    return told.digest, {inc: seq for inc, seq in vv.items() if told.vv.get(inc) != seq}


def build_request(
    snapshot: LogSnapshot,
    me: Sender,
    peer_log: int,
    view: PeerView,
    times: Times,
    limits: ChunkLimits,
) -> Request:
    """My request to a peer of which I know `view`; `peer_log` is its log, 0 while unknown."""
    vv = snapshot.vv
    digest = vv_digest(vv)
    push = None
    if view.vv is not None:
        start = view.acked.lsn if view.acked is not None and view.acked.log == me.log else 0
        push = build_chunk(snapshot, me.log, start, view.vv, times, limits)
    base, news = _news(vv, view.told)
    read_to = snapshot.read_to(peer_log)
    return Request(
        sender=me,
        digest=digest,
        vv=None if base == digest else news,
        known=view.digest,
        cursor=None if read_to is None else Cursor(peer_log, read_to),
        push=push,
        to_boot=view.boot,
        root=snapshot.root,
        base=b"" if base == digest else base,
        whole=vv,
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
    behind: Mapping[str, int] | None = None,
) -> Reply:
    """My answer to a request; `view` is mine of the caller, after `heard_request`."""
    vv = snapshot.vv
    digest = vv_digest(vv)
    told = view.offered if view.offered and view.offered.digest == request.known else view.told
    if told is None or told.digest != request.known:
        told = None
    base, news = _news(vv, told)
    read_to = snapshot.read_to(request.sender.log)
    reply = Reply(
        sender=me,
        digest=digest,
        vv=None if request.known == digest else news,
        chunk=None,
        cursor=None if read_to is None else Cursor(request.sender.log, read_to),
        now_ms=now_ms,
        root=snapshot.root,
        base=b"" if request.known == digest else base,
        whole=vv,
    )
    covered = vector_of(request, view)
    if covered is None:
        return replace(reply, need_vv=True)
    start = 0
    if request.cursor is not None and request.cursor.log == me.log:
        start = request.cursor.lsn
    chunk = build_chunk(snapshot, me.log, start, covered, times, limits)
    return replace(reply, chunk=chunk, behind=behind if chunk.head else None)


def diverged(request: Request, reply: Reply) -> bool:
    """Whether two states claim the same writes and yet differ: no exchange would mend that.

    It is no proof: rows whose vector was not claimed yet (a transfer that was cut) differ as well.
    """
    roots = request.root, reply.root
    return request.digest == reply.digest and roots[0] != roots[1] and 0 not in roots
