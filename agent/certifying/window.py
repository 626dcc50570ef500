"""What a process knows of a window that it has not certified yet."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from agent.boards.final_rows import SUM_MODULUS
from agent.store.standings import Summed

DISAGREE_S = 300.0  # digests that differ for so long are an alarm


class Copied(NamedTuple):
    """A copy that was made: its hash, and the lsn of the snapshot that it was made from."""

    hash: bytes
    lsn: int


@dataclass(slots=True)
class Tally:
    """The sum over the digests of a window's standings: read once, and followed with each commit.

    erased: how many names were erased when it was read.
    lsn: of the snapshot that it was read from; None until then.
    usable: whether it is known.
    """

    erased: int
    total: int = 0
    lsn: int | None = None
    usable: bool = False
    _changes: list[tuple[int, int | None]] = field(default_factory=list)

    def take(self, lsn: int, added: int | None) -> None:
        """Take over what a commit adds; None: nobody can tell."""
        if self.lsn is None:
            self._changes.append((lsn, added))
        elif lsn > self.lsn:
            self.usable = self.usable and added is not None
            self.total = (self.total + (added or 0)) % SUM_MODULUS

    def read(self, found: Summed) -> None:
        """Begin with what was read, and with what has come since."""
        self.total, self.lsn, self.usable = found.total, found.lsn, True
        changes, self._changes = self._changes, []
        for lsn, added in changes:
            self.take(lsn, added)


@dataclass(slots=True)
class Pending:
    """What is known of one window.

    tally: None until the window is settled.
    copied: digest -> the copy that was made of it.
    state: how far this agent was with it when it was last looked at.
    waits: for whom.
    differ_since: when all had said their digests, and those differed; by a steady clock.
    fetching: whether the rows of its certificate are not here yet.
    """

    tally: Tally | None = None
    copied: dict[bytes, Copied] = field(default_factory=dict)
    state: str = "closed"
    waits: tuple[str, ...] = ()
    differ_since: float | None = None
    fetching: bool = False

    def take(self, lsn: int, added: int | None) -> None:
        """Take over what a commit adds to the sum of its standings' digests."""
        if self.tally is not None:
            self.tally.take(lsn, added)

    def disagrees(self, now_s: float) -> bool:
        """Whether digests have differed for too long."""
        return self.differ_since is not None and now_s - self.differ_since >= DISAGREE_S
