"""One window's place in Redis, and what is on its way there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf
from typing import TypeAlias

from agent.boards.catalog import Placed
from agent.boards.definition import COUNTERS
from agent.projection.keys import board_key, meta_key
from agent.projection.sliding import SlidingScan
from agent.projection.source import derivation_of

PlaceId: TypeAlias = tuple[str, str]
"""A board's name and a window's id."""

# How long after a window is kept no longer Redis drops its keys by itself: the agent is sooner.
EXPIRY_MARGIN_MS = 600_000


@dataclass(frozen=True, slots=True)
class Clock:
    """The time that windows go by.

    now_ms: the board's time, in ms since 1970.
    expiring: whether Redis shares it, so that keys can be given an end.
    """

    now_ms: Callable[[], int]
    expiring: bool = True


@dataclass(frozen=True, slots=True)
class Included:
    """What a set includes: a version vector, my log up to an lsn, and by region up to when."""

    vv: Mapping[int, int]
    lsn: int
    as_of: Mapping[str, int | None]


@dataclass(slots=True)
class Filling:
    """A window on its way into Redis.

    key: the sorted set being filled; it exists once `filled` is set, unless it lost all members.
    served: what stands in the window's place is served meanwhile, and gets its changes too.
    since: of a window that is computed, what the new set includes; None before it is begun.
    at_ms: and the board's time for which it is computed.
    scan: of a sliding window that was begun, the way through its buckets.
    after: the last member that the scan has covered.
    scanned: whether the scan is through.
    strings_at: where the search for strings of counters that are no more stands; None at its end.
    members: how many the scan has put under the new key.
    total: how many members there were to scan when it began; None until they were counted.
    """

    placed: Placed
    key: str
    served: bool = False
    since: Included | None = None
    at_ms: int = 0
    scan: SlidingScan | None = None
    after: bytes = b""
    filled: bool = False
    scanned: bool = False
    strings_at: int | None = None
    members: int = 0
    total: int | None = None

    @property
    def follows(self) -> bool:
        """Whether it is of a window that follows the log: how big that is can be known before."""
        return derivation_of(self.placed) is None

    @property
    def counts(self) -> bool:
        """Whether it is the board of counters, whose values are strings too."""
        return self.placed.board.name == COUNTERS

    @property
    def ready(self) -> bool:
        """Whether the new key can take the window's place."""
        return self.scanned and self.strings_at is None

    @property
    def id(self) -> PlaceId:
        """Whose place it will take."""
        return self.placed.board.name, self.placed.window.id

    @property
    def computed(self) -> bool:
        """Whether what is served meanwhile is all that was ever promised: a computed window."""
        return self.served and derivation_of(self.placed) is not None


class Place:
    """A window's place.

    stored: whether its space holds cells, as far as was seen.
    filling: what is on its way.
    derivation: how its set is computed now and then; None where it follows the log.

    Of one that is computed:
    dirty: whether it is to be computed again.
    included: what it includes; None: as much as any other.
    begun_s: when it was last begun, by the event loop's clock.
    members: how many it had then; None: not known.
    """

    __slots__ = (
        "begun_s",
        "derivation",
        "dirty",
        "filling",
        "included",
        "members",
        "placed",
        "stored",
    )

    def __init__(self, placed: Placed, *, stored: bool) -> None:
        self.placed = placed
        self.stored = stored
        self.filling: Filling | None = None
        self.derivation = derivation_of(placed)
        self.dirty = False
        self.included: Included | None = None
        self.begun_s = -inf
        self.members: int | None = None

    @property
    def id(self) -> PlaceId:
        """The board's name and the window's id."""
        return self.placed.board.name, self.placed.window.id

    @property
    def key(self) -> str:
        """The sorted set."""
        return board_key(*self.id)

    @property
    def meta(self) -> str:
        """The hash that says how to decode it."""
        return meta_key(*self.id)

    @property
    def served(self) -> bool:
        """Whether its ranks can be read: it is complete, or an older state of it is served."""
        return self.filling is None or self.filling.served

    @property
    def half_life_ms(self) -> int | None:
        """After which time its entries count half; None: they do not fade."""
        definition = self.placed.board.definition
        return None if definition is None else definition.half_life_ms

    def expires_ms(self, clock: Clock) -> int | None:
        """When Redis is to drop its keys; None: never."""
        expires_ms = self.placed.expires_ms
        if expires_ms is None or not clock.expiring:
            return None
        return expires_ms + EXPIRY_MARGIN_MS
