"""Recent changes: what was just committed, in memory, so that following it needs no read.

The log in SQLite is what the projector reads; this is a bounded copy of its end. Where the copy
does not reach back to the watermark (the start, a failover, a slow Redis), the log is read instead.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import islice

from agent.committer import Commit
from agent.crdt.cell import Row
from agent.crdt.slot import TALLIED_KINDS
from agent.crdt.space import is_own
from agent.crdt.total import Total

ROWS_MAX = 20_000  # about 10 MB, and a second or two of a busy agent's changes

Entry = tuple[int, Row, Total | None]
"""(lsn, row, its member's total where the row is of a tallied kind), as of its commit."""


class Recent:
    """The last changes of the log, without a gap: what comes after one begins anew.

    Used on the event loop only.
    """

    def __init__(self) -> None:
        self._entries: deque[Entry] = deque()

    def add(self, commit: Commit) -> None:
        """Append what a commit changed; forget everything where that is too much."""
        for first_lsn, outcome in commit.outcomes:
            if self._entries and self._entries[-1][0] != first_lsn - 1:
                self._entries.clear()
            totals = outcome.totals
            for lsn, row in enumerate(outcome.rows, first_lsn):
                if row[2][0] in TALLIED_KINDS and not is_own(row[0]):
                    if row[:2] not in totals:  # the log says what its member adds up to
                        self._entries.clear()
                        continue
                    self._entries.append((lsn, row, totals[row[:2]]))
                else:
                    self._entries.append((lsn, row, None))
        if len(self._entries) > ROWS_MAX:
            self._entries.clear()

    def after(self, lsn: int, newest_lsn: int, limit: int) -> Iterator[Entry] | None:
        """The next entries above `lsn`, at most `limit`; None where they are not all here.

        What lies at or below `lsn` is forgotten: the projector does not need it again, and if it
        does after all, it reads the log.
        """
        entries = self._entries
        while entries and entries[0][0] <= lsn:
            entries.popleft()
        if not entries:
            return iter(()) if lsn == newest_lsn else None
        if entries[0][0] != lsn + 1 or entries[-1][0] != newest_lsn:
            return None
        return islice(entries, limit)
