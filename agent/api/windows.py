"""Windows: which ones a board has here, from the open one back to the oldest with a final."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping
from functools import partial

from aiohttp import web
from msgspec import UNSET, UnsetType

from agent.api.answers import FinalOfWindow, WindowsAnswer, WindowState
from agent.api.choosing import is_gone
from agent.api.final_choosing import (
    board_of,
    certificate_answer,
    generation_of,
    prefix_of,
    window_stage,
)
from agent.api.route import Call
from agent.boards.catalog import Board, Counted, Placed
from agent.boards.entry import rfc3339
from agent.boards.final_waits import waits_of
from agent.boards.finals import Final, certifiable, final_of
from agent.boards.windows import is_sliding, name_of_id
from agent.crdt.space import MARKS_SPACE, decode_space
from agent.state import State
from agent.store.finals import spaces_certified
from agent.store.snapshot import SqliteSnapshot

Ids = Mapping[str, set[str]]
"""By a window's name, ids."""


async def list_windows(call: Call) -> web.Response:
    """GET /v1/boards/{board}/windows."""
    services = call.services
    state, now_ms = services.queue.state, services.board_now_ms()
    found = board_of(call)
    generation = generation_of(call, found)
    if generation != found.generation:
        return await _list_earlier(call, generation)
    board = state.catalog.board(call.board_name())
    held, certified = await services.readers.read(
        lambda snapshot: (
            _ids(board, snapshot.spaces_of),
            _ids(board, partial(spaces_certified, snapshot)),
        )
    )
    listed = [
        (name, its)
        for name in board.window_names()
        for its in _listed(state, board, name, held, certified, now_ms)
    ]
    offset = call.query["offset"]
    page = [
        placed
        for name, its in listed[offset : offset + call.query["limit"]]
        if (placed := _placed(board, name, its, now_ms)) is not None
    ]
    finals = await services.readers.read(
        lambda snapshot: [_final(snapshot, placed.space) for placed in page]
    )
    shown = [
        _state(state, placed, final, now_ms) for placed, final in zip(page, finals, strict=True)
    ]
    return call.answer(WindowsAnswer(board.name, generation, shown, offset, len(listed)))


async def _list_earlier(call: Call, generation: int) -> web.Response:
    """The windows of an earlier generation that have a final: nothing else is left of it."""
    board, offset, limit = call.board_name(), call.query["offset"], call.query["limit"]

    def look(snapshot: SqliteSnapshot) -> WindowsAnswer:
        by_window: dict[tuple[str, str], bytes] = {}
        for space in spaces_certified(snapshot, prefix_of(board, generation)):
            decoded = decode_space(space)
            if decoded is not None:
                by_window[name_of_id(decoded.window), decoded.window] = space
        ordered = sorted(by_window, key=lambda its: its[1], reverse=True)
        ordered.sort(key=lambda its: its[0])
        shown = [
            _shown_final(
                WindowState(window, "certified", None, None, None, None),
                _final(snapshot, by_window[name, window]),
            )
            for name, window in ordered[offset : offset + limit]
        ]
        return WindowsAnswer(board, generation, shown, offset, len(ordered))

    return call.answer(await call.services.readers.read(look))


def _final(snapshot: SqliteSnapshot, space: bytes) -> Final:
    return final_of(snapshot.slots_of(MARKS_SPACE, space))


def _ids(board: Board, spaces_of: Callable[[bytes], list[bytes]]) -> Ids:
    """The windows of a board whose spaces are among those that `spaces_of` finds by a prefix."""
    found: dict[str, set[str]] = {}
    # Series of the same zone share their prefix.
    for prefix in {counted.prefix for counted in board.counted if counted.shown}:
        for space in spaces_of(prefix):
            id = space.removeprefix(prefix).decode(errors="replace")  # noqa: A001 -- its name
            found.setdefault(name_of_id(id), set()).add(id)
    return found


def _listed(
    state: State, board: Board, name: str, held: Ids, certified: Ids, now_ms: int
) -> list[str]:
    """The ids of the windows of one name that can be read or have a final, the newest first."""
    if is_sliding(name):
        return [name]
    kept = _kept(state, board, name, held, now_ms)
    return kept + sorted(certified.get(name, set()) - set(kept), reverse=True)


def _kept(state: State, board: Board, name: str, held: Ids, now_ms: int) -> list[str]:
    """The ids of the windows of one name that can be read, the newest first.

    There may be very many, and ids sort by time: what is kept no longer is the end of the list.
    """
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


def _state(state: State, placed: Placed, final: Final, now_ms: int) -> WindowState:
    window, series = placed.window, placed.counted.series
    if window.name == "all":
        return WindowState("all", "open", None, None, None, None)
    start, end = rfc3339(window.start_ms), rfc3339(window.end_ms)
    if window.name != series.name:  # a sliding one: it never closes
        return WindowState(window.id, "open", start, end, None, None)
    stage = window_stage(state, placed, final, now_ms)
    waits_for: list[str] | UnsetType = UNSET
    if stage != "open" and certifiable(placed):
        marks, members = placed.counted.marks, [its.name for its in state.ring.active()]
        waits = waits_of(final, members, lambda name: state.marks.closed_by(name, marks, window.id))
        waits_for = list(waits.agents) or UNSET
    shown = WindowState(
        window=window.id,
        state=stage,
        start=start,
        end=end,
        closes_at=rfc3339(window.end_ms + series.grace_ms),
        expires_at=None if placed.expires_ms is None else rfc3339(placed.expires_ms),
        waits_for=waits_for,
    )
    return _shown_final(shown, final)


def _shown_final(shown: WindowState, final: Final) -> WindowState:
    """A window's state with its certified final, where it has one."""
    told = final.in_force
    if told is not None:
        said = certificate_answer(final, told)
        first = min(said.certified_at.values())  # all are of one form, so text sorts as time
        shown.final = FinalOfWindow(said.version, said.hash, said.mode, said.members, first)
    return shown
