"""An agent's own housekeeping: real files, real sockets, and clocks that are moved by hand."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from agent.boards.bans import BY_ITSELF
from agent.boards.entry import Entry
from agent.boards.marks import keys_series, place_of
from agent.boards.tally import Group
from agent.crdt.slot import Kind
from agent.errors import Unavailable
from agent.keeping import DROP_CELLS
from agent.operation import Define, Erase, Retire, SetBan, Write
from agent.store.lock import DATABASE
from agent.store.snapshot import SqliteSnapshot
from tests.integration.gossip_rig import Agent, House, running, until
from tests.integration.keeping_rig import (
    DAILY,
    DAY,
    DAY_ID,
    KEYS_ID,
    MINUTE,
    NAMES,
    NOON,
    Clock,
    entry,
    has,
    lacks,
    put_back,
    ring_of,
    same_state,
    spaces,
    writes_alone,
)


def marked(agent: Agent, kind: Kind, series: bytes, window: str) -> set[str]:
    """Whose marks of a series go up to a window, as an agent sees it."""
    marks = agent.queue.state.marks.of(kind, series)
    return {name for name, mark in marks.items() if mark.window >= window}


async def days(agent: Agent) -> bytes:
    """The series of days, as the member of its marks."""
    found = await agent.readers.read(lambda snapshot: snapshot.spaces())
    places = [place_of(space) for space in found]
    return next(p.series for p in places if p is not None and p.window.startswith("day:"))


async def test_a_day_is_collected_once_all_have_closed_and_read_it_and_keep_is_over(
    tmp_path: Path,
) -> None:
    async with ring_of(tmp_path) as ring:
        for name, agent in ring.agents.items():
            await agent.do(entry("m"))
            await agent.do(entry("m", f"key-{name}"))
        await same_state(ring)
        board_days = await days(ring.agents["a"])
        assert await spaces(ring.agents["b"]) == {"all", DAY_ID, KEYS_ID}

        ring.clock.ms = NOON + DAY  # closed and acknowledged, and kept
        await ring.all(lambda agent: marked(agent, Kind.ACK, board_days, DAY_ID) == set(NAMES))
        await ring.all(lambda agent: agent.queue.state.facts == 0)
        await same_state(ring)
        for agent in ring.agents.values():
            assert await spaces(agent) == {"all", DAY_ID}
            assert agent.queue.state.marks.collected(board_days) < DAY_ID
            assert agent.keeper.status().held == {}

        ring.clock.ms = NOON + 3 * DAY
        await ring.all(lambda agent: lacks(agent, DAY_ID))
        await same_state(ring)
        assert await ring.agents["c"].total("m", "daily") == 6
        assert sum(agent.keeper.counts.dropped for agent in ring.agents.values()) > 0
        assert all(agent.queue.state.facts == 0 for agent in ring.agents.values())


async def test_with_a_member_away_everything_stays_and_keys_are_bounded(tmp_path: Path) -> None:
    async with ring_of(tmp_path, facts_max=3) as ring:
        for number, name in enumerate(NAMES):
            await ring.agents[name].do(entry("m", f"key-{number}"))
        await same_state(ring)
        await ring.stop("c")
        ring.clock.ms = NOON + 5 * DAY
        await ring.all(lambda agent: agent.keeper.status().held == {"c": 2})
        keys = keys_series("daily")
        for agent in ring.agents.values():
            assert marked(agent, Kind.CLOSE, keys, KEYS_ID) == {"a", "b"}
            assert not marked(agent, Kind.ACK, keys, KEYS_ID)
            assert agent.queue.state.facts == 3
            assert await has(agent, DAY_ID)
        fresh = Entry("m", add=1, key="key-9", at=ring.clock.ms)
        with pytest.raises(Unavailable, match="'c'") as refused:
            await ring.agents["a"].do(Write((Group("daily", [fresh], range(1)),)))
        assert refused.value.code == "busy"
        assert "'a'" not in refused.value.detail
        assert "'b'" not in refused.value.detail
        await ring.agents["a"].do(entry("m"))  # one without a key goes on

        await ring.start("c")
        await ring.all(lambda agent: agent.queue.state.facts == 0)
        await ring.all(lambda agent: lacks(agent, DAY_ID))
        await ring.agents["a"].do(Write((Group("daily", [fresh], range(1)),)))
        await same_state(ring)
        assert await ring.agents["c"].total("m", "daily") == 5


def stored_in(path: Path, window: str) -> bool:
    """Whether a file has cells of a window."""
    with closing(sqlite3.connect(path)) as db:
        return any(space.endswith(window.encode()) for space in SqliteSnapshot(db).spaces())


async def test_an_old_file_brings_nothing_of_a_collected_window_back(tmp_path: Path) -> None:
    async with ring_of(tmp_path) as ring:
        for name in NAMES:
            await ring.agents[name].do(entry("m", f"key-{name}"))
        await same_state(ring)
        await writes_alone(ring, "c", entry("m", "key-alone"))
        shutil.rmtree(ring.folder / "c")
        c = await ring.start("c")
        await until(lambda: c.queue.state.complete)
        ring.clock.ms = NOON + 3 * DAY
        await ring.all(lambda agent: lacks(agent, DAY_ID))
        await ring.all(lambda agent: agent.queue.state.facts == 0)
        await ring.stop("c")

        put_back(ring, "c")
        dropped = [ring.agents[name].keeper.counts.dropped for name in "ab"]
        assert stored_in(ring.folder / "c" / DATABASE, DAY_ID)
        c = await ring.start("c", put_back=True)
        await until(lambda: c.queue.state.complete)
        await until(lambda: lacks(c, DAY_ID))
        await until(lambda: c.queue.state.facts == 0)
        await same_state(ring)
        # They took nothing of it, so they had nothing to drop; its entry counts where it can.
        assert [ring.agents[name].keeper.counts.dropped for name in "ab"] == dropped
        for agent in ring.agents.values():
            assert await lacks(agent, DAY_ID)
            assert agent.queue.state.facts == 0
            assert await agent.total("m", "daily") == 4


async def test_a_ban_ends_by_itself_and_is_lifted_alike_everywhere(tmp_path: Path) -> None:
    async with ring_of(tmp_path, ("a", "b")) as ring:
        await ring.agents["a"].do(SetBan(b"m", "daily", NOON + MINUTE, "cheats", "me"))
        await ring.all(lambda agent: agent.queue.state.bans.hides(b"m", "daily"))
        ring.clock.ms = NOON + MINUTE - 1
        await ring.agents["a"].keeper.turn()
        assert ring.agents["a"].queue.state.bans.hides(b"m", "daily")
        ring.clock.ms = NOON + MINUTE
        await ring.all(lambda agent: not agent.queue.state.bans.hides(b"m", "daily"))
        await same_state(ring)
        for agent in ring.agents.values():
            (ban,) = agent.queue.state.bans.of(b"m")
            assert (ban.length, ban.by, ban.at_ms) == (2, BY_ITSELF, NOON + MINUTE)


async def test_housekeeping_waits_while_nothing_can_be_stored(tmp_path: Path) -> None:
    async with ring_of(tmp_path, ("a",)) as ring:
        a = ring.agents["a"]
        await a.do(entry("m", "key"))
        a.queue.refusing["disk"] = Unavailable("busy", "the disk is full")
        ring.clock.ms = NOON + 5 * DAY
        await until(lambda: a.keeper.status().trouble == "the disk is full")
        assert a.queue.state.facts == 1
        del a.queue.refusing["disk"]
        await until(lambda: a.queue.state.facts == 0)
        await until(lambda: a.keeper.status().trouble == "")
        await until(lambda: lacks(a, DAY_ID))


async def test_an_agent_that_may_lack_something_sets_no_marks(tmp_path: Path) -> None:
    async with ring_of(tmp_path, ("a", "b")) as ring:
        await ring.agents["a"].do(entry("m", "key"))
        await same_state(ring)
        await writes_alone(ring, "b")
        await ring.stop("a")
        put_back(ring, "b")
        ring.clock.ms = NOON + DAY
        b = await ring.start("b", put_back=True)
        for _ in range(3):
            await b.keeper.turn()
        assert not b.queue.state.complete
        assert not marked(b, Kind.CLOSE, keys_series("daily"), KEYS_ID)
        await ring.start("a")
        await until(lambda: b.queue.state.complete)
        keys = keys_series("daily")
        await ring.all(lambda agent: marked(agent, Kind.ACK, keys, KEYS_ID) == {"a", "b"})


async def test_an_agent_that_ends_while_it_removes_something_goes_on(tmp_path: Path) -> None:
    async with ring_of(tmp_path, ("a",)) as ring:
        a = ring.agents["a"]
        entries = [Entry(f"m{number}", add=1) for number in range(1_000)]
        await a.do(Write((Group("daily", entries, range(1_000)),)))
        ring.clock.ms = NOON + 3 * DAY
        await until(lambda: 0 < a.keeper.counts.dropped < 1_000)
        await a.do(Erase(b"m7", b"k" * 16))
        await ring.stop("a")
        assert stored_in(ring.folder / "a" / DATABASE, DAY_ID)

        a = await ring.start("a")
        await until(lambda: lacks(a, DAY_ID))
        await until(lambda: a.queue.state.erased.all()[0].name is None)
        key = (a.queue.state.catalog.board("daily").space, b"m7")
        found = await a.readers.read(lambda snapshot: snapshot.totals_of([key]))
        assert found == {}
        assert await a.total("m8", "daily") == 1


async def test_a_turn_drops_one_chunk(tmp_path: Path) -> None:
    clock = Clock()
    async with running(tmp_path, "a", house=House(clock=clock)) as a:
        await until(lambda: a.queue.state.complete)
        await a.do(Define("daily", DAILY))
        entries = [Entry(f"m{number}", add=1) for number in range(3 * DROP_CELLS)]
        await a.do(Write((Group("daily", entries, range(len(entries))),)))
        clock.ms = NOON + 3 * DAY
        turns = 0
        while await has(a, DAY_ID):
            before = a.keeper.counts.dropped
            await a.keeper.turn()
            await a.certifier.turn()
            assert a.keeper.counts.dropped <= before + DROP_CELLS
            turns += 1
        assert turns >= 3
        assert a.keeper.counts.dropped == 3 * DROP_CELLS + 2  # its digest and its frozen mark
        assert await a.total("m0", "daily") == 1


async def test_the_keys_of_a_retired_board_go_as_well(tmp_path: Path) -> None:
    async with ring_of(tmp_path, ("a",)) as ring:
        a = ring.agents["a"]
        await a.do(entry("m", "key"))
        await a.do(Retire("daily"))
        ring.clock.ms = NOON + 8 * DAY
        await until(lambda: a.queue.state.facts == 0)
