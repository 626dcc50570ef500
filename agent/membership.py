"""The ring's members, as cells: one document per agent, one row per incarnation. Pure.

A member's cell is (epoch, status, body) with body {"region", "url"}; an agent raises the epoch when
its own address changes, an operator when it leaves or is removed, and at one epoch the status only
moves on. An incarnation's cell is (boot number, 0, b"") and is written by itself alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import msgspec

from agent.boards import body
from agent.crdt.cell import Row, Value
from agent.crdt.document import Status
from agent.crdt.slot import Kind, incarnation_of
from agent.crdt.space import RING_SPACE
from agent.limits import BODY_BYTES_MAX


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
            if slot == bytes([Kind.MEMBER]):
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

    def as_of(self, times: Mapping[str, int], agent: str, own_ms: int) -> dict[str, int | None]:
        """By region, the time (ms since 1970) up to which a state includes it.

        That is the least over the region's agents; None while nothing is known of one of them.
        `own_ms` is the time of the state itself, for this agent's own entry.
        """
        found: dict[str, int | None] = {}
        for member in self.active():
            ms = own_ms if member.name == agent else times.get(member.name)
            if member.region in found:
                before = found[member.region]
                ms = None if before is None or ms is None else min(before, ms)
            found[member.region] = ms
        return found


def pack_member(region: str, url: str) -> bytes:
    """The body of a ring member's cell."""
    return body.pack({"region": region, "url": url}, "ring member", BODY_BYTES_MAX)


def _member(name: str, value: Value, incs: tuple[int, ...]) -> RingMember | None:
    try:
        said = msgspec.convert(body.unpack(value[2]), MemberBody)
        return RingMember(name, said.region, said.url, Status(value[1]), value[0], incs)
    except (msgspec.ValidationError, ValueError):
        return None
