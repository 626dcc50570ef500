"""Wishes: what others want written to Redis anew, until the follower comes to it."""

from __future__ import annotations

from collections.abc import Iterable

from agent.projection.follower import Follower
from agent.projection.place import PlaceId


class Wishes:
    """Boards to be filled anew, and members of windows to be written anew."""

    def __init__(self) -> None:
        self.boards: set[str] = set()
        self._members: dict[PlaceId, set[bytes]] = {}

    def add_members(self, place: PlaceId, members: Iterable[bytes]) -> None:
        """Members of one window."""
        self._members.setdefault(place, set()).update(members)

    async def fulfil(self, follower: Follower) -> None:
        """Begin to fill the boards, and write the members.

        Raises:
            Moved, redis.exceptions.RedisError, OSError: as the follower; boards are still wished.
        """
        if self._members:
            members, self._members = self._members, {}
            await follower.mend(members)
        if self.boards:
            boards = sorted(self.boards)
            await follower.repair(boards)
            self.boards.difference_update(boards)
