"""Who ranks where, from the plain history of a board: written from the documentation alone.

It shares nothing with the agents' scales: a member's standing is read off the list of what was
said, and two members are compared as the documentation words it, one pair at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cmp_to_key
from typing import Any, NamedTuple

ALL_START_MS = 946_684_800_000  # 2000-01-01
ALL_SPAN_MS = 1_988_150_400_000  # to 2063-01-01
TICKS_MS = (1, 1_000, 60_000)


class Said(NamedTuple):
    """One entry: a number, or what an actor does. Each has a time of its own."""

    member: str
    number: int
    at_ms: int
    actor: str = ""
    present: bool = True


class Line(NamedTuple):
    """A member's line. reached_ms: exact; tick_ms: the start of its tick, where ties go by time."""

    rank: int
    member: str
    score: int
    reached_ms: int | None
    tick_ms: int | None


@dataclass(frozen=True, slots=True)
class Rules:
    """A board, in one window."""

    rule: str
    order: str = "high"
    ties: str = "first"
    grow_only: bool = False
    score: tuple[int, int] | None = None
    kept: bool = False
    start_ms: int = ALL_START_MS
    span_ms: int = ALL_SPAN_MS

    @property
    def timed(self) -> bool:
        """Whether ties go by time."""
        return self.ties in ("first", "last")

    @property
    def bits(self) -> int:
        """How many bits the score leaves to the time."""
        least, greatest = self.score or (0, 0)
        if self.score is None:
            grows = self.rule == "best" or self.grow_only
            least, greatest = (0, 2**28 - 1) if grows else (-(2**27), 2**27 - 1)
        size = max(abs(least), abs(greatest))
        return 53 - len(f"{size:b}") if size else 53

    @property
    def tick_ms(self) -> int:
        """How finely times are told apart."""
        return next(tick for tick in TICKS_MS if self.span_ms // tick < 2**self.bits)

    def tick_start_ms(self, reached_ms: int) -> int:
        """The start of the tick that a time counts as; what lies outside counts as the end."""
        tick: int = (reached_ms - self.start_ms) // self.tick_ms
        tick = min(max(tick, 0), (1 << self.bits) - 1)
        return self.start_ms + tick * self.tick_ms

    def carried(self, score: int) -> int:
        """The score that ranks: what Redis can't carry beside the time stands at the limit."""
        limit = (1 << 53 - self.bits) - 1 if self.timed else 2**53 - 1
        return min(max(score, -limit), limit)

    def document(self, **more: Any) -> dict[str, Any]:
        """The body of the PUT that defines it."""
        said: dict[str, Any] = {"rule": self.rule, "order": self.order, "ties": self.ties, **more}
        if self.grow_only:
            said["grow_only"] = True
        if self.score is not None:
            said["score"] = {"min": self.score[0], "max": self.score[1]}
        if self.kept:
            said["results"] = "keep"
        return said


def standing(rules: Rules, said: list[Said]) -> tuple[int, int | None]:
    """A member's score and when it was reached, from all that was said of it, in any order.

    Of `distinct` boards the order counts: an actor is there if that was said of it last.
    """
    if rules.rule in ("distinct", "unique"):
        there = {one.actor: one.present for one in said}
        return sum(there.values()), None
    if rules.rule == "sum":
        rises = [one.at_ms for one in said if one.number > 0]
        return sum(one.number for one in said), max(rises or [one.at_ms for one in said])
    if rules.rule == "latest":
        newest = max(one.at_ms for one in said)
        return max(one.number for one in said if one.at_ms == newest), newest
    best = (min if rules.order == "low" else max)(one.number for one in said)
    return best, min(one.at_ms for one in said if one.number == best)


def lines_of(rules: Rules, history: Iterable[Said], hidden: Iterable[str] = ()) -> list[Line]:
    """Every line of a board, best first. `hidden`: members that are banned."""
    by_member: dict[str, list[Said]] = {}
    for one in history:
        by_member.setdefault(one.member, []).append(one)
    for member in hidden:
        by_member.pop(member, None)
    return ranked(rules, {who: standing(rules, said) for who, said in by_member.items()})


def ranked(rules: Rules, standings: Mapping[str, tuple[int, int | None]]) -> list[Line]:
    """The lines of members with these scores and times."""

    def compare(one: str, other: str) -> int:
        """Below 0 where `one` is ahead."""
        mine, its = (rules.carried(standings[who][0]) for who in (one, other))
        if mine != its:
            better = mine < its if rules.order == "low" else mine > its
            return -1 if better else 1
        if rules.timed:
            ticks = [rules.tick_start_ms(standings[who][1] or 0) for who in (one, other)]
            if ticks[0] != ticks[1]:
                earlier = ticks[0] < ticks[1]
                return -1 if earlier == (rules.ties == "first") else 1
        greater = one.encode() > other.encode()
        return -1 if greater == (rules.order == "high") else 1

    lines: list[Line] = []
    for position, member in enumerate(sorted(standings, key=cmp_to_key(compare)), 1):
        score, reached_ms = standings[member]
        rank = position
        if rules.ties == "shared" and lines and lines[-1].score == score:
            rank = lines[-1].rank
        tick_ms = rules.tick_start_ms(reached_ms) if rules.timed and reached_ms else None
        lines.append(Line(rank, member, score, reached_ms, tick_ms))
    return lines
