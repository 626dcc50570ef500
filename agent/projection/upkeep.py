"""Whether what was put into Redis still stands there: a few boards at a time, in turn.

Redis may lose one key and keep the watermark: somebody deletes it, or a server evicts it that was
not set to `noeviction`. The sorted set of a board with members, and the meta of any board, must be
there. Lost members of a set that is there are found by an audit (`audit.py`).
"""

from __future__ import annotations

from agent.boards.catalog import Board
from agent.projection.keys import board_key, meta_key
from agent.projection.link import Link
from agent.projection.refill import WINDOW, Places
from agent.projection.source import read_members
from agent.store.readers import Readers
from agent.store.snapshot import SqliteSnapshot

BOARDS_MAX = 32  # looked at in one go: one round trip of a millisecond
CELLS_MAX = 100  # read of a board to learn whether it has members


class Upkeep:
    """Looks for boards that Redis has lost, over one adopted watermark."""

    def __init__(self, link: Link, readers: Readers, places: Places) -> None:
        self._link = link
        self._readers = readers
        self._places = places
        self._waiting: list[str] = []
        self._suspects: dict[str, int] = {}

    async def lost(self) -> list[str]:
        """The complete boards among the next ones that are not in Redis as they should be.

        A set that is missing is only suspected at first: its members may not have been projected
        yet. It is lost if it is still missing when the watermark has passed them.
        """
        names = [name for name in self._next() if self._places.complete(name)]
        if not names:
            return []
        keys = [key for name in names for key in (board_key(name, WINDOW), meta_key(name, WINDOW))]
        found = await self._link.existing(keys)
        lost, asked = [], []
        for name, has_set, has_meta in zip(names, found[::2], found[1::2], strict=True):
            due_lsn = self._suspects.pop(name, None)
            if not has_meta or (
                not has_set and due_lsn is not None and due_lsn <= self._link.watermark.lsn
            ):
                lost.append(name)
            elif not has_set:
                asked.append(name)
        if asked:
            boards = [self._places.board(name) for name in asked]
            found_lsn, having = await self._readers.read(
                lambda snapshot: (snapshot.newest_lsn, _with_members(snapshot, boards))
            )
            self._suspects |= dict.fromkeys(having, found_lsn)
        return lost

    def _next(self) -> list[str]:
        """The suspects, and the next boards in turn."""
        if not self._waiting:
            self._waiting = self._places.names()
        names = self._waiting[-BOARDS_MAX:]
        del self._waiting[-BOARDS_MAX:]
        return list(dict.fromkeys([*self._suspects, *names]))


def _with_members(snapshot: SqliteSnapshot, boards: list[Board]) -> list[str]:
    """Which of the boards have a member, as far as their first cells tell."""
    return [
        board.name
        for board in boards
        if read_members(snapshot, board, b"", CELLS_MAX, count=False).scores_and_members
    ]
