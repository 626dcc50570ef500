"""Repair: what no exchange mends is looked for all the time, and mended from the other agents.

    scrub    a slow walk over all cells, side by side with one peer after the other; a fast one with
             a peer that claims the same writes and has other cells
    mend     cells that do not hold what was written to them: what the peers have takes their place
    recount  once a day all sums over cells are added up anew, and after something was repaired

Reading runs on threads of its own, at a bounded pace; changes go through the commit queue.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

import structlog

from agent.committer import Commit
from agent.config import RepairSection
from agent.errors import ExchangeRefused, StoreError, TallyringError
from agent.gossip.link import Link
from agent.gossip.mending import Mender, named, told
from agent.gossip.peers import Peers
from agent.gossip.ranges import Ranges
from agent.gossip.walk import Walk
from agent.operation import Mend, Merged, Repair
from agent.store.readers import Readers
from agent.store.recount import Recount, recount
from agent.store.scrub import Findings, Pair
from agent.store.snapshot import SqliteSnapshot

log = structlog.get_logger("tallyring.repair")

DIVERGED_TIMES = 2  # a write in flight makes states differ once
DIVERGED_WAIT_S, DIVERGED_WAIT_MAX_S = 10.0, 600.0  # between fast passes with the same peer
FIRST_RECOUNT_S = 600.0  # after the start, if a day is not less
LOOK_S = 0.5
PAGE_COST_CELLS = 50  # what a page costs at the least, also an empty one
LOGGED_MAX = 20  # of one recount


class Repairer:
    """Looks for what is wrong and mends it until it is cancelled.

    Args:
        peers: what is known of the others.
        ranges: how they are asked.
        readers: of its own, so that it never delays those of exchanges and reads.
        settings: its pace.
    """

    def __init__(
        self, peers: Peers, ranges: Ranges, readers: Readers, settings: RepairSection
    ) -> None:
        self._peers = peers
        self._ranges = ranges
        self._readers = readers
        self._settings = settings
        self.mender = Mender(peers, ranges, readers, self.recount_soon)
        self.counts = self.mender.counts
        self._stopping = threading.Event()
        self._recount_at: float | None = None  # of the loop's clock, as all times here
        self._recounted_at = float("-inf")
        self._recounting = asyncio.Lock()
        self._waits: dict[str, tuple[float, float]] = {}  # diverged peer -> (not before, next wait)
        self._last_peer = ""
        ranges.repaired = self.recount_soon

    def committed(self, commit: Commit) -> None:
        """Told after each commit: mends soon what its transactions stumbled over."""
        for key in commit.damaged:
            self._peers.found_damage(key)

    async def run(self) -> None:
        """Look and mend for ever.

        Raises:
            StoreError: the file itself can't be read any more.
        """
        now = asyncio.get_running_loop().time()
        self._recount_at = now + min(FIRST_RECOUNT_S, self._settings.recount_s)
        try:
            async with asyncio.TaskGroup() as loops:
                loops.create_task(self._readers.watch())
                loops.create_task(self.mender.run())
                loops.create_task(self._scrub())
        finally:
            self._stopping.set()

    def walk(self, link: Link | None) -> Walk:
        """A walk over all cells; it begins now."""
        return Walk(self._readers, self._ranges, link)

    async def pace(self, cells: int) -> None:
        """Rest as long as so many cells may take where somebody waits."""
        await asyncio.sleep(max(cells, PAGE_COST_CELLS) / self._settings.fast_cells_per_s)

    # --- scrubbing -------------------------------------------------------------------------

    async def _scrub(self) -> None:
        while True:
            try:
                await self._urgent()
                await self._pass(self._next_peer(), fast=False)
            except TallyringError as error:  # the writer is busy, or the file can't be read now
                log.warning("repair goes on later", error=str(error))
            await self._rest(self._settings.rest_s)

    async def _urgent(self) -> None:
        """What goes before a slow walk: a peer that differs, and sums that may be wrong."""
        diverged = self._diverged()
        if diverged is not None:
            log.error("states differ that claim the same writes", peer=diverged.name)
            self._wait_longer(diverged.name)
            await self._pass(diverged, fast=True)
            self.recount_soon()
        if self._due():
            await self.recount_and_correct()

    def _due(self) -> bool:
        """Whether a recount is."""
        now = asyncio.get_running_loop().time()
        return self._recount_at is not None and now >= self._recount_at

    def _next_peer(self) -> Link | None:
        """The peers in turn; None where none can be asked."""
        links = [link for m in self._peers.others() if (link := self._reachable(m.name))]
        links.sort(key=lambda link: (link.name <= self._last_peer, link.name))
        if not links:
            return None
        self._last_peer = links[0].name
        return links[0]

    def _reachable(self, name: str) -> Link | None:
        link = self._peers.link_of(name)
        return link if link is not None and link.log and not link.failures_in_a_row else None

    def _diverged(self) -> Link | None:
        """A peer that claims what I claim and has other cells, and whose turn it is."""
        now = asyncio.get_running_loop().time()
        for link in self._peers.links.values():
            if link.diverged < DIVERGED_TIMES:
                self._waits.pop(link.name, None)
            elif link.log and now >= self._waits.get(link.name, (0.0, 0.0))[0]:
                return link
        return None

    def _wait_longer(self, name: str) -> None:
        wait_s = min(DIVERGED_WAIT_MAX_S, self._waits.get(name, (0.0, DIVERGED_WAIT_S))[1])
        now = asyncio.get_running_loop().time()
        self._waits[name] = (now + wait_s, 2 * wait_s)

    async def _pass(self, link: Link | None, *, fast: bool) -> None:
        """One walk over all cells; on without the peer where it stops answering."""
        walk = self.walk(link)
        found_any = False
        while not walk.done:
            before = walk.cells
            try:
                findings = await walk.step()
            except ExchangeRefused as error:
                log.info("scrub goes on alone", peer=link.name if link else "", error=str(error))
                walk.link = None
                continue
            self.counts.cells += walk.cells - before
            found_any = await self._take(findings, walk.link) or found_any
            if fast:
                await self.pace(walk.cells - before)
                continue
            cells = max(walk.cells - before, PAGE_COST_CELLS)
            await self._rest(cells / self._settings.cells_per_s)
            await self._urgent()
        self.counts.passes += 1
        if found_any:
            self.recount_soon()

    async def _take(self, findings: Findings, link: Link | None) -> bool:
        """Act on what a page showed; whether anything here was wrong."""
        for cell in findings.damaged:
            self._peers.found_damage(cell.row.key)
        for pair in findings.forked:
            log.error("one write, two values", **told(pair), peer=link.name if link else "")
        if findings.lacking:
            await self.repair(findings.lacking, link.name if link else "")
        return bool(findings.damaged or findings.lacking)

    async def repair(self, pairs: Sequence[Pair], peer: str) -> int:
        """Join cells that a peer has and this agent should have; how many changed.

        Raises:
            Refused: the writer is busy or the agent is stopping.
        """
        for pair in pairs:
            log.error("a cell was not what the version vector claims", **told(pair), peer=peer)
        rows = tuple(pair.there for pair in pairs if pair.there is not None)
        answer = (await self._peers.queue.submit(Repair(rows))).answer
        changed = answer.changed if isinstance(answer, Merged) else 0
        self.counts.repaired += changed
        return changed

    async def _rest(self, seconds: float) -> None:
        """Wait, but not where a peer is seen to differ or a recount is due."""
        loop = asyncio.get_running_loop()
        ends = loop.time() + seconds
        while (left := ends - loop.time()) > 0:
            await asyncio.sleep(min(LOOK_S, left))
            if self._due() or self._diverged() is not None:
                return

    # --- recounting ------------------------------------------------------------------------

    def recount_soon(self) -> None:
        """Have all sums added up anew: what was repaired may have been counted wrongly."""
        now = asyncio.get_running_loop().time()
        self._recount_at = max(now, self._recounted_at + self._settings.rest_s)

    async def recount(self) -> Recount:
        """Add up all sums anew, at the fast pace; nothing is changed.

        Raises:
            StoreError: the file can't be read, or the agent is stopping.
        """
        per_s = self._settings.fast_cells_per_s

        def pause(cells: int) -> None:
            if self._stopping.wait(cells / per_s):
                raise StoreError("the agent is stopping")

        def read(snapshot: SqliteSnapshot) -> Recount:
            return recount(snapshot, pause)

        found = await self._readers.read(read)
        self.counts.recounts += 1
        return found

    async def recount_and_correct(self) -> Recount:
        """Add up all sums anew, and put those right that were wrong; returns these.

        What a sum lacks is added to it, so that what is written meanwhile stays: two of these at
        once would both add it, and wait for each other instead.

        Raises:
            StoreError: the file can't be read, or the agent is stopping.
            Refused, Indefinite: the change was not stored.
        """
        async with self._recounting:
            self._recounted_at = asyncio.get_running_loop().time()
            self._recount_at = self._recounted_at + self._settings.recount_s
            found = await self.recount()
            for cell in found.damaged:
                self._peers.found_damage(cell.row.key)
            await self._correct(found)
        return found

    async def _correct(self, found: Recount) -> None:
        for wrong in found.sums[:LOGGED_MAX]:
            log.error("a bucket's sum is wrong", **wrong._asdict())
        for total in found.totals[:LOGGED_MAX]:
            space, member = total.member
            board, name, _ = named((space, member, b""))
            kept, counted = total.kept, total.counted
            log.error("a total is wrong", board=board, member=name, kept=kept, counted=counted)
        if found.flips or found.missing:
            log.error("the root or the number of cells is wrong", cells=found.missing)
        if found:
            await self._peers.queue.submit(Mend(correction=found.correction()))
            self.counts.sums += len(found.sums) + len(found.totals)
