"""What to do about the watermark that was found in Redis: the whole case distinction, pure.

Redis is a peer with a cursor, and the cursor is wherever the data is: whatever a flush, a failover,
a restored file or another agent did, the answer is in what stands in the hash.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from agent.projection.keys import (
    CODE_VERSION,
    WATERMARK_KEY,
    Claim,
    Fields,
    Watermark,
    guard_in,
    watermark_in,
)


@dataclass(frozen=True, slots=True)
class Follow:
    """Go on from this watermark: it is mine, and at or below the head of my log."""

    watermark: Watermark


@dataclass(frozen=True, slots=True)
class Rebuild:
    """Fill everything anew, in place of what was found."""

    reason: str


@dataclass(frozen=True, slots=True)
class Wait:
    """Another agent of my region projects; look again. `watermark` is what it has done so far."""

    watermark: Watermark
    rebuilding: bool


@dataclass(frozen=True, slots=True)
class Refuse:
    """This Redis belongs to somebody else: never touch it, look again later."""

    reason: str


Decision: TypeAlias = Follow | Rebuild | Wait | Refuse


def decide(live: Fields, progress: Fields, me: Claim, newest_lsn: int, now_ms: int) -> Decision:
    """What to do about the watermark and the progress of a rebuild, as found.

    Args:
        newest_lsn: the head of my log.
        now_ms: the time against which leases are compared.
    """
    for found in (live, progress):
        ring, region, *_ = guard_in(found)
        if found and (ring or region) and (ring, region) != (me.ring, me.region):
            return Refuse(
                f"{WATERMARK_KEY} is of ring {ring!r}, region {region!r}; this agent is of ring"
                f" {me.ring!r}, region {me.region!r}: give each region a Redis of its own"
            )
    if not live:
        rebuild = watermark_in(progress)
        if rebuild is not None and _held(rebuild, me, now_ms):
            return Wait(rebuild, rebuilding=True)
        return Rebuild("there is no watermark")
    watermark = watermark_in(live)
    if watermark is None:
        return Rebuild("the watermark can't be read")
    if _held(watermark, me, now_ms):
        return Wait(watermark, rebuilding=False)
    if watermark.claim.agent != me.agent:
        return Rebuild(f"the lease of agent {watermark.claim.agent!r} is over")
    if watermark.claim.log != me.log:
        return Rebuild("the watermark is of another log of this agent")
    if watermark.code != CODE_VERSION:
        return Rebuild(f"filled by code version {watermark.code}, this is {CODE_VERSION}")
    if watermark.lsn > newest_lsn:
        return Rebuild(f"the watermark, {watermark.lsn}, is beyond my log, {newest_lsn}")
    return Follow(watermark)


def _held(watermark: Watermark, me: Claim, now_ms: int) -> bool:
    """Whether another agent's lease still holds."""
    return watermark.claim.agent != me.agent and watermark.lease_until_ms > now_ms
