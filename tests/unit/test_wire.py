"""The wire: frozen bytes, round trips, and the refusal of everything that is not well formed."""

from __future__ import annotations

import dataclasses
import json
from contextlib import suppress
from pathlib import Path

import msgpack
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from agent.crdt.cell import Row
from agent.errors import ExchangeRefused
from agent.exchange import Boot, Chunk, Cursor, Reply, Request, Sender
from agent.gossip import proof, wire
from agent.limits import COUNTER_SLOT_MAX, PEER_MESSAGE_BYTES_MAX

GOLDEN = Path(__file__).parent.parent / "golden" / "wire-v1.json"
SECRET = b"a secret of the golden ring"
ME = Sender("eu-1", 0x0123456789ABCDEF, 0x1122334455667788, Boot(3, 0x7766554433221100))
ROWS = (
    Row(b"\x06spaces", b"ann", b"+" + bytes(8), 12, 1_700_000_000_000, b"", 5, 7),
    Row(b"\x06spaces", "zoë".encode(), b"M", -900, -1_700_000_000_001, b"\xa1x", 5, 7),
    Row(b"\x05other", b"ann", b"?from a newer version", -(2**63), 2**63 - 1, b"\x00", 6, 2**63 - 1),
)
CHUNK = Chunk(ME.log, 10, 13, True, ROWS, {"eu-1": 1_700_000_000_500, "us": 1_699_999_999_000})
REQUEST = Request(
    sender=ME,
    digest=b"12345678",
    vv={5: 7, 6: 2**63 - 1},
    known=b"",
    cursor=Cursor(0x99, 17),
    push=CHUNK,
    to_boot=Boot(1, 2),
)
BARE_REQUEST = Request(ME, b"12345678", None, b"87654321", None)
REPLY = Reply(ME, b"12345678", {5: 7}, CHUNK, Cursor(0x99, 17), 1_700_000_000_600)
NEED_VV = Reply(ME, b"12345678", None, None, None, 0, need_vv=True)
PLAIN = {
    "request": wire.pack_request(wire.Envelope("demo", 42, REQUEST)),
    "bare request": wire.pack_request(wire.Envelope("demo", 43, BARE_REQUEST)),
    "reply": wire.pack_reply(REPLY),
    "need_vv": wire.pack_reply(NEED_VV),
}


def framed(payload: bytes) -> wire.Frame:
    return wire.unframe(wire.MAGIC + bytes([wire.VERSION, 0]) + bytes(16) + payload)


def test_golden_bytes() -> None:
    """Bytes of version 1 never change, and are read for ever."""
    golden = json.loads(GOLDEN.read_text())
    assert {name: payload.hex() for name, payload in PLAIN.items()} == golden["payloads"]
    sealed = proof.seal(SECRET, proof.request_context(0x55), PLAIN["bare request"])
    assert sealed.hex() == golden["sealed bare request"]
    answer = proof.seal(SECRET, proof.reply_context(sealed[4:20]), PLAIN["need_vv"])
    assert answer.hex() == golden["sealed need_vv"]


def test_golden_bytes_are_read() -> None:
    golden = json.loads(GOLDEN.read_text())["payloads"]
    read = {name: framed(bytes.fromhex(payload)) for name, payload in golden.items()}
    assert wire.unpack_request(read["request"]) == wire.Envelope("demo", 42, REQUEST)
    assert wire.unpack_request(read["bare request"]) == wire.Envelope("demo", 43, BARE_REQUEST)
    assert wire.unpack_reply(read["reply"]) == REPLY
    assert wire.unpack_reply(read["need_vv"]) == NEED_VV


def test_large_payloads_travel_compressed() -> None:
    rows = tuple(ROWS[0]._replace(member=b"member-%d" % i, major=i) for i in range(1000))
    chunk = dataclasses.replace(CHUNK, rows=rows)
    payload = wire.pack_reply(dataclasses.replace(REPLY, chunk=chunk))
    message = proof.seal(SECRET, b"", payload)
    assert len(message) < len(payload) / 2
    frame = wire.unframe(message)
    proof.check((SECRET,), b"", frame)
    reply = wire.unpack_reply(frame)
    assert reply.chunk is not None
    assert reply.chunk.rows == rows


@pytest.mark.parametrize("name", list(PLAIN))
def test_every_truncation_is_refused(name: str) -> None:
    unpack = wire.unpack_request if "request" in name else wire.unpack_reply
    for length in range(len(PLAIN[name])):
        with pytest.raises(ExchangeRefused):
            unpack(framed(PLAIN[name][:length]))


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_refused_not_crashed_on(data: bytes) -> None:
    for read in (
        lambda: wire.unpack_request(framed(data)),
        lambda: wire.unpack_reply(framed(data)),
        lambda: wire.unpack_reply(wire.unframe(data)),
    ):
        with pytest.raises(ExchangeRefused):
            read()


@given(st.data())
def test_one_changed_byte_is_a_message_or_a_refusal(data: st.DataObject) -> None:
    payload = bytearray(PLAIN["request"])
    at = data.draw(st.integers(0, len(payload) - 1))
    payload[at] = data.draw(st.integers(0, 255))
    with suppress(ExchangeRefused):
        wire.unpack_request(framed(bytes(payload)))


def rows_payload(row: object, spaces: object = (b"s",), incs: object = (5,)) -> bytes:
    chunk = [0, 1, False, spaces, incs, [row], None]
    sender = [ME.agent, ME.inc, ME.log, *ME.boot]
    packed: bytes = msgpack.packb([sender, b"12345678", None, chunk, None, 0, False])
    return packed


GOOD = [0, b"m", b"M", 1, 2, b"", 0, 3]


@pytest.mark.parametrize(
    ("at", "value"),
    [
        (0, 1),
        (0, -1),
        (0, "0"),
        (1, "m"),
        (1, b"m" * 257),
        (2, b""),
        (2, b"M" * 513),
        (3, 2**63),
        (3, 1.0),
        (3, True),
        (4, -(2**63) - 1),
        (5, b"x" * 1025),
        (5, None),
        (6, 1),
        (7, 0),
        (7, -3),
    ],
)
def test_a_row_outside_the_limits_is_refused(at: int, value: object) -> None:
    assert wire.unpack_reply(framed(rows_payload(GOOD))).chunk is not None
    bad = [*GOOD[:at], value, *GOOD[at + 1 :]]
    try:
        payload = rows_payload(bad)
    except OverflowError:
        return  # msgpack itself can't carry it
    with pytest.raises(ExchangeRefused):
        wire.unpack_reply(framed(payload))


def test_a_counter_slot_beyond_its_limit_is_refused() -> None:
    for major in (-1, COUNTER_SLOT_MAX + 1):
        with pytest.raises(ExchangeRefused, match="counter slot"):
            wire.unpack_reply(framed(rows_payload([0, b"m", b"+" + bytes(8), major, 0, b"", 0, 1])))


def test_unknown_kinds_and_unreadable_spaces_pass() -> None:
    row = [0, b"m", b"\xf7anything", 1, 2, b"\xff", 0, 3]
    reply = wire.unpack_reply(framed(rows_payload(row, spaces=(b"\xff\xff",))))
    assert reply.chunk is not None
    assert reply.chunk.rows[0].slot == b"\xf7anything"


def test_bombs_are_refused_before_they_are_unpacked() -> None:
    bomb = zstandard.ZstdCompressor().compress(bytes(200 * 2**20))
    head = wire.MAGIC + bytes([wire.VERSION, wire.FLAG_ZSTD]) + bytes(16)
    with pytest.raises(ExchangeRefused, match="too_large"):
        wire.unpack_reply(wire.unframe(head + bomb))
    unknown_size = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(10_000))
    with pytest.raises(ExchangeRefused, match="too_large"):
        wire.unpack_reply(wire.unframe(head + unknown_size))
    for header in (b"\xdd\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"\xdb\xff\xff\xff\xff"):
        with pytest.raises(ExchangeRefused):
            wire.unpack_reply(framed(header))
    with pytest.raises(ExchangeRefused):
        wire.unpack_reply(framed(b"\x91" * 100_000))
    with pytest.raises(ExchangeRefused, match="too_large"):
        wire.unframe(bytes(PEER_MESSAGE_BYTES_MAX + 1))


def test_other_versions_and_flags_are_refused_by_name() -> None:
    message = proof.seal(SECRET, b"", PLAIN["need_vv"])
    with pytest.raises(ExchangeRefused, match="version 2 of the wire, this agent speaks 1"):
        wire.unframe(message[:2] + b"\x02" + message[3:])
    with pytest.raises(ExchangeRefused, match="flags"):
        wire.unframe(message[:3] + b"\x80" + message[4:])
    with pytest.raises(ExchangeRefused, match="malformed"):
        wire.unframe(b"XX" + message[2:])


def test_the_proof_covers_secret_context_head_and_payload() -> None:
    context = proof.request_context(7)
    message = proof.seal(SECRET, context, PLAIN["request"])
    assert SECRET not in message
    assert proof.check((b"another one", SECRET), context, wire.unframe(message)) == SECRET
    for secret, bound in ((b"other", context), (SECRET, proof.request_context(8))):
        with pytest.raises(ExchangeRefused, match="unauthorized"):
            proof.check((secret,), bound, wire.unframe(message))
    for at in range(3, len(message)):
        changed = bytearray(message)
        changed[at] ^= 1
        with pytest.raises(ExchangeRefused):
            proof.check((SECRET,), context, wire.unframe(bytes(changed)))


def test_callers_admit_each_number_once() -> None:
    callers = proof.Callers()
    first = Sender("eu", 5, 6, Boot(1, 100))
    callers.admit(first, 1)
    callers.admit(first, 3)
    for number in (3, 2, 1):
        with pytest.raises(ExchangeRefused, match="replay"):
            callers.admit(first, number)
    with pytest.raises(ExchangeRefused, match="fork"):
        callers.admit(dataclasses.replace(first, boot=Boot(1, 101)), 9)
    callers.admit(dataclasses.replace(first, boot=Boot(2, 102)), 1)
    with pytest.raises(ExchangeRefused, match="stale_boot"):
        callers.admit(first, 10)
    callers.admit(dataclasses.replace(first, inc=9), 1)
