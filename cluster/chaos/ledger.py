"""The ledger: every write, and what its client was told about it.

A write is *ok* (answered: it must count), *refused* (answered with `definite: true`, or never sent:
it must not count) or *indefinite* (no answer, or `definite: false`: it may count, once, now or
later). A key is left for a new one as soon as one of its writes is indefinite, so that hardly ever
more than one or two writes of a key are in doubt, and one lost or doubled increment shows.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

WRITES_MAX = 150  # of one key: then a new one takes its place, and this one must stay as it is
SHOWN_MAX = 20  # wrong reads kept as text; all are counted


class Outcome(StrEnum):
    """What a client knows of its write."""

    OK = "ok"
    REFUSED = "refused"
    INDEFINITE = "indefinite"


@dataclass(slots=True)
class Write:
    """One write: `number` is its amount or its score; times are those of the loop's clock."""

    agent: str
    number: int
    sent_s: float
    outcome: Outcome | None = None


@dataclass(slots=True)
class Key:
    """A member of a board, and what was written to it.

    rule: `sum`, `best` or `latest`. owner: the client that alone writes it; empty: all do.
    grows: no write lowers it. sent: the sum of all amounts above 0 that were ever sent, refused
    ones included. ok: the sum of what was acknowledged. doubtful: the amounts that may count.
    writes: of `best` and `latest`, all that were not refused, in the order in which they were sent.
    """

    board: str
    member: str
    rule: str
    owner: str = ""
    grows: bool = True
    sent: int = 0
    ok: int = 0
    ok_writes: int = 0
    doubtful: list[int] = field(default_factory=list)
    writes: list[Write] = field(default_factory=list)
    began_s: float = 0.0
    ended_s: float = 0.0
    closed: bool = False

    @property
    def name(self) -> tuple[str, str]:
        """Board and member."""
        return self.board, self.member


Cell = tuple[str, str, bytes]
"""Board, member and slot."""


@dataclass(frozen=True, slots=True)
class Loss:
    """A disk that was put back or emptied, and what no other disk had.

    cells: by cell, (its number on the disk that is gone, the greatest on any other disk and on
    the copy that was put back; None where there is none). Numbers are the cells' `major`.
    """

    agent: str
    at_s: float
    cells: dict[Cell, tuple[int, int | None]]


@dataclass(frozen=True, slots=True)
class Look:
    """What was known before a read was sent: what was shown by then, and on which disk."""

    agent: str
    key: Key
    disk: int
    floor: int


@dataclass(slots=True)
class Ledger:
    """All keys, all losses and the counts of a run. Owned by one event loop."""

    keys: dict[tuple[str, str], Key] = field(default_factory=dict)
    losses: list[Loss] = field(default_factory=list)
    counts: dict[Outcome, int] = field(default_factory=lambda: dict.fromkeys(Outcome, 0))
    not_ok: dict[str, int] = field(default_factory=dict)
    reads: int = 0
    wrong_reads: int = 0
    shown: list[str] = field(default_factory=list)
    _current: dict[tuple[str, str], Key] = field(default_factory=dict)
    _floors: dict[tuple[str, str, str], int] = field(default_factory=dict)
    _disks: dict[str, int] = field(default_factory=dict)

    def key(self, board: str, kind: str, rule: str, *, owner: str = "", grows: bool = True) -> Key:
        """The key that a client, or everybody, writes now: a new one if the last was closed."""
        found = self._current.get((kind, owner))
        if found is None or found.closed:
            member = f"{kind}-{owner}-{len(self.keys)}" if owner else f"{kind}-{len(self.keys)}"
            found = Key(board, member, rule, owner, grows)
            self.keys[found.name] = self._current[kind, owner] = found
        return found

    def begin(self, key: Key, agent: str, number: int, now_s: float) -> Write:
        """Note that a write is about to be sent."""
        key.began_s = key.began_s or now_s
        key.sent += max(number, 0)
        write = Write(agent, number, now_s)
        if key.rule != "sum":
            key.writes.append(write)
        return write

    def end(self, key: Key, write: Write, outcome: Outcome, now_s: float) -> None:
        """Note what became of a write."""
        write.outcome = outcome
        key.ended_s = now_s
        self.counts[outcome] += 1
        match outcome:
            case Outcome.OK:
                key.ok += write.number
                key.ok_writes += 1
            case Outcome.REFUSED:
                self.not_ok[write.agent] = self.not_ok.get(write.agent, 0) + 1
                if key.rule != "sum":
                    key.writes.remove(write)
            case Outcome.INDEFINITE:
                self.not_ok[write.agent] = self.not_ok.get(write.agent, 0) + 1
                key.doubtful.append(write.number)
                key.closed = True
        key.closed = key.closed or key.ok_writes >= WRITES_MAX

    def disk_changed(self, loss: Loss) -> None:
        """Note a loss. Its agent may now show less; keys in use are left, at every client."""
        self.losses.append(loss)
        self._disks[loss.agent] = self._disks.get(loss.agent, 0) + 1
        for key in self._current.values():
            key.closed = True
        for floor in [floor for floor in self._floors if floor[0] == loss.agent]:
            del self._floors[floor]

    def looking(self, agent: str, key: Key) -> Look:
        """Take this before a request is sent, and give it to `saw` with its answer."""
        floor = self._floors.get((agent, *key.name), 0)
        return Look(agent, key, self._disks.get(agent, 0), floor)

    def growing(self, count: int) -> list[Key]:
        """The newest keys that only grow, for readers."""
        newest = list(self.keys.values())[-4 * count :]
        return [key for key in newest if key.rule == "sum" and key.grows][-count:]

    def saw(self, look: Look, value: int) -> None:
        """Judge what an agent showed of a key that only grows.

        It never falls at one agent, unless that agent's disk was put back in between, and never
        exceeds all that was ever sent.
        """
        agent, key = look.agent, look.key
        if look.disk != self._disks.get(agent, 0):
            return
        self.reads += 1
        if value < look.floor:
            self._wrong(f"{agent} showed {key.member} fall from {look.floor} to {value}")
        if value > key.sent:
            self._wrong(f"{agent} showed {value} for {key.member}; at most {key.sent} was sent")
        place = (agent, *key.name)
        self._floors[place] = max(self._floors.get(place, 0), value)

    def _wrong(self, text: str) -> None:
        self.wrong_reads += 1
        if len(self.shown) < SHOWN_MAX:
            self.shown.append(text)
