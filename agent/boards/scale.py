"""Scales: how a score and the time it was reached share the 53 exact bits of a Redis score.

With ties `first` or `last`, composite = score x 2**b + tie, where b = 53 - bits and bits is the bit
length of the greatest |score| in range. On high boards the composite is read from the top, so
`first` stores tie = 2**b - 1 - t; on low boards it is read from the bottom and stores t; `last` the
reverse. t counts ticks since the window's start, clamped to 0..2**b - 1. With ties `shared` or
`member`, b is 0 and the composite is the score. Decoding is floor(composite / 2**b), also below
zero.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from agent.boards.definition import TIMED_TIES, Definition
from agent.errors import OutOfRange

EXACT_BITS = 53
TICKS_MS = (1, 1_000, 60_000)
# The window `all` spans 2000-01-01 to 2063-01-01, so that history can be imported: with the
# default score range, 25 bits of minutes hold it.
ALL_START_MS = 946_684_800_000
ALL_END_MS = 2_934_835_200_000


@dataclass(frozen=True, slots=True)
class Scale:
    """How one board's window maps to Redis scores. Times are in ms since 1970.

    `b` is the number of bits below the score; `tick_ms` is the unit of the time kept in them.
    `score_limit` is the greatest |score| that Redis can carry exactly beside the time.
    """

    ties: str
    low: bool
    b: int
    epoch_ms: int
    tick_ms: int
    score_limit: int = field(init=False)
    _last_tick: int = field(init=False, repr=False)
    _rises_with_time: bool = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Work out what every conversion needs."""
        object.__setattr__(self, "score_limit", (1 << (EXACT_BITS - self.b)) - 1)
        object.__setattr__(self, "_last_tick", (1 << self.b) - 1)
        object.__setattr__(self, "_rises_with_time", (self.ties == "last") != self.low)

    def composite(self, score: int, reached_ms: int) -> int:
        """The Redis score: an integer of at most 2**53 - 1 in size. What is outside clamps."""
        limit, last_tick = self.score_limit, self._last_tick
        clamped = limit if score > limit else -limit if score < -limit else score
        if not last_tick:
            return clamped
        ticks = (reached_ms - self.epoch_ms) // self.tick_ms
        ticks = 0 if ticks < 0 else last_tick if ticks > last_tick else ticks
        return (clamped << self.b) + (ticks if self._rises_with_time else last_tick - ticks)

    def score_of(self, composite: int) -> int:
        """The score in a Redis score: exact, unless it stands at the limit (then clamped)."""
        return composite >> self.b

    def reached_ms_of(self, composite: int) -> int | None:
        """The start of the tick in which the score was reached; None where no time is kept."""
        if not self.b:
            return None
        tie = composite & self._last_tick
        ticks = tie if self._rises_with_time else self._last_tick - tie
        return self.epoch_ms + ticks * self.tick_ms


def scale_of(definition: Definition) -> Scale:
    """The scale of a board's window `all`: the finest tick that fits beside the score range.

    Raises:
        OutOfRange: (`tie_budget`) no tick fits; the ways out are named.
    """
    low, high = definition.score_range()
    bits = max(abs(low), abs(high)).bit_length()
    if definition.ties not in TIMED_TIES:
        return Scale(definition.ties, definition.low, 0, ALL_START_MS, 1)
    b = EXACT_BITS - bits
    for tick_ms in TICKS_MS:
        if (ALL_END_MS - ALL_START_MS) // tick_ms < 2**b:
            return Scale(definition.ties, definition.low, b, ALL_START_MS, tick_ms)
    raise OutOfRange(
        "tie_budget",
        f"score: the range {low}..{high} takes {bits} of 53 bits; the remaining {b} can't tell the"
        f" times of the window 'all' apart, even in minutes (25 bits are needed)",
        hint="narrow score.min and score.max to +-(2^28 - 1), or choose ties 'shared' or 'member'",
    )
