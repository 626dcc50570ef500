"""Showing boards: a definition with its defaults, and its windows as they stand."""

from __future__ import annotations

from msgspec import UNSET, UnsetType

from agent.api.answers import FullDefinition, FullWindow, WindowOfBoard
from agent.boards.catalog import Board, Counted, Sliding
from agent.boards.definition import Definition
from agent.boards.entry import rfc3339
from agent.boards.scale import Scale
from agent.boards.windows import Window, WindowSpec, duration_text, is_sliding, series_of


def full(definition: Definition) -> FullDefinition:
    """A definition with its defaults filled in."""
    remembers = definition.rule == "sum" and definition.results is None
    return FullDefinition(
        rule=definition.rule,
        order=definition.order,
        grow_only=definition.grow_only,
        ties=definition.tie_order,
        windows=[_full_window(spec) for spec in definition.windows],
        score=definition.score,
        rate=definition.rate,
        results=definition.results,
        key_retention=duration_text(definition.key_retention_ms) if remembers else None,
        half_life=definition.half_life,
    )


def _full_window(spec: WindowSpec) -> FullWindow:
    grace = keep = None
    certify: bool | UnsetType = UNSET
    if spec.name != "all" and not is_sliding(spec.name):
        series = series_of(spec)
        assert series.keep_ms is not None
        grace, keep = duration_text(series.grace_ms), duration_text(series.keep_ms)
        certify = spec.certify
    return FullWindow(spec.name, spec.zone, grace, keep, spec.start, spec.end, certify)


def windows_of(board: Board, now_ms: int) -> list[WindowOfBoard]:
    """The windows of a board in use, in their order, as they are at a time."""
    slidings = {sliding.name: sliding for sliding in board.slidings}
    shown = {its.series.name: its for its in board.counted if its.shown}
    return [
        _sliding(board, slidings[name], now_ms)
        if name in slidings
        else _counted(board, shown[name], now_ms)
        for name in board.window_names()
    ]


def _sliding(board: Board, sliding: Sliding, now_ms: int) -> WindowOfBoard:
    window = sliding.window(now_ms)
    return _shown(board.place(window).scale, window, sliding.name, window.end_ms)


def _counted(board: Board, counted: Counted, now_ms: int) -> WindowOfBoard:
    series = counted.series
    window = series.at(now_ms)
    if window is not None and window.start_ms < counted.opens_ms:  # added in its middle
        return _shown(_scale(board, window), None, series.name, window.end_ms)
    if window is not None:
        return _shown(_scale(board, window), window, series.name, window.end_ms)
    season = series.window(series.name)
    assert season is not None, "the years that agents' clocks show have all other windows"
    begins_ms = season.start_ms if now_ms < season.start_ms else None
    return _shown(_scale(board, season), None, series.name, begins_ms)


def _scale(board: Board, window: Window) -> Scale:
    return board.place(window).scale


def _shown(scale: Scale, window: Window | None, name: str, next_ms: int | None) -> WindowOfBoard:
    bounded = window if name != "all" else None
    return WindowOfBoard(
        name=name,
        tick_ms=scale.tick_ms if scale.b else None,
        b=scale.b,
        window=None if window is None else window.id,
        start=None if bounded is None else rfc3339(bounded.start_ms),
        end=None if bounded is None else rfc3339(bounded.end_ms),
        next_reset=None if next_ms is None or name == "all" else rfc3339(next_ms),
    )
