"""Names and hashes that the projection keeps in Redis. All of them are frozen: tests/unit.

    lb:{s0}:BOARD:WINDOW             sorted set: member -> composite score; WINDOW is a window's id
    lb:{s0}:BOARD:WINDOW:meta        hash: how to decode it (`meta_of`); it is there only while
                                     the sorted set is complete, so without it nothing is served
    lb:{s0}:BOARD:WINDOW:new:NONCE   sorted set that is being filled
    ct:{s0}:NAME                     string: the exact value of a counter
    lb:{s0}:wm                       hash: the watermark, one for all boards
    lb:{s0}:wm:new                   hash: the watermark of a rebuild of everything, until it ends
    tr:{s0}:agent:NAME               string: which file and boot an agent runs on (sentinel.py)

The braces are a hash tag: all keys of a shard are in one slot, so one script may change them all.
Numbers are decimal strings.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from agent.boards.catalog import Placed
from agent.boards.scale import Scale
from agent.boards.windows import is_sliding

SHARD = "{s0}"
WATERMARK_KEY = f"lb:{SHARD}:wm"
PROGRESS_KEY = f"lb:{SHARD}:wm:new"
BOARDS_PATTERN = f"lb:{SHARD}:*"
COUNTERS_PATTERN = f"ct:{SHARD}:*"
COUNTER_PREFIX = f"ct:{SHARD}:".encode()

# What the numbers in Redis mean. Another one in a watermark means: fill everything anew.
CODE_VERSION = 2

GUARD_FIELDS = ("ring", "region", "agent", "log", "lsn", "batch")
META_FIELDS = (
    "b",
    "ties",
    "epoch_ms",
    "tick_ms",
    "order",
    "generation",
    "shape",
    "window",
    "start_ms",
    "end_ms",
)
# Of a sliding window these move with its newest bucket, and its numbers mean the same.
MOVING_FIELDS = ("epoch_ms", "start_ms", "end_ms")
# Also in a meta, and no part of what the numbers mean: the tenure in which the set was filled.
TENURE = "tenure"
NO_TENURE = "-"
# And where a set is computed now and then: what it includes, while that is less than the watermark.
AS_OF = "as_of"

Guard: TypeAlias = tuple[str, str, str, str, str, str]
"""What a hash is expected to hold in GUARD_FIELDS; an absent field is an empty string."""

ABSENT: Guard = ("", "", "", "", "", "")

Fields: TypeAlias = Mapping[bytes, bytes]
"""A hash as Redis returns it; empty where there is none."""


def board_key(board: str, window: str) -> str:
    """The sorted set of a board's window."""
    return f"lb:{SHARD}:{board}:{window}"


def meta_key(board: str, window: str) -> str:
    """The hash that says how to decode a board's window."""
    return f"{board_key(board, window)}:meta"


def filling_key(board: str, window: str, nonce: str) -> str:
    """The sorted set in which a board's window is being filled."""
    return f"{board_key(board, window)}:new:{nonce}"


def counter_key(name: bytes) -> bytes:
    """The string with a counter's value."""
    return COUNTER_PREFIX + name


def sentinel_key(agent: str) -> str:
    """The string by which an agent knows its region's Redis again."""
    return f"tr:{SHARD}:agent:{agent}"


def meta_of(placed: Placed) -> dict[str, str]:
    """What a window's meta must hold: equal meta, equal meaning of every number in its set."""
    scale, window = placed.scale, placed.window
    return {
        "b": str(scale.b),
        "ties": scale.ties,
        "epoch_ms": str(scale.epoch_ms),
        "tick_ms": str(scale.tick_ms),
        "order": "low" if scale.low else "high",
        "generation": str(placed.board.generation),
        "shape": placed.counted.prefix[-8:].hex(),  # of a space without a window's id
        "window": window.id,
        "start_ms": str(window.start_ms),
        "end_ms": str(window.end_ms),
    }


def fits(meta: Mapping[str, str], placed: Placed) -> bool:
    """Whether the numbers that a meta describes mean what those of this window have to mean.

    Fields beside META_FIELDS are passed over.
    """
    moving = MOVING_FIELDS if is_sliding(placed.window.name) else ()
    return all(
        meta.get(name) == value for name, value in meta_of(placed).items() if name not in moving
    )


def texts(fields: Fields) -> dict[str, str]:
    """A hash as text; what is none is shown escaped."""
    return {
        name.decode(errors="backslashreplace"): value.decode(errors="backslashreplace")
        for name, value in fields.items()
    }


def as_of_text(as_of: Mapping[str, int | None]) -> str:
    """How `as_of` is written, in the watermark and in a meta."""
    return json.dumps(dict(as_of), sort_keys=True, separators=(",", ":"))


def scale_in(meta: Mapping[str, str]) -> Scale:
    """The scale that a meta describes.

    Raises:
        ValueError, KeyError: it is not of this version's form.
    """
    return Scale(
        ties=meta["ties"],
        low=meta["order"] == "low",
        b=int(meta["b"]),
        epoch_ms=int(meta["epoch_ms"]),
        tick_ms=int(meta["tick_ms"]),
    )


def as_of_in(text: str) -> dict[str, int | None]:
    """What `as_of_text` has written; nothing is known where it is not of that form."""
    try:
        return {str(region): ms for region, ms in json.loads(text).items()}
    except (ValueError, AttributeError):
        return {}


def places_in(key: bytes) -> list[tuple[str, str]]:
    """The (board, window) whose key this may be: a sorted set, a meta, or a set being filled."""
    name = key.decode(errors="backslashreplace").removeprefix(f"lb:{SHARD}:")
    board, _, window = name.partition(":")
    found = [window]
    if window.endswith(":meta"):
        found.append(window.removesuffix(":meta"))
    if ":new:" in window:
        found.append(window.rpartition(":new:")[0])
    return [(board, each) for each in found]


@dataclass(frozen=True, slots=True)
class Claim:
    """Who projects: the agent, its local log, and the ring and region it belongs to."""

    ring: str
    region: str
    agent: str
    log: int


@dataclass(frozen=True, slots=True)
class Watermark:
    """How far Redis is, of whose log, and what it includes.

    lsn: everything up to it in the log of `claim` is in Redis.
    batch: rises by one with every change of Redis, from a random number after each rebuild: a
        late duplicate of an earlier change, even of an earlier life of Redis, never fits.
    vv: a version vector that the content includes; of a snapshot at the head of the log.
    as_of: of the same snapshot; by region, ms since 1970, or None while nothing is known.
    lease_until_ms: by the clock of the agent that projects; another one's clock is never compared
        with it, so what counts is that it moves (`lease.py`), and that 0 gives the lease up.
    tenure: a random name, new with each rebuild and each take-over. A board whose meta has another
        one was filled before the take-over, and is still to be filled anew.
    """

    claim: Claim
    lsn: int
    batch: int
    vv: Mapping[int, int]
    as_of: Mapping[str, int | None]
    lease_until_ms: int
    code: int = CODE_VERSION
    tenure: str = ""

    def guard(self) -> Guard:
        """The fields that a change compares before it does anything."""
        claim = self.claim
        who = (claim.ring, claim.region, claim.agent, str(claim.log))
        return (*who, str(self.lsn), str(self.batch))

    def steps_of(self) -> dict[str, str]:
        """The fields that move with each batch."""
        return {
            "lsn": str(self.lsn),
            "batch": str(self.batch),
            "lease_until_ms": str(self.lease_until_ms),
        }

    def includes(self) -> dict[str, str]:
        """The fields that say what the content includes; they move only at the head of the log."""
        vv = {f"{inc:x}": seq for inc, seq in self.vv.items()}
        return {
            "vv": json.dumps(vv, sort_keys=True, separators=(",", ":")),
            AS_OF: as_of_text(self.as_of),
        }

    def fields(self) -> dict[str, str]:
        """The whole hash."""
        claim = self.claim
        return {
            "ring": claim.ring,
            "region": claim.region,
            "agent": claim.agent,
            "log": str(claim.log),
            "code": str(self.code),
            TENURE: self.tenure,
            **self.steps_of(),
            **self.includes(),
        }


def least_vv(one: Mapping[int, int], other: Mapping[int, int]) -> dict[int, int]:
    """What both version vectors include."""
    return {inc: min(seq, other[inc]) for inc, seq in one.items() if inc in other}


def least_as_of(
    one: Mapping[str, int | None], other: Mapping[str, int | None]
) -> dict[str, int | None]:
    """By region, the time up to which both include it; None where one knows nothing of it."""
    found: dict[str, int | None] = {}
    for region in sorted({*one, *other}):
        first, second = one.get(region), other.get(region)
        found[region] = None if first is None or second is None else min(first, second)
    return found


def guard_in(fields: Fields) -> Guard:
    """What a hash as found holds in GUARD_FIELDS; ABSENT for a missing hash."""
    ring, region, agent, log, lsn, batch = (
        fields.get(name.encode(), b"").decode(errors="backslashreplace") for name in GUARD_FIELDS
    )
    return (ring, region, agent, log, lsn, batch)


def watermark_in(fields: Fields) -> Watermark | None:
    """The watermark in a hash; None where there is none or it is not of this form."""
    try:
        text = {name.decode(): value.decode() for name, value in fields.items()}
        return Watermark(
            claim=Claim(text["ring"], text["region"], text["agent"], int(text["log"])),
            lsn=int(text["lsn"]),
            batch=int(text["batch"]),
            vv={int(inc, 16): seq for inc, seq in json.loads(text["vv"]).items()},
            as_of=json.loads(text["as_of"]),
            lease_until_ms=int(text["lease_until_ms"]),
            code=int(text["code"]),
            tenure=text.get(TENURE, ""),  # before there were any, all boards were of one
        )
    except (KeyError, ValueError, AttributeError):
        return None
