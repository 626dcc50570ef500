"""Rebuilds that somebody has asked for: how far each is, and what it has written anew.

A rebuild ends when each window that its boards had when it was begun was put in place once since
then, whoever else wanted it: rebuilds that overlap share the filling of a window, and each counts
it. The projector may lose Redis meanwhile, and begin anew; it goes on with what is owed.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field

from agent.projection.place import Filling, Place, PlaceId
from agent.projection.places import Places

REBUILDS_MAX = 64  # the newest ones can be looked at


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a rebuild is.

    ended: whether all of it is done.
    windows: how many it has put in place; `members`: how many members were written for these.
    done: `members`, and those of the windows on their way; `total`: how many it will be, None until
        that is known. Windows that are computed now and then count when they are in place.
    """

    ended: bool
    windows: int
    members: int
    done: int
    total: int | None


@dataclass(slots=True)
class _Rebuild:
    """boards: those not begun with. waits: for these windows. The rest is done."""

    boards: set[str]
    waits: set[PlaceId] = field(default_factory=set)
    windows: int = 0
    members: int = 0


class Rebuilds:
    """The newest rebuilds, by id. On the event loop."""

    def __init__(self) -> None:
        self._rebuilds: OrderedDict[str, _Rebuild] = OrderedDict()

    def add(self, boards: Iterable[str]) -> str:
        """Watch what becomes of a wish for boards; returns the rebuild's id: no other agent's."""
        id_ = secrets.token_hex(8)
        self._rebuilds[id_] = _Rebuild({*boards})
        while len(self._rebuilds) > REBUILDS_MAX:
            self._rebuilds.popitem(last=False)
        return id_

    def begin(self, boards: Iterable[str], places: Places) -> None:
        """Note that boards were begun with: from now on their windows are waited for."""
        begun = set(boards)
        for rebuild in self._rebuilds.values():
            for name in rebuild.boards & begun:
                rebuild.waits.update(place.id for place in places.of(name) if _is_owed(place))
            rebuild.boards -= begun

    def in_place(self, place: PlaceId, members: int) -> None:
        """Note that a window was put in place."""
        for rebuild in self._rebuilds.values():
            if place in rebuild.waits:
                rebuild.waits.discard(place)
                rebuild.windows += 1
                rebuild.members += members

    def look(self, id_: str, places: Places | None) -> Progress | None:
        """How far a rebuild is; None where it is not known here (any more).

        Args:
            places: the windows in Redis; None while nothing is filled.
        """
        rebuild = self._rebuilds.get(id_)
        if rebuild is None:
            return None
        fillings: list[Filling] = []
        if places is not None:
            owed = [place for place in map(places.find, rebuild.waits) if place is not None]
            owed = [place for place in owed if _is_owed(place)]
            rebuild.waits = {place.id for place in owed}  # the others have ended
            fillings = [place.filling for place in owed if place.filling is not None]
        done, total = progress_of(fillings)
        if rebuild.boards or (places is None and rebuild.waits):
            total = None
        return Progress(
            ended=not rebuild.boards and not rebuild.waits,
            windows=rebuild.windows,
            members=rebuild.members,
            done=rebuild.members + done,
            total=None if total is None else rebuild.members + total,
        )


def progress_of(fillings: Iterable[Filling]) -> tuple[int, int | None]:
    """Members that are in place under new keys, and how many it will be; None: not known yet.

    Windows that are computed now and then are left out.
    """
    done, total, known = 0, 0, True
    for filling in fillings:
        if filling.follows:
            done += filling.members
            total += max(filling.members, filling.total or 0)  # there may be more by now
            known = known and filling.total is not None
    return done, total if known else None


def _is_owed(place: Place) -> bool:
    """Whether a window is being filled, or will be."""
    return place.filling is not None or (place.derivation is not None and place.dirty)
