"""Peers: what this agent's process knows of the others, shared by all who answer or call them.

All of it is volatile and owned by the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from agent.commit import CommitQueue
from agent.config import Config
from agent.crdt.cell import Key
from agent.errors import Conflict, Forbidden
from agent.exchange import (
    Cursor,
    PeerView,
    Reply,
    Request,
    Sender,
    Times,
    answered,
    beyond,
    heard_reply,
    heard_request,
)
from agent.gossip.link import DOWN_S, Joiner, Link, PeerStatus
from agent.gossip.secrets import Secrets
from agent.membership import RingMember
from agent.operation import Burn
from agent.state import State
from agent.store.readers import Readers

RESEED = (
    "reseed it: an empty data_dir and a name of its own; what only it had counts by"
    " 'tallyring import --quarantine'"
)
FIRST_NUMBER = 1_000_000  # of a call: above those that were made before this agent began
DAMAGED_MAX = 10_000  # cells remembered; a scrub finds the others again
VIEWS_MAX = 512  # processes remembered; each has proven the secret
CLOCK_OFF_MS = 60_000


def middle(offsets: list[int]) -> int:
    """The median; of the two in the middle of an even number the one that is nearer to 0."""
    ordered = sorted(offsets)
    half = len(ordered) // 2
    return min(ordered[half - (len(ordered) % 2 == 0) : half + 1], key=abs)


class Peers:
    """The links, the views, and who this agent is to the others.

    Args:
        config: settings of this agent.
        secrets: the ring's secrets.
        queue: where chunks are submitted and the newest state is found.
        readers: where snapshots are read.
        now_ms: this agent's physical clock.
    """

    def __init__(
        self,
        config: Config,
        secrets: Secrets,
        queue: CommitQueue,
        readers: Readers,
        now_ms: Callable[[], int],
    ) -> None:
        self.config = config
        self.secrets = secrets
        self.queue = queue
        self.readers = readers
        self.now_ms = now_ms
        self.links: dict[str, Link] = {}
        self.refused: dict[str, int] = {}
        self.alarms: dict[str, str] = {}
        self.joining: dict[str, Joiner] = {}
        # Whether cells are being dropped here: then the fingerprint of all says nothing.
        self.dropping: Callable[[], bool] = lambda: False
        self._views: dict[int, PeerView] = {}
        self._number = FIRST_NUMBER
        self._heard = asyncio.Event()
        # Cells that do not hold what was written to them, until they are mended.
        self.damaged: dict[Key, str] = {}
        self.damage_found = asyncio.Event()

    # --- who I am --------------------------------------------------------------------------

    @property
    def state(self) -> State:
        """The newest durable state."""
        return self.queue.state

    def me(self) -> Sender:
        """This process, as it signs its messages."""
        state = self.queue.state
        return Sender(state.agent, state.inc, state.log, state.boot)

    def times(self, now_ms: int) -> Times:
        """Times no later than a snapshot that is taken after this call."""
        state = self.queue.state
        return {**state.times, state.agent: now_ms} if state.complete else state.times

    def next_number(self) -> int:
        """A number for a call, greater than all before."""
        self._number += 1
        return self._number

    def found_damage(self, key: Key) -> None:
        """Note a cell that does not hold what was written to it: it is mended soon."""
        if len(self.damaged) < DAMAGED_MAX:
            self.damaged.setdefault(key, "not looked at yet")
        self.damage_found.set()

    async def check_reader(self, name: str, cursor: Cursor | None) -> None:
        """Mint where a reader has read further in my log than it goes: this file was set back."""
        me = self.me()
        if not beyond(cursor, me, self.state.lsn):
            return
        # What it read may be durable and not published here yet: the file itself decides.
        if beyond(cursor, me, await self.readers.read(lambda snapshot: snapshot.newest_lsn)):
            await self.queue.submit(Burn(me.inc, f"{name} has read its log further than it goes"))

    def was_removed(self, detail: str) -> None:
        """The ring has removed this agent: it takes no more writes."""
        self.alarms["removed"] = detail
        self.queue.closed["removed"] = Forbidden(detail, code="removed", hint=RESEED)

    def met_twin(self, inc: int, url: str) -> None:
        """Another process of this agent's name is alive. The younger incarnation gives way."""
        state = self.queue.state
        where = f" at {url}" if url else ""
        detail = f"another agent is called {state.agent!r}{where}: names are unique in a ring"
        self.alarms["twin"] = (
            f"{detail}; it writes as incarnation {inc:x}, this one as {state.inc:x}"
        )
        if state.inc > inc:
            self.queue.closed["fork"] = Conflict(
                "fork", detail, hint="stop this agent; give it a name and a data_dir of its own"
            )

    # --- what I know of others -------------------------------------------------------------

    def others(self) -> list[RingMember]:
        """All members that count, but me."""
        state = self.queue.state
        return [member for member in state.ring.active() if member.name != state.agent]

    def link_of(self, name: str) -> Link | None:
        """The link to an agent."""
        return next((link for link in self.links.values() if link.name == name), None)

    def view(self, log: int) -> PeerView:
        """What is known of the process that writes a log."""
        return self._views.get(log, PeerView())

    def heard_request(self, request: Request) -> PeerView:
        """Take in what a request tells of its sender."""
        return self._keep(request.sender.log, heard_request(self.view(request.sender.log), request))

    def answered(self, request: Request, reply: Reply) -> None:
        """Note what a reply told the caller."""
        log = request.sender.log
        self._keep(log, answered(self.view(log), reply))

    def heard_reply(self, link: Link, request: Request, reply: Reply) -> PeerView:
        """Take in what a reply tells of its sender."""
        log = reply.sender.log
        link.log = log
        if reply.chunk is not None:
            link.read(reply.chunk, asyncio.get_running_loop().time())
        if reply.chunk is not None and reply.chunk.head:
            link.times, link.behind = reply.chunk.times or {}, reply.behind or {}
            link.told_ms = self.now_ms()
        return self._keep(log, heard_reply(self.view(log), request, reply))

    def _keep(self, log: int, view: PeerView) -> PeerView:
        self._views.pop(log, None)
        self._views[log] = view
        if len(self._views) > VIEWS_MAX:
            del self._views[next(iter(self._views))]
        self._heard.set()
        self._heard = asyncio.Event()
        return view

    # --- what others have of me ------------------------------------------------------------

    def rows_behind(self, name: str) -> int | None:
        """How many entries of my log an agent has not confirmed; None while it is not known."""
        link, state = self.link_of(name), self.queue.state
        acked = self.view(link.log).acked if link is not None and link.log else None
        if acked is None:
            return None
        return state.lsn - (acked.lsn if acked.log == state.log else 0)

    def behind(self) -> dict[str, int]:
        """By agent, how many entries of my log it has not confirmed, where that is known."""
        known = {
            link.name: self.rows_behind(link.name) for link in self.links.values() if link.name
        }
        return {name: rows for name, rows in known.items() if rows is not None}

    def holds(self, name: str, inc: int, seq: int) -> bool:
        """Whether an agent durably has a commit, as far as it has told."""
        link = self.link_of(name)
        vv = self.view(link.log).vv if link is not None and link.log else None
        return vv is not None and vv.get(inc, 0) >= seq

    def holds_all(self, name: str) -> bool:
        """Whether an agent durably has everything that this one holds, as far as it has told."""
        link = self.link_of(name)
        vv = self.view(link.log).vv if link is not None and link.log else None
        mine = self.queue.state.vv
        covered = vv is not None and all(vv.get(inc, 0) >= seq for inc, seq in mine.items())
        return covered and self.rows_behind(name) == 0

    async def replicated(self, inc: int, seq: int, timeout_s: float) -> bool:
        """Wait until an agent of another region durably has a commit; whether one has."""
        region = self.config.agent.region
        try:
            async with asyncio.timeout(timeout_s):
                while not any(
                    self.holds(member.name, inc, seq)
                    for member in self.others()
                    if member.region != region
                ):
                    await self._heard.wait()
        except TimeoutError:
            return False
        return True

    def unread(self) -> list[str]:
        """The members whose logs were not read to the end since this process began."""
        read = {link.name for link in self.links.values() if link.head}
        return [member.name for member in self.others() if member.name not in read]

    def clock_off_ms(self) -> int:
        """How far this agent's clock is off what most clocks say, in ms, where that is too far.

        Its own counts too: of two that differ nobody can tell which one is off, and none is.
        """
        now = asyncio.get_running_loop().time()
        offsets = [
            link.clock_offset_ms
            for link in self.links.values()
            if link.clock_offset_ms is not None
            and link.last_success is not None
            and now - link.last_success < DOWN_S
        ]
        off_ms = -middle([0, *offsets])
        return off_ms if abs(off_ms) > CLOCK_OFF_MS else 0

    # --- showing ---------------------------------------------------------------------------

    def status(self) -> list[PeerStatus]:
        """Every peer as this agent sees it, by name."""
        now = asyncio.get_running_loop().time()
        links = sorted(self.links.values(), key=lambda link: (link.name, link.url))
        return [self._status(link, now) for link in links]

    def joiners(self) -> list[Joiner]:
        """The new agents that fetch a snapshot of this one, by name."""
        ends = asyncio.get_running_loop().time() - DOWN_S
        self.joining = {name: each for name, each in self.joining.items() if each.heard > ends}
        return [self.joining[name] for name in sorted(self.joining)]

    def _status(self, link: Link, now: float) -> PeerStatus:
        reading = self.queue.state.cursors.get(link.log)
        return PeerStatus(
            name=link.name,
            url=link.url,
            state=link.state(now),
            last_success_ms=link.last_success_ms,
            last_error=link.last_error,
            last_error_ms=link.last_error_ms,
            rows_behind=self.rows_behind(link.name),
            cursor=None if reading is None else Cursor(link.log, reading.lsn),
            clock_offset_ms=link.clock_offset_ms,
            rows_left=link.rows_left,
            rows_per_s=link.rows_per_s(now),
            exchanges=link.exchanges,
            failures=link.failures,
            bytes_sent=link.bytes_sent,
            bytes_received=link.bytes_received,
            times=link.times,
            behind=link.behind,
            told_ms=link.told_ms,
            secret=link.secret,
            diverged=link.diverged,
        )
