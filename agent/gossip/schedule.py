"""When to exchange with whom: fan-out, jitter and backoff, as pure functions of their arguments."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import TypeVar

Peer = TypeVar("Peer")
JITTER = 0.2
BACKOFF_FIRST_S = 1.0
PARTIAL_FANOUT_STALEST = 1
PARTIAL_FANOUT_RANDOM = 2


def chosen(stalest_first: Sequence[Peer], all_max: int, random: Random) -> list[Peer]:
    """The peers of one round: all of them up to `all_max`, else the stalest and two at random.

    Args:
        stalest_first: every peer that may be tried now, the longest without success first.
    """
    if len(stalest_first) <= all_max:
        return list(stalest_first)
    rest = stalest_first[PARTIAL_FANOUT_STALEST:]
    return [
        *stalest_first[:PARTIAL_FANOUT_STALEST],
        *random.sample(rest, PARTIAL_FANOUT_RANDOM),
    ]


def jittered(interval_s: float, random: Random) -> float:
    """The interval +-20 %, so that agents started together do not stay in step."""
    return interval_s * random.uniform(1 - JITTER, 1 + JITTER)


def backoff_s(failures: int, max_s: float, random: Random) -> float:
    """How long to leave a peer alone after `failures` >= 1 in a row: full jitter, for ever bounded.

    Brooker: Exponential backoff and jitter (AWS Architecture Blog, 2015).
    """
    ceiling = min(max_s, BACKOFF_FIRST_S * 2.0 ** min(failures - 1, 30))
    return random.uniform(ceiling / 10, ceiling)
