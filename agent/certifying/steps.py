"""Steps: what an agent may say of a window's final, and in which words. Without I/O.

Which step is next is told by agent/boards/finals.py; here is what it takes, from this agent's
state. The simulator takes the same steps by the same functions.
"""

from __future__ import annotations

from collections.abc import Mapping

from agent.boards.catalog import Placed
from agent.boards.finals import (
    DIGEST_BYTES,
    Certificate,
    Final,
    SayFinal,
    Step,
    content_digest,
)
from agent.boards.marks import place_of
from agent.certifying.looking import concerns
from agent.certifying.window import Copied
from agent.crdt.slot import Kind
from agent.state import State


def members_of(state: State) -> list[str]:
    """The members of the ring that are not removed, in order."""
    return [member.name for member in state.ring.active()]


def may_say(space: bytes, final: Final, state: State) -> bool:
    """Whether this agent may say the digest of a window's standings.

    It knows everything that it ever acknowledged, has to agree, and holds all that those who have
    to agree wrote before they closed the window; and no certificate has settled it already.
    """
    place, told = place_of(space), final.in_force
    if told is not None and told.version >= final.version:
        return False
    required = final.required(members_of(state))
    if place is None or not concerns(space, state):
        return False
    if not state.complete or state.agent not in required:
        return False
    return state.marks.settled(place.series, place.window, required, state.vv)


def makes_key(final: Final, state: State) -> bool:
    """Whether this agent makes the key with which names are hashed, where the ring has none.

    One agent makes it: each erased name is hashed with all keys that there are.
    """
    return state.erased.key is None and final.required(members_of(state))[:1] == [state.agent]


def digest_now(placed: Placed, final: Final, state: State, key: bytes, total: int) -> bytes:
    """The digest of a window's standings, of which `total` is the sum of all members' digests."""
    hidden = state.bans.hidden(placed.board.name)
    required = final.required(members_of(state))
    return content_digest(final.version, required, placed.scale, key, hidden, total)


def said_at(
    step: Step,
    space: bytes,
    final: Final,
    state: State,
    digest: bytes | None,
    copied: Mapping[bytes, Copied],
    members: Mapping[bytes, int],
) -> SayFinal:
    """What is said with a step that says something.

    Args:
        state: of which the digest is.
        digest: of the standings, with SAY and FREEZE.
        copied: digest -> the copy that was made of it here.
        members: hash -> how many rows, of the complete copies that are here.
    """
    version = final.version
    match step:
        case Step.SAY:
            assert digest is not None
            return SayFinal(space, Kind.DIGEST, version, digest, state.lsn)
        case Step.FREEZE:
            assert digest is not None
            copy = copied[digest]
            return SayFinal(space, Kind.FROZEN, version, digest + copy.hash, copy.lsn)
        case Step.THAW:
            return SayFinal(space, Kind.FROZEN, version, b"")
        case _:
            told = certificate_at(step, final, state, members)
            return SayFinal(space, Kind.CERTIFICATE, told.version, told.packed())


def certificate_at(
    step: Step, final: Final, state: State, members: Mapping[bytes, int]
) -> Certificate:
    """What is certified with CERTIFY, or with ADOPT: see `said_at`."""
    if step == Step.ADOPT:
        assert final.in_force is not None
        return final.in_force
    assert step == Step.CERTIFY, step
    mine = final.said(Kind.FROZEN, state.agent)
    assert mine is not None
    hash_ = mine[DIGEST_BYTES:]
    required = tuple(final.required(members_of(state)))
    return Certificate(final.version, hash_, members[hash_], required)
