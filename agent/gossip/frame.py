"""Frames: what every message between agents looks like as bytes. Version 2, frozen by golden bytes.

    message = "TR" | version: 1 byte | flags: 1 byte | proof: 16 bytes | payload
    flags   = 1: the payload is compressed (zstd); 2: the answer is a refusal
    call    = [kind, ring, n, sender, body]          the body is the kind's own
    refusal = [code, detail, agent, inc, url]        whom it is about, where that is known
    sender  = [agent, inc, log, boot number, boot nonce]

The payload is msgpack. Everything is checked before anything is used: a message is refused as a
whole, and never half applied. An array may have more parts than this version knows: they are passed
over, so that newer agents can say more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NoReturn

import msgpack
import zstandard

from agent.errors import ExchangeRefused
from agent.exchange import Boot, Sender
from agent.limits import AGENT_NAME_BYTES_MAX, INT64_MAX, PEER_MESSAGE_BYTES_MAX

MAGIC = b"TR"
VERSION = 2
FLAG_ZSTD = 1
FLAG_REFUSED = 2
PROOF_BYTES = 16
HEADER_BYTES = len(MAGIC) + 2 + PROOF_BYTES
COMPRESS_FROM_BYTES = 200  # below, zstd's own frame costs more than it saves
ZSTD_LEVEL = 1
ARRAY_LENGTH_MAX = 65_536  # of any array; bounds what a nested header can make msgpack allocate
DETAIL_BYTES_MAX = 2_000


class Kind(IntEnum):
    """What a call asks for."""

    EXCHANGE = 1  # state for state: agent/gossip/wire.py
    CONFIRM = 2  # what does the ring know of me? agent/gossip/calls.py
    RANGE = 3  # are these cells the same with you?
    SNAPSHOT = 4  # a copy of everything, to begin with
    PART = 5  # the bytes of such a copy, from anywhere
    ROSTER = 6  # who is in the ring? agent/gossip/roster.py
    FINAL = 7  # the rows of a certified final: agent/gossip/finals.py


@dataclass(frozen=True, slots=True)
class Call:
    """One agent's call of another. `number` rises with every call of a process."""

    kind: Kind
    ring: str
    number: int
    sender: Sender
    body: tuple[Any, ...] | list[Any]


@dataclass(frozen=True, slots=True)
class Refusal:
    """A proven refusal. `agent`, `inc` and `url` tell whom it is about, where that is known."""

    code: str
    detail: str
    agent: str = ""
    inc: int = 0
    url: str = ""


@dataclass(frozen=True, slots=True)
class Frame:
    """A message taken apart. `head` is the version and the flags, as the proof covers them."""

    head: bytes
    proof: bytes
    payload: bytes

    @property
    def refused(self) -> bool:
        """Whether the payload is a refusal."""
        return bool(self.head[3] & FLAG_REFUSED)


def frame(payload: bytes, flags: int = 0) -> tuple[bytes, bytes]:
    """(head, payload as sent): compressed where that pays."""
    if len(payload) >= COMPRESS_FROM_BYTES:
        packed = zstandard.ZstdCompressor(level=ZSTD_LEVEL).compress(payload)
        if len(packed) < len(payload):
            payload, flags = packed, flags | FLAG_ZSTD
    return MAGIC + bytes([VERSION, flags]), payload


def unframe(message: bytes) -> Frame:
    """Take a message apart; its payload is neither proven nor unpacked yet.

    Raises:
        ExchangeRefused: truncated, too_large, malformed, or of an unknown wire version.
    """
    if len(message) > PEER_MESSAGE_BYTES_MAX:
        refuse("too_large", f"{len(message)} bytes, at most {PEER_MESSAGE_BYTES_MAX}")
    if len(message) < HEADER_BYTES:
        refuse("truncated", f"{len(message)} bytes, a message has at least {HEADER_BYTES}")
    if message[:2] != MAGIC:
        refuse("malformed", "does not begin as a message between agents")
    if message[2] != VERSION:
        refuse(
            "wire_version",
            f"version {message[2]} of the wire, this agent speaks {VERSION}; upgrade the older one",
        )
    if message[3] & ~(FLAG_ZSTD | FLAG_REFUSED):
        refuse("malformed", f"unknown flags {message[3]:#x}")
    return Frame(message[:4], message[4:HEADER_BYTES], message[HEADER_BYTES:])


def unpack(parts: Frame) -> Any:
    """The msgpack value in a frame, with bounds on sizes before anything is allocated.

    Raises:
        ExchangeRefused: too_large, truncated or malformed.
    """
    payload = parts.payload
    if parts.head[3] & FLAG_ZSTD:
        try:
            size = zstandard.get_frame_parameters(payload).content_size
            if not 0 < size <= PEER_MESSAGE_BYTES_MAX:
                refuse("too_large", f"{size} bytes unpacked, at most {PEER_MESSAGE_BYTES_MAX}")
            payload = zstandard.ZstdDecompressor().decompress(payload, max_output_size=size)
        except zstandard.ZstdError as error:
            raise ExchangeRefused("truncated", f"can't be decompressed: {error}") from error
    try:
        return msgpack.unpackb(
            payload, use_list=False, max_array_len=ARRAY_LENGTH_MAX, max_map_len=0, max_ext_len=0
        )
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException) as error:
        raise ExchangeRefused("malformed", f"is not msgpack: {error}") from error


def pack_call(call: Call) -> bytes:
    """The payload of a call."""
    return pack([int(call.kind), call.ring, call.number, pack_sender(call.sender), call.body])


def unpack_call(parts: Frame) -> Call:
    """The call in a frame; its body is not checked yet.

    Raises:
        ExchangeRefused: malformed, truncated or too_large; the field is named.
    """
    kind, ring, number, sender, body = array(unpack(parts), "call", 5)
    if kind not in tuple(Kind):
        refuse("malformed", f"kind: {kind!r} is unknown to this version; upgrade the older agent")
    return Call(
        Kind(kind),
        text(ring, "ring"),
        integer(number, "n", 0),
        read_sender(sender),
        array(body, "body"),
    )


def pack_refusal(refusal: Refusal) -> bytes:
    """The payload of a refusal."""
    return pack([refusal.code, refusal.detail, refusal.agent, refusal.inc, refusal.url])


def unpack_refusal(parts: Frame) -> Refusal:
    """The refusal in a frame.

    Raises:
        ExchangeRefused: malformed, truncated or too_large.
    """
    code, detail, agent, inc, url = array(unpack(parts), "refusal", 5)
    for part in (code, detail, agent, url):
        if type(part) is not str or len(part) > DETAIL_BYTES_MAX:
            refuse("malformed", "refusal: a part is not a short text")
    return Refusal(code, detail, agent, integer(inc, "refusal.inc", 0), url)


def pack(value: Any) -> bytes:
    """A value as msgpack."""
    packed: bytes = msgpack.packb(value)
    return packed


def pack_sender(sender: Sender) -> list[Any]:
    """A sender as it is sent."""
    return [sender.agent, sender.inc, sender.log, *sender.boot]


def read_sender(value: Any) -> Sender:
    """A sender, checked."""
    agent, inc, log, number, nonce = array(value, "sender", 5)
    return Sender(
        agent=text(agent, "sender.agent"),
        inc=integer(inc, "sender.inc", 1),
        log=integer(log, "sender.log", 1),
        boot=read_boot((number, nonce)),
    )


def read_boot(value: Sequence[Any]) -> Boot:
    """A process, checked."""
    return Boot(integer(value[0], "boot number", 0), integer(value[1], "boot nonce", 0))


def array(value: Any, field: str, length: int | None = None) -> tuple[Any, ...]:
    """An array; of at least `length` parts where that is given: those of newer versions are cut."""
    if type(value) is not tuple or (length is not None and len(value) < length):
        refuse("malformed", f"{field}: is not an array" + (f" of {length}" if length else ""))
    return value if length is None else value[:length]


def integer(value: Any, field: str, least: int) -> int:
    """An integer from `least` to 2**63-1."""
    if type(value) is not int or not least <= value <= INT64_MAX:
        refuse("malformed", f"{field}: is not an integer from {least} to 2**63-1")
    return value


def boolean(value: Any, field: str) -> bool:
    """A boolean."""
    if type(value) is not bool:
        refuse("malformed", f"{field}: is not a boolean")
    return value


def octets(value: Any, field: str, length_max: int) -> bytes:
    """Bytes of a bounded length."""
    if type(value) is not bytes or len(value) > length_max:
        refuse("malformed", f"{field}: is not at most {length_max} bytes")
    return value


def text(value: Any, field: str) -> str:
    """A short text that is not empty."""
    if (
        type(value) is not str
        or not 0 < len(value.encode(errors="replace")) <= AGENT_NAME_BYTES_MAX
    ):
        refuse("malformed", f"{field}: is not text of 1 to {AGENT_NAME_BYTES_MAX} bytes")
    return value


def refuse(reason: str, detail: str) -> NoReturn:
    """Refuse the message that is being read."""
    raise ExchangeRefused(reason, detail)
