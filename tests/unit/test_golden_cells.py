"""Cells that say something of members and windows are frozen: every region makes the same bytes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agent.boards import bans, erasures
from agent.boards.marks import cell_of, keys_series, series_bytes
from agent.boards.windows import KEYS, Window, WindowSpec, series_of
from agent.crdt import flag, result
from agent.crdt.slot import Kind
from agent.crdt.space import BANS_SPACE, ERASED_SPACE, MARKS_SPACE, is_own

FROZEN: dict[str, Any] = json.loads(
    (Path(__file__).parents[1] / "golden" / "core-cells-v1.json").read_text("utf-8")
)
AT_MS = 1_796_043_600_000
KEY_16 = bytes(range(16))
NAME = "zoë".encode()


def day() -> Window:
    found = series_of(WindowSpec("day")).at(AT_MS)
    assert found is not None
    return found


def bucket() -> Window:
    found = KEYS.at(AT_MS)
    assert found is not None
    return found


BAN = bans.banned(None, AT_MS, "cheats", "ops", AT_MS - 5)
LIFT = bans.lifted(BAN, "", bans.BY_ITSELF, AT_MS)
CELLS: dict[str, tuple[Any, ...]] = {
    "close": cell_of(Kind.CLOSE, series_bytes("b", 2, bytes(range(8)), "day"), "eu-1", day()),
    "ack of facts": cell_of(Kind.ACK, keys_series("b"), "eu-1", bucket()),
    "collected": cell_of(Kind.COLLECTED, keys_series("b"), "eu-1", bucket()),
    "ban": (bans.ban_key(NAME, "b"), BAN),
    "ban everywhere": (bans.ban_key(NAME, ""), BAN),
    "lift at its end": (bans.ban_key(NAME, "b"), LIFT),
    "history": (bans.history_key(NAME, "b", 103, "eu-1"), BAN),
    "hashing key": erasures.key_cell(KEY_16),
    "tombstone": (erasures.tombstone_cell(erasures.id_of(NAME, KEY_16)), (1, AT_MS, NAME)),
    "confirmation": (
        erasures.confirmation_cell(erasures.id_of(NAME, KEY_16), "eu-1"),
        (1, AT_MS, b""),
    ),
    "erased actor": (erasures.pseudonym(NAME),),
    "result": (result.of((AT_MS << 16) + 1, 900, "h", AT_MS, b"\xa1x"),),
    "retraction": (result.retraction(AT_MS),),
    "like again": (flag.on(flag.on(None)),),
    "unlike": (flag.off((3, 0, b"")),),
}


def shown(said: Any) -> Any:
    """Bytes in hexadecimal, as JSON has none."""
    if isinstance(said, bytes):
        return said.hex()
    return [shown(part) for part in said] if isinstance(said, tuple) else said


@pytest.mark.parametrize("name", FROZEN["cells"])
def test_cells_are_frozen(name: str) -> None:
    assert shown(CELLS[name]) == FROZEN["cells"][name]


def test_all_of_them_are() -> None:
    assert CELLS.keys() == FROZEN["cells"].keys()


def test_the_agents_own_spaces_of_members_and_windows() -> None:
    own = {"~marks": MARKS_SPACE, "~bans": BANS_SPACE, "~erased": ERASED_SPACE}
    assert {name: space.hex() for name, space in own.items()} == FROZEN["spaces"]
    assert all(is_own(space) for space in own.values())
    assert not is_own(b"\x01b" + bytes(12))


@pytest.mark.parametrize(
    "body", [b"", b"\xc1", b"\x93\xa1m\x01\xc4\x00", b"\x92\xa1s\x01", b"\x05"]
)
def test_a_result_that_can_not_be_read_adds_up(body: bytes) -> None:
    assert result.unpack((-1, 5, body)) == result.Said("s", 0, b"")
