"""Spaces: which board, generation, shape and window a cell belongs to, as canonical bytes.

    | length of board: 1 byte | board: ASCII | generation: 4 bytes, big-endian |
    | shape: 8 bytes | window: UTF-8, the rest |

The *shape* is a digest of what the stored numbers depend on (agent/boards/definition.py), so
cells whose numbers mean different things never meet. The spaces of one generation of a board
share a prefix. Boards whose names begin with `~` are the agents' own. The encoding is frozen:
tests/golden/.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from agent.errors import Malformed
from agent.limits import WINDOW_BYTES_MAX

NO_SHAPE = bytes(8)
BOARD_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_OWN_NAME = re.compile(r"~[a-z0-9._-]{1,63}")


class Space(NamedTuple):
    """A decoded space. `generation` is in 0..2**32-1 and `shape` has 8 bytes."""

    board: str
    generation: int
    shape: bytes
    window: str


def encode_space(space: Space) -> bytes:
    """The canonical bytes of a space.

    Raises:
        Malformed: a part is outside its form; the part is named.
    """
    if not (BOARD_NAME.fullmatch(space.board) or _OWN_NAME.fullmatch(space.board)):
        raise Malformed(
            f"board: {space.board!r} is not a board name",
            hint="1 to 64 of a-z, 0-9, '.', '_', '-', beginning with a letter or a digit",
        )
    if not 0 <= space.generation < 2**32:
        raise Malformed(f"generation: {space.generation} is outside 0..2**32-1")
    if len(space.shape) != 8:
        raise Malformed(f"shape: {len(space.shape)} bytes where 8 are needed")
    window = space.window.encode()
    if len(window) > WINDOW_BYTES_MAX:
        raise Malformed(f"window: {len(window)} bytes, at most {WINDOW_BYTES_MAX}")
    board = space.board.encode("ascii")
    return bytes([len(board)]) + board + space.generation.to_bytes(4) + space.shape + window


def decode_space(data: bytes) -> Space | None:
    """The space behind its bytes, or None where they are not of this version's form.

    None is no error: a newer agent may write spaces that this version can't read; it stores and
    forwards them (rule D).
    """
    board_end = 1 + data[0] if data else 0
    window_start = board_end + 12
    if board_end < 2 or len(data) < window_start:
        return None
    try:
        space = Space(
            data[1:board_end].decode("ascii"),
            int.from_bytes(data[board_end : board_end + 4]),
            data[board_end + 4 : window_start],
            data[window_start:].decode(),
        )
        return space if encode_space(space) == data else None
    except (UnicodeDecodeError, Malformed):
        return None


def board_prefix(board: str) -> bytes:
    """What all spaces of a board begin with; nothing where `board` is empty, as all spaces do.

    Of a name that no board can have it is what no space begins with.
    """
    name = board.encode()[:255]
    return bytes([len(name)]) + name if name else b""


def shape_prefix(space: bytes) -> bytes:
    """What all spaces of one board, generation and shape begin with; a window's id follows."""
    return space[: 1 + space[0] + 12]


def own_space(name: str) -> bytes:
    """The space of one of the agents' own collections, e.g. `~boards`, `~ring`."""
    return encode_space(Space(name, 0, NO_SHAPE, ""))


BOARDS_SPACE = own_space("~boards")
"""Definitions and generations; a member is a board's name."""

RING_SPACE = own_space("~ring")
"""Ring members and their incarnations; a member is an agent's name."""

MARKS_SPACE = own_space("~marks")
"""How far windows and keys are closed, acknowledged and collected; a member is a series."""

BANS_SPACE = own_space("~bans")
"""Bans; a member is a board's member."""

ERASED_SPACE = own_space("~erased")
"""Tombstones of erased names; a member is a keyed hash of one."""


def is_own(space: bytes) -> bool:
    """Whether a space is one of the agents' own collections, not a board's."""
    return space[1:2] == b"~"
