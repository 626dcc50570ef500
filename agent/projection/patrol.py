"""The patrol: what stands in Redis is compared with SQLite all the time, a little at a time.

In each round every window is looked at once: its meta, the end of its keys, its size, its best
members, and some at random. A round lasts `projection.patrol_s`, and windows are spread over that
time. After each look it rests nine times as long as that took, so with more windows than fit a
round lasts longer instead. Once a day, at 03:00 UTC, every member is compared, with rests as well.

What differs is mended, and looked at again: members and metas are written anew; a window of which
more is wrong is filled anew. Keys that belong nowhere are removed.

Only the agent that projects goes, and only while it is at the head: comparing goes by the watermark
(audit.py). Of windows that are computed on a timer only the keys are looked at.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar

import structlog
from redis.exceptions import RedisError

from agent.errors import StoreError, words_of
from agent.projection.audit import Comparison, Sampling, compare_window
from agent.projection.connection import RankClient
from agent.projection.keys import AS_OF, MOVING_FIELDS, TENURE, meta_of, texts
from agent.projection.place import Clock, Place, PlaceId
from agent.projection.projector import Projector
from agent.projection.source import TOTAL_MEMBERS_MAX
from agent.state import State
from agent.store.readers import Readers

logger = structlog.get_logger()

TOP = 100
SAMPLE = 1_000
MENDED_MAX = 100  # differing members of a window that are written one by one; else it is filled
LOGGED_MAX = 20  # differences of a window that are told one by one
TOLD_MAX = 200  # in one round, of all windows; the others are counted
RECENT_MAX = 20  # of the newest differences, for whoever asks
BEHIND_MAX_S = 2.0  # a projection further behind is let catch up first
REST_TIMES = 9.0  # as long as a look took: a tenth of a core at the most
REST_MAX_S = 1.0  # most of a look that took longer was waiting
PAGE_REST_S = 0.2  # between pages of a scan, which take a tenth of it
KEYS_LOOK_S = 0.2  # between two looks at keys that differ: a change may be on its way
MEND_S = 10.0  # for what was wished to be written
SCAN_AT_S = 3 * 3_600  # when in the day, UTC

_Found = TypeVar("_Found")


@dataclass(slots=True)
class PatrolCounts:
    """What was done since the start.

    rounds: over all windows. scans: of every member. windows, members: compared.
    differences: found. repaired: members written anew, and seen to be right then.
    keys: windows whose meta, or the end of whose keys, was written anew.
    refilled: windows filled anew.
    """

    rounds: int = 0
    scans: int = 0
    windows: int = 0
    members: int = 0
    differences: int = 0
    repaired: int = 0
    keys: int = 0
    refilled: int = 0


@dataclass(slots=True)
class PatrolReport:
    """When the last round and the last scan ended, and the newest differences in words."""

    round_ended_ms: int | None = None
    scan_ended_ms: int | None = None
    recent: deque[str] = field(default_factory=lambda: deque(maxlen=RECENT_MAX))


class Patrol:
    """Compares Redis with SQLite until it is cancelled.

    Args:
        readers: of its own.
        client: of the region's Redis.
        projector: what fills it, and mends it.
        state: this agent's state now.
        now_ms: the system's clock.
        round_s: how long a round lasts, at least.
        scan_s: how often every member is compared, in step with the clock.
        expires: whether keys are given their end: not with a clock of the boards' own.
    """

    def __init__(
        self,
        readers: Readers,
        client: RankClient,
        projector: Projector,
        state: Callable[[], State],
        now_ms: Callable[[], int],
        *,
        round_s: float,
        scan_s: float,
        expires: bool,
    ) -> None:
        self._readers = readers
        self._client = client
        self._projector = projector
        self._state = state
        self._now_ms = now_ms
        self._round_s = round_s
        self._scan_s = scan_s
        self._clock = Clock(now_ms, expiring=expires)
        self._random = random.Random(time.time_ns())  # noqa: S311 -- a sample, no secret
        self._told = 0
        self.counts = PatrolCounts()
        self.report = PatrolReport()

    async def run(self) -> None:
        """Go on patrol for ever."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._rounds())
            group.create_task(self._scans())

    async def _rounds(self) -> None:
        while True:
            began, self._told = time.monotonic(), 0
            windows = self._windows()
            for number, id_ in enumerate(windows):
                due = began + self._round_s * number / len(windows)
                await asyncio.sleep(max(0.0, due - time.monotonic()))
                looked = time.monotonic()
                await self._guarded(self.look_at(*id_))
                took = time.monotonic() - looked
                await asyncio.sleep(min(REST_TIMES * took, REST_MAX_S))
            if windows:
                self._projector.wishes.add_sweep()
                self.counts.rounds += 1
                self.report.round_ended_ms = self._now_ms()
            if self._told > TOLD_MAX:
                logger.error("redis_differs_more", differences=self._told - TOLD_MAX)
            await asyncio.sleep(max(0.01, began + self._round_s - time.monotonic()))

    async def _scans(self) -> None:
        while True:
            wait_s = (SCAN_AT_S - self._now_ms() / 1_000) % self._scan_s
            # The last one may have begun a moment before its time.
            await asyncio.sleep(wait_s if wait_s > self._scan_s / 100 else wait_s + self._scan_s)
            await self._guarded(self.scan())

    async def _guarded(self, work: Awaitable[_Found]) -> _Found | None:
        try:
            return await work
        except (RedisError, OSError, StoreError) as error:  # Redis or the disk: others tell of it
            logger.info("patrol_interrupted", error=words_of(error))
            return None

    def _windows(self) -> list[PlaceId]:
        places = self._projector.places
        return [] if places is None else places.ids()

    def _complete(self, id_: PlaceId) -> Place | None:
        """A window as it is now, if it is complete in Redis."""
        places = self._projector.places
        place = None if places is None else places.find(id_)
        return None if place is None or place.filling is not None else place

    def _rests(self) -> bool:
        """Whether this is no time to compare."""
        return not self._projector.follows or self._projector.status().behind_s > BEHIND_MAX_S

    async def look_at(self, board: str, window: str) -> Comparison | None:
        """Compare a part of a window and mend what differs; None where that can't be done now.

        Raises:
            redis.exceptions.RedisError, OSError: Redis does not answer.
            StoreError: the file can't be read.
        """
        id_ = (board, window)
        if self._rests():
            return None
        await self._look_at_keys(id_)
        place = self._complete(id_)
        if place is None or place.derivation is not None:
            return None
        sampling = Sampling(self._readers, self._client, place.placed, self._state)
        found = await sampling.compare(TOP, SAMPLE, self._random)
        if found.skipped:
            return None
        counting = await sampling.count()
        if (
            counting is not None
            and counting.stored != counting.ranked
            and counting.stored < TOTAL_MEMBERS_MAX
        ):
            found = await self._compare_all(place)
            if found.count:
                sizes = f"SQLite has {counting.stored} members, Redis {counting.ranked}"
                self._tell(id_, sizes)
        self.counts.windows += 1
        self.counts.members += found.members
        await self._mend(id_, found, sampling)
        return found

    async def scan(self) -> None:
        """Compare every member of every window, with rests, and mend what differs.

        Raises:
            redis.exceptions.RedisError, OSError: Redis does not answer.
            StoreError: the file can't be read.
        """
        for id_ in self._windows():
            while self._rests():
                if not self._projector.follows:  # another agent does, or everything is filled anew
                    return
                await asyncio.sleep(REST_MAX_S)
            place = self._complete(id_)
            if place is None or place.derivation is not None:
                continue
            found = await self._compare_all(place)
            self.counts.windows += 1
            self.counts.members += found.members
            sampling = Sampling(self._readers, self._client, place.placed, self._state)
            await self._mend(id_, found, sampling)
        self.counts.scans += 1
        self.report.scan_ended_ms = self._now_ms()

    async def _compare_all(self, place: Place) -> Comparison:
        return await compare_window(
            self._readers, self._client, place.placed, self._state, rest_s=PAGE_REST_S
        )

    async def _mend(self, id_: PlaceId, found: Comparison, sampling: Sampling) -> None:
        if not found.count:
            return
        self.counts.differences += found.count
        for each in found.differences[:LOGGED_MAX]:
            self._tell(id_, str(each))
        if found.count > min(MENDED_MAX, len(found.differences)):
            self._projector.wishes.add_window(id_)
            self.counts.refilled += 1
            return
        members = [each.member for each in found.differences]
        await self._written(self._projector.wishes.add_members(id_, members))
        if await sampling.differ(members):
            self._tell(id_, "what was written anew still differs")
        else:
            self.counts.repaired += len(members)

    async def _written(self, written: asyncio.Event) -> None:
        try:
            async with asyncio.timeout(MEND_S):
                await written.wait()
        except TimeoutError:
            logger.info("patrol_waits", error="Redis is not written now")

    async def _look_at_keys(self, id_: PlaceId) -> None:
        """See that a window's meta says what it should, and that its keys end when they should."""
        wrong = await self._wrong_keys(id_)
        if wrong:
            await asyncio.sleep(KEYS_LOOK_S)
            again = await self._wrong_keys(id_)
            wrong = [text for text in wrong if text in again]
        if not wrong:
            return
        self.counts.differences += len(wrong)
        for text in wrong:
            self._tell(id_, text)
        await self._written(self._projector.wishes.add_keys(id_))
        if await self._wrong_keys(id_):
            self._tell(id_, "its keys still differ")
        else:
            self.counts.keys += 1

    async def _wrong_keys(self, id_: PlaceId) -> list[str]:
        places, place = self._projector.places, self._complete(id_)
        if places is None or place is None:
            return []
        wanted = meta_of(place.placed)
        if place.derivation is None:
            wanted[TENURE] = places.turns.tenure
        else:  # what moves does so when it is computed
            wanted = {name: text for name, text in wanted.items() if name not in MOVING_FIELDS}
        (fields,) = await self._client.hashes([place.meta])
        meta = texts(fields)
        if not meta:
            return []  # upkeep.py looks for what is missing
        wrong = [
            f"{name} in its meta is {meta.get(name)!r}, not {text!r}"
            for name, text in wanted.items()
            if meta.get(name) != text
        ]
        if place.derivation is None and AS_OF in meta:
            wrong.append(f"its meta has a field {AS_OF}")
        ends_ms = place.expires_ms(self._clock)
        for key in (place.key, place.meta):
            at_ms = int(await self._client.command("PEXPIRETIME", key))
            if at_ms not in (-1 if ends_ms is None else ends_ms, -2):  # -2: no such key
                wrong.append(f"{key} ends at {at_ms}, not at {ends_ms}")
        return wrong

    def _tell(self, id_: PlaceId, text: str) -> None:
        self._told += 1
        if self._told <= TOLD_MAX:
            logger.error("redis_differs", board=id_[0], window=id_[1], difference=text)
        self.report.recent.append(f"{id_[0]} {id_[1]}: {text}"[:500])
