"""The three ways to begin: to go on from my watermark, to take another's over, to fill everything.

Each returns the follower that goes on from there. They raise what `Link.write` raises; whatever
was done by then stands in Redis, and is found there when it is looked at again.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import replace

from agent.boards.catalog import Catalog
from agent.projection.follower import Follower, Log
from agent.projection.keys import Claim, Fields, Watermark, least_as_of, least_vv, meta_key
from agent.projection.link import Link
from agent.projection.refill import WINDOW, Places
from agent.projection.source import read_catalog
from agent.projection.status import Counts


class Beginning:
    """Makes followers, over one link and one log.

    Args:
        batch_members_max, touch_s, announce: as of `Follower`.
    """

    def __init__(
        self,
        link: Link,
        log: Log,
        counts: Counts,
        *,
        batch_members_max: int,
        touch_s: float,
        announce: Callable[[], None],
    ) -> None:
        self._link = link
        self._log = log
        self._counts = counts
        self._batch_members_max = batch_members_max
        self._touch_s = touch_s
        self._announce = announce

    async def go_on(self, watermark: Watermark) -> Follower:
        """Go on from a watermark of mine: find out which boards are complete."""
        catalog = await self._log.readers.read(read_catalog)
        names = [board.name for board in catalog]
        found = await self._link.hashes([meta_key(name, WINDOW) for name in names])
        places = Places(catalog, self._counts)
        metas = dict(zip(names, found, strict=True))
        change = places.adopt(metas, f"{watermark.batch:x}", watermark.tenure)
        self._link.adopt(watermark)
        await self._link.write(change)
        return self._follower(places)

    async def take_over(self, found: Watermark, claim: Claim) -> Follower:
        """Make a found watermark mine, and have its boards filled anew while they are served.

        My rows may lie anywhere below its lsn, so the lsn begins anew at the head of my log; and
        what Redis includes is only what both of us had, until all boards are filled from my file.
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
        catalog, watermark = await self._fresh(claim)
        await self._link.begin(watermark, live, progress)
        places = Places(catalog, self._counts)
        places.adopt({}, f"{watermark.batch:x}", watermark.tenure)
        self._counts.rebuilds += 1
        return self._follower(places)

    async def _fresh(self, claim: Claim) -> tuple[Catalog, Watermark]:
        """The catalog at the head of my log, and a watermark there."""
        # Both are taken before the snapshot, so what they claim is in it.
        state, now_ms = self._log.state(), self._log.now_ms()
        catalog, lsn, vv = await self._log.readers.read(
            lambda snapshot: (read_catalog(snapshot), snapshot.newest_lsn, snapshot.vv)
        )
        return catalog, Watermark(
            claim=claim,
            lsn=lsn,
            # Random, so that late commands of an earlier life of Redis never fit.
            batch=secrets.randbits(48),
            vv=vv,
            as_of=state.as_of(now_ms),
            lease_until_ms=self._link.lease_until_ms(),
            tenure=secrets.token_hex(8),
        )

    def _follower(self, places: Places) -> Follower:
        return Follower(
            self._link,
            self._log,
            places,
            self._counts,
            batch_members_max=self._batch_members_max,
            touch_s=self._touch_s,
            announce=self._announce,
        )
