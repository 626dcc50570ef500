"""Answers: what the routes give back, as the types that the OpenAPI document shows.

Times are RFC 3339 in UTC. `as_of` is, by region, the time up to which the answer includes it, null
while nothing is known of one of its agents; `max_lag_ms` is over all regions, null as well then.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from agent.api.final_answers import Mode
from agent.boards.definition import Order, Rate, Results, Rule, ScoreRange, Ties
from agent.boards.final_waits import Stage

AsOf = dict[str, str | None]


class EntryAnswer(msgspec.Struct):
    """What became of one entry: the member's score afterwards, by window.

    `late` lists windows of the entry's time that are closed, where there are some. `duplicate` is
    there where the key was counted before, at `counted_at`: then nothing was counted now. `rounded`
    is there on boards of counts: the same scores for people. `rank` is there where it was asked for
    and the rank store got to it in time.
    """

    member: str
    score: dict[str, int]
    late: list[str] | UnsetType = UNSET
    duplicate: bool | UnsetType = UNSET
    counted_at: str | UnsetType = UNSET
    rounded: dict[str, str] | UnsetType = UNSET
    rank: int | UnsetType = UNSET


class WriteAnswer(msgspec.Struct):
    """Answer to entries: durable in this region. `position` is for reads with `?after=`."""

    position: str
    entries: list[EntryAnswer]
    as_of: AsOf
    max_lag_ms: int | None


class CounterAnswer(msgspec.Struct):
    """A counter's value; 0 for one that nobody has written. `position` where it was written.

    `duplicate` is there where the key was counted before, at `counted_at`.
    """

    name: str
    value: int
    as_of: AsOf
    max_lag_ms: int | None
    position: str | UnsetType = UNSET
    duplicate: bool | UnsetType = UNSET
    counted_at: str | UnsetType = UNSET


class CountersAnswer(msgspec.Struct):
    """Answer to additions to several counters, in the order of the request."""

    position: str
    counters: list[CounterAnswer]


class RankedEntry(msgspec.Struct):
    """A member with its rank, from 1. `reached_at` is null where no time is known.

    `rounded` is there on boards of counts: the score for people.
    """

    rank: int
    member: str
    score: int
    reached_at: str | None
    data: Any = None
    rounded: str | UnsetType = UNSET


class PageAnswer(msgspec.Struct):
    """A page of a window, best first. `window` is its id, `total` how many members it has.

    `offset` is how many stand before the page. `next` and `previous` go with `cursor`: the page
    behind this one and the one before it, whatever moves meanwhile; null where there is none.
    """

    board: str
    window: str
    offset: int
    total: int
    entries: list[RankedEntry]
    next: str | None
    previous: str | None
    as_of: AsOf
    max_lag_ms: int | None


class AmongAnswer(msgspec.Struct):
    """Some members of a window, ranked among themselves. `missing` are not on the board.

    `total` is how many of them are on it.
    """

    board: str
    window: str
    total: int
    entries: list[RankedEntry]
    missing: list[str]
    as_of: AsOf
    max_lag_ms: int | None


class PreviousRank(msgspec.Struct):
    """A member's rank in the window before."""

    window: str
    rank: int
    score: int
    total: int


class MemberAnswer(msgspec.Struct):
    """A member's rank. `top_percent` is 100 x rank / total; `neighbors` are ranked around it.

    `previous` is there where it was asked for: null where the member was not ranked in the window
    before, or that is kept no longer.

    `exact` is false where scores are estimates, and ranks go by them. `rounded` is there on boards
    of counts: the score for people.
    """

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
    rounded: str | UnsetType = UNSET
    previous: PreviousRank | UnsetType | None = UNSET


class ReadsAnswer(msgspec.Struct):
    """Answers to several reads, in their order.

    Each is what the read alone would be answered: a page, a member, or a problem document.
    """

    reads: list[Any]


class FullWindow(msgspec.Struct):
    """A window as it is defined, with its defaults; null what does not go with it.

    `certify` is there where a window ends: whether it gets a certified final.
    """

    name: str
    zone: str
    grace: str | None
    keep: str | None
    start: str | None
    end: str | None
    certify: bool | UnsetType = UNSET


class FullDefinition(msgspec.Struct):
    """A definition with its defaults filled in. It can be sent back as it is."""

    rule: Rule
    order: Order
    grow_only: bool
    ties: Ties
    windows: list[FullWindow]
    score: ScoreRange | None
    rate: Rate | None
    results: Results | None
    key_retention: str | None
    half_life: str | None


class WindowOfBoard(msgspec.Struct):
    """How a window counts, and which one is open now.

    `tick_ms` is the unit in which times are compared and `b` how many bits of a Redis score hold
    them (null and 0 where ties go without time). `window`, `start` and `end` are those of the open
    one, null where none is; `start` and `end` are null as well for `all`, which has none.
    `next_reset` is when the next one opens, or the open one ends for good; null for `all`.
    """

    name: str
    tick_ms: int | None
    b: int
    window: str | None
    start: str | None
    end: str | None
    next_reset: str | None


class OverruledDefinition(msgspec.Struct):
    """A definition that lost against one written at the same time elsewhere.

    `generation` is the one it was written in. `members` is how many have entries under it, in the
    fullest of its newest windows, there or in the board's generation, counted up to 10,001. A
    window that counts alike under the winner (same rule, order, zone) is the winner's own, and
    nothing of it is lost.
    """

    agent: str
    generation: int
    version: int
    definition: FullDefinition
    members: int


class FieldChange(msgspec.Struct):
    """A field of a definition, as it was and as it is."""

    field: str
    before: Any
    after: Any


class OverruledEntry(msgspec.Struct):
    """What a member has under a definition that was overruled."""

    member: str
    score: int
    reached_at: str | None


class OverruledEntriesAnswer(msgspec.Struct):
    """Entries that were counted under an overruled definition, by member; they show on no page.

    `generation` is the one they were counted in. `next`: go on after this name; null at the end.
    """

    board: str
    agent: str
    generation: int
    window: str
    entries: list[OverruledEntry]
    next: str | None


class BoardAnswer(msgspec.Struct):
    """A board in force.

    `version` counts changes within a generation, `generation` counts resets. `written_by` is the
    agent that took the last change, null for a built-in board. `score` is the range in force.
    `windows` is in the order of the definition. `overruled` is there where one board is shown;
    `changed` (whether it differs from before) and `preview` (nothing was stored) where one is
    defined or reset, `changes` (field by field) where a definition takes the place of another.
    """

    board: str
    definition: FullDefinition
    generation: int
    version: int
    written_by: str | None
    score: ScoreRange
    windows: list[WindowOfBoard]
    overruled: list[OverruledDefinition] | UnsetType = UNSET
    changed: bool | UnsetType = UNSET
    changes: list[FieldChange] | UnsetType = UNSET
    preview: bool | UnsetType = UNSET


class BoardsAnswer(msgspec.Struct):
    """A part of the list of boards, by name. `total` is how many there are."""

    boards: list[BoardAnswer]
    offset: int
    total: int


class FinalOfWindow(msgspec.Struct):
    """The certified final of a window, in short. `certified_at` is when the first agent did."""

    version: int
    hash: str
    mode: Mode
    members: int
    certified_at: str


class WindowState(msgspec.Struct):
    """One window of a board. It takes entries of its time until `closes_at`, here; its ranks are
    kept until `expires_at`. All times are null for `all`, the last two for sliding windows, and all
    of an earlier generation's.

    `state` is this agent's. `waits_for` is there where a window is closed and not certified yet, or
    is certified anew, and names the agents that it waits for; `final` where it is certified.
    """

    window: str
    state: Stage
    start: str | None
    end: str | None
    closes_at: str | None
    expires_at: str | None
    waits_for: list[str] | UnsetType = UNSET
    final: FinalOfWindow | UnsetType = UNSET


class WindowsAnswer(msgspec.Struct):
    """A part of the list of a board's windows: by name as defined, of each name the newest first.

    `total` is how many there are: those that are open, that hold anything, or that have a final.
    """

    board: str
    generation: int
    windows: list[WindowState]
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
