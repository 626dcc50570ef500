"""The ring as this agent sees it, and the door for its peers."""

from __future__ import annotations

from aiohttp import web

from agent.api.answers import ContactAnswer, CursorAnswer, RingAnswer, RingMemberAnswer
from agent.api.bodies import read_body
from agent.api.route import Call
from agent.apply import State
from agent.boards.entry import rfc3339
from agent.gossip.link import PeerStatus
from agent.limits import PEER_MESSAGE_BYTES_MAX
from agent.membership import RingMember


async def exchange(call: Call) -> web.Response:
    """POST /v1/peer/exchange: one exchange with another agent, which proves itself in the body."""
    body = await read_body(call.request, PEER_MESSAGE_BYTES_MAX, call.services.arriving)
    status, media, answer = await call.services.exchange(body)
    return web.Response(body=answer, status=status, content_type=media)


async def show_ring(call: Call) -> web.Response:
    """GET /v1/ring."""
    services = call.services
    state, now_ms = services.queue.state, services.now_ms()
    contacts = {peer.name: peer for peer in services.peers()}
    members = [
        _member(member, state, contacts.get(member.name), now_ms)
        for member in state.ring.members.values()
    ]
    return call.answer(RingAnswer(services.config.ring.name, state.agent, members))


def _member(
    member: RingMember, state: State, contact: PeerStatus | None, now_ms: int
) -> RingMemberAnswer:
    as_of = now_ms if member.name == state.agent else state.times.get(member.name)
    cursor = state.cursors.get(member.name)
    return RingMemberAnswer(
        name=member.name,
        region=member.region,
        url=member.url,
        status=member.status.name.lower(),
        incarnations=[f"{inc:x}" for inc in member.incs],
        as_of=_time(as_of),
        lag_ms=None if as_of is None else max(0, now_ms - as_of),
        cursor=None if cursor is None else CursorAnswer(f"{cursor.log:x}", cursor.lsn),
        contact=None if contact is None else _contact(contact),
    )


def _contact(contact: PeerStatus) -> ContactAnswer:
    return ContactAnswer(
        state=contact.state,
        url=contact.url,
        last_exchange=_time(contact.last_success_ms),
        last_error=contact.last_error,
        last_error_at=_time(contact.last_error_ms),
        rows_behind=contact.rows_behind,
        clock_offset_ms=contact.clock_offset_ms,
        exchanges=contact.exchanges,
        failures=contact.failures,
        bytes_sent=contact.bytes_sent,
        bytes_received=contact.bytes_received,
    )


def _time(ms: int | None) -> str | None:
    return None if ms is None else rfc3339(ms)
