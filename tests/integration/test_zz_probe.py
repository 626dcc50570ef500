from pathlib import Path
import asyncio, time, pytest
from agent.projection.keys import board_key, meta_key
from tests.integration.test_projection_patrol import patrolled, server, KEY
from agent.boards.windows import WindowSpec

@pytest.mark.parametrize("field", ["tick_ms", "order", "tenure", "generation", "b", "as_of"])
async def test_meta(server, tmp_path, field):
    async with patrolled(server, tmp_path/"eu", 50) as (agent, patrol, scores):
        before = await agent.redis.hgetall(meta_key("points","all"))
        await agent.redis.hset(meta_key("points","all"), field, "17")
        (placed,) = agent.projector.windows("points")
        print(field, "look:", await patrol.look_at(placed))
        await asyncio.sleep(1)
        after = await agent.redis.hgetall(meta_key("points","all"))
        print("MENDED" if before == after else f"NOT MENDED {after}", patrol.counts)

async def test_leftover(server, tmp_path):
    async with patrolled(server, tmp_path/"eu", 50) as (agent, patrol, scores):
        await asyncio.sleep(1)
        await agent.redis.zadd("lb:{s0}:points:all:new:abc", {"x":1})
        await agent.redis.zadd("lb:{s0}:nothere:all", {"x":1})
        await asyncio.sleep(2)
        print("LEFT", await agent.redis.keys("lb:*"))

async def test_thousand(server, tmp_path):
    async with patrolled(server, tmp_path/"eu", 2500, "system") as (agent, patrol, scores):
        (placed,) = agent.projector.windows("points")
        t=time.perf_counter()
        c=time.process_time()
        for _ in range(50): await patrol.look_at(placed)
        print("2500 members: ms a look", (time.perf_counter()-t)*20, "cpu", (time.process_time()-c)*20)
