"""The wire of an exchange: its messages as the body of a call, and as the payload of a reply.

    request = [digest, base, vv, known, cursor, push, to_boot, root]
    reply   = [sender, digest, base, vv, chunk, cursor, now_ms, need_vv, root, behind]
    vv      = [inc, seq, inc, seq, ...]: with a base only what is new since it
    cursor  = [log, lsn]     to_boot = [number, nonce]
    times   = [agent, ms, agent, ms, ...]            behind = [agent, rows, agent, rows, ...]
    chunk   = [start, to, head, spaces, incs, rows, times]      (its log is the sender's)
              | newest     at the end, where there is more
    row     = [index of space, member, slot, major, minor, body, index of inc, seq]

What can't be understood but is well formed (an unknown kind of cell, an unreadable space or body)
is no error: it is stored and forwarded (rule D).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agent.crdt.cell import Row
from agent.crdt.slot import COUNTER_KINDS
from agent.exchange import Chunk, Cursor, Reply, Request, Times, VersionVector
from agent.gossip.frame import (
    Call,
    Frame,
    array,
    boolean,
    integer,
    octets,
    pack,
    pack_sender,
    read_boot,
    read_sender,
    refuse,
    text,
    unpack,
)
from agent.limits import (
    BODY_BYTES_MAX,
    COUNTER_SLOT_MAX,
    INT64_MAX,
    INT64_MIN,
    MEMBER_BYTES_MAX,
    SLOT_BYTES_MAX,
    SPACE_BYTES_MAX,
)

INCARNATIONS_MAX = 32_768  # in one version vector


def pack_request(request: Request) -> list[Any]:
    """The body of an exchange's call."""
    return [
        request.digest,
        request.base,
        None if request.vv is None else _pairs(request.vv),
        request.known,
        request.cursor,
        None if request.push is None else _chunk(request.push),
        request.to_boot,
        request.root,
    ]


def read_request(call: Call) -> Request:
    """The request in an exchange's call, checked whole.

    Raises:
        ExchangeRefused: malformed or too_large; the field is named.
    """
    digest, base, vv, known, cursor, push, to_boot, root = array(call.body, "request", 8)
    return Request(
        sender=call.sender,
        digest=octets(digest, "digest", 8),
        base=octets(base, "base", 8),
        vv=None if vv is None else _read_vv(vv),
        known=octets(known, "known", 8),
        cursor=_read_cursor(cursor),
        push=None if push is None else _read_chunk(push, call.sender.log),
        to_boot=None if to_boot is None else read_boot(array(to_boot, "to_boot", 2)),
        root=_signed(root, "root"),
    )


def pack_reply(reply: Reply) -> bytes:
    """The payload of a reply."""
    return pack(
        [
            pack_sender(reply.sender),
            reply.digest,
            reply.base,
            None if reply.vv is None else _pairs(reply.vv),
            None if reply.chunk is None else _chunk(reply.chunk),
            reply.cursor,
            reply.now_ms,
            reply.need_vv,
            reply.root,
            None if reply.behind is None else _pairs(reply.behind),
        ]
    )


def unpack_reply(parts: Frame) -> Reply:
    """The reply in a frame, checked whole.

    Raises:
        ExchangeRefused: malformed, truncated or too_large; the field is named.
    """
    fields = array(unpack(parts), "reply", 10)
    sender, digest, base, vv, chunk, cursor, now_ms, need_vv, root, behind = fields
    who = read_sender(sender)
    return Reply(
        sender=who,
        digest=octets(digest, "digest", 8),
        base=octets(base, "base", 8),
        vv=None if vv is None else _read_vv(vv),
        chunk=None if chunk is None else _read_chunk(chunk, who.log),
        cursor=_read_cursor(cursor),
        now_ms=integer(now_ms, "now_ms", INT64_MIN),
        need_vv=boolean(need_vv, "need_vv"),
        root=_signed(root, "root"),
        behind=None if behind is None else _read_times(behind),
    )


def _pairs(mapping: VersionVector | Times | Mapping[str, int]) -> list[Any]:
    return [part for pair in sorted(mapping.items()) for part in pair]


def _chunk(chunk: Chunk) -> list[Any]:
    spaces: dict[bytes, int] = {}
    incs: dict[int, int] = {}
    rows = [
        (
            spaces.setdefault(space, len(spaces)),
            member,
            slot,
            major,
            minor,
            body,
            incs.setdefault(inc, len(incs)),
            seq,
        )
        for space, member, slot, major, minor, body, inc, seq in chunk.rows
    ]
    times = None if chunk.times is None else _pairs(chunk.times)
    parts = [chunk.start, chunk.to, chunk.head, list(spaces), list(incs), rows, times]
    return [*parts, chunk.newest] if chunk.newest else parts


def _read_chunk(value: Any, log: int) -> Chunk:
    start, to, head, spaces, incs, rows, times = array(value, "chunk", 7)
    start = integer(start, "chunk.start", 0)
    for space in array(spaces, "chunk.spaces"):
        octets(space, "chunk.spaces", SPACE_BYTES_MAX)
    for inc in array(incs, "chunk.incs"):
        integer(inc, "chunk.incs", 1)
    return Chunk(
        log=log,
        start=start,
        to=integer(to, "chunk.to", start),
        head=boolean(head, "chunk.head"),
        rows=tuple([read_row(row, spaces, incs) for row in array(rows, "chunk.rows")]),
        times=None if times is None else _read_times(times),
        newest=integer(value[7], "chunk.newest", 0) if len(value) > 7 else 0,
    )


def read_row(value: Any, spaces: Sequence[bytes], incs: Sequence[int]) -> Row:
    """A row, checked. Its space and incarnation are places in these tables."""
    if type(value) is not tuple or len(value) < 8:
        refuse("malformed", "row: is not an array of 8")
    space, member, slot, major, minor, body, inc, seq = value[:8]
    if not (
        type(space) is type(major) is type(minor) is type(inc) is type(seq) is int
        and type(member) is type(slot) is type(body) is bytes
    ):
        refuse("malformed", "row: a field has the wrong type")
    if not (0 <= space < len(spaces) and 0 <= inc < len(incs)):
        refuse("malformed", "row: an index points outside its table")
    if len(member) > MEMBER_BYTES_MAX or len(body) > BODY_BYTES_MAX:
        refuse("too_large", f"row: member of {len(member)} or body of {len(body)} bytes")
    if not 0 < len(slot) <= SLOT_BYTES_MAX:
        refuse("malformed", f"row: slot of {len(slot)} bytes, 1 to {SLOT_BYTES_MAX} are needed")
    if not (INT64_MIN <= major <= INT64_MAX and INT64_MIN <= minor <= INT64_MAX):
        refuse("malformed", "row: major or minor is outside 64 bits")
    if not 0 < seq <= INT64_MAX:
        refuse("malformed", "row: seq is outside 1..2**63-1")
    if slot[0] in COUNTER_KINDS and not 0 <= major <= COUNTER_SLOT_MAX:
        refuse("malformed", f"row: a counter slot of {major}, at most {COUNTER_SLOT_MAX}")
    return Row(spaces[space], member, slot, major, minor, body, incs[inc], seq)


def _read_cursor(value: Any) -> Cursor | None:
    if value is None:
        return None
    log, lsn = array(value, "cursor", 2)
    return Cursor(integer(log, "cursor.log", 1), integer(lsn, "cursor.lsn", 0))


def _read_vv(value: Any) -> VersionVector:
    parts = array(value, "vv")
    if len(parts) % 2 or len(parts) > 2 * INCARNATIONS_MAX:
        refuse("malformed", f"vv: {len(parts)} parts, pairs of at most {INCARNATIONS_MAX}")
    for part in parts:
        integer(part, "vv", 1)
    return dict(zip(parts[::2], parts[1::2], strict=True))


def _read_times(value: Any) -> Times:
    parts = array(value, "times")
    if len(parts) % 2 or len(parts) > 2 * INCARNATIONS_MAX:
        refuse("malformed", f"times: {len(parts)} parts, pairs of at most {INCARNATIONS_MAX}")
    return {
        text(agent, "times"): integer(ms, "times", INT64_MIN)
        for agent, ms in zip(parts[::2], parts[1::2], strict=True)
    }


def _signed(value: Any, field: str) -> int:
    return integer(value, field, INT64_MIN)
