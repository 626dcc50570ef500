"""Repair: whatever is done to a file by hand is found, named and mended from the other agents."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import structlog

from agent.boards.definition import Definition
from agent.boards.entry import Entry
from agent.boards.tally import Group
from agent.crdt.fingerprint import fingerprint
from agent.crdt.space import RING_SPACE
from agent.errors import ExchangeRefused
from agent.operation import Define, Write
from agent.store.scrub import Findings
from tests.integration.damage import cells, edit, sums
from tests.integration.gossip_rig import Agent, running, until

NAMES = ("eu", "us", "ap")
PATIENCE_S = 60.0  # three agents repair at once, on whatever machine this is


def file_of(folder: Path, name: str) -> Path:
    return folder / name / "tallyring.db"


@asynccontextmanager
async def ring(folder: Path, names: tuple[str, ...] = NAMES) -> AsyncIterator[dict[str, Agent]]:
    """Agents that gossip and repair, until the end of the block."""
    async with AsyncExitStack() as stack:
        agents: dict[str, Agent] = {}
        for name in names:
            seeds = [agent.url for agent in agents.values()]
            agents[name] = await stack.enter_async_context(
                running(folder, name, seeds, repairs=True)
            )
        yield agents


def counted(folder: Path, name: str) -> dict[Any, Any]:
    """The cells of a file without those of the ring itself, which every start changes."""
    found = cells(file_of(folder, name))
    return {key: value for key, value in found.items() if key[0] != RING_SPACE}


async def fill(folder: Path, agents: dict[str, Agent]) -> None:
    """Counters that every agent wrote, a board of best scores that one did; equal everywhere."""
    first, *_ = agents.values()
    await first.do(Define("laps", Definition(rule="best", order="low")))
    for name, agent in agents.items():
        for number in range(40):
            await agent.add(f"m{number}", number + len(name))
        await agent.add(f"only-{name}", 1000)
    entry = Entry("ann", score=61_234, at=1_700_000_000_000, data={"kart": 7})
    await first.do(Write((Group("laps", [entry], range(1)),)))
    await equal(folder, agents)


async def equal(folder: Path, agents: dict[str, Agent]) -> None:
    """Wait until all files hold the same cells, and sums that are right."""

    def same() -> bool:
        held = [cells(file_of(folder, name)) for name in agents]
        kept = [sums(file_of(folder, name)) for name in agents]
        if any(each != held[0] for each in held) or any(each != kept[0] for each in kept):
            return False
        root = 0
        for key, value in held[0].items():
            root ^= fingerprint((*key, *value, 0, 0))
        return kept[0][0] == root

    await until(same, PATIENCE_S)


FLIPPED = "UPDATE cells SET major = major + 3 WHERE member = ?"
DAMAGES: dict[str, tuple[str, Any]] = {
    "a slot of its own, greater": (f"{FLIPPED} AND substr(slot, 1, 1) = x'2b'", b"only-eu"),
    "another one's slot, greater": (f"{FLIPPED} AND substr(slot, 1, 1) = x'2b'", b"only-us"),
    "another one's slot, smaller": (
        "UPDATE cells SET major = major - 900 WHERE member = ? AND substr(slot, 1, 1) = x'2b'",
        b"only-ap",
    ),
    "all slots of a member, one byte": (
        "UPDATE cells SET major = major | 256 WHERE member = ?",
        b"m7",
    ),
    "a best score": ("UPDATE cells SET major = major + 60000 WHERE member = ?", b"ann"),
    "its data": ("UPDATE cells SET body = x'81a46b61727409' WHERE member = ?", b"ann"),
    "a text for a number": ("UPDATE cells SET major = 'x' WHERE member = ?", b"only-us"),
    "a fingerprint": ("UPDATE cells SET print = print + 77777777777 WHERE member = ?", b"m3"),
    "a deleted cell": (
        "DELETE FROM cells WHERE member = ? AND substr(slot, 1, 1) = x'2b'",
        b"only-us",
    ),
    "a deleted cell of its own": ("DELETE FROM cells WHERE member = ?", b"only-eu"),
    "a bucket": ("UPDATE buckets SET print = print + 5 WHERE id = ?", 17),
    "the root": ("UPDATE state SET root = root + 5 WHERE ? = 1", 1),
    "a total": ("UPDATE totals SET score = score + 50 WHERE member = ?", b"m9"),
    "a deleted total": ("DELETE FROM totals WHERE member = ?", b"m9"),
}


@pytest.mark.parametrize("damage", DAMAGES)
async def test_damage_to_a_running_agent_is_mended(damage: str, tmp_path: Path) -> None:
    async with ring(tmp_path) as agents:
        await fill(tmp_path, agents)
        before = counted(tmp_path, "us")
        statement, value = DAMAGES[damage]
        with structlog.testing.capture_logs() as logs:
            assert edit(file_of(tmp_path, "eu"), statement, value) > 0
            agents["eu"].repairer.recount_soon()
            await equal(tmp_path, agents)
            # The root is kept in memory, too: the next commit writes it right, and nobody notices.
            await until(lambda: logs or damage == "the root", PATIENCE_S)
            total = 3 * 9 + sum(map(len, NAMES))
            await until(lambda: _is(agents["eu"], "m9", total), PATIENCE_S)
        assert counted(tmp_path, "us") == before == counted(tmp_path, "eu")
        if isinstance(value, bytes):
            assert any(entry.get("member") == value.decode() for entry in logs), logs
        # A peer's own pass may have brought the cell back: then the mender only finds it whole.
        await until(lambda: not agents["eu"].peers.damaged, PATIENCE_S)
        state = agents["eu"].queue.state
        if "of its own" not in damage or "greater" in damage:
            assert not state.burnt
        for agent in agents.values():
            assert await agent.total("m9") == 3 * 9 + sum(map(len, NAMES))
            assert await agent.total("only-eu") == 1000


async def test_two_recounts_at_once_put_a_sum_right_once(tmp_path: Path) -> None:
    """An operator's audit may come while the agent adds up by itself."""
    async with ring(tmp_path, ("eu",)) as agents:
        await fill(tmp_path, agents)
        repairer = agents["eu"].repairer
        for number in range(5):
            wrong = "UPDATE buckets SET print = print + 5, cells = cells + 1 WHERE id = ?"
            assert edit(file_of(tmp_path, "eu"), wrong, 17 + number) == 1
            found = await asyncio.gather(*(repairer.recount_and_correct() for _ in range(4)))
            assert sum(bool(each) for each in found) == 1
            assert not await repairer.recount()


async def test_damage_to_a_stopped_agent_is_mended(tmp_path: Path) -> None:
    async with ring(tmp_path) as agents:
        await fill(tmp_path, agents)
    before = counted(tmp_path, "us")
    for member in (b"only-eu", b"only-us"):
        assert edit(file_of(tmp_path, "eu"), f"{FLIPPED} AND substr(slot, 1, 1) = x'2b'", member)
    assert edit(file_of(tmp_path, "eu"), "DELETE FROM cells WHERE member = ?", b"only-ap")
    async with ring(tmp_path) as agents:
        await until(lambda: all(counted(tmp_path, name) == before for name in agents))
        assert await agents["eu"].total("only-eu") == 1000


async def test_a_greater_value_never_spreads(tmp_path: Path) -> None:
    """Also where the cell is the newest of the log, and its peers ask for it first."""
    async with ring(tmp_path, ("eu", "us")) as agents:
        await fill(tmp_path, agents)
        eu, us = agents["eu"], agents["us"]
        reached = [1000]

        async def watch() -> None:
            while True:
                reached.append(await us.total("only-eu") or 0)

        async with asyncio.TaskGroup() as tasks:
            watching = tasks.create_task(watch())
            for _ in range(5):
                edit(
                    file_of(tmp_path, "eu"),
                    "UPDATE cells SET major = major + 1000000 WHERE member = x'6f6e6c792d6575'",
                )
                await eu.add("other", 1)
                await equal(tmp_path, agents)
            watching.cancel()
        assert max(reached) == 1000


async def test_an_unreplicated_tail_that_is_lost_is_said_loudly(tmp_path: Path) -> None:
    async with running(tmp_path, "us") as us, running(tmp_path, "eu", [us.url]) as eu:
        await eu.add("m", 60)
        await until(lambda: _is(us, "m", 60))
    async with running(tmp_path, "eu", calls=False) as eu:
        await eu.add("m", 5)
    edit(file_of(tmp_path, "eu"), "UPDATE cells SET major = 1234567, minor = 1 WHERE member = 'm'")
    edit(
        file_of(tmp_path, "eu"),
        "UPDATE cells SET major = 1234567, minor = 1 WHERE member = x'6d'",
    )
    async with running(tmp_path, "us") as us, running(tmp_path, "eu", [us.url]) as eu:
        await until(lambda: any(link.log for link in eu.peers.links.values()))
        inc = eu.queue.state.inc
        (key,) = [key for key in cells(file_of(tmp_path, "eu")) if key[1] == b"m"]
        with structlog.testing.capture_logs() as logs:
            # It waits for us, whose address is another one now, until it knows that.
            await until(lambda: _mends(eu, key))
        assert eu.repairer.counts.lost == 1
        assert any("lost" in entry["event"] for entry in logs)
        assert "lost" in eu.peers.alarms["tail_lost"]
        assert eu.queue.state.inc != inc
        await eu.add("m", 1)
        await until(lambda: _is(us, "m", 61))
        await until(lambda: _is(eu, "m", 61))


async def _mends(agent: Agent, key: tuple[bytes, bytes, bytes]) -> bool:
    verdict = (await agent.repairer.mender.mend([key]))[key]
    assert verdict.lost == (verdict.row is not None)
    return verdict.lost


async def _is(agent: Agent, member: str, total: int) -> bool:
    return await agent.total(member) == total


async def test_one_byte_of_an_agent_alone_is_worked_out(tmp_path: Path) -> None:
    async with running(tmp_path, "eu", repairs=True) as eu:
        await eu.add("m", 7)
        held = cells(file_of(tmp_path, "eu"))
        edit(file_of(tmp_path, "eu"), "UPDATE cells SET major = major | 65536 WHERE member = x'6d'")
        await until(lambda: cells(file_of(tmp_path, "eu")) == held)
        assert await eu.total("m") == 7


async def test_more_than_that_is_reported_and_not_touched(tmp_path: Path) -> None:
    async with running(tmp_path, "eu", repairs=True) as eu:
        await eu.add("m", 7)
        edit(file_of(tmp_path, "eu"), "UPDATE cells SET major = 99999999 WHERE member = x'6d'")
        await until(lambda: "no other agent has it" in eu.peers.alarms.get("damaged", ""))
        assert "counters/m" in eu.peers.alarms["damaged"]
        assert len(eu.peers.damaged) == 1


async def test_a_slot_is_worked_out_from_its_total(tmp_path: Path) -> None:
    async with running(tmp_path, "eu", repairs=True) as eu:
        await eu.add("m", 7)
        await eu.add("m", -3)
        held = cells(file_of(tmp_path, "eu"))
        edit(
            file_of(tmp_path, "eu"),
            "UPDATE cells SET major = 99999999 WHERE member = x'6d' AND substr(slot, 1, 1) = x'2b'",
        )
        await until(lambda: cells(file_of(tmp_path, "eu")) == held)


async def test_what_is_on_its_way_is_no_difference(tmp_path: Path) -> None:
    """Two agents compare all the time while both are written to: nothing is ever found."""
    async with ring(tmp_path, ("eu", "us")) as agents:
        await fill(tmp_path, agents)
        eu, us = agents["eu"], agents["us"]
        found: list[Findings] = []

        pages = {"eu": 0, "us": 0}

        async def compare(agent: Agent, peer: str, until_told: asyncio.Event) -> None:
            while not until_told.is_set():
                walk = agent.repairer.walk(agent.peers.link_of(peer))
                while not walk.done:
                    page = await walk.step()
                    pages[peer] += 1
                    if page:
                        found.append(page)

        told = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(compare(eu, "us", told))
            tasks.create_task(compare(us, "eu", told))
            number = 0
            while number < 150 or min(pages.values()) <= 10:
                await eu.add(f"m{number % 50}", 1)
                await us.add(f"m{number % 50}", 1)
                number += 1
            told.set()
        assert found == []
        assert eu.repairer.counts.repaired == us.repairer.counts.repaired == 0


async def test_a_pass_finds_what_the_peer_lacks(tmp_path: Path) -> None:
    """Both directions of one comparison, and both kinds of damage at the peer."""
    async with running(tmp_path, "eu") as eu, running(tmp_path, "us", [eu.url]) as us:
        await fill(tmp_path, {"eu": eu, "us": us})
        path = file_of(tmp_path, "us")
        edit(path, "DELETE FROM cells WHERE member = x'6d31' AND substr(slot, 1, 1) = x'2b'")
        edit(path, "UPDATE cells SET minor = minor + 1 WHERE member = x'6d32'")
        edit(file_of(tmp_path, "eu"), "DELETE FROM cells WHERE member = x'6d33'")
        pages: list[Findings] = []

        async def settled() -> bool:  # once eu has read the log of us to its end
            pages[:] = await _walk(eu, "us")
            return bool(pages[0].lacking)

        await until(settled)
        (page,) = pages
        assert {pair.here.member for pair in page.lacking_there if pair.here} == {b"m1"}
        assert {key[1] for key in page.damaged_there} == {b"m2"}
        assert {pair.there.member for pair in page.lacking if pair.there} == {b"m3"}
        assert not page.damaged
        assert not page.forked


async def test_hostile_calls_are_refused_and_change_nothing(tmp_path: Path) -> None:
    async with running(tmp_path, "eu") as eu, running(tmp_path, "us", [eu.url]) as us:
        await fill(tmp_path, {"eu": eu, "us": us})
        before = cells(file_of(tmp_path, "us"))
        link = eu.peers.link_of("us")
        assert link is not None
        row = [0, b"m", b"+" + bytes(8), 2**60, 1, b"", 0, 1]
        for body in (
            [],
            [7],
            ["0"],
            [0, b"s", [b"", b""], None, -1, 0, 1, 0],
            [0, b"s", [b"", b""], None, 10**9, 0, 1, 0],
            [0, b"s" * 600, [b"", b""], None, 0, 0, 1, 0],
            [0, b"s", [b""], None, 0, 0, 1, 0],
            [1, [[b"s", b"m", b"M", 1]]],
            [1, [[b"s", b"m", b"M", "1", 1]] * 2],
            [1, [[b"s", b"m", b"M", 1, 1]] * 6_000],
            [2, [b"s"], [1], [row]],
            [2, [], [1], [[0, b"m", b"M", 1, 1, b"", 0, 1]]],
            [2, [b"s"], [1], 5],
        ):
            with pytest.raises(ExchangeRefused, match=r"malformed|too_large"):
                await eu.ranges._call(link, body)
        assert await eu.ranges.offer(link, []) == 0
        assert cells(file_of(tmp_path, "us")) == before


async def _walk(agent: Agent, peer: str) -> list[Findings]:
    walk = agent.repairer.walk(agent.peers.link_of(peer))
    found = []
    while not walk.done:
        if page := await walk.step():
            found.append(page)
    return found
