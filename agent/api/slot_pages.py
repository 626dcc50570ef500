"""Slot pages: a member's actors or results, by name, out of the spaces of one window.

A window that is stored has one space; a sliding one has those of its buckets, whose names are
merged. What is looked at for one page is bounded, whatever was taken away in between, so a page may
be short, or empty, and still have a `next`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from agent.boards.catalog import Placed
from agent.crdt.cell import Value
from agent.crdt.slot import Kind
from agent.errors import Gone
from agent.state import State
from agent.store.snapshot import SqliteSnapshot

PAGE_CELLS_MAX = 20_000  # looked at for one page, over all spaces


class Found(NamedTuple):
    """A cell of a page: in which space, whose name, and what it holds."""

    space: bytes
    name: bytes
    value: Value


class Page(NamedTuple):
    """Cells in the order of their names. `next`: the name to go on after; None at the end."""

    found: list[Found]
    next: bytes | None


def spaces_of(placed: Placed, now_ms: int) -> tuple[bytes, ...]:
    """The spaces in which a window is stored, newest first; of a sliding one as it is now."""
    for sliding in placed.board.slidings:
        if sliding.name == placed.window.name:
            counted = sliding.counted
            buckets = counted.series.recent(now_ms, sliding.buckets)
            return tuple(counted.space_of(bucket) for bucket in reversed(buckets))
    return (placed.space,)


def check_open(state: State, *names: bytes) -> None:
    """Refuse what is about somebody who was erased.

    Raises:
        Gone: (`member_erased`)
    """
    if any(state.erased.closed(name) for name in names):
        raise Gone("member_erased", "member: this name was erased and is closed for good")


def read_page(
    snapshot: SqliteSnapshot,
    spaces: tuple[bytes, ...],
    member: bytes,
    kind: Kind,
    after: bytes,
    limit: int,
    shown: Callable[[Value], bool],
) -> Page:
    """The next cells of a kind that are shown, at most `limit`, each name once.

    Args:
        after: the name that the page before ended with; empty for the first page.
        limit: at least 1.
        shown: whether a cell is one to show.
    """
    found: dict[bytes, Found] = {}
    looked_to: bytes | None = None
    budget = max(limit + 1, PAGE_CELLS_MAX // len(spaces))
    for space in spaces:
        part = _read_space(snapshot, space, member, kind, after, limit, shown, budget)
        for cell in part.found:
            found.setdefault(cell.name, cell)
        if part.next is not None:
            looked_to = part.next if looked_to is None else min(looked_to, part.next)
    names = sorted(name for name in found if looked_to is None or name <= looked_to)
    page = [found[name] for name in names[:limit]]
    if len(names) > limit:
        return Page(page, page[-1].name)
    return Page(page, looked_to)


def _read_space(
    snapshot: SqliteSnapshot,
    space: bytes,
    member: bytes,
    kind: Kind,
    after: bytes,
    limit: int,
    shown: Callable[[Value], bool],
    budget: int,
) -> Page:
    """One space's part of a page: one cell more than `limit`, if there are so many."""
    prefix = bytes([kind])
    found: list[Found] = []
    last = prefix + after if after else b""
    while budget > 0:
        wanted = min(budget, max(limit + 1 - len(found), 256))
        cells = snapshot.slots_from(space, member, prefix, last, wanted)
        for slot, value in cells:
            if shown(value):
                found.append(Found(space, slot[1:], value))
                if len(found) > limit:
                    return Page(found, slot[1:])
        if len(cells) < wanted:
            return Page(found, None)
        last = cells[-1][0]
        budget -= len(cells)
    return Page(found, last[1:])
