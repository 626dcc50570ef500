"""Cursors: a place in a window to go on from, whatever moves meanwhile.

A page is left behind its last row (`next`) or before its first one (`previous`), and that row is
found again by its composite score and its name. A member that stays where it is is met exactly once
on the way, however many others come, go and pass it; an offset can't promise that.
"""

from __future__ import annotations

import base64
import binascii
from typing import NamedTuple

import msgpack

from agent.boards.catalog import Placed
from agent.errors import Malformed
from agent.limits import MEMBER_BYTES_MAX
from agent.projection.reads import Ranked, Row

CURSOR_CHARACTERS_MAX = 1_024


class Cursor(NamedTuple):
    """Where to go on, and which way."""

    row: Row
    backward: bool


def cursor_text(placed: Placed, ranked: Ranked, *, backward: bool) -> str:
    """The cursor behind a row, or before it."""
    member = ranked.member.encode(errors="replace")
    said = [placed.board.generation, placed.window.id, backward, ranked.composite, member]
    return base64.urlsafe_b64encode(msgpack.packb(said)).rstrip(b"=").decode()


def parse_cursor(text: str, placed: Placed) -> Cursor:
    """The place behind a cursor.

    Raises:
        Malformed: it is none, or one of another window.
    """
    said = None
    if len(text) <= CURSOR_CHARACTERS_MAX:
        try:
            said = msgpack.unpackb(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
        except (binascii.Error, ValueError, msgpack.UnpackException):
            said = None
    match said:
        case [int(generation), str(window), bool(backward), int(composite), bytes(member)] if (
            abs(composite) < 2**53 and 0 < len(member) <= MEMBER_BYTES_MAX
        ):
            if (generation, window) != (placed.board.generation, placed.window.id):
                raise Malformed(
                    f"cursor: is of window {window[:40]!r}, generation {generation}",
                    hint="begin again without a cursor",
                )
            return Cursor(Row(composite, member), backward)
    raise Malformed(
        f"cursor: {text[:40]!r} is not one", hint="take `next` or `previous` of a page as it is"
    )
