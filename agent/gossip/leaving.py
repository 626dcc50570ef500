"""Leaving the ring: take no more writes, wait until everybody has everything, then be gone.

    draining -> removing -> left

The status of a member is a cell and only moves on, so a restart goes on where it was: an agent that
finds itself leaving drains. The cell that says "removed" is written only after every other member
has confirmed everything that was here when the last write was taken, and the process ends only
after each of them has that cell as well.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from enum import StrEnum

import structlog

from agent.committer import Commit
from agent.crdt.document import Status
from agent.errors import Conflict, Indefinite, Refused
from agent.exchange import VersionVector
from agent.gossip.peers import Peers
from agent.membership import Ring
from agent.operation import ChangeMember
from agent.state import State

log = structlog.get_logger("tallyring.gossip")

LOOK_S = 0.1
ALARM = "nobody stays"
LINGER_S = 5.0  # how long the process stays to be asked whether it has left


class Phase(StrEnum):
    """How far an agent is with leaving."""

    DRAINING = "draining"
    REMOVING = "removing"
    LEFT = "left"


@dataclass(frozen=True, slots=True)
class Target:
    """What the others must have: commits, and the log up to an lsn."""

    vv: VersionVector
    log: int
    lsn: int


class Leaving:
    """This agent's own way out of the ring.

    Args:
        peers: what is known of the others.
    """

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self._begun = asyncio.Event()
        self._told = asyncio.Event()
        self._ring: Ring | None = None
        self._target: Target | None = None
        self.phase: Phase | None = None
        self._look(peers.state)

    def committed(self, commit: Commit) -> None:
        """Told after each commit: notices when the ring says that this agent leaves, or is gone."""
        if commit.state.ring is not self._ring:
            self._look(commit.state)

    def _look(self, state: State) -> None:
        self._ring = state.ring
        me = state.ring.members.get(state.agent)
        if me is None or self.phase is not None:
            return
        if me.status == Status.LEAVING:
            self._close()
            self.phase = Phase.DRAINING
            self._begun.set()
        elif me.status == Status.REMOVED:
            self._peers.was_removed(f"agent {state.agent!r} was removed from the ring")

    def _close(self) -> None:
        self._peers.queue.closed["leaving"] = Conflict(
            "leaving", "this agent is leaving the ring", hint="write to another agent"
        )

    async def leave(self) -> None:
        """Begin to leave. Writes that were taken before are drained as well.

        Raises:
            Conflict: (`ring_conflict`) there is no other member, so that all would be lost.
            Forbidden: (`removed`) it is gone already.
            Refused: the writer is busy; writes are taken again.
        """
        self.check()
        self._close()
        try:
            await self._peers.queue.submit(ChangeMember(self._peers.state.agent, Status.LEAVING))
        except Refused:
            if self.phase is None:
                self._peers.queue.closed.pop("leaving", None)
            raise

    def check(self) -> None:
        """Check that there is somebody to leave everything to.

        Raises:
            Conflict: (`ring_conflict`)
        """
        if not self._somebody_stays():
            raise Conflict(
                "ring_conflict",
                "this is the ring's only agent that stays: what it counted would be with nobody",
                hint="add another agent first; or just stop this one",
            )

    def _somebody_stays(self) -> bool:
        """Whether another member is there that does not leave itself.

        Of members that begin to leave at the same time each waits for all others to have its cell:
        whoever would be the last one finds that out before it is gone.
        """
        stays = any(member.status == Status.ACTIVE for member in self._peers.others())
        if stays:
            self._peers.alarms.pop(ALARM, None)
        elif self.phase == Phase.DRAINING and ALARM not in self._peers.alarms:
            self._peers.alarms[ALARM] = detail = (
                "every other agent leaves the ring as well: what they counted would be with nobody;"
                " this one waits until another agent was added"
            )
            log.warning("leaving has to wait", error=detail)
        return stays

    def lacking(self) -> dict[str, int | None]:
        """Whom this agent waits for, with how many rows are still to go where that is known."""
        if self.phase == Phase.REMOVING:
            return dict.fromkeys(self._unaware(), 0)
        target = self._target or self._now()
        return {
            member.name: self._rows_to_go(member.name, target)
            for member in self._peers.others()
            if not self._drained(member.name, target)
        }

    def said_left(self) -> None:
        """Somebody was told that this agent has left: its process need not stay for that."""
        if self.phase == Phase.LEFT:
            self._told.set()

    async def run(self) -> None:
        """Wait until the ring says that this agent leaves; return when it has left."""
        await self._begun.wait()
        log.info("leaving the ring: draining", waits_for=sorted(self.lacking()))
        while True:
            if self._target is None or self._target.log != self._peers.state.log:
                self._target = self._now()
            if not self.lacking() and self._somebody_stays() and await self._say_removed():
                break
            await asyncio.sleep(LOOK_S)
        while self._unaware():  # noqa: ASYNC110 -- what others have confirmed has no event
            await asyncio.sleep(LOOK_S)
        self.phase = Phase.LEFT
        log.info("has left the ring")
        try:
            async with asyncio.timeout(LINGER_S):
                await self._told.wait()
        except TimeoutError:
            pass  # nobody asks: the exit code says it too

    async def _say_removed(self) -> bool:
        try:
            receipt = await self._peers.queue.submit(
                ChangeMember(self._peers.state.agent, Status.REMOVED)
            )
        except (Refused, Indefinite) as error:  # said again: a status only moves on
            log.warning("leaving has to wait", error=str(error))
            return False
        state = receipt.state
        self._target = Target({state.inc: state.seq}, state.log, state.lsn)
        self.phase = Phase.REMOVING
        return True

    def _now(self) -> Target:
        state = self._peers.state
        return Target(state.vv, state.log, state.lsn)

    def _drained(self, name: str, target: Target) -> bool:
        """Whether a member durably has the target, as far as it has told."""
        holds = all(self._peers.holds(name, inc, seq) for inc, seq in target.vv.items())
        return holds and self._rows_to_go(name, target) == 0

    def _rows_to_go(self, name: str, target: Target) -> int | None:
        behind = self._peers.rows_behind(name)
        if behind is None:
            return None
        return max(0, behind - (self._peers.state.lsn - target.lsn))

    def _unaware(self) -> list[str]:
        """The members that may not know yet that this agent is gone.

        One that refuses its calls for that reason knows.
        """
        target = self._target
        assert target is not None
        return [
            member.name
            for member in self._peers.others()
            if not self._drained(member.name, target) and not self._refused_by(member.name)
        ]

    def _refused_by(self, name: str) -> bool:
        link = self._peers.link_of(name)
        return link is not None and link.last_error.startswith("removed:")
