"""The wire: what an exchange's messages look like as bytes. Version 1, frozen by golden bytes.

    message = "TR" | version: 1 byte | flags: 1 byte (1 = zstd) | proof: 16 bytes | payload
    request = [ring, n, sender, digest, vv, known, cursor, push, to_boot]
    reply   = [sender, digest, vv, chunk, cursor, now_ms, need_vv]
    sender  = [agent, inc, log, boot number, boot nonce]        vv = [inc, seq, inc, seq, ...]
    cursor  = [log, lsn]     to_boot = [number, nonce]          times = [agent, ms, agent, ms, ...]
    chunk   = [start, to, head, spaces, incs, rows, times]      (its log is the sender's)
    row     = [index of space, member, slot, major, minor, body, index of inc, seq]

The payload is msgpack. Everything is checked before anything is used: a message is refused as a
whole, and never half applied. What can't be understood but is well formed (an unknown kind, an
unreadable space or body) is no error: it is stored and forwarded (rule D).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import msgpack
import zstandard

from agent.crdt.cell import Row
from agent.crdt.slot import Kind
from agent.errors import ExchangeRefused
from agent.exchange import Boot, Chunk, Cursor, Reply, Request, Sender, Times, VersionVector
from agent.limits import (
    AGENT_NAME_BYTES_MAX,
    BODY_BYTES_MAX,
    COUNTER_SLOT_MAX,
    INT64_MAX,
    INT64_MIN,
    MEMBER_BYTES_MAX,
    PEER_MESSAGE_BYTES_MAX,
    SLOT_BYTES_MAX,
    SPACE_BYTES_MAX,
)

MAGIC = b"TR"
VERSION = 1
FLAG_ZSTD = 1
PROOF_BYTES = 16
HEADER_BYTES = len(MAGIC) + 2 + PROOF_BYTES
COMPRESS_FROM_BYTES = 200  # below, zstd's own frame costs more than it saves
ZSTD_LEVEL = 1
INCARNATIONS_MAX = 4096  # in one version vector
ARRAY_LENGTH_MAX = 65_536  # of any array; bounds what a nested header can make msgpack allocate
_COUNTER_KINDS = (Kind.UP, Kind.DOWN)


@dataclass(frozen=True, slots=True)
class Envelope:
    """A request with what only its proof needs: the ring's name, and a number that rises."""

    ring: str
    number: int
    request: Request


@dataclass(frozen=True, slots=True)
class Frame:
    """A message taken apart. `head` is the version and the flags, as the proof covers them."""

    head: bytes
    proof: bytes
    payload: bytes


def frame(payload: bytes) -> tuple[bytes, bytes]:
    """(head, payload as sent): compressed where that pays."""
    flags = 0
    if len(payload) >= COMPRESS_FROM_BYTES:
        packed = zstandard.ZstdCompressor(level=ZSTD_LEVEL).compress(payload)
        if len(packed) < len(payload):
            payload, flags = packed, FLAG_ZSTD
    return MAGIC + bytes([VERSION, flags]), payload


def unframe(message: bytes) -> Frame:
    """Take a message apart; its payload is neither proven nor unpacked yet.

    Raises:
        ExchangeRefused: truncated, too_large, malformed, or of an unknown wire version.
    """
    if len(message) > PEER_MESSAGE_BYTES_MAX:
        _refuse("too_large", f"{len(message)} bytes, at most {PEER_MESSAGE_BYTES_MAX}")
    if len(message) < HEADER_BYTES:
        _refuse("truncated", f"{len(message)} bytes, a message has at least {HEADER_BYTES}")
    if message[:2] != MAGIC:
        _refuse("malformed", "does not begin as a message between agents")
    if message[2] != VERSION:
        _refuse(
            "wire_version",
            f"version {message[2]} of the wire, this agent speaks {VERSION}; upgrade the older one",
        )
    if message[3] & ~FLAG_ZSTD:
        _refuse("malformed", f"unknown flags {message[3]:#x}")
    return Frame(message[:4], message[4:HEADER_BYTES], message[HEADER_BYTES:])


def _unpack(parts: Frame) -> Any:
    """The msgpack value in a frame, with bounds on sizes before anything is allocated."""
    payload = parts.payload
    if parts.head[3] & FLAG_ZSTD:
        try:
            size = zstandard.get_frame_parameters(payload).content_size
            if not 0 < size <= PEER_MESSAGE_BYTES_MAX:
                _refuse("too_large", f"{size} bytes unpacked, at most {PEER_MESSAGE_BYTES_MAX}")
            payload = zstandard.ZstdDecompressor().decompress(payload, max_output_size=size)
        except zstandard.ZstdError as error:
            raise ExchangeRefused("truncated", f"can't be decompressed: {error}") from error
    try:
        return msgpack.unpackb(
            payload, use_list=False, max_array_len=ARRAY_LENGTH_MAX, max_map_len=0, max_ext_len=0
        )
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException) as error:
        raise ExchangeRefused("malformed", f"is not msgpack: {error}") from error


def pack_request(envelope: Envelope) -> bytes:
    """The payload of a request."""
    request = envelope.request
    return _pack(
        [
            envelope.ring,
            envelope.number,
            _sender(request.sender),
            request.digest,
            None if request.vv is None else _pairs(request.vv),
            request.known,
            request.cursor,
            None if request.push is None else _chunk(request.push),
            request.to_boot,
        ]
    )


def unpack_request(parts: Frame) -> Envelope:
    """The request in a frame, checked whole.

    Raises:
        ExchangeRefused: malformed, truncated or too_large; the field is named.
    """
    fields = _array(_unpack(parts), "request", 9)
    ring, number, sender, digest, vv, known, cursor, push, to_boot = fields
    who = _read_sender(sender)
    return Envelope(
        ring=_text(ring, "ring"),
        number=_integer(number, "n", 0),
        request=Request(
            sender=who,
            digest=_bytes(digest, "digest", 8),
            vv=None if vv is None else _read_vv(vv),
            known=_bytes(known, "known", 8),
            cursor=_read_cursor(cursor),
            push=None if push is None else _read_chunk(push, who.log),
            to_boot=None if to_boot is None else _read_boot(_array(to_boot, "to_boot", 2)),
        ),
    )


def pack_reply(reply: Reply) -> bytes:
    """The payload of a reply."""
    return _pack(
        [
            _sender(reply.sender),
            reply.digest,
            None if reply.vv is None else _pairs(reply.vv),
            None if reply.chunk is None else _chunk(reply.chunk),
            reply.cursor,
            reply.now_ms,
            reply.need_vv,
        ]
    )


def unpack_reply(parts: Frame) -> Reply:
    """The reply in a frame, checked whole.

    Raises:
        ExchangeRefused: malformed, truncated or too_large; the field is named.
    """
    fields = _array(_unpack(parts), "reply", 7)
    sender, digest, vv, chunk, cursor, now_ms, need_vv = fields
    who = _read_sender(sender)
    return Reply(
        sender=who,
        digest=_bytes(digest, "digest", 8),
        vv=None if vv is None else _read_vv(vv),
        chunk=None if chunk is None else _read_chunk(chunk, who.log),
        cursor=_read_cursor(cursor),
        now_ms=_integer(now_ms, "now_ms", INT64_MIN),
        need_vv=_boolean(need_vv, "need_vv"),
    )


def _pack(value: Any) -> bytes:
    packed: bytes = msgpack.packb(value)
    return packed


def _sender(sender: Sender) -> list[Any]:
    return [sender.agent, sender.inc, sender.log, *sender.boot]


def _pairs(mapping: VersionVector | Times) -> list[Any]:
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
    return [chunk.start, chunk.to, chunk.head, list(spaces), list(incs), rows, times]


def _read_chunk(value: Any, log: int) -> Chunk:
    start, to, head, spaces, incs, rows, times = _array(value, "chunk", 7)
    start = _integer(start, "chunk.start", 0)
    for space in _array(spaces, "chunk.spaces"):
        _bytes(space, "chunk.spaces", SPACE_BYTES_MAX)
    for inc in _array(incs, "chunk.incs"):
        _integer(inc, "chunk.incs", 1)
    return Chunk(
        log=log,
        start=start,
        to=_integer(to, "chunk.to", start),
        head=_boolean(head, "chunk.head"),
        rows=tuple([_read_row(row, spaces, incs) for row in _array(rows, "chunk.rows")]),
        times=None if times is None else _read_times(times),
    )


def _read_row(value: Any, spaces: Sequence[bytes], incs: Sequence[int]) -> Row:
    if type(value) is not tuple or len(value) != 8:
        _refuse("malformed", "row: is not an array of 8")
    space, member, slot, major, minor, body, inc, seq = value
    if not (
        type(space) is type(major) is type(minor) is type(inc) is type(seq) is int
        and type(member) is type(slot) is type(body) is bytes
    ):
        _refuse("malformed", "row: a field has the wrong type")
    if not (0 <= space < len(spaces) and 0 <= inc < len(incs)):
        _refuse("malformed", "row: an index points outside its table")
    if len(member) > MEMBER_BYTES_MAX or len(body) > BODY_BYTES_MAX:
        _refuse("too_large", f"row: member of {len(member)} or body of {len(body)} bytes")
    if not 0 < len(slot) <= SLOT_BYTES_MAX:
        _refuse("malformed", f"row: slot of {len(slot)} bytes, 1 to {SLOT_BYTES_MAX} are needed")
    if not (INT64_MIN <= major <= INT64_MAX and INT64_MIN <= minor <= INT64_MAX):
        _refuse("malformed", "row: major or minor is outside 64 bits")
    if not 0 < seq <= INT64_MAX:
        _refuse("malformed", "row: seq is outside 1..2**63-1")
    if slot[0] in _COUNTER_KINDS and not 0 <= major <= COUNTER_SLOT_MAX:
        _refuse("malformed", f"row: a counter slot of {major}, at most {COUNTER_SLOT_MAX}")
    return Row(spaces[space], member, slot, major, minor, body, incs[inc], seq)


def _read_sender(value: Any) -> Sender:
    agent, inc, log, number, nonce = _array(value, "sender", 5)
    return Sender(
        agent=_text(agent, "sender.agent"),
        inc=_integer(inc, "sender.inc", 1),
        log=_integer(log, "sender.log", 1),
        boot=_read_boot((number, nonce)),
    )


def _read_boot(value: Sequence[Any]) -> Boot:
    return Boot(_integer(value[0], "boot number", 0), _integer(value[1], "boot nonce", 0))


def _read_cursor(value: Any) -> Cursor | None:
    if value is None:
        return None
    log, lsn = _array(value, "cursor", 2)
    return Cursor(_integer(log, "cursor.log", 1), _integer(lsn, "cursor.lsn", 0))


def _read_vv(value: Any) -> VersionVector:
    parts = _array(value, "vv")
    if len(parts) % 2 or len(parts) > 2 * INCARNATIONS_MAX:
        _refuse("malformed", f"vv: {len(parts)} parts, pairs of at most {INCARNATIONS_MAX}")
    for part in parts:
        _integer(part, "vv", 1)
    return dict(zip(parts[::2], parts[1::2], strict=True))


def _read_times(value: Any) -> Times:
    parts = _array(value, "times")
    if len(parts) % 2 or len(parts) > 2 * INCARNATIONS_MAX:
        _refuse("malformed", f"times: {len(parts)} parts, pairs of at most {INCARNATIONS_MAX}")
    return {
        _text(agent, "times"): _integer(ms, "times", INT64_MIN)
        for agent, ms in zip(parts[::2], parts[1::2], strict=True)
    }


def _array(value: Any, field: str, length: int | None = None) -> tuple[Any, ...]:
    if type(value) is not tuple or (length is not None and len(value) != length):
        _refuse("malformed", f"{field}: is not an array" + (f" of {length}" if length else ""))
    return value


def _integer(value: Any, field: str, least: int) -> int:
    if type(value) is not int or not least <= value <= INT64_MAX:
        _refuse("malformed", f"{field}: is not an integer from {least} to 2**63-1")
    return value


def _boolean(value: Any, field: str) -> bool:
    if type(value) is not bool:
        _refuse("malformed", f"{field}: is not a boolean")
    return value


def _bytes(value: Any, field: str, length_max: int) -> bytes:
    if type(value) is not bytes or len(value) > length_max:
        _refuse("malformed", f"{field}: is not at most {length_max} bytes")
    return value


def _text(value: Any, field: str) -> str:
    if (
        type(value) is not str
        or not 0 < len(value.encode(errors="replace")) <= AGENT_NAME_BYTES_MAX
    ):
        _refuse("malformed", f"{field}: is not text of 1 to {AGENT_NAME_BYTES_MAX} bytes")
    return value


def _refuse(reason: str, detail: str) -> NoReturn:
    raise ExchangeRefused(reason, detail)
