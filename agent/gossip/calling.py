"""Calling another agent: one exchange, and what its answers say about this agent's own identity."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from agent import exchange
from agent.errors import DamagedCell, ExchangeRefused
from agent.exchange import ChunkLimits, PeerView, Reply, Request
from agent.gossip import wire
from agent.gossip.client import Client, unpack_reply
from agent.gossip.frame import Call, Kind, pack_call
from agent.gossip.link import Link
from agent.gossip.peers import Peers
from agent.operation import Burn, Merge

OWN_FAULTS = ("stale_boot", "fork")


class Calling:
    """Makes exchanges with other agents.

    Args:
        peers: what is known of them.
        client: the sockets.
        limits: of a chunk.
    """

    def __init__(self, peers: Peers, client: Client, limits: ChunkLimits) -> None:
        self._peers = peers
        self._client = client
        self._limits = limits

    async def exchange(self, link: Link) -> bool:
        """Exchange with one peer until both are at the other's head, or the budget is used.

        Returns whether there is more to do.

        Raises:
            ExchangeRefused: the peer could not be reached, or one of the two refused.
            Refused: the writer is busy or the agent is stopping.
        """
        loop = asyncio.get_running_loop()
        ends = loop.time() + self._peers.config.gossip.exchange_budget_s
        while True:
            before = self._progress(link)
            request, reply = await self._round(link)
            pulled = reply.chunk is not None and reply.chunk.head
            pushed = request.push is not None and request.push.head
            if pulled and pushed:
                self._compare(link, request, reply)
                return False
            if loop.time() > ends:
                return True
            if self._progress(link) == before:
                return False  # nothing moves (a push that is ignored, say): not before the next

    async def _round(self, link: Link) -> tuple[Request, Reply]:
        """One request and its reply, joined."""
        peers = self._peers
        began_ms = peers.now_ms()
        request, reply = await self._ask(link)
        link.clock_offset_ms = reply.now_ms - (began_ms + peers.now_ms()) // 2
        link.exchanges += 1
        link.name = link.name or reply.sender.agent
        view = peers.heard_reply(link, request, reply)
        await peers.check_reader(link.name, reply.cursor)
        if reply.chunk is not None:
            vv = exchange.vector_of(reply, view)
            await peers.queue.submit(Merge(link.name, reply.chunk, vv))
            link.head = link.head or (reply.chunk.head and vv is not None)
        return request, reply

    def _progress(self, link: Link) -> tuple[int | None, PeerView]:
        """What a round can move: how far I read the peer's log, and what I know of it."""
        reading = self._peers.state.cursors.get(link.log)
        return None if reading is None else reading.lsn, self._peers.view(link.log)

    async def _ask(self, link: Link) -> tuple[Request, Reply]:
        """One request and its reply; once more where the peer's process is a new one."""
        peers = self._peers
        for again in (True, False):
            request, payload = await self._request(link)
            try:
                frame = await self._client.call(link, peers.secrets.current(), payload)
            except ExchangeRefused as error:
                if error.reason == "challenge" and again:
                    continue
                await self._own_fault(error)
                raise
            reply = await unpack_reply(frame)
            self._check_sender(link, reply)
            return request, reply
        raise AssertionError("unreachable: the second round returns or raises")

    def _check_sender(self, link: Link, reply: Reply) -> None:
        """Refuse the reply of an agent that is not the expected one, or of an older process."""
        sender = reply.sender
        if link.name and sender.agent != link.name:
            # Its cursor and its view are another agent's: this round is void, the next is not.
            expected, link.name, link.log = link.name, sender.agent, 0
            raise ExchangeRefused("refused", f"{link.url} is agent {link.name!r}, not {expected!r}")
        fence = self._peers.state.fences.get(sender.inc)
        if fence is not None and sender.boot < fence:
            raise ExchangeRefused(
                "stale_boot", f"{link.url} is a process that another one followed"
            )

    async def _own_fault(self, error: ExchangeRefused) -> None:
        """Draw the consequence of a proven refusal that is about this agent."""
        peers = self._peers
        agent, inc, url = error.about
        if not error.proven or agent != peers.state.agent:
            return
        if error.reason == "removed":
            peers.was_removed(error.detail)
        elif error.reason in OWN_FAULTS and inc == peers.state.inc:
            await peers.queue.submit(Burn(inc, error.detail))
        elif error.reason == "fork":
            peers.met_twin(inc, url)

    async def _request(self, link: Link) -> tuple[Request, bytes]:
        peers = self._peers
        me, view, times = peers.me(), peers.view(link.log), peers.times(peers.now_ms())
        number, ring = peers.next_number(), peers.config.ring.name
        dropping = peers.dropping()

        def build(snapshot: exchange.LogSnapshot, view: PeerView = view) -> tuple[Request, bytes]:
            request = exchange.build_request(snapshot, me, link.log, view, times, self._limits)
            request = replace(request, root=0) if dropping else request
            body = wire.pack_request(request)
            return request, pack_call(Call(Kind.EXCHANGE, ring, number, me, body))

        try:
            return await peers.readers.read(build)
        except DamagedCell as error:  # it is not sent; what the peer has is read all the same
            peers.found_damage(error.key)
            return await peers.readers.read(lambda found: build(found, replace(view, vv=None)))

    def _compare(self, link: Link, request: Request, reply: Reply) -> None:
        """Notice states that claim the same writes and differ all the same."""
        quiet = not (request.push and request.push.rows) and not (reply.chunk and reply.chunk.rows)
        if quiet and exchange.diverged(request, reply):
            link.diverged += 1
        elif quiet or request.digest == reply.digest:
            link.diverged = 0
