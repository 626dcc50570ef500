"""Names and hashes that the projection keeps in Redis. All of them are frozen: tests/unit.

    lb:{s0}:BOARD:WINDOW             sorted set: member -> composite score
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

from agent.boards.catalog import Board
from agent.boards.scale import Scale
from agent.crdt.space import decode_space

SHARD = "{s0}"
WATERMARK_KEY = f"lb:{SHARD}:wm"
PROGRESS_KEY = f"lb:{SHARD}:wm:new"
BOARDS_PATTERN = f"lb:{SHARD}:*"
COUNTERS_PATTERN = f"ct:{SHARD}:*"
COUNTER_PREFIX = f"ct:{SHARD}:".encode()

# What the numbers in Redis mean. Another one in a watermark means: fill everything anew.
CODE_VERSION = 1

GUARD_FIELDS = ("ring", "region", "agent", "log", "lsn", "batch")
META_FIELDS = ("b", "ties", "epoch_ms", "tick_ms", "order", "generation", "shape")
# Also in a meta, and no part of what the numbers mean: the tenure in which the set was filled.
TENURE = "tenure"
NO_TENURE = "-"

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


def meta_of(board: Board) -> dict[str, str]:
    """What a board's meta must hold: equal meta, equal meaning of every number in its set.

    The board must be in use.
    """
    scale = board.scale
    space = decode_space(board.space)
    assert scale is not None
    assert space is not None
    return {
        "b": str(scale.b),
        "ties": scale.ties,
        "epoch_ms": str(scale.epoch_ms),
        "tick_ms": str(scale.tick_ms),
        "order": "low" if scale.low else "high",
        "generation": str(board.generation),
        "shape": space.shape.hex(),
    }


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
            "as_of": json.dumps(dict(self.as_of), sort_keys=True, separators=(",", ":")),
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
