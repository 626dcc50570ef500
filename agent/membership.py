"""The ring's members, as cells: one document per agent, one row per incarnation. Pure.

A member's cell is (epoch, status, body) with body {"region", "url"}; an agent raises the epoch when
its own address changes, and at one epoch the status only moves on. A removal is final: its epoch
is beyond every one that the agent, which may not know of it, could still announce. An incarnation's
cell is (boot number, nonce, b"") of its newest process, and is written by itself alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import msgspec

from agent.boards import body
from agent.crdt.cell import Key, Row, Value
from agent.crdt.document import Status
from agent.crdt.slot import Kind, incarnation_of, slot_of_one, slot_of_replica
from agent.crdt.space import RING_SPACE
from agent.errors import Forbidden
from agent.limits import BODY_BYTES_MAX

REMOVAL_EPOCHS = 2**32


class MemberBody(msgspec.Struct, frozen=True):
    """What a ring member says of itself. Fields of newer versions are passed over."""

    region: str
    url: str


@dataclass(frozen=True, slots=True)
class RingMember:
    """One agent of the ring. `url` is how its peers reach it."""

    name: str
    region: str
    url: str
    status: Status
    epoch: int
    incs: tuple[int, ...] = ()


class Ring:
    """All members by name, and the agent behind each incarnation. Immutable.

    members: by agent's name, in the order of the names.
    agents: incarnation -> agent's name.
    """

    __slots__ = ("_cells", "agents", "members")

    def __init__(self, cells: Mapping[tuple[bytes, bytes], Value] | None = None) -> None:
        self._cells = dict(cells or {})
        documents: dict[str, Value] = {}
        incs: dict[str, list[int]] = {}
        for (encoded, slot), value in sorted(self._cells.items()):
            name = encoded.decode(errors="backslashreplace")
            if slot == slot_of_one(Kind.MEMBER):
                documents[name] = value
            elif slot[0] == Kind.INCARNATION and len(slot) == 9:
                incs.setdefault(name, []).append(incarnation_of(slot))
        self.agents = {inc: name for name, its in incs.items() for inc in its}
        self.members = {
            name: member
            for name, value in documents.items()
            if (member := _member(name, value, tuple(incs.get(name, ())))) is not None
        }

    def with_rows(self, rows: Iterable[Row]) -> Ring:
        """The ring after these changed cells; rows of other spaces are passed over."""
        changed = {(row.member, row.slot): row.value for row in rows if row.space == RING_SPACE}
        return Ring(self._cells | changed) if changed else self

    def active(self) -> list[RingMember]:
        """The members that count: not removed."""
        return [m for m in self.members.values() if m.status != Status.REMOVED]

    def was_removed(self, name: str) -> bool:
        """Whether an agent was removed: whatever still comes from it is not joined."""
        member = self.members.get(name)
        return member is not None and member.status == Status.REMOVED

    def newest_inc(self, name: str) -> int:
        """The newest incarnation of an agent; 0 where none is known."""
        return max((inc for inc, agent in self.agents.items() if agent == name), default=0)

    def as_of(
        self, times: Mapping[str, int], agent: str, own_ms: int | None
    ) -> dict[str, int | None]:
        """By region, the time (ms since 1970) up to which a state includes it.

        That is the least over the region's agents; None while nothing is known of one of them.
        `own_ms` is the time of the state itself, for this agent's own entry; None while it is not
        complete.
        """
        found: dict[str, int | None] = {}
        for member in self.active():
            ms = own_ms if member.name == agent else times.get(member.name)
            if member.region in found:
                before = found[member.region]
                ms = None if before is None or ms is None else min(before, ms)
            found[member.region] = ms
        return found


def member_key(name: str) -> Key:
    """The cell of a ring member."""
    return (RING_SPACE, name.encode(), slot_of_one(Kind.MEMBER))


def incarnation_key(name: str, inc: int) -> Key:
    """The cell of one of an agent's incarnations."""
    return (RING_SPACE, name.encode(), slot_of_replica(Kind.INCARNATION, inc))


def changed(current: Value, status: Status | None, url: str | None) -> Value | None:
    """A member's cell after an operator's change; None where that changes nothing.

    Raises:
        Forbidden: (`removed`) the agent was removed, which is final.
    """
    epoch, was, said = current
    if was == Status.REMOVED:
        if status == Status.REMOVED and url is None:
            return None
        raise Forbidden("that agent was removed from the ring, which is final", code="removed")
    if status is not None and status > was:
        was = status
        epoch += REMOVAL_EPOCHS if status == Status.REMOVED else 0
    if url is not None:
        member = msgspec.convert(body.unpack(said), MemberBody)
        if member.url != url:
            epoch, said = epoch + 1, pack_member(member.region, url)
    new = (epoch, was, said)
    return None if new == current else new


def pack_member(region: str, url: str) -> bytes:
    """The body of a ring member's cell."""
    return body.pack({"region": region, "url": url}, "ring member", BODY_BYTES_MAX)


def _member(name: str, value: Value, incs: tuple[int, ...]) -> RingMember | None:
    try:
        said = msgspec.convert(body.unpack(value[2]), MemberBody)
        return RingMember(name, said.region, said.url, Status(value[1]), value[0], incs)
    except (msgspec.ValidationError, ValueError):
        return None
