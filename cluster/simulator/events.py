"""The events of a script: everything that can happen, each with all of its chance.

`place` is where a process runs (a machine, say); an event at a place where nothing runs does
nothing, so that taking events out of a script leaves the rest as it is. `told` says an event as a
sentence.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TypeAlias

from agent.boards.definition import Definition

START_MS = 1_800_000_000_000
HOUR_MS = 3_600_000
NOBODY: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Figure:
    """One entry before its board's rule is known.

    Its time is `ago_ms` before the agent's clock (None: it has no `at`), in whole `grid_ms`: on a
    coarse grid, entries at different agents have the same time. Or it is `at_ms`, wherever it is
    sent: that of an entry with a `key`, and of one near the bounds of a window.

    actor, present: on boards that count actors; the actor of the rest is nobody.
    """

    board: str
    member: str
    number: int
    ago_ms: int | None = None
    grid_ms: int = 1
    data: str | None = None
    at_ms: int | None = None
    key: str | None = None
    actor: str | None = None
    present: bool = True


@dataclass(frozen=True, slots=True)
class Writes:
    """Requests that wait together at one agent. `disk`: what its store does with them."""

    at: int
    place: int
    requests: tuple[tuple[Figure, ...], ...]
    disk: str = "works"  # or "refuses", or "is uncertain"


@dataclass(frozen=True, slots=True)
class Change:
    """A board is defined, reset (to None: as it was) or retired."""

    at: int
    place: int
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
    place: int
    peer: int
    asks: tuple[int, ...]
    answers: tuple[int, ...]
    thinks: int
    waits: bool


@dataclass(frozen=True, slots=True)
class Partition:
    """Between these places and all others nothing arrives until `until`.

    deaf: only what goes to these places is lost; what they send arrives.
    """

    at: int
    until: int
    side: frozenset[int]
    deaf: bool = False


@dataclass(frozen=True, slots=True)
class ClockJump:
    """The clock of a place is off by this from now on."""

    at: int
    place: int
    off_ms: int


@dataclass(frozen=True, slots=True)
class Newer:
    """An agent of a newer version writes a cell of an unknown kind and streams its log to one
    agent, chunk after chunk, without waiting for an answer; `lost` chunks leave a gap.
    """

    at: int
    place: int
    member: str
    major: int
    lost: bool


@dataclass(frozen=True, slots=True)
class Start:
    """The process at a place ends, if one runs, and another one begins.

    how: "crash"; "restart" (a clean end); "tail" (crash; the disk also loses its last commits);
        "wipe" (the disk is lost); "restore" (from the last backup, as an operator does it);
        "rollback" (the whole disk is put back to what it was at the last clean end, and nobody was
        told); "move" (a clean end, and a copy of the disk begins elsewhere); "back" (the disk from
        which it was moved begins again).
    flush: the region's Redis has lost everything before.
    silent: the places that do not answer the process that begins.
    """

    at: int
    place: int
    how: str
    chance: int
    flush: bool = False
    silent: frozenset[int] = NOBODY


@dataclass(frozen=True, slots=True)
class Backup:
    """A backup of a place's disk is made."""

    at: int
    place: int


@dataclass(frozen=True, slots=True)
class Clone:
    """A copy of a place's disk begins as another process, while the first goes on."""

    at: int
    place: int
    source: int
    chance: int
    silent: frozenset[int]


@dataclass(frozen=True, slots=True)
class Join:
    """A new agent begins, with an empty disk or with a snapshot of the seed's."""

    at: int
    place: int
    seed: int
    snapshot: bool
    chance: int


@dataclass(frozen=True, slots=True)
class Depart:
    """An agent leaves the ring by itself (`by` is its own place), or an operator removes it."""

    at: int
    place: int
    by: int


@dataclass(frozen=True, slots=True)
class Damage:
    """A cell is damaged in place on a disk. `pick` chooses which."""

    at: int
    place: int
    pick: int


@dataclass(frozen=True, slots=True)
class Keep:
    """An agent does its housekeeping: marks, what may be dropped, bans that have ended.

    cells_max: how many cells it drops at once.
    """

    at: int
    place: int
    cells_max: int = 1_000


@dataclass(frozen=True, slots=True)
class Moderate:
    """Somebody is dealt with at one agent.

    act: "ban", "lift", "erase" (the name `member`), or "retract" (the result of `key`).
    board: "" is all of them. until_ms: when a ban ends by itself, or None.
    """

    at: int
    place: int
    act: str
    board: str
    member: str
    key: str = ""
    until_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Contrary:
    """What is so at both places is taken away at one, and said once more at the other.

    Neither knows of the other's, so it stays (rule F).
    """

    at: int
    place: int
    other: int
    board: str
    member: str
    actor: str


@dataclass(frozen=True, slots=True)
class Certify:
    """An agent makes so many moves towards the finals of its windows (certifying.py)."""

    at: int
    place: int
    moves: int


@dataclass(frozen=True, slots=True)
class Override:
    """An operator begins the next version of the final of a board's oldest closed window, without
    the agents of some places."""

    at: int
    place: int
    board: str
    without: frozenset[int]


@dataclass(frozen=True, slots=True)
class Sketch:
    """A register of a sketch rises to a value."""

    at: int
    place: int
    register: int
    value: int


Event: TypeAlias = (
    Writes
    | Change
    | Exchange
    | Partition
    | ClockJump
    | Newer
    | Start
    | Backup
    | Clone
    | Join
    | Depart
    | Damage
    | Keep
    | Moderate
    | Contrary
    | Certify
    | Override
    | Sketch
)


def _figure(figure: Figure) -> str:
    key = "" if figure.key is None else f" (key {figure.key})"
    at = "" if figure.at_ms is None else f" of {figure.at_ms - START_MS} ms"
    actor = ""
    if figure.actor is not None:
        actor = f" {'by' if figure.present else 'no more by'} {figure.actor}"
    return f"{figure.board}/{figure.member} {figure.number:+}{actor}{key}{at}"


def told(event: Event) -> str:
    """An event as a sentence."""
    match event:
        case Writes():
            entries = "; ".join(
                ", ".join(_figure(figure) for figure in figures) for figures in event.requests
            )
            disk = "" if event.disk == "works" else f", and its disk {event.disk}"
            what = f"a{event.place} is written {entries}{disk}"
        case Exchange():
            asks = "is lost" if not event.asks else f"arrives after {list(event.asks)} ms"
            back = "is lost" if not event.answers else f"after {list(event.answers)} ms"
            waits = ", joined with the next batch" if event.waits else ""
            what = (
                f"a{event.place} calls a{event.peer}: the request {asks}, the reply {back}{waits}"
            )
        case Start():
            flush = ", its Redis flushed" if event.flush else ""
            silent = f", {sorted(event.silent)} do not answer" if event.silent else ""
            what = f"a{event.place}: {event.how}{flush}{silent}"
        case _:
            rest = ", ".join(
                f"{field.name} {getattr(event, field.name)!r}"
                for field in fields(event)
                if field.name not in ("at", "chance")
            )
            what = f"{type(event).__name__.lower()}: {rest}"
    return f"{event.at - START_MS:>9} ms  {what}"
