"""Definitions: what a board's owner says of it, checked, completed and digested.

The *shape* is the digest of what the stored numbers depend on. It is part of the space, so
that cells of different shapes never meet, and its encoding is frozen: tests/golden/.
"""

from __future__ import annotations

import hashlib
from typing import Annotated, Any, Literal

import msgpack
import msgspec

from agent.boards import body
from agent.boards.entry import rfc3339
from agent.boards.windows import (
    Series,
    WindowSpec,
    all_series,
    buckets_of,
    duration_text,
    is_sliding,
    parse_duration,
    series_of,
)
from agent.boards.windows import check as check_window
from agent.errors import Conflict, Malformed, OutOfRange, TooLarge
from agent.limits import BODY_BYTES_MAX, KEY_RETENTION_MS_MAX, SCORE_MAX, WINDOWS_MAX

Rule = Literal["sum", "best", "latest", "distinct", "unique", "trend"]
Order = Literal["high", "low"]
Ties = Literal["first", "last", "shared", "member"]
Results = Literal["keep"]
TIMED_TIES: tuple[Ties, ...] = ("first", "last")
# Rules whose score is a number of an entry, or adds them up.
SCORED_RULES: tuple[Rule, ...] = ("sum", "best", "latest")
KEY_RETENTION_MS = 3_600_000
HALF_LIFE_MS_MIN = 60_000


class ScoreRange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The least and the greatest score of a member; an entry that would leave it is refused."""

    min: int | float
    max: int | float


class Rate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How many entries of one member an agent takes: `per_member` of them in `per_s` seconds."""

    per_member: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]
    per_s: Annotated[int, msgspec.Meta(ge=1, le=86_400)] = 1


ALL = WindowSpec("all")


class Definition(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True
):
    """A board's definition, as its owner writes it and as its cell's body keeps it.

    rule: how writes from all regions merge into the score.
    order: which score is better.
    grow_only: a `sum` board that refuses negative adds.
    ties: who ranks higher at the same score; by default `first`, and `member` for the rules
        `distinct`, `unique` and `trend`, which know no time.
    windows: over which times entries are counted.
    score: the range of scores; undeclared, it follows from rule and ties.
    rate: how many entries of one member each agent takes.
    results: `keep` keeps each result under its key, so that one can be taken back.
    key_retention: how long a key is remembered ("1h" by default, at most 7 days).
    half_life: of a `trend` board: after this time an entry counts half.
    """

    rule: Rule
    order: Order = "high"
    grow_only: bool = False
    ties: Ties | None = None
    windows: tuple[WindowSpec, ...] = (ALL,)
    score: ScoreRange | None = None
    rate: Rate | None = None
    results: Results | None = None
    key_retention: str | None = None
    half_life: str | None = None

    @property
    def low(self) -> bool:
        """Whether lower scores are better."""
        return self.order == "low"

    @property
    def tie_order(self) -> Ties:
        """Who ranks higher at the same score, declared or by default."""
        if self.ties is not None:
            return self.ties
        return "first" if self.rule in SCORED_RULES else "member"

    @property
    def key_retention_ms(self) -> int:
        """How long a key is remembered."""
        if self.key_retention is None:
            return KEY_RETENTION_MS
        return parse_duration(self.key_retention, "key_retention")

    @property
    def half_life_ms(self) -> int | None:
        """After which time an entry of a trend counts half; None: it never fades."""
        return None if self.half_life is None else parse_duration(self.half_life, "half_life")

    def score_range(self) -> tuple[int, int]:
        """The least and the greatest score, declared or by default (docs/api.md)."""
        if self.score is not None:
            return int(self.score.min), int(self.score.max)
        if self.tie_order not in TIMED_TIES:
            return -SCORE_MAX, SCORE_MAX
        if self.rule == "best" or self.grow_only:
            return 0, 2**28 - 1
        return -(2**27), 2**27 - 1

    def counted(self) -> list[tuple[Series, bool]]:
        """The series that entries are counted in, and whether each is a window of the board.

        Those that are not are the buckets of a sliding window alone; they come last.
        """
        specs = [spec for spec in self.windows if not is_sliding(spec.name)]
        windows = {(its.name, its.shape_parts) for its in map(series_of, specs)}
        found = [
            (series, (series.name, series.shape_parts) in windows)
            for series in all_series(self.windows)
        ]
        return sorted(found, key=lambda its: not its[1])


COUNTERS = "counters"
"""The built-in board behind /v1/counters."""

COUNTERS_DEFINITION = Definition(rule="sum", ties="member")


def check(definition: Definition) -> Definition:
    """The definition in its normal form, so that equal meanings compare equal.

    Raises:
        Malformed: fields that contradict each other.
        OutOfRange: a score bound beyond +-(2**53 - 1), or no tick that fits (`tie_budget`).
    """
    rule = definition.rule
    if definition.grow_only and rule != "sum":
        raise Malformed(f"grow_only: goes with rule 'sum', not with {rule!r}")
    if definition.low and rule == "trend":
        raise Malformed("order: a board with rule 'trend' keeps the heaviest members, 'high'")
    if rule not in SCORED_RULES and definition.tie_order in TIMED_TIES:
        raise Malformed(
            f"ties: {definition.ties!r} needs a time, which rule {rule!r} does not keep",
            hint="'member' (the default) or 'shared'",
        )
    windows = _checked_windows(definition)
    score = definition.score
    if score is not None:
        if rule not in SCORED_RULES:
            raise Malformed(f"score: goes with an entry's number, not with rule {rule!r}")
        low, high = _bound(score.min, "score.min"), _bound(score.max, "score.max")
        if low > high:
            raise Malformed(f"score.min: {low} is above score.max, {high}")
        score = ScoreRange(low, high)
    _check_results(definition, windows)
    default_ties = msgspec.structs.replace(definition, ties=None).tie_order
    return msgspec.structs.replace(
        definition,
        score=score,
        windows=windows,
        ties=None if definition.ties == default_ties else definition.ties,
        key_retention=_key_retention(definition),
        half_life=_half_life(definition, windows),
    )


def _checked_windows(definition: Definition) -> tuple[WindowSpec, ...]:
    given = definition.windows
    if not 0 < len(given) <= WINDOWS_MAX:
        raise Malformed(f"windows: {len(given)} are given; 1 to {WINDOWS_MAX} are possible")
    windows = tuple(check_window(spec, f"windows[{i}]") for i, spec in enumerate(given))
    names = [spec.name for spec in windows]
    for name in names:
        if names.count(name) > 1:
            raise Malformed(f"windows: {name!r} is there twice")
    zones: dict[str, WindowSpec] = {}
    for index, spec in enumerate(windows):
        if is_sliding(spec.name) and definition.rule == "trend":
            raise Malformed(
                f"windows[{index}].name: a board with rule 'trend' has no sliding windows",
                hint="half_life makes old entries fade",
            )
        counted = buckets_of(spec)[0].name if is_sliding(spec.name) else spec.name
        other = zones.setdefault(counted, spec)
        if other.zone != spec.zone:  # two series of one name: ids would mean two things
            raise Malformed(
                f"windows[{index}].zone: {spec.name!r} counts in {counted}s of {spec.zone}, and"
                f" {other.name!r} in {counted}s of {other.zone}",
                hint="give both the same zone",
            )
    return windows


def _check_results(definition: Definition, windows: tuple[WindowSpec, ...]) -> None:
    if definition.results is None:
        return
    if definition.rule not in ("sum", "best"):
        raise Malformed(f"results: go with rule 'sum' or 'best', not with {definition.rule!r}")
    if any(spec.name == "all" for spec in windows):
        raise Malformed(
            "results: a board that keeps them has windows that end",
            hint="leave 'all' out: day, week, month or a season",
        )


def _key_retention(definition: Definition) -> str | None:
    if definition.key_retention is None:
        return None
    if definition.rule != "sum" or definition.results is not None:
        raise Malformed(
            "key_retention: goes with rule 'sum'; elsewhere keys need not be remembered, or are as"
            " long as their window"
        )
    ms = parse_duration(definition.key_retention, "key_retention")
    if not 60_000 <= ms <= KEY_RETENTION_MS_MAX:
        raise OutOfRange(
            "out_of_range", f"key_retention: {definition.key_retention!r} is not within 1m to 7d"
        )
    return None if ms == KEY_RETENTION_MS else duration_text(ms)


def _half_life(definition: Definition, windows: tuple[WindowSpec, ...]) -> str | None:
    if definition.half_life is None:
        return None
    if definition.rule != "trend":
        raise Malformed(f"half_life: goes with rule 'trend', not with {definition.rule!r}")
    if [spec.name for spec in windows] != ["all"]:
        raise Malformed(
            "half_life: goes with the window 'all' alone; other windows end by themselves"
        )
    ms = parse_duration(definition.half_life, "half_life")
    if not HALF_LIFE_MS_MIN <= ms <= 366 * 86_400_000:
        raise OutOfRange(
            "out_of_range", f"half_life: {definition.half_life!r} is not within 1m to 366d"
        )
    return duration_text(ms)


def _bound(number: int | float, field: str) -> int:
    if isinstance(number, float) and not number.is_integer():
        raise Malformed(f"{field}: {number!r} is not an integer")
    if not -SCORE_MAX <= number <= SCORE_MAX:
        raise OutOfRange("out_of_range", f"{field}: beyond the limit of +-{SCORE_MAX} (2^53 - 1)")
    return int(number)


def shape_of(definition: Definition, series: Series) -> bytes:
    """The 8-byte digest of what the numbers in the windows of one series depend on.

    blake2b-8 over the msgpack array [format, rule, order, results, zone, start_ms, end_ms], and
    [half-life in ms] where entries fade; zone and bounds are what `Series.shape_parts` says.
    """
    parts = [1, definition.rule, definition.order, definition.results or "", *series.shape_parts]
    if definition.half_life_ms is not None:
        parts.append(definition.half_life_ms)
    packed: bytes = msgpack.packb(parts)
    return hashlib.blake2b(packed, digest_size=8).digest()


def changeable(old: Definition, new: Definition, board: str) -> None:
    """Check that a running board may change from `old` to `new`.

    Raises:
        Conflict: (`board_conflict`) what the stored numbers depend on would change.
    """
    for field in ("rule", "order", "results", "half_life"):
        before, after = getattr(old, field), getattr(new, field)
        if before != after:
            raise _depends(field, board, before)
    parts = {series.name: series.shape_parts for series, _ in old.counted()}
    for index, spec in enumerate(new.windows):
        if is_sliding(spec.name):
            continue
        before = parts.get(spec.name)
        if before is not None and before != series_of(spec).shape_parts:
            zone = before[0] != series_of(spec).shape_parts[0]
            had = before[0] if zone else f"{rfc3339(before[1])} to {rfc3339(before[2])}"
            field = "zone" if zone else "start, end"
            raise _depends(f"windows[{index}].{field}", board, had)


def _depends(field: str, board: str, before: object) -> Conflict:
    return Conflict(
        "board_conflict",
        f"{field}: board {board!r} has {before!r}, and its numbers depend on it",
        hint="POST .../reset with the new definition starts a new generation",
    )


def opening(
    old: Definition, opens: dict[str, int], new: Definition, board: str, now_ms: int
) -> dict[str, int]:
    """When each window of a changed board opens, in ms since 1970: a new one not in its middle.

    Args:
        opens: the same of `old`.

    Raises:
        Conflict: (`board_conflict`) a new window has begun already, and has no next beginning.
    """
    before = {(series.name, series.shape_parts) for series, _ in old.counted()}
    found = {}
    for series, _ in new.counted():
        if (series.name, series.shape_parts) in before:
            if series.name in opens:
                found[series.name] = opens[series.name]
            continue
        begun = series.at(now_ms)
        if series.name == "all" or (series.name.startswith("season:") and begun is not None):
            raise Conflict(
                "board_conflict",
                f"windows: {series.name!r} has begun before it is added, and board {board!r} has"
                " entries that it would lack",
                hint="POST .../reset with the new definition starts a new generation",
            )
        found[series.name] = now_ms
    return found


def to_body(
    definition: Definition | None, seen: dict[str, int], opens: dict[str, int] | None = None
) -> bytes:
    """The body of a definition's cell. None retires the board.

    `opens` is, by window, the time before which it takes no entries, where there is one.

    `seen` is, by agent, the newest version its writer knew: what it does not name was overruled.
    Where that is more than a body holds, the oldest versions are left out (and would at worst be
    listed as overruled again).

    Raises:
        TooLarge: over BODY_BYTES_MAX without any of `seen`.
    """
    said: dict[str, Any] = {"retired": True}
    if definition is not None:
        said = {"definition": msgspec.to_builtins(definition)}
        if opens:
            said["opens"] = opens
    known = sorted(seen.items(), key=lambda item: item[1])
    while known:
        try:
            return body.pack({"seen": dict(known), **said}, "definition", BODY_BYTES_MAX)
        except TooLarge:
            del known[0]
    try:
        return body.pack({"seen": {}, **said}, "definition", BODY_BYTES_MAX)
    except TooLarge as error:
        raise TooLarge(error.detail, hint="fewer windows, or shorter names of seasons") from None


class DefinitionBody(msgspec.Struct, frozen=True):
    """What a definition's cell holds. `readable` is False for one from a newer version."""

    definition: Definition | None
    seen: dict[str, int]
    readable: bool = True
    opens: dict[str, int] = {}


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
        opens = msgspec.convert(document.get("opens", {}), dict[str, int])
        return DefinitionBody(check(definition), seen, opens=opens)
    except (AttributeError, ValueError, Malformed, OutOfRange, OverflowError):
        return DefinitionBody(None, {}, readable=False)
