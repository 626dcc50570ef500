"""The state of an agent beside its cells, and what a batch of operations makes of it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from agent.boards.catalog import Catalog
from agent.boards.tally import MemberKey
from agent.crdt.cell import Key, Row
from agent.crdt.counter import Total
from agent.crdt.fingerprint import Change
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

    def as_of(self, now_ms: int) -> dict[str, int | None]:
        """By region, the time (ms since 1970) up to which this state includes it; see Ring.as_of.

        `now_ms` must be no later than this state.
        """
        return self.ring.as_of(self.times, self.agent, now_ms if self.complete else None)


@dataclass(frozen=True, slots=True)
class WorkingSet:
    """The cells and totals that the operations need, as loaded; None for those never written.

    prints: the fingerprints of those cells of which it is known.
    """

    cells: Mapping[Key, Row | None]
    totals: Mapping[MemberKey, Total | None]
    prints: Mapping[Key, int] = field(default_factory=dict)


@dataclass(slots=True)
class Alarms:
    """Counts of what must never happen (docs/metrics.md). Each has a metric that should stay 0.

    covered_changed: a received row changed my state although my version vector covered it.
    forked: the same (incarnation, seq, cell) came with another value.
    peer_ahead: a peer knows of a later write of mine than I do.
    """

    covered_changed: int = 0
    forked: int = 0
    peer_ahead: int = 0


@dataclass(frozen=True, slots=True)
class Outcome:
    """Everything that one batch changed. The row at index i gets the lsn `state.lsn + 1 + i`.

    prints: the fingerprint of each row, in the order of `rows`.
    buckets: what that does to the buckets' fingerprints.
    """

    state: State
    rows: list[Row]
    prints: list[int]
    buckets: dict[int, Change]
    totals: dict[MemberKey, Total]
    answers: list[Answer]
    alarms: Alarms

    def durable_change(self, before: State) -> bool:
        """Whether there is anything to write (`times` alone is not)."""
        now = self.state
        return bool(self.rows) or not (
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
