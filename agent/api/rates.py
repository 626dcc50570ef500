"""Rates: how many entries of one member this agent takes, where its board limits that.

Each member has a bucket of `per_member` entries, which fills up again within `per_s` seconds. All
that is kept of it is the time at which it is full: the generic cell rate algorithm (ITU-T I.371).
In memory, and of each agent by itself: it bounds what one member's client can do to a board, not
what is true of it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from math import ceil
from typing import TypeAlias

from agent.boards.catalog import Catalog
from agent.boards.definition import Rate
from agent.boards.tally import Group
from agent.errors import EntryError, RateLimited
from agent.limits import BATCH_ERRORS_SHOWN_MAX, MEMBER_BYTES_MAX

MEMBERS_MAX = 100_000
"""How many members are remembered: about 20 MB. The one that was longest ago is forgotten, and has
a full bucket when it comes again."""

Taken: TypeAlias = list[tuple[tuple[str, str], float]]
"""What a request took: the (board, member), and the seconds of its bucket."""


class Rates:
    """The members' buckets. Owned by the event loop. `clock` is in seconds and only goes on."""

    def __init__(self, clock: Callable[[], float], members_max: int = MEMBERS_MAX) -> None:
        self._clock = clock
        self._members_max = members_max
        self._full_at: OrderedDict[tuple[str, str], float] = OrderedDict()

    def __len__(self) -> int:
        """How many members are remembered."""
        return len(self._full_at)

    def take(self, catalog: Catalog, groups: Iterable[Group]) -> Taken:
        """Take the entries of a request from their members' buckets: all of them, or none.

        Raises:
            RateLimited: a bucket holds less; nothing was taken from any. The entries are named.
        """
        limited = []
        for group in groups:
            board = catalog.find(group.board)
            rate = None if board is None or board.definition is None else board.definition.rate
            if rate is not None:
                limited.append((group, rate))
        if not limited:
            return []
        now_s = self._clock()
        taken: Taken = []
        after: dict[tuple[str, str], float] = {}
        for group, rate in limited:
            each_s = rate.per_s / rate.per_member
            for key, count in _counted(group).items():
                full_s = max(self._full_at.get(key, now_s), now_s) + count * each_s
                over_s = full_s - now_s - rate.per_s
                if over_s > each_s / 2:  # less is what adding seconds up loses
                    raise _limited(group, key[1], count, rate, over_s)
                after[key] = full_s
                taken.append((key, count * each_s))
        self._keep(after)
        return taken

    def give_back(self, taken: Taken) -> None:
        """Give back what a request took whose entries were refused for something else."""
        now_s = self._clock()
        for key, seconds in taken:
            full_s = self._full_at.get(key)
            if full_s is None:
                continue
            if full_s - seconds <= now_s:
                del self._full_at[key]
            else:
                self._full_at[key] = full_s - seconds

    def _keep(self, after: dict[tuple[str, str], float]) -> None:
        for key, full_s in after.items():
            self._full_at[key] = full_s
            self._full_at.move_to_end(key)
        while len(self._full_at) > self._members_max:
            self._full_at.popitem(last=False)


def _counted(group: Group) -> dict[tuple[str, str], int]:
    """How many entries of each member; names that are none are refused elsewhere."""
    counts: dict[tuple[str, str], int] = {}
    for entry in group.entries:
        if 0 < len(entry.member) <= MEMBER_BYTES_MAX:
            key = (group.board, entry.member)
            counts[key] = counts.get(key, 0) + 1
    return counts


def _limited(group: Group, member: str, count: int, rate: Rate, over_s: float) -> RateLimited:
    limit = f"{rate.per_member} entries in {rate.per_s} s"
    detail = f"member: {member[:80]!r} is over the board's rate on this agent, {limit}"
    if count > rate.per_member:
        wait_s = rate.per_s
        detail += f"; this request alone has {count}"
    else:
        wait_s = max(1, ceil(over_s))
    error = RateLimited(detail, retry_after_s=wait_s)
    error.hint = "send fewer at once" if count > rate.per_member else "send it again after a while"
    places = zip(group.indexes, group.entries, strict=True)
    indexes = [index for index, entry in places if entry.member == member]
    error.errors = tuple(
        EntryError(index, error.code, detail, error.hint)
        for index in indexes[:BATCH_ERRORS_SHOWN_MAX]
    )
    return error
