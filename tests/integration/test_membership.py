"""Operating the ring on real processes: join, leave, remove, move, and change the secret."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import aiohttp
import pytest
from redis import Redis

from agent.config import read_secrets
from agent.gossip.secrets import name_of_secret
from cluster.local_agent import LocalAgent
from cluster.local_ring import ROOT, LocalRing
from tests.integration.fault_rig import (
    SETTINGS,
    SUM,
    add,
    answer,
    define,
    eventually,
    refused_start,
    scores,
    send,
    serves,
    show,
)
from tests.integration.membership_rig import (
    all_met,
    as_json,
    command,
    member_of,
    metric,
    never_dips,
    refuses,
    ring_of,
    says,
    writing,
)

EXIT_S = 15.0


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=15)) as opened:
        yield opened


async def test_an_agent_joins_while_a_member_is_down(session: aiohttp.ClientSession) -> None:
    async with LocalRing(("a", "b"), settings=SETTINGS) as ring:
        await define(session, ring, SUM)
        await add(session, ring["a"], "m", 1)
        await add(session, ring["b"], "m", 10)
        await show(session, ring, {"m": 11})
        ring.kill("b")
        new = await ring.add("c", start=False)
        new.config.unlink()
        line = [
            *("add", "c", "--seed", ring["a"].url, "--region", "c", "--ring", "local"),
            *("--secret-file", str(ring.folder / "ring.secret"), "--config", str(new.config)),
            *("--listen", f"127.0.0.1:{new.port}", "--data-dir", str(new.data_dir)),
        ]

        async def said_down() -> bool:
            said = await says(*line, "--dry-run")
            return "b can't be reached" in said and "waits for it or its removal" in said

        await eventually(said_down)
        assert not new.config.exists()
        assert "already" in await refuses(*line[:1], "a", *line[2:])
        wrong = ring.folder / "wrong.secret"
        wrong.write_text("not the secret of this ring")
        other = [str(wrong) if each.endswith("ring.secret") else each for each in line]
        assert "not the ring's secret" in await refuses(*other)
        assert f"agent --config {new.config}" in await says(*line)
        assert "is there already" in await refuses(*line)
        await ring.start("c")
        await serves(session, new, "b")
        await add(session, new, "m", 100)

        async def counts() -> bool:
            return await scores(session, new) == {"m": 111}

        await eventually(counts)
        me = (await ring_of(session, new))["identity"]
        assert (me["complete"], me["unread"]) == (False, ["b"])
        shown = await send(session, new, "GET", "/v1/counters/x")
        assert shown["as_of"]["c"] is None
        await ring.start("b")
        await all_met(session, ring)
        await show(session, ring, {"m": 111})


async def test_an_agent_leaves_under_continuous_writes_and_nothing_is_lost(
    session: aiohttp.ClientSession,
) -> None:
    async with LocalRing(("a", "b", "c"), settings=SETTINGS) as ring:
        await define(session, ring, SUM)
        await all_met(session, ring)
        stay = [ring["b"], ring["c"]]
        dry = await says("leave", "--dry-run", at=ring["a"])
        assert "Nothing was changed" in dry
        async with writing(session, ring.agents.values()) as done, never_dips(session, stay):

            async def under_way() -> bool:
                return all(done.acknowledged.get(name, 0) > 30 for name in "abc")

            await eventually(under_way)
            assert "has left the ring" in await says("leave", at=ring["a"])
            process = ring["a"].process
            assert process is not None
            assert await asyncio.to_thread(process.wait, EXIT_S) == 0
            ring["a"].process = None
        if "a" in done.refused:
            assert done.refused["a"]["code"] == "leaving"
        for agent in stay:

            async def exact(name: str = agent.name) -> bool:
                return await scores(session, ring[name]) == {"m": done.total}

            await eventually(exact)
            gone = await member_of(session, agent, "a")
            assert gone is not None
            assert gone["status"] == "removed"
        assert "removed" in await refused_start(ring, "a")


def start_only(agent: LocalAgent) -> subprocess.Popen[bytes]:
    """Start an agent and do not wait until it is ready."""
    line = [sys.executable, "-m", "agent", "--config", str(agent.config)]
    with agent.log.open("ab") as log:
        agent.process = subprocess.Popen(line, cwd=ROOT, stdout=log, stderr=log)
    return agent.process


async def test_leaving_waits_for_who_is_away_and_goes_on_after_a_restart(
    session: aiohttp.ClientSession,
) -> None:
    async with LocalRing(("a", "b"), settings=SETTINGS) as ring:
        await define(session, ring, SUM)
        await all_met(session, ring)
        ring.pause("b")
        await add(session, ring["a"], "m", 5)
        late = await command("leave", "--wait", "0", at=ring["a"])
        assert late.exit_code == 1
        assert "waits for b" in late.stderr
        status, problem = await answer(session, ring["a"], "POST", "/v1/counters/x", {"by": 1})
        assert (status, problem["code"], problem["definite"]) == (409, "leaving", True)
        assert await metric(session, ring["a"], "tallyring_leaving_waits") == 1
        ring.kill("a")
        process = start_only(ring["a"])  # it is never ready: it takes no writes

        async def drains() -> bool:
            try:
                shown = await ring_of(session, ring["a"])
            except aiohttp.ClientError:
                return False
            return bool(shown["leaving"]["phase"] == "draining")

        await eventually(drains)
        ready, reasons = await answer(session, ring["a"], "GET", "/readyz")
        assert ready == 503
        assert any("leaving" in reason for reason in reasons["reasons"])
        ring.resume("b")
        assert await asyncio.to_thread(process.wait, EXIT_S) == 0
        ring["a"].process = None
        assert await scores(session, ring["b"]) == {"m": 5}
        assert "only agent" in await refuses("leave", "--dry-run", at=ring["b"])


async def test_a_removed_agent_stays_counted_and_changes_nothing_when_it_returns(
    session: aiohttp.ClientSession,
) -> None:
    """It was cut off with a write that nobody else has; then it is removed; then the cut heals."""
    async with LocalRing(("a", "b", "c"), links=True, settings=SETTINGS) as ring:
        await define(session, ring, SUM)
        for number, name in enumerate("abc"):
            await add(session, ring[name], "m", 10**number)
        await show(session, ring, {"m": 111})
        await all_met(session, ring)
        assert "heard from" in await refuses("remove", "b", at=ring["a"])
        assert "does not remove itself" in await refuses("remove", "a", at=ring["a"])
        assert "no agent" in await refuses("remove", "nobody", at=ring["a"])
        stay = [ring["a"], ring["c"]]
        async with never_dips(session, stay) as seen:
            ring.cut_off("b")
            await add(session, ring["b"], "m", 5_000)
            await add(session, ring["b"], "lonely", 1)
            dry = await says("remove", "b", "--force", "--dry-run", at=ring["a"])
            assert "stays in every region for ever" in dry
            assert "last heard from" in dry
            assert "Nothing was changed" in dry
            member = await member_of(session, ring["a"], "b")
            assert member is not None
            assert member["status"] == "active"
            assert "every active agent knows" in await says("remove", "b", "--force", at=ring["a"])
            before = ring.refused[1]
            assert before > 0
            ring.heal()

            async def knows() -> bool:
                body = {"by": 1}
                status, problem = await answer(session, ring["b"], "POST", "/v1/counters/x", body)
                assert status in (200, 403)
                return status == 403 and bool(problem["code"] == "removed" and problem["hint"])

            await eventually(knows)
            ready, reasons = await answer(session, ring["b"], "GET", "/readyz")
            assert ready == 503
            assert any("removed" in reason for reason in reasons["reasons"])
            status = await command("status", at=ring["b"])
            assert status.exit_code == 1
            assert "removed" in status.output
            assert await metric(session, ring["b"], 'tallyring_alarm_raised{alarm="removed"}') == 1
            await ring.stop("b")
            assert "reseed it" in await refused_start(ring, "b")
            for agent in stay:
                with Redis.from_url(agent.redis_url) as server:
                    await asyncio.to_thread(server.flushall)
            for agent in stay:

                async def rebuilt(name: str = agent.name) -> bool:
                    return await scores(session, ring[name]) == {"m": 111}

                await eventually(rebuilt)
            await add(session, ring["c"], "m", 1_000)
            for agent in stay:

                async def goes_on(name: str = agent.name) -> bool:
                    return await scores(session, ring[name]) == {"m": 1_111}

                await eventually(goes_on)
        assert set(seen) == {"a", "c"}
        kept = await member_of(session, ring["c"], "b")
        assert kept is not None
        assert kept["status"] == "removed"


async def test_a_removal_waits_for_every_active_member(session: aiohttp.ClientSession) -> None:
    async with LocalRing(("a", "b", "c"), settings=SETTINGS) as ring:
        await define(session, ring, SUM)
        await all_met(session, ring)
        ring.kill("b")
        ring.pause("c")
        late = await command("remove", "b", "--force", "--wait", "0.5", at=ring["a"])
        assert late.exit_code == 1
        assert "c has not confirmed it" in late.stderr
        shown = await member_of(session, ring["a"], "b")
        assert shown is not None
        assert (shown["status"], shown["unconfirmed"]) == ("removed", ["c"])
        ring.resume("c")
        again = await says("remove", "b", at=ring["a"])
        assert again.startswith("b was removed already\nb is removed"), again
        done = as_json(await says("remove", "b", "--json", at=ring["a"]))
        assert (done["status"], done["waits_for"]) == ("removed", [])
        assert "removed" in await refused_start(ring, "b")


async def test_an_agent_is_readdressed(session: aiohttp.ClientSession) -> None:
    async with LocalRing(("a", "b"), links=True, settings=SETTINGS) as ring:
        await define(session, ring, SUM)
        await all_met(session, ring)
        direct = ring["b"].url
        taken = await refuses("readdress", "b", ring["a"].advertise, at=ring["a"])
        assert "is the URL of agent 'a'" in taken
        foreign = await refuses("readdress", "b", ring["a"].url, at=ring["a"])
        assert "agent 'a' answers" in foreign
        assert "not an http" in await refuses("readdress", "b", "nowhere", at=ring["a"])
        dry = await says("readdress", "b", direct, "--dry-run", at=ring["a"])
        assert "agent 'b' answers" in dry
        assert "every active agent knows" in await says("readdress", "b", direct, at=ring["a"])
        assert "nothing changes" in await says("readdress", "b", direct, at=ring["a"])
        for agent in ring.agents.values():

            async def moved(name: str = agent.name) -> bool:
                member = await member_of(session, ring[name], "b")
                return member is not None and member["url"] == direct

            await eventually(moved)
        proxy = ring["b"].proxy
        assert proxy is not None
        proxy.cut(None)  # nobody reaches it where it was
        await add(session, ring["a"], "m", 3)
        await show(session, ring, {"m": 3})
        member = await member_of(session, ring["b"], "b")
        assert member is not None
        assert member["url"] == direct


def machine(ring: LocalRing, name: str) -> Path:
    """The file of secrets of one agent's machine."""
    return ring.folder / name / "ring.secret"


async def test_the_secret_is_rotated_under_writes_with_one_member_down(
    session: aiohttp.ClientSession,
) -> None:
    async with LocalRing((), settings=SETTINGS) as ring:
        old = (ring.folder / "ring.secret").read_bytes()
        for name in "abc":
            await ring.add(name, start=False)
            machine(ring, name).write_bytes(old)
            ring.change(name, "ring", "secret_file", "ring.secret")
            await ring.start(name)
        await define(session, ring, SUM)
        await all_met(session, ring)
        ring.kill("c")

        async def step(name: str, what: str, *more: str) -> str:
            line = ("rotate-secret", "--secret-file", str(machine(ring, name)), "--step", what)
            return await says(*line, *more, at=ring[name])

        async with writing(session, [ring["a"], ring["b"]]) as done:
            assert "Nothing was changed" in await step("a", "add", "--dry-run")
            assert machine(ring, "a").read_bytes() == old
            await step("a", "add")
            new = machine(ring, "a").read_bytes().split()[-1]
            copy = ring.folder / "new.secret"
            copy.write_bytes(new)
            await step("b", "add", "--new-from", str(copy))
            name = name_of_secret(new)
            await step("a", "switch", "--to", name)
            file = machine(ring, "a")
            assert "Nothing was changed" in await step("b", "switch", "--to", name, "--dry-run")
            await step("b", "switch", "--to", name)

            async def dropped(name: str) -> bool:
                """Until the two have proven themselves with the new one to each other."""
                of = ("--secret-file", str(machine(ring, name)))
                result = await command("rotate-secret", *of, "--step", "drop", at=ring[name])
                if result.exit_code == 1:
                    assert "not" in result.stderr
                    assert len(read_secrets(machine(ring, name))) == 2
                    return False
                assert "c can't be asked: give it the new file" in result.output
                return True

            for each in "ab":
                await eventually(partial(dropped, each))
            assert file.read_bytes().split() == machine(ring, "b").read_bytes().split() == [new]
            assert file.stat().st_mode & 0o777 == 0o600
            before = dict(done.acknowledged)

            async def goes_on() -> bool:
                return all(done.acknowledged[who] > before[who] + 20 for who in "ab")

            await eventually(goes_on)
        assert not done.refused
        for name in "ab":

            async def exact(name: str = name) -> bool:
                return await scores(session, ring[name]) == {"m": done.total}

            await eventually(exact)
        await ring.start("c")  # with the old secret: nobody talks to it, and it says why

        async def shut_out() -> bool:
            status = await command("status", at=ring["c"])
            return "unauthorized" in status.output

        await eventually(shut_out)
        machine(ring, "c").write_bytes(new)
        await show(session, ring, {"m": done.total})


async def test_a_secret_is_not_dropped_while_a_member_needs_it(
    session: aiohttp.ClientSession,
) -> None:
    async with LocalRing(("a", "b"), settings=SETTINGS) as ring:
        await all_met(session, ring)
        file = ring.folder / "a" / "ring.secret"
        file.write_bytes((ring.folder / "ring.secret").read_bytes())
        ring.change("a", "ring", "secret_file", "ring.secret")
        await ring.stop("a")
        await ring.start("a")
        line = ("rotate-secret", "--secret-file", str(file), "--step")
        assert "begin with --step add" in await refuses(*line, "switch", at=ring["a"])
        for _ in range(2):  # a step that is given again changes nothing
            await says(*line, "add", at=ring["a"])
        new = read_secrets(file)[-1]
        for _ in range(2):
            await says(*line, "switch", at=ring["a"])
            assert read_secrets(file)[0] == new

        async def read_again() -> bool:
            return len((await ring_of(session, ring["a"]))["identity"]["secrets"]) == 2

        await eventually(read_again)
        await all_met(session, ring)
        assert "b: has not proven itself" in await refuses(*line, "drop", at=ring["a"])
        assert len(read_secrets(file)) == 2
