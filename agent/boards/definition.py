"""Definitions: what a board's owner says of it, checked, completed and digested.

The *shape* is the digest of what the stored numbers depend on. It is part of the space, so
that cells of different shapes never meet, and its encoding is frozen: tests/golden/.
"""

from __future__ import annotations

import hashlib
from typing import Any, Literal

import msgpack
import msgspec

from agent.boards import body
from agent.errors import Conflict, Malformed, OutOfRange, TooLarge
from agent.limits import BODY_BYTES_MAX, SCORE_MAX

Rule = Literal["sum", "best", "latest"]
Order = Literal["high", "low"]
Ties = Literal["first", "last", "shared", "member"]
TIMED_TIES: tuple[Ties, ...] = ("first", "last")


class WindowSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A window of a board. This version has `all`: everything since the board began."""

    name: str


class ScoreRange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The least and the greatest score of a member; an entry that would leave it is refused."""

    min: int | float
    max: int | float


ALL = WindowSpec("all")


class Definition(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True
):
    """A board's definition, as its owner writes it and as its cell's body keeps it.

    rule: how writes from all regions merge into the score.
    order: which score is better.
    grow_only: a `sum` board that refuses negative adds.
    ties: who ranks higher at the same score.
    windows: over which times entries are counted.
    score: the range of scores; undeclared, it follows from rule and ties.
    """

    rule: Rule
    order: Order = "high"
    grow_only: bool = False
    ties: Ties = "first"
    windows: tuple[WindowSpec, ...] = (ALL,)
    score: ScoreRange | None = None

    @property
    def low(self) -> bool:
        """Whether lower scores are better."""
        return self.order == "low"

    def score_range(self) -> tuple[int, int]:
        """The least and the greatest score, declared or by default (docs/api.md)."""
        if self.score is not None:
            return int(self.score.min), int(self.score.max)
        if self.ties not in TIMED_TIES:
            return -SCORE_MAX, SCORE_MAX
        if self.rule == "best" or self.grow_only:
            return 0, 2**28 - 1
        return -(2**27), 2**27 - 1


COUNTERS = "counters"
"""The built-in board behind /v1/counters."""

COUNTERS_DEFINITION = Definition(rule="sum", ties="member")


def check(definition: Definition) -> Definition:
    """The definition in its normal form, so that equal meanings compare equal.

    Raises:
        Malformed: fields that contradict each other.
        OutOfRange: a score bound beyond +-(2**53 - 1), or no tick that fits (`tie_budget`).
    """
    if definition.grow_only and definition.rule != "sum":
        raise Malformed(f"grow_only: goes with rule 'sum', not with {definition.rule!r}")
    names = [window.name for window in definition.windows]
    if names != ["all"]:
        raise Malformed(
            f"windows: {names[:8]} where this version has exactly one window, 'all'",
            hint='leave it out, or use [{"name": "all"}]',
        )
    score = definition.score
    if score is not None:
        low, high = _bound(score.min, "score.min"), _bound(score.max, "score.max")
        if low > high:
            raise Malformed(f"score.min: {low} is above score.max, {high}")
        score = ScoreRange(low, high)
    return msgspec.structs.replace(definition, score=score)


def _bound(number: int | float, field: str) -> int:
    if isinstance(number, float) and not number.is_integer():
        raise Malformed(f"{field}: {number!r} is not an integer")
    if not -SCORE_MAX <= number <= SCORE_MAX:
        raise OutOfRange("out_of_range", f"{field}: beyond the limit of +-{SCORE_MAX} (2^53 - 1)")
    return int(number)


def shape_of(definition: Definition, window: str) -> bytes:
    """The 8-byte digest of what the numbers in one window depend on.

    blake2b-8 over the msgpack array [format, rule, order, results, zone, start_ms, end_ms]; for the
    window `all`, without results kept, the last four are "", "", 0, 0.
    """
    assert window == "all", window
    parts = [1, definition.rule, definition.order, "", "", 0, 0]
    packed: bytes = msgpack.packb(parts)
    return hashlib.blake2b(packed, digest_size=8).digest()


def changeable(old: Definition, new: Definition, board: str) -> None:
    """Check that a running board may change from `old` to `new`.

    Raises:
        Conflict: (`board_conflict`) what the stored numbers depend on would change.
    """
    for field in ("rule", "order"):
        before, after = getattr(old, field), getattr(new, field)
        if before != after:
            raise Conflict(
                "board_conflict",
                f"{field}: board {board!r} has {before!r}, and its numbers depend on it",
                hint="POST .../reset with the new definition starts a new generation",
            )


def to_body(definition: Definition | None, seen: dict[str, int]) -> bytes:
    """The body of a definition's cell. None retires the board.

    `seen` is, by agent, the newest version its writer knew: what it does not name was overruled.
    Where that is more than a body holds, the oldest versions are left out (and would at worst be
    listed as overruled again).

    Raises:
        TooLarge: over BODY_BYTES_MAX without any of `seen`.
    """
    said: dict[str, Any] = {"retired": True}
    if definition is not None:
        said = {"definition": msgspec.to_builtins(definition)}
    known = sorted(seen.items(), key=lambda item: item[1])
    while known:
        try:
            return body.pack({"seen": dict(known), **said}, "definition", BODY_BYTES_MAX)
        except TooLarge:
            del known[0]
    return body.pack({"seen": {}, **said}, "definition", BODY_BYTES_MAX)


class DefinitionBody(msgspec.Struct, frozen=True):
    """What a definition's cell holds. `readable` is False for one from a newer version."""

    definition: Definition | None
    seen: dict[str, int]
    readable: bool = True


def from_body(data: bytes) -> DefinitionBody:
    """The content of a definition's cell, whoever wrote it.

    A body that this version can't read, or would itself refuse, is kept and forwarded as a cell,
    and shown as unreadable: its board takes no entries here.
    """
    document = body.unpack(data)
    try:
        seen = msgspec.convert(document.get("seen", {}), dict[str, int])
        if document.get("retired") is True:
            return DefinitionBody(None, seen)
        definition = msgspec.convert(document.get("definition"), Definition)
        return DefinitionBody(check(definition), seen)
    except (AttributeError, ValueError, Malformed, OutOfRange, OverflowError):
        return DefinitionBody(None, {}, readable=False)
