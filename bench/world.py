"""What is measured on one agent and two Valkeys: they run for the whole of it, and take turns."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from bench.load import Clients, Load
from bench.valkeys import POLICIES, valkeys
from cluster.demo import until_included
from cluster.expected import BoardSpec
from cluster.local_agent import LocalAgent
from cluster.local_ring import LocalRing

HOT = BoardSpec("hot", "sum", ties="member")
LARGE = BoardSpec("large", "sum", ties="member")
NEW = BoardSpec("new", "sum", ties="member")
OURS = "tallyring"


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is measured: rounds, seconds of each, members of the large board."""

    rounds: int
    seconds: float
    population: int


FULL = Scale(rounds=5, seconds=2.0, population=1_000_000)
QUICK = Scale(rounds=3, seconds=0.7, population=100_000)


@dataclass(frozen=True, slots=True)
class World:
    """An agent, the Valkeys' ports by policy, and the client's process."""

    agent: LocalAgent
    valkeys: Mapping[str, int]
    clients: Clients
    scale: Scale

    async def settle(self) -> None:
        """Wait until the agent's Redis holds every write so far."""
        await until_included([self.agent.region], time.time_ns() // 1_000_000, LARGE.name)

    async def define(self, spec: BoardSpec) -> None:
        """Define a board on the agent."""
        async with aiohttp.ClientSession() as session:
            url = f"{self.agent.url}/v1/boards/{spec.name}"
            async with session.put(url, json=spec.document()) as response:
                response.raise_for_status()

    async def in_turns(
        self, names: Sequence[str], make: Callable[[str, int], Load], per_request: int = 1
    ) -> dict[str, tuple[float, ...]]:
        """Drive the agent with several loads in turns: rates by name, in the unit of `per_request`.

        Every other round goes through them backwards: what drifts meanwhile favours none.
        `make` gives the load of a name in a round.
        """
        values: dict[str, list[float]] = {name: [] for name in names}
        for number in range(self.scale.rounds):
            for name in reversed(names) if number % 2 else names:
                load = make(name, number).at(self.agent.port, self.scale.seconds)
                values[name].append((await self.clients.drive(load)).per_s * per_request)
                await self.settle()
        return {name: tuple(rates) for name, rates in values.items()}

    async def alternate(
        self, make: Callable[[bool, int], Load], per_request: int = 1
    ) -> dict[str, tuple[float, ...]]:
        """Drive agent, Valkey, Valkey, agent, ...: rates by name, in the unit of `per_request`.

        `make` gives the load: for RESP or not, and of which round.
        """
        values: dict[str, list[float]] = {name: [] for name in (OURS, *POLICIES)}
        for number in range(self.scale.rounds):
            for name, rates in values.items():
                if name == OURS:
                    load = make(False, number)
                    port = self.agent.port
                else:
                    load = make(True, number)
                    port = self.valkeys[name]
                driven = await self.clients.drive(load.at(port, self.scale.seconds))
                rates.append(driven.per_s * per_request)
                await self.settle()
        return {name: tuple(rates) for name, rates in values.items()}


@asynccontextmanager
async def world(folder: Path, scale: Scale) -> AsyncIterator[World]:
    """Start everything, with the boards HOT, NEW and LARGE; the last with no members yet."""
    with valkeys(folder) as ports, Clients() as clients:
        async with LocalRing(("bench",), folder=folder / "ring") as ring:
            made = World(ring["bench"], ports, clients, scale)
            for spec in (HOT, LARGE, NEW):
                await made.define(spec)
            yield made
