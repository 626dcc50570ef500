"""Entries: what is accepted, what is refused, and that the refusal names the limit."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.boards import body
from agent.boards.entry import Entry, integer, name_bytes, rfc3339, time_ms
from agent.errors import Malformed, OutOfRange, TooLarge
from agent.limits import SCORE_MAX, TIME_MS_MAX, TIME_MS_MIN

NOW_MS = 1_796_043_600_000  # 2026-11-30T13:00:00Z


@pytest.mark.parametrize(
    "at",
    [
        "2026-11-30T13:00:00Z",
        "2026-11-30T13:00:00.000Z",
        "2026-11-30t13:00:00z",
        "2026-11-30T14:00:00+01:00",
        "2026-11-30T07:30:00-05:30",
        "2026-12-01T02:45:00+13:45",
        NOW_MS,
        float(NOW_MS),
    ],
)
def test_times_of_one_moment(at: Any) -> None:
    assert time_ms(at, NOW_MS) == NOW_MS


@pytest.mark.parametrize(
    ("at", "ms"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("1969-12-31T23:59:59.999Z", -1),
        ("2026-11-30T12:59:59.9999Z", NOW_MS - 1),
        ("0001-01-01T00:00:00Z", TIME_MS_MIN),
        (0, 0),
        (-1.0, -1),
        (TIME_MS_MIN, TIME_MS_MIN),
    ],
)
def test_times(at: Any, ms: int) -> None:
    assert time_ms(at, NOW_MS) == ms


@pytest.mark.parametrize(
    "at",
    [
        "",
        "now",
        "2026-11-30",
        "2026-11-30T13:00:00",
        "2026-11-30 13:00:00Z",
        "2026-13-30T13:00:00Z",
        "2026-11-30T25:00:00Z",
        "2026-11-30T13Z",
        "2026-11-30T13:00Z",
        "20261130T130000Z",
        "2026-W49-1T13:00:00Z",
        "2026-11-30T13:00:00,5Z",
        "2026-11-30T13:00:00+0100",
        "1796043600000",
        "T",
        "\ud800T",
        "2026-11-30T13:00:00Z\0",
        1.5,
        float("nan"),
        float("inf"),
    ],
)
def test_what_is_no_time_is_malformed(at: Any) -> None:
    with pytest.raises(Malformed):
        time_ms(at, NOW_MS)


@pytest.mark.parametrize("at", [NOW_MS + 60_001, "2026-11-30T13:01:00.001Z"])
def test_more_than_a_minute_ahead_is_refused(at: Any) -> None:
    assert time_ms(NOW_MS + 60_000, NOW_MS) == NOW_MS + 60_000
    with pytest.raises(OutOfRange, match="60000"):
        time_ms(at, NOW_MS)


@pytest.mark.parametrize("at", [TIME_MS_MIN - 1, TIME_MS_MAX + 1, 2**53 - 1, 10**30])
def test_times_outside_the_years_are_refused(at: int) -> None:
    with pytest.raises(OutOfRange):
        time_ms(at, TIME_MS_MAX)


@given(st.integers(TIME_MS_MIN, TIME_MS_MAX))
def test_times_are_written_as_they_are_read(ms: int) -> None:
    assert time_ms(rfc3339(ms), TIME_MS_MAX) == ms
    assert rfc3339(ms).endswith("Z")


def test_a_time_that_no_entry_may_carry_is_still_shown() -> None:
    assert rfc3339(-(2**63)) == "0001-01-01T00:00:00.000Z"
    assert rfc3339(2**63 - 1).startswith("4199-")


@pytest.mark.parametrize(
    ("number", "expected"),
    [(236.0, 236), (-0.0, 0), (SCORE_MAX, SCORE_MAX), (-(2.0**52), -(2**52))],
)
def test_integers(number: float, expected: int) -> None:
    assert integer(number, "add") == expected
    assert type(integer(number, "add")) is int


@pytest.mark.parametrize("number", [236.5, float("nan"), float("inf"), 1e-9])
def test_other_numbers_are_malformed(number: float) -> None:
    with pytest.raises(Malformed, match="add"):
        integer(number, "add")


@pytest.mark.parametrize("number", [2**53, -(2**53), 2.0**53, 1e300, 10**40])
def test_beyond_53_bits_is_refused_with_the_limit(number: float) -> None:
    with pytest.raises(OutOfRange, match=str(SCORE_MAX)):
        integer(number, "add")


def test_names_of_256_bytes_are_the_longest() -> None:
    assert name_bytes("x" * 256) == b"x" * 256
    assert len(name_bytes("é" * 128)) == 256
    assert name_bytes("\U0001f600 ünïcödé\n") == "\U0001f600 ünïcödé\n".encode()


@pytest.mark.parametrize("name", ["", "x" * 257, "é" * 129, "a\0b", "\0", "\ud800", "a\udfff"])
def test_other_names_are_malformed(name: str) -> None:
    with pytest.raises(Malformed, match="member"):
        name_bytes(name)


@pytest.mark.parametrize(
    "entry",
    [
        b'{"member": "a", "add": "1"}',
        b'{"member": "a", "add": true}',
        b'{"member": "a", "adds": 1}',
        b'{"member": 1, "add": 1}',
        b'{"add": 1}',
        b'{"member": "a", "add": 1, "key": 5}',
        b'{"member": "\\ud800", "add": 1}',
        b"[]",
        b'{"member": "a", "add": 1',
    ],
)
def test_entries_of_another_form_do_not_decode(entry: bytes) -> None:
    with pytest.raises(msgspec.MsgspecError):
        msgspec.json.decode(entry, type=Entry)


def test_equal_data_has_equal_bytes() -> None:
    one = body.pack({"b": [1, {"y": None, "x": "é"}], "a": 1.5}, "data", 1024)
    two = body.pack({"a": 1.5, "b": [1, {"x": "é", "y": None}]}, "data", 1024)
    assert one == two
    assert body.unpack(one) == {"a": 1.5, "b": [1, {"x": "é", "y": None}]}
    assert body.pack(None, "data", 1024) == b""
    assert body.unpack(b"") is None


def nested(depth: int) -> list[Any]:
    return [] if depth == 0 else [nested(depth - 1)]


@pytest.mark.parametrize(
    "data", [2**64, -(2**63) - 1, "\ud800", nested(40), {1: 2}, b"x", float("nan"), {"a": object()}]
)
def test_data_that_json_does_not_have_is_malformed(data: Any) -> None:
    with pytest.raises(Malformed, match="data"):
        body.pack(data, "data", 1024)


def test_data_over_its_limit_is_too_large() -> None:
    assert len(body.pack("x" * 1021, "data", 1024)) == 1024
    with pytest.raises(TooLarge, match="1024"):
        body.pack("x" * 1022, "data", 1024)


@given(st.binary(max_size=40))
def test_any_bytes_unpack_to_something_or_to_nothing(data: bytes) -> None:
    body.unpack(data)
