"""Likes while a link is cut: who taps what where, and what must be left of it.

A like that is tapped twice is one like. An unlike takes back the likes that its region has seen; a
like that was tapped elsewhere meanwhile stands. So the outcome of most taps at once depends on what
a region has seen when; this plan only has such taps whose outcome does not:

    walk        one region alone taps on and off: the last tap counts
    twice off   both sides of the cut take the same like back: none is left
    both        a like that one side takes back, the other taps again: one is left
    twice on    all regions like what nobody liked before: one is left
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple
from urllib.parse import quote

import aiohttp

from cluster.expected import Entry
from cluster.replay import checked

PLAYERS = 50
MEMBERS = ("9E", "AA", "AS", "B6", "DL", "EV", "F9", "FL", "HA", "MQ", "UA", "US", "VX", "WN")
LIKED_BEFORE = 0.7  # of all pairs of a player and a member
TAPS_AT_ONCE = 100  # of one request
SHORT_FORMS = 20  # taps of a region that go as PUT or DELETE, one by one


class Tap(NamedTuple):
    """A player likes a member, or takes that back."""

    member: str
    player: str
    present: bool


@dataclass(slots=True)
class TapCounts:
    """What was tapped: all taps, those that found it so already, those that took a like back.

    across: likes of which several regions tapped, on both sides of the cut.
    """

    taps: int = 0
    doubled: int = 0
    unlikes: int = 0
    across: int = 0


@dataclass(slots=True)
class Taps:
    """A plan. `before` and `during` a cut: each region's taps, in order.

    outcome: by (member, player), whether a like must be left, for all that were tapped.
    """

    before: dict[str, list[Tap]]
    during: dict[str, list[Tap]]
    outcome: dict[tuple[str, str], bool] = field(default_factory=dict)
    counts: TapCounts = field(default_factory=TapCounts)

    def entries(self, board: str, at_ms: int) -> list[Entry]:
        """The outcome as entries for the expectation, each pair once."""
        return [
            Entry(board, member, 0, at_ms, actor=player, present=present)
            for (member, player), present in self.outcome.items()
        ]


def plan_taps(regions: Sequence[str], victim: str, seed: int) -> Taps:
    """A plan for a ring of at least two regions of which `victim` is cut off."""
    names = list(regions)
    taps = Taps({name: [] for name in names}, {name: [] for name in names})
    _Planner(taps, victim, random.Random(f"taps {seed}")).run()
    return taps


class _Planner:
    def __init__(self, taps: Taps, victim: str, chance: random.Random) -> None:
        self._taps = taps
        self._chance = chance
        self._victim = victim
        self._others = [name for name in taps.during if name != victim]

    def run(self) -> None:
        for number in range(PLAYERS):
            for member in MEMBERS:
                self._pair(member, f"player-{number:02}")

    def _pair(self, member: str, player: str) -> None:
        chance, regions = self._chance, [*self._others, self._victim]
        liked = chance.random() < LIKED_BEFORE
        if liked:
            # A double tap, here or in another region, is no second like.
            times = chance.choice((1, 1, 1, 2))
            for _ in range(times):
                self._tap(self._taps.before, chance.choice(regions), Tap(member, player, True))
            self._taps.counts.doubled += times - 1
        fate = chance.choice(("stays", "walk", "walk", "twice off", "both", "twice on"))
        if fate == "walk":
            self._walk(Tap(member, player, liked), chance.choice(regions))
        elif fate == "twice on" and not liked:
            for name in regions:
                self._tap(self._taps.during, name, Tap(member, player, True))
            self._across(member, player, left=True, doubled=len(regions) - 1)
        elif fate == "twice off" and liked:
            for name in regions:
                self._tap(self._taps.during, name, Tap(member, player, False))
            self._across(member, player, left=False, doubled=len(regions) - 1)
        elif fate == "both" and liked:
            sides = [self._victim, chance.choice(self._others)]
            chance.shuffle(sides)
            self._tap(self._taps.during, sides[0], Tap(member, player, False))
            self._tap(self._taps.during, sides[1], Tap(member, player, True))
            self._across(member, player, left=True, doubled=1)
        elif liked:
            self._taps.outcome[member, player] = True

    def _walk(self, tap: Tap, region: str) -> None:
        """Taps of one region, some of them double."""
        present = tap.present
        for _ in range(self._chance.randint(1, 6)):
            wanted = self._chance.random() < 0.5
            self._taps.counts.doubled += wanted == present
            present = wanted
            self._tap(self._taps.during, region, tap._replace(present=wanted))
        self._taps.outcome[tap.member, tap.player] = present

    def _across(self, member: str, player: str, *, left: bool, doubled: int) -> None:
        self._taps.outcome[member, player] = left
        self._taps.counts.across += 1
        self._taps.counts.doubled += doubled

    def _tap(self, taps: Mapping[str, list[Tap]], region: str, tap: Tap) -> None:
        taps[region].append(tap)
        self._taps.counts.taps += 1
        self._taps.counts.unlikes += not tap.present


async def send_taps(
    session: aiohttp.ClientSession, url: str, board: str, taps: Sequence[Tap]
) -> None:
    """Send a region's taps in their order: the first ones one by one, the others in batches.

    Raises:
        ReplayError: the agent refused one.
        aiohttp.ClientError: the agent can't be reached.
    """
    base = f"{url}/v1/boards/{quote(board, safe='')}"
    for tap in taps[:SHORT_FORMS]:
        method = "PUT" if tap.present else "DELETE"
        path = f"{base}/actors/{quote(tap.member, safe='')}/{quote(tap.player, safe='')}"
        async with session.request(method, path) as response:
            await checked(response)
    for start in range(SHORT_FORMS, len(taps), TAPS_AT_ONCE):
        entries = [
            {"member": tap.member, "actor": tap.player, "present": tap.present}
            for tap in taps[start : start + TAPS_AT_ONCE]
        ]
        async with session.post(f"{base}/entries", json={"entries": entries}) as response:
            await checked(response)
