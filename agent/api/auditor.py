"""The audit: everything compared once, as a job that is asked how far it is.

    cells   every cell against its fingerprint, and every active peer, page by page
    sums    buckets and totals, added up anew
    ranks   SQLite against Redis, board by board

Without `repair` nothing is changed by it. With it each difference is mended where it is found, then
looked at again: what is told as mended was seen to be so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from redis.exceptions import RedisError

from agent.api.audit_report import (
    Difference,
    Part,
    Report,
    Wish,
    held_text,
    slot_name,
    value_text,
    wrong_sums,
)
from agent.boards.catalog import Board, Placed
from agent.crdt.cell import Key, Row
from agent.errors import ExchangeRefused, TallyringError, Unavailable, words_of
from agent.gossip.link import Link
from agent.gossip.mending import named
from agent.gossip.peers import Peers
from agent.gossip.ranges import Ranges
from agent.gossip.repair import Repairer
from agent.gossip.walk import Walk
from agent.projection.audit import Comparison, compare_window
from agent.projection.connection import RankClient
from agent.projection.projector import Projector
from agent.store.readers import Readers
from agent.store.scrub import Findings, Pair
from agent.store.snapshot import SqliteSnapshot

AGAIN_S = 10.0  # for what was mended to be seen so
RANKS_AGAIN_S = 120.0  # for a board to be filled anew
SKIP_AGAIN_S = 15.0  # for a board that is being filled
POLL_S = 0.1


class Auditor:
    """Makes audits, one at a time, until it is cancelled.

    Args:
        repairer, ranges, readers: how cells are read, compared and mended.
        client: of the region's Redis.
        projector: what fills it.
        now_ms: the physical clock.
    """

    def __init__(
        self,
        peers: Peers,
        repairer: Repairer,
        ranges: Ranges,
        readers: Readers,
        client: RankClient,
        projector: Projector,
        now_ms: Callable[[], int],
    ) -> None:
        self._peers = peers
        self._repairer = repairer
        self._ranges = ranges
        self._readers = readers
        self._client = client
        self._projector = projector
        self._now_ms = now_ms
        self._wanted = asyncio.Event()
        self.report = Report()

    def start(self, wish: Wish) -> Report:
        """Begin an audit.

        Raises:
            Unavailable: one is running.
        """
        if self.report.state == "running":
            raise Unavailable("busy", "an audit is running", hint="GET /v1/audit shows how far")
        self.report = Report("running", wish, self._now_ms())
        self._wanted.set()
        return self.report

    async def run(self) -> None:
        """Do what `start` asks for, for ever."""
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            report = self.report
            try:
                await self._cells(report)
                await self._sums(report)
                await self._ranks(report)
                report.state, report.progress = "done", 1.0
            except TallyringError as error:  # the writer is busy, or the file can't be read
                report.state, report.error = "failed", str(error)
            report.step, report.ended_ms = "", self._now_ms()

    # --- cells -----------------------------------------------------------------------------

    async def _cells(self, report: Report) -> None:
        others = self._peers.others()
        report.peers = [Part(member.name) for member in others]
        seen: set[tuple[str, Key]] = set()
        parts: Sequence[Part | None] = report.peers or [None]
        for number, part in enumerate(parts):
            report.step = f"cells, with {part.name}" if part else "cells"
            link = None if part is None else self._peers.link_of(part.name)
            if part is not None and (link is None or not link.log):
                part.skipped, link = "was never reached", None
            await self._walk(report, part, link, seen, (number, len(parts)))

    async def _walk(
        self,
        report: Report,
        part: Part | None,
        link: Link | None,
        seen: set[tuple[str, Key]],
        share: tuple[int, int],
    ) -> None:
        """One pass with one peer; alone where it can't be reached. Cells are the first third."""
        walk = self._repairer.walk(link)
        before = 0
        while not walk.done:
            try:
                findings = await walk.step()
                cells, before = walk.cells - before, walk.cells
                if findings:
                    await self._page(report, part, walk, findings, seen)
            except ExchangeRefused as error:
                assert part is not None
                part.skipped, walk.link = str(error), None
                continue
            if part is not None:
                part.compared = walk.cells if walk.link is not None else part.compared
            report.cells = max(report.cells, walk.cells)
            whole = max(1, self._peers.queue.cells)
            report.progress = (share[0] + min(1.0, walk.cells / whole)) / share[1] / 3
            await self._repairer.pace(cells)

    async def _page(
        self,
        report: Report,
        part: Part | None,
        walk: Walk,
        findings: Findings,
        seen: set[tuple[str, Key]],
    ) -> None:
        """List what a page shows, mended if that is wanted."""
        peer = part.name if part is not None else ""
        notes: dict[Key, str] = {}
        left: set[tuple[str, Key]] = set(_by_kind(findings))
        known = {key: pair for (_, key), pair in _by_kind(findings).items()}
        if report.wish.repair:
            notes = await self._repair(walk.link, findings)
            left = await self._look_again(walk, left)
        fetched = await self._readers.read(lambda found: _rows(found, findings.damaged_there))
        ring = self._peers.state.ring
        for (kind, key), pair in _by_kind(findings).items():
            identity = ("" if kind == "damaged" else peer, key)
            board, member, _ = named(key)
            if identity in seen or (report.wish.boards and board not in report.wish.boards):
                continue
            seen.add(identity)
            if part is not None and kind != "damaged":
                part.differences += 1
            here = fetched.get(key) if kind == "damaged_there" else known[key].here
            report.add(
                Difference(
                    kind=kind,
                    board=board,
                    member=member,
                    slot=slot_name(key[2], ring),
                    other="" if kind == "damaged" else peer,
                    here=value_text(here),
                    there="damaged" if kind == "damaged_there" else value_text(pair.there),
                    mended=report.wish.repair and (kind, key) not in left,
                    note=notes.get(key, ""),
                )
            )

    async def _repair(self, link: Link | None, findings: Findings) -> dict[Key, str]:
        """Mend what a page shows, here and at the peer; what is to be said of some cells."""
        notes: dict[Key, str] = {}
        if findings.damaged:
            keys = [cell.row.key for cell in findings.damaged]
            verdicts = await self._repairer.mender.mend(keys, decide=True)
            for key, verdict in verdicts.items():
                lost = "; what it held is lost" if verdict.lost else ""
                notes[key] = verdict.why + lost
        if link is None:
            return notes
        if findings.lacking:
            await self._repairer.repair(findings.lacking, link.name)
            self._repairer.recount_soon()
        mine = await self._readers.read(lambda found: _rows(found, findings.damaged_there))
        rows = [pair.here for pair in findings.lacking_there if pair.here is not None]
        rows += [row for row in mine.values() if row is not None]
        if rows:
            await self._ranges.offer(link, rows)
        return notes

    async def _look_again(self, walk: Walk, wrong: set[tuple[str, Key]]) -> set[tuple[str, Key]]:
        """Which of these are still so, after some time if need be."""
        ends = asyncio.get_running_loop().time() + AGAIN_S
        while True:
            left = wrong & _by_kind(await walk.look_again()).keys()
            if not left or asyncio.get_running_loop().time() > ends:
                return left
            await asyncio.sleep(POLL_S)

    # --- sums ------------------------------------------------------------------------------

    async def _sums(self, report: Report) -> None:
        report.step, report.progress = "sums", 1 / 3
        left: dict[tuple[str, str, str], tuple[str, str]] = {}
        if report.wish.repair:
            found = await self._repairer.recount_and_correct()
            left = wrong_sums(await self._repairer.recount()) if found else left
        else:
            found = await self._repairer.recount()
        wrong = wrong_sums(found)
        for (board, member, slot), (kept, counted) in wrong.items():
            if report.wish.boards and board not in report.wish.boards:
                continue
            mended = report.wish.repair and (board, member, slot) not in left
            kind, shown = ("total", "") if member else ("bucket", slot)
            report.add(Difference(kind, board, member, shown, "", kept, counted, mended))

    # --- ranks -----------------------------------------------------------------------------

    async def _ranks(self, report: Report) -> None:
        boards = [
            board
            for board in self._peers.state.catalog
            if not report.wish.boards or board.name in report.wish.boards
        ]
        for number, board in enumerate(boards):
            report.step = f"ranks of {board.name}"
            report.progress = (2 + number / len(boards)) / 3
            part = Part(board.name)
            report.boards.append(part)
            try:
                await self._board(report, board, part)
            except (RedisError, OSError, TimeoutError) as error:
                part.skipped = f"Redis does not answer: {words_of(error)}"

    async def _board(self, report: Report, board: Board, part: Part) -> None:
        """Compare all windows of a board; mended together, as they are filled together."""
        windows = self._projector.windows(board.name)
        if not windows:  # it says why there are none
            windows = [board.place(board.resolve(None, self._now_ms()))]
        found = [await self._compare(placed, SKIP_AGAIN_S) for placed in windows]
        part.compared = sum(each.members for each in found)
        part.differences = sum(each.count for each in found)
        part.skipped = next((each.skipped for each in found if each.skipped), "")
        unsettled = sum(each.unsettled for each in found)
        if unsettled and not part.skipped:
            part.skipped = f"{unsettled} members changed at every look"
        wrong = any(each.count for each in found)
        repaired = report.wish.repair and wrong and self._projector.repair(board.name)
        for placed, each in zip(windows, found, strict=True):
            if each.count:
                left = await self._filled(placed) if repaired else None
                self._tell(report, placed, each, left)

    def _tell(
        self, report: Report, placed: Placed, found: Comparison, left: set[bytes] | None
    ) -> None:
        """List what differs in a window. `left`: what still does; None: nobody can tell."""
        for each in found.differences:
            report.add(
                Difference(
                    kind="rank",
                    board=placed.board.name,
                    member=each.member.decode(errors="backslashreplace"),
                    slot="" if placed.window.id == "all" else placed.window.id,
                    other="redis",
                    here="nothing" if each.score is None else f"score {each.score}",
                    there=held_text(placed.scale, each.found),
                    mended=left is not None and each.member not in left,
                )
            )
        unlisted = found.count - len(found.differences)
        report.found += unlisted
        report.mended += unlisted if left is not None and not left else 0

    async def _compare(self, placed: Placed, patience_s: float) -> Comparison:
        """Compare a window, later if it is being filled now."""
        ends = asyncio.get_running_loop().time() + patience_s
        while True:
            found = await compare_window(
                self._readers, self._client, placed, lambda: self._peers.state
            )
            filling = "being filled" in found.skipped
            if not filling or asyncio.get_running_loop().time() > ends:
                return found
            await asyncio.sleep(POLL_S)

    async def _filled(self, placed: Placed) -> set[bytes] | None:
        """What still differs after a window was filled anew; None where nobody can tell."""
        ends = asyncio.get_running_loop().time() + RANKS_AGAIN_S
        while True:
            found = await self._compare(placed, SKIP_AGAIN_S)
            if not (found.count or found.skipped):
                return set()
            if asyncio.get_running_loop().time() > ends:
                return None if found.skipped else {each.member for each in found.differences}
            await asyncio.sleep(POLL_S)


def _by_kind(findings: Findings) -> dict[tuple[str, Key], Pair]:
    """What a page shows, by kind and cell."""
    found = {("damaged", cell.row.key): Pair(cell.row, None) for cell in findings.damaged}
    found |= {("damaged_there", key): Pair(None, None) for key in findings.damaged_there}
    for kind, pairs in (
        ("lacking", findings.lacking),
        ("lacking_there", findings.lacking_there),
        ("forked", findings.forked),
    ):
        for pair in pairs:
            row = pair.here or pair.there
            assert row is not None
            found[kind, row.key] = pair
    return found


def _rows(snapshot: SqliteSnapshot, keys: Sequence[Key]) -> dict[Key, Row | None]:
    cells = {key: snapshot.cell(key) for key in keys}
    return {key: None if cell is None else cell[0] for key, cell in cells.items()}
