"""Answering other agents' calls: who may call, and what each kind of call gets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from http import HTTPStatus

from agent import exchange
from agent.crdt.document import Status
from agent.errors import DamagedCell, ExchangeRefused, Refused, TallyringError
from agent.exchange import ChunkLimits
from agent.gossip import calls, frame, proof, wire
from agent.gossip.client import CONTENT_TYPE
from agent.gossip.frame import Call, Kind, Refusal
from agent.gossip.peers import RESEED, Peers
from agent.identity import Confirmation
from agent.operation import Fence, Merge
from agent.state import NO_BOOT

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
Handler = Callable[[Call], Awaitable[bytes]]


class Answering:
    """Answers the calls of other agents.

    Args:
        peers: what is known of them.
        limits: of a chunk.
        handlers: how the kinds of calls are answered that are not of this module.
    """

    def __init__(
        self, peers: Peers, limits: ChunkLimits, handlers: Mapping[Kind, Handler] | None = None
    ) -> None:
        self._peers = peers
        self._limits = limits
        self._callers = proof.Callers()
        self._handlers: dict[Kind, Handler] = {
            Kind.EXCHANGE: self._exchange,
            Kind.CONFIRM: self._confirm,
            **(handlers or {}),
        }

    async def answer(self, message: bytes) -> tuple[int, str, bytes]:
        """Answer one call: (HTTP status, content type, body). Never raises for bad messages.

        What is said to an agent that has proven the secret is proven in turn, refusals too.
        """
        try:
            parts = frame.unframe(message)
            context = proof.request_context(self._peers.state.boot.nonce)
            secret = proof.check(self._peers.secrets.current(), context, parts)
        except ExchangeRefused as error:
            self._count(error.reason)
            return self._problem(STATUS_OF[error.reason], error.reason, error.detail)
        status, flags = HTTPStatus.OK, 0
        try:
            call = await asyncio.to_thread(frame.unpack_call, parts)
            self._admit(call)
            payload = await self._handlers[call.kind](call)
        except ExchangeRefused as error:
            self._count(error.reason)
            status, flags = STATUS_OF[error.reason], frame.FLAG_REFUSED
            about = error.about
            payload = frame.pack_refusal(Refusal(error.reason, error.detail, *about))
        except (Refused, TallyringError) as error:  # the writer is busy or the agent is stopping
            if isinstance(error, DamagedCell):
                self._peers.found_damage(error.key)
            status, flags = HTTPStatus.SERVICE_UNAVAILABLE, frame.FLAG_REFUSED
            payload = frame.pack_refusal(Refusal("busy", str(error)))
        sealed = proof.seal(secret, proof.reply_context(parts.proof), payload, flags)
        return int(status), CONTENT_TYPE, sealed

    def _count(self, reason: str) -> None:
        refused = self._peers.refused
        refused[reason] = refused.get(reason, 0) + 1

    def _problem(self, status: int, code: str, detail: str) -> tuple[int, str, bytes]:
        """A refusal of whoever has not proven the secret."""
        problem = {
            "type": "about:blank",
            "title": HTTPStatus(status).phrase,
            "status": int(status),
            "code": code,
            "detail": detail,
            "definite": True,
        }
        if status == HTTPStatus.UNAUTHORIZED:
            problem["challenge"] = f"{self._peers.state.boot.nonce:x}"
        return int(status), "application/problem+json", json.dumps(problem).encode()

    def _admit(self, call: Call) -> None:
        """Check that a proven call is from this ring, from another agent, and new."""
        sender, state, config = call.sender, self._peers.state, self._peers.config
        if call.ring != config.ring.name:
            raise ExchangeRefused(
                "other_ring",
                f"this agent is of ring {config.ring.name!r}, the caller of {call.ring!r}",
            )
        if sender.boot == state.boot:
            raise ExchangeRefused("self", "this agent called itself")
        if sender.agent == config.name:
            self._peers.met_twin(sender.inc, "")
            raise ExchangeRefused(
                "fork",
                f"an agent is called {sender.agent!r} already, and names are unique in a ring: give"
                " this one a name and a data_dir of its own",
                about=(state.agent, state.inc, config.advertise),
            )
        member = state.ring.members.get(sender.agent)
        removed = member is not None and member.status == Status.REMOVED
        if removed and call.kind != Kind.CONFIRM:
            raise ExchangeRefused(
                "removed",
                f"agent {sender.agent!r} was removed from the ring; {RESEED}",
                about=(sender.agent, sender.inc, ""),
            )
        now_s = asyncio.get_running_loop().time()
        # Who asks for a confirmation is told of newer processes, and then mints: a disk that was
        # rolled back asks with a boot number that was here before.
        fences = {} if call.kind == Kind.CONFIRM else state.fences
        self._callers.admit(sender, call.number, fences, now_s)
        if self._callers.twin(sender):
            self._peers.alarms[f"twin of {sender.agent}"] = (
                f"two processes are called {sender.agent!r} and call in turn: stop one of them"
            )

    async def _exchange(self, call: Call) -> bytes:
        peers = self._peers
        request = await asyncio.to_thread(wire.read_request, call)
        name = request.sender.agent
        view = peers.heard_request(request)
        await peers.check_reader(name, request.cursor)
        push = exchange.push_to_join(request, peers.me())
        if push is not None:
            vv = exchange.vector_of(request, view)
            await peers.queue.submit(Merge(name, push, vv))
        me, now_ms = peers.me(), peers.now_ms()
        times, behind, dropping = peers.times(now_ms), peers.behind(), peers.dropping()

        def build(snapshot: exchange.LogSnapshot) -> tuple[exchange.Reply, bytes]:
            reply = exchange.build_reply(
                snapshot, me, request, view, times, now_ms, self._limits, behind
            )
            reply = replace(reply, root=0) if dropping else reply
            return reply, wire.pack_reply(reply)

        reply, payload = await peers.readers.read(build)
        peers.answered(request, reply)
        link = peers.link_of(name)
        if link is not None:
            link.succeeded(asyncio.get_running_loop().time(), peers.now_ms())
        return payload

    async def _confirm(self, call: Call) -> bytes:
        """Say what is known of the caller, after its older processes were fenced off (ID4)."""
        peers, sender = self._peers, call.sender
        before = peers.state.fences.get(sender.inc, NO_BOOT)
        await peers.queue.submit(Fence(sender.inc, sender.boot))
        state = peers.state
        member = state.ring.members.get(sender.agent)
        other = self._callers.other_lately(sender, asyncio.get_running_loop().time())
        reading = state.cursors.get(sender.log)
        said = Confirmation(
            seen=max(state.seen.get(sender.inc, 0), state.vv.get(sender.inc, 0)),
            boot=before,
            newest_inc=state.ring.newest_inc(sender.agent),
            read_to=0 if reading is None else reading.lsn,
            status=None if member is None else member.status,
            other_url=member.url if other and member is not None else "",
        )
        return calls.pack_confirmation(peers.me(), said)
