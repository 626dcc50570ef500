"""Bans: members that are shown on no page and counted in no rank, whatever they score.

A ban is a causal-length flag of a member for one board, or for all (the empty name): odd means
banned, and the greater length wins, so a lift and a new ban have their order everywhere. Changing a
ban that stands raises its length by 2. Beside it stands its history, a cell for each change, of
which the newest of each agent are kept. Scores go on being counted: a lifted ban brings them back.

    C board                 (length, until_ms, [reason, by, at_ms])
    C board NUL n agent     (length, until_ms, the same): n = length modulo HISTORY_BANS_MAX

A ban for ever has the greatest `until_ms`: of two bans at once the longer one stands.

A ban with an end is lifted by whoever sees it pass (`over`): its lift is a cell as well, the same
whoever writes it, so that no region's clock decides for another.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from agent.boards import body
from agent.crdt import flag
from agent.crdt.cell import Key, Row, Value
from agent.crdt.slot import Kind
from agent.crdt.space import BANS_SPACE
from agent.limits import BODY_BYTES_MAX, HISTORY_BANS_MAX, INT64_MAX

EVERYWHERE = ""
"""The board name of a ban on all boards."""
FOREVER_MS = INT64_MAX
BY_ITSELF = "until"
"""Who lifts a ban that ends by itself."""


class Ban(NamedTuple):
    """A ban, or its lift, as its cell says. `until_ms`: when it ends by itself; None: never."""

    board: str
    length: int
    until_ms: int | None
    reason: str
    by: str
    at_ms: int

    @property
    def on(self) -> bool:
        """Whether the member is banned by it."""
        return self.length % 2 == 1


def ban_key(member: bytes, board: str) -> Key:
    """The cell of a member's ban."""
    return (BANS_SPACE, member, bytes([Kind.FLAG]) + board.encode())


def history_key(member: bytes, board: str, length: int, agent: str) -> Key:
    """The cell that keeps one change of a ban."""
    number = (length % HISTORY_BANS_MAX).to_bytes(2)
    slot = bytes([Kind.FLAG]) + board.encode() + b"\0" + number + agent.encode()
    return (BANS_SPACE, member, slot)


def banned(current: Value | None, until_ms: int | None, reason: str, by: str, at_ms: int) -> Value:
    """The cell after a ban."""
    said = body.pack([reason, by, at_ms], "reason", BODY_BYTES_MAX)
    return flag.on(current, FOREVER_MS if until_ms is None else until_ms, said)


def lifted(current: Value | None, reason: str, by: str, at_ms: int) -> Value | None:
    """The cell after a ban was lifted; None where there is none."""
    return flag.off(current, 0, body.pack([reason, by, at_ms], "reason", BODY_BYTES_MAX))


def ban_of(board: str, value: Value) -> Ban:
    """What a cell says; of a body that can't be read, what its numbers say."""
    said = body.unpack(value[2])
    reason, by, at_ms = "", "", 0
    if isinstance(said, list) and len(said) == 3:
        reason, by = str(said[0]), str(said[1])
        at_ms = said[2] if type(said[2]) is int else 0
    return Ban(board, value[0], value[1] if 0 < value[1] < FOREVER_MS else None, reason, by, at_ms)


def history_of(slots: Iterable[tuple[bytes, Value]], board: str) -> list[Ban]:
    """All changes of a member's bans on one board that are kept, newest first."""
    start = bytes([Kind.FLAG]) + board.encode() + b"\0"
    found = [ban_of(board, value) for slot, value in slots if slot.startswith(start)]
    return sorted(found, key=lambda ban: (ban.length, ban.at_ms), reverse=True)


def _is_ban(row: Row) -> bool:
    """Whether a row is a ban or its lift, and not of their history."""
    return row.space == BANS_SPACE and row.slot[0] == Kind.FLAG and b"\0" not in row.slot


def _board_of(row: Row) -> str:
    return row.slot[1:].decode(errors="replace")


class Bans:
    """All bans that stand. `with_rows` gives new ones; a copy changes by `take` until it is given
    away: there may be very many, so what is changed a row at a time is copied once.
    """

    __slots__ = ("_cells", "_standing", "_until")

    def __init__(self) -> None:
        self._cells: dict[bytes, Mapping[str, Value]] = {}
        # member -> boards, of those that are banned; (member, board) -> ms, of those that end
        self._standing: dict[bytes, frozenset[str]] = {}
        self._until: dict[tuple[bytes, str], int] = {}

    def __len__(self) -> int:
        """How many members have ever been banned and are remembered."""
        return len(self._cells)

    @property
    def standing(self) -> int:
        """How many bans stand, by member and board."""
        return sum(map(len, self._standing.values()))

    def copy(self) -> Bans:
        """The same bans, for `take`."""
        found = Bans()
        found._cells, found._until = dict(self._cells), dict(self._until)
        found._standing = dict(self._standing)
        return found

    def with_rows(self, rows: Iterable[Row]) -> Bans:
        """The bans after these changed cells; rows of other spaces are passed over."""
        mine = [row for row in rows if _is_ban(row)]
        if not mine:
            return self
        found = self.copy()
        for row in mine:
            found.take(row)
        return found

    def take(self, row: Row) -> None:
        """Take over one changed cell; one of the history is passed over."""
        if not _is_ban(row):
            return
        member, board, value = row.member, _board_of(row), row.value
        self._cells[member] = {**self._cells.get(member, {}), board: value}
        its = self._standing.get(member, frozenset()) - {board}
        self._until.pop((member, board), None)
        if flag.is_on(value):
            its |= {board}
            if value[1] < FOREVER_MS:
                self._until[member, board] = value[1]
        if its:
            self._standing[member] = its
        else:
            self._standing.pop(member, None)

    def drop(self, member: bytes) -> None:
        """Forget a member, whose cells cease to exist."""
        for board in self._cells.pop(member, {}):
            self._until.pop((member, board), None)
        self._standing.pop(member, None)

    def lifted(self, before: Bans, rows: Iterable[Row]) -> list[tuple[bytes, str]]:
        """(member, board) of the bans that stood before these changed cells and do not any more."""
        if before is self:
            return []
        names = [(row.member, _board_of(row)) for row in rows if _is_ban(row)]
        return [
            (member, board)
            for member, board in names
            if board in before._standing.get(member, ())
            and board not in self._standing.get(member, ())
        ]

    def hides(self, member: bytes, board: str) -> bool:
        """Whether a member is shown nowhere on a board."""
        boards = self._standing.get(member)
        return boards is not None and (board in boards or EVERYWHERE in boards)

    def hidden(self, board: str) -> list[bytes]:
        """All members that are banned on a board."""
        return [member for member in self._standing if self.hides(member, board)]

    def of(self, member: bytes) -> list[Ban]:
        """A member's bans and lifts as they stand, by board."""
        return [
            ban_of(board, value) for board, value in sorted(self._cells.get(member, {}).items())
        ]

    def over(self, now_ms: int) -> list[tuple[bytes, str]]:
        """(member, board) of the bans that have ended by themselves and are not lifted yet."""
        over = ((ms, *its) for its, ms in self._until.items() if ms <= now_ms)
        return [its[1:] for its in sorted(over)]
