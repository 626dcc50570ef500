"""What it costs that an entry counts in four windows instead of one: both in turns on one agent."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median

from bench import requests
from bench.figures import Aim, Figure
from bench.load import Load
from bench.world import World
from bench.writes import BATCH, BATCH_CONNECTIONS, FILL_BATCH, PREPARED
from cluster.expected import BoardSpec
from cluster.windows import WindowSpec

ONE = BoardSpec("one-window", "sum", ties="member")
FOUR = BoardSpec(
    "four-windows",
    "sum",
    ties="member",
    windows=(
        WindowSpec("all"),
        *(WindowSpec(name, grace_days=1, keep_days=60) for name in ("day", "week", "month")),
    ),
)
FACTOR = Aim(2.5, at_least=False)


async def windows(world: World) -> list[Figure]:
    """Singles, hot batches, new members, and random ones of a large board."""
    for spec in (ONE, FOUR):
        await world.define(spec)
    batches = int(PREPARED * max(1.0, world.scale.seconds))
    figures = [
        await _compare(
            world,
            "one a request, one hot key",
            1,
            lambda board, _: Load(requests.single, (board, False)),
        ),
        await _compare(
            world,
            "batches of 100, hot keys",
            BATCH,
            lambda board, _: Load(requests.hot_batch, (board, False, BATCH), BATCH_CONNECTIONS),
        ),
        await _compare(
            world,
            "batches of 100, new members",
            BATCH,
            lambda board, number: Load(
                requests.new_batches,
                (board, False, BATCH, number * batches * BATCH, batches),
                BATCH_CONNECTIONS,
                again=False,
            ),
            aim=None,
        ),
    ]
    population = world.scale.population
    await _fill(world, population)
    figures.append(
        await _compare(
            world,
            f"batches of 100, random over {population:,} members",
            BATCH,
            lambda board, number: Load(
                requests.random_batches,
                (board, False, BATCH, population, number, PREPARED),
                BATCH_CONNECTIONS,
            ),
            aim=None,
        )
    )
    return figures


async def _fill(world: World, population: int) -> None:
    for spec in (ONE, FOUR):
        for first in range(0, population, FILL_BATCH):
            load = Load(
                requests.fill, (spec.name, False, first, FILL_BATCH), connections=1, again=False
            )
            await world.clients.drive(load.at(world.agent.port, 60.0))
    await world.settle()


async def _compare(
    world: World,
    name: str,
    per_request: int,
    make: Callable[[str, int], Load],
    *,
    aim: Aim | None = FACTOR,
) -> Figure:
    """The factor between one window and four, of loads by board and number of the round."""
    rates = await world.in_turns((ONE.name, FOUR.name), make, per_request)
    one, four = rates[ONE.name], rates[FOUR.name]
    return Figure(
        f"four windows to one, {name}",
        "x",
        tuple(its / fours for its, fours in zip(one, four, strict=True)),
        aim,
        note=f"{median(one):,.0f} and {median(four):,.0f} entries/s",
    )
