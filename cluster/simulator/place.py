"""Places: where processes run. A place outlives its processes, its disk and even its agent."""

from __future__ import annotations

from dataclasses import dataclass

from cluster.simulator.agent import SimulatedAgent
from cluster.simulator.disk import Disk, Image


@dataclass(frozen=True, slots=True)
class Parked:
    """The disk that stayed behind where an agent was moved away."""

    image: Image
    file: str
    redis: str


@dataclass(slots=True)
class Place:
    """One place.

    name: of the agent whose data is here; a clone has the name of its source.
    disk, agent: its disk and its process; None where there is none.
    redis: which Redis is the region's.
    off_ms: how far its clock is off.
    told_ms: the latest time that its clock has shown before it jumped: what its agent said of that
        time stands, so what it writes later counts as later.
    gone: why its agent is no member any more: "left" or "removed"; empty if it is.
    """

    index: int
    name: str
    off_ms: int
    redis: str
    disk: Disk | None = None
    agent: SimulatedAgent | None = None
    backup: Image | None = None
    parked: Parked | None = None
    gone: str = ""
    told_ms: int = 0
