"""One seed, its report; and, for a seed that fails, the shortest script that still does."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from dataclasses import dataclass

from cluster.simulator.agent import SimulatedAgent
from cluster.simulator.script import Event, Settings, script_of, settings_of
from cluster.simulator.world import World

STEPS = 150
PROBLEMS_SHOWN_MAX = 10
SHRINK_RUNS_MAX = 2_000


@dataclass(frozen=True, slots=True)
class Report:
    """What a run found.

    ok: whether nothing was wrong; else `problems` says what, the first of them first.
    faults: by kind, how many faults really happened.
    events, exchanges: how many there were.
    trace: what happened, line by line, if it was asked for.
    command: the command that repeats this run.
    """

    seed: int
    ok: bool
    problems: tuple[str, ...]
    faults: dict[str, int]
    events: int
    exchanges: int
    agents: int
    command: str
    trace: tuple[str, ...] = ()


def simulate(
    seed: int,
    *,
    steps: int = STEPS,
    agents: int | None = None,
    trace: bool = False,
    shrink: bool = False,
    agent_type: type[SimulatedAgent] = SimulatedAgent,
) -> Report:
    """Run one seed.

    Args:
        steps: how many events the script has.
        agents: how many agents; by default the seed decides (2 to 6).
        trace: also say what happened.
        shrink: if the run fails, report the shortest script found that still fails.
        agent_type: the agents; tests leave out a rule of the protocol here.
    """
    settings = settings_of(seed, steps, agents)
    script: Sequence[Event] = script_of(settings)
    world = play(settings, script, agent_type, trace=trace)
    if world.problems and shrink:
        script = shortest(settings, script, agent_type)
        world = play(settings, script, agent_type, trace=trace)
    command = f"tallyring simulate --seed {seed}"
    command += "" if steps == STEPS else f" --steps {steps}"
    command += "" if agents is None else f" --agents {agents}"
    return Report(
        seed=seed,
        ok=not world.problems,
        problems=tuple(world.problems[:PROBLEMS_SHOWN_MAX]),
        faults=dict(sorted(world.seen.items())),
        events=len(script),
        exchanges=world.exchanges,
        agents=settings.agents,
        command=command,
        trace=tuple(world.trace),
    )


def play(
    settings: Settings,
    script: Sequence[Event],
    agent_type: type[SimulatedAgent] = SimulatedAgent,
    *,
    trace: bool = False,
) -> World:
    """Play a script and heal. An exception of the product is a problem like any other."""
    world = World(settings, agent_type, trace=trace)
    try:
        world.run(script)
        if not world.problems:
            world.heal()
    except Exception as error:  # noqa: BLE001 -- the finding must carry the seed that leads to it
        where = traceback.extract_tb(error.__traceback__)[-1]
        world.problems.append(f"{error!r} in {where.name}, line {where.lineno}")
    return world


def shortest(
    settings: Settings,
    script: Sequence[Event],
    agent_type: type[SimulatedAgent] = SimulatedAgent,
) -> list[Event]:
    """A short script that still fails: delta debugging (Zeller, Hildebrandt, 2002)."""
    events, parts = list(script), 2
    for _ in range(SHRINK_RUNS_MAX):
        size = max(1, len(events) // parts)
        for start in range(0, len(events), size):
            fewer = events[:start] + events[start + size :]
            if play(settings, fewer, agent_type).problems:
                events, parts = fewer, max(2, parts - 1)
                break
        else:
            if size == 1:
                break
            parts = min(len(events), parts * 2)
    return events
