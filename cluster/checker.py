"""The checker knows the right answer: it compares every score and every rank in every region.

Each region is read twice, over its agent's HTTP API (all pages, then members one by one) and
straight from its Redis, the way a game server would. Composite scores are decoded with the
documented formula, worked out in cluster/expected.py and held against the `:meta` that the agent
publishes. That all regions agree is never enough: they are held against the expectation.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, cast
from urllib.parse import quote

import aiohttp
from redis.asyncio import Redis

from cluster.expected import EPOCH_MS, BoardSpec, Expectation, Place

PAGE = 1_000
REDIS_PAGE = 5_000
COUNTERS_AT_ONCE = 500
SINGLES_MAX = 25  # members of each board that are also asked for one by one
SHOWN_MAX = 20  # differences kept as text; all are counted
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Region:
    """Where a region can be read."""

    name: str
    url: str
    redis_url: str


@dataclass(slots=True)
class Verdict:
    """What a check found. `compared` counts scores, ranks and values that were looked at."""

    compared: int = 0
    differences: int = 0
    shown: list[str] = field(default_factory=list)

    @property
    def equal(self) -> bool:
        """Whether something was compared and nothing differed."""
        return self.compared > 0 and not self.differences

    def differ(self, text: str) -> None:
        """Note a difference."""
        self.differences += 1
        if len(self.shown) < SHOWN_MAX:
            self.shown.append(text)

    def add(self, other: Verdict) -> None:
        """Take in what another check found."""
        self.compared += other.compared
        self.differences += other.differences
        self.shown = (self.shown + other.shown)[:SHOWN_MAX]


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
    """A board as a game server reads it: (member, Redis score), best first."""
    places: list[Place] = []
    for index, (member, composite) in enumerate(rows):
        score, tick = spec.decode(int(composite))
        shared = spec.ties == "shared" and places and places[-1].score == score
        rank = places[-1].rank if shared else index + 1
        places.append(Place(rank, member.decode(), score, tick))
    return places


def compare_meta(where: str, spec: BoardSpec, meta: dict[bytes, bytes], verdict: Verdict) -> None:
    """Compare what the agent tells direct readers with what the contract makes of the board."""
    want = {"b": str(spec.tie_bits), "ties": spec.ties, "order": spec.order}
    if spec.tie_bits:
        want |= {"epoch_ms": str(EPOCH_MS), "tick_ms": str(spec.tick_ms)}
    for name, value in want.items():
        verdict.compared += 1
        got = meta.get(name.encode(), b"").decode()
        if got != value:
            verdict.differ(f"{where}: meta {name} is {got!r}, expected {value!r}")


def place_of(spec: BoardSpec, answer: dict[str, Any]) -> Place:
    """One line of an API answer. `reached_at` is compared in ticks, where ties go by time."""
    tick = None
    if spec.tie_bits and answer.get("reached_at"):
        moment = datetime.fromisoformat(answer["reached_at"])
        tick = spec.tick_of((moment - _EPOCH) // timedelta(milliseconds=1))
    return Place(answer["rank"], answer["member"], answer["score"], tick)


async def check_api(
    region: Region, expectation: Expectation, session: aiohttp.ClientSession
) -> Verdict:
    """Read a region's every board and counter over HTTP and compare.

    Raises:
        aiohttp.ClientError: the agent can't be reached, or refuses to answer.
    """
    verdict = Verdict()
    for name, spec in expectation.boards.items():
        where = f"{region.name} api {name}"
        expected = expectation.places(name)
        base = f"{region.url}/v1/boards/{quote(name, safe='')}/entries"
        seen: list[Place] = []
        while True:
            page = await _get(session, f"{base}?offset={len(seen)}&limit={PAGE}")
            seen += [place_of(spec, line) for line in page["entries"]]
            if len(page["entries"]) < PAGE:
                break
        compare_board(where, expected, seen, verdict)
        step = max(1, len(expected) // SINGLES_MAX)
        for want in expected[::step]:
            answer = await _find(session, f"{base}/{quote(want.member, safe='')}")
            got = None if answer is None else place_of(spec, answer)
            verdict.compared += 1
            if got is None or got[:3] != want[:3]:
                verdict.differ(f"{where}: asked for {want.member!r}: {got}, expected {want}")
    seen_counters: dict[str, int | None] = {}
    for name in expectation.counters:
        answer = await _get(session, f"{region.url}/v1/counters/{quote(name, safe='')}")
        seen_counters[name] = answer["value"]
    compare_counters(f"{region.name} api", expectation.counters, seen_counters, verdict)
    return verdict


async def check_redis(region: Region, expectation: Expectation) -> Verdict:
    """Read a region's every board and counter straight from its Redis and compare.

    Raises:
        redis.RedisError: Redis can't be reached.
    """
    verdict = Verdict()
    async with Redis.from_url(region.redis_url) as redis:
        for name, spec in expectation.boards.items():
            where = f"{region.name} redis {name}"
            key = f"lb:{{s0}}:{name}:all"
            rows: list[tuple[bytes, float]] = []
            while True:
                stop = len(rows) + REDIS_PAGE - 1
                found = await redis.zrange(key, len(rows), stop, desc=not spec.low, withscores=True)
                page = cast("list[tuple[bytes, float]]", found)
                rows += page
                if len(page) < REDIS_PAGE:
                    break
            compare_board(where, expectation.places(name), from_redis(spec, rows), verdict)
            meta = cast("dict[bytes, bytes]", await redis.hgetall(f"{key}:meta"))
            if expectation.places(name):
                compare_meta(where, spec, meta, verdict)
        names = list(expectation.counters)
        seen: dict[str, int | None] = {}
        for start in range(0, len(names), COUNTERS_AT_ONCE):
            some = names[start : start + COUNTERS_AT_ONCE]
            values = await redis.mget([f"ct:{{s0}}:{name}" for name in some])
            seen.update(
                (name, None if value is None else int(value))
                for name, value in zip(some, values, strict=True)
            )
        compare_counters(f"{region.name} redis", expectation.counters, seen, verdict)
    return verdict


async def check_everything(regions: Iterable[Region], expectation: Expectation) -> Verdict:
    """Check all regions, over the API and in Redis.

    Raises:
        aiohttp.ClientError, redis.RedisError: a region can't be read.
    """
    verdict = Verdict()
    async with aiohttp.ClientSession() as session:
        for region in regions:
            verdict.add(await check_api(region, expectation, session))
            verdict.add(await check_redis(region, expectation))
    return verdict


async def _get(session: aiohttp.ClientSession, url: str) -> dict[str, Any]:
    async with session.get(url) as response:
        response.raise_for_status()
        document: dict[str, Any] = await response.json()
        return document


async def _find(session: aiohttp.ClientSession, url: str) -> dict[str, Any] | None:
    """The answer; None where there is nothing of that name."""
    async with session.get(url) as response:
        if response.status == 404:
            return None
        response.raise_for_status()
        document: dict[str, Any] = await response.json()
        return document
