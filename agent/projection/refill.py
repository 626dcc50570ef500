"""Which windows are being filled, in which order, and how one is put in its place.

A window is filled under a new key, by a scan over its members in SQLite; from the moment its
filling begins, its changes go to the new key. The scan reads states that only get newer, so when it
is through, the new key is complete up to the watermark, and one script puts it in place. While a
window is being filled it has no meta in Redis, and without meta nobody serves it.

Unless what stands in its place is only old: after a take-over (and in a repair) the window goes on
being served, its changes go to both keys, and the swap replaces what the last one left behind. The
meta of such a window names another tenure than the watermark does: that is how a crash in between
is found out about. While there is any, nothing newer may be claimed than what was taken over.

A window that is computed (sliding ones, trends) is filled the same way, each time anew. It is
served meanwhile, and owes nothing: its meta says what it includes where that is less than all.
"""

from __future__ import annotations

from collections import deque
from itertools import islice

from agent.projection.keys import AS_OF, TENURE, as_of_text, filling_key, meta_of
from agent.projection.place import Clock, Filling, Place
from agent.projection.scripts import Change
from agent.projection.status import Counts


class Turns:
    """All windows that are being filled. `tenure` is the watermark's."""

    def __init__(self, counts: Counts, clock: Clock) -> None:
        self.tenure = ""
        self._counts = counts
        self._clock = clock
        self._turns: deque[Filling] = deque()
        self._uncounted: deque[Filling] = deque()

    def begin(self, place: Place, nonce: str, *, served: bool) -> None:
        """Begin to fill a window under a key of its own."""
        filling = Filling(place.placed, filling_key(*place.id, nonce), served)
        place.filling = filling
        if not filling.computed:
            self._counts.refills += 1
        self._turns.appendleft(filling)  # a new board is small: it need not wait for big ones
        self._to_count(filling)

    def restart(self, place: Place, change: Change) -> bool:
        """Begin anew with what is on its way to a place; returns whether anything is."""
        filling = place.filling
        if filling is None:
            return False
        change.unlink(filling.key)
        anew = Filling(filling.placed, filling.key, filling.served)
        self._turns[self._turns.index(filling)] = place.filling = anew
        self._to_count(anew)
        return True

    def _to_count(self, filling: Filling) -> None:
        if filling.follows:
            self._uncounted.append(filling)

    def abandon(self, place: Place, change: Change) -> None:
        """Give up what is on its way to a place, if anything is."""
        if place.filling is not None:
            change.unlink(place.filling.key)
            self._turns.remove(place.filling)
            place.filling = None

    @property
    def owing(self) -> bool:
        """Whether a window is served that follows the log and is not complete."""
        return any(filling.served and not filling.computed for filling in self._turns)

    def fillings(self) -> list[Filling]:
        """What is being filled."""
        return list(self._turns)

    def uncounted(self, limit: int) -> list[Filling]:
        """The next ones of which it is not known how many members they will have."""
        while self._uncounted and self._uncounted[0].total is not None:
            self._uncounted.popleft()
        return list(islice(self._uncounted, limit))

    def next_turn(self) -> Filling | None:
        """The filling whose turn it is; None where all are ready for their places.

        Windows that are not served, and those that are computed, go first, each in turn. The others
        go one after the other, so that no more than one of them stands in Redis twice.
        """
        for _ in range(len(self._turns)):
            filling = self._turns[0]
            self._turns.rotate(-1)
            if not filling.ready and (not filling.served or filling.computed):
                return filling
        served = (filling for filling in self._turns if not filling.ready)
        return min(served, key=lambda filling: not filling.after, default=None)

    def swap(self, place: Place, change: Change) -> None:
        """Add the steps that put a filled window in its place, where it is served."""
        filling = place.filling
        assert filling is not None
        # Unlinked first: a rename over a big key would free it within the script.
        change.unlink(place.key)
        if filling.filled:
            change.move(filling.key, place.key)
        change.unlink(place.meta)
        fields = meta_of(filling.placed) | {TENURE: self.tenure}
        if place.dirty and filling.since is not None:
            fields[AS_OF] = as_of_text(filling.since.as_of)
        change.fields(place.meta, fields)
        self.expire(place, change)

    def swapped(self, place: Place) -> None:
        """Note that a filled window is in place."""
        filling = place.filling
        assert filling is not None
        self._turns.remove(filling)
        place.filling = None
        if place.derivation is not None:
            place.members = filling.members
            place.included = filling.since if place.dirty else None

    def expire(self, place: Place, change: Change) -> None:
        """Add the steps that give a place's keys their end."""
        expires_ms = place.expires_ms(self._clock)
        if expires_ms is not None:
            change.expire(place.key, expires_ms)
            change.expire(place.meta, expires_ms)
        elif place.placed.expires_ms is not None:  # with the manual clock, but before it was not
            change.persist(place.key)
            change.persist(place.meta)

    def describe(self, place: Place, change: Change) -> None:
        """Add the steps that write a complete place's meta anew, and the end of its keys."""
        fields = meta_of(place.placed) | {TENURE: self.tenure}
        if place.included is not None:
            fields[AS_OF] = as_of_text(place.included.as_of)
        change.unlink(place.meta)
        change.fields(place.meta, fields)
        if place.expires_ms(self._clock) is None:
            change.persist(place.key)
        self.expire(place, change)

    def add(self, place: Place, key: str, pairs: list[bytes], change: Change) -> None:
        """Add the steps that set members' scores in a set of a place."""
        change.add(key, pairs)
        expires_ms = place.expires_ms(self._clock)
        if expires_ms is not None:
            change.expire(key, expires_ms)
