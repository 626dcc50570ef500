"""Answers of the ring's routes, as the types that the OpenAPI document shows.

Times are RFC 3339 in UTC. Ids (incarnations, logs) are in hexadecimal. "Known" is always by the
answering agent's own contact: what another one has not told it, it does not guess.
"""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from agent.api.final_answers import FinalsStatus


class CursorAnswer(msgspec.Struct):
    """How far this agent has read another's log: (log id in hexadecimal, lsn)."""

    log: str
    lsn: int


class ContactAnswer(msgspec.Struct):
    """This agent's own contact with another one. Times are RFC 3339.

    state: ok, suspect (5 s of silence) or down (30 s).
    rows_behind: how many of this agent's changes the other has not confirmed.
    rows_left, rows_per_s: how many of the other's changes this agent has still to read, and how
        fast it does; null while it is not known.
    clock_offset_ms: its clock minus this one's.
    secret: the name of the ring's secret that both know; empty before it has answered.
    diverged: how often in a row it claimed the same writes and had other cells; 0 is right.
    """

    state: str
    url: str
    last_exchange: str | None
    last_error: str
    last_error_at: str | None
    rows_behind: int | None
    rows_left: int | None
    rows_per_s: float | None
    clock_offset_ms: int | None
    exchanges: int
    failures: int
    bytes_sent: int
    bytes_received: int
    secret: str
    diverged: int


class RingMemberAnswer(msgspec.Struct):
    """One agent of the ring, as this agent sees it.

    incarnations: in hexadecimal, each a writer of slots.
    boot: the number of its newest process that was heard of.
    as_of, lag_ms: up to when this agent includes the other's writes.
    unconfirmed: the active members that have not yet confirmed the newest news of this one (its
        status, its URL).
    cursor, contact: null for this agent itself, and before the first exchange.
    """

    name: str
    region: str
    url: str
    status: str
    incarnations: list[str]
    boot: int
    as_of: str | None
    lag_ms: int | None
    unconfirmed: list[str]
    cursor: CursorAnswer | None
    contact: ContactAnswer | None


class IdentityAnswer(msgspec.Struct):
    """As who this agent writes.

    since: when its incarnation was minted.
    minted: why, where this process has replaced another one; else null.
    burnt: why the incarnation writes no more (the next write mints another); empty if it does.
    complete: whether everything that this agent ever acknowledged is known to be here; until then
        `unread` names the members whose logs must still be read, and its own `as_of` is null.
    secrets: the names of the ring's secrets that it knows; the first one signs.
    """

    incarnation: str
    log: str
    boot: int
    since: str
    minted: str | None
    burnt: str
    complete: bool
    unread: list[str]
    secrets: list[str]


class LagAnswer(msgspec.Struct):
    """How far one region is behind another one's writes.

    region, of: `region` reads what `of` wrote.
    lag_ms: up to how long before it was told that its state reached.
    rows: how many changes of `of` it has not confirmed.
    age_ms: how old this knowledge is; 0 for what the answering agent knows of itself.
    Each is null while it is not known of one of the regions' agents.
    """

    region: str
    of: str
    lag_ms: int | None
    rows: int | None
    age_ms: int | None


class WaitAnswer(msgspec.Struct):
    """A member that a leaving agent waits for; `rows` still to go, null while not known."""

    name: str
    rows: int | None


class LeavingAnswer(msgspec.Struct):
    """How far this agent is with leaving: draining, removing or left."""

    phase: str
    waits_for: list[WaitAnswer]


class JoinerAnswer(msgspec.Struct):
    """A new agent that fetches a snapshot of this one: cells still to go, and how fast they go."""

    name: str
    rows_left: int
    rows_per_s: float


class RingAnswer(msgspec.Struct):
    """The ring as this agent sees it; `agent` is its own name.

    alarms: what must not be, as sentences; empty when all is well.
    refuses: why clients' writes are refused, by code; empty when they are taken.
    finals: how far it is with certified finals.
    leaving: null while it does not leave.
    """

    ring: str
    agent: str
    identity: IdentityAnswer
    alarms: list[str]
    refuses: dict[str, str]
    finals: FinalsStatus
    leaving: LeavingAnswer | None
    joining: list[JoinerAnswer]
    members: list[RingMemberAnswer]
    matrix: list[LagAnswer]


class HoldingAnswer(msgspec.Struct):
    """How many commits of an incarnation a member holds for sure; null while it has not told."""

    incarnation: str
    member: str
    commits: int | None


class MemberChangeAnswer(msgspec.Struct):
    """A change of the ring, or with `dry_run` what it would be.

    changed: whether anything changes.
    says: what happens, as sentences.
    waits_for: the active members that have not confirmed it.
    holdings: of a removal: what each member has of the removed agent's commits.
    """

    name: str
    status: str
    url: str
    dry_run: bool
    changed: bool
    says: list[str]
    waits_for: list[str]
    holdings: list[HoldingAnswer] | UnsetType = UNSET
