"""Scripts: everything that will happen in a run, drawn from its seed before it begins.

An event holds all of its chance (delays, losses, numbers), so that taking other events out of a
script does not change what it does: a failing script can be cut down.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TypeAlias

from agent.boards.definition import Definition
from agent.exchange import ChunkLimits

START_MS = 1_800_000_000_000
BOARDS = ("alpha", "beta", "gamma", "counters")
MEMBERS = ("ada", "bo", "cy")
DEFINITIONS = (
    Definition(rule="sum"),
    Definition(rule="sum", ties="shared"),
    Definition(rule="best"),
    Definition(rule="best", order="low", ties="last"),
    Definition(rule="latest", ties="member"),
)


@dataclass(frozen=True, slots=True)
class Settings:
    """The shape of a run.

    ring: each agent talks to two neighbours only, else to any other.
    loss: the share of messages that are lost.
    wipes: agents may lose their disks; what only they held is then lost with right.
    skews_ms: how far each agent's clock is off.
    """

    seed: int
    agents: int
    steps: int
    ring: bool
    loss: float
    wipes: bool
    limits: ChunkLimits
    skews_ms: tuple[int, ...]

    def peers(self, agent: int) -> list[int]:
        """The agents that this one calls."""
        others = [other for other in range(self.agents) if other != agent]
        if not self.ring:
            return others
        return sorted({(agent + 1) % self.agents, (agent - 1) % self.agents} - {agent})


@dataclass(frozen=True, slots=True)
class Figure:
    """One entry before its board's rule is known.

    Its time is `ago_ms` before the agent's clock (None: it has no `at`), in whole `grid_ms`: on a
    coarse grid, entries at different agents have the same time.
    """

    board: str
    member: str
    number: int
    ago_ms: int | None
    grid_ms: int
    data: str | None


@dataclass(frozen=True, slots=True)
class Writes:
    """Requests that wait together at one agent. `disk`: what its store does with them."""

    at: int
    agent: int
    requests: tuple[tuple[Figure, ...], ...]
    disk: str = "works"  # or "refuses", or "is uncertain"


@dataclass(frozen=True, slots=True)
class Change:
    """A board is defined, reset (to None: as it was) or retired."""

    at: int
    agent: int
    act: str  # "define", "reset" or "retire"
    board: str
    definition: Definition | None


@dataclass(frozen=True, slots=True)
class Exchange:
    """One agent calls another.

    asks, answers: when copies of the request and the reply arrive, in ms after they were sent; an
        empty one is lost.
    thinks: ms between joining the push and reading the snapshot for the reply.
    waits: the caller joins the reply with its next batch, not at once.
    """

    at: int
    agent: int
    peer: int
    asks: tuple[int, ...]
    answers: tuple[int, ...]
    thinks: int
    waits: bool


@dataclass(frozen=True, slots=True)
class Crash:
    """A process ends; another begins with what was durable, or (`wiped`) with an empty disk."""

    at: int
    agent: int
    wiped: bool
    chance: int


@dataclass(frozen=True, slots=True)
class Partition:
    """Between these agents and all others nothing arrives until `until`."""

    at: int
    until: int
    side: frozenset[int]


@dataclass(frozen=True, slots=True)
class Newer:
    """An agent of a newer version writes a cell of an unknown kind and streams its log to one
    agent, chunk after chunk, without waiting for an answer; `lost` chunks leave a gap.
    """

    at: int
    agent: int
    member: str
    major: int
    lost: bool


Event: TypeAlias = Writes | Change | Exchange | Crash | Partition | Newer


def settings_of(seed: int, steps: int, agents: int | None = None) -> Settings:
    """The shape of the run of this seed."""
    r = Random(f"settings {seed}")
    count = r.randint(2, 6) if agents is None else agents
    return Settings(
        seed=seed,
        agents=count,
        steps=steps,
        ring=r.random() < 0.4,
        loss=r.choice((0.0, 0.15, 0.4)),
        wipes=r.random() < 0.4,
        limits=ChunkLimits(
            rows_max=r.choice((1, 2, 3, 8, 100)),
            bytes_max=r.choice((60, 300, 10_000)),
            scanned_max=r.choice((1, 2, 5, 100)),
        ),
        skews_ms=tuple(r.choice((0, 3, -400, 5_000, -30_000)) for _ in range(count)),
    )


def script_of(settings: Settings) -> list[Event]:
    """The script of a run, in the order of its times."""
    r = Random(f"script {settings.seed}")
    at = START_MS
    events: list[Event] = [
        Change(at, r.randrange(settings.agents), "define", board, _definition(r))
        for board in BOARDS[:3]
    ]
    for _ in range(settings.steps):
        at += r.choice((1, 1, 5, 40, 300))
        events.append(_event(r, at, settings))
    return events


def _event(r: Random, at: int, settings: Settings) -> Event:
    agent, kind = r.randrange(settings.agents), r.random()
    if kind < 0.34:
        disk = r.choice(("works",) * 12 + ("refuses", "is uncertain"))
        return Writes(at, agent, tuple(_request(r) for _ in range(r.choice((1, 1, 2)))), disk)
    if kind < 0.87:
        return _exchange(r, at, agent, settings)
    if kind < 0.91:
        act = r.choice(("define",) * 5 + ("reset", "reset", "retire"))
        new = _definition(r) if act == "define" or r.random() < 0.5 else None
        return Change(at, agent, act, r.choice(BOARDS[:3]), new)
    if kind < 0.95:
        wiped = settings.wipes and r.random() < 0.4
        return Crash(at, agent, wiped, r.getrandbits(62))
    if kind < 0.96:
        side = frozenset(i for i in range(settings.agents) if r.random() < 0.5)
        return Partition(at, at + r.choice((200, 3_000)), side)
    return Newer(at, agent, r.choice(MEMBERS), r.randint(1, 99), r.random() < 0.4)


def _exchange(r: Random, at: int, agent: int, settings: Settings) -> Exchange:
    def arrivals() -> tuple[int, ...]:
        if r.random() < settings.loss:
            return ()
        copies = 2 if r.random() < 0.1 else 1
        late = r.random() < 0.15
        return tuple(r.randint(0, 4_000 if late else 60) for _ in range(copies))

    peer = r.choice(settings.peers(agent))
    thinks = r.choice((0, 0, 20, 400))
    return Exchange(at, agent, peer, arrivals(), arrivals(), thinks, r.random() < 0.3)


def _request(r: Random) -> tuple[Figure, ...]:
    one = r.choice(BOARDS)
    boards = r.choice(((one,), (one,), (one, "counters"), BOARDS))
    return tuple(
        Figure(
            board=r.choice(boards),
            member=r.choice(MEMBERS),
            number=r.choice((0, 1, 2, 3, r.randint(0, 9))) * r.choice((1, 1, -1)),
            ago_ms=r.choice((None, None, 0, 1_000, r.randint(0, 5_000), -50_000)),
            grid_ms=r.choice((1, 1, 5_000)),
            data=r.choice((None, None, "x", "y")),
        )
        for _ in range(r.choice((1, 1, 2, 5)))
    )


def _definition(r: Random) -> Definition:
    return r.choice(DEFINITIONS)
