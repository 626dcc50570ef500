"""Compares certified finals: the same hash in every region, and the same rows as plain Python's.

Every month that is over is asked for in every region, and its rows are held against the
expectation: rank, member and score of each, in order. The hash is worked out again from the rows of
one region's export, as docs/finals.md says, so that it is the hash of what is shown.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any
from urllib.parse import quote

import aiohttp
import msgpack

from cluster.checker import PAGE, Region, Verdict, fetch
from cluster.expected import ACTED, BoardSpec, Expectation, Place
from cluster.windows import Window

FINALS = "certified months"
CERTIFIED_S = 90.0  # within which a month that is over is certified everywhere


@dataclass(frozen=True, slots=True)
class ShownFinal:
    """A final that is equal in all regions. winner: who is first; empty where nobody is."""

    board: str
    window: str
    members: int
    hash: str
    winner: str


async def check_finals(
    regions: Iterable[Region], expectation: Expectation, now_ms: int
) -> tuple[Verdict, list[ShownFinal]]:
    """Check the final of every month that is over, of all boards whose numbers are exact.

    Args:
        now_ms: the boards' time.

    Raises:
        aiohttp.ClientError: a region can't be read.
    """
    verdict, shown, places = Verdict(), list[ShownFinal](), list(regions)
    async with aiohttp.ClientSession() as session:
        for name, spec in expectation.boards.items():
            if spec.rule in ACTED:
                continue
            for window in expectation.windows(name):
                if window.name == "month" and window.closes_ms <= now_ms:
                    found = Verdict()
                    final = await _check(session, places, spec, window, expectation, found)
                    shown += [] if final is None else [final]
                    verdict.add(found, FINALS)
                    verdict.parts[FINALS].things += 1
    return verdict, shown


async def _check(
    session: aiohttp.ClientSession,
    regions: Sequence[Region],
    spec: BoardSpec,
    window: Window,
    expectation: Expectation,
    verdict: Verdict,
) -> ShownFinal | None:
    expected = expectation.places(spec.name, window)
    where = f"{spec.name} {window.id}"
    hashes = []
    path = f"/v1/boards/{quote(spec.name, safe='')}/windows/{quote(window.id)}/final"
    for region in regions:
        base = region.url + path
        first = await _certified(session, base)
        if first is None:
            verdict.compared += 1
            verdict.differ(f"{region.name} {where}: not certified in {CERTIFIED_S:.0f} s")
            return None
        hashes.append(first["certificate"]["hash"])
        entries = first["entries"]
        while len(entries) < first["total"]:
            page = await fetch(session, f"{base}?offset={len(entries)}&limit={PAGE}")
            entries += page["entries"]
        _compare(f"{region.name} final of {where}", expected, entries, verdict)
    verdict.compared += len(regions)
    if len(set(hashes)) != 1:
        verdict.differ(f"{where}: regions have certified different finals: {sorted(set(hashes))}")
        return None
    exported = await _hash_of_export(session, regions[0].url + path)
    if exported != hashes[0]:
        verdict.differ(f"{where}: its rows have the hash {exported}, not {hashes[0]}")
    winner = expected[0].member if expected else ""
    return ShownFinal(spec.name, window.id, len(expected), hashes[0], winner)


def _compare(
    where: str, expected: Sequence[Place], entries: Sequence[dict[str, Any]], verdict: Verdict
) -> None:
    want = [(place.rank, place.member, place.score) for place in expected]
    got = [(line["rank"], line["member"], line["score"]) for line in entries]
    verdict.compared += 2 * len(want)
    if got != want:
        at = next(
            (n for n, pair in enumerate(zip(want, got, strict=False)) if pair[0] != pair[1]),
            min(len(want), len(got)),
        )
        verdict.differ(f"{where}: row {at + 1} is {got[at : at + 1]}, expected {want[at : at + 1]}")


async def _certified(session: aiohttp.ClientSession, base: str) -> dict[str, Any] | None:
    """The first page of a final, as soon as it is there; None if that takes too long."""
    end = time.monotonic() + CERTIFIED_S
    while True:
        async with session.get(f"{base}?limit={PAGE}") as response:
            if response.status == 200:
                document: dict[str, Any] = await response.json()
                return document
            if response.status not in (404, 503) or time.monotonic() > end:
                return None
        await asyncio.sleep(0.1)


async def _hash_of_export(session: aiohttp.ClientSession, base: str) -> str:
    """The hash of exported rows, worked out as documented."""
    async with session.get(f"{base}?format=jsonl") as response:
        response.raise_for_status()
        lines = [json.loads(line) for line in (await response.text()).splitlines()]
    whole = sha256(b"tallyring final 1" + bytes.fromhex(lines[0]["space"]))
    for row in lines[1:-1]:
        if row["member"] is None:
            digest = bytes.fromhex(row["member_digest"])
        else:
            digest = sha256(bytes.fromhex(row["salt"]) + row["member"].encode()).digest()
        said = msgpack.packb([row["rank"], row["score"], row["reached_ms"], digest])
        whole.update(sha256(said).digest())
    return whole.hexdigest()
