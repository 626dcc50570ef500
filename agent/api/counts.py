"""Counts: plain integers that the routes keep, which costs a hot request next to nothing."""

from __future__ import annotations

from agent.committer import Commit

# Words of a reason for a new incarnation (agent/identity.py and those who find one burnt at run
# time), and the class that metrics count it under.
REASONS = (
    ("did not end cleanly", "unclean"),
    ("identity token", "file"),
    ("is a copy", "file"),
    ("Redis", "redis"),
    ("clock", "clock"),
    ("did not answer", "unconfirmed"),
    ("can't be asked", "unconfirmed"),
    ("is agent '", "unconfirmed"),
    ("process", "twin"),
    ("an agent is called", "twin"),
)
OTHER_REASON = "behind"  # a member knows more of it than the file
REASON_CLASSES = (*dict.fromkeys(name for _, name in REASONS), OTHER_REASON)


def class_of(why: str) -> str:
    """The class of a reason for which an incarnation was replaced."""
    return next((name for words, name in REASONS if words in why), OTHER_REASON)


class Counts:
    """What happened since the start. Owned by the event loop.

    accepted, refused: entries, by what became of their request.
    rate_limited: of those refused, the ones over their board's rate.
    rows: cells changed by commits.
    covered_changed, forked, peer_ahead, late_facts: of commits (agent/state.py); they stay 0.
    damaged: how often a cell was met that does not hold what was written to it.
    exporting: finals that are being exported now.
    minted: incarnations that this process has begun, by the class of the reason.
    why_minted: the reason of the newest one; empty without one.
    """

    def __init__(self) -> None:
        self.accepted = 0
        self.refused = 0
        self.rate_limited = 0
        self.rows = 0
        self.covered_changed = 0
        self.forked = 0
        self.peer_ahead = 0
        self.late_facts = 0
        self.damaged = 0
        self.exporting = 0
        self.minted = dict.fromkeys(REASON_CLASSES, 0)
        self.why_minted = ""
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
        self.late_facts += commit.alarms.late_facts
        self.damaged += len(commit.damaged)
        if commit.minted:
            self.minted[class_of(commit.minted)] += 1
            self.why_minted = commit.minted
