"""Erasures: names that are closed for good, and nothing of which may be kept or come back.

A tombstone is a keyed hash of the name (blake2b), kept for ever. It carries the name itself only
until every member of the ring has confirmed that nothing of it is left: then the name is dropped
from it, too.

    member = hash of the name: 16 bytes
    E           (1, time in ms, name), then (2, time in ms, b"")
    a agent     (1, time in ms, b""): this agent has nothing of the name any more
    member = "key"
    C key       (1, 0, b""): a key for hashing: 16 random bytes

Whoever erases uses the least key it knows, and makes one where it knows none: there is one in the
ring, or a few if the first names were erased in several regions at once.

What belongs to a name is what stands under it as a member, as an actor, or as a candidate.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from hashlib import blake2b
from typing import NamedTuple

from agent.crdt.cell import Key, Row, Value
from agent.crdt.slot import Kind, name_of, slot_of_name, slot_of_one
from agent.crdt.space import ERASED_SPACE, is_own

HASH_BYTES = 16
KEY_BYTES = 16
ERASED_ACTOR = b"~erased:"
"""What the name of an erased actor is replaced by begins with; the hash follows, in hex."""


class Tombstone(NamedTuple):
    """An erased name, as long as its name is needed; `name` is None afterwards.

    confirmed: agent -> when it had nothing of it any more, in ms since 1970.
    """

    id: bytes
    erased_ms: int
    name: bytes | None
    confirmed: Mapping[str, int]


def key_cell(key: bytes) -> tuple[Key, Value]:
    """The cell of a key for hashing names."""
    return (ERASED_SPACE, b"key", bytes([Kind.FLAG]) + key), (1, 0, b"")


def id_of(name: bytes, key: bytes) -> bytes:
    """The id of a name's tombstone under a key."""
    return blake2b(name, digest_size=HASH_BYTES, key=key).digest()


def pseudonym(name: bytes) -> bytes:
    """What stands in the place of an erased actor's name.

    The same in every region, also where one name was erased under two keys at once: so without one.
    """
    return (
        ERASED_ACTOR + blake2b(name, digest_size=HASH_BYTES, person=b"actor").hexdigest().encode()
    )


def tombstone_cell(id: bytes) -> Key:  # noqa: A002 -- what everyone calls it
    """The cell of a tombstone."""
    return (ERASED_SPACE, id, slot_of_one(Kind.ERASURE))


def confirmation_cell(id: bytes, agent: str) -> Key:  # noqa: A002 -- what everyone calls it
    """The cell by which an agent says that it has nothing of a name any more."""
    return (ERASED_SPACE, id, slot_of_name(Kind.ACK, agent))


class Owed(NamedTuple):
    """What is still to be done about erasures.

    ids: of all tombstones. confirmed: by one agent. named: how many have their names.
    ripe: those that all members have confirmed, and that still have their names.
    unconfirmed: agent -> how many names it may still have something of.
    """

    ids: frozenset[bytes] = frozenset()
    confirmed: frozenset[bytes] = frozenset()
    named: int = 0
    ripe: tuple[bytes, ...] = ()
    unconfirmed: Mapping[str, int] = {}


class Erasures:
    """All tombstones. `with_rows` gives new ones; a copy changes by `take` until it is given away:
    there may be very many, so what is changed a row at a time is copied once.
    """

    __slots__ = ("_confirmed", "_keys", "_tombstones")

    def __init__(self) -> None:
        self._keys: frozenset[bytes] = frozenset()
        self._tombstones: dict[bytes, Value] = {}
        self._confirmed: dict[bytes, Mapping[str, int]] = {}

    def __len__(self) -> int:
        """How many names were erased."""
        return len(self._tombstones)

    def copy(self) -> Erasures:
        """The same erasures, for `take`."""
        found = Erasures()
        found._keys = self._keys
        found._tombstones, found._confirmed = dict(self._tombstones), dict(self._confirmed)
        return found

    def with_rows(self, rows: Iterable[Row]) -> Erasures:
        """The erasures after these changed cells; rows of other spaces are passed over."""
        mine = [row for row in rows if row.space == ERASED_SPACE]
        if not mine:
            return self
        found = self.copy()
        for row in mine:
            found.take(row)
        return found

    def take(self, row: Row) -> None:
        """Take over one changed cell; one of another kind is passed over."""
        match row.slot[0]:
            case Kind.FLAG if len(row.slot) == 1 + KEY_BYTES:
                self._keys |= {row.slot[1:]}
            case Kind.ERASURE:
                self._tombstones[row.member] = row.value
            case Kind.ACK:
                its = self._confirmed.get(row.member, {})
                self._confirmed[row.member] = {**its, name_of(row.slot): row.minor}

    @property
    def key(self) -> bytes | None:
        """The key to hash the next name with; None before there is one."""
        return min(self._keys, default=None)

    def find(self, name: bytes) -> Tombstone | None:
        """The tombstone of a name, or None."""
        if not self._tombstones:
            return None
        for key in self._keys:
            id = id_of(name, key)  # noqa: A001 -- what everyone calls it
            if id in self._tombstones:
                return self.tombstone(id)
        return None

    def closed(self, name: bytes) -> bool:
        """Whether a name was erased."""
        return bool(self._tombstones) and self.find(name) is not None

    def tombstone(self, id: bytes) -> Tombstone:  # noqa: A002 -- what everyone calls it
        """A tombstone by its id."""
        major, at_ms, name = self._tombstones[id]
        return Tombstone(id, at_ms, name if major == 1 else None, self._confirmed.get(id, {}))

    def all(self) -> list[Tombstone]:
        """All tombstones."""
        return [self.tombstone(id) for id in sorted(self._tombstones)]  # noqa: A001

    def owed(self, members: Iterable[str], agent: str) -> Owed:
        """What is still to be done, where these are the ring's members, and by one of them."""
        tombstones, everybody = self.all(), frozenset(members)
        unconfirmed: Counter[str] = Counter()
        ripe = []
        for each in tombstones:
            lacking = everybody - each.confirmed.keys()
            unconfirmed.update(lacking)
            if each.name is not None and everybody and not lacking:
                ripe.append(each.id)
        return Owed(
            frozenset(each.id for each in tombstones),
            frozenset(each.id for each in tombstones if agent in each.confirmed),
            sum(each.name is not None for each in tombstones),
            tuple(ripe),
            unconfirmed,
        )

    def forbids(self, row: Row) -> bool:
        """Whether a cell belongs to an erased name: it is not taken, wherever it comes from."""
        if not self._tombstones or row.space == ERASED_SPACE:
            return False
        kind = row.slot[:1]
        if is_own(row.space):
            return row.slot[0] == Kind.FLAG and self.closed(row.member)
        if kind == b"C" and self.closed(row.slot[1:]):
            return True
        if kind == b"T" and row.body and self.closed(row.body):
            return True
        return self.closed(row.member)
