"""Outliers: members whose scores lie far from all others', for somebody to look at.

The rule is Tukey's fence for what is *far out*, three times the spread of the middle half beyond
its better end (Exploratory Data Analysis, 1977), on the window's own scores as they are ranked. It
needs no model of a game, and what it flags is at most a quarter of a board, whatever its scores
are. outliers.lua has the arithmetic.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from agent.boards.catalog import Placed
from agent.projection.reads import Ranked, Ranks, ranked
from agent.projection.scripts import Script

OUTLIERS = Script("outliers.lua")
MEMBERS_MIN = 20  # with fewer, quartiles say little
SPREADS = 3


@dataclass(frozen=True, slots=True)
class Fence:
    """Where a window's middle half lies, in scores, and beyond what is flagged.

    spread: q3 - q1, or where that is 0 a tenth of the median's size, rounded up and at least 1.
    """

    q1: int
    median: int
    q3: int
    spread: int
    fence: int


@dataclass(frozen=True, slots=True)
class Outliers:
    """A part of the flagged members of a window, best first.

    total: how many members the window has; with fewer than MEMBERS_MIN there is no fence.
    flagged: how many of them are beyond it.
    as_of: as in a `View`.
    """

    entries: tuple[Ranked, ...]
    total: int
    flagged: int
    fence: Fence | None
    as_of: Mapping[str, int | None]


async def read_outliers(ranks: Ranks, placed: Placed, offset: int, limit: int) -> Outliers:
    """At most `limit` of the flagged members after the best `offset`.

    Raises:
        Unavailable: as `Ranks`.
    """
    look = await ranks.look(OUTLIERS, placed, (MEMBERS_MIN, SPREADS, offset, limit))
    total, *found = look.rest or (0,)
    if not found:
        return Outliers((), total, 0, None, look.as_of)
    numbers, flagged, first, better, flat = found
    entries = ranked(look.scale, first, better, flat)
    fence = fence_of(*numbers, low=look.scale.low)
    return Outliers(entries, total, flagged, fence, look.as_of)


def fence_of(q1: int, median: int, q3: int, *, low: bool) -> Fence:
    """The fence of a window by its quartiles, as outliers.lua has it; exact in every size."""
    spread = q3 - q1 or max(1, -(-abs(median) // 10))
    return Fence(q1, median, q3, spread, q1 - SPREADS * spread if low else q3 + SPREADS * spread)
