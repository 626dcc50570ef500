"""A link: what this agent knows of its contact with one peer. Volatile; the loop owns it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

SUSPECT_S = 5.0
DOWN_S = 30.0


@dataclass(frozen=True, slots=True)
class PeerStatus:
    """One peer as this agent sees it, by its own contact only. Times are ms since 1970.

    state: "ok", "suspect" after 5 s and "down" after 30 s without a successful exchange.
    rows_behind: how many of my log entries the peer has not confirmed; None if unknown.
    cursor_lsn: up to where I have read its log; None before the first chunk.
    clock_offset_ms: its clock minus mine, by the last exchange.
    """

    name: str
    url: str
    state: str
    last_success_ms: int | None
    last_error: str
    last_error_ms: int | None
    rows_behind: int | None
    cursor_lsn: int | None
    clock_offset_ms: int | None
    exchanges: int
    failures: int
    bytes_sent: int
    bytes_received: int


@dataclass(slots=True)
class Link:
    """Contact with the agent at one URL. Loop times are those of the event loop's clock."""

    url: str
    name: str = ""
    challenge: int = 0
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
