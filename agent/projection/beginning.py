"""The three ways to begin: to go on from my watermark, to take another's over, to fill everything.

Each returns the follower that goes on from there. They raise what `Link.write` raises; whatever
was done by then stands in Redis, and is found there when it is looked at again.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from agent.projection.follower import Follower, Log, Terms
from agent.projection.keys import Claim, Fields, Watermark, least_as_of, least_vv
from agent.projection.knowledge import read_knowledge
from agent.projection.link import Link
from agent.projection.place import Clock, PlaceId
from agent.projection.places import Places
from agent.projection.status import Counts
from agent.store.snapshot import SqliteSnapshot


class _Start(NamedTuple):
    """A state from which a log is followed: the places that there should be, and where it is."""

    places: Places
    lsn: int
    vv: Mapping[int, int]


def _read_start(snapshot: SqliteSnapshot, counts: Counts, clock: Clock) -> _Start:
    """All at once, on a reader's thread: windows may be many."""
    places = Places(read_knowledge(snapshot), counts, clock)
    places.expect(snapshot.spaces())
    return _Start(places, snapshot.newest_lsn, dict(snapshot.vv))


class Beginning:
    """Makes followers, over one link and one log."""

    def __init__(self, link: Link, log: Log, counts: Counts, terms: Terms) -> None:
        self._link = link
        self._log = log
        self._counts = counts
        self._terms = terms

    async def go_on(self, watermark: Watermark) -> Follower:
        """Go on from a watermark of mine: find out which windows are complete."""
        places = (await self._read()).places
        expected = places.of("")
        found = await self._link.hashes([place.meta for place in expected])
        metas = {place.id: meta for place, meta in zip(expected, found, strict=True)}
        self._link.adopt(watermark)
        return await self._follower(places, metas)

    async def take_over(self, found: Watermark, claim: Claim) -> Follower:
        """Make a found watermark mine, and have its boards filled anew while they are served.

        My rows may lie anywhere below its lsn, so the lsn begins anew at the head of my log; and
        what Redis includes is only what both of us had, until all windows are filled from my file.
        """
        _, mine = await self._fresh(claim)
        watermark = replace(
            mine, vv=least_vv(found.vv, mine.vv), as_of=least_as_of(found.as_of, mine.as_of)
        )
        await self._link.take_over(watermark, found)
        self._counts.take_overs += 1
        return await self.go_on(watermark)

    async def rebuild(self, live: Fields, progress: Fields, claim: Claim) -> Follower:
        """Start to fill everything anew, in place of what was found."""
        start, watermark = await self._fresh(claim)
        await self._link.begin(watermark, live, progress)
        self._counts.rebuilds += 1
        return await self._follower(start.places, {})

    async def _fresh(self, claim: Claim) -> tuple[_Start, Watermark]:
        """A state at the head of my log, and a watermark there."""
        # Both are taken before the snapshot, so what they claim is in it.
        state, now_ms = self._log.state(), self._log.now_ms()
        start = await self._read()
        return start, Watermark(
            claim=claim,
            lsn=start.lsn,
            # Random, so that late commands of an earlier life of Redis never fit.
            batch=secrets.randbits(48),
            vv=start.vv,
            as_of=state.as_of(now_ms),
            lease_until_ms=self._link.lease_until_ms(),
            tenure=secrets.token_hex(8),
        )

    async def _read(self) -> _Start:
        read = partial(_read_start, counts=self._counts, clock=self._terms.clock)
        return await self._log.readers.read(read)

    async def _follower(self, places: Places, metas: Mapping[PlaceId, Fields]) -> Follower:
        watermark = self._link.watermark
        nonce = f"{watermark.batch:x}"
        for change in places.adopt(metas, nonce, watermark.tenure, watermark.as_of):
            if change:
                await self._link.write(change)
        return Follower(self._link, self._log, places, self._counts, self._terms)
