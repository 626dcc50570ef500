"""Whether what was put into Redis still stands there: a few windows at a time, in turn.

Redis may lose one key and keep the watermark: somebody deletes it, or a server evicts it that was
not set to `noeviction`. The sorted set of a window with members, and the meta of any, must be
there. Lost members of a set that is there are found by an audit (`audit.py`).
"""

from __future__ import annotations

from functools import partial

from agent.projection.link import Link
from agent.projection.place import Place, PlaceId
from agent.projection.places import Places
from agent.projection.source import Hides, read_members
from agent.store.readers import Readers
from agent.store.snapshot import SqliteSnapshot

WINDOWS_MAX = 32  # looked at in one go: one round trip of a millisecond
CELLS_MAX = 100  # read of a window to learn whether it has members


class Upkeep:
    """Looks for windows that Redis has lost, over one adopted watermark."""

    def __init__(self, link: Link, readers: Readers, places: Places) -> None:
        self._link = link
        self._readers = readers
        self._places = places
        self._waiting: list[PlaceId] = []
        self._suspects: dict[PlaceId, int] = {}

    async def lost(self) -> list[Place]:
        """The complete windows among the next ones that are not in Redis as they should be.

        A set that is missing is only suspected at first: its members may not have been projected
        yet. It is lost if it is still missing when the watermark has passed them.
        """
        places = [place for place in self._next() if place.filling is None]
        if not places:
            return []
        keys = [key for place in places for key in (place.key, place.meta)]
        found = await self._link.existing(keys)
        lost: list[Place] = []
        asked: list[Place] = []
        for place, has_set, has_meta in zip(places, found[::2], found[1::2], strict=True):
            due_lsn = self._suspects.pop(place.id, None)
            if not has_meta or (
                not has_set and due_lsn is not None and due_lsn <= self._link.watermark.lsn
            ):
                lost.append(place)
            elif not has_set and place.derivation is None:
                asked.append(place)
            elif not has_set and place.members != 0:
                self._places.to_compute(place)
        if asked:
            read = partial(_with_members, places=asked, hides=self._places.knowledge.hides)
            found_lsn, having = await self._readers.read(read)
            self._suspects |= dict.fromkeys(having, found_lsn)
        return lost

    def _next(self) -> list[Place]:
        """The suspects, and the next windows in turn."""
        if not self._waiting:
            self._waiting = self._places.ids()
        names = self._waiting[-WINDOWS_MAX:]
        del self._waiting[-WINDOWS_MAX:]
        found = map(self._places.find, dict.fromkeys([*self._suspects, *names]))
        places = [place for place in found if place is not None]
        self._suspects = {
            place.id: self._suspects[place.id] for place in places if place.id in self._suspects
        }
        return places


def _with_members(
    snapshot: SqliteSnapshot, places: list[Place], hides: Hides
) -> tuple[int, list[PlaceId]]:
    """The newest lsn, and which of the windows have a member, as far as their first cells tell."""
    having = [
        place.id
        for place in places
        if read_members(snapshot, place.placed, b"", CELLS_MAX, hides).scores_and_members
    ]
    return snapshot.newest_lsn, having
