"""What explains a score, as the types that the OpenAPI document shows."""

from __future__ import annotations

import msgspec


class WriterPart(msgspec.Struct):
    """A cell behind the score. `agent` and `region` wrote what stands in it, null where unknown.

    `amount` is what it adds, null where it adds nothing by itself (registers of a sketch, a result
    that was taken back).
    """

    kind: str
    region: str | None
    agent: str | None
    incarnation: str | None
    amount: int | None
    at: str | None
    name: str | None


class KeyPart(msgspec.Struct):
    """A key that was counted. `taken_out`: it was counted elsewhere before, and is not again."""

    key: str
    at: str
    region: str | None
    agent: str | None
    amount: int
    taken_out: bool


class BanPart(msgspec.Struct):
    """A ban that stands. `board` is null for one on all boards."""

    board: str | None
    until: str | None
    reason: str
    by: str
    since: str


class WindowPart(msgspec.Struct):
    """The member in another window of the board that is kept; `score` null where it has none."""

    window: str
    score: int | None


class TiePart(msgspec.Struct):
    """How score and time make the Redis score: `composite` = score x 2^b + tie.

    `tick` is the time reached in ticks of `tick_ms` since `epoch_ms`; null where ties go without.
    """

    ties: str
    order: str
    b: int
    epoch_ms: int
    tick_ms: int
    tick: int | None
    composite: int


class RedisPart(msgspec.Struct):
    """What Redis holds, at one moment. `agrees` with the file, or is `settling`: a change is on its
    way. `problem` is there where Redis could not be read."""

    composite: int | None
    rank: int | None
    total: int | None
    lsn: int | None
    agrees: bool
    settling: bool
    problem: str | None


class ExplainAnswer(msgspec.Struct):
    """Everything behind one score and one rank.

    `why` says why the member is not ranked; null where it is. `sums` adds the amounts of all parts
    by kind, and together they are the score of boards that add. `more` counts what `parts` or
    `keys` leave out. `open_at` are the agents that may still take entries for the window.
    """

    board: str
    generation: int
    version: int
    rule: str
    window: str
    member: str
    ranked: bool
    why: str | None
    score: int | None
    reached_at: str | None
    parts: list[WriterPart]
    sums: dict[str, int]
    keys: list[KeyPart]
    more: dict[str, int]
    bans: list[BanPart]
    windows: list[WindowPart]
    open_at: list[str]
    tie: TiePart | None
    redis: RedisPart
    lsn: int
    as_of: dict[str, str | None]
    max_lag_ms: int | None
