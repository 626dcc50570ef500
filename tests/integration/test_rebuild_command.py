"""`tallyring rebuild` and `tallyring audit --background` against a real agent and its Redis."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result
from redis.asyncio import Redis

from cluster.cli import main
from cluster.local_ring import LocalRing
from tests.integration.gossip_rig import until

KEY = "lb:{s0}:laps:all"
SETTINGS = {"projection": {"check_s": 0.1, "patrol_s": 0.3}}


async def call(ring: LocalRing, *arguments: str) -> Result:
    """A command against the ring's agent; it must work."""
    result = await asyncio.to_thread(
        CliRunner().invoke, main, [*arguments, "--url", ring["eu"].url]
    )
    assert result.exit_code == 0, result.output
    return result


async def background(ring: LocalRing) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((await call(ring, "audit", "--background", "--json")).stdout)
    return found


async def test_what_has_no_window_is_not_filled_and_says_so(tmp_path: Path) -> None:
    over = ["--window", "season:s1,start=2024-01-01T00:00:00Z,end=2024-02-01T00:00:00Z"]
    async with LocalRing(("eu",), folder=tmp_path / "ring", settings=SETTINGS) as ring:
        await call(ring, "board", "define", "laps", "--rule", "sum", *over)
        said = (await call(ring, "rebuild", "laps")).output
        assert said == "laps: no window has a place in Redis, so none was filled\n"


async def test_redis_is_filled_anew_by_hand_and_mended_by_itself(tmp_path: Path) -> None:
    async with LocalRing(("eu",), folder=tmp_path / "ring", settings=SETTINGS) as ring:
        for board in ("laps", "kills"):
            await call(ring, "board", "define", board, "--rule", "sum")
            for number in range(5):
                await call(ring, "add", board, f"m{number}", str(number + 1))
        async with Redis.from_url(ring["eu"].redis_url) as redis:

            async def right() -> bool:
                rows = await redis.zrange(KEY, 0, -1)
                return bool(rows == [b"m%d" % number for number in range(5)])

            await until(right)
            # A new set is another object: this one is of the form that only a member of a
            # length beyond what fits a listpack makes, and it stays so.
            await redis.zadd(KEY, {"x" * 1_000: 1})
            await redis.zrem(KEY, "x" * 1_000)
            assert await redis.object("encoding", KEY) == b"skiplist"

            said = json.loads((await call(ring, "rebuild", "laps", "--json")).stdout)
            assert (said["phase"], said["boards"], said["waited"]) == ("following", [], True)
            rebuild = said["rebuild"]
            assert (rebuild["ended"], rebuild["windows"], rebuild["members"]) == (True, 1, 5)
            assert (rebuild["done"], rebuild["total"]) == (5, 5)
            assert await right()
            assert await redis.object("encoding", KEY) == b"listpack"
            told = (await call(ring, "rebuild", "laps", "kills")).output
            assert re.fullmatch(
                r"laps, kills: filled anew in \d+\.\d s: 2 windows, 10 members\n", told
            )
            begun = json.loads((await call(ring, "rebuild", "--no-wait", "--json")).stdout)
            assert begun["rebuild"]["ended"] is False
            assert ": 3 windows, 10 members" in (await call(ring, "rebuild")).output

            await redis.zadd(KEY, {"m0": 77, "nobody": 5})
            await until(right)

        async def mended() -> bool:
            return bool((await background(ring))["repaired"] >= 2)

        await until(mended)
        found = await background(ring)
        assert found["differences"] >= 2
        shown = (await call(ring, "audit", "--background")).output
        assert "laps all" in shown
        assert "nobody" in shown
