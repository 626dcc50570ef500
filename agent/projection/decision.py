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
class TakeOver:
    """Make this watermark, of another log, mine; its boards are served while mine are filled."""

    watermark: Watermark
    reason: str


@dataclass(frozen=True, slots=True)
class Rebuild:
    """Fill everything anew, in place of what was found."""

    reason: str


@dataclass(frozen=True, slots=True)
class Wait:
    """Another agent of my region projects; look again. `watermark` is what it has done so far."""

    watermark: Watermark
    rebuilding: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Refuse:
    """This Redis belongs to somebody else: never touch it, look again later."""

    reason: str


Decision: TypeAlias = Follow | TakeOver | Rebuild | Wait | Refuse


def decide(
    live: Fields, progress: Fields, me: Claim, newest_lsn: int, *, lapsed: bool, deposed: bool
) -> Decision:
    """What to do about the watermark and the progress of a rebuild, as found.

    Args:
        newest_lsn: the head of my log.
        lapsed: what was found has not changed for as long as a lease lasts.
        deposed: I have projected this log before, in this process. Then another log of my own name
            is not what I left behind: somebody else runs under my name now.
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
        if rebuild is not None and not lapsed and _is_rival(rebuild, me, deposed=deposed):
            return Wait(rebuild, rebuilding=True, reason=_holder(rebuild, me))
        return Rebuild("there is no watermark")
    watermark = watermark_in(live)
    if watermark is None:
        return Rebuild("the watermark can't be read")
    if not lapsed and _is_rival(watermark, me, deposed=deposed):
        return Wait(watermark, rebuilding=False, reason=_holder(watermark, me))
    if watermark.code != CODE_VERSION:
        return Rebuild(f"filled by code version {watermark.code}, this is {CODE_VERSION}")
    if watermark.claim.agent != me.agent:
        return TakeOver(watermark, f"the lease of agent {watermark.claim.agent!r} is over")
    if watermark.claim.log != me.log:
        return TakeOver(watermark, "the watermark is of another log of this agent")
    if watermark.lsn > newest_lsn:
        return TakeOver(
            watermark, f"the watermark, {watermark.lsn}, is beyond my log, {newest_lsn}"
        )
    return Follow(watermark)


def _is_rival(watermark: Watermark, me: Claim, *, deposed: bool) -> bool:
    """Whether somebody else wrote it and has not given the lease up."""
    other = watermark.claim.agent != me.agent or (deposed and watermark.claim.log != me.log)
    return other and watermark.lease_until_ms > 0


def _holder(watermark: Watermark, me: Claim) -> str:
    if watermark.claim.agent == me.agent:
        return (
            f"another process projects under the name of this agent, {me.agent!r}:"
            " stop one of the two"
        )
    return f"agent {watermark.claim.agent!r} holds the lease"
