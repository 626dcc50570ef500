"""What the projector tells about itself: for readiness, metrics and the console."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class Phase(StrEnum):
    """What the projector is doing."""

    STARTING = "starting"
    FOLLOWING = "following"
    REBUILDING = "rebuilding"  # everything: no board is served
    WAITING = "waiting"  # another agent of the region holds the lease
    REFUSED = "refused"  # this Redis belongs to another ring or region
    DOWN = "down"  # Redis does not answer


class BoardState(StrEnum):
    """Whether the ranks of a board's window can be read from Redis."""

    READY = "ready"
    REBUILDING = "rebuilding"
    DOWN = "down"


@dataclass(slots=True)
class Counts:
    """What the projector has done since it started.

    members: scores written while following the log; refilled: written by scans of whole boards.
    clamped: of both, those beyond what a Redis score carries.
    rebuilds: of everything, begun; refills: of windows, begun, also those of a rebuild.
    computed: windows put in place that are computed now and then: sliding ones and trends.
    take_overs: of what another agent or another log of this agent had projected.
    lost: windows whose keys were missing in Redis, and which were filled anew for that.
    leftovers: keys removed that belonged nowhere: what a crash has left, or others have written.
    mismatches: changes refused because the watermark was not what was expected.
    failures: turns that ended with an error of Redis.
    """

    members: int = 0
    refilled: int = 0
    clamped: int = 0
    batches: int = 0
    rebuilds: int = 0
    refills: int = 0
    computed: int = 0
    take_overs: int = 0
    lost: int = 0
    leftovers: int = 0
    mismatches: int = 0
    failures: int = 0


@dataclass(frozen=True, slots=True)
class Status:
    """One look at the projector.

    error: why it is down, refused or waiting, and what to do about it; empty otherwise.
    lsn: up to where my log is in Redis; 0 while another agent's is.
    as_of: what Redis includes, by region, ms since 1970.
    behind_s: how long the oldest commit that is not in Redis has waited; 0 at the head.
    boards_rebuilding: those of which a window is being filled; some may be served meanwhile
        (`state_of`).
    refill_done, refill_total: members of the windows being filled, but for those that are computed
        now and then; the total is None until it is known.
    """

    phase: Phase
    error: str
    lsn: int
    as_of: Mapping[str, int | None]
    behind_s: float
    boards_rebuilding: tuple[str, ...]
    refill_done: int
    refill_total: int | None
    counts: Counts
