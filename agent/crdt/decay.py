"""Exponential decay in integers: what was counted at a time is worth half one half-life later.

Forward decay (Cormode, Shkapenyuk, Srivastava, Xu: Forward decay: a practical time decay model for
streaming systems, ICDE 2009): an amount counts more the later it comes, relative to a landmark in
the past, so that nothing stored has to change while time goes by. Landmark n is the time
n x half-life: a pure function of an entry's time. A count at landmark n is the integer

    amount x 2**((at - landmark) / half-life)   in units of 2**-FRACTION_BITS, rounded up

and moves to landmark n + k by a shift of k bits. So each half-life halves what is stored, and it
never outgrows its integer however long the stream is. Powers of two come from a table of integers
and not from the machine's mathematics: regions that hold the same cells show the same numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isqrt

FRACTION_BITS = 16
_GUARD_BITS = 32  # kept below a unit while counts are added up and brought to one time
# A landmark further ahead of the time of reading is a damaged cell's: no shift may fill the memory.
_AHEAD_MAX = 64
_TIME_BITS = 24  # of one half-life: a time is rounded to a 16-millionth of it
_ONE_BITS = 64
_ONE = 1 << _ONE_BITS


def _tables() -> tuple[tuple[int, ...], ...]:
    """2**(i / 2**8), 2**(i / 2**16) and 2**(i / 2**24) for each byte i, in units of 1 / _ONE."""
    tables = []
    root = 2 * _ONE
    for _ in range(_TIME_BITS // 8):
        for _ in range(8):
            root = isqrt(root * _ONE)
        table = [_ONE]
        for _ in range(255):
            table.append(table[-1] * root >> _ONE_BITS)
        tables.append(tuple(table))
    return tuple(tables)


_HIGH, _MIDDLE, _LOW = _tables()


def _power_of_two(exponent: int) -> tuple[int, int]:
    """(mantissa, whole): 2**exponent = mantissa / _ONE x 2**whole, with 1 <= mantissa / _ONE < 2.

    `exponent` is in units of 2**-_TIME_BITS.
    """
    whole, part = divmod(exponent, 1 << _TIME_BITS)
    mantissa = _HIGH[part >> 16] * _MIDDLE[part >> 8 & 255] * _LOW[part & 255]
    return mantissa >> 2 * _ONE_BITS, whole


@dataclass(frozen=True, slots=True)
class Decay:
    """How counts age. `half_life_ms` >= 1; None: they don't, and every landmark is 0.

    Over the life of a count, moves between landmarks take less than 2 units (2**-15) from it.
    """

    half_life_ms: int | None = None

    def landmark(self, at_ms: int) -> int:
        """The number of the last landmark at or before a time."""
        return 0 if self.half_life_ms is None else at_ms // self.half_life_ms

    def weigh(self, amount: int, at_ms: int, landmark: int) -> int:
        """What `amount` > 0 at a time counts, relative to a landmark not before that time's own.

        At least one unit, so that whatever is counted makes a count grow.
        """
        if self.half_life_ms is None:
            return amount
        since_ms = at_ms - landmark * self.half_life_ms
        mantissa, whole = _power_of_two((since_ms << _TIME_BITS) // self.half_life_ms)
        assert whole <= 0, whole
        return -(-amount * mantissa >> _ONE_BITS - FRACTION_BITS - whole)

    def fine(self, count: int, landmark: int, now_ms: int) -> int:
        """A count at its landmark in the fine units of `shown` for that time: these add up."""
        if self.half_life_ms is None:
            return count
        halvings = self.landmark(now_ms) - landmark
        if halvings < 0:
            return count << _GUARD_BITS + min(-halvings, _AHEAD_MAX)
        return count << _GUARD_BITS >> halvings

    def shown(self, total: int, now_ms: int) -> int:
        """The whole number that a sum of `fine` counts is worth at that time, halves upwards."""
        if self.half_life_ms is None:
            return total
        since_ms = now_ms % self.half_life_ms
        mantissa, whole = _power_of_two(-(since_ms << _TIME_BITS) // self.half_life_ms)
        bits = FRACTION_BITS + _GUARD_BITS + _ONE_BITS - whole
        return (total * mantissa + (1 << bits - 1)) >> bits
