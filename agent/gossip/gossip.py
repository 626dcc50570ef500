"""The gossip of one agent: makes exchanges, with whom and when the schedule says.

Every rule of an exchange is in agent/exchange.py. Here are the links, the clock and the turns; all
of it is owned by the event loop, and packing and reading run on the readers' threads.
"""

from __future__ import annotations

import asyncio
from random import Random

import structlog

from agent.committer import Commit
from agent.crdt.document import Status
from agent.errors import DamagedCell, ExchangeRefused, Indefinite, Refused, TallyringError
from agent.exchange import ChunkLimits
from agent.gossip import schedule
from agent.gossip.calling import Calling
from agent.gossip.client import Client
from agent.gossip.link import DOWN_S, Link
from agent.gossip.peers import Peers
from agent.membership import Ring
from agent.operation import Announce, Complete
from agent.state import State

log = structlog.get_logger("tallyring.gossip")


class Gossip:
    """Exchanges state with the ring's other agents until it is cancelled.

    Args:
        peers: what is known of them.
        client: the sockets.
        limits: of a chunk.
        random: for jitter and fan-out only.
    """

    def __init__(self, peers: Peers, client: Client, limits: ChunkLimits, random: Random) -> None:
        self._peers = peers
        self._settings = peers.config.gossip
        self._queue = peers.queue
        self._now_ms = peers.now_ms
        self._random = random
        self._seeds = {url for seed in peers.config.ring.seeds if (url := seed.rstrip("/"))}
        self._seeds_met: set[str] = set()
        # A peer that fails must not take the turns of those that answer.
        self._in_flight = asyncio.Semaphore(self._settings.in_flight_max)
        self._failing_in_flight = asyncio.Semaphore(max(1, self._settings.in_flight_max // 4))
        self._poke_at: asyncio.TimerHandle | None = None
        self._new_links = asyncio.Event()
        self._own_urls = {peers.config.advertise}
        self._ring: Ring | None = None  # as of the newest commit
        self._calling = Calling(peers, client, limits)

    async def run(self) -> None:
        """Exchange with peers for ever."""
        async with asyncio.TaskGroup() as tasks:
            running: dict[str, asyncio.Task[None]] = {}
            while True:
                self._refresh_links()
                for url, link in self._peers.links.items():
                    if url not in running:
                        running[url] = tasks.create_task(self._serve(link))
                for url in [url for url in running if url not in self._peers.links]:
                    running.pop(url).cancel()
                self._make_due()
                await self._look_at_myself()
                pause = schedule.jittered(self._settings.interval_s, self._random)
                await self._wait_for_news(pause)

    async def _look_at_myself(self) -> None:
        """Note when nothing is missing any more, and when the ring has another address for me."""
        state, peers = self._queue.state, self._peers
        try:
            if not state.complete and (peers.others() or not self._seeds) and not peers.unread():
                await self._queue.submit(Complete())
            me = state.ring.members.get(state.agent)
            if me is None or me.url in self._own_urls or me.status != Status.ACTIVE:
                return
            link = peers.links.get(me.url)
            if (
                link is not None
                and (link.failures or link.exchanges)
                and "fork" not in (self._queue.closed)
            ):
                log.warning("the ring had another address for this agent", url=me.url)
                region, url = peers.config.agent.region, peers.config.advertise
                await self._queue.submit(Announce(region, url))
        except (Refused, Indefinite) as error:  # the writer is busy or fails: the next look does it
            log.warning("not now", error=str(error))

    async def _wait_for_news(self, pause_s: float) -> None:
        """Wait for the interval to end, or for a new ring member."""
        self._new_links.clear()
        try:
            async with asyncio.timeout(pause_s):
                await self._new_links.wait()
        except TimeoutError:
            pass

    def _refresh_links(self) -> None:
        """One link for each other member's URL, and for the seeds that may know of more.

        A seed is tried until it was met, also where other members answer: agents that share a seed
        which is down for now find each other, and would stay a ring of their own. Later all seeds
        are tried again while no member answers.
        """
        state = self._queue.state
        wanted = {
            member.url: member.name for member in state.ring.active() if member.name != state.agent
        }
        now = asyncio.get_running_loop().time()
        alone = not any(
            link.last_success is not None and now - link.last_success < DOWN_S
            for link in self._peers.links.values()
            if link.url in wanted
        )
        for url in self._seeds - (set() if alone else self._seeds_met):
            wanted.setdefault(url, "")
        me = state.ring.members.get(state.agent)
        if me is not None:  # whoever answers where the ring looks for me: see _look_at_myself
            wanted.setdefault(me.url, "")
        for url in self._own_urls:
            wanted.pop(url, None)
        self._peers.links = {
            url: self._peers.links.get(url) or Link(url, name, began=now)
            for url, name in wanted.items()
        }
        for url, name in wanted.items():  # a name that was found there itself stands
            self._peers.links[url].name = self._peers.links[url].name or name

    def _make_due(self) -> None:
        """Have the chosen links exchange now, unless they are in backoff."""
        now = asyncio.get_running_loop().time()
        ready = [link for link in self._peers.links.values() if link.not_before <= now]
        ready.sort(key=lambda link: link.last_success or 0.0)
        for link in schedule.chosen(ready, self._settings.fanout_all_max, self._random):
            link.due.set()

    def committed(self, commit: Commit) -> None:
        """Told after each commit: pokes the peers soon, once for all commits until then.

        Merged rows poke only where not all peers are in each round; else they travel at the
        interval, or from the agent that wrote them.
        """
        if commit.state.ring is not self._ring:
            self._ring = commit.state.ring
            self._ring_changed(commit.state)
        partial = len(self._peers.links) > self._settings.fanout_all_max
        if not (commit.own or (partial and commit.rows)) or self._poke_at is not None:
            return
        self._poke_at = asyncio.get_running_loop().call_later(self._settings.poke_s, self._poke)

    def _ring_changed(self, state: State) -> None:
        """Link to new members soon."""
        known = self._peers.links.keys() | self._own_urls
        if any(member.url not in known for member in state.ring.active()):
            self._new_links.set()

    def _poke(self) -> None:
        self._poke_at = None
        self._make_due()

    async def _serve(self, link: Link) -> None:
        """Exchange with one peer whenever it is due: one exchange at a time."""
        loop = asyncio.get_running_loop()
        while True:
            await link.due.wait()
            link.due.clear()
            turns = self._failing_in_flight if link.failures_in_a_row else self._in_flight
            try:
                async with turns:
                    more = await self._calling.exchange(link)
                link.succeeded(loop.time(), self._now_ms())
                if link.url in self._seeds and link.name in self._queue.state.ring.members:
                    self._seeds_met.add(link.url)
                if more:
                    link.due.set()  # after others had their turn
            except ExchangeRefused as error:
                if error.reason == "self" and error.proven:
                    self._own_urls.add(link.url)
                self._failed(link, error)
            except DamagedCell as error:
                self._peers.found_damage(error.key)
                self._failed(link, error)
            except TallyringError as error:
                self._failed(link, error)

    def _failed(self, link: Link, error: TallyringError) -> None:
        before = link.last_error if link.failures_in_a_row else ""
        link.failed(str(error), self._now_ms())
        pause = schedule.backoff_s(
            link.failures_in_a_row, self._settings.backoff_max_s, self._random
        )
        link.not_before = asyncio.get_running_loop().time() + pause
        if link.last_error != before:
            log.warning("exchange failed", peer=link.name or link.url, error=link.last_error)
