"""A real agent with `agent.clock = "manual"`: fresh, set, killed, and started again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import aiohttp
from redis.asyncio import Redis

from agent.api.clock import FILE, ManualClock
from agent.boards.entry import time_ms
from agent.limits import TIME_MS_MAX
from cluster.local_ring import LocalRing
from tests.integration.fault_rig import answer, send
from tests.integration.gossip_rig import until

LATE, EARLY = "2026-11-30T16:30:00.000Z", "2026-11-30T15:30:00.000Z"
HOUR = "lb:{s0}:laps:hour:2026-11-30T16:meta"
BOARD: dict[str, Any] = {"rule": "sum", "windows": [{"name": "hour"}, {"name": "all"}]}


async def test_a_fresh_clock_has_all_open_and_a_restart_does_not_set_it_back(
    tmp_path: Path,
) -> None:
    settings: dict[str, dict[str, Any]] = {
        "agent": {"clock": "manual"},
        "projection": {"check_s": 0.1},
    }
    async with (
        LocalRing(("eu",), folder=tmp_path / "ring", settings=settings) as ring,
        aiohttp.ClientSession() as session,
    ):
        agent = ring["eu"]

        async def has(*keys: str) -> None:
            async def there() -> bool:
                async with Redis.from_url(agent.redis_url) as redis:
                    return bool(await redis.exists(*keys) == len(keys))

            await until(there)

        await has("lb:{s0}:counters:all:meta")
        await send(session, agent, "PUT", "/v1/boards/laps", BOARD)
        await has("lb:{s0}:laps:all:meta", "lb:{s0}:laps:hour:1970-01-01T00:meta")
        await send(session, agent, "POST", "/v1/clock", {"now": LATE})
        await has(HOUR)
        for how in ("kill", "stop"):
            if how == "kill":
                ring.kill("eu")
            else:
                await ring.stop("eu")
            await ring.start("eu")
            agent = ring["eu"]
            status, body = await answer(session, agent, "POST", "/v1/clock", {"now": EARLY})
            assert (status, body["code"]) == (422, "out_of_range")
            assert LATE in body["detail"]
            shown = await send(session, agent, "GET", "/v1/boards/laps")
            assert "hour:2026-11-30T16" in str(shown)
            await has(HOUR, "lb:{s0}:counters:all:meta")


def test_a_clock_begins_at_the_latest_time_that_is_known(tmp_path: Path) -> None:
    assert ManualClock.open(tmp_path, 5).now_ms() == 5
    clock = ManualClock.open(tmp_path, 0)
    clock.set_ms(time_ms(LATE, TIME_MS_MAX, "now"))
    clock.keep()
    assert ManualClock.open(tmp_path, 5).now_ms() == clock.now_ms()
    assert ManualClock.open(tmp_path, clock.now_ms() + 1).now_ms() == clock.now_ms() + 1
    (tmp_path / FILE).write_text("noon")
    assert ManualClock.open(tmp_path, 5).now_ms() == 5
    ManualClock(7).keep()  # of no folder: nothing is written


def test_a_clock_that_can_not_be_kept_goes_on(tmp_path: Path) -> None:
    clock = ManualClock.open(tmp_path / "gone", 0)
    clock.set_ms(9)
    clock.keep()
    assert clock.now_ms() == 9
