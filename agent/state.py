"""The state of an agent beside its cells, and what a batch of operations makes of it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from agent.boards.bans import Bans
from agent.boards.catalog import Catalog
from agent.boards.erasures import Erasures
from agent.boards.marks import Marks
from agent.boards.tally import MemberKey, SlotGroup
from agent.crdt.cell import Key, Row
from agent.crdt.fingerprint import Change
from agent.crdt.space import BANS_SPACE, MARKS_SPACE
from agent.crdt.total import Total
from agent.exchange import Boot, Reading, Times, VersionVector
from agent.membership import Ring
from agent.operation import Answer

# A log is renewed with each incident; a reader keeps its place in the newest ones of each agent.
LOGS_OF_AGENT_MAX = 8
NO_BOOT = Boot(0, 0)


@dataclass(frozen=True, slots=True)
class State:
    """What an agent knows beside its cells; durable with them, but for `times`.

    boot: this process.
    burnt: why `inc` writes no more; the next own write mints another one. Empty: it is good.
    vv: incarnation -> seq: what is included here.
    seen: incarnation -> the greatest seq of any row that was ever here, claimed or not.
    fences: incarnation -> its newest process that was heard of; older ones are refused.
    cursors: log id -> how far that log was read.
    complete: whether everything that this agent ever acknowledged is here, as far as it knows: not
        while a new or restored file still has to read the other members' logs.
    root: the fingerprint of all cells.
    facts: how many facts are stored.
    marks, bans, erased: what the agents' own spaces say of windows and of members.
    touched, touched_floor: the lsns at which windows changed that this agent has closed; of others
        it is known that they have not changed above the floor. Of this process alone.
    """

    agent: str
    inc: int
    log: int
    seq: int
    lsn: int
    hlc: int
    vv: VersionVector
    times: Times
    cursors: Mapping[int, Reading]
    catalog: Catalog
    ring: Ring
    boot: Boot = NO_BOOT
    burnt: str = ""
    seen: VersionVector = field(default_factory=dict)
    fences: Mapping[int, Boot] = field(default_factory=dict)
    root: int = 0
    complete: bool = True
    facts: int = 0
    marks: Marks = field(default_factory=Marks)
    bans: Bans = field(default_factory=Bans)
    erased: Erasures = field(default_factory=Erasures)
    touched: Mapping[bytes, int] = field(default_factory=dict)
    touched_floor: int = 0

    def as_of(self, now_ms: int) -> dict[str, int | None]:
        """By region, the time (ms since 1970) up to which this state includes it; see Ring.as_of.

        `now_ms` must be no later than this state.
        """
        return self.ring.as_of(self.times, self.agent, now_ms if self.complete else None)

    def copied(self, space: bytes) -> State:
        """The same state with a copy of its own of what an own space says, for `note`."""
        if space == MARKS_SPACE:
            return replace(self, marks=self.marks.copy())
        if space == BANS_SPACE:
            return replace(self, bans=self.bans.copy())
        return replace(self, erased=self.erased.copy())

    def note(self, row: Row) -> None:
        """Take over a changed cell of an own space, in place: only in what `copied` has made."""
        if row.space == MARKS_SPACE:
            self.marks.take(row)
        elif row.space == BANS_SPACE:
            self.bans.take(row)
        else:
            self.erased.take(row)


@dataclass(frozen=True, slots=True)
class WorkingSet:
    """The cells and totals that the operations need, as loaded; None for those never written.

    prints: the fingerprints of those cells of which it is known.
    groups: by (space, member, prefix), all cells whose slot begins with the prefix, in the order of
        their slots. They are in `cells` as well.
    """

    cells: Mapping[Key, Row | None]
    totals: Mapping[MemberKey, Total | None]
    prints: Mapping[Key, int] = field(default_factory=dict)
    groups: Mapping[SlotGroup, tuple[Row, ...]] = field(default_factory=dict)


class Unloaded(Exception):
    """Cells that turned out to be needed: load these as well, and apply the batch again."""

    def __init__(
        self,
        *,
        cell: Key | None = None,
        total: MemberKey | None = None,
        group: SlotGroup | None = None,
    ) -> None:
        super().__init__(cell, total, group)
        self.cell = cell
        self.total = total
        self.group = group


@dataclass(slots=True)
class Alarms:
    """Counts of what must never happen (docs/metrics.md). Each has a metric that should stay 0.

    covered_changed: a received row changed my state although my version vector covered it.
    forked: the same (incarnation, seq, cell) came with another value.
    peer_ahead: a peer knows of a later write of mine than I do.
    late_facts: a fact arrived after the keys of its time were collected: its entry is counted, but
        whether it was counted elsewhere as well can't be told any more.
    """

    covered_changed: int = 0
    forked: int = 0
    peer_ahead: int = 0
    late_facts: int = 0


@dataclass(frozen=True, slots=True)
class Outcome:
    """Everything that one batch changed. The row at index i gets the lsn `state.lsn + 1 + i`.

    prints: the fingerprint of each row, in the order of `rows`.
    buckets: what that does to the buckets' fingerprints.
    totals: new totals; None for a member that has no cells any more.
    dropped: cells that cease to exist, as they were.
    entries: of the log, to be removed where they lead nowhere.
    late: by space of a window that this agent has closed and that changed all the same: what that
        adds to the sum of its standings' digests; None where that can't be told.
    """

    state: State
    rows: list[Row]
    prints: list[int]
    buckets: dict[int, Change]
    totals: dict[MemberKey, Total | None]
    answers: list[Answer]
    alarms: Alarms
    dropped: list[Row] = field(default_factory=list)
    entries: list[int] = field(default_factory=list)
    late: Mapping[bytes, int | None] = field(default_factory=dict)

    def durable_change(self, before: State) -> bool:
        """Whether there is anything to write (`times` alone is not)."""
        now = self.state
        return bool(self.rows or self.dropped or self.entries) or not (
            now.vv is before.vv
            and now.cursors is before.cursors
            and now.seen is before.seen
            and now.fences is before.fences
            and now.hlc == before.hlc
            and now.burnt == before.burnt
            and now.complete == before.complete
        )


def read_further(
    cursors: Mapping[int, Reading], log: int, reading: Reading
) -> Mapping[int, Reading]:
    """The cursors after a log was read further, it last; of an agent's logs a few are kept."""
    its = [known for known, at in cursors.items() if at.agent == reading.agent and known != log]
    gone = set(its[: max(0, len(its) + 1 - LOGS_OF_AGENT_MAX)])
    kept = {known: at for known, at in cursors.items() if known != log and known not in gone}
    return {**kept, log: reading}


def seen_further(seen: VersionVector, rows: Sequence[Row]) -> VersionVector:
    """The greatest seq of each incarnation, after these rows."""
    news: dict[int, int] = {}
    for row in rows:
        if row[7] > seen.get(row[6], 0) and row[7] > news.get(row[6], 0):
            news[row[6]] = row[7]
    return {**seen, **news} if news else seen
