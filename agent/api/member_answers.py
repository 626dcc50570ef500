"""Answers of the routes about members: actors, results, bans, erasures and outliers.

What holds for all answers: agent/api/answers.py. Lists are paged by name: `next` is what to send as
`after` for the following page, null at the end.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from agent.api.answers import AsOf


class ActorChange(msgspec.Struct):
    """An actor that is present, or no longer.

    `score` is, by window, how many actors the member has afterwards, `rounded` the same as people
    read it (12K). `late` names the windows that the time falls in and that are closed.
    """

    board: str
    member: str
    actor: str
    present: bool
    score: dict[str, int]
    rounded: dict[str, str]
    late: list[str]
    position: str
    as_of: AsOf
    max_lag_ms: int | None


class ActorAnswer(msgspec.Struct):
    """Whether an actor is present in a window; of a sliding one, in any of its buckets."""

    board: str
    window: str
    member: str
    actor: str
    present: bool
    as_of: AsOf
    max_lag_ms: int | None


class ActorsAnswer(msgspec.Struct):
    """A page of the actors that are present, in the order of their names' bytes."""

    board: str
    window: str
    member: str
    actors: list[str]
    next: str | None
    as_of: AsOf
    max_lag_ms: int | None


class ResultAnswer(msgspec.Struct):
    """A kept result: when it happened, when it was accepted, and whether it was taken back."""

    key: str
    score: int
    at: str
    accepted_at: str
    data: Any
    retracted: bool


class ResultsAnswer(msgspec.Struct):
    """A page of a member's results in a window, in the order of their keys' bytes."""

    board: str
    window: str
    member: str
    results: list[ResultAnswer]
    next: str | None
    as_of: AsOf
    max_lag_ms: int | None


class RetractionAnswer(msgspec.Struct):
    """A result that is taken back, or with `dry_run` would be.

    `changed`: whether it still stood somewhere. `windows`: in which. `score`: by window that holds
    the result, the member's score afterwards (with `dry_run` as it is); null where none of its
    results stands.
    """

    board: str
    member: str
    key: str
    dry_run: bool
    changed: bool
    windows: list[str]
    score: dict[str, int | None]
    position: str
    as_of: AsOf
    max_lag_ms: int | None


class BanChange(msgspec.Struct):
    """One change of a ban: set (`banned`) or lifted, by which token, when, and until when."""

    banned: bool
    at: str
    by: str
    until: str | None
    reason: str


class BanAnswer(msgspec.Struct):
    """A member's ban as it stands. `board` is null where it is the one on all boards.

    `hidden`: whether the member is hidden, by this ban or by the one on all boards. `until`,
    `reason`, `by` and `at` are of the last change, null where there never was one. `history` has
    the changes that are kept, newest first. `changed` and `position` are there where it was set
    or lifted.
    """

    board: str | None
    member: str
    banned: bool
    hidden: bool
    until: str | None
    reason: str | None
    by: str | None
    at: str | None
    history: list[BanChange]
    changed: bool | UnsetType = UNSET
    position: str | UnsetType = UNSET


class ListedBan(msgspec.Struct):
    """A ban that stands. `board` is null where it is on all boards."""

    member: str
    board: str | None
    at: str
    by: str
    until: str | None
    reason: str


class BansAnswer(msgspec.Struct):
    """A page of the bans that stand, by member. The bans of one member are never parted."""

    bans: list[ListedBan]
    next: str | None


class ErasureConfirmation(msgspec.Struct):
    """When an agent had nothing of the name any more; null while it has not said so."""

    agent: str
    region: str | None
    confirmed_at: str | None


class ErasureAnswer(msgspec.Struct):
    """The receipt of an erasure.

    `erased_at` is null with `dry_run`, where nothing was erased. `complete`: every agent of the
    ring has confirmed. `cells` is there with `dry_run`: by board, how many cells stand under the
    name here, counted up to 10,001. `changed` is there where the name was to be erased: whether
    it was not erased before.
    """

    member: str
    erased_at: str | None
    complete: bool
    confirmations: list[ErasureConfirmation]
    changed: bool | UnsetType = UNSET
    dry_run: bool | UnsetType = UNSET
    cells: dict[str, int] | UnsetType = UNSET


class OutlierRule(msgspec.Struct):
    """By what entries are flagged; scores are whole numbers.

    `members` must be at least `members_min`, else nothing is flagged and the rest is null. `spread`
    is `q3` - `q1`, or where that is 0 a tenth of the median's size, at least 1. `fence` is 3
    spreads beyond the quartile on the better side; what lies beyond it is flagged.
    """

    name: str
    order: str
    members: int
    members_min: int
    q1: int | None
    median: int | None
    q3: int | None
    spread: int | None
    fence: int | None


class OutlierEntry(msgspec.Struct):
    """A flagged entry. `beyond` is by how many spreads it lies beyond the quartile."""

    rank: int
    member: str
    score: int
    reached_at: str | None
    beyond: float


class OutliersAnswer(msgspec.Struct):
    """A page of the flagged entries of a window, best first. `flagged` is how many there are."""

    board: str
    window: str
    offset: int
    rule: OutlierRule
    flagged: int
    entries: list[OutlierEntry]
    as_of: AsOf
    max_lag_ms: int | None
