"""Who an agent is: fixed in its file when the file is created."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Identity:
    """What a new file is given. An existing file keeps its own `inc` and `log`.

    ring, agent, region: as configured; an existing file must agree.
    inc: a freshly minted incarnation.
    log: a fresh random id (63 bits) of the local change log.
    """

    ring: str
    agent: str
    region: str
    inc: int
    log: int
