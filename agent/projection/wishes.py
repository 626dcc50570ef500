"""Wishes: what others want written to Redis anew, until the follower comes to it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from agent.projection.follower import Follower
from agent.projection.place import PlaceId
from agent.projection.rebuilds import Rebuilds


class Wishes:
    """Boards and windows to be filled anew; members and keys of windows to be written anew.

    boards: those that are still to be begun with.
    rebuilds: those that somebody wants to see the end of.

    Args:
        wake: called when there is a wish. All of this is on the event loop.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self.boards: set[str] = set()
        self.rebuilds = Rebuilds()
        self._wake = wake
        self._windows: set[PlaceId] = set()
        self._members: dict[PlaceId, set[bytes]] = {}
        self._keys: set[PlaceId] = set()
        self._written = asyncio.Event()
        self._sweep = False

    def add_boards(self, names: Iterable[str]) -> None:
        """Have all windows of boards filled anew."""
        self.boards.update(names)
        self._wake()

    def add_window(self, place: PlaceId) -> None:
        """Have one window filled anew."""
        self._windows.add(place)
        self._wake()

    def add_members(self, place: PlaceId, members: Iterable[bytes]) -> asyncio.Event:
        """Have members of one window written anew; what is returned is set when they are."""
        self._members.setdefault(place, set()).update(members)
        self._wake()
        return self._written

    def add_keys(self, place: PlaceId) -> asyncio.Event:
        """Have a window's meta written anew, and the end of its keys; as `add_members`."""
        self._keys.add(place)
        self._wake()
        return self._written

    def add_sweep(self) -> None:
        """Have all keys looked through for those that belong nowhere."""
        self._sweep = True
        self._wake()

    async def fulfil(self, follower: Follower) -> None:
        """Begin to fill what is wished, and write the rest.

        Raises:
            Moved, redis.exceptions.RedisError, OSError: as the follower. Boards and windows are
                still wished then, members and keys are not: whoever found them finds them again.
        """
        if self._members or self._keys:
            members, keys, written = self._members, self._keys, self._written
            self._members, self._keys, self._written = {}, set(), asyncio.Event()
            await follower.mend(members, keys)
            written.set()
        if self.boards or self._windows:
            boards, windows = sorted(self.boards), sorted(self._windows)
            await follower.repair(boards, windows)
            self.rebuilds.begin(boards, follower.places)
            self.boards.difference_update(boards)
            self._windows.difference_update(windows)
        if self._sweep:
            self._sweep = False
            follower.filler.sweep_again()
