"""What a simulated process knows of windows on their way to their finals."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from agent.certifying.window import Pending
from agent.committer import Commit


@dataclass(slots=True)
class Certifying:
    """What a process knows of windows that it has not certified yet: it is lost with it.

    pending: by space.
    prepared: what it is about to do, in order.
    turn: which window is looked at next.
    now_ms: the agent's clock, when it was last asked for a move.
    purged: the erased names, by their ids, that were looked for in the rows of finals.
    followed: the windows whose sums have changed since somebody compared them.
    """

    pending: dict[bytes, Pending] = field(default_factory=dict)
    prepared: deque[Callable[[], None]] = field(default_factory=deque)
    turn: int = 0
    now_ms: int = 0
    purged: set[bytes] = field(default_factory=set)
    followed: set[bytes] = field(default_factory=set)

    def committed(self, commit: Commit) -> None:
        """Told after each commit: follows sums, as Certifier.committed does."""
        for first, outcome in commit.outcomes:
            newest = first + len(outcome.rows) - 1
            for space, added in outcome.late.items():
                if space in self.pending:
                    self.pending[space].take(newest, added)
                    self.followed.add(space)
