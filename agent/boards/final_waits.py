"""What a window's final waits for: which agents are behind the others, and in what. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import Literal, NamedTuple, TypeAlias

from agent.boards.finals import DIGEST_BYTES, Final
from agent.crdt.slot import Kind

Stage: TypeAlias = Literal["open", "closed", "settled", "frozen", "certified"]
"""How far an agent is with a window."""


class Lack(StrEnum):
    """What agents that are waited for have not done yet, in the order in which it is done."""

    CLOSE = "close"  # the window
    SETTLE = "settle"  # say the digest of their standings
    AGREE = "agree"  # have the standings that most others have
    FREEZE = "freeze"  # copy them
    CERTIFY = "certify"  # say that all have frozen the same
    NOTHING = "nothing"


class Waits(NamedTuple):
    """For whom a final waits, in order, and for what. Nobody, once all have certified it."""

    lack: Lack
    agents: tuple[str, ...] = ()


def waits_of(final: Final, members: Iterable[str], closed: Callable[[str], bool]) -> Waits:
    """For whom the version that is being made waits.

    Args:
        members: of the ring, those that are not removed.
        closed: whether an agent has closed the window.
    """
    told = final.in_force
    if told is not None and told.version >= final.version:
        return Waits(Lack.NOTHING)
    required = final.required(members)
    found = tuple(name for name in required if not closed(name))
    if found:
        return Waits(Lack.CLOSE, found)
    said = {name: final.said(Kind.DIGEST, name) for name in required}
    found = tuple(name for name, digest in said.items() if digest is None)
    if found:
        return Waits(Lack.SETTLE, found)
    most = Counter(said.values()).most_common(1)[0][0] if said else None
    found = tuple(name for name, digest in said.items() if digest != most)
    if found:
        return Waits(Lack.AGREE, found)
    found = tuple(
        name for name in required if (final.said(Kind.FROZEN, name) or b"")[:DIGEST_BYTES] != most
    )
    if found:
        return Waits(Lack.FREEZE, found)
    return Waits(Lack.CERTIFY, tuple(required))


def stage_of(final: Final, agent: str, *, closed: bool) -> Stage:
    """How far one agent is with the version that is being made, or with the newest one."""
    if (final.version, agent) in final.certificates:
        return "certified"
    if not closed:
        return "open"
    if final.said(Kind.FROZEN, agent):
        return "frozen"
    return "closed" if final.said(Kind.DIGEST, agent) is None else "settled"
