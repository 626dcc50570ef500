"""Entries: what a game's backend writes, and the checks that need no board."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any

import msgspec

from agent.errors import Malformed, OutOfRange
from agent.limits import (
    AHEAD_MS_MAX,
    KEY_BYTES_MAX,
    MEMBER_BYTES_MAX,
    SCORE_MAX,
    TIME_MS_MAX,
    TIME_MS_MIN,
)

_RFC_3339 = re.compile(
    r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)", re.ASCII | re.IGNORECASE
)
_UUID_7 = re.compile(
    r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", re.IGNORECASE
)
_CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_ULID = re.compile(f"[0-7][{_CROCKFORD}]{{25}}", re.IGNORECASE)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


class Entry(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    """One write: `add` on a `sum` or `trend` board, `score` on a `best` or `latest` one, `actor` on
    a `distinct` (with `present`, by default true) or `unique` one.

    `at` is the time of the event (RFC 3339 or ms since 1970); without it, the agent's clock.
    `data` is up to 1 KiB of JSON, shown with the score. Numbers may be written as `236.0`.
    """

    member: str
    add: int | float | None = None
    score: int | float | None = None
    actor: str | None = None
    present: bool | None = None
    at: int | float | str | None = None
    key: str | None = None
    data: Any = None


class BoardEntry(Entry, forbid_unknown_fields=True, omit_defaults=True, kw_only=True, gc=False):
    """An entry that names its board: for batches over several boards."""

    board: str


def name_bytes(name: str, field: str = "member") -> bytes:
    """The UTF-8 bytes of a member's or a counter's name.

    Raises:
        Malformed: empty, over 256 bytes, or with a NUL or an unpaired surrogate.
    """
    try:
        data = name.encode()
    except UnicodeEncodeError:
        raise Malformed(f"{field}: not valid Unicode (an unpaired surrogate)") from None
    if not data:
        raise Malformed(f"{field}: empty; 1 to {MEMBER_BYTES_MAX} bytes of UTF-8 are needed")
    if len(data) > MEMBER_BYTES_MAX:
        raise Malformed(f"{field}: {len(data)} bytes of UTF-8, at most {MEMBER_BYTES_MAX}")
    if b"\0" in data:
        raise Malformed(f"{field}: holds a NUL character")
    return data


def key_bytes(key: str) -> bytes:
    """The UTF-8 bytes of an idempotency key.

    Raises:
        Malformed: empty, over 128 bytes, or with an unpaired surrogate.
    """
    try:
        data = key.encode()
    except UnicodeEncodeError:
        raise Malformed("key: not valid Unicode (an unpaired surrogate)") from None
    if not 0 < len(data) <= KEY_BYTES_MAX:
        raise Malformed(f"key: 1 to {KEY_BYTES_MAX} bytes are needed")
    return data


def time_in(key: str) -> int | None:
    """The time in a UUIDv7 or a ULID, in ms since 1970; None for other keys.

    RFC 9562, section 5.7; github.com/ulid/spec.
    """
    if _UUID_7.fullmatch(key):
        return int(key.replace("-", "")[:12], 16)
    if _ULID.fullmatch(key):
        ms = 0
        for letter in key[:10].upper():
            ms = ms * 32 + _CROCKFORD.index(letter)
        return ms
    return None


def integer(number: int | float, field: str) -> int:
    """The integer behind a JSON number; `236.0` is one, `236.5` is not.

    Raises:
        Malformed: not an integer.
        OutOfRange: beyond +-(2**53 - 1).
    """
    if isinstance(number, float):
        if not number.is_integer():
            raise Malformed(f"{field}: {number!r} is not an integer")
        number = int(number)
    if not -SCORE_MAX <= number <= SCORE_MAX:
        raise OutOfRange(
            "out_of_range", f"{field}: {number} is beyond the limit of +-{SCORE_MAX} (2^53 - 1)"
        )
    return number


def time_ms(at: int | float | str, now_ms: int, field: str = "at") -> int:
    """The time of an event in ms since 1970, from RFC 3339 or integer milliseconds.

    Raises:
        Malformed: not a time, or one without an offset from UTC.
        OutOfRange: further than 60 s ahead of `now_ms`, or outside the years 1 to 4199.
    """
    if isinstance(at, str):
        # `fromisoformat` reads more than RFC 3339 allows: weeks, times without seconds, a NUL.
        try:
            moment = datetime.fromisoformat(at.upper()) if _RFC_3339.fullmatch(at) else None
        except ValueError:
            moment = None
        if moment is None:
            raise Malformed(
                f"{field}: {at[:40]!r} is not an RFC 3339 time",
                hint="for example 2026-11-30T13:00:00Z, or integer milliseconds since 1970",
            )
        ms = (moment - _EPOCH) // _MILLISECOND
    else:
        ms = integer(at, field)
    if not TIME_MS_MIN <= ms <= TIME_MS_MAX:
        raise OutOfRange("out_of_range", f"{field}: {ms} ms is outside the years 1 to 4199")
    if ms > now_ms + AHEAD_MS_MAX:
        raise OutOfRange(
            "out_of_range",
            f"{field}: {ms - now_ms} ms ahead of this agent's clock, at most {AHEAD_MS_MAX}",
        )
    return ms


def settled_ms(entry: Entry, now_ms: int) -> int:
    """The time of an entry, which may still be refused for it; it gives way to its integer.

    What is loaded for an entry and what counts it go by the same time, in whichever form it came.
    Without a time of its own it is that of its key, if that holds one, else now.
    """
    at = entry.at
    if at is not None and type(at) is not int:
        try:
            at = entry.at = time_ms(at, now_ms)
        except (Malformed, OutOfRange):
            return now_ms
    if at is None and entry.key is not None:
        at = time_in(entry.key)
    return at if type(at) is int and TIME_MS_MIN <= at <= TIME_MS_MAX else now_ms


def rfc3339(ms: int) -> str:
    """A time in ms since 1970 as RFC 3339 in UTC, with milliseconds.

    A time outside of what entries may carry (a damaged or a newer agent's cell) clamps: it is
    shown, since it is never refused.
    """
    seconds, rest = divmod(min(max(ms, TIME_MS_MIN), TIME_MS_MAX), 1_000)
    return f"{_second(seconds)}.{rest:03}Z"


@lru_cache(4_096)
def _second(seconds: int) -> str:
    """A page shows many times that lie close together, and making one is most of its cost."""
    return (_EPOCH + timedelta(seconds=seconds)).isoformat()[:19]
