"""Choosing a window: which one a reader means, and whether there is anything of it to read."""

from __future__ import annotations

from agent.api.services import Services
from agent.boards.catalog import Board, Placed
from agent.boards.entry import rfc3339
from agent.boards.windows import is_sliding
from agent.errors import NotFound
from agent.state import State


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
