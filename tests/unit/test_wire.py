"""The wire: frozen bytes, round trips, and the refusal of everything that is not well formed."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgpack
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from agent.crdt.cell import Row
from agent.crdt.document import Status
from agent.errors import ExchangeRefused
from agent.exchange import Boot, Chunk, Cursor, Reply, Request, Sender
from agent.gossip import calls, frame, proof, wire
from agent.gossip.frame import Call, Kind, Refusal
from agent.identity import Confirmation
from agent.limits import COUNTER_SLOT_MAX, PEER_MESSAGE_BYTES_MAX

GOLDEN = Path(__file__).parent.parent / "golden" / "wire-v2.json"
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
    root=-(2**63),
    base=b"basebase",
)
BARE_REQUEST = Request(ME, b"12345678", None, b"87654321", None)
REPLY = Reply(
    sender=ME,
    digest=b"12345678",
    vv={5: 7},
    chunk=CHUNK,
    cursor=Cursor(0x99, 17),
    now_ms=1_700_000_000_600,
    root=2**63 - 1,
    behind={"us": 12},
)
NEED_VV = Reply(ME, b"12345678", None, None, None, 0, need_vv=True)
REFUSAL = Refusal("fork", "two of them", "eu-1", 5, "http://eu:7401")
CONFIRMATION = Confirmation(7, Boot(3, 9), 55, 12, Status.LEAVING, "http://eu:7401")


def request_payload(number: int, request: Request) -> bytes:
    body = wire.pack_request(request)
    return frame.pack_call(Call(Kind.EXCHANGE, "demo", number, ME, body))


PLAIN = {
    "request": request_payload(42, REQUEST),
    "bare request": request_payload(43, BARE_REQUEST),
    "reply": wire.pack_reply(REPLY),
    "need_vv": wire.pack_reply(NEED_VV),
    "refusal": frame.pack_refusal(REFUSAL),
    "confirmation": calls.pack_confirmation(ME, CONFIRMATION),
}
UNPACK: dict[str, Callable[[frame.Frame], object]] = {
    "request": lambda parts: wire.read_request(frame.unpack_call(parts)),
    "bare request": lambda parts: wire.read_request(frame.unpack_call(parts)),
    "reply": wire.unpack_reply,
    "need_vv": wire.unpack_reply,
    "refusal": frame.unpack_refusal,
    "confirmation": calls.unpack_confirmation,
}


def framed(payload: bytes) -> frame.Frame:
    return frame.unframe(frame.MAGIC + bytes([frame.VERSION, 0]) + bytes(16) + payload)


def test_golden_bytes() -> None:
    """Bytes of version 2 never change, and are read for ever."""
    golden = json.loads(GOLDEN.read_text())
    assert {name: payload.hex() for name, payload in PLAIN.items()} == golden["payloads"]
    sealed = proof.seal(SECRET, proof.request_context(0x55), PLAIN["bare request"])
    assert sealed.hex() == golden["sealed bare request"]
    answer = proof.seal(SECRET, proof.reply_context(sealed[4:20]), PLAIN["need_vv"])
    assert answer.hex() == golden["sealed need_vv"]


def test_golden_bytes_are_read() -> None:
    golden = json.loads(GOLDEN.read_text())["payloads"]
    read = {name: UNPACK[name](framed(bytes.fromhex(payload))) for name, payload in golden.items()}
    assert read == {
        "request": REQUEST,
        "bare request": BARE_REQUEST,
        "reply": REPLY,
        "need_vv": NEED_VV,
        "refusal": REFUSAL,
        "confirmation": (ME, CONFIRMATION),
    }
    call = frame.unpack_call(framed(bytes.fromhex(golden["request"])))
    assert (call.kind, call.ring, call.number, call.sender) == (Kind.EXCHANGE, "demo", 42, ME)


def test_what_a_newer_version_adds_at_the_end_is_passed_over() -> None:
    for name, payload in PLAIN.items():
        parts = list(msgpack.unpackb(payload, use_list=False))
        if "request" in name:
            parts[4] = (*parts[4], "more")
        assert UNPACK[name](framed(msgpack.packb([*parts, {}]))) == UNPACK[name](framed(payload))


def test_large_payloads_travel_compressed() -> None:
    rows = tuple(ROWS[0]._replace(member=b"member-%d" % i, major=i) for i in range(1000))
    chunk = dataclasses.replace(CHUNK, rows=rows)
    payload = wire.pack_reply(dataclasses.replace(REPLY, chunk=chunk))
    message = proof.seal(SECRET, b"", payload)
    assert len(message) < len(payload) / 2
    parts = frame.unframe(message)
    proof.check((SECRET,), b"", parts)
    reply = wire.unpack_reply(parts)
    assert reply.chunk is not None
    assert reply.chunk.rows == rows


@pytest.mark.parametrize("name", list(PLAIN))
def test_every_truncation_is_refused(name: str) -> None:
    for length in range(len(PLAIN[name])):
        with pytest.raises(ExchangeRefused):
            UNPACK[name](framed(PLAIN[name][:length]))


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_refused_not_crashed_on(data: bytes) -> None:
    for unpack in UNPACK.values():
        with pytest.raises(ExchangeRefused):
            unpack(framed(data))
    with pytest.raises(ExchangeRefused):
        frame.unframe(data)


@given(st.data())
def test_one_changed_byte_is_a_message_or_a_refusal(data: st.DataObject) -> None:
    payload = bytearray(PLAIN["request"])
    at = data.draw(st.integers(0, len(payload) - 1))
    payload[at] = data.draw(st.integers(0, 255))
    with suppress(ExchangeRefused):
        UNPACK["request"](framed(bytes(payload)))


def rows_payload(row: object, spaces: object = (b"s",), incs: object = (5,)) -> bytes:
    chunk = [0, 1, False, spaces, incs, [row], None]
    sender = [ME.agent, ME.inc, ME.log, *ME.boot]
    packed: bytes = msgpack.packb([sender, b"12345678", b"", None, chunk, None, 0, False, 0, None])
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
    head = frame.MAGIC + bytes([frame.VERSION, frame.FLAG_ZSTD]) + bytes(16)
    with pytest.raises(ExchangeRefused, match="too_large"):
        wire.unpack_reply(frame.unframe(head + bomb))
    unknown_size = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(10_000))
    with pytest.raises(ExchangeRefused, match="too_large"):
        wire.unpack_reply(frame.unframe(head + unknown_size))
    for header in (b"\xdd\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"\xdb\xff\xff\xff\xff"):
        with pytest.raises(ExchangeRefused):
            wire.unpack_reply(framed(header))
    with pytest.raises(ExchangeRefused):
        wire.unpack_reply(framed(b"\x91" * 100_000))
    with pytest.raises(ExchangeRefused, match="too_large"):
        frame.unframe(bytes(PEER_MESSAGE_BYTES_MAX + 1))


def test_other_versions_and_flags_are_refused_by_name() -> None:
    message = proof.seal(SECRET, b"", PLAIN["need_vv"])
    with pytest.raises(ExchangeRefused, match="version 1 of the wire, this agent speaks 2"):
        frame.unframe(message[:2] + b"\x01" + message[3:])
    with pytest.raises(ExchangeRefused, match="flags"):
        frame.unframe(message[:3] + b"\x80" + message[4:])
    with pytest.raises(ExchangeRefused, match="malformed"):
        frame.unframe(b"XX" + message[2:])


def test_the_proof_covers_secret_context_head_and_payload() -> None:
    context = proof.request_context(7)
    message = proof.seal(SECRET, context, PLAIN["request"])
    assert SECRET not in message
    assert proof.check((b"another one", SECRET), context, frame.unframe(message)) == SECRET
    for secret, bound in ((b"other", context), (SECRET, proof.request_context(8))):
        with pytest.raises(ExchangeRefused, match="unauthorized"):
            proof.check((secret,), bound, frame.unframe(message))
    for at in range(3, len(message)):
        changed = bytearray(message)
        changed[at] ^= 1
        with pytest.raises(ExchangeRefused):
            proof.check((SECRET,), context, frame.unframe(bytes(changed)))


def test_callers_admit_each_number_once() -> None:
    callers = proof.Callers()
    first = Sender("eu", 5, 6, Boot(1, 100))
    callers.admit(first, 1, {}, 0.0)
    callers.admit(first, 3, {}, 0.0)
    callers.admit(first, 2, {}, 0.0)  # two calls that were in flight at once
    for number in (3, 2, 1):
        with pytest.raises(ExchangeRefused, match="replay"):
            callers.admit(first, number, {}, 0.0)
    callers.admit(first, 3000, {}, 0.0)
    for number in (3000, 1900):
        with pytest.raises(ExchangeRefused, match="replay"):
            callers.admit(first, number, {}, 0.0)
    callers.admit(first, 2500, {}, 0.0)
    callers.admit(dataclasses.replace(first, boot=Boot(2, 102)), 1, {}, 0.0)
    callers.admit(first, 4000, {}, 0.0)


def test_a_fence_keeps_older_processes_of_an_incarnation_out() -> None:
    callers, fences = proof.Callers(), {5: Boot(2, 102)}
    first = Sender("eu", 5, 6, Boot(1, 100))
    with pytest.raises(ExchangeRefused, match="stale_boot") as caught:
        callers.admit(first, 1, fences, 0.0)
    assert caught.value.about == ("eu", 5, "")
    with pytest.raises(ExchangeRefused, match="fork"):
        callers.admit(dataclasses.replace(first, boot=Boot(2, 101)), 9, fences, 0.0)
    callers.admit(dataclasses.replace(first, boot=Boot(2, 102)), 1, fences, 0.0)
    callers.admit(dataclasses.replace(first, boot=Boot(2, 103)), 1, fences, 0.0)
    callers.admit(dataclasses.replace(first, inc=9), 1, fences, 0.0)


def test_two_processes_of_one_name_that_call_in_turn_are_noticed() -> None:
    callers = proof.Callers()
    one = Sender("eu", 5, 6, Boot(1, 100))
    two = Sender("eu", 7, 8, Boot(1, 200))
    callers.admit(one, 1, {}, 0.0)
    callers.admit(two, 1, {}, 1.0)
    assert not callers.twin(two), "a restart looks like this"
    assert callers.other_lately(two, 2.0)
    assert not callers.other_lately(two, 60.0)
    for number in range(2, 6):
        callers.admit(one, number, {}, 2.0)
        callers.admit(two, number, {}, 2.0)
    assert callers.twin(one)
    assert callers.twin(two)
