"""Compares what actors do: likes exactly, uniques within the error that is stated for them.

Of a `distinct` board each score, each rank and each actor is compared in every region. Of a
`unique` board the score is an estimate with a standard error of 0.81 %: it is compared with the
plain set of those who were there, within four of those, and must be the same number in every
region.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from urllib.parse import quote

import aiohttp
from redis.asyncio import Redis

from cluster.checker import (
    PAGE,
    Region,
    Verdict,
    compare_board,
    fetch,
    from_redis,
    place_of,
    read_sorted_set,
)
from cluster.expected import BoardSpec, Expectation, Place, ranked

SIGMA = 1.04 / 2**7  # 16,384 registers: 0.81 %
SIGMAS = 4
LIKES, UNIQUES = "likes, by actor", "uniques"


@dataclass(slots=True)
class Estimates:
    """How far estimates were from the truth.

    counted: estimates in one region. greatest: the truth behind the greatest of them.
    worst: the greatest error, as a part of the truth. worst_of: whose that is.
    """

    counted: int = 0
    greatest: int = 0
    worst: float = 0.0
    worst_of: str = ""

    def take(self, member: str, truth: int, estimate: int) -> bool:
        """Note an estimate; returns whether it is near enough.

        One more or less is: a small number is a whole one, and an estimate is rounded.
        """
        off = abs(estimate - truth)
        if off / truth > self.worst:
            self.worst, self.worst_of = off / truth, member
        self.greatest = max(self.greatest, truth)
        return off <= max(1.0, SIGMAS * SIGMA * truth)


async def check_actors(
    regions: Iterable[Region], expectation: Expectation
) -> tuple[Verdict, Estimates]:
    """Check every `distinct` and `unique` board in all regions.

    Raises:
        aiohttp.ClientError, redis.RedisError: a region can't be read.
    """
    verdict, estimates, places = Verdict(), Estimates(), list(regions)
    async with aiohttp.ClientSession() as session:
        for spec in expectation.boards.values():
            if spec.rule not in ("distinct", "unique"):
                continue
            seen = [await _read(region, spec, session, verdict) for region in places]
            found = Verdict()
            if spec.rule == "unique":
                _compare_estimates(spec, expectation, places, seen, found, estimates)
                verdict.add(found, UNIQUES)
                verdict.parts[UNIQUES].things += len(expectation.actors(spec.name))
                continue
            expected = expectation.places(spec.name)
            for region, board in zip(places, seen, strict=True):
                compare_board(f"{region.name} api {spec.name}", expected, board, found)
                await _compare_actors(region, spec, expectation, session, found)
            verdict.add(found, LIKES)
            verdict.parts[LIKES].things += sum(place.score for place in expected)
    return verdict, estimates


async def _read(
    region: Region, spec: BoardSpec, session: aiohttp.ClientSession, verdict: Verdict
) -> list[Place]:
    """A board over HTTP; that Redis holds the same is compared on the way."""
    base = f"{region.url}/v1/boards/{quote(spec.name, safe='')}/entries"
    seen: list[Place] = []
    while True:
        page = await fetch(session, f"{base}?offset={len(seen)}&limit={PAGE}")
        seen += [place_of(spec, line) for line in page["entries"]]
        if len(page["entries"]) < PAGE:
            break
    async with Redis.from_url(region.redis_url) as redis:
        rows = await read_sorted_set(redis, f"lb:{{s0}}:{spec.name}:all", low=spec.low)
    found = Verdict()
    where = f"{region.name} redis {spec.name} beside its api"
    compare_board(where, seen, from_redis(spec, rows), found)
    verdict.add(found, UNIQUES if spec.rule == "unique" else LIKES)
    return seen


async def _compare_actors(
    region: Region,
    spec: BoardSpec,
    expectation: Expectation,
    session: aiohttp.ClientSession,
    verdict: Verdict,
) -> None:
    """Compare who is present, actor by actor."""
    for member, expected in expectation.actors(spec.name).items():
        base = f"{region.url}/v1/boards/{quote(spec.name, safe='')}/actors"
        page = await fetch(session, f"{base}/{quote(member, safe='')}?limit={PAGE}")
        present = set(page["actors"])
        verdict.compared += len(expected | present)
        for actor in sorted(expected ^ present):
            said = "is missing" if actor in expected else "should not be there"
            verdict.differ(f"{region.name} api {spec.name} {member!r}: actor {actor!r} {said}")


def _compare_estimates(
    spec: BoardSpec,
    expectation: Expectation,
    regions: Sequence[Region],
    seen: Sequence[Sequence[Place]],
    verdict: Verdict,
    estimates: Estimates,
) -> None:
    """Compare estimates with the truth, and each region's board with the order of its scores."""
    truth = expectation.actors(spec.name)
    estimates.counted += len(truth)
    for region, board in zip(regions, seen, strict=True):
        where = f"{region.name} api {spec.name}"
        shown = {place.member: place.score for place in board}
        verdict.compared += 2 * len(truth)
        if list(board) != list(seen[0]):
            verdict.differ(f"{where}: is not the same as in {regions[0].name}")
        if list(board) != ranked(spec, [(place.member, place.score, 0) for place in board]):
            verdict.differ(f"{where}: is not in the order of its scores")
        for member in shown.keys() ^ truth.keys():
            verdict.differ(f"{where}: {member!r} is there, or expected, without the other")
        for member, actors in truth.items():
            if member in shown and not estimates.take(member, len(actors), shown[member]):
                verdict.differ(
                    f"{where}: {member!r} has {shown[member]}, and {len(actors)} were there"
                )
