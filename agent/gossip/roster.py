"""The roster: who is in the ring, for somebody who knows its secret and is no member yet.

    roster = []         reply = [sender, cells, [[name, region, url, status, contact], ...]]

`contact` is how the answering agent stands with that member: self, ok, suspect, down or unmet. An
operator's command asks before it writes a new agent's configuration, and before an agent moves.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from agent.crdt.document import Status
from agent.exchange import Sender
from agent.gossip.client import Client
from agent.gossip.frame import (
    Call,
    Frame,
    Kind,
    array,
    integer,
    pack,
    pack_call,
    pack_sender,
    read_sender,
    refuse,
    text,
    unpack,
)
from agent.gossip.link import Link
from agent.gossip.peers import Peers

CONTACTS = ("self", "ok", "suspect", "down", "unmet")
URL_CHARACTERS_MAX = 1024


@dataclass(frozen=True, slots=True)
class Seat:
    """One member of the ring, as another one sees it. `contact` is one of CONTACTS."""

    name: str
    region: str
    url: str
    status: Status
    contact: str


@dataclass(frozen=True, slots=True)
class Roster:
    """The ring as one member sees it, and how many cells a new agent would have to read."""

    sender: Sender
    cells: int
    seats: tuple[Seat, ...]


def roster_handler(peers: Peers) -> Callable[[Call], Awaitable[bytes]]:
    """What answers a call of Kind.ROSTER."""

    async def answer(_call: Call) -> bytes:
        state = peers.state
        contacts = {status.name: status.state for status in peers.status()}
        seats = [
            [
                member.name,
                member.region,
                member.url,
                int(member.status),
                "self" if member.name == state.agent else contacts.get(member.name, "unmet"),
            ]
            for member in state.ring.members.values()
        ]
        return pack([pack_sender(peers.me()), peers.queue.cells, seats])

    return answer


async def ask_roster(
    client: Client, url: str, secrets: tuple[bytes, ...], ring: str, me: Sender, number: int = 1
) -> Roster:
    """Ask an agent for its roster. Nothing is changed anywhere.

    Raises:
        ExchangeRefused: see Client.call; or what is wrong with the reply.
    """
    call = Call(Kind.ROSTER, ring, number, me, [])
    return unpack_roster(await client.call_again(Link(url), secrets, pack_call(call)))


def unpack_roster(parts: Frame) -> Roster:
    """The reply to a roster call.

    Raises:
        ExchangeRefused: malformed, truncated or too_large; the field is named.
    """
    sender, cells, seats = array(unpack(parts), "roster", 3)
    return Roster(
        read_sender(sender),
        integer(cells, "cells", 0),
        tuple(_seat(seat) for seat in array(seats, "seats")),
    )


def _seat(value: object) -> Seat:
    name, region, url, status, contact = array(value, "seat", 5)
    if status not in tuple(Status):
        refuse("malformed", f"status: {status!r} is unknown")
    if contact not in CONTACTS:
        refuse("malformed", f"contact: {contact!r} is unknown")
    if type(url) is not str or len(url) > URL_CHARACTERS_MAX:
        refuse("malformed", "url: is not a short text")
    return Seat(text(name, "name"), text(region, "region"), url, Status(status), contact)
