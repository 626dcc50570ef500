"""Counts: plain integers that the routes keep, which costs a hot request next to nothing."""

from __future__ import annotations

from agent.commit import Commit


class Counts:
    """What happened since the start. Owned by the event loop.

    accepted, refused: entries, by what became of their request.
    rows, covered_changed, forked, peer_ahead: of commits (agent/apply.py); the last three stay 0.
    """

    def __init__(self) -> None:
        self.accepted = 0
        self.refused = 0
        self.rows = 0
        self.covered_changed = 0
        self.forked = 0
        self.peer_ahead = 0
        self.requests: dict[str, list[int]] = {}

    def of(self, route: str) -> list[int]:
        """The counts of a route's requests, by the first digit of their status."""
        return self.requests.setdefault(route, [0] * 6)

    def committed(self, commit: Commit) -> None:
        """Count a commit; to be called for each."""
        self.rows += commit.rows
        self.covered_changed += commit.alarms.covered_changed
        self.forked += commit.alarms.forked
        self.peer_ahead += commit.alarms.peer_ahead
