"""Incarnations: the identity under which an agent writes its own slots.

An incarnation is 42 bits of milliseconds since 2024-01-01 and 22 random bits: unique, ordered by
the time it was minted, and positive in a signed 64-bit integer until 2093. It is minted for a new
database and whenever a slot might otherwise go backwards; never shared, never reused.
"""

from __future__ import annotations

EPOCH_MS = 1_704_067_200_000  # 2024-01-01T00:00:00Z
RANDOM_BITS = 22


def mint(now_ms: int, random_bits: int, above: int = 0) -> int:
    """A new incarnation, greater than `above` also where the clock is behind.

    `random_bits` are RANDOM_BITS bits from the caller's generator.
    """
    ms: int = max(now_ms - EPOCH_MS, 1, (above >> RANDOM_BITS) + 1) % 2**41
    low_bits: int = random_bits % 2**RANDOM_BITS
    return (ms << RANDOM_BITS) | low_bits


def minted_ms(inc: int) -> int:
    """When the incarnation was minted, in ms since 1970."""
    return (inc >> RANDOM_BITS) + EPOCH_MS
