"""The checker knows the right answer: it compares every score and every rank in every region.

Each region is read twice, over its agent's HTTP API (all pages, then members one by one) and
straight from its Redis, the way a game server would. Composite scores are decoded with the
documented formula, worked out in cluster/expected.py and held against the `:meta` that the agent
publishes. That all regions agree is never enough: they are held against the expectation.

Every window of a board is compared, and of those that are kept no longer that they are gone. What
actors do (`distinct`, `unique`) is compared in actor_checker.py.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, cast
from urllib.parse import quote

import aiohttp
from redis.asyncio import Redis

from cluster.expected import ACTED, BoardSpec, Expectation, Place
from cluster.replay import first_error
from cluster.windows import ALL, Window

PAGE = 1_000
REDIS_PAGE = 5_000
COUNTERS_AT_ONCE = 500
SINGLES_MAX = 25  # members of each board that are also asked for one by one
SHOWN_MAX = 20  # differences kept as text; all are counted
GONE_EVERY = 5  # of so many windows that are kept no longer, one is also asked for over HTTP
FILLED_S = 30.0  # for a window to be filled
FILLING_POLL_S = 0.05
GONE_S = 20.0  # within which the agents have removed them from Redis
SUBJECTS = {"all": "whole boards", "day": "days", "week": "weeks", "month": "months"}
GONE, COUNTERS = "windows kept no longer", "counters"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Region:
    """Where a region can be read."""

    name: str
    url: str
    redis_url: str


@dataclass(slots=True)
class Part:
    """What a check found about one subject. `things` is how many there are of it, in one region."""

    things: int = 0
    compared: int = 0
    differences: int = 0


@dataclass(slots=True)
class Verdict:
    """What a check found. `compared` counts scores, ranks and values that were looked at.

    parts: the same by subject, as far as it was said to belong to one.
    """

    compared: int = 0
    differences: int = 0
    shown: list[str] = field(default_factory=list)
    parts: dict[str, Part] = field(default_factory=dict)

    @property
    def equal(self) -> bool:
        """Whether something was compared and nothing differed."""
        return self.compared > 0 and not self.differences

    def differ(self, text: str) -> None:
        """Note a difference."""
        self.differences += 1
        if len(self.shown) < SHOWN_MAX:
            self.shown.append(text)

    def add(self, other: Verdict, subject: str | None = None) -> None:
        """Take in what another check found, all of it about a subject if that is given."""
        self.compared += other.compared
        self.differences += other.differences
        self.shown = (self.shown + other.shown)[:SHOWN_MAX]
        parts = dict(other.parts)
        if subject is not None:
            parts[subject] = Part(0, other.compared, other.differences)
        for name, its in parts.items():
            mine = self.parts.setdefault(name, Part())
            mine.things += its.things
            mine.compared += its.compared
            mine.differences += its.differences


def compare_board(
    where: str, expected: Sequence[Place], seen: Sequence[Place], verdict: Verdict
) -> None:
    """Compare a whole board, place by place. A tick of None in `seen` is not compared.

    A member that is missing or in excess is named as such, not as a shift of all that follow.
    """
    by_member = {place.member: place for place in seen}
    if len(by_member) != len(seen):
        verdict.differ(f"{where}: {len(seen) - len(by_member)} members are shown twice")
    known = set()
    for want in expected:
        known.add(want.member)
        verdict.compared += 2
        got = by_member.get(want.member)
        if got is None:
            verdict.differ(f"{where}: {want.member!r} is missing (rank {want.rank}, {want.score})")
            continue
        if got.score != want.score:
            verdict.differ(f"{where}: {want.member!r} has {got.score}, expected {want.score}")
        if got.rank != want.rank:
            verdict.differ(
                f"{where}: {want.member!r} has rank {got.rank}, expected {want.rank}"
                f" (score {want.score})"
            )
        if got.tick is not None and got.tick != want.tick:
            verdict.differ(
                f"{where}: {want.member!r} was reached at tick {got.tick}, expected {want.tick}"
            )
    for place in seen:
        if place.member not in known:
            verdict.differ(f"{where}: {place.member!r} ({place.score}) should not be there")
    order = [place.member for place in expected if place.member in by_member]
    shown = [place.member for place in seen if place.member in known]
    for want_member, got_member in zip(order, shown, strict=False):
        if want_member != got_member:
            verdict.differ(
                f"{where}: {got_member!r} stands where {want_member!r} belongs"
                f" (expected rank {next(p.rank for p in expected if p.member == want_member)})"
            )
            break


def compare_counters(
    where: str, expected: dict[str, int], seen: dict[str, int | None], verdict: Verdict
) -> None:
    """Compare counters by name; None is one that does not exist."""
    for name, want in expected.items():
        verdict.compared += 1
        if seen.get(name) != want:
            verdict.differ(f"{where}: counter {name!r} is {seen.get(name)}, expected {want}")
    for name in seen.keys() - expected.keys():
        verdict.differ(f"{where}: counter {name!r} should not be there")


def from_redis(spec: BoardSpec, rows: Iterable[tuple[bytes, float]]) -> list[Place]:
    """A window as a game server reads it: (member, Redis score), best first."""
    places: list[Place] = []
    for index, (member, composite) in enumerate(rows):
        score, tick = spec.decode(int(composite))
        shared = spec.ties == "shared" and places and places[-1].score == score
        rank = places[-1].rank if shared else index + 1
        places.append(Place(rank, member.decode(), score, tick))
    return places


def compare_meta(
    where: str, spec: BoardSpec, meta: dict[bytes, bytes], verdict: Verdict, window: Window = ALL
) -> None:
    """Compare what the agent tells direct readers with what the contract makes of the board."""
    want = {"b": str(spec.tie_bits), "ties": spec.ties, "order": spec.order}
    if spec.tie_bits:
        want |= {"epoch_ms": str(window.start_ms), "tick_ms": str(spec.tick_ms(window))}
    for name, value in want.items():
        verdict.compared += 1
        got = meta.get(name.encode(), b"").decode()
        if got != value:
            verdict.differ(f"{where}: meta {name} is {got!r}, expected {value!r}")


def place_of(spec: BoardSpec, answer: dict[str, Any], window: Window = ALL) -> Place:
    """One line of an API answer. `reached_at` is compared in ticks, where ties go by time."""
    tick = None
    if spec.tie_bits and answer.get("reached_at"):
        moment = datetime.fromisoformat(answer["reached_at"])
        tick = spec.tick_of((moment - _EPOCH) // timedelta(milliseconds=1), window)
    return Place(answer["rank"], answer["member"], answer["score"], tick)


class _RegionCheck:
    """Reads one region and compares."""

    def __init__(
        self,
        region: Region,
        expectation: Expectation,
        session: aiohttp.ClientSession,
        redis: Redis,
    ) -> None:
        self._region = region
        self._expectation = expectation
        self._session = session
        self._redis = redis

    async def window(self, spec: BoardSpec, window: Window) -> Verdict:
        """Compare one window of a board, over HTTP and in Redis."""
        verdict = Verdict()
        expected = self._expectation.places(spec.name, window)
        where = f"{spec.name} {window.id}"
        base = f"{self._region.url}/v1/boards/{quote(spec.name, safe='')}/entries"
        of = f"window={quote(window.id)}"
        seen: list[Place] = []
        while True:
            page = await fetch(self._session, f"{base}?{of}&offset={len(seen)}&limit={PAGE}")
            seen += [place_of(spec, line, window) for line in page["entries"]]
            if len(page["entries"]) < PAGE:
                break
        compare_board(f"{self._region.name} api {where}", expected, seen, verdict)
        singles = SINGLES_MAX if window.name == "all" else 1
        for want in expected[:: max(1, -(-len(expected) // singles))]:
            answer = await _find(self._session, f"{base}/{quote(want.member, safe='')}?{of}")
            got = None if answer is None else place_of(spec, answer, window)
            verdict.compared += 1
            if got is None or got[:3] != want[:3]:
                verdict.differ(
                    f"{self._region.name} api {where}: asked for {want.member!r}: {got},"
                    f" expected {want}"
                )
        await self._window_in_redis(spec, window, expected, verdict)
        return verdict

    async def _window_in_redis(
        self, spec: BoardSpec, window: Window, expected: Sequence[Place], verdict: Verdict
    ) -> None:
        where = f"{self._region.name} redis {spec.name} {window.id}"
        key = f"lb:{{s0}}:{spec.name}:{window.id}"
        rows = await read_sorted_set(self._redis, key, low=spec.low)
        compare_board(where, expected, from_redis(spec, rows), verdict)
        meta = cast("dict[bytes, bytes]", await self._redis.hgetall(f"{key}:meta"))
        if expected:
            compare_meta(where, spec, meta, verdict, window)

    async def gone(self, board: str, windows: Sequence[Window]) -> Verdict:
        """Compare that windows which are kept no longer are shown no more."""
        verdict = Verdict()
        base = f"{self._region.url}/v1/boards/{quote(board, safe='')}/entries"
        for window in windows[::GONE_EVERY]:
            verdict.compared += 1
            async with self._session.get(f"{base}?window={quote(window.id)}") as response:
                code = (await response.json()).get("code")
            if code != "unknown_window":
                verdict.differ(
                    f"{self._region.name} api {board} {window.id}: should be gone, but is answered"
                    f" {response.status} {code or ''}"
                )
        left = set(windows)
        end = time.monotonic() + GONE_S
        while left and time.monotonic() < end:
            for window in list(left):
                key = f"lb:{{s0}}:{board}:{window.id}"
                if not await self._redis.exists(key, f"{key}:meta"):
                    left.discard(window)
            await asyncio.sleep(0.05 if left else 0)
        verdict.compared += len(windows)
        for window in sorted(left):
            verdict.differ(f"{self._region.name} redis {board} {window.id}: should be gone")
        return verdict

    async def counters(self) -> Verdict:
        """Compare all counters, over HTTP and in Redis."""
        verdict, expected = Verdict(), self._expectation.counters
        seen: dict[str, int | None] = {}
        for name in expected:
            url = f"{self._region.url}/v1/counters/{quote(name, safe='')}"
            seen[name] = (await fetch(self._session, url))["value"]
        compare_counters(f"{self._region.name} api", expected, seen, verdict)
        names = list(expected)
        found: dict[str, int | None] = {}
        for start in range(0, len(names), COUNTERS_AT_ONCE):
            some = names[start : start + COUNTERS_AT_ONCE]
            values = await self._redis.mget([f"ct:{{s0}}:{name}" for name in some])
            found.update(
                (name, None if value is None else int(value))
                for name, value in zip(some, values, strict=True)
            )
        compare_counters(f"{self._region.name} redis", expected, found, verdict)
        return verdict


class _Plan:
    """What is to be compared, in each region."""

    def __init__(self, expectation: Expectation, now_ms: int | None) -> None:
        self.windows: list[tuple[BoardSpec, Window]] = []
        self.gone: dict[str, list[Window]] = {}
        for name, spec in expectation.boards.items():
            if spec.rule in ACTED:
                continue
            for window in expectation.windows(name) or [ALL]:
                over = window.kept_ms is not None and now_ms is not None
                if over and cast("int", window.kept_ms) <= cast("int", now_ms):
                    self.gone.setdefault(name, []).append(window)
                else:
                    self.windows.append((spec, window))


async def check_everything(
    regions: Iterable[Region],
    expectation: Expectation,
    now_ms: int | None = None,
    told: Callable[[int, int], None] | None = None,
) -> Verdict:
    """Check every board with a number, in all its windows, and all counters, in all regions.

    Args:
        now_ms: the boards' time; None where no window is over.
        told: is told now and then how many windows are compared, and how many there are.

    Raises:
        aiohttp.ClientError, redis.RedisError: a region can't be read.
    """
    plan, verdict, places = _Plan(expectation, now_ms), Verdict(), list(regions)
    done = 0

    async def check(region: Region) -> None:
        nonlocal done
        async with Redis.from_url(region.redis_url) as redis:
            its = _RegionCheck(region, expectation, session, redis)
            for spec, window in plan.windows:
                verdict.add(await its.window(spec, window), SUBJECTS[window.name])
                done += 1
                if told is not None:
                    told(done, len(plan.windows) * len(places))
            for board, windows in plan.gone.items():
                verdict.add(await its.gone(board, windows), GONE)
            verdict.add(await its.counters(), COUNTERS)

    try:
        async with aiohttp.ClientSession() as session, asyncio.TaskGroup() as group:
            for region in places:
                group.create_task(check(region))
    except ExceptionGroup as failed:
        raise first_error(failed) from failed
    for _, window in plan.windows:
        verdict.parts[SUBJECTS[window.name]].things += 1
    if plan.gone:
        verdict.parts[GONE].things = sum(map(len, plan.gone.values()))
    verdict.parts[COUNTERS].things = len(expectation.counters)
    return verdict


async def read_sorted_set(redis: Redis, key: str, *, low: bool) -> list[tuple[bytes, float]]:
    """A whole sorted set as (member, score), best first; empty where there is none.

    Raises:
        redis.RedisError: Redis can't be reached.
    """
    rows: list[tuple[bytes, float]] = []
    while True:
        stop = len(rows) + REDIS_PAGE - 1
        found = await redis.zrange(key, len(rows), stop, desc=not low, withscores=True)
        page = cast("list[tuple[bytes, float]]", found)
        rows += page
        if len(page) < REDIS_PAGE:
            return rows


async def fetch(session: aiohttp.ClientSession, url: str) -> dict[str, Any]:
    """An agent's answer; asked for again while the window is being filled, for half a minute.

    Raises:
        aiohttp.ClientError: the agent can't be reached, or refuses to answer.
    """
    until = asyncio.get_running_loop().time() + FILLED_S
    while True:
        async with session.get(url) as response:
            document: dict[str, Any] = await response.json()
            filling = response.status == 503 and document.get("code") == "rebuilding"
            if not filling or asyncio.get_running_loop().time() > until:
                response.raise_for_status()
                return document
        await asyncio.sleep(FILLING_POLL_S)


async def _find(session: aiohttp.ClientSession, url: str) -> dict[str, Any] | None:
    """The answer; None where there is nothing of that name."""
    async with session.get(url) as response:
        if response.status == 404:
            return None
        response.raise_for_status()
        document: dict[str, Any] = await response.json()
        return document
