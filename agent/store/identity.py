"""Who an agent is: what a new file is given, and what a file knows of its own past."""

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


@dataclass(frozen=True, slots=True)
class Life:
    """What a file says of the process that last wrote to it.

    boot: the number of that process; 0 for a new file.
    nonce: its random number.
    clean: whether it ended by its own will, with everything answered and stored.
    burnt: why `inc` may not go on, if that is known already.
    seq: the last commit of `inc`.
    lsn: the last change in `log`.
    """

    inc: int
    log: int
    boot: int
    nonce: int
    clean: bool
    burnt: str
    seq: int
    lsn: int
