"""The plan of a run: which fault strikes which agent, when and for how long. Drawn from a seed.

The plan of a seed is always the same. The run is not: processes, disks and sockets take the time
that they take, so a seed repeats the faults, and not each interleaving.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from random import Random

FIRST_S = 1.0  # writes go on undisturbed for so long
GAP_S = 1.2  # the mean time between two faults
REST_S = 0.8  # a part that was struck has so long to come back before it is struck again
DAY_MS = 86_400_000


class Fault(StrEnum):
    """What can strike. docs/chaos.md says of each how it is made and what may be lost."""

    CUT = "cut"
    KILL = "kill"
    PAUSE = "pause"
    STOP = "stop"
    RESTORE = "restore"
    ROLLBACK = "rollback"
    WIPE = "wipe"
    TOKEN = "token"  # noqa: S105 -- a fault's name
    CLOCK = "clock"
    DISK = "disk"
    FLUSH = "flush"
    REDIS = "redis"
    FAILOVER = "failover"


PARTS = {
    Fault.CUT: "links",
    Fault.FLUSH: "redis",
    Fault.REDIS: "redis",
    Fault.FAILOVER: "redis",
}
"""What of an agent a fault strikes; all others strike its process. One fault a part at a time."""

LASTS_S = {
    Fault.CUT: (0.5, 4.0),
    Fault.KILL: (0.1, 1.5),
    Fault.PAUSE: (0.5, 4.0),
    Fault.STOP: (0.1, 1.0),
    Fault.RESTORE: (0.5, 2.5),
    Fault.ROLLBACK: (0.5, 2.5),
    Fault.WIPE: (0.1, 1.0),
    Fault.TOKEN: (0.1, 0.5),
    Fault.CLOCK: (1.0, 3.0),
    Fault.DISK: (0.5, 2.0),
    Fault.FLUSH: (0.0, 0.1),
    Fault.REDIS: (0.1, 1.5),
    Fault.FAILOVER: (0.5, 2.0),
}
"""The least and the longest time of each, in seconds. Of a copy put back: how old it is."""


@dataclass(frozen=True, slots=True)
class Step:
    """One fault of a plan.

    at_s: seconds from the first write. seconds: how long it lasts. number: of the fault's own
    choices (which way a clock goes, how an agent ends), in [0, 1).
    """

    at_s: float
    fault: Fault
    agent: str
    seconds: float
    number: float

    @property
    def part(self) -> tuple[str, str]:
        """What it strikes: an agent and the part of it."""
        return self.agent, PARTS.get(self.fault, "process")

    def __str__(self) -> str:
        return f"{self.at_s:.1f} s: {self.fault} {self.agent} for {self.seconds:.1f} s"


def draw(seed: int, seconds: float, agents: Sequence[str], faults: Sequence[Fault]) -> list[Step]:
    """The plan of a seed, in order of time. A shorter run of a seed has the same first steps.

    All kinds come once before any comes again, in an order of the seed. No part of an agent is
    struck while it is struck already, or has just been.
    """
    chance = Random(seed)
    free_at = dict.fromkeys(agents, 0.0)
    steps: list[Step] = []
    deck: list[Fault] = []
    at_s = FIRST_S
    busy: dict[tuple[str, str], float] = {}
    while True:
        deck = deck or chance.sample(list(faults), len(faults))
        fault = deck.pop()
        low, high = LASTS_S[fault]
        step = Step(at_s, fault, chance.choice(list(agents)), chance.uniform(low, high), 0.0)
        # Another agent takes its place where the one drawn is struck already; else time goes on.
        waits = {name: busy.get((name, step.part[1]), 0.0) for name in free_at}
        agent = step.agent if waits[step.agent] <= at_s else min(waits, key=lambda n: waits[n])
        at_s = max(at_s, waits[agent])
        step = Step(round(at_s, 3), fault, agent, round(step.seconds, 3), chance.random())
        if step.at_s + step.seconds > seconds:
            return steps
        steps.append(step)
        busy[step.part] = step.at_s + step.seconds + REST_S
        at_s += chance.expovariate(1 / GAP_S)
