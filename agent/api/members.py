"""Members: an operator's changes of the ring. Each can be asked for with `dry_run` first."""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import urlsplit

import msgspec
from aiohttp import web

from agent.api.bodies import Decoder
from agent.api.ring import stamps_of_members, unconfirmed
from agent.api.ring_answers import HoldingAnswer, MemberChangeAnswer
from agent.api.route import Call
from agent.api.services import Services
from agent.crdt.document import Status
from agent.errors import Conflict, ExchangeRefused, Forbidden, Malformed, NotFound
from agent.gossip.link import DOWN_S
from agent.gossip.probing import who_answers
from agent.membership import RingMember
from agent.operation import BoardChanged, ChangeMember

URL_CHARACTERS_MAX = 500


class LeaveRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Have this agent leave the ring."""

    dry_run: bool = False


class RemoveRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Remove an agent from the ring; `force` also where it was heard from lately."""

    dry_run: bool = False
    force: bool = False


class UrlChange(msgspec.Struct, forbid_unknown_fields=True):
    """Tell the ring under which URL an agent is reached."""

    url: str
    dry_run: bool = False


_leave: Decoder[LeaveRequest] = Decoder(LeaveRequest)
_remove: Decoder[RemoveRequest] = Decoder(RemoveRequest)
_url_change: Decoder[UrlChange] = Decoder(UrlChange)


async def leave(call: Call) -> web.Response:
    """POST /v1/ring/leave: it begins; GET /v1/ring shows how far it is."""
    services = call.services
    request = LeaveRequest()
    if call.request.can_read_body:
        request = _leave.decode(*await call.body())
    services.leaving.check()
    me = _find(services, services.queue.state.agent)
    if me.status == Status.REMOVED:
        raise Forbidden("this agent was removed from the ring, which is final", code="removed")
    if not request.dry_run:
        await services.leaving.leave()
        me = _find(services, me.name)
    waits = services.leaving.lacking()
    says = [
        "clients' writes are refused here with 409 'leaving', for good",
        *_down(services, waits),
        (
            "once every other member has everything, this agent is removed from the ring and ends;"
            " what it counted stays in every region"
        ),
        (
            "the region's Redis keeps the ranks as they were and is no longer kept up to date,"
            " unless another agent of the region is there"
        ),
    ]
    return call.answer(_answer(me, request.dry_run, True, says, list(waits)))


async def remove(call: Call) -> web.Response:
    """POST /v1/ring/members/{name}/remove."""
    services, name = call.services, call.path("name")
    request = RemoveRequest()
    if call.request.can_read_body:
        request = _remove.decode(*await call.body())
    member = _find(services, name)
    if name == services.queue.state.agent:
        raise Conflict(
            "ring_conflict",
            "an agent does not remove itself",
            hint="'tallyring ring leave' hands over everything first; or ask another agent",
        )
    gone = member.status == Status.REMOVED
    silent_s = _silent_s(services, name)
    if not gone and not request.force and silent_s is not None and silent_s < DOWN_S:
        raise Conflict(
            "ring_conflict",
            f"agent {name!r} was heard from {silent_s:.0f} s ago: what only it has would be lost",
            hint="'tallyring ring leave' at that agent loses nothing; force removes it all the"
            " same",
        )
    holdings = _holdings(services, member)
    waits = [other.name for other in services.peers.others() if other.name != name]
    says = (
        [f"{name} was removed already"] if gone else _removing(services, name, silent_s, holdings)
    )
    done = not gone
    if not request.dry_run:
        done, waits = await _change(services, ChangeMember(name, Status.REMOVED))
        member = _find(services, name)
    answer = _answer(member, request.dry_run, done, says, waits)
    answer.holdings = holdings
    return call.answer(answer)


def _removing(
    services: Services, name: str, silent_s: float | None, holdings: list[HoldingAnswer]
) -> list[str]:
    """What the removal of an agent means, in sentences."""
    return [
        _last_heard(name, silent_s),
        *_missing(holdings),
        (
            "what the others have of it stays in every region for ever; what only it had counts by"
            " 'tallyring import --quarantine' of its file, or not at all"
        ),
        "it is refused when it comes back, and its name is not used again",
        *_down(services, [m.name for m in services.peers.others() if m.name != name]),
    ]


async def readdress(call: Call) -> web.Response:
    """PUT /v1/ring/members/{name}/url."""
    services, name = call.services, call.path("name")
    request = _url_change.decode(*await call.body())
    url = request.url.rstrip("/")
    _check_url(url)
    member = _find(services, name)
    for other in services.queue.state.ring.active():
        if other.url == url and other.name != name:
            raise Conflict("ring_conflict", f"{url} is the URL of agent {other.name!r}")
    if member.status == Status.REMOVED:
        raise Forbidden(f"agent {name!r} was removed from the ring, which is final", code="removed")
    try:
        answers = await who_answers(services.peers, url)
    except ExchangeRefused as error:
        says = [f"nobody of this ring answers at {url} now: {error}"]
    else:
        if answers != name:
            raise Conflict("ring_conflict", f"agent {answers!r} answers at {url}, not {name!r}")
        says = [f"agent {name!r} answers at {url}"]
    if member.url == url:
        says.append("its peers call it there already: nothing changes")
    else:
        says += [
            f"its peers call it there instead of {member.url}",
            "set ring.advertise in its own configuration as well: it announces that at each start",
        ]
    done, waits = member.url != url, [m.name for m in services.peers.others() if m.name != name]
    if not request.dry_run:
        done, waits = await _change(services, ChangeMember(name, url=url))
        member = _find(services, name)
    return call.answer(_answer(member, request.dry_run, done, says, waits))


async def _change(services: Services, operation: ChangeMember) -> tuple[bool, list[str]]:
    """Have a change made; (whether it changed anything, who has still to confirm it)."""
    receipt = await services.queue.submit(operation)
    assert isinstance(receipt.answer, BoardChanged)
    stamps = await services.readers.read(stamps_of_members)
    waits = unconfirmed(services, operation.name, stamps.get(operation.name))
    return receipt.answer.changed, waits


def _find(services: Services, name: str) -> RingMember:
    member = services.queue.state.ring.members.get(name)
    if member is None:
        raise NotFound("unknown_agent", f"the ring has no agent {name[:80]!r}")
    return member


def _check_url(url: str) -> None:
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname or "", parts.port
        good = parts.scheme in ("http", "https") and bool(host.encode("idna"))
    except ValueError:  # brackets that do not close, a port beyond 65535, a name like `eu..example`
        good = False
    if not good or any(map(str.isspace, url)) or len(url) > URL_CHARACTERS_MAX:
        raise Malformed(f"url: {url[:80]!r} is not an http:// or https:// URL")


def _answer(
    member: RingMember, dry_run: bool, done: bool, says: list[str], waits: list[str]
) -> MemberChangeAnswer:
    status = member.status.name.lower()
    return MemberChangeAnswer(member.name, status, member.url, dry_run, done, says, waits)


def _silent_s(services: Services, name: str) -> float | None:
    """How long ago an agent was heard from; None where this process never has."""
    link = services.peers.link_of(name)
    heard_ms = None if link is None else link.last_success_ms
    return None if heard_ms is None else max(0, services.now_ms() - heard_ms) / 1000


def _last_heard(name: str, silent_s: float | None) -> str:
    if silent_s is None:
        return f"{name} was never heard from since this agent started"
    return f"{name} was last heard from {silent_s:.0f} s ago"


def _down(services: Services, names: Iterable[str]) -> list[str]:
    """A sentence for each of these members that can't be reached now."""
    wanted = set(names)
    return [
        f"{peer.name} can't be reached ({peer.state}): it has to come back, or be removed itself,"
        " before everybody has confirmed"
        for peer in services.peers.status()
        if peer.name in wanted and peer.state != "ok"
    ]


def _holdings(services: Services, member: RingMember) -> list[HoldingAnswer]:
    """What this agent and each other active one have of a member's commits, as far as is known."""
    state, peers = services.queue.state, services.peers
    found = []
    for inc in member.incs:
        found.append(HoldingAnswer(f"{inc:x}", state.agent, state.vv.get(inc, 0)))
        for other in peers.others():
            if other.name == member.name:
                continue
            link = peers.link_of(other.name)
            vv = peers.view(link.log).vv if link is not None and link.log else None
            commits = None if vv is None else vv.get(inc, 0)
            found.append(HoldingAnswer(f"{inc:x}", other.name, commits))
    return found


def _missing(holdings: list[HoldingAnswer]) -> list[str]:
    """A sentence for each member that lacks what another one has; it will get that from it."""
    newest: dict[str, int] = {}
    for held in holdings:
        newest[held.incarnation] = max(newest.get(held.incarnation, 0), held.commits or 0)
    return [
        f"{held.member} has {held.commits} of the {newest[held.incarnation]} known commits of"
        f" incarnation {held.incarnation}; it gets the others from who has them"
        for held in holdings
        if held.commits is not None and held.commits < newest[held.incarnation]
    ]
