"""Answers of the routes about finals, as the types that the OpenAPI document shows.

Hashes, digests and keys are in hexadecimal. Times are RFC 3339 in UTC.
"""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from agent.boards.final_waits import Stage

Mode = Literal["unanimous", "override"]


class CertificateAnswer(msgspec.Struct):
    """One version of a window's final.

    `mode` is `unanimous`, or `override` where an operator began the version: then `without` names
    the agents it left out, `reason`, `by` (a token's name) and `began_at` say why, who and when.
    `members` is how many rows there are. `agents` are those that had to agree; how many where their
    names are too long to be kept. `certified_at` is by agent, those that adopted it among them.
    """

    version: int
    hash: str
    mode: Mode
    members: int
    agents: list[str] | int
    without: list[str]
    reason: str
    by: str
    began_at: str | None
    certified_at: dict[str, str]


class PendingFinal(msgspec.Struct):
    """A version that was begun and is not certified yet, and for whom it waits."""

    version: int
    without: list[str]
    reason: str
    by: str
    began_at: str
    waits_for: list[str]


class FinalEntry(msgspec.Struct):
    """One row of a final. `member` is null once it was erased: then `member_digest` is there.

    `banned` is there, and true, where the member is banned now: the final stays as it is.
    """

    rank: int
    member: str | None
    score: int
    reached_at: str | None
    banned: bool | UnsetType = UNSET
    member_digest: str | UnsetType = UNSET


class FinalAnswer(msgspec.Struct):
    """A page of a window's certified final, best first. `total` is how many rows there are.

    `certificate` is that of the version shown, `history` has the other certified ones, newest
    first. `pending` is the version that will replace it, null where none is being made. `conflict`:
    agents have certified different finals under one version. `late` is how many members' live
    scores differ from the final in force.
    """

    board: str
    generation: int
    window: str
    certificate: CertificateAnswer
    history: list[CertificateAnswer]
    pending: PendingFinal | None
    conflict: bool
    late: int
    offset: int
    total: int
    entries: list[FinalEntry]


class LateEntry(msgspec.Struct):
    """A member whose live score is not the one in the final; null: it is not there."""

    member: str
    final_score: int | None
    live_score: int | None
    reached_at: str | None


class BannedEntry(msgspec.Struct):
    """A member of the final that is banned now."""

    rank: int
    member: str
    score: int


class LateAnswer(msgspec.Struct):
    """What came after the final in force: a page of two lists, each cut at `offset` and `limit`.

    `late` is how many members' live scores differ: `entries` has them, by name. `banned` is how
    many members of the final are banned now: `banned_entries` has them, best first. Of very many
    the first `shown_max` are there to be paged through.
    """

    board: str
    generation: int
    window: str
    version: int
    hash: str
    late: int
    banned: int
    offset: int
    shown_max: int
    entries: list[LateEntry]
    banned_entries: list[BannedEntry]


class FinalAgent(msgspec.Struct):
    """How far one agent is with a window, as this agent has heard.

    `state` is that with the version in the making, or the newest one. `agrees`: its digest is this
    agent's; null where one of them has said none. `without`: it is left out. `waited_for`: it has
    still to do something for the version. `contact` is ok, suspect or down, null for this agent
    itself and for one that was never met; `last_exchange` is when it was last reached. `as_of` is
    up to when this agent includes what it wrote: what it took later is not known here.
    """

    agent: str
    region: str
    state: Stage
    agrees: bool | None
    without: bool
    waited_for: bool
    contact: str | None
    last_exchange: str | None
    as_of: str | None


class OverrideAnswer(msgspec.Struct):
    """The next version of a window's final, which begins now, or with `dry_run` would.

    `without` names the agents that it leaves out, `waits_for` those that have still to do something
    for it. `says` is what happens, as sentences. `refuses` is there with `dry_run`: why it would be
    refused, null where it would not.
    """

    board: str
    window: str
    version: int
    dry_run: bool
    without: list[str]
    reason: str
    waits_for: list[str]
    says: list[str]
    agents: list[FinalAgent]
    refuses: str | UnsetType | None = UNSET


class KeyAnswer(msgspec.Struct):
    """A public key (Ed25519): its name, itself, and whether it is the one that signs now."""

    key: str
    public_key: str
    signs: bool


class KeysAnswer(msgspec.Struct):
    """The public keys of the ring's secrets that this agent knows, the signing one first."""

    ring: str
    keys: list[KeyAnswer]


class FinalsStatus(msgspec.Struct):
    """How far an agent is with finals.

    `pending`: closed windows that are not certified here; `waiting`: by agent, for how many of them
    it is waited for. `fetching`: certificates whose rows are not here yet. `disagreeing`: windows
    whose digests have differed for 5 minutes. `late`: windows of which something came after their
    final. `conflicts`: windows with two different finals under one version. `trouble`: why
    certifying could not go on; empty if it could.
    """

    pending: int
    waiting: dict[str, int]
    fetching: int
    disagreeing: int
    late: int
    conflicts: int
    trouble: str
