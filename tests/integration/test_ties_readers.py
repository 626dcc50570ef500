"""The documentation's readers of Redis, run: they say what the API says, in three languages.

Python always runs. JavaScript needs `node` and the package ioredis, Go needs `go` and the module
go-redis in its cache; NODE_PATH says where packages of node are, as for node itself. Without them
the test of that one is skipped, and nothing is ever fetched from a network.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
from redis.asyncio import Redis

from cluster.local_ring import LocalRing
from tests.integration.fault_rig import answer, eventually, send, serves
from tests.property.tie_oracle import Line, Rules, Said, lines_of
from tests.unit.documents import ROOT, page

pytestmark = pytest.mark.asyncio(loop_scope="module")

READERS = ROOT / "docs" / "readers"
NOW_MS = 1_796_040_000_000
BANNED = "cheat"
TRY_LATER = 75
COUNTER = 2**53 - 1
RULES = [
    Rules("latest", order, ties, score=score)
    for order in ("high", "low")
    for ties, score in (
        ("first", (-4_095, 4_095)),
        ("last", None),
        ("first", (-(2**27), 2**27)),
        ("shared", None),
        ("member", (-(2**53) + 1, 2**53 - 1)),
    )
]
# Two that tie in the same minute and in another one, below zero and above, and names of many bytes.
SAID = [
    Said("ann", -3, NOW_MS - 600_000),
    Said("bob", -3, NOW_MS - 599_999),
    Said("é", -3, NOW_MS - 300_000),
    Said("日本", 7, NOW_MS - 600_000),
    Said("a b", 7, NOW_MS - 500_000),
    Said(BANNED, 7, NOW_MS - 400_000),
    Said("zero", 0, NOW_MS),
]


@dataclass
class Served:
    """One agent, its boards, and what they must show."""

    ring: LocalRing
    session: aiohttp.ClientSession
    boards: dict[str, Rules] = field(default_factory=dict)
    said: dict[str, list[Said]] = field(default_factory=dict)

    @property
    def port(self) -> str:
        """Where its Redis is."""
        return self.ring["eu"].redis_url.rpartition(":")[2].partition("/")[0]

    async def ask(self, method: str, where: str, body: Any = None) -> dict[str, Any]:
        """The document of an answer that must be a success."""
        return await send(self.session, self.ring["eu"], method, where, body)

    def lines(self, board: str) -> list[Line]:
        """What a board must show."""
        return lines_of(self.boards[board], self.said[board], [BANNED])

    async def fill(self, board: str, rules: Rules, said: list[Said]) -> None:
        """Define a board, write its entries, and wait until they rank as they must."""
        self.boards[board], self.said[board] = rules, said
        await self.ask("PUT", f"/v1/boards/{board}", rules.document())
        await serves(self.session, self.ring["eu"], board)
        entries = [{"member": one.member, "score": one.number, "at": one.at_ms} for one in said]
        await self.ask("POST", f"/v1/boards/{board}/entries", {"entries": entries})
        names = [(line.rank, line.member) for line in self.lines(board)]

        async def ranked() -> bool:
            where = f"/v1/boards/{board}/entries?limit=1000"
            status, shown = await answer(self.session, self.ring["eu"], "GET", where)
            lines = shown.get("entries", ())
            return status == 200 and [(one["rank"], one["member"]) for one in lines] == names

        await eventually(ranked)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served() -> AsyncIterator[Served]:
    settings: dict[str, dict[str, Any]] = {
        "agent": {"clock": "manual"},
        "projection": {"check_s": 0.1},
    }
    timeout = aiohttp.ClientTimeout(total=15)
    async with (
        aiohttp.ClientSession(timeout=timeout) as session,
        LocalRing(("eu",), settings=settings) as ring,
    ):
        made = Served(ring, session)
        await made.ask("POST", "/v1/clock", {"now": "2026-11-30T12:00:00Z"})
        await made.ask("PUT", f"/v1/bans/{BANNED}", {"reason": "test"})
        for number, rules in enumerate(RULES):
            limit = [Said("least", rules.score[0], NOW_MS)] if rules.score else []
            most = [Said("most", rules.score[1], NOW_MS)] if rules.score else []
            name = f"board-{number}-{rules.order}-{rules.ties}"
            await made.fill(name, rules, [*SAID, *limit, *most])
        await made.ask("PUT", "/v1/boards/empty", {"rule": "best"})
        await serves(session, ring["eu"], "empty")
        await made.ask("POST", "/v1/counters/likes", {"by": COUNTER})
        await serves(session, ring["eu"], "counters")
        yield made


def python(_: Path) -> list[str]:
    return [sys.executable, str(READERS / "leaderboard.py")]


def javascript(folder: Path) -> list[str]:
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")
    places = [Path(place) for place in os.environ.get("NODE_PATH", "").split(os.pathsep) if place]
    places += [READERS / "node_modules", ROOT / "node_modules", Path("/usr/lib/node_modules")]
    packages = next((place for place in places if (place / "ioredis").is_dir()), None)
    if packages is None:
        pytest.skip("the package ioredis is not installed; NODE_PATH says where")
    # Modules look for packages beside themselves, wherever NODE_PATH points.
    (folder / "node_modules").symlink_to(packages.resolve())
    return [node, str(shutil.copy(READERS / "leaderboard.mjs", folder))]


def go(folder: Path) -> list[str]:
    compiler = shutil.which("go")
    if compiler is None:
        pytest.skip("go is not installed")
    shutil.copy(READERS / "leaderboard.go", folder)
    offline = {**os.environ, "GOPROXY": "off", "GOFLAGS": "-mod=mod", "GOTOOLCHAIN": "local"}
    for line in (
        ["mod", "init", "leaderboard"],
        ["get", "github.com/redis/go-redis/v9"],
        ["build", "-o", "leaderboard", "."],
    ):
        done = subprocess.run(
            [compiler, *line], cwd=folder, env=offline, check=False, capture_output=True, text=True
        )
        if done.returncode and line[0] == "get":
            pytest.skip("the module github.com/redis/go-redis/v9 is not in the cache of go")
        assert done.returncode == 0, done.stderr
    return [str(folder / "leaderboard")]


LANGUAGES = [python, javascript, go]


async def run(command: list[str], *arguments: str) -> subprocess.CompletedProcess[str]:
    line = [*command, *arguments]
    return await asyncio.to_thread(
        subprocess.run, line, check=False, capture_output=True, encoding="utf-8", timeout=30
    )


async def says(command: list[str], *arguments: str) -> Any:
    done = await run(command, *arguments)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.timeout(180)  # a process for each look
async def test_a_reader_says_what_the_board_shows(
    served: Served, language: Any, tmp_path: Path
) -> None:
    command = [*await asyncio.to_thread(language, tmp_path), served.port]
    for board, rules in served.boards.items():
        lines = served.lines(board)
        want = [
            {"rank": line.rank, "member": line.member, "score": line.score, "reached_ms": at_ms}
            for line in lines
            for at_ms in (line.tick_ms,)
        ]
        for offset, limit in ((0, 100), (2, 2), (3, 2), (100, 5)):
            found = await says(command, "page", board, "all", str(offset), str(limit))
            shown = {"total": len(want), "entries": want[offset : offset + limit]}
            assert found == shown, (board, rules)
        members = [line.member for line in lines]
        found = await says(command, "rank", board, "all", *members, BANNED, "nobody")
        assert found == [*want, None, None], (board, rules)


@pytest.mark.parametrize("language", LANGUAGES)
async def test_a_reader_knows_empty_boards_counters_and_what_is_not_there(
    served: Served, language: Any, tmp_path: Path
) -> None:
    command = [*await asyncio.to_thread(language, tmp_path), served.port]
    empty = await says(command, "page", "empty", "all", "0", "10")
    assert empty == {"total": 0, "entries": []}
    assert await says(command, "rank", "empty", "all", "ann") == [None]
    assert await says(command, "counter", "likes") == str(COUNTER)
    assert await says(command, "counter", "nobody") == "0"
    for arguments in (("page", "no-such", "all", "0", "10"), ("rank", "no-such", "all", "ann")):
        assert (await run(command, *arguments)).returncode == TRY_LATER
    async with Redis(port=int(served.port)) as redis:
        await redis.delete("lb:{s0}:counters:all:meta")
        done = await run(command, "counter", "likes")

        async def filled() -> bool:
            return bool(await redis.exists("lb:{s0}:counters:all:meta"))

        await eventually(filled)
    # Where the agent was sooner than the reader, the answer is whole again.
    assert done.returncode == TRY_LATER or json.loads(done.stdout) == str(COUNTER)


async def test_times_outside_a_window_count_as_its_end(served: Served) -> None:
    command = [*python(READERS), served.port]
    rules = Rules("best", score=(0, 4_095))
    early = [Said("C", 7, 0), Said("a", 7, -1_000), Said("b", 7, NOW_MS)]
    await served.fill("early", rules, early)
    found = await says(command, "page", "early", "all", "0", "10")
    start_ms = rules.start_ms
    assert [(line["member"], line["reached_ms"]) for line in found["entries"]] == [
        ("a", start_ms),
        ("C", start_ms),
        ("b", NOW_MS),
    ]


async def test_the_readers_are_on_the_page() -> None:
    for file in sorted(READERS.iterdir()):
        if file.is_file():
            assert f"(readers/{file.name})" in page("docs/redis.md"), file.name
