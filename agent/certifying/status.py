"""What the certifier tells about itself: for metrics, the console and the windows' states."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(slots=True)
class CertifyingCounts:
    """What was done since the start.

    scans: of whole windows. frozen, thawed, certified, fetched: finals.
    """

    scans: int = 0
    frozen: int = 0
    thawed: int = 0
    certified: int = 0
    fetched: int = 0


@dataclass(frozen=True, slots=True)
class CertifyingStatus:
    """What waits, and for whom.

    pending: closed windows that are not certified here.
    waiting: agent -> for how many of them it has not said what this agent says.
    fetching: certificates whose rows are not here yet.
    disagreeing: windows whose digests have differed for long.
    late: windows of which something came after their final.
    conflicts: windows with different certificates of one version.
    trouble: why the last turn did not end; empty if it did.
    by_state: closed windows that are kept, by how far this agent is with them.
    """

    pending: int = 0
    waiting: Mapping[str, int] = field(default_factory=dict)
    fetching: int = 0
    disagreeing: int = 0
    late: int = 0
    conflicts: int = 0
    trouble: str = ""
    by_state: Mapping[str, int] = field(default_factory=dict)
