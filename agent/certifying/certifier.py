"""Certifying: what an agent does by itself so that closed windows get their certified finals.

One loop, woken by commits that change what it looks at, and by a timer. For each closed window it
takes the steps of agent/boards/finals.py with what is here: it sums the digests of the window's
standings once and follows that sum with every late change, says its digest, makes the copy, says
that it froze it, and certifies; or it fetches the rows of a certificate that it did not make. All
that is written are operations in the commit queue.

Nothing is said by an agent that may not have read yet what it once knew, or whose clock is off. A
final that was certified is never changed here: what comes later is listed beside it.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import Counter
from collections.abc import Callable

import structlog

from agent.boards.catalog import Placed
from agent.boards.erasures import KEY_BYTES
from agent.boards.finals import (
    FINAL_KINDS,
    Final,
    MakeHashKey,
    SayFinal,
    Step,
    next_step,
)
from agent.boards.marks import name_of_space
from agent.certifying.copies import Copies, Fetch
from agent.certifying.looking import (
    Look,
    certified_windows,
    closed_windows,
    concerns,
    look_at,
    note_wait,
)
from agent.certifying.status import CertifyingCounts, CertifyingStatus
from agent.certifying.steps import (
    certificate_at,
    digest_now,
    makes_key,
    may_say,
    members_of,
    said_at,
)
from agent.certifying.window import Pending, Tally
from agent.commit import CommitQueue
from agent.committer import Commit
from agent.crdt.space import MARKS_SPACE
from agent.errors import TallyringError
from agent.operation import BoardChanged
from agent.state import State
from agent.store.readers import Readers
from agent.store.standings import NOTHING_LATE, LateList

log = structlog.get_logger("tallyring.certifying")

REST_MIN_S = 0.02  # between two turns, so that what wakes the loop comes in together
STEPS_MAX = 16  # of one window in one turn: a final has 5
LATE_EVERY_S = 1.0  # how often what came late is looked through


class Certifier:
    """Certifies finals until it is cancelled.

    Args:
        queue: where everything is submitted, and the newest state is found.
        readers: of its own: scans of whole windows take their time.
        promises: whether this agent may say anything now (its clock is right).
        fetch: gets chunks of finals from others.
        interval_s: how often to look when nothing wakes it.
    """

    def __init__(
        self,
        queue: CommitQueue,
        readers: Readers,
        promises: Callable[[], bool],
        fetch: Fetch,
        interval_s: float,
    ) -> None:
        self._queue = queue
        self._readers = readers
        self._promises = promises
        self._interval_s = interval_s
        self._copies = Copies(queue, readers, fetch)
        self._woken = asyncio.Event()
        self._seen = _watched(queue.state)
        self._certificates_read = False
        self._all = True  # all windows are looked at in the next turn
        self._attend: set[bytes] = set()
        self._look_at = 0.0
        self._pending: dict[bytes, Pending] = {}
        self._done: set[bytes] = set()
        self._conflicts: set[bytes] = set()
        self._late_due, self._late_at = True, 0.0
        self._trouble = ""
        self.counts = CertifyingCounts()

    def committed(self, commit: Commit) -> None:
        """Told after each commit: follows sums, and wakes the loop where something was said."""
        for first, outcome in commit.outcomes:
            newest = first + len(outcome.rows) - 1
            for space, added in outcome.late.items():
                if space in self._pending:
                    self._pending[space].take(newest, added)
                self._look_again(space)
                self._late_due = True
            for row in outcome.rows:
                if row[0] == MARKS_SPACE and row[2][0] in FINAL_KINDS:
                    self._look_again(row[1])
        watched = _watched(commit.state)
        if any(now is not before for now, before in zip(watched, self._seen, strict=True)):
            self._seen = watched
            self._all = self._late_due = True
            self._woken.set()

    def _look_again(self, space: bytes) -> None:
        self._attend.add(space)
        self._done.discard(space)
        self._woken.set()

    def status(self) -> CertifyingStatus:
        """What waits now."""
        now, windows = time.monotonic(), self._pending.values()
        return CertifyingStatus(
            len(windows),
            Counter(name for window in windows for name in window.waits),
            sum(window.fetching for window in windows),
            sum(window.disagrees(now) for window in windows),
            sum(late.members > 0 for late in self._copies.late.values()),
            len(self._conflicts),
            self._trouble,
            Counter(window.state for window in windows) + Counter(certified=len(self._done)),
        )

    def late_of(self, space: bytes) -> LateList:
        """What came after a window's final, as far as it was looked through."""
        return self._copies.late.get(space, NOTHING_LATE)

    async def run(self) -> None:
        """Certify for ever.

        Raises:
            StoreError: the file itself can't be read any more.
        """
        async with asyncio.TaskGroup() as loops:
            loops.create_task(self._readers.watch())
            loops.create_task(self._certify())

    async def _certify(self) -> None:
        while True:
            try:
                await self.turn()
                self._trouble = ""
            except TallyringError as error:  # the writer is busy, or the file can't be read now
                self._all = True
                if str(error) != self._trouble:
                    log.warning("certifying waits", error=str(error))
                self._trouble = str(error)
                await asyncio.sleep(self._interval_s)
                continue
            await self._wait()

    async def _wait(self) -> None:
        """Until something wakes the loop, or it is time to look again."""
        until = min(self._look_at, self._late_at) if self._late_due else self._look_at
        try:
            async with asyncio.timeout(max(until - time.monotonic(), REST_MIN_S)):
                await self._woken.wait()
                await asyncio.sleep(REST_MIN_S)
        except TimeoutError:
            pass

    async def turn(self) -> None:
        """Take all steps that can be taken now.

        Raises:
            Refused, Indefinite: an operation was not stored; it is tried again in the next turn.
            StoreError: the file can't be read.
        """
        state = self._queue.state
        if state.ring.was_removed(state.agent):
            return
        self._woken.clear()
        if self._all or time.monotonic() >= self._look_at:
            await self._find(state)
        attend, self._attend = sorted(self._attend), set()
        for number, space in enumerate(attend):
            try:
                await self._advance(space)
            except TallyringError:
                self._attend.update(attend[number:])
                raise
        if self._late_due and time.monotonic() >= self._late_at:
            self._late_due, self._late_at = False, time.monotonic() + LATE_EVERY_S
            await self._copies.list_late()
        self.counts.scans = self._copies.scans

    async def _find(self, state: State) -> None:
        """Find the windows to be looked at: all that are closed, and all known certificates."""
        self._all, self._look_at = False, time.monotonic() + self._interval_s
        closed = await self._readers.read(lambda found: closed_windows(found, state))
        self._done &= closed
        if not self._certificates_read:
            self._attend |= await self._readers.read(certified_windows)
            self._certificates_read = True
        self._attend |= closed - self._done
        # Those of windows that are not kept here any more are in no other set.
        self._attend |= {space for space, window in self._pending.items() if window.fetching}

    # --- steps ------------------------------------------------------------------------------

    async def _advance(self, space: bytes) -> None:
        """Take the steps of one window, until it waits or is done."""
        window = self._pending.setdefault(space, Pending())
        for _ in range(STEPS_MAX):
            state = self._queue.state
            look = await self._readers.read(lambda found: look_at(found, space))
            self._check_conflict(space, look.final)
            digest = await self._digest(space, window, look.final, state)
            hashes = {its: copied.hash for its, copied in window.copied.items()}
            members = members_of(state)
            step = next_step(look.final, state.agent, members, digest, hashes, look.held)
            window.fetching = step == Step.FETCH
            if step == Step.DONE:
                kept = {told.hash for _, told in look.final.certificates.values()}
                await self._copies.discard(space, kept)
                self._pending.pop(space, None)
                self._done.add(space)
                return
            if step == Step.WAIT:
                note_wait(window, look.final, members, state, space)
                if not concerns(space, state):
                    self._pending.pop(space, None)
                return
            if not await self._take(step, space, window, look, digest):
                return
        self._attend.add(space)

    def _check_conflict(self, space: bytes, final: Final) -> None:
        if not final.conflict:
            self._conflicts.discard(space)
        elif space not in self._conflicts:
            self._conflicts.add(space)
            log.error("a window has two different finals", window=name_of_space(space))

    async def _take(
        self, step: Step, space: bytes, window: Pending, look: Look, digest: bytes | None
    ) -> bool:
        """Take one step; whether the next one can be looked for at once."""
        final, state = look.final, self._queue.state
        if step == Step.COPY:
            assert digest is not None
            return await self._copy(space, window, final, digest)
        if step == Step.FETCH:
            assert final.in_force is not None
            fetched = await self._copies.get(space, final.in_force)
            self.counts.fetched += fetched
            self._late_due = self._late_due or fetched
            return fetched
        rows = {hash_: held.members for hash_, held in look.held.items()}
        saying = said_at(step, space, final, state, digest, window.copied, rows)
        said = await self._say(saying)
        match step:
            case Step.SAY:
                return said
            case Step.FREEZE:
                if not said:  # something came late: the copy is of no use any more
                    window.copied.clear()
                self.counts.frozen += said
                return said
            case Step.THAW:
                window.copied.clear()
                self.counts.thawed += 1
                return said
            case _:
                if said:
                    self.counts.certified += 1
                    self._late_due = True  # what was late for an older version may be in this one
                    told, name = certificate_at(step, final, state, rows), name_of_space(space)
                    log.info("certified", window=name, version=told.version, hash=told.hash.hex())
                return True

    async def _say(self, said: SayFinal) -> bool:
        answer = (await self._queue.submit(said)).answer
        return isinstance(answer, BoardChanged) and answer.changed

    async def _copy(self, space: bytes, window: Pending, final: Final, digest: bytes) -> bool:
        """Make the copy of the standings that have this digest; whether they (still) have it."""
        state = self._queue.state
        placed, key = state.catalog.placed(space), state.erased.key
        if placed is None or key is None:
            return False

        def fits(total: int) -> bool:
            return digest_now(placed, final, state, key, total) == digest

        copied = await self._copies.make(placed, state, key, fits)
        if copied is not None:
            window.copied = {digest: copied}
        return copied is not None

    async def _digest(
        self, space: bytes, window: Pending, final: Final, state: State
    ) -> bytes | None:
        """This agent's digest of a window now; None where it has none to say."""
        placed = state.catalog.placed(space)
        if placed is None or not self._promises() or not may_say(space, final, state):
            return None
        if makes_key(final, state):
            await self._queue.submit(MakeHashKey(secrets.token_bytes(KEY_BYTES)))
        key = self._queue.state.erased.key
        if key is None:
            return None
        total = await self._total(placed, window, state)
        return digest_now(placed, final, state, key, total)

    async def _total(self, placed: Placed, window: Pending, state: State) -> int:
        """The sum over the digests of a window's standings, as of the newest commit told of."""
        tally = window.tally
        if tally is None or not tally.usable or tally.erased != len(state.erased):
            tally = window.tally = Tally(len(state.erased))
            tally.read(await self._copies.sum_of(placed, state))
        return tally.total


def _watched(state: State) -> tuple[object, ...]:
    """What makes all windows be looked at when it changes."""
    return state.marks, state.bans, state.erased, state.ring, state.catalog
