"""The ring as this agent sees it, and the door for its peers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from aiohttp import web

from agent.api.alarms import alarms, certifying_status
from agent.api.bodies import read_body
from agent.api.final_answers import FinalsStatus
from agent.api.ring_answers import (
    ContactAnswer,
    CursorAnswer,
    IdentityAnswer,
    JoinerAnswer,
    LagAnswer,
    LeavingAnswer,
    RingAnswer,
    RingMemberAnswer,
    WaitAnswer,
)
from agent.api.route import Call
from agent.api.services import Services
from agent.boards.entry import rfc3339
from agent.crdt.cell import Row
from agent.crdt.incarnation import minted_ms
from agent.crdt.slot import Kind
from agent.crdt.space import RING_SPACE
from agent.gossip.link import PeerStatus
from agent.gossip.secrets import name_of_secret
from agent.limits import PEER_MESSAGE_BYTES_MAX
from agent.membership import RingMember
from agent.state import NO_BOOT, State
from agent.store.snapshot import SqliteSnapshot

Known = tuple[int | None, int | None, int | None]  # lag_ms, rows, age_ms


async def peer(call: Call) -> web.Response:
    """POST /v1/peer: one call of another agent, which proves itself in the body."""
    body = await read_body(call.request, PEER_MESSAGE_BYTES_MAX, call.services.arriving)
    status, media, answer = await call.services.answer(body)
    return web.Response(body=answer, status=status, content_type=media)


async def show_ring(call: Call) -> web.Response:
    """GET /v1/ring."""
    services = call.services
    stamps = await services.readers.read(stamps_of_members)
    state, now_ms = services.queue.state, services.now_ms()
    contacts = {peer.name: peer for peer in services.peers.status()}
    members = [
        _member(member, services, contacts.get(member.name), now_ms, stamps.get(member.name))
        for member in state.ring.members.values()
    ]
    leaving = _leaving(services)
    answer = RingAnswer(
        ring=services.config.ring.name,
        agent=state.agent,
        identity=_identity(services),
        alarms=list(alarms(services).values()),
        refuses={refused.code: refused.detail for refused in services.queue.closed.values()},
        finals=_finals(services),
        leaving=leaving,
        joining=[
            JoinerAnswer(each.name, each.rows_left, round(each.rows_per_s, 1))
            for each in services.peers.joiners()
        ],
        members=members,
        matrix=list(_matrix(services, contacts, now_ms)),
    )
    if leaving is not None:
        services.leaving.said_left()
    return call.answer(answer)


def stamps_of_members(snapshot: SqliteSnapshot) -> dict[str, tuple[int, int]]:
    """By agent's name, the (incarnation, commit) that wrote its member's cell last."""
    return {
        row.member.decode(errors="backslashreplace"): (row.inc, row.seq)
        for row in snapshot.rows_in(RING_SPACE)
        if _is_member(row)
    }


def unconfirmed(services: Services, name: str, stamp: tuple[int, int] | None) -> list[str]:
    """The active members that have not confirmed the newest news of one of them."""
    if stamp is None:
        return []
    others = [member.name for member in services.peers.others() if member.name != name]
    return [other for other in others if not services.peers.holds(other, *stamp)]


def contact_of(contact: PeerStatus) -> ContactAnswer:
    """This agent's contact with another one, as it is shown."""
    return ContactAnswer(
        state=contact.state,
        url=contact.url,
        last_exchange=_time(contact.last_success_ms),
        last_error=contact.last_error,
        last_error_at=_time(contact.last_error_ms),
        rows_behind=contact.rows_behind,
        rows_left=contact.rows_left,
        rows_per_s=round(contact.rows_per_s, 1),
        clock_offset_ms=contact.clock_offset_ms,
        exchanges=contact.exchanges,
        failures=contact.failures,
        bytes_sent=contact.bytes_sent,
        bytes_received=contact.bytes_received,
        secret=contact.secret,
        diverged=contact.diverged,
    )


def _is_member(row: Row) -> bool:
    return row.slot[0] == Kind.MEMBER


def _member(
    member: RingMember,
    services: Services,
    contact: PeerStatus | None,
    now_ms: int,
    stamp: tuple[int, int] | None,
) -> RingMemberAnswer:
    state = services.queue.state
    own_ms = now_ms if state.complete else None
    as_of = own_ms if member.name == state.agent else state.times.get(member.name)
    cursor = None if contact is None else contact.cursor
    boots = [state.fences.get(inc, NO_BOOT).number for inc in member.incs]
    return RingMemberAnswer(
        name=member.name,
        region=member.region,
        url=member.url,
        status=member.status.name.lower(),
        incarnations=[f"{inc:x}" for inc in member.incs],
        boot=state.boot.number if member.name == state.agent else max(boots, default=0),
        as_of=_time(as_of),
        lag_ms=None if as_of is None else max(0, now_ms - as_of),
        unconfirmed=unconfirmed(services, member.name, stamp),
        cursor=None if cursor is None else CursorAnswer(f"{cursor.log:x}", cursor.lsn),
        contact=None if contact is None else contact_of(contact),
    )


def _identity(services: Services) -> IdentityAnswer:
    state = services.queue.state
    return IdentityAnswer(
        incarnation=f"{state.inc:x}",
        log=f"{state.log:x}",
        boot=state.boot.number,
        since=rfc3339(minted_ms(state.inc)),
        minted=services.counts.why_minted or None,
        burnt=state.burnt,
        complete=state.complete,
        unread=[] if state.complete else services.peers.unread(),
        secrets=[name_of_secret(secret) for secret in services.peers.secrets.current()],
    )


def _finals(services: Services) -> FinalsStatus:
    status = certifying_status(services)
    return FinalsStatus(
        pending=status.pending,
        waiting=dict(sorted(status.waiting.items())),
        fetching=status.fetching,
        disagreeing=status.disagreeing,
        late=status.late,
        conflicts=status.conflicts,
        trouble=status.trouble,
    )


def _leaving(services: Services) -> LeavingAnswer | None:
    leaving = services.leaving
    if leaving.phase is None:
        return None
    waits = [WaitAnswer(name, rows) for name, rows in sorted(leaving.lacking().items())]
    return LeavingAnswer(str(leaving.phase), waits)


# --- the matrix ----------------------------------------------------------------------------


def _matrix(
    services: Services, contacts: Mapping[str, PeerStatus], now_ms: int
) -> Iterator[LagAnswer]:
    """For each region and each other one, how far the first is behind the second.

    The worst of the regions' agents counts.
    """
    state = services.queue.state
    regions: dict[str, list[str]] = {}
    for member in state.ring.active():
        regions.setdefault(member.region, []).append(member.name)
    for region, readers in regions.items():
        for of, writers in regions.items():
            if region == of and len(readers) == 1:
                continue
            known = [
                _known(state, contacts, reader, writer, now_ms)
                for reader in readers
                for writer in writers
                if reader != writer
            ]
            yield LagAnswer(region, of, *(_worst([each[i] for each in known]) for i in range(3)))


def _known(
    state: State, contacts: Mapping[str, PeerStatus], reader: str, writer: str, now_ms: int
) -> Known:
    """How far one agent is behind another one, by what both have told."""
    wrote = contacts.get(writer)
    if reader == state.agent:
        at_ms = state.times.get(writer)
        rows = None if wrote is None else wrote.behind.get(reader)
        return (None if at_ms is None else max(0, now_ms - at_ms), rows, 0)
    read = contacts.get(reader)
    if read is None or read.told_ms is None:
        return (None, None, None)
    at_ms = read.times.get(writer)
    lag_ms = None if at_ms is None else max(0, read.told_ms - at_ms)
    if writer == state.agent:
        rows = read.rows_behind
    else:
        rows = None if wrote is None else wrote.behind.get(reader)
    return (lag_ms, rows, max(0, now_ms - read.told_ms))


def _worst(numbers: list[int | None]) -> int | None:
    known = [number for number in numbers if number is not None]
    return max(known) if len(known) == len(numbers) else None


def _time(ms: int | None) -> str | None:
    return None if ms is None else rfc3339(ms)
