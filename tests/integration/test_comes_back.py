"""Nothing dead comes back with a region that was away: off, cut off, or on a disk of long ago."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import datetime

import pytest
import pytest_asyncio

from tests.integration.fault_rig import eventually
from tests.integration.regions_rig import (
    HOLDS_S,
    NOON,
    REGIONS,
    Regions,
    Shown,
    at,
    path,
    three_regions,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

DAY = "day:2026-11-30"
BRIEF = [{"name": "hour", "grace": "0s", "keep": "1s"}, {"name": "all"}]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def regions() -> AsyncIterator[Regions]:
    async with three_regions() as opened:
        yield opened


class Life:
    """Boards and members of one test: what is alive, how it ends, and what must stay gone.

    The erased name is on all boards, the banned one on sums.
    """

    def __init__(self, regions: Regions, name: str) -> None:
        self.regions = regions
        self.points, self.brief, self.likes, self.runs = (
            f"{board}-{name}" for board in ("points", "brief", "likes", "runs")
        )
        self.banned, self.erased = f"cheat-{name}", f"somebody-{name}-9f31"
        self.start = datetime.fromisoformat(regions.now)
        self.at = regions.now
        self.hour = f"hour:{self.start:%Y-%m-%dT%H}"
        self.traces: list[str] = []

    def later(self, **how_much: float) -> str:
        """A time after the start of the test."""
        return at(seconds=(self.start - NOON).total_seconds() + _seconds(**how_much))

    async def begin(self) -> None:
        """Have everything in every region."""
        regions, points, brief = self.regions, self.points, self.brief
        await regions.define(points, rule="sum")
        await regions.define(brief, rule="sum", windows=BRIEF)
        await regions.define(self.likes, rule="distinct")
        await regions.define(self.runs, rule="best", results="keep", windows=[{"name": "day"}])
        sums = {self.banned: 1, self.erased: 2, "ann": 3}
        for member, add in sums.items():
            for board in (points, brief):
                await regions.write("a", board, member=member, add=add, at=self.at, key="k")
        for actor in ("ann", self.erased, "fan"):
            await regions.write("b", self.likes, member="clip", actor=actor)
        await regions.write("b", self.likes, member=self.erased, actor="fan")
        await regions.send("a", "POST", path("counters", self.erased), {"by": 4})
        for member, key, score in (
            ("ann", "r-7", 700),
            ("ann", "r-9", 900),
            (self.erased, "r-5", 5),
        ):
            await regions.write("a", self.runs, member=member, score=score, at=self.at, key=key)
        await regions.holds(
            {
                points: {"all": sums},
                brief: {"all": sums, self.hour: sums},
                "counters": {"all": {self.erased: 4}},
                self.likes: {"all": {"clip": 3, self.erased: 1}},
                self.runs: {DAY: {"ann": 900, self.erased: 5}},
            }
        )

    async def end(self) -> None:
        """A ban, an unlike, a retraction and an erasure, in the regions that are there."""
        regions = self.regions
        await regions.send("a", "PUT", path("bans", self.banned), {"reason": "bot"})
        await regions.send("b", "DELETE", path("boards", self.likes, "actors", "clip", "fan"))
        taken = path("boards", self.runs, "results", "ann", "r-9")
        assert (await regions.send("a", "DELETE", taken))["changed"]
        assert (await regions.send("b", "DELETE", path("members", self.erased)))["changed"]

    async def go_on(self, name: str) -> None:
        """What a region that knows nothing of it goes on with."""
        for member in (self.banned, self.erased):
            for board in (self.points, self.brief):
                await self.regions.write(name, board, member=member, add=100)
        for member, actor in (("clip", self.erased), (self.erased, "ann")):
            await self.regions.write(name, self.likes, member=member, actor=actor)
        result = {"member": "ann", "score": 900, "at": self.at, "key": "r-9"}
        assert (await self.regions.write(name, self.runs, **result))["duplicate"]

    def shown(self, ann: int = 3) -> Shown:
        """What is shown when all is over."""
        return {
            self.points: {"all": {"ann": ann}},
            self.brief: {"all": {"ann": 3}},
            "counters": {"all": {}},
            self.likes: {"all": {"clip": 2}},
            self.runs: {DAY: {"ann": 700}},
        }

    # --- gone -----------------------------------------------------------------------------

    async def gone(self) -> None:
        """Wait until no region has anything of what was to go, in its file and in its Redis."""
        for name in self.regions.running:
            for holds in (self._confirmed, self._collected, self._no_facts, self._no_traces):
                await until(holds, name, lambda: self.traces)
            await self._refused(name)

    async def _confirmed(self, name: str) -> bool:
        status, receipt = await self.regions.ask(name, "GET", path("members", self.erased))
        return status == 200 and bool(receipt["complete"])

    async def _collected(self, name: str) -> bool:
        asked = f"{path('boards', self.brief, 'entries')}?window={self.hour}"
        status, problem = await self.regions.ask(name, "GET", asked)
        keys = await self.regions.keys_of(name, self.brief)
        if self.hour in keys or self.regions.cells_in(name, self.brief, self.hour):
            return False
        return (status, problem["code"]) == (404, "unknown_window")

    async def _no_facts(self, name: str) -> bool:
        return (await self.regions.facts(name))[name] == 0

    async def _no_traces(self, name: str) -> bool:
        self.traces = await self.regions.traces_of(name, self.erased)
        return not self.traces

    async def _refused(self, name: str) -> None:
        """What is over takes nothing more, and the unlike and the erased actor stay so."""
        regions = self.regions
        erased = await regions.refuses(name, self.points, member=self.erased, add=1)
        assert erased == (410, "member_erased")
        late = await regions.write(name, self.brief, member="ann", add=0, at=self.at)
        assert late["late"] == [self.hour]
        key = {"member": "ann", "add": 3, "at": self.at, "key": "k"}
        assert await regions.refuses(name, self.points, **key) == (410, "key_expired")
        likes = path("boards", self.likes, "actors", "clip")
        actors = (await regions.send(name, "GET", likes))["actors"]
        assert actors[0] == "ann"
        assert [actor[:8] for actor in actors[1:]] == ["~erased:"]

    async def lift(self, score: int) -> None:
        """Lift the ban: the member is back with all that it was given meanwhile."""
        await self.regions.send("b", "DELETE", path("bans", self.banned))
        sums = {**self.shown()[self.points]["all"], self.banned: score}
        await self.regions.holds_after_rebuild({self.points: {"all": sums}})


def _seconds(hours: float = 0, minutes: float = 0) -> float:
    return hours * 3_600 + minutes * 60


async def until(
    holds: Callable[[str], Awaitable[bool]], name: str, seen: Callable[[], object] = lambda: ""
) -> None:
    """Wait for a condition of one region; a failure tells what was seen."""
    try:
        async with asyncio.timeout(HOLDS_S):
            await eventually(lambda: holds(name))
    except TimeoutError:
        raise AssertionError(f"region {name}: {holds.__name__} did not come: {seen()}") from None


@pytest.mark.parametrize("off", [True, False], ids=["off", "cut-off"])
async def test_what_died_while_a_region_was_away(regions: Regions, off: bool) -> None:
    life = Life(regions, "off" if off else "cut")
    await life.begin()
    before = await regions.facts("a", "b")
    async with regions.parted("c"):
        await life.go_on("c")
        if off:
            await regions.kill("c")
        await life.end()
        shown = life.shown()
        shown[life.brief][life.hour] = {"ann": 3}
        await regions.holds(shown, "a", "b")
        await regions.set_clock(life.later(hours=2))

        async def closed(name: str) -> bool:
            return regions.closed_by(name, life.points, life.at) == {"a", "b"}

        for name in ("a", "b"):  # all that is over is closed; of keys that others may still send
            await until(closed, name)  # nothing is forgotten while C is away
        kept = {name: count - 2 for name, count in before.items()}  # two were of the erased name

        seen: dict[str, int] = {}

        async def keeps(name: str) -> bool:
            seen.update(await regions.facts(name))
            return seen[name] == kept[name]

        for name in ("a", "b"):
            await until(keeps, name, lambda: f"{seen}, not {kept}")
        new = {"member": "ann", "add": 1, "at": life.later(hours=2), "key": "k2"}
        await regions.write("a", life.points, **new)
        await regions.holds({life.points: {"all": {"ann": 4}}}, "a", "b")
        assert await regions.facts("a", "b") == {name: count + 1 for name, count in kept.items()}
    if off:
        await regions.start("c")
    await regions.holds(life.shown(ann=4))
    await regions.set_clock(life.later(hours=3, minutes=30))
    await life.gone()
    await regions.holds_after_rebuild(life.shown(ann=4))
    await life.gone()
    await regions.write("a", life.points, member="ann", add=-1)
    await life.lift(101)


async def test_a_disk_of_long_ago_that_is_brought_back(regions: Regions) -> None:
    """C had seen all of it die; then its folder is what it was when all was alive."""
    life = Life(regions, "disk")
    await life.begin()
    regions.put_away("c")
    await life.end()
    await regions.set_clock(life.later(hours=1, minutes=30))
    await life.gone()
    await regions.holds(life.shown())
    await regions.kill("c")
    regions.bring_back("c")
    async with regions.parted("c"):
        await regions.start("c")
        await regions.write("c", life.points, member=life.banned, add=100)
    await regions.holds(life.shown())
    await life.gone()
    await regions.holds_after_rebuild(life.shown())
    await life.lift(101)
    for name in REGIONS:
        assert await regions.metric(name, "tallyring_late_facts_total") == 0


async def test_a_disk_of_long_ago_that_reads_of_its_end_while_redis_is_filled(
    regions: Regions,
) -> None:
    """Its Redis is filled from what it holds at the start, and names are known as hashes only."""
    life = Life(regions, "fill")
    await life.begin()
    regions.put_away("c")
    await life.end()
    await regions.set_clock(life.later(hours=1, minutes=30))
    await life.gone()
    await regions.kill("c")
    regions.bring_back("c")
    await regions.start("c")
    await regions.holds(life.shown())
    await life.gone()
