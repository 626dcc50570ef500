"""Rebuilds that somebody looks at: how far they are, and how many members they wrote."""

from __future__ import annotations

from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path

import pytest

from agent.boards.windows import WindowSpec
from agent.projection.link import Link
from agent.projection.rebuilds import REBUILDS_MAX, Progress, Rebuilds
from tests.integration.projection_rig import Rig, eventually, rig, valkey

MEMBERS = 5_000
WINDOWS = (WindowSpec("all"), WindowSpec("day"), WindowSpec("week"))


@pytest.fixture
async def agent(tmp_path: Path) -> AsyncIterator[Rig]:
    async with valkey(tmp_path / "redis") as server, rig(tmp_path / "eu", server.url) as made:
        yield made


def look(agent: Rig, id_: str | None) -> Progress:
    assert id_ is not None
    found = agent.projector.wishes.rebuilds.look(id_, agent.projector.places)
    assert found is not None
    return found


async def ended(agent: Rig, id_: str | None) -> Progress:
    """Wait for a rebuild's end; returns what it has done."""

    async def check() -> bool:
        return look(agent, id_).ended

    await eventually(check)
    return look(agent, id_)


async def test_each_rebuild_counts_what_it_wrote_also_where_they_overlap(
    agent: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent.define("points", rule="sum", ties="shared", windows=WINDOWS)
    agent.define("kills", rule="sum")
    agent.add("points", {f"p{number:04}": number for number in range(MEMBERS)})
    agent.add("kills", {"a": 1, "b": 2})
    ids: dict[str, str | None] = {}
    seen: list[Progress] = []
    told: list[tuple[int, int | None]] = []
    write = Link.write

    async def watched(link: Link, *args: object, **options: object) -> None:
        await write(link, *args, **options)  # type: ignore[arg-type]
        if "first" not in ids:
            return
        seen.append(look(agent, ids["first"]))
        status = agent.projector.status()
        told.append((status.refill_done, status.refill_total))
        if "again" not in ids and 0 < seen[-1].windows < len(WINDOWS):
            ids["again"] = agent.projector.rebuild(["points"])
            ids["small"] = agent.projector.rebuild(["kills"])

    async with agent.projecting():
        await agent.projected("points")
        await agent.projected("kills")
        monkeypatch.setattr(Link, "write", watched)
        ids["first"] = agent.projector.rebuild(["points"])
        assert look(agent, ids["first"]) == Progress(False, 0, 0, 0, None)
        whole = Progress(True, len(WINDOWS), MEMBERS * 3, MEMBERS * 3, MEMBERS * 3)
        assert await ended(agent, ids["first"]) == whole
        assert await ended(agent, ids["again"]) == whole
        assert await ended(agent, ids["small"]) == Progress(True, 1, 2, 2, 2)
    totals = [its.total for its in seen if its.total is not None and not its.ended]
    assert set(totals) == {MEMBERS * 3}
    assert len(totals) > 10
    assert all(before.done <= after.done for before, after in pairwise(seen))
    assert MEMBERS * 3 in {total for _, total in told}
    assert None in {total for _, total in told}  # until they were counted


async def test_a_rebuild_waits_for_computed_windows_and_survives_a_lost_redis(agent: Rig) -> None:
    agent.define("points", rule="sum", windows=(WindowSpec("all"), WindowSpec("last:3d")))
    agent.add("points", {"a": 1, "b": 2})
    async with agent.projecting():
        await agent.projected("points", "last:3d")
        done = await ended(agent, agent.projector.rebuild(["points"]))
        assert (done.windows, done.members) == (2, 4)
        id_ = agent.projector.rebuild()
        await agent.redis.flushall()
        assert (await ended(agent, id_)).members >= 2
        await agent.serving({"a": 1, "b": 2})


async def test_of_old_rebuilds_nothing_is_known(agent: Rig) -> None:
    assert agent.projector.rebuild() is None  # it does not fill Redis yet
    rebuilds = Rebuilds()
    first, *others = [rebuilds.add(["points"]) for _ in range(REBUILDS_MAX + 1)]
    assert rebuilds.look(first, None) is None
    assert all(rebuilds.look(id_, None) is not None for id_ in others)
