"""The right answer, in plain Python: what every board must show once all entries have arrived.

It is written from the published contract alone and shares no code with the agents, so that a
mistake of theirs can't hide in it: totals are additions, ranks are a sort, and the composite Redis
scores are worked out from the documented formula. It is a model: everything is in memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from cluster.windows import ALL, EPOCH_MS, EVER, STEP_MS, Window, WindowSpec, windows_at

# The budget for ties, as documented: 53 exact bits, the finest tick with which the window fits.
EXACT_BITS = 53
TICKS_MS = (1, 1_000, 60_000)
TIMED = ("first", "last")
ACTED = ("distinct", "unique")  # rules that count who does something to a member


@dataclass(frozen=True, slots=True)
class BoardSpec:
    """A board as its owner defines it: the fields of PUT /v1/boards/{board}."""

    name: str
    rule: str
    order: str = "high"
    ties: str = "first"
    grow_only: bool = False
    score: tuple[int, int] | None = None
    windows: tuple[WindowSpec, ...] = EVER
    key_retention: str | None = None

    def document(self) -> dict[str, Any]:
        """The body of the PUT that defines it."""
        document: dict[str, Any] = {"rule": self.rule, "order": self.order, "ties": self.ties}
        if self.grow_only:
            document["grow_only"] = True
        if self.score is not None:
            document["score"] = {"min": self.score[0], "max": self.score[1]}
        if self.windows != EVER:
            document["windows"] = [window.document() for window in self.windows]
        if self.key_retention is not None:
            document["key_retention"] = self.key_retention
        return document

    @property
    def number_field(self) -> str:
        """Which field of an entry carries its number; `actor` where it has none."""
        if self.rule in ACTED:
            return "actor"
        return "add" if self.rule == "sum" else "score"

    @property
    def low(self) -> bool:
        """Whether lower scores are better."""
        return self.order == "low"

    @property
    def tie_bits(self) -> int:
        """How many bits below the score keep the time; 0 where ties don't go by time."""
        if self.ties not in TIMED:
            return 0
        if self.score is not None:
            bound = max(abs(self.score[0]), abs(self.score[1]))
        else:
            # Else the least score, -2**27, is the greatest in size.
            bound = 2**28 - 1 if self.rule == "best" or self.grow_only else 2**27
        return EXACT_BITS - int(bound).bit_length()

    def tick_ms(self, window: Window = ALL) -> int:
        """The unit in which times are compared in a window; 1 where they are not."""
        if not self.tie_bits:
            return 1
        return next(tick for tick in TICKS_MS if window.span_ms // tick < 2**self.tie_bits)

    def tick_of(self, reached_ms: int, window: Window = ALL) -> int:
        """The tick of a time since the window's start, clamped to what the tie bits hold."""
        last_tick: int = 2**self.tie_bits - 1
        return min(max((reached_ms - window.start_ms) // self.tick_ms(window), 0), last_tick)

    def decode(self, composite: int) -> tuple[int, int | None]:
        """(score, tick) behind a Redis score; no tick where ties don't go by time."""
        bits = self.tie_bits
        if not bits:
            return composite, None
        score, tie = divmod(composite, 2**bits)
        rises = (self.ties == "last") != self.low
        return score, tie if rises else 2**bits - 1 - tie


class Entry(NamedTuple):
    """One write as it is replayed; `at_ms` is always given.

    number: its `add` or `score`; 0 where an `actor` does something to the member.
    key: counts it once, however often and wherever it is sent.
    """

    board: str
    member: str
    number: int
    at_ms: int
    data: Any = None
    key: str | None = None
    actor: str | None = None
    present: bool = True


class Place(NamedTuple):
    """One line of a board: rank from 1, member, score, and the tick at which it was reached."""

    rank: int
    member: str
    score: int
    tick: int | None


@dataclass(slots=True)
class _Total:
    """A member of a `sum` board."""

    score: int = 0
    rose_ms: int | None = None  # the greatest time of a rising entry
    seen_ms: int = EPOCH_MS - 1  # of any entry, for members that never rose

    def add(self, number: int, at_ms: int) -> None:
        """Count one entry."""
        self.score += number
        self.seen_ms = max(self.seen_ms, at_ms)
        if number > 0:
            self.rose_ms = at_ms if self.rose_ms is None else max(self.rose_ms, at_ms)


@dataclass(slots=True)
class _Tally:
    """What one window of a board must hold, by member; one of the three, by the board's rule."""

    sums: dict[str, _Total] = field(default_factory=dict)
    kept: dict[str, tuple[int, int]] = field(default_factory=dict)
    actors: dict[str, set[str]] = field(default_factory=dict)


@dataclass(slots=True)
class Expectation:
    """What all boards and counters must hold after the entries that were counted here.

    entries: those that count; retries: those whose key was counted before, and which don't.
    """

    boards: Mapping[str, BoardSpec]
    counters: dict[str, int] = field(default_factory=dict)
    entries: int = 0
    retries: int = 0
    keys: set[tuple[str, str, str]] = field(default_factory=set)
    _tallies: dict[str, dict[Window, _Tally]] = field(default_factory=dict)
    _at: dict[tuple[str, int], list[_Tally]] = field(default_factory=dict)

    def count(self, entry: Entry) -> None:
        """Count one entry by its board's rule; an entry for an unknown board is a KeyError.

        Entries of a `distinct` board are counted in their order, so of those that regions write
        at the same time only the one that decides may be counted here.
        """
        spec = self.boards[entry.board]
        if entry.key is not None:
            known = (entry.board, entry.member, entry.key)
            if known in self.keys:
                self.retries += 1
                return
            self.keys.add(known)
        self.entries += 1
        # Times of one step are in the same windows; `all` is that of all times.
        step = (entry.board, 0 if spec.windows == EVER else entry.at_ms // STEP_MS)
        if step not in self._at:
            tallies = self._tallies.setdefault(entry.board, {})
            windows = windows_at(spec.windows, entry.at_ms)
            self._at[step] = [tallies.setdefault(window, _Tally()) for window in windows]
        for tally in self._at[step]:
            _count(spec, entry, tally)

    def count_counter(self, name: str, by: int) -> None:
        """Count an increment of a plain counter."""
        self.entries += 1
        self.counters[name] = self.counters.get(name, 0) + by

    def windows(self, board: str) -> list[Window]:
        """The windows of a board that hold anything, in order of their ids."""
        return sorted(self._tallies.get(board, {}))

    def places(self, board: str, window: Window = ALL) -> list[Place]:
        """A whole window, best first, in the one order that every region must show.

        Not of a `unique` board, whose scores are estimates: `actors` has the truth.
        """
        tally = self._tallies.get(board, {}).get(window, _Tally())
        rows = [
            (member, total.score, total.seen_ms if total.rose_ms is None else total.rose_ms)
            for member, total in tally.sums.items()
        ]
        rows += [(member, *kept) for member, kept in tally.kept.items()]
        rows += [(member, len(actors), 0) for member, actors in tally.actors.items()]
        return ranked(self.boards[board], rows, window)

    def actors(self, board: str, window: Window = ALL) -> dict[str, set[str]]:
        """By member, the actors that are there, on a `distinct` or `unique` board."""
        return self._tallies.get(board, {}).get(window, _Tally()).actors


def _count(spec: BoardSpec, entry: Entry, tally: _Tally) -> None:
    """Count one entry in one window."""
    if spec.rule == "sum":
        total = tally.sums.get(entry.member)
        if total is None:
            total = tally.sums[entry.member] = _Total()
        total.add(entry.number, entry.at_ms)
    elif spec.rule in ACTED:
        assert entry.actor is not None, entry
        there = tally.actors.setdefault(entry.member, set())
        if entry.present:
            there.add(entry.actor)
        else:
            there.discard(entry.actor)
    else:
        before = tally.kept.get(entry.member)
        now = (entry.number, entry.at_ms)
        if before is None or _beats(spec, now, before):
            tally.kept[entry.member] = now


def _beats(spec: BoardSpec, now: tuple[int, int], before: tuple[int, int]) -> bool:
    """Whether a (score, time) takes the place of another, by the board's rule."""
    if spec.rule == "latest":
        return (now[1], now[0]) > (before[1], before[0])
    if now[0] != before[0]:
        return (now[0] < before[0]) == spec.low
    return now[1] < before[1]


def ranked(
    spec: BoardSpec, rows: Iterable[tuple[str, int, int]], window: Window = ALL
) -> list[Place]:
    """Rank (member, score, reached_ms) of a window as documented.

    Equal scores go by the tick of the time (`first`, `last`), then by the bytes of the member as
    Redis orders them: on high boards the greater first, on low boards the lesser. With `shared`,
    equal scores have equal ranks and the next rank leaves a gap.
    """
    timed = spec.ties in TIMED
    earlier = 1 if spec.ties == "first" else -1
    keyed = []
    for member, score, reached_ms in rows:
        tick = spec.tick_of(reached_ms, window) if timed else None
        keyed.append((score, earlier * (tick or 0), member.encode(), member, tick))
    if spec.low:
        keyed.sort(key=lambda row: row[:3])
    else:
        keyed.sort(key=lambda row: (row[0], -row[1], row[2]), reverse=True)
    places: list[Place] = []
    for index, (score, _, _, member, tick) in enumerate(keyed):
        shared = spec.ties == "shared" and places and places[-1].score == score
        places.append(Place(places[-1].rank if shared else index + 1, member, score, tick))
    return places
