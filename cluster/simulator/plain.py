"""The other opinion: scores, windows and bodies in plain Python, without the product's code.

What cells add up to is written down here once more, as simply as it can be said; so is which
windows of UTC a time falls in, what a fact says, and which cells may be gone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from hashlib import blake2b
from typing import NamedTuple

import msgpack

from agent.boards.definition import Definition
from agent.crdt.cell import Key, Value
from agent.crdt.hyperloglog import estimate

HOUR_MS, DAY_MS = 3_600_000, 86_400_000
BUCKET_MS = 900_000
NEVER_MS = -(2**63)
REGISTERS = 2**14
BANS = b"\x05~bans"
MARKS, ERASED = b"\x06~marks" + bytes(12), b"\x07~erased" + bytes(12)


# --- scores --------------------------------------------------------------------------------


class Score(NamedTuple):
    """What cells add up to; `reached_ms` is None where the rule has no time."""

    score: int
    reached_ms: int


def score(definition: Definition, slots: Mapping[bytes, Value]) -> Score | None:
    """A member's score from all of its cells, by slot."""
    if definition.results:
        return _of_results(definition, slots)
    match definition.rule:
        case "best":
            best = slots.get(b"M")
            return best and Score(-best[0] if definition.low else best[0], -best[1])
        case "latest":
            newest = slots.get(b"L")
            return newest and Score(newest[1], newest[0] >> 16)
        case "distinct":
            flags = [value for slot, value in slots.items() if slot[:1] == b"C"]
            return Score(sum(value[0] % 2 for value in flags), NEVER_MS) if flags else None
        case "unique":
            registers = registers_of(slots)
            return Score(estimated(registers), NEVER_MS) if registers else None
        case _:
            return _of_counter(slots)


def _of_counter(slots: Mapping[bytes, Value]) -> Score | None:
    ups = [value for slot, value in slots.items() if slot[:1] == b"+"]
    downs = [value for slot, value in slots.items() if slot[:1] == b"-"]
    voids = [value for slot, value in slots.items() if slot[:1] == b"V"]
    if not ups and not downs and not voids:
        return None
    total = sum(v[0] for v in ups) - sum(v[0] for v in downs) - sum(v[0] - v[1] for v in voids)
    times = [v[1] for v in ups if v[0]] or [v[1] for v in (*ups, *downs)]
    return Score(total, max(times, default=NEVER_MS))


def _of_results(definition: Definition, slots: Mapping[bytes, Value]) -> Score | None:
    standing = [
        (value[1], msgpack.unpackb(value[2])[1])
        for slot, value in slots.items()
        if slot[:1] == b"K" and b"X" + slot[1:] not in slots
    ]
    if not standing:
        return None
    if definition.rule == "sum":
        times = [at_ms for number, at_ms in standing if number > 0]
        times = times or [at_ms for _, at_ms in standing]
        return Score(sum(number for number, _ in standing), max(times))
    best = (min if definition.low else max)(number for number, _ in standing)
    return Score(best, min(at_ms for number, at_ms in standing if number == best))


def total(slots: Mapping[bytes, Value]) -> int:
    """What a member's kept total must say, from cells of one rule."""
    if any(slot[:1] == b"H" for slot in slots):
        registers = registers_of(slots)
        filled = sum(2**48 >> rho for rho in registers.values())
        return filled + (REGISTERS - len(registers)) * 2**48
    if any(slot[:1] == b"C" for slot in slots):
        return sum(value[0] % 2 for slot, value in slots.items() if slot[:1] == b"C")
    kept = {slot: value for slot, value in slots.items() if slot[:1] == b"K"}
    if kept:
        rule = msgpack.unpackb(next(iter(kept.values()))[2])[0]
        found = _of_results(_RULES[rule], slots)
        return 0 if found is None else found.score
    found = _of_counter(slots)
    return 0 if found is None else found.score


_RULES = {
    "s": Definition(rule="sum", results="keep"),
    "h": Definition(rule="best", results="keep"),
    "l": Definition(rule="best", order="low", results="keep"),
}


def place_of(actor: str) -> tuple[int, int]:
    """(which register an actor raises, to what)."""
    bits = int.from_bytes(blake2b(actor.encode(), digest_size=8).digest())
    rest = bits % 2**50
    return bits >> 50, 51 - rest.bit_length()


def registers_of(slots: Mapping[bytes, Value]) -> dict[int, int]:
    """The registers of a sketch that are not 0, over all incarnations."""
    found: dict[int, int] = {}
    for slot, value in slots.items():
        if slot[:1] != b"H":
            continue
        segment, body = int.from_bytes(slot[9:11]), value[2]
        pairs = (
            list(enumerate(body))
            if len(body) >= 64
            else list(zip(body[::2], body[1::2], strict=True))
        )
        for index, rho in pairs:
            register = segment * 64 + index
            if rho > found.get(register, 0):
                found[register] = rho
    return found


def estimated(registers: Mapping[int, int]) -> int:
    """How many actors that is about: the product's formula, on sums made here."""
    zeros = REGISTERS - len(registers)
    return estimate(sum(2**48 >> rho for rho in registers.values()) + zeros * 2**48, zeros)


# --- windows -------------------------------------------------------------------------------


class Frame(NamedTuple):
    """A window of UTC, and when it takes nothing more and when it is kept no longer."""

    id: str
    start_ms: int
    closes_ms: int
    ends_ms: int


_FOREVER = 2**62
_SPAN_MS = {"hour": HOUR_MS, "day": DAY_MS}
_KEEP = {"hour": "2d", "day": "8d"}
_UNITS = {"s": 1_000, "m": 60_000, "h": HOUR_MS, "d": DAY_MS}


def duration_ms(text: str) -> int:
    """The milliseconds of a text such as `10m`."""
    return int(text[:-1]) * _UNITS[text[-1]]


def frames(definition: Definition, at_ms: int) -> list[Frame]:
    """The windows of a definition that a time falls in: `all`, hours and days."""
    found = []
    for spec in definition.windows:
        if spec.name == "all":
            found.append(Frame("all", -_FOREVER, _FOREVER, _FOREVER))
            continue
        span_ms = _SPAN_MS[spec.name]
        start_ms = at_ms - at_ms % span_ms
        shown = datetime.fromtimestamp(start_ms / 1000, UTC).isoformat()
        name = f"{spec.name}:{shown[: 13 if spec.name == 'hour' else 10]}"
        closes_ms = start_ms + span_ms + duration_ms(spec.grace or "10m")
        ends_ms = closes_ms + duration_ms(spec.keep or _KEEP[spec.name])
        found.append(Frame(name, start_ms, closes_ms, ends_ms))
    return found


def times_of(definition: Definition, window: str) -> tuple[int, int]:
    """When a window or a bucket of facts takes nothing more, and when it is kept no longer."""
    name, _, rest = window.partition(":")
    if name == "keys":
        end_ms = (int(rest) + 1) * BUCKET_MS + duration_ms(definition.key_retention or "1h")
        return end_ms, end_ms
    at_ms = start_of(window)
    frame = next(frame for frame in frames(definition, at_ms) if frame.id == window)
    return frame.closes_ms, frame.ends_ms


def start_of(window: str) -> int:
    """When an hour or a day of UTC begins; the window `all` always was."""
    if window == "all":
        return -_FOREVER
    name, _, rest = window.partition(":")
    moment = datetime.fromisoformat(rest if name == "day" else f"{rest}:00")
    return int(moment.replace(tzinfo=UTC).timestamp()) * 1000


def split(space: bytes) -> tuple[bytes, str]:
    """(what the spaces of a board's generation and shape begin with, the window's id)."""
    end = 13 + space[0]
    return space[:end], space[end:].decode(errors="replace")


def series_of(space: bytes) -> tuple[bytes, str]:
    """(the member of the marks about a space's series, the window's id)."""
    prefix, window = split(space)
    return prefix + window.partition(":")[0].encode(), window


def bucket_space(board: str, at_ms: int) -> bytes:
    """Where the facts of a board's entries of a time are."""
    name = board.encode()
    return bytes([len(name)]) + name + bytes(12) + f"keys:{at_ms // BUCKET_MS:010d}".encode()


# --- facts ---------------------------------------------------------------------------------


class Fact(NamedTuple):
    """What a fact's cell says; `effects` are (space, what was added, the slot, its value then)."""

    hlc: int
    at_ms: int
    key: bytes
    inc: int
    effects: tuple[tuple[bytes, int, bytes, Value], ...]

    @property
    def order(self) -> tuple[int, int]:
        """The first of a key's facts counts."""
        return self.hlc, self.inc


def fact(key: Key, value: Value) -> Fact:
    """A fact, from its cell."""
    space, _, slot = key
    inc = slot[-8:]
    _, generation, effects = msgpack.unpackb(value[2])
    start = space[: 1 + space[0]] + generation.to_bytes(4)
    found = tuple(
        (
            start + shape + window.encode(),
            amount,
            (b"-" if amount < 0 else b"+") + inc,
            (after, ms, b""),
        )
        for shape, window, amount, after, ms in effects
    )
    return Fact(value[0], value[1], slot[3:-8], int.from_bytes(inc), found)


def implied(key: Key, value: Value) -> list[tuple[Key, Value]]:
    """The slots that a fact implies, as they were after it."""
    return [((space, key[1], slot), held) for space, _, slot, held in fact(key, value).effects]


def is_fact(key: Key) -> bool:
    """Whether a cell is a fact."""
    return key[2][:1] == b"F" and split(key[0])[1].startswith("keys:")


# --- what may be gone ----------------------------------------------------------------------


class Gone:
    """Which cells an agent need not hold any more, by the marks and tombstones that it holds."""

    def __init__(self, cells: Mapping[Key, Value]) -> None:
        self._collected: dict[bytes, str] = {}
        self._keys, self._ids = [], set()
        self._names: dict[bytes, bool] = {}
        for (space, member, slot), value in cells.items():
            if space == MARKS and slot[:1] == b"g":
                window = value[2].decode()
                self._collected[member] = max(window, self._collected.get(member, ""))
            elif space == ERASED and slot[:1] == b"C":
                self._keys.append(slot[1:])
            elif space == ERASED and slot[:1] == b"E":
                self._ids.add(member)

    def __bool__(self) -> bool:
        return bool(self._collected or self._ids)

    @property
    def names_erased(self) -> bool:
        """Whether any name was erased."""
        return bool(self._ids)

    def erased(self, name: bytes) -> bool:
        """Whether a name was erased."""
        if name not in self._names:
            made = (blake2b(name, digest_size=16, key=key).digest() for key in self._keys)
            self._names[name] = any(its in self._ids for its in made)
        return self._names[name]

    def collected(self, space: bytes) -> bool:
        """Whether a window or a bucket of facts is collected."""
        if space[1:2] == b"~" or not self._collected:
            return False
        series, window = series_of(space)
        return window <= self._collected.get(series, "")

    def holds(self, key: Key) -> bool:
        """Whether a cell may be gone, and must in the end."""
        space, member, slot = key
        if space == MARKS and slot[:1] in b"df":
            return self.collected(member)
        if space[1:2] == b"~":
            return space.startswith(BANS) and self.erased(member)
        if self.collected(space) or self.erased(member):
            return True
        return slot[:1] == b"C" and self.erased(slot[1:])


def closed_by(cells: Mapping[Key, Value], agent: str, space: bytes) -> bool:
    """Whether an agent has closed a window, by its mark."""
    series, window = series_of(space)
    mark = cells.get((MARKS, series, b"c" + agent.encode()))
    return mark is not None and window <= mark[2].decode()


def slots_of(cells: Mapping[Key, Value], space: bytes, member: bytes) -> dict[bytes, Value]:
    """All cells of one member, by slot."""
    return {key[2]: value for key, value in cells.items() if key[0] == space and key[1] == member}


def by_owner(cells: Mapping[Key, Value]) -> dict[tuple[bytes, bytes], dict[bytes, Value]]:
    """All cells by (space, member), then slot."""
    found: dict[tuple[bytes, bytes], dict[bytes, Value]] = {}
    for key, value in cells.items():
        found.setdefault(key[:2], {})[key[2]] = value
    return found


def facts_of(
    cells: Mapping[Key, Value], board: str, member: bytes, key: bytes, at_ms: int
) -> list[tuple[Fact, Key]]:
    """The facts of a key of about this time: in its bucket and in those before and after it."""
    spaces = {bucket_space(board, at_ms + offset) for offset in (-BUCKET_MS, 0, BUCKET_MS)}
    start = b"F" + len(key).to_bytes(2) + key
    return [
        (fact(its, value), its)
        for its, value in cells.items()
        if its[0] in spaces and its[1] == member and its[2].startswith(start)
    ]


def names_of(cells: Iterable[Key]) -> set[bytes]:
    """All names that stand in cells of boards."""
    found = set()
    for space, member, slot in cells:
        if space[1:2] != b"~":
            found.add(member)
            if slot[:1] == b"C":
                found.add(slot[1:])
    return found


def kept_at_ms(value: Value) -> int:
    """The time of a kept result."""
    at_ms: int = msgpack.unpackb(value[2])[1]
    return at_ms
