"""What a run of the demo measured."""

from __future__ import annotations

from dataclasses import dataclass, field

from cluster.actor_checker import Estimates
from cluster.checker import Verdict
from cluster.final_checker import ShownFinal
from cluster.probe import Latencies
from cluster.taps import TapCounts


@dataclass(slots=True)
class Cut:
    """What happened while one region was cut off."""

    region: str = ""
    seconds: float = 0.0
    rows_written: int = 0  # acknowledged by that region meanwhile
    lag_ms: int | None = None  # how far behind it was when the link was healed
    refused_connections: int = 0
    refused_bytes: int = 0
    caught_up_s: float | None = None  # from the heal until every region included its time


@dataclass(slots=True)
class Keyed:
    """What became of entries with keys.

    keys: how many there were. resent: how often one was sent once more. answered: how many of those
    the region knew already, and said so. late: entries that a window did not take any more.
    facts: by region, the keys that are still remembered.
    """

    keys: int = 0
    resent: int = 0
    answered: int = 0
    late: int = 0
    facts: dict[str, int] = field(default_factory=dict)

    @property
    def taken_back(self) -> int:
        """How many were counted once more in a region that could not know, until they met."""
        return self.resent - self.answered


@dataclass(slots=True)
class Result:
    """Everything that a run measured. Bytes are those of all links together, HTTP included.

    times: of the boards, from and to, in ms since 1970; None where the agents went by the system's
        clock. taps: None where nobody liked anything.
    """

    regions: tuple[str, ...]
    rows: int = 0
    entries: int = 0
    replay_s: float = 0.0
    converged_s: float | None = None  # from the last answer until every region included it
    cut: Cut = field(default_factory=Cut)
    keyed: Keyed = field(default_factory=Keyed)
    times: tuple[int, int] | None = None
    taps: TapCounts | None = None
    estimates: Estimates = field(default_factory=Estimates)
    finals: list[ShownFinal] = field(default_factory=list)
    verdict: Verdict = field(default_factory=Verdict)
    check_s: float = 0.0
    loaded: Latencies = field(default_factory=Latencies)
    calm: Latencies = field(default_factory=Latencies)
    wire_bytes: int = 0
    cells: dict[str, int] = field(default_factory=dict)
    resident_bytes: dict[str, int] = field(default_factory=dict)

    @property
    def proven(self) -> bool:
        """Whether the cut really happened; a ring of one region has no link to cut."""
        return len(self.regions) < 2 or self.cut.refused_bytes > 0

    @property
    def good(self) -> bool:
        """Whether the run proves what it is meant to."""
        return self.verdict.equal and self.proven and self.converged_s is not None

    @property
    def wire_bytes_per_entry(self) -> float:
        """Bytes on the wire for each entry and each peer that has to get it."""
        peers = max(1, len(self.regions) - 1)
        return self.wire_bytes / max(1, self.entries) / peers
