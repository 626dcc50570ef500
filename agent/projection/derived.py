"""Windows that are computed now and then: sliding windows, and all windows of `trend` boards.

They are computed on a timer, never for a read: when something under them changed, when a sliding
window moved on by a bucket, and where entries fade by themselves. Each time anew, under a new key
that takes the place of the old one when it is complete. Meanwhile, and until its time has come, the
meta says what the old one includes.
"""

from __future__ import annotations

from functools import partial

from agent.boards.trends import KEEP_MAX, read_heaviest
from agent.config import ProjectionSection
from agent.crdt.sketch import SKETCH_MEMBER
from agent.crdt.total import NEVER_MS
from agent.projection.agenda import Agenda
from agent.projection.place import Clock, Filling, Place, PlaceId
from agent.projection.places import Places
from agent.projection.sliding import SlidingScan
from agent.projection.source import Hides, Members, derivation_of
from agent.store.snapshot import SqliteSnapshot

AT_ONCE_MAX = 4  # windows that stand in Redis twice for a moment
# A trend whose entries fade is computed again when its numbers are off by less than a percent.
FADES_IN_PARTS = 100
_END = b"\xff"


class Deriving:
    """Begins what is due."""

    def __init__(self, places: Places, clock: Clock, section: ProjectionSection) -> None:
        self._places = places
        self._clock = clock
        self._every_s = {"sliding": section.sliding_s, "trend": section.trend_s}
        self._fading: Agenda[PlaceId] = Agenda()

    def begin_due(self, nonce: str, now_s: float) -> None:
        """Begin to compute what was changed and has waited for its time; `now_s` is monotonic."""
        places = self._places
        for faded in self._fading.due(self._clock.now_ms(), len(places.dirty) + AT_ONCE_MAX):
            place = places.find(faded)
            if place is not None:
                places.to_compute(place)
        running = sum(filling.computed for filling in places.turns.fillings())
        for waiting in list(places.dirty):
            place = places.find(waiting)
            if running >= AT_ONCE_MAX:
                return
            if place is None or place.derivation is None:
                del places.dirty[waiting]
            elif place.filling is None and now_s - place.begun_s >= self._every_s[place.derivation]:
                del places.dirty[waiting]
                places.turns.begin(place, nonce, served=True)
                running += 1

    def computed(self, place: Place, at_ms: int) -> None:
        """Note that a window was put in place, as it was at a time."""
        half_life_ms = place.half_life_ms
        if half_life_ms is not None and place.members:
            wait_ms = max(half_life_ms // FADES_IN_PARTS, int(self._every_s["trend"] * 1000))
            self._fading.put(place.id, at_ms + wait_ms)


def scan_of(filling: Filling) -> SlidingScan | None:
    """The way through the buckets of a sliding window; None where it has none."""
    placed = filling.placed
    if derivation_of(placed) != "sliding":
        return None
    sliding = next(s for s in placed.board.slidings if s.name == placed.window.name)
    series = sliding.counted.series
    buckets = series.recent(filling.at_ms, sliding.buckets)
    return SlidingScan(placed, [sliding.counted.space_of(bucket) for bucket in buckets])


def read_trend(snapshot: SqliteSnapshot, filling: Filling, after: bytes, hides: Hides) -> Members:
    """The heaviest members of a trend's window: all at once, and then no more."""
    placed = filling.placed
    definition = placed.board.definition
    assert definition is not None
    if after:
        return Members([], [], None)
    hidden = partial(_hidden, hides, placed.board.name)
    slots = snapshot.slots_of(placed.space, SKETCH_MEMBER)
    pairs: list[bytes] = []
    clamped = 0
    heaviest = read_heaviest(slots, filling.at_ms, definition.half_life_ms, KEEP_MAX, hidden)
    for member, score in heaviest:
        clamped += score > placed.scale.score_limit
        pairs += (b"%d" % placed.scale.composite(score, NEVER_MS), member)
    return Members(pairs, [], _END, clamped)


def _hidden(hides: Hides, board: str, member: bytes) -> bool:
    return hides(member, board)
