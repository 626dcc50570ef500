"""Windows: which ones a board has here, from the one that is open back to the oldest kept."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping

from aiohttp import web

from agent.api.answers import WindowsAnswer, WindowState
from agent.api.choosing import is_gone
from agent.api.route import Call
from agent.boards.catalog import Board, Counted, Placed
from agent.boards.entry import rfc3339
from agent.boards.windows import is_sliding, name_of_id
from agent.state import State
from agent.store.snapshot import SqliteSnapshot


async def list_windows(call: Call) -> web.Response:
    """GET /v1/boards/{board}/windows."""
    services = call.services
    state, now_ms = services.queue.state, services.board_now_ms()
    board = state.catalog.board(call.board_name())
    held = await services.readers.read(lambda snapshot: _held(snapshot, board))
    found = [
        (name, its)
        for name in board.window_names()
        for its in _kept(state, board, name, held, now_ms)
    ]
    offset = call.query["offset"]
    shown = [
        _state(state, placed, now_ms)
        for name, its in found[offset : offset + call.query["limit"]]
        if (placed := _placed(board, name, its, now_ms)) is not None
    ]
    return call.answer(WindowsAnswer(board.name, shown, offset, len(found)))


def _held(snapshot: SqliteSnapshot, board: Board) -> dict[str, set[str]]:
    """By name, the ids of a board's windows that hold cells."""
    found: dict[str, set[str]] = {}
    # Series of the same zone share their prefix.
    for prefix in {counted.prefix for counted in board.counted if counted.shown}:
        for space in snapshot.spaces_of(prefix):
            id = space.removeprefix(prefix).decode(errors="replace")  # noqa: A001 -- its name
            found.setdefault(name_of_id(id), set()).add(id)
    return found


def _kept(
    state: State, board: Board, name: str, held: Mapping[str, set[str]], now_ms: int
) -> list[str]:
    """The ids of the windows of one name that can be read, the newest first.

    There may be very many, and ids sort by time: what is kept no longer is the end of the list.
    """
    if is_sliding(name):
        return [name]
    ids = set(held.get(name, ()))
    counted = _counted(board, name)
    now = counted.series.at(now_ms)
    if now is not None and now.start_ms >= counted.opens_ms:
        ids.add(now.id)
    found = sorted(ids, reverse=True)

    def gone(id: str) -> bool:  # noqa: A002 -- what everyone calls it
        placed = _placed(board, name, id, now_ms)
        return placed is not None and is_gone(state, placed, now_ms)

    return found[: bisect_left(found, True, key=gone)]


def _counted(board: Board, name: str) -> Counted:
    return next(its for its in board.counted if its.shown and its.series.name == name)


def _placed(board: Board, name: str, id: str, now_ms: int) -> Placed | None:  # noqa: A002
    """A window by its name and id; None for one that the zone does not have (any more)."""
    for sliding in board.slidings:
        if sliding.name == name:
            return board.place(sliding.window(now_ms))
    window = _counted(board, name).series.window(id)
    return None if window is None else board.place(window)


def _state(state: State, placed: Placed, now_ms: int) -> WindowState:
    window, series = placed.window, placed.counted.series
    if window.name == "all":
        return WindowState("all", "open", None, None, None, None)
    start, end = rfc3339(window.start_ms), rfc3339(window.end_ms)
    if window.name != series.name:  # a sliding one: it never closes
        return WindowState(window.id, "open", start, end, None, None)
    closes_ms = window.end_ms + series.grace_ms
    closed = state.marks.closed_by(state.agent, placed.counted.marks, window.id)
    return WindowState(
        window=window.id,
        state="closed" if closed or closes_ms <= now_ms else "open",
        start=start,
        end=end,
        closes_at=rfc3339(closes_ms),
        expires_at=None if placed.expires_ms is None else rfc3339(placed.expires_ms),
    )
