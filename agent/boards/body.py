"""Bodies and `data`: canonical msgpack, bounded. Equal values have equal bytes, in every region."""

from __future__ import annotations

from math import isfinite
from typing import Any

import msgpack

from agent.errors import Malformed, TooLarge

NESTING_MAX = 32  # containers in containers: far below Python's own recursion limit


def _sorted(value: Any, field: str, depth: int) -> Any:
    """The value with every object's names in sorted order."""
    if depth > NESTING_MAX:
        raise Malformed(f"{field}: nested deeper than {NESTING_MAX}")
    if isinstance(value, dict):
        if not all(isinstance(name, str) for name in value):
            raise Malformed(f"{field}: an object's names are strings")
        return {name: _sorted(value[name], field, depth + 1) for name in sorted(value)}
    if isinstance(value, list | tuple):
        return [_sorted(item, field, depth + 1) for item in value]
    # A request in msgpack can hold more than JSON can show: binary, times, infinity.
    plain = value is None or isinstance(value, str | int | float)
    if not plain or (isinstance(value, float) and not isfinite(value)):
        raise Malformed(f"{field}: holds a value that JSON does not have")
    return value


def pack(value: Any, field: str, bytes_max: int) -> bytes:
    """The canonical bytes of a JSON value; `b""` for None.

    Raises:
        Malformed: not a JSON value, an integer outside 64 bits, or nesting deeper than NESTING_MAX.
        TooLarge: more than `bytes_max` bytes.
    """
    if value is None:
        return b""
    try:
        packed: bytes = msgpack.packb(_sorted(value, field, 0))
    except (OverflowError, ValueError) as error:
        raise Malformed(f"{field}: can't be packed: {error}") from error
    if len(packed) > bytes_max:
        raise TooLarge(f"{field}: {len(packed)} bytes packed, at most {bytes_max}")
    return packed


def unpack(body: bytes) -> Any:
    """The value behind a body; None for an empty or an undecodable one.

    A body comes from any agent of the ring, perhaps a newer one: what can't be read is shown as
    absent, and the cell is stored and forwarded all the same.
    """
    if not body:
        return None
    try:
        return msgpack.unpackb(body, strict_map_key=False)
    except (ValueError, TypeError, msgpack.UnpackException, RecursionError):
        return None
