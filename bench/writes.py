"""Writes over HTTP, beside the same writes to Valkey: singles, batches, and a large board."""

from __future__ import annotations

import time

from bench import requests
from bench.figures import Aim, Figure
from bench.load import Load
from bench.world import HOT, LARGE, NEW, OURS, World

BATCH = 100
BATCH_CONNECTIONS = 16
FILL_BATCH = 10_000
PREPARED = 1_500  # different batches in one round


def _figure(
    name: str, unit: str, values: dict[str, tuple[float, ...]], aim: Aim, ratio: str | None = None
) -> Figure:
    beside = {f"valkey {policy}": its for policy, its in values.items() if policy != OURS}
    return Figure(name, unit, values[OURS], aim, beside, ratio)


async def singles(world: World) -> list[Figure]:
    """One increment a request on one hot key, by 64 connections."""
    values = await world.alternate(
        lambda resp, _: Load(requests.single, (HOT.name, resp), replies=2 if resp else 0)
    )
    return [
        _figure(
            "increments, one a request, one hot key",
            "requests/s",
            values,
            Aim(0.2),
            "valkey always",
        )
    ]


async def hot_batches(world: World) -> list[Figure]:
    """Batches of 100 increments on ten hot keys."""
    values = await world.alternate(
        lambda resp, _: Load(
            requests.hot_batch,
            (HOT.name, resp, BATCH),
            BATCH_CONNECTIONS,
            replies=2 * BATCH if resp else 0,
        ),
        BATCH,
    )
    return [_figure("batches of 100, hot keys", "entries/s", values, Aim(250_000))]


async def new_members(world: World) -> list[Figure]:
    """Batches of 100 members that were never there."""
    batches = int(PREPARED * max(1.0, world.scale.seconds))
    values = await world.alternate(
        lambda resp, number: Load(
            requests.new_batches,
            (NEW.name, resp, BATCH, number * batches * BATCH, batches),
            BATCH_CONNECTIONS,
            replies=2 * BATCH if resp else 0,
            again=False,
        ),
        BATCH,
    )
    return [_figure("batches of 100, new members", "entries/s", values, Aim(50_000))]


async def fill(world: World) -> list[Figure]:
    """Fill the large board, of the agent and of both Valkeys; memory before and after."""
    before = world.agent.resident_bytes / 2**20
    started = time.perf_counter()
    for first in range(0, world.scale.population, FILL_BATCH):
        for resp, port in ((False, world.agent.port), *((True, p) for p in world.valkeys.values())):
            load = Load(
                requests.fill,
                (LARGE.name, resp, first, FILL_BATCH),
                connections=1,
                replies=2 * FILL_BATCH if resp else 0,
                again=False,
            )
            await world.clients.drive(load.at(port, 60.0))
    await world.settle()
    seconds = time.perf_counter() - started
    after = world.agent.resident_bytes / 2**20
    return [
        Figure(
            f"resident memory with {world.agent.cells:,} cells",
            "MiB",
            (after,),
            Aim(150, at_least=False),
            note=f"{before:.0f} MiB before they were written (in {seconds:.0f} s)",
        )
    ]


async def random_members(world: World) -> list[Figure]:
    """Batches of 100 at random over the large board."""
    values = await world.alternate(
        lambda resp, number: Load(
            requests.random_batches,
            (LARGE.name, resp, BATCH, world.scale.population, number, PREPARED),
            BATCH_CONNECTIONS,
            replies=2 * BATCH if resp else 0,
        ),
        BATCH,
    )
    name = f"batches of 100, random over {world.scale.population:,} members"
    return [_figure(name, "entries/s", values, Aim(25_000))]
