"""Answers: what the routes give back, as the types that the OpenAPI document shows.

Times are RFC 3339 in UTC. `as_of` is, by region, the time up to which the answer includes it, null
while nothing is known of one of its agents; `max_lag_ms` is over all regions, null as well then.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from agent.boards.definition import Order, Rule, ScoreRange, Ties, WindowSpec

AsOf = dict[str, str | None]


class EntryAnswer(msgspec.Struct):
    """What became of one entry: the member's score afterwards, by window.

    `rank` is there where it was asked for and the rank store got to it in time.
    """

    member: str
    score: dict[str, int]
    rank: int | UnsetType = UNSET


class WriteAnswer(msgspec.Struct):
    """Answer to entries: durable in this region. `position` is for reads with `?after=`."""

    position: str
    entries: list[EntryAnswer]
    as_of: AsOf
    max_lag_ms: int | None


class CounterAnswer(msgspec.Struct):
    """A counter's value; 0 for one that nobody has written. `position` where it was written."""

    name: str
    value: int
    as_of: AsOf
    max_lag_ms: int | None
    position: str | UnsetType = UNSET


class CountersAnswer(msgspec.Struct):
    """Answer to additions to several counters, in the order of the request."""

    position: str
    counters: list[CounterAnswer]


class RankedEntry(msgspec.Struct):
    """A member with its rank, from 1. `reached_at` is null where no time is known."""

    rank: int
    member: str
    score: int
    reached_at: str | None
    data: Any = None


class PageAnswer(msgspec.Struct):
    """A page of a board, best first. `total` is how many members the board has."""

    board: str
    window: str
    offset: int
    total: int
    entries: list[RankedEntry]
    as_of: AsOf
    max_lag_ms: int | None


class MemberAnswer(msgspec.Struct):
    """A member's rank. `top_percent` is 100 x rank / total; `neighbors` are ranked around it."""

    board: str
    window: str
    member: str
    rank: int
    exact: bool
    score: int
    reached_at: str | None
    data: Any
    top_percent: float
    total: int
    neighbors: list[RankedEntry]
    as_of: AsOf
    max_lag_ms: int | None


class FullDefinition(msgspec.Struct):
    """A definition with its defaults filled in. It can be sent back as it is."""

    rule: Rule
    order: Order
    grow_only: bool
    ties: Ties
    windows: list[WindowSpec]
    score: ScoreRange | None


class OverruledDefinition(msgspec.Struct):
    """A definition that lost against one written at the same time elsewhere.

    `members` is how many have entries under it, counted up to 10,001. Where the winner counts alike
    (rule and order are the same) these are the winner's own members, and nothing is lost.
    """

    agent: str
    version: int
    definition: FullDefinition
    members: int


class BoardAnswer(msgspec.Struct):
    """A board in force.

    `version` counts changes within a generation, `generation` counts resets. `written_by` is the
    agent that took the last change, null for a built-in board. `score` is the range in force.
    `tick_ms` is the unit in which times are compared and `b` how many bits of a Redis score hold
    them (null and 0 where ties go without time). `overruled` is there where one board is shown;
    `changed` (whether it differs from before) and `preview` (nothing was stored) where one is
    defined or reset.
    """

    board: str
    definition: FullDefinition
    generation: int
    version: int
    written_by: str | None
    score: ScoreRange
    tick_ms: int | None
    b: int
    overruled: list[OverruledDefinition] | UnsetType = UNSET
    changed: bool | UnsetType = UNSET
    preview: bool | UnsetType = UNSET


class BoardsAnswer(msgspec.Struct):
    """A part of the list of boards, by name. `total` is how many there are."""

    boards: list[BoardAnswer]
    offset: int
    total: int


class RetiredAnswer(msgspec.Struct):
    """A board that was retired."""

    board: str
    retired: bool


class HealthAnswer(msgspec.Struct):
    """The process is alive."""

    status: str


class ReadyAnswer(msgspec.Struct):
    """Whether the agent can serve everything; if not, why, one word a reason."""

    ready: bool
    reasons: list[str]


class ClockAnswer(msgspec.Struct):
    """The time that entries without `at` get."""

    now: str
    now_ms: int
