"""A link: what this agent knows of its contact with one peer. Volatile; the loop owns it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from agent.exchange import Chunk, Cursor

SUSPECT_S = 5.0
DOWN_S = 30.0
PACE_S = 5.0  # a rate is of the last so many seconds
PACE_LEAST_S = 0.05  # and of so many at the least


@dataclass(frozen=True, slots=True)
class PeerStatus:
    """One peer as this agent sees it, by its own contact only. Times are ms since 1970.

    state: "ok", "suspect" after 5 s and "down" after 30 s without a successful exchange.
    rows_behind: how many of my log entries the peer has not confirmed; None if unknown.
    cursor: how far I have read its log; None before the first chunk.
    clock_offset_ms: its clock minus mine, by the last exchange.
    rows_left: how many entries of its log I have not read, by its last chunk; None before it.
    rows_per_s: how many of them I read in a second, while there are any; else 0.
    times, behind, told_ms, secret, diverged: see Link.
    """

    name: str
    url: str
    state: str
    last_success_ms: int | None
    last_error: str
    last_error_ms: int | None
    rows_behind: int | None
    cursor: Cursor | None
    clock_offset_ms: int | None
    rows_left: int | None
    rows_per_s: float
    exchanges: int
    failures: int
    bytes_sent: int
    bytes_received: int
    times: Mapping[str, int]
    behind: Mapping[str, int]
    told_ms: int | None
    secret: str
    diverged: int


@dataclass(frozen=True, slots=True)
class Joiner:
    """A new agent that fetches a snapshot of this one.

    rows_left: how many cells it has not got yet.
    rows_per_s: how many of them it gets in a second.
    heard: when it was last heard of, by the event loop's clock.
    """

    name: str
    rows_left: int
    rows_per_s: float
    heard: float


@dataclass(slots=True)
class Link:
    """Contact with the agent at one URL. Loop times are those of the event loop's clock.

    log: its log, as it last said; 0 before it answered.
    secret: the name of the secret that it proves itself with.
    times, behind: how far its state reached when it last told, and by how many entries of its log
        others lag.
    told_ms: when it told that, ms since 1970.
    diverged: how often in a row it claimed the same writes as I and had other cells.
    head: whether I have read its log to the end since this process began.
    rows_left: how many entries of its log are unread; None before its first chunk.
    pace: where I was in its log in the last seconds while I catch up: (time, lsn), oldest first.
    """

    url: str
    name: str = ""
    log: int = 0
    challenge: int = 0
    secret: str = ""
    times: Mapping[str, int] = field(default_factory=dict)
    behind: Mapping[str, int] = field(default_factory=dict)
    told_ms: int | None = None
    diverged: int = 0
    head: bool = False
    rows_left: int | None = None
    pace: deque[tuple[float, int]] = field(default_factory=deque)
    due: asyncio.Event = field(default_factory=asyncio.Event)
    began: float = 0.0
    last_success: float | None = None
    last_success_ms: int | None = None
    last_error: str = ""
    last_error_ms: int | None = None
    failures_in_a_row: int = 0
    not_before: float = 0.0
    clock_offset_ms: int | None = None
    exchanges: int = 0
    failures: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0

    def state(self, now: float) -> str:
        """How long it is since this peer was last reached, in a word."""
        silent_s = now - (self.began if self.last_success is None else self.last_success)
        return "down" if silent_s > DOWN_S else "suspect" if silent_s > SUSPECT_S else "ok"

    def read(self, chunk: Chunk, now: float) -> None:
        """A chunk of its log came: what is left, and how fast it gets less."""
        if chunk.head:
            self.rows_left = 0
            self.pace.clear()
            return
        if not self.pace or chunk.start < self.pace[-1][1]:  # it begins, or another log does
            self.pace.clear()
            self.pace.append((now, chunk.start))
        self.pace.append((now, chunk.to))
        while len(self.pace) > 2 and now - self.pace[1][0] > PACE_S:
            self.pace.popleft()
        self.rows_left = max(0, chunk.newest - chunk.to)

    def rows_per_s(self, now: float) -> float:
        """How many entries of its log were read in a second lately, while I catch up."""
        if not self.pace:
            return 0.0
        (since, low), (_, high) = self.pace[0], self.pace[-1]
        return (high - low) / max(now - since, PACE_LEAST_S)

    def succeeded(self, now: float, now_ms: int) -> None:
        """The peer was reached, in either direction: its backoff is over."""
        self.last_success = now
        self.last_success_ms = now_ms
        self.failures_in_a_row = 0
        self.not_before = now

    def failed(self, error: str, now_ms: int) -> None:
        """The peer could not be reached, or refused."""
        self.failures += 1
        self.failures_in_a_row += 1
        self.last_error = error
        self.last_error_ms = now_ms
