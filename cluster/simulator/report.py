"""One seed, its report; and, for a seed that fails, the shortest script that still does."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from dataclasses import dataclass

from cluster.simulator.agent import SimulatedAgent
from cluster.simulator.ending import Ending
from cluster.simulator.events import Event, told
from cluster.simulator.rules import WithoutRules, patched
from cluster.simulator.script import Settings, script_of, settings_of
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
    writes: how many writes were committed and followed to the end.
    theme: what the run was mostly about.
    trace: what happened, line by line, if it was asked for.
    script: the shortest script that fails, as sentences, if it was asked for.
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
    writes: int = 0
    theme: str = ""
    trace: tuple[str, ...] = ()
    script: tuple[str, ...] = ()


def simulate(
    seed: int,
    *,
    steps: int = STEPS,
    agents: int | None = None,
    theme: str | None = None,
    omit: frozenset[str] = frozenset(),
    trace: bool = False,
    shrink: bool = False,
) -> Report:
    """Run one seed.

    Args:
        steps: how many events the script has.
        agents: how many agents begin; by default the seed decides (2 to 6).
        theme: what the run is mostly about (script.THEMES); by default the seed decides.
        omit: letters of rules that are left out (rules.RULES).
        trace: also say what happened.
        shrink: if the run fails, report the shortest script found that still fails.
    """
    settings = settings_of(seed, steps, agents, theme, omit)
    script: Sequence[Event] = script_of(settings)
    world = play(settings, script, trace=trace)
    if world.problems and shrink:
        script = shortest(settings, script)
        world = play(settings, script, trace=trace)
    command = f"tallyring simulate --seed {seed}"
    command += "" if steps == STEPS else f" --steps {steps}"
    command += "" if agents is None else f" --agents {agents}"
    command += "" if theme is None else f" --theme {theme}"
    command += f" --omit {','.join(sorted(omit))}" if omit else ""
    return Report(
        seed=seed,
        ok=not world.problems,
        problems=tuple(world.problems[:PROBLEMS_SHOWN_MAX]),
        faults=dict(sorted((kind, times) for kind, times in world.seen.items() if times)),
        events=len(script),
        exchanges=world.exchanges,
        agents=settings.agents,
        command=command,
        writes=sum(len(cell.values) for cell in world.history.cells.values()),
        theme=settings.theme,
        trace=tuple(world.trace),
        script=tuple(told(event) for event in script) if world.problems and shrink else (),
    )


def play(settings: Settings, script: Sequence[Event], *, trace: bool = False) -> World:
    """Play a script and heal. An exception of the product is a problem like any other."""
    agent_type = WithoutRules if settings.omit else SimulatedAgent
    with patched(settings.omit):
        world = World(settings, agent_type, trace=trace)
        try:
            if settings.acquainted:
                Ending(world).acquaint()
            world.run(script)
            if not world.problems:
                Ending(world).heal()
        except Exception as error:  # noqa: BLE001 -- the finding must carry the seed that leads to it
            where = traceback.extract_tb(error.__traceback__)[-1]
            place = f"{where.name}, {where.filename.rsplit('/', 1)[-1]}:{where.lineno}"
            world.problems.append(f"{error!r} in {place}")
    return world


def shortest(settings: Settings, script: Sequence[Event]) -> list[Event]:
    """A short script that still fails: delta debugging (Zeller, Hildebrandt, 2002)."""
    events, parts = list(script), 2
    for _ in range(SHRINK_RUNS_MAX):
        size = max(1, len(events) // parts)
        for start in range(0, len(events), size):
            fewer = events[:start] + events[start + size :]
            if play(settings, fewer).problems:
                events, parts = fewer, max(2, parts - 1)
                break
        else:
            if size == 1:
                break
            parts = min(len(events), parts * 2)
    return events
