"""Choosing a window: which one a reader means, and whether there is anything of it to read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.boards.catalog import Board, Placed
from agent.boards.entry import rfc3339
from agent.boards.windows import is_sliding
from agent.errors import NotFound
from agent.state import State

if TYPE_CHECKING:
    from agent.api.services import Services

OPEN_WINDOWS_MAX = 10_000


def window_of(services: Services, state: State, board: Board, text: str | None) -> Placed:
    """The window that a reader names: by name (the one open now), by id, or the board's first one.

    Raises:
        NotFound: (`unknown_window`) the board has none of it, or it is kept no longer.
    """
    now_ms = services.board_now_ms()
    placed = board.place(board.resolve(text, now_ms))
    if is_gone(state, placed, now_ms):
        over = placed.expires_ms if placed.expires_ms is not None else placed.window.end_ms
        raise NotFound(
            "unknown_window",
            f"window: {placed.window.id!r} of board {board.name!r} was kept until {rfc3339(over)}",
            hint="`keep` in the board's definition says how long windows stay after their grace",
        )
    return placed


def is_gone(state: State, placed: Placed, now_ms: int) -> bool:
    """Whether a window is kept no longer: by this agent's clock, or collected in all regions."""
    if placed.expires_ms is not None and placed.expires_ms <= now_ms:
        return True
    return not is_sliding(placed.window.name) and state.marks.collects(placed.space)


class OpenWindows:
    """The open windows that readers have named: found once, as nothing about them changes until
    they end, or the board is another one."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str | None], tuple[Board, Placed]] = {}

    def find(self, services: Services, state: State, name: str, text: str | None) -> Placed:
        """A window of a board in use; see `window_of`.

        Raises:
            NotFound: (`unknown_board`, `unknown_window`)
        """
        board = state.catalog.board(name)
        known = self._found.get((name, text))
        if known is not None and known[0] is board:
            placed = known[1]
            if placed.window.start_ms <= services.board_now_ms() < placed.window.end_ms:
                return placed
        placed = window_of(services, state, board, text)
        if not is_sliding(placed.window.name):
            if len(self._found) >= OPEN_WINDOWS_MAX:
                self._found.clear()
            self._found[name, text] = (board, placed)
        return placed
