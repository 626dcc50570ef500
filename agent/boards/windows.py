"""Windows: over which times a board counts, as its owner writes it, and what that means.

A window spec becomes a *series* (series.py): all windows of one name in one zone. A sliding window
is none: it is the sum of the newest buckets of one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

import msgspec

from agent.boards.entry import rfc3339, time_ms
from agent.boards.series import (
    ALL_END_MS,
    ALL_START_MS,
    FACTS_MS,
    KEYS,
    SPAN_MS,
    Calendar,
    Series,
    Single,
    Window,
)
from agent.boards.zones import DAY_MS, HOUR_MS, is_zone
from agent.errors import Malformed, OutOfRange
from agent.limits import TIME_MS_MAX

__all__ = [
    "ALL_END_MS",
    "ALL_START_MS",
    "FACTS_MS",
    "KEYS",
    "Series",
    "Window",
    "WindowSpec",
    "all_series",
    "buckets_of",
    "check",
    "duration_text",
    "is_sliding",
    "name_of_id",
    "parse_duration",
    "series_of",
]

_UNIT_MS = {"s": 1_000, "m": 60_000, "h": HOUR_MS, "d": DAY_MS}
_DURATION = re.compile(r"([0-9]{1,9})([smhd])")
_SEASON = re.compile(r"season:[a-z0-9._-]{1,32}")
_SLIDING = re.compile(r"last:([1-9][0-9]?)([dh])")
_SLIDING_MAX = {"d": 92, "h": 72}
_WHOLE_MS = re.compile(r"[^.]*(\.[0-9]{1,3}0*)?[^.0-9][^.]*")
_GRACE_MS, _GRACE_MS_MAX = 600_000, 7 * DAY_MS
_KEEP_MS_MIN, _KEEP_MS_MAX = 1_000, 3_660 * DAY_MS
_KEEP_MS = {"hour": 2, "day": 8, "week": 35, "month": 400, "season": 400}
_KEEP_MS = {kind: days * DAY_MS for kind, days in _KEEP_MS.items()}


class WindowSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A window as a board's owner writes it.

    name: `all`, `hour`, `day`, `week`, `month`, `season:NAME`, or sliding: `last:7d`, `last:24h`.
    zone: the IANA time zone whose clock bounds hours, days, weeks and months.
    grace: how long after its end a window still takes late entries; None is 10 minutes.
    keep: how long it stays after that; None is the default of its kind.
    start, end: of a season, RFC 3339; the end does not belong to it.
    certify: whether it gets a certified final (finals.py); not for `all` and sliding windows.
    """

    name: str
    zone: str = "UTC"
    grace: str | None = None
    keep: str | None = None
    start: str | None = None
    end: str | None = None
    certify: bool = True


def parse_duration(text: str, field: str) -> int:
    """The milliseconds of a duration such as `90s`, `10m`, `36h` or `8d`.

    Raises:
        Malformed: not a whole number and a unit.
    """
    match = _DURATION.fullmatch(text)
    if match is None:
        raise Malformed(
            f"{field}: {text[:40]!r} is not a duration", hint="for example 90s, 10m, 36h or 8d"
        )
    return int(match[1]) * _UNIT_MS[match[2]]


def duration_text(ms: int) -> str:
    """A duration of whole seconds in its greatest whole unit: 600_000 is `10m`."""
    unit = next((u for u in "dhm" if ms and ms % _UNIT_MS[u] == 0), "s")
    return f"{ms // _UNIT_MS[unit]}{unit}"


def is_sliding(name: str) -> bool:
    """Whether a window is a sliding one: the last days or hours, made of buckets."""
    return name.startswith("last:")


def name_of_id(id: str) -> str:  # noqa: A002 - it is what everyone calls it
    """The name of the series that a window's id belongs to. Seasons and slidings are their own."""
    if id.startswith(("season:", "last:")):
        return id
    return id.partition(":")[0]


def check(spec: WindowSpec, field: str) -> WindowSpec:
    """A window's normal form, so that equal meanings compare equal. `field` is where it stands.

    Raises:
        Malformed: a field is outside its form, or does not go with this window; it is named.
    """
    kind = _kind_of(spec.name, field)
    if kind in SPAN_MS or kind == "last":
        if not is_zone(spec.zone):
            raise Malformed(
                f"{field}.zone: {spec.zone[:80]!r} is not a time zone of the IANA database",
                hint="for example UTC, Europe/Berlin or America/New_York; case matters",
            )
    elif spec.zone != "UTC":
        raise Malformed(
            f"{field}.zone: does not go with {spec.name!r}",
            hint="hours, days, weeks, months and sliding windows have a zone",
        )
    for name, value in (("grace", spec.grace), ("keep", spec.keep)):
        if value is not None and kind in ("all", "last"):
            hint = "it never closes" if kind == "all" else "its buckets are kept as long as needed"
            raise Malformed(f"{field}.{name}: does not go with {spec.name!r}", hint=hint)
    if not spec.certify and kind in ("all", "last"):
        raise Malformed(f"{field}.certify: does not go with {spec.name!r}", hint="it never closes")
    grace = _duration(spec.grace, _GRACE_MS, 0, _GRACE_MS_MAX, f"{field}.grace")
    keep = _duration(spec.keep, _KEEP_MS.get(kind, 0), _KEEP_MS_MIN, _KEEP_MS_MAX, f"{field}.keep")
    start, end = _bounds(spec, field, kind == "season")
    return WindowSpec(spec.name, spec.zone, grace, keep, start, end, spec.certify)


def _kind_of(name: str, field: str) -> str:
    """The part of a window's name that its rules hang on."""
    if name == "all" or name in SPAN_MS:
        return name
    if _SEASON.fullmatch(name):
        return "season"
    match = _SLIDING.fullmatch(name)
    if match is not None and int(match[1]) <= _SLIDING_MAX[match[2]]:
        return "last"
    if is_sliding(name):
        hint = "last:1d to last:92d, or last:1h to last:72h"
    elif name.startswith("season:"):
        hint = "a season's name has 1 to 32 of a-z, 0-9, '.', '_', '-'"
    else:
        hint = "all, hour, day, week, month, season:NAME, last:7d or last:24h"
    raise Malformed(f"{field}.name: {name[:80]!r} is not a window", hint=hint)


def _duration(text: str | None, default: int, least: int, most: int, field: str) -> str | None:
    if text is None:
        return None
    ms = parse_duration(text, field)
    if not least <= ms <= most:
        raise Malformed(
            f"{field}: {text} is outside {duration_text(least)}..{duration_text(most)}",
            hint="leave it out for the default"
            + (f", {duration_text(default)}" if default else ""),
        )
    return None if ms == default else duration_text(ms)


def _bounds(spec: WindowSpec, field: str, season: bool) -> tuple[str | None, str | None]:
    """The normal form of start and end: both of a season, neither of any other window."""
    if not season:
        for name, value in (("start", spec.start), ("end", spec.end)):
            if value is not None:
                raise Malformed(
                    f"{field}.{name}: does not go with {spec.name!r}",
                    hint="only a season has a start and an end",
                )
        return None, None
    start_ms, end_ms = _time(spec.start, f"{field}.start"), _time(spec.end, f"{field}.end")
    if end_ms <= start_ms:
        raise Malformed(
            f"{field}.end: {rfc3339(end_ms)} is not after {field}.start, {rfc3339(start_ms)}",
            hint="the end is the first time that no longer belongs to the season",
        )
    return rfc3339(start_ms), rfc3339(end_ms)


def _time(text: str | None, field: str) -> int:
    hint = "RFC 3339 with an offset, for example 2026-11-30T13:00:00Z"
    if text is None:
        raise Malformed(f"{field}: missing; a season has a start and an end", hint=hint)
    try:
        # The greatest time as the clock's: a season may begin at any time.
        ms = time_ms(text, TIME_MS_MAX, field)
    except OutOfRange as refused:
        raise Malformed(refused.detail, hint=hint) from None
    if not _WHOLE_MS.fullmatch(text):
        raise Malformed(f"{field}: {text[:40]!r} is finer than a millisecond", hint=hint)
    return ms


@lru_cache(4096)
def series_of(spec: WindowSpec) -> Series:
    """The series of a window in its normal form that is not a sliding one."""
    assert not is_sliding(spec.name), spec.name
    if spec.name == "all":
        return Single(Window("all", "all", ALL_START_MS, ALL_END_MS), 0, None)
    grace_ms = parse_duration(spec.grace, "grace") if spec.grace else _GRACE_MS
    keep_ms = _keep_ms(spec)
    if spec.name in SPAN_MS:
        return Calendar(spec.name, spec.zone, grace_ms, keep_ms, certify=spec.certify)
    bounds = _time(spec.start, "start"), _time(spec.end, "end")
    window = Window(spec.name, spec.name, *bounds)
    return Single(window, grace_ms, keep_ms, certify=spec.certify)


def _keep_ms(spec: WindowSpec) -> int:
    return parse_duration(spec.keep, "keep") if spec.keep else _KEEP_MS[spec.name.partition(":")[0]]


def buckets_of(spec: WindowSpec) -> tuple[WindowSpec, int]:
    """What a sliding window is made of: its newest so many days or hours, the open one included.

    The buckets are kept long enough for that, and a day for whoever is behind.
    """
    match = _SLIDING.fullmatch(spec.name)
    assert match is not None, spec.name
    count, name = int(match[1]), "day" if match[2] == "d" else "hour"
    keep_ms = max(_KEEP_MS[name], count * _UNIT_MS[match[2]] + DAY_MS)
    return _kept(WindowSpec(name, spec.zone), keep_ms), count


def _kept(spec: WindowSpec, keep_ms: int) -> WindowSpec:
    keep = None if keep_ms == _KEEP_MS[spec.name] else duration_text(keep_ms)
    return msgspec.structs.replace(spec, keep=keep)


def all_series(specs: Iterable[WindowSpec]) -> tuple[Series, ...]:
    """What entries are counted in: the windows themselves and the buckets of sliding ones.

    Each once: days that are a window and buckets too have its grace, and the longer keep.
    """
    found: dict[tuple[str, str], WindowSpec] = {}
    for spec in sorted(specs, key=lambda spec: is_sliding(spec.name)):
        if not is_sliding(spec.name):
            found[spec.name, spec.zone] = spec
            continue
        bucket, _ = buckets_of(spec)
        known = found.get((bucket.name, bucket.zone), bucket)
        found[bucket.name, bucket.zone] = _kept(known, max(_keep_ms(known), _keep_ms(bucket)))
    return tuple(series_of(spec) for spec in found.values())
