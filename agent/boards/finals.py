"""Finals: what the agents of a ring have said about one window, and what an agent does next.

After its end a window goes from closed to certified by marks of all members, each a cell that its
own agent writes (a member of `~marks` is the window's space):

    closed      it takes no more entries here: a close mark (marks.py)
    settled     it holds what all members wrote before their close marks: it says the digest of its
                standings, and says it anew whenever they change
    frozen      all digests are equal: it has a copy of the standings, and says so; its digest stays
    certified   all say that they froze this digest: the copy is the window's final, for good

A frozen agent thaws if one that has not frozen says another digest: nobody can have certified
without its mark. Live cells go on being joined, so a final is equality of contents, of whatever
region they come from, and not a cut in time.

An operator's *override* begins another version: without agents that can't be waited for, or with
what came late. Its members are the ring's without those, and everything is said anew under its
number; certificates of all versions stay. One that is newer than the certificate does not undo it:
the older one is in force until all its members have certified the newer.

    d agent              (version, number, digest)                     number: counts up
    f agent              (version, number, digest and hash, or empty: thawed)
    o version agent      (1, ms, [without, reason, by])
    Z version agent      (1, ms, [hash, members, agents])
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from hashlib import blake2b
from typing import Literal, NamedTuple

import msgpack

from agent.boards import body
from agent.boards.catalog import Placed
from agent.boards.final_rows import SUM_MODULUS
from agent.boards.scale import Scale
from agent.crdt.cell import Key, Value
from agent.crdt.slot import Kind, slot_of_name
from agent.crdt.space import MARKS_SPACE
from agent.limits import BODY_BYTES_MAX

DIGEST_BYTES = 32
HASH_BYTES = 32
VERSION_BYTES = 4
FINAL_KINDS = frozenset({Kind.DIGEST, Kind.FROZEN, Kind.OVERRIDE, Kind.CERTIFICATE})
PASSING_KINDS = frozenset({Kind.DIGEST, Kind.FROZEN})
"""What nobody needs any more once the window is collected."""


class Said(NamedTuple):
    """A digest or a frozen mark as it stands. `said` is empty where its agent has thawed."""

    version: int
    number: int
    said: bytes


class Override(NamedTuple):
    """An operator's word: the final is made anew, without these agents."""

    version: int
    at_ms: int
    without: tuple[str, ...]
    reason: str
    by: str


class Certificate(NamedTuple):
    """The final of a window: equal in all agents that have certified it.

    hash: of all rows in their order. members: how many rows.
    agents: which ones had to agree, or how many where their names are too long to be kept.
    """

    version: int
    hash: bytes
    members: int
    agents: tuple[str, ...] | int

    def packed(self) -> bytes:
        """The body of its cell."""
        said = [self.hash, self.members, self.agents]
        found: bytes = msgpack.packb(said)
        if len(found) > BODY_BYTES_MAX:
            assert isinstance(self.agents, tuple)
            return self._replace(agents=len(self.agents)).packed()
        return found


def said_key(kind: Kind, space: bytes, agent: str) -> Key:
    """The cell of a digest or of a frozen mark."""
    assert kind in PASSING_KINDS, kind
    return (MARKS_SPACE, space, slot_of_name(kind, agent))


def versioned_key(kind: Kind, space: bytes, version: int, agent: str) -> Key:
    """The cell of an override or of a certificate."""
    assert kind in FINAL_KINDS - PASSING_KINDS, kind
    return (MARKS_SPACE, space, kind.to_bytes() + version.to_bytes(VERSION_BYTES) + agent.encode())


def override_body(without: Iterable[str], reason: str, by: str) -> bytes:
    """The body of an override's cell.

    Raises:
        Malformed: it is too long.
    """
    return body.pack([sorted(without), reason, by], "without and reason", BODY_BYTES_MAX)


@dataclass(slots=True)
class Final:
    """Everything said about one window's final; `take` adds a cell.

    digests, frozen: by agent. overrides, certificates: by (version, agent); of a certificate also
    the time at which its agent has certified it.
    """

    digests: dict[str, Said] = field(default_factory=dict)
    frozen: dict[str, Said] = field(default_factory=dict)
    overrides: dict[tuple[int, str], Override] = field(default_factory=dict)
    certificates: dict[tuple[int, str], tuple[int, Certificate]] = field(default_factory=dict)

    def take(self, slot: bytes, value: Value) -> None:
        """Take over one cell; one of another kind, or that can't be read, is passed over."""
        kind, major, minor = slot[0], value[0], value[1]
        if kind in PASSING_KINDS:
            name = slot[1:].decode(errors="replace")
            said = self.digests if kind == Kind.DIGEST else self.frozen
            said[name] = Said(major, minor, value[2])
            return
        if kind not in FINAL_KINDS or len(slot) <= 1 + VERSION_BYTES:
            return
        version = int.from_bytes(slot[1 : 1 + VERSION_BYTES])
        name = slot[1 + VERSION_BYTES :].decode(errors="replace")
        content = body.unpack(value[2])
        if kind == Kind.OVERRIDE:
            match content:
                case [list(without), str(reason), str(by)]:
                    names = tuple(map(str, without))
                    self.overrides[version, name] = Override(version, minor, names, reason, by)
            return
        match content:
            case [bytes(hash_), int(members), list() | int() as agents]:
                named = agents if isinstance(agents, int) else tuple(map(str, agents))
                told = Certificate(version, hash_, members, named)
                self.certificates[version, name] = (minor, told)

    @property
    def override(self) -> Override | None:
        """The override of the newest version; of several at once the greatest."""
        return max(self.overrides.values(), default=None)

    @property
    def version(self) -> int:
        """The version that is being made, or was: 0 without an override."""
        return max((version for version, _ in self.overrides), default=0)

    @property
    def in_force(self) -> Certificate | None:
        """The certificate of the newest version; of several that differ the greatest."""
        return max((told for _, told in self.certificates.values()), default=None, key=_order)

    @property
    def conflict(self) -> bool:
        """Whether agents have certified different finals as the newest version.

        Of an older version that is history: a revision has made one of them.
        """
        told = {its[:2] for _, its in self.certificates.values()}
        newest = max((version for version, _ in told), default=0)
        return sum(version == newest for version, _ in told) > 1

    def required(self, members: Iterable[str]) -> list[str]:
        """Who has to agree, of the ring's members, in order."""
        without = self.override.without if self.override is not None else ()
        return sorted(set(members) - set(without))

    def said(self, kind: Kind, agent: str) -> bytes | None:
        """What an agent says of the version that is being made; None where it says nothing."""
        found = (self.digests if kind == Kind.DIGEST else self.frozen).get(agent)
        return found.said if found is not None and found.version == self.version else None

    def certified_by(self, members: Iterable[str]) -> bool:
        """Whether all of these agents have certified the final that is in force."""
        told = self.in_force
        if told is None:
            return False
        return all((told.version, name) in self.certificates for name in members)

    def state(self, agent: str) -> Literal["settled", "frozen", "certified"] | None:
        """How far one agent is, of the API's states; None where it has not settled yet."""
        if self.in_force is not None:
            return "certified"
        if self.said(Kind.FROZEN, agent):
            return "frozen"
        return None if self.said(Kind.DIGEST, agent) is None else "settled"


def final_of(slots: Iterable[tuple[bytes, Value]]) -> Final:
    """The final from the cells of a window's member in the marks' space."""
    found = Final()
    for slot, value in slots:
        found.take(slot, value)
    return found


def _order(told: Certificate) -> tuple[int, bytes, bytes]:
    return told.version, told.hash, told.packed()


@dataclass(frozen=True, slots=True)
class SayFinal:
    """Say how far this agent is with a window's final: see above.

    kind: DIGEST, FROZEN or CERTIFICATE; said: the body of its mark.
    version: of the final; nothing is said where a newer one is being made.
    lsn: of the state that it is said of; nothing is said where the window has changed since. None:
        whatever has come since.
    """

    space: bytes
    kind: Kind
    version: int
    said: bytes
    lsn: int | None = None


@dataclass(frozen=True, slots=True)
class OverrideFinal:
    """Begin the next version of a window's final, without some agents: an operator's word."""

    space: bytes
    version: int
    without: tuple[str, ...]
    reason: str
    by: str


@dataclass(frozen=True, slots=True)
class MakeHashKey:
    """Make the ring's key for hashing names, of 16 random bytes, if it has none yet."""

    key: bytes


@dataclass(frozen=True, slots=True)
class Shelve:
    """Keep chunks of a final's rows in this agent's file. They are no cells: see store/finals.py.

    chunks: (number from 0, bytes) each; one that is there already is replaced.
    members: how many rows there are in all, with the last chunks: then the final is complete.
    late: whether the live standings may differ from it already.
    lsn: of the state that a copy of this agent's own standings was made of: they may differ where
        the window has changed since.
    """

    space: bytes
    hash: bytes
    chunks: tuple[tuple[int, bytes], ...]
    members: int | None = None
    late: bool = False
    lsn: int | None = None


@dataclass(frozen=True, slots=True)
class Discard:
    """Remove the rows of a window's copies that became no final: all but those of these hashes."""

    space: bytes
    kept: tuple[bytes, ...]


class Step(StrEnum):
    """What an agent can do about a window's final now."""

    WAIT = "wait"  # for others
    SAY = "say"  # its digest
    COPY = "copy"  # its standings: all digests are equal
    FREEZE = "freeze"  # it has the copy
    THAW = "thaw"  # somebody who has not frozen has something else
    CERTIFY = "certify"  # everybody has frozen the same
    FETCH = "fetch"  # the rows of a certificate
    ADOPT = "adopt"  # a certificate whose rows are here
    DONE = "done"


def next_step(
    final: Final,
    agent: str,
    members: Collection[str],
    digest: bytes | None,
    hashes: Mapping[bytes, bytes],
    held: Collection[bytes],
) -> Step:
    """What an agent does next.

    Args:
        members: of the ring, those that are not removed.
        digest: of this agent's standings now (`content_digest`); None where it has not settled, or
            does not know it yet.
        hashes: digest -> hash of the copy that was made of it here.
        held: the hashes of the complete copies that are here.
    """
    told = final.in_force
    if told is not None and told.version >= final.version:
        if told.hash not in held:
            return Step.FETCH
        return Step.DONE if (told.version, agent) in final.certificates else Step.ADOPT
    required = final.required(members)
    if agent not in required:
        return Step.WAIT
    mine = final.said(Kind.FROZEN, agent)
    if mine:
        return _frozen(final, mine, required, held)
    if digest is None:
        return Step.WAIT
    if final.said(Kind.DIGEST, agent) != digest:
        return Step.SAY
    if any(final.said(Kind.DIGEST, name) != digest for name in required):
        return Step.WAIT
    return Step.FREEZE if hashes.get(digest) in held else Step.COPY


def _frozen(final: Final, mine: bytes, required: list[str], held: Collection[bytes]) -> Step:
    digest, hash_ = mine[:DIGEST_BYTES], mine[DIGEST_BYTES:]
    if hash_ not in held:
        return Step.THAW  # an older file was put back
    for name in required:
        other = final.said(Kind.DIGEST, name)
        if final.said(Kind.FROZEN, name) != mine and other not in (None, digest):
            return Step.THAW
    if all(final.said(Kind.FROZEN, name) == mine for name in required):
        return Step.CERTIFY
    return Step.WAIT


def certifiable(placed: Placed) -> bool:
    """Whether a window gets a final: it ends, and its members have standings of their own."""
    definition, counted = placed.board.definition, placed.counted
    if definition is None or definition.rule == "trend" or not counted.shown:
        return False
    return counted.series.keep_ms is not None and counted.series.certify


def content_digest(
    version: int,
    required: Iterable[str],
    scale: Scale,
    key: bytes,
    hidden: Iterable[bytes],
    total: int,
) -> bytes:
    """The digest that an agent says of its standings: 32 bytes.

    Args:
        scale: what orders them.
        key: with which names are hashed in the final's rows.
        hidden: the members that are banned on the board.
        total: the sum of the standings' digests (final_rows.py).
    """
    banned = sum(map(_digest_of_banned, hidden))
    order = [scale.ties, scale.low, scale.b, scale.epoch_ms, scale.tick_ms]
    said = [version, sorted(required), order, key, _bytes(banned), _bytes(total)]
    return blake2b(msgpack.packb(said), digest_size=DIGEST_BYTES).digest()


@lru_cache(16_384)
def _digest_of_banned(name: bytes) -> int:
    """Kept, as all windows that are not certified yet are looked at each second."""
    return int.from_bytes(blake2b(name, digest_size=32).digest())


def _bytes(total: int) -> bytes:
    return (total % SUM_MODULUS).to_bytes(32)
