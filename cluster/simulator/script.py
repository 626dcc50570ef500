"""Scripts: everything that will happen in a run, drawn from its seed before it begins.

An event holds all of its chance (delays, losses, numbers), so that taking other events out of a
script does not change what it does: a failing script can be cut down.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

from agent.boards.definition import Definition
from agent.exchange import ChunkLimits
from cluster.simulator import events as ev
from cluster.simulator.entries import Entries
from cluster.simulator.events import HOUR_MS, START_MS, Event
from cluster.simulator.themes import (
    CLOSING_MS,
    EXCHANGES,
    EXCHANGES_KEPT,
    KEPT_THEMES,
    LOSSES,
    STEPS_MS,
    STEPS_MS_ELSE,
    THEMES,
    WEIGHTS,
    WRITES,
    WRITES_ELSE,
)

BOARDS = ("alpha", "beta", "gamma", "counters")
MEMBERS = ("ada", "bo", "cy")
DEFINITIONS = (
    Definition(rule="sum"),
    Definition(rule="sum", ties="shared"),
    Definition(rule="best"),
    Definition(rule="best", order="low", ties="last"),
    Definition(rule="latest", ties="member"),
)
DAY_MS = 24 * HOUR_MS


@dataclass(frozen=True, slots=True)
class Settings:
    """The shape of a run.

    theme: what it is mostly about.
    ring: each agent talks to two neighbours only, else to any other.
    loss: the share of messages that are lost.
    skews_ms: how far each place's clock is off.
    acquainted: all agents know each other before the script begins.
    calm: no disk is lost or set back, and nobody comes or goes.
    omit: the rules that are left out (cluster/simulator/rules.py).
    """

    seed: int
    agents: int
    steps: int
    theme: str
    ring: bool
    loss: float
    limits: ChunkLimits
    skews_ms: tuple[int, ...]
    acquainted: bool
    calm: bool = False
    omit: frozenset[str] = frozenset()

    @property
    def keeps(self) -> bool:
        """Whether agents do their housekeeping."""
        return self.theme in KEPT_THEMES

    def peers(self, place: int, places: int) -> list[int]:
        """The places that this one calls, of so many."""
        others = [other for other in range(places) if other != place]
        if not self.ring:
            return others
        return sorted({(place + 1) % places, (place - 1) % places} - {place})


def settings_of(
    seed: int,
    steps: int,
    agents: int | None = None,
    theme: str | None = None,
    omit: frozenset[str] = frozenset(),
) -> Settings:
    """The shape of the run of this seed."""
    r = Random(f"settings {seed}")
    count = r.randint(2, 6) if agents is None else agents
    about = THEMES[seed % len(THEMES)]
    ring = r.random() < 0.4
    loss = r.choice((0.0, 0.15, 0.4))
    limits = ChunkLimits(
        rows_max=r.choice((1, 2, 3, 8, 100)),
        bytes_max=r.choice((60, 300, 10_000)),
        scanned_max=r.choice((1, 2, 5, 100)),
    )
    skews = (0, 3, -400, 5_000, -30_000)
    about = theme or about
    if about == "identity":
        skews = (0, 3, -400, DAY_MS, -DAY_MS)
    if (about == "finals" or about in KEPT_THEMES) and agents is None:
        count, ring = min(count, 4), False
    if about in KEPT_THEMES:  # many rows: a chunk of one would never bring them all
        limits = replace(limits, rows_max=limits.rows_max * 3, scanned_max=limits.scanned_max * 4)
        limits = replace(limits, bytes_max=max(limits.bytes_max, 300))
    if about in ("identity", "members"):
        ring = False
    if about == "finals":
        skews, loss = (0, 3, -400, 1_500, -2_000), min(loss, 0.15)
        # Most logs are read to their heads within a few exchanges: else nothing ever settles.
        limits = ChunkLimits(
            limits.rows_max + 40, limits.bytes_max + 3_000, limits.scanned_max + 80
        )
    skews_ms = tuple(r.choice(skews) for _ in range(count))
    if about != "finals":
        r.randint(20, 45)  # so that what is drawn after it stays what it was
    return Settings(
        seed=seed,
        agents=count,
        steps=steps,
        theme=about,
        ring=ring,
        loss=loss,
        limits=limits,
        skews_ms=skews_ms,
        acquainted=about == "finals" or r.random() < 0.6,
        calm=about in KEPT_THEMES and r.random() < 0.3,
        omit=omit,
    )


def script_of(settings: Settings) -> list[Event]:
    """The script of a run, in the order of its times."""
    return _Script(settings).draw()


class _Script:
    """Draws a script. `places` grows where agents join or are cloned."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._r = Random(f"script {settings.seed}")
        self._places = settings.agents
        self._departed = 0
        self._cloned = False
        self._entries = Entries(settings.theme, self._r)
        self._later: list[Event] = []

    def draw(self) -> list[Event]:
        """All events."""
        r, settings, at = self._r, self._settings, START_MS
        events: list[Event] = [
            ev.Change(at, r.randrange(settings.agents), "define", board, r.choice(DEFINITIONS))
            for board in BOARDS[:3]
        ]
        if settings.keeps:
            events = self._entries.definitions(settings.agents)
        weights = WEIGHTS[settings.theme]
        if settings.calm:
            weights = {kind: share for kind, share in weights.items() if kind not in LOSSES}
        kinds = ["writes", "exchange", *weights]
        exchanges = EXCHANGES_KEPT if settings.keeps else EXCHANGES
        exchanges = EXCHANGES if settings.theme == "finals" else exchanges
        shares = [WRITES.get(settings.theme, WRITES_ELSE), exchanges, *weights.values()]
        closing = settings.theme == "finals"
        steps = settings.steps * 2 // 3 if closing else settings.steps  # a round is many events
        for step, kind in enumerate(r.choices(kinds, shares, k=steps)):
            at += r.choice(STEPS_MS.get(settings.theme, STEPS_MS_ELSE))
            if kind == "partition" and not closing and r.random() < 0.2:
                events.append(self._partition(at, 25 * HOUR_MS))
                at += r.choice((1, 10 * HOUR_MS, 26 * HOUR_MS))
                continue
            if closing and step == steps // 3:
                at += CLOSING_MS
            if closing and kind == "entries" and 3 * step > steps:
                # Most windows are closed by then: what comes late comes now and then.
                kind = r.choice(("entries", "certify", "certify", "round"))  # noqa: PLW2901
            events += self._event(kind, at)
        return sorted([*events, *self._later], key=lambda event: event.at)

    def _event(self, kind: str, at: int) -> Sequence[Event]:
        r, place = self._r, self._r.randrange(self._places)
        found = self._kept_event(kind, at, place) if self._settings.keeps else None
        if found is not None:
            return found
        match kind:
            case "writes":
                return [self._writes(at, place)]
            case "exchange":
                return [self._exchange(at, place)]
            case "change":
                act = r.choice(("define",) * 5 + ("reset", "reset", "retire"))
                new = r.choice(DEFINITIONS) if act == "define" or r.random() < 0.5 else None
                return [ev.Change(at, place, act, r.choice(BOARDS[:3]), new)]
            case "partition":
                return [self._partition(at, r.choice((200, 3_000)))]
            case "newer":
                member, major = r.choice(MEMBERS), r.randint(1, 99)
                return [ev.Newer(at, place, member, major, r.random() < 0.4)]
            case "jump":
                off_ms = r.choice((DAY_MS, -DAY_MS, 0, 0, 90_000))
                return [ev.ClockJump(at, place, off_ms)]
            case "backup":
                return [ev.Backup(at, place)]
            case "damage":
                return [ev.Damage(at, place, r.getrandbits(30))]
            case "sketch":
                return [ev.Sketch(at, place, r.randrange(4), r.randint(1, 9))]
            case _:
                return self._fault(kind, at, place)

    def _kept_event(self, kind: str, at: int, place: int) -> Sequence[Event] | None:
        """An event of a theme whose agents do their housekeeping; None where it is as elsewhere."""
        r = self._r
        match kind:
            case "entries" | "moderate" | "contrary":
                now, later = self._entries.draw(kind, at, place, self._settings.agents)
                self._later += later
                return [now]
            case "keep":
                return [ev.Keep(at, place, r.choice((1, 5, 1_000)))]
            case "change":
                return [self._entries.change(at, place)]
            case "certify":
                return [ev.Keep(at, place), ev.Certify(at, place, r.choice((1, 2, 3, 8, 20)))]
            case "round":  # everybody calls everybody, and does what can be done then
                return self._round(at)
            case "override":
                return self._overrides(at, place)
            case "partition" if self._settings.theme == "finals":
                return [self._partition(at, r.choice((200, 1_000, 3_000)))]
            case "partition":
                length_ms = r.choice((200, 3_000, 1_200_000, 2_400_000, 5_400_000))
                if r.random() < 0.4:
                    return [ev.Partition(at, at + length_ms, frozenset({place}), deaf=True)]
                return [self._partition(at, length_ms)]
            case "jump":
                off_ms = r.choice((-1_200_000, -1_200_000, -600_000, 0, 30_000))
                late = self._entries.late(at + 2, place)
                return [ev.Keep(at, place), ev.ClockJump(at + 1, place, off_ms), late]
            case _:
                return None

    def _round(self, at: int) -> list[Event]:
        found: list[Event] = []
        for each in range(self._places):
            found += [self._exchange(at + each, each) for _ in range(self._places)]
            later, moves = at + 70 + each, self._r.choice((0, 1, 3, 8))
            found += [ev.Keep(later, each), ev.Certify(later, each, moves)]
        return found

    def _overrides(self, at: int, place: int) -> Sequence[Event]:
        """One override, or two at once by different agents that leave out different ones."""
        r, everyone = self._r, frozenset(range(self._settings.agents))
        board = r.choice(("laps", "clicks", "runs"))
        size = r.choice((0, 1, 1, 1, 2)) % len(everyone)
        without = frozenset(r.sample(sorted(everyone), size))
        found: list[Event] = [ev.Override(at, place, board, without)]
        if r.random() < 0.4:
            other = r.choice(sorted(everyone))
            rest = everyone - without if r.random() < 0.5 else frozenset({place})
            found.append(ev.Override(at, other, board, rest))
        if without and r.random() < 0.5:
            found.append(ev.Partition(at, at + r.choice((1_000, 4_000)), without))
        return found

    def _fault(self, kind: str, at: int, place: int) -> Sequence[Event]:
        r = self._r
        chance = r.getrandbits(62)
        match kind:
            case "join" if self._places < self._settings.agents + 2:
                self._places += 1
                seed = r.randrange(self._settings.agents)
                return [ev.Join(at, self._places - 1, seed, r.random() < 0.5, chance)]
            case "clone" if not self._cloned:
                self._cloned = True
                self._places += 1
                deaf = r.random() < 0.7
                silent = frozenset(range(self._places)) if deaf else ev.NOBODY
                return [ev.Clone(at, self._places - 1, place, chance, silent)]
            case "depart" if self._settings.agents - self._departed > 2:
                self._departed += 1
                by = r.choice((place, *range(self._settings.agents)))
                return [ev.Depart(at, place, by)]
            case "join" | "clone" | "depart":
                return [self._exchange(at, place)]
            case _:
                everyone = range(self._places)
                silent = frozenset(p for p in everyone if r.random() < 0.5)
                silent = silent if r.random() < 0.25 else ev.NOBODY
                flush = r.random() < (0.7 if kind == "rollback" else 0.1)
                return [ev.Start(at, place, kind, chance, flush, silent)]

    def _partition(self, at: int, length_ms: int) -> Event:
        side = frozenset(i for i in range(self._places) if self._r.random() < 0.5)
        return ev.Partition(at, at + length_ms, side)

    def _writes(self, at: int, place: int) -> Event:
        r = self._r
        disk = r.choice(("works",) * 12 + ("refuses", "is uncertain"))
        requests = tuple(self._request() for _ in range(r.choice((1, 1, 2))))
        return ev.Writes(at, place, requests, disk)

    def _exchange(self, at: int, place: int) -> Event:
        r = self._r

        def arrivals() -> tuple[int, ...]:
            if r.random() < self._settings.loss:
                return ()
            copies = 2 if r.random() < 0.1 else 1
            late = r.random() < 0.15
            return tuple(r.randint(0, 4_000 if late else 60) for _ in range(copies))

        peer = r.choice(self._settings.peers(place, self._places))
        thinks = r.choice((0, 0, 20, 400))
        return ev.Exchange(at, place, peer, arrivals(), arrivals(), thinks, r.random() < 0.3)

    def _request(self) -> tuple[ev.Figure, ...]:
        r = self._r
        one = r.choice(BOARDS)
        boards = r.choice(((one,), (one,), (one, "counters"), BOARDS))
        return tuple(
            ev.Figure(
                board=r.choice(boards),
                member=r.choice(MEMBERS),
                number=r.choice((0, 1, 2, 3, r.randint(0, 9))) * r.choice((1, 1, -1)),
                ago_ms=r.choice((None, None, 0, 1_000, r.randint(0, 5_000), -50_000)),
                grid_ms=r.choice((1, 1, 5_000)),
                data=r.choice((None, None, "x", "y")),
            )
            for _ in range(r.choice((1, 1, 2, 5)))
        )


def without(settings: Settings, omit: frozenset[str]) -> Settings:
    """The same run with these rules left out."""
    return replace(settings, omit=omit)
