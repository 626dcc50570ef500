"""The right answer, in plain Python: what every board must show once all entries have arrived.

It is written from the published contract alone and shares no code with the agents, so that a
mistake of theirs can't hide in it: totals are additions, ranks are a sort, and the composite Redis
scores are worked out from the documented formula. It is a model: everything is in memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

# The budget for ties, as documented: 53 exact bits, the finest tick with which 2000 to 2063 fits.
EXACT_BITS = 53
EPOCH_MS = 946_684_800_000
SPAN_MS = 1_988_150_400_000
TICKS_MS = (1, 1_000, 60_000)
TIMED = ("first", "last")


@dataclass(frozen=True, slots=True)
class BoardSpec:
    """A board as its owner defines it: the fields of PUT /v1/boards/{board}."""

    name: str
    rule: str
    order: str = "high"
    ties: str = "first"
    grow_only: bool = False
    score: tuple[int, int] | None = None

    def document(self) -> dict[str, Any]:
        """The body of the PUT that defines it."""
        document: dict[str, Any] = {"rule": self.rule, "order": self.order, "ties": self.ties}
        if self.grow_only:
            document["grow_only"] = True
        if self.score is not None:
            document["score"] = {"min": self.score[0], "max": self.score[1]}
        return document

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

    @property
    def tick_ms(self) -> int:
        """The unit in which times are compared; 1 where they are not."""
        if not self.tie_bits:
            return 1
        return next(tick for tick in TICKS_MS if SPAN_MS // tick < 2**self.tie_bits)

    def tick_of(self, reached_ms: int) -> int:
        """The tick of a time since 2000, clamped to what the tie bits hold."""
        last_tick: int = 2**self.tie_bits - 1
        return min(max((reached_ms - EPOCH_MS) // self.tick_ms, 0), last_tick)

    def decode(self, composite: int) -> tuple[int, int | None]:
        """(score, tick) behind a Redis score; no tick where ties don't go by time."""
        bits = self.tie_bits
        if not bits:
            return composite, None
        score, tie = divmod(composite, 2**bits)
        rises = (self.ties == "last") != self.low
        return score, tie if rises else 2**bits - 1 - tie


class Entry(NamedTuple):
    """One write as it is replayed: `number` is its `add` or `score`; `at_ms` is always given."""

    board: str
    member: str
    number: int
    at_ms: int
    data: Any = None


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
class Expectation:
    """What all boards and counters must hold after the entries that were counted here."""

    boards: Mapping[str, BoardSpec]
    counters: dict[str, int] = field(default_factory=dict)
    entries: int = 0
    _sums: dict[str, dict[str, _Total]] = field(default_factory=dict)
    _kept: dict[str, dict[str, tuple[int, int]]] = field(default_factory=dict)

    def count(self, entry: Entry) -> None:
        """Count one entry by its board's rule; an entry for an unknown board is a KeyError."""
        spec = self.boards[entry.board]
        self.entries += 1
        if spec.rule == "sum":
            members = self._sums.setdefault(entry.board, {})
            members.setdefault(entry.member, _Total()).add(entry.number, entry.at_ms)
            return
        kept = self._kept.setdefault(entry.board, {})
        before = kept.get(entry.member)
        now = (entry.number, entry.at_ms)
        if before is None or _beats(spec, now, before):
            kept[entry.member] = now

    def count_counter(self, name: str, by: int) -> None:
        """Count an increment of a plain counter."""
        self.entries += 1
        self.counters[name] = self.counters.get(name, 0) + by

    def places(self, board: str) -> list[Place]:
        """The whole board, best first, in the one order that every region must show."""
        spec = self.boards[board]
        rows = [
            (member, total.score, total.seen_ms if total.rose_ms is None else total.rose_ms)
            for member, total in self._sums.get(board, {}).items()
        ]
        rows += [(member, *kept) for member, kept in self._kept.get(board, {}).items()]
        return ranked(spec, rows)


def _beats(spec: BoardSpec, now: tuple[int, int], before: tuple[int, int]) -> bool:
    """Whether a (score, time) takes the place of another, by the board's rule."""
    if spec.rule == "latest":
        return (now[1], now[0]) > (before[1], before[0])
    if now[0] != before[0]:
        return (now[0] < before[0]) == spec.low
    return now[1] < before[1]


def ranked(spec: BoardSpec, rows: Iterable[tuple[str, int, int]]) -> list[Place]:
    """Rank (member, score, reached_ms) as documented.

    Equal scores go by the tick of the time (`first`, `last`), then by the bytes of the member as
    Redis orders them: on high boards the greater first, on low boards the lesser. With `shared`,
    equal scores have equal ranks and the next rank leaves a gap.
    """
    timed = spec.ties in TIMED
    earlier = 1 if spec.ties == "first" else -1
    keyed = []
    for member, score, reached_ms in rows:
        tick = spec.tick_of(reached_ms) if timed else None
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
