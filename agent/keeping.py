"""Keeping: what an agent does by itself, so that nothing piles up that nobody will ask for again.

    marks      windows and fact buckets that are over are closed, acknowledged and collected
               (agent/boards/marks.py)
    drops      the cells of collected spaces go, and what is left of erased names, a chunk at a time
    erasures   names that this agent has nothing of any more are confirmed; those that everybody has
               confirmed are taken out of their tombstones
    bans       those that end by themselves are lifted

One loop, woken by commits that change what it looks at, and by a timer. All it does are operations
in the commit queue like a client's, so they may be refused (a full disk, a busy writer): the next
turn tries again. An agent that was removed from the ring does nothing. One that may not have read
yet what it once knew sets no marks and forgets no names, and one whose clock is off sets no marks:
a mark is a promise that can't be taken back.

Nothing of an erased name is taken any more once its tombstone is here, so one pass over the file
finds all that is left of it. A tombstone is passed for once in each process, however often this
agent has confirmed it: the file may be an old one that was put back.
"""

from __future__ import annotations

import asyncio
import sqlite3
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import structlog

from agent.boards.bans import BY_ITSELF
from agent.boards.erasures import Erasures, Owed
from agent.boards.finals import PASSING_KINDS
from agent.commit import CommitQueue
from agent.committer import Commit
from agent.crdt.cell import Key
from agent.crdt.space import MARKS_SPACE
from agent.errors import StoreError, TallyringError
from agent.membership import Ring
from agent.operation import BoardChanged, ConfirmErasures, Drop, ForgetNames, LiftBan, SetMarks
from agent.state import State
from agent.store.due import Look, look
from agent.store.gaps import LATER, truncate_wal
from agent.store.purging import Purge
from agent.store.readers import Readers
from agent.store.snapshot import SqliteSnapshot

log = structlog.get_logger("tallyring.keeping")
Item = TypeVar("Item")

DROP_CELLS = 100  # in one transaction: a write waits some 10 ms for it, about as for others
AT_ONCE = 200  # marks, lifts, confirmations in one transaction, likewise
REST_MIN_S = 0.02  # between two turns, so that what wakes the loop comes in together
REST_TIMES = 4  # after a chunk, as long as so many times what it took: writes have the rest
SCOUR_REST_TIMES = 10  # after the file was looked through for what is deleted, likewise
SCAN_CELLS_PER_S = 30_000.0  # looked at for what is left of names: some fifth of a core


@dataclass(slots=True)
class KeepingCounts:
    """What was done since the start.

    marks: set. dropped: cells. lifted: bans that ended by themselves.
    confirmed: erased names that this agent has nothing of any more. forgotten: taken out of their
        tombstones.
    """

    marks: int = 0
    dropped: int = 0
    lifted: int = 0
    confirmed: int = 0
    forgotten: int = 0


@dataclass(frozen=True, slots=True)
class KeepingStatus:
    """What waits, and for whom.

    collecting: collected spaces of which cells are still here.
    held: agent -> how many closed spaces are kept here because it has not closed or read them.
    purging: erased names of which something may still be here.
    unconfirmed: agent -> how many erased names it may still have something of.
    trouble: why the last turn did not end; empty if it did.
    """

    collecting: int = 0
    held: Mapping[str, int] = field(default_factory=dict)
    purging: int = 0
    unconfirmed: Mapping[str, int] = field(default_factory=dict)
    trouble: str = ""


class Keeper:
    """Keeps house until it is cancelled.

    Args:
        queue: where everything is submitted, and the newest state is found.
        readers: of its own, so that it never delays those of exchanges and of the API.
        path: the agent's file.
        board_now_ms: the clock by which entries are placed in windows.
        interval_s: how often to look when nothing wakes it.
        clock_off_ms: how far this agent's clock is off, where that is too far for marks; else 0.
        shown: whether this agent's part of the region's rank store has its log up to an lsn. What
            was erased is confirmed only then.
    """

    def __init__(
        self,
        queue: CommitQueue,
        readers: Readers,
        path: Path,
        board_now_ms: Callable[[], int],
        interval_s: float,
        clock_off_ms: Callable[[], int] = lambda: 0,
        shown: Callable[[int], bool] = lambda _lsn: True,
    ) -> None:
        self._queue = queue
        self._readers = readers
        self._path = path
        self._now_ms = board_now_ms
        self._interval_s = interval_s
        self._clock_off_ms = clock_off_ms
        self._shown = shown
        self._woken = asyncio.Event()
        self._seen = _watched(queue.state)
        self._look = Look()
        self._look_at = 0.0
        self._collecting: list[bytes] = []
        self._damaged: set[Key] = set()  # not dropped, so that nothing else fails with them
        self._owed_of: tuple[Erasures, Ring] | None = None
        self._owed = Owed()
        self._passes: list[Purge] = []  # the newest goes first
        self._purged: set[bytes] = set()  # by passes of this process
        self._unshown: list[tuple[int, bytes]] = []  # (lsn, id): purged, to be confirmed
        self._scours, self._scour_at = False, 0.0
        self._rest_s = REST_MIN_S
        self._trouble = ""
        self.counts = KeepingCounts()

    def committed(self, commit: Commit) -> None:
        """Told after each commit: wakes the loop where it changed what is looked at here."""
        self._damaged.update(commit.damaged)
        watched = _watched(commit.state)
        if any(now is not before for now, before in zip(watched, self._seen, strict=True)):
            self._seen = watched
            self._woken.set()

    def status(self) -> KeepingStatus:
        """What waits now, as of the last turn."""
        return KeepingStatus(
            len(self._collecting),
            self._look.held,
            len(self._queue.state.erased) - len(self._purged),
            self._owed.unconfirmed,
            self._trouble,
        )

    def dropping(self) -> bool:
        """Whether cells of collected spaces or of erased names may still be here."""
        purging = len(self._queue.state.erased) > len(self._purged)
        return self._woken.is_set() or bool(self._collecting) or purging

    async def run(self) -> None:
        """Keep house for ever.

        Raises:
            StoreError: the file itself can't be read any more.
        """
        async with asyncio.TaskGroup() as loops:
            loops.create_task(self._readers.watch())
            loops.create_task(self._keep())

    async def _keep(self) -> None:
        while True:
            try:
                more = await self.turn()
                self._trouble = ""
            except TallyringError as error:  # the writer is busy, or the file can't be read now
                self._passes.clear()  # what the last step has found may be there still
                self._owed_of = None
                if str(error) != self._trouble:
                    log.warning("housekeeping waits", error=str(error))
                self._trouble, more = str(error), False
            if self._trouble:
                await asyncio.sleep(self._interval_s)
            elif more:
                await asyncio.sleep(self._rest_s)
            else:
                await self._wait()

    async def _wait(self) -> None:
        """Until something wakes the loop, or it is time to look again."""
        left = self._look_at - asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(max(left, REST_MIN_S)):
                await self._woken.wait()
                await asyncio.sleep(REST_MIN_S)
        except TimeoutError:
            pass

    async def turn(self) -> bool:
        """Do what can be done at once; whether there is more to do.

        Raises:
            Refused, Indefinite: an operation was not stored; what it was for is done next time.
            StoreError: the file can't be read.
        """
        state = self._queue.state
        if state.ring.was_removed(state.agent):
            return False
        self._rest_s = REST_MIN_S
        now = asyncio.get_running_loop().time()
        if self._woken.is_set() or now >= self._look_at:
            self._woken.clear()
            self._look_at = now + self._interval_s
            await self._tend(state)
            await self._tend_erasures(state)
        collected = await self._collect()
        purged = await self._purge()
        return collected or purged

    # --- marks, bans ------------------------------------------------------------------------

    async def _tend(self, state: State) -> None:
        """Set the marks that are due, lift the bans that are over, see what is collected.

        The state is older than the snapshot whose spaces are looked through, and its version vector
        covers nothing that it does not hold: what it acknowledges is here.
        """
        now_ms, damaged = self._now_ms(), frozenset(self._damaged)
        promises = state.complete and not self._clock_off_ms()
        self._look = seen = await self._readers.read(
            lambda found: look(found, state, now_ms, damaged, promises=promises)
        )
        self._damaged -= seen.mended
        self._collecting = list(seen.collected)
        for marks in _parts(seen.due):
            await self._queue.submit(SetMarks(tuple(marks)))
            self.counts.marks += len(marks)
        for member, board in state.bans.over(now_ms)[:AT_ONCE]:
            if await self._change(LiftBan(member, board, "", BY_ITSELF, expired=True)):
                self.counts.lifted += 1

    async def _change(self, operation: LiftBan | ConfirmErasures | ForgetNames | Drop) -> bool:
        answer = (await self._queue.submit(operation)).answer
        return isinstance(answer, BoardChanged) and answer.changed

    # --- collecting -------------------------------------------------------------------------

    async def _collect(self) -> bool:
        """Drop the next cells of a collected space; whether there may be more."""
        while self._collecting:
            if await self._drop(await self._cells_in(self._collecting[-1]), ()):
                return True
            self._collecting.pop()
        return False

    async def _cells_in(self, space: bytes) -> list[Key]:
        """The next cells of a space, after what was said about its final."""
        limit = DROP_CELLS + len(self._damaged)

        def find(snapshot: SqliteSnapshot) -> list[Key]:
            said = snapshot.slots_of(MARKS_SPACE, space)
            keys = [(MARKS_SPACE, space, slot) for slot, _ in said if slot[0] in PASSING_KINDS]
            return keys[:DROP_CELLS] or snapshot.keys_in(space, limit)

        return await self._readers.read(find)

    async def _drop(self, cells: Iterable[Key], entries: Sequence[int]) -> bool:
        """Drop cells, but for those that are damaged; whether anything changed."""
        keys = tuple(key for key in cells if key not in self._damaged)
        if not keys and not entries:
            return False
        loop = asyncio.get_running_loop()
        began = loop.time()
        changed = await self._change(Drop(keys, tuple(entries)))
        self._rest_s = max(self._rest_s, REST_TIMES * (loop.time() - began))
        self.counts.dropped += len(keys) if changed else 0
        return changed

    # --- erasures ---------------------------------------------------------------------------

    async def _tend_erasures(self, state: State) -> None:
        """See which names were erased, confirm those that are gone, forget those that may be."""
        told = self._owed_of
        if told is None or told[0] is not state.erased or told[1] is not state.ring:
            members = [member.name for member in state.ring.active()]
            owed = await asyncio.to_thread(state.erased.owed, members, state.agent)
            self._scours = self._scours or owed.named < self._owed.named
            self._owed, self._owed_of = owed, (state.erased, state.ring)
            passed_for = self._purged.union(*(each.ids for each in self._passes))
            if owed.ids - passed_for:
                self._passes.append(Purge(state.erased, owed.ids - passed_for))
        await self._confirm()
        if state.complete:
            for ids in _parts(self._owed.ripe):
                await self._change(ForgetNames(tuple(ids)))
                self.counts.forgotten += len(ids)
            self._owed = self._owed._replace(ripe=())
        loop = asyncio.get_running_loop()
        if self._scours and loop.time() >= self._scour_at:
            began = loop.time()
            self._scours = not await self._scour()
            self._scour_at = loop.time() + SCOUR_REST_TIMES * (loop.time() - began)

    async def _scour(self) -> bool:
        """Empty what still has the bytes of what was deleted: the write-ahead log and the gaps of
        pages (agent/store/gaps.py); whether that was done."""
        try:
            if not await asyncio.to_thread(truncate_wal, self._path):
                return False
        except sqlite3.Error as error:
            raise StoreError(f"{self._path}: {error}") from error
        emptying = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "agent.store.gaps", str(self._path)),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            _, said = await emptying.communicate()
        finally:
            if emptying.returncode is None:  # this agent stops: the gaps are emptied another time
                emptying.kill()
                await emptying.wait()
        if emptying.returncode not in (0, LATER):
            why = said.decode(errors="replace").strip().splitlines()[-1:] or ["it was ended"]
            raise StoreError(f"{self._path}: the gaps of pages can't be emptied: {why[0]}")
        return emptying.returncode == 0

    async def _confirm(self) -> None:
        """Say of which names nothing is left, here and in the rank store."""
        shown = [each for lsn, each in self._unshown if self._shown(lsn)]
        for ids in _parts(shown):
            await self._change(ConfirmErasures(tuple(ids)))
            self.counts.confirmed += len(ids)
        done = set(shown)
        self._unshown = [each for each in self._unshown if each[1] not in done]

    async def _purge(self) -> bool:
        """Drop what the next step of a pass finds of erased names; whether there may be more."""
        if not self._passes:
            return False
        purge = self._passes[-1]
        found = await self._readers.read(purge.step)
        self._rest_s = max(self._rest_s, found.looked / SCAN_CELLS_PER_S)
        for start in range(0, max(len(found.cells), len(found.entries)), DROP_CELLS):
            part = slice(start, start + DROP_CELLS)
            await self._drop(found.cells[part], found.entries[part])
        for chunk in found.chunks:
            await self._queue.submit(chunk)
        if not self._damaged.isdisjoint(found.cells):
            self._passes.remove(purge)  # mended, it is found again: by a pass of a later turn
            self._owed_of = None
        elif purge.done:
            self._passes.remove(purge)
            self._purged |= purge.ids
            self._scours = True
            lsn = self._queue.state.lsn
            self._unshown += [(lsn, each) for each in sorted(purge.ids - self._owed.confirmed)]
            await self._confirm()
        return bool(self._passes)


def _watched(state: State) -> tuple[object, ...]:
    """What wakes the loop when it changes."""
    return state.marks, state.bans, state.erased, state.ring


def _parts(items: Sequence[Item]) -> list[Sequence[Item]]:
    return [items[start : start + AT_ONCE] for start in range(0, len(items), AT_ONCE)]
