"""The plan of likes: its outcome holds however the regions' taps and their gossip mix."""

from __future__ import annotations

import random

import pytest

from agent.crdt import flag
from agent.crdt.cell import Value
from cluster.actor_checker import Estimates
from cluster.taps import Tap, plan_taps

REGIONS = ("a", "b", "c")


class Ring:
    """Flags of three regions, and links that may be cut. Taps come in each region's order."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._flags: dict[str, dict[tuple[str, str], Value]] = {name: {} for name in REGIONS}

    def play(self, taps: dict[str, list[Tap]], linked: tuple[str, ...]) -> None:
        left = {name: list(its) for name, its in taps.items()}
        while any(left.values()):
            name = self._chance.choice([name for name, its in left.items() if its])
            member, player, present = left[name].pop(0)
            flags = self._flags[name]
            current = flags.get((member, player))
            new = flag.on(current) if present else flag.off(current)
            if new is not None:
                flags[member, player] = new
            self.gossip(*self._chance.sample(linked, 2))

    def gossip(self, one: str, two: str) -> None:
        for key, value in self._flags[one].items():
            self._flags[two][key] = max(value, self._flags[two].get(key, value))

    def meet(self) -> None:
        for one in REGIONS * 2:
            for two in REGIONS:
                self.gossip(one, two)

    def present(self) -> dict[tuple[str, str], bool]:
        assert self._flags["a"] == self._flags["b"] == self._flags["c"]
        return {key: flag.is_on(value) for key, value in self._flags["a"].items()}


@pytest.mark.parametrize("seed", range(3))
def test_the_outcome_holds_in_every_order(seed: int) -> None:
    taps = plan_taps(REGIONS, "b", seed)
    assert taps.counts.taps > 1_500
    assert min(taps.counts.doubled, taps.counts.unlikes, taps.counts.across) > 100
    ring = Ring(random.Random(seed))
    ring.play(taps.before, REGIONS)
    ring.meet()
    ring.play(taps.during, ("a", "c"))
    ring.meet()
    # Who only took back what nobody gave has left nothing.
    wanted = {key: left for key, left in taps.outcome.items() if left or key in ring.present()}
    assert ring.present() == wanted


def test_an_estimate_is_right_within_four_standard_errors() -> None:
    estimates = Estimates()
    assert estimates.take("a", 10_000, 10_324)
    assert not estimates.take("b", 10_000, 10_326)
    assert estimates.take("c", 3, 4)
    assert not estimates.take("c", 3, 5)
    assert (estimates.greatest, estimates.worst_of) == (10_000, "c")
