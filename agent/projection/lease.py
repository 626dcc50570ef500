"""How long a rival is waited for: by my own clock, and by nothing but what I see.

The clocks of two agents may differ by more than a lease, so the time that one wrote is never
compared with the time of another. An agent that projects changes its watermark several times while
a lease lasts, also when nothing is written; so a watermark that has stood still for a whole lease
has lost its agent. A wrong guess does no harm to the numbers: whoever takes over moves the
watermark, and then nothing that the other one sends fits any more.
"""

from __future__ import annotations

from agent.projection.keys import Fields, Guard, guard_in


class Patience:
    """Watches one watermark that is not mine.

    Args:
        lease_s: how long it must have stood still; all agents of a region have the same.
    """

    def __init__(self, lease_s: float) -> None:
        self._lease_s = lease_s
        self._seen: tuple[Guard, bytes] | None = None
        self._since_s = 0.0

    def lapsed(self, found: Fields, now_s: float) -> bool:
        """Whether what is found at `now_s` (of a monotonic clock) has stood still for a lease."""
        seen = (guard_in(found), found.get(b"lease_until_ms", b""))
        if seen != self._seen:
            self._seen, self._since_s = seen, now_s
        return now_s - self._since_s >= self._lease_s

    def forget(self) -> None:
        """Begin anew: nobody could move the watermark, as Redis was away."""
        self._seen = None
