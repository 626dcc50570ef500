"""Hybrid logical clock: physical milliseconds and a counter in one integer, ms x 2**16 + counter.

Kulkarni, Demirbas, Madappa, Avva, Leone: Logical physical clocks (OPODIS 2014). The clock is one
integer; it only grows, it stays within AHEAD_MS_MAX of the fastest physical clock it has heard of,
and it is stored in the transaction that uses it.

Counter 0 is kept for events with a time of their own, which never move a clock: not the one that
takes them, and not those that hear of them.
"""

from __future__ import annotations

from agent.limits import AHEAD_MS_MAX

COUNTER_BITS = 16
COUNTER_MASK = 2**COUNTER_BITS - 1


def of_ms(ms: int) -> int:
    """The hybrid time of an event with a time of its own: counter 0."""
    return ms << COUNTER_BITS


def ms_of(hybrid_time: int) -> int:
    """The physical part, in ms since 1970."""
    return hybrid_time >> COUNTER_BITS


def tick(clock: int, now_ms: int) -> int:
    """The time of a local event: above every time this clock has given or heard of."""
    time = max(clock, of_ms(now_ms)) + 1
    return time if time & COUNTER_MASK else time + 1


def hear(clock: int, heard: int, now_ms: int) -> int:
    """The clock after a time from elsewhere was seen.

    A time further than AHEAD_MS_MAX ahead of the physical clock does not move it: one agent with a
    clock a day ahead must not drag all others with it. Nor does a time with counter 0.
    """
    if heard > clock and heard & COUNTER_MASK and ms_of(heard) <= now_ms + AHEAD_MS_MAX:
        return heard
    return clock
