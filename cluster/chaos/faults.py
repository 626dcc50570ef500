"""The faults: each strikes, stays for a while, ends, and tells whether it really happened.

Whatever happens, a fault that has begun is ended: an agent that was stopped is started, a link that
was cut is healed. An agent that does not come back is a finding, and the run goes on without it.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from agent.config import AgentSection
from cluster.chaos import disks
from cluster.chaos.clients import BOARDS, COUNTERS
from cluster.chaos.ledger import Ledger, Loss
from cluster.chaos.plan import DAY_MS, Fault, Step
from cluster.chaos.ranks import RankServer, RankServerError
from cluster.local_agent import LocalAgent
from cluster.local_ring import LocalRing, RingError

FILE_BYTES = 128 * 1024  # what an agent's files may grow to on a "full" disk
LOG_ROOM_BYTES = 64 * 1024  # its log is written on the same disk, and is not what is tested
EVIDENCE_S = 8.0  # a cut lasts until something was refused, at most this long beyond its time
POLL_S = 0.02
LOOK_S = 0.2
DEFINED = BOARDS.keys() - {COUNTERS}


def available() -> list[Fault]:
    """The faults that this system and this version can make."""
    import resource  # noqa: PLC0415 -- what it offers differs by system

    known = {field.name for field in dataclasses.fields(AgentSection)}
    missing = set()
    if "clock_shift_ms" not in known:
        missing.add(Fault.CLOCK)
    if not hasattr(resource, "prlimit"):
        missing.add(Fault.DISK)
    return [fault for fault in Fault if fault not in missing]


class Injector:
    """Strikes a ring as a plan says. All agents run when `run` returns, as far as they start.

    struck: how often each fault really happened. idle: how often one was made and did not show (a
    cut that refused nothing, a full disk that nobody wrote to). problems: agents that did not come
    back, each with the fault before it.
    """

    def __init__(
        self,
        ring: LocalRing,
        servers: Mapping[str, RankServer],
        ledger: Ledger,
        copies: Path,
    ) -> None:
        self._ring = ring
        self._servers = servers
        self._ledger = ledger
        self._copies = copies
        self._parts: dict[tuple[str, str], asyncio.Lock] = {}
        self._one_disk = asyncio.Lock()  # two disks that go back at once would hide what is lost
        self._cut: set[str] = set()
        self.struck: dict[Fault, int] = {}
        self.idle: dict[Fault, int] = {}
        self.now: list[str] = []
        self.problems: list[str] = []

    async def run(self, plan: list[Step], said: Callable[[str], None]) -> None:
        """Strike each step at its time; returns when the last has ended."""
        began = asyncio.get_running_loop().time()
        async with asyncio.TaskGroup() as group:
            for step in plan:
                await asyncio.sleep(began + step.at_s - asyncio.get_running_loop().time())
                group.create_task(self._strike(step, said))

    async def _strike(self, step: Step, said: Callable[[str], None]) -> None:
        make: Mapping[Fault, Callable[[Step], Awaitable[bool]]] = {
            Fault.CUT: self._cut_off,
            Fault.KILL: self._kill,
            Fault.PAUSE: self._pause,
            Fault.STOP: self._stop,
            Fault.RESTORE: self._restore,
            Fault.ROLLBACK: self._roll_back,
            Fault.WIPE: self._wipe,
            Fault.TOKEN: self._lose_token,
            Fault.CLOCK: self._shift_clock,
            Fault.DISK: self._fill_disk,
            Fault.FLUSH: self._flush,
            Fault.REDIS: self._kill_redis,
            Fault.FAILOVER: self._fail_over,
        }
        async with self._parts.setdefault(step.part, asyncio.Lock()):
            if step.part[1] == "process" and self._ring[step.agent].process is None:
                return  # it did not come back from an earlier fault, which was noted
            said(str(step))
            name = f"{step.fault} {step.agent}"
            self.now.append(name)
            try:
                happened = await make[step.fault](step)
            except (RingError, RankServerError) as error:
                self.problems.append(f"after {step}: {error}")
            else:
                counts = self.struck if happened else self.idle
                counts[step.fault] = counts.get(step.fault, 0) + 1
            finally:
                self.now.remove(name)

    async def _cut_off(self, step: Step) -> bool:
        before = self._ring.refused[0]
        self._cut.add(step.agent)
        self._ring.cut_off(step.agent)
        try:
            await asyncio.sleep(step.seconds)
            await _until(lambda: self._ring.refused[0] > before)
            return self._ring.refused[0] > before
        finally:
            self._cut.remove(step.agent)
            self._ring.heal()
            for name in self._cut:  # others are still cut off
                self._ring.cut_off(name)

    async def _kill(self, step: Step) -> bool:
        self._ring.kill(step.agent)
        await asyncio.sleep(step.seconds)
        await self._ring.start(step.agent)
        return True

    async def _pause(self, step: Step) -> bool:
        process = self._ring[step.agent].process
        self._ring.pause(step.agent)
        try:
            await asyncio.sleep(step.seconds)
            return process is not None and _is_stopped(process.pid)
        finally:
            self._ring.resume(step.agent)

    async def _stop(self, step: Step) -> bool:
        code = await self._ring.stop(step.agent)
        if code != 0:
            self.problems.append(f"after {step}: SIGTERM ended it with exit code {code}")
        await asyncio.sleep(step.seconds)
        await self._ring.start(step.agent)
        return True

    async def _end(self, step: Step) -> None:
        """Half of the agents that are to lose something end cleanly, the others by SIGKILL."""
        if step.number < 0.5:
            await self._ring.stop(step.agent)
        else:
            self._ring.kill(step.agent)

    async def _restore(self, step: Step) -> bool:
        """An operator's copy of a running agent's database is put back, and only that."""
        agent, copy = self._ring[step.agent], self._copies / step.agent
        await asyncio.to_thread(disks.copy_disk, agent, copy)
        await asyncio.sleep(step.seconds)
        return await self._replace(step, copy, disks.put_back)

    async def _roll_back(self, step: Step) -> bool:
        """The whole folder goes back to an earlier clean end, and nothing in it tells."""
        agent, copy = self._ring[step.agent], self._copies / step.agent
        await self._ring.stop(step.agent)
        await asyncio.to_thread(disks.copy_disk, agent, copy)
        await self._ring.start(step.agent)
        await asyncio.sleep(step.seconds)
        return await self._replace(step, copy, disks.roll_back)

    async def _replace(self, step: Step, copy: Path, put: disks.Put) -> bool:
        agent = self._ring[step.agent]
        async with self._one_disk:
            if not await self._others_know(agent):
                return False
            await self._end(step)
            kept = await asyncio.to_thread(disks.copied_cells, copy, BOARDS)
            await self._note_loss(agent, kept)
            await asyncio.to_thread(put, agent, copy)
        await self._ring.start(step.agent)
        return True

    async def _wipe(self, step: Step) -> bool:
        agent = self._ring[step.agent]
        async with self._one_disk:
            if not await self._others_know(agent):
                return False
            await self._end(step)
            await self._note_loss(agent, {})
            await asyncio.to_thread(disks.empty, agent)
        await asyncio.sleep(step.seconds)
        await self._ring.start(step.agent)
        return True

    async def _others_know(self, agent: LocalAgent) -> bool:
        """Wait, for a while, until another disk has the boards: without them nobody can write."""
        others = [other for other in self._ring.agents.values() if other is not agent]
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + EVIDENCE_S
        while loop.time() < deadline_s:
            for other in others:
                if await asyncio.to_thread(disks.knows, other, DEFINED):
                    return True
            await asyncio.sleep(LOOK_S)
        return False

    async def _note_loss(self, agent: LocalAgent, kept: disks.Majors) -> None:
        """Find out what only this disk has, before it is taken away."""
        now_s = asyncio.get_running_loop().time()  # what is sent from now on is on no disk yet
        others = [other for other in self._ring.agents.values() if other is not agent]
        gone = await asyncio.to_thread(disks.cells_of, agent, BOARDS)
        held = [await asyncio.to_thread(disks.cells_of, other, BOARDS) for other in others]
        self._ledger.disk_changed(Loss(agent.name, now_s, disks.only_on(gone, [kept, *held])))
        await self.check_claims(f"before {agent.name}'s disk is changed")

    async def check_claims(self, when: str) -> None:
        """Compare what disks claim with what they have; what does not fit is a problem."""
        agents = list(self._ring.agents.values())
        false = await asyncio.to_thread(disks.false_claims, agents)
        self.problems += [f"{when}, {len(false)} claims are false: {false[0]}"] if false else []

    async def _lose_token(self, step: Step) -> bool:
        await self._end(step)
        await asyncio.sleep(step.seconds)
        gone = await asyncio.to_thread(disks.lose_token, self._ring[step.agent])
        await self._ring.start(step.agent)
        return gone

    async def _shift_clock(self, step: Step) -> bool:
        """Up to a day ahead or behind; the agent is started anew for it, and once more after."""
        shift_ms = round((2 * step.number - 1) * DAY_MS)
        for ms in (shift_ms, 0):
            self._ring.change(step.agent, "agent", "clock_shift_ms", ms)
            await self._ring.stop(step.agent)
            await self._ring.start(step.agent)
            if ms:
                await asyncio.sleep(step.seconds)
        return True

    async def _fill_disk(self, step: Step) -> bool:
        agent = self._ring[step.agent]
        before = self._ledger.not_ok.get(step.agent, 0)
        room = max(FILE_BYTES, agent.log.stat().st_size + LOG_ROOM_BYTES)
        self._ring.limit_files(step.agent, room)
        try:
            await asyncio.sleep(step.seconds)
            return self._ledger.not_ok.get(step.agent, 0) > before
        finally:
            self._ring.limit_files(step.agent, None)
            if agent.process is not None and agent.process.poll() is not None:
                self.problems.append(f"after {step}: it ended\n{agent.end_of_log}")
                agent.process = None

    async def _flush(self, step: Step) -> bool:
        return await self._servers[step.agent].flush() > 0

    async def _kill_redis(self, step: Step) -> bool:
        return await self._servers[step.agent].kill(step.seconds)

    async def _fail_over(self, step: Step) -> bool:
        return await self._servers[step.agent].fail_over(step.seconds)


def _is_stopped(pid: int) -> bool:
    """Whether a process is stopped by a signal; taken as true where /proc does not tell."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True
    return stat.rpartition(")")[2].split()[0] == "T"


async def _until(holds: Callable[[], bool]) -> None:
    """Wait for a condition that nothing announces, at most EVIDENCE_S."""
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + EVIDENCE_S
    while not holds() and loop.time() < deadline_s:  # noqa: ASYNC110 -- counters have no events
        await asyncio.sleep(POLL_S)
