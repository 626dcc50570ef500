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
from agent.boards.windows import Window, buckets_of, is_sliding, series_of
from agent.errors import OutOfRange

EXACT_BITS = 53
TICKS_MS = (1, 1_000, 60_000)


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


def scale_of(definition: Definition, window: Window, span_ms: int) -> Scale:
    """The scale of one window of a board: the finest tick that fits beside the score range.

    `span_ms` is the longest that a window of its series can be: they all have the same tick.

    Raises:
        OutOfRange: (`tie_budget`) no tick fits; the ways out are named.
    """
    low, high = definition.score_range()
    bits = max(abs(low), abs(high)).bit_length()
    ties = definition.tie_order
    if ties not in TIMED_TIES:
        return Scale(ties, definition.low, 0, window.start_ms, 1)
    b = EXACT_BITS - bits
    for tick_ms in TICKS_MS:
        if span_ms // tick_ms < 2**b:
            return Scale(ties, definition.low, b, window.start_ms, tick_ms)
    needed = (span_ms // TICKS_MS[-1]).bit_length()
    raise OutOfRange(
        "tie_budget",
        f"score: the range {low}..{high} takes {bits} of 53 bits; the remaining {b} can't tell the"
        f" times of the window {window.name!r} apart, even in minutes ({needed} bits are needed)",
        hint=f"narrow score.min and score.max to +-(2^{EXACT_BITS - needed} - 1), or choose ties"
        " 'shared' or 'member'",
    )


def check_budget(definition: Definition) -> None:
    """Check that each window of a board has a scale.

    Raises:
        OutOfRange: (`tie_budget`) as `scale_of`.
    """
    for spec in definition.windows:
        window = Window(spec.name, spec.name, 0, 0)
        if is_sliding(spec.name):
            bucket, count = buckets_of(spec)
            scale_of(definition, window, (count + 1) * series_of(bucket).span_ms)
        else:
            scale_of(definition, window, series_of(spec).span_ms)
