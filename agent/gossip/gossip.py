"""The gossip of one agent: answers exchanges, and makes them with whom and when the schedule says.

Every rule of an exchange is in agent/exchange.py. Here are the sockets, the clock, and the views of
peers; all of it is owned by the event loop, and packing and reading run on the readers' threads.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from http import HTTPStatus
from random import Random

import structlog

from agent import exchange
from agent.apply import State
from agent.commit import Commit, CommitQueue
from agent.config import Config
from agent.crdt.document import Status
from agent.errors import ExchangeRefused, Refused, TallyringError
from agent.exchange import Boot, ChunkLimits, Cursor, PeerView, Reply, Request, Sender, Times
from agent.gossip import proof, schedule, wire
from agent.gossip.client import CONTENT_TYPE, Client
from agent.gossip.link import DOWN_S, Link, PeerStatus
from agent.membership import Ring
from agent.operation import Merge
from agent.store.readers import Readers

log = structlog.get_logger("tallyring.gossip")

STATUS_OF = {
    "truncated": HTTPStatus.BAD_REQUEST,
    "malformed": HTTPStatus.BAD_REQUEST,
    "wire_version": HTTPStatus.BAD_REQUEST,
    "too_large": HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    "unauthorized": HTTPStatus.UNAUTHORIZED,
    "replay": HTTPStatus.UNAUTHORIZED,
    "other_ring": HTTPStatus.FORBIDDEN,
    "removed": HTTPStatus.FORBIDDEN,
    "self": HTTPStatus.CONFLICT,
    "stale_boot": HTTPStatus.CONFLICT,
    "fork": HTTPStatus.CONFLICT,
}


class Gossip:
    """Exchanges state with the ring's other agents until it is cancelled.

    Args:
        config: settings of this agent.
        secrets: the ring's secrets; the first signs, any is accepted.
        boot: this process.
        queue: where chunks are submitted and the newest state is found.
        readers: where snapshots are read.
        now_ms: this agent's physical clock.
        random: for jitter and fan-out only.
    """

    def __init__(
        self,
        config: Config,
        secrets: tuple[bytes, ...],
        boot: Boot,
        queue: CommitQueue,
        readers: Readers,
        now_ms: Callable[[], int],
        random: Random,
    ) -> None:
        self._config = config
        self._settings = config.gossip
        self._secrets = secrets
        self._boot = boot
        self._queue = queue
        self._readers = readers
        self._now_ms = now_ms
        self._random = random
        self._limits = ChunkLimits(
            rows_max=config.gossip.chunk_rows_max, bytes_max=config.gossip.chunk_bytes_max
        )
        self._callers = proof.Callers()
        self._views: dict[str, PeerView] = {}
        self._links: dict[str, Link] = {}
        self._seeds = {url for seed in config.ring.seeds if (url := seed.rstrip("/"))}
        self._seeds_met: set[str] = set()
        self._number = 0
        self._in_flight = asyncio.Semaphore(config.gossip.in_flight_max)
        self._poke_at: asyncio.TimerHandle | None = None
        self._new_links = asyncio.Event()
        self._advertise = config.advertise
        self._double = ""
        self._ring: Ring | None = None  # as of the newest commit
        self.refused: dict[str, int] = {}

    # --- answering -------------------------------------------------------------------------

    async def answer(self, message: bytes) -> tuple[int, str, bytes]:
        """Answer one exchange: (HTTP status, content type, body). Never raises for bad messages."""
        try:
            frame = wire.unframe(message)
            context = proof.request_context(self._boot.nonce)
            secret = proof.check(self._secrets, context, frame)
            envelope = await asyncio.to_thread(wire.unpack_request, frame)
            self._admit(envelope)
            payload = await self._answer(envelope.request)
            return (
                HTTPStatus.OK,
                CONTENT_TYPE,
                proof.seal(secret, proof.reply_context(frame.proof), payload),
            )
        except ExchangeRefused as error:
            self.refused[error.reason] = self.refused.get(error.reason, 0) + 1
            return self._problem(STATUS_OF[error.reason], error.reason, error.detail)
        except Refused as error:  # the writer is busy or the agent is stopping
            return self._problem(error.status, error.code, error.detail)
        except TallyringError as error:
            return self._problem(HTTPStatus.SERVICE_UNAVAILABLE, "busy", str(error))

    def _problem(self, status: int, code: str, detail: str) -> tuple[int, str, bytes]:
        problem = {
            "type": "about:blank",
            "title": HTTPStatus(status).phrase,
            "status": int(status),
            "code": code,
            "detail": detail,
            "definite": True,
        }
        if status == HTTPStatus.UNAUTHORIZED:
            problem["challenge"] = f"{self._boot.nonce:x}"
        return int(status), "application/problem+json", json.dumps(problem).encode()

    def _admit(self, envelope: wire.Envelope) -> None:
        """Check that a proven request is from this ring, from another agent, and new."""
        sender = envelope.request.sender
        if envelope.ring != self._config.ring.name:
            raise ExchangeRefused(
                "other_ring",
                f"this agent is of ring {self._config.ring.name!r},"
                f" the caller of {envelope.ring!r}",
            )
        if sender.boot == self._boot:
            raise ExchangeRefused("self", "this agent called itself")
        if sender.agent == self._config.name:
            raise ExchangeRefused(
                "fork",
                f"another agent is called {sender.agent!r} as well: names are unique in a ring",
            )
        member = self._queue.state.ring.members.get(sender.agent)
        if member is not None and member.status == Status.REMOVED:
            raise ExchangeRefused(
                "removed",
                f"agent {sender.agent!r} was removed from the ring; start it anew with an empty"
                " data_dir and a name of its own",
            )
        self._callers.admit(sender, envelope.number)

    async def _answer(self, request: Request) -> bytes:
        name = request.sender.agent
        view = exchange.heard_request(self._views.get(name, PeerView()), request)
        self._views[name] = view
        push = exchange.push_to_join(request, self._me())
        if push is not None:
            vv = exchange.vector_of(request, view)
            await self._queue.submit(Merge(name, push, vv))
        me, now_ms = self._me(), self._now_ms()
        times = self._times(now_ms)
        payload = await self._readers.read(
            lambda snapshot: wire.pack_reply(
                exchange.build_reply(snapshot, me, request, view, times, now_ms, self._limits)
            )
        )
        link = self._link_of(name)
        if link is not None:
            link.succeeded(asyncio.get_running_loop().time(), self._now_ms())
        return payload

    def _me(self) -> Sender:
        state = self._queue.state
        return Sender(state.agent, state.inc, state.log, self._boot)

    def _times(self, now_ms: int) -> Times:
        """Times no later than a snapshot that is taken after this call."""
        state = self._queue.state
        return {**state.times, state.agent: now_ms}

    # --- calling ---------------------------------------------------------------------------

    async def run(self) -> None:
        """Exchange with peers for ever."""
        client = Client(self._settings)
        try:
            async with asyncio.TaskGroup() as tasks:
                running: dict[str, asyncio.Task[None]] = {}
                while True:
                    self._refresh_links()
                    for url, link in self._links.items():
                        if url not in running:
                            running[url] = tasks.create_task(self._serve(link, client))
                    for url in [url for url in running if url not in self._links]:
                        running.pop(url).cancel()
                    self._make_due()
                    pause = schedule.jittered(self._settings.interval_s, self._random)
                    await self._wait_for_news(pause)
        finally:
            await client.close()

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
            for link in self._links.values()
            if link.url in wanted
        )
        for url in self._seeds - {self._advertise} - (set() if alone else self._seeds_met):
            wanted.setdefault(url, "")
        self._links = {
            url: self._links.get(url) or Link(url, name, began=now) for url, name in wanted.items()
        }
        for url, name in wanted.items():  # a name that was found there itself stands
            self._links[url].name = self._links[url].name or name

    def _make_due(self) -> None:
        """Have the chosen links exchange now, unless they are in backoff."""
        now = asyncio.get_running_loop().time()
        ready = [link for link in self._links.values() if link.not_before <= now]
        ready.sort(key=lambda link: link.last_success or 0.0)
        for link in schedule.chosen(ready, self._settings.fanout_all_max, self._random):
            link.due.set()

    def _link_of(self, name: str) -> Link | None:
        return next((link for link in self._links.values() if link.name == name), None)

    def committed(self, commit: Commit) -> None:
        """Told after each commit: pokes the peers soon, once for all commits until then.

        Merged rows poke only where not all peers are in each round; else they travel at the
        interval, or from the agent that wrote them.
        """
        if commit.state.ring is not self._ring:
            self._ring = commit.state.ring
            self._ring_changed(commit.state)
        partial = len(self._links) > self._settings.fanout_all_max
        if not (commit.own or (partial and commit.rows)) or self._poke_at is not None:
            return
        self._poke_at = asyncio.get_running_loop().call_later(self._settings.poke_s, self._poke)

    def _ring_changed(self, state: State) -> None:
        """Link to new members soon; say so, once for each, where another one has my name."""
        if any(m.url not in self._links for m in state.ring.active() if m.name != state.agent):
            self._new_links.set()
        me = state.ring.members.get(state.agent)
        url = me.url if me else self._advertise
        if url not in (self._advertise, self._double):
            log.error("another agent has this one's name; names are unique in a ring", name_of=url)
            self._double = url

    def _poke(self) -> None:
        self._poke_at = None
        self._make_due()

    async def _serve(self, link: Link, client: Client) -> None:
        """Exchange with one peer whenever it is due: one exchange at a time."""
        loop = asyncio.get_running_loop()
        while True:
            await link.due.wait()
            link.due.clear()
            try:
                async with self._in_flight:
                    await self._exchange(link, client)
                link.succeeded(loop.time(), self._now_ms())
                if link.url in self._seeds and link.name in self._queue.state.ring.members:
                    self._seeds_met.add(link.url)
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

    async def _exchange(self, link: Link, client: Client) -> None:
        """Exchange with one peer until both are at the other's head, or the budget is used."""
        loop = asyncio.get_running_loop()
        ends = loop.time() + self._settings.exchange_budget_s
        while True:
            before = self._progress(link)
            began_ms = self._now_ms()
            request, reply = await self._round(link, client)
            link.clock_offset_ms = reply.now_ms - (began_ms + self._now_ms()) // 2
            link.exchanges += 1
            link.name = link.name or reply.sender.agent
            view = exchange.heard_reply(self._views.get(link.name, PeerView()), request, reply)
            self._views[link.name] = view
            if reply.chunk is not None:
                vv = exchange.vector_of(reply, view)
                await self._queue.submit(Merge(link.name, reply.chunk, vv))
            pulled = reply.chunk is not None and reply.chunk.head
            pushed = request.push is not None and request.push.head
            if pulled and pushed:
                return
            if loop.time() > ends:
                link.due.set()  # others get their turn first
                return
            if self._progress(link) == before:
                return  # nothing moves (a push that is ignored, say): not before the next round

    def _progress(self, link: Link) -> tuple[Cursor | None, PeerView]:
        """What a round can move: my cursor on the peer, and what I know of it."""
        cursor = self._queue.state.cursors.get(link.name)
        return cursor, self._views.get(link.name, PeerView())

    async def _round(self, link: Link, client: Client) -> tuple[Request, Reply]:
        """One request and its reply; once more where the peer's process is a new one."""
        for again in (True, False):
            request, payload = await self._request(link)
            try:
                reply = await client.call(link, self._secrets[0], payload)
            except ExchangeRefused as error:
                if error.reason == "challenge" and again:
                    continue
                raise
            if link.name and reply.sender.agent != link.name:
                # Its cursor and its view are another agent's: this round is void, the next is not.
                expected, link.name = link.name, reply.sender.agent
                raise ExchangeRefused(
                    "refused", f"{link.url} is agent {link.name!r}, not {expected!r}"
                )
            return request, reply
        raise AssertionError("unreachable: the second round returns or raises")

    async def _request(self, link: Link) -> tuple[Request, bytes]:
        me = self._me()
        view = self._views.get(link.name, PeerView()) if link.name else PeerView()
        times = self._times(self._now_ms())
        self._number += 1
        number, ring = self._number, self._config.ring.name

        def build(snapshot: exchange.LogSnapshot) -> tuple[Request, bytes]:
            request = exchange.build_request(snapshot, me, link.name, view, times, self._limits)
            return request, wire.pack_request(wire.Envelope(ring, number, request))

        return await self._readers.read(build)

    # --- showing ---------------------------------------------------------------------------

    def peers(self) -> list[PeerStatus]:
        """Every peer as this agent sees it, by name."""
        now = asyncio.get_running_loop().time()
        state = self._queue.state
        return [
            _status(link, now, state, self._views.get(link.name, PeerView()))
            for link in sorted(self._links.values(), key=lambda link: (link.name, link.url))
        ]


def _status(link: Link, now: float, state: State, view: PeerView) -> PeerStatus:
    behind = None
    if view.acked is not None:
        behind = state.lsn - (view.acked.lsn if view.acked.log == state.log else 0)
    cursor = state.cursors.get(link.name)
    return PeerStatus(
        name=link.name,
        url=link.url,
        state=link.state(now),
        last_success_ms=link.last_success_ms,
        last_error=link.last_error,
        last_error_ms=link.last_error_ms,
        rows_behind=behind,
        cursor_lsn=None if cursor is None else cursor.lsn,
        clock_offset_ms=link.clock_offset_ms,
        exchanges=link.exchanges,
        failures=link.failures,
        bytes_sent=link.bytes_sent,
        bytes_received=link.bytes_received,
    )
