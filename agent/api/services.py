"""Services: everything that the routes use, handed over by the composition root."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry

from agent.api.auditor import Auditor
from agent.api.auth import Auth
from agent.api.bodies import Arriving
from agent.api.channels import Live
from agent.api.choosing import OpenWindows
from agent.api.clock import ManualClock
from agent.api.counts import Counts
from agent.api.freshness import FreshnessCache
from agent.api.rates import Rates
from agent.api.standings import Standings
from agent.api.top import TopPages
from agent.certifying.certifier import Certifier
from agent.commit import CommitQueue
from agent.config import Config
from agent.gossip.leaving import Leaving
from agent.gossip.peers import Peers
from agent.gossip.repair import Repairer
from agent.keeping import Keeper
from agent.limits import PEER_ARRIVING_BYTES_MAX
from agent.projection.patrol import Patrol
from agent.projection.projector import Projector
from agent.projection.reads import Ranks
from agent.store.readers import Readers


@dataclass(frozen=True, slots=True)
class Services:
    """What the routes need of the agent's other parts.

    now_ms: the physical clock, for `as_of`.
    answer: answers a peer's call with (HTTP status, content type, body).
    peers: this agent's contact with the others.
    leaving: this agent's own way out of the ring.
    repairer, auditor: what looks at cells again; None where there is no gossip.
    keeper: what keeps house; None where nothing does.
    certifier: what certifies finals; None where nothing does.
    patrol: what compares Redis with the file all the time; None where nothing does.
    clock: where the time of entries is set by hand; None with the system's clock.
    rates: how many entries of one member are taken; by a clock that is never set by hand.
    registry: where /metrics collects; the routes add theirs when the application is made.
    counts: what the routes count; its `committed` wants to be told of each commit.
    arriving: peers' messages that are being received.
    """

    config: Config
    queue: CommitQueue
    readers: Readers
    ranks: Ranks
    projector: Projector
    now_ms: Callable[[], int]
    answer: Callable[[bytes], Awaitable[tuple[int, str, bytes]]]
    peers: Peers
    leaving: Leaving
    repairer: Repairer | None = None
    auditor: Auditor | None = None
    keeper: Keeper | None = None
    certifier: Certifier | None = None
    patrol: Patrol | None = None
    clock: ManualClock | None = None
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)
    counts: Counts = field(default_factory=Counts)
    rates: Rates = field(default_factory=lambda: Rates(time.monotonic))
    arriving: Arriving = field(default_factory=lambda: Arriving(PEER_ARRIVING_BYTES_MAX))
    auth: Auth = field(init=False)
    freshness: FreshnessCache = field(init=False)
    standings: Standings = field(init=False)
    top: TopPages = field(default_factory=TopPages)
    windows: OpenWindows = field(default_factory=OpenWindows)
    live: Live = field(default_factory=Live)

    def __post_init__(self) -> None:
        """Open what is derived from the rest.

        Raises:
            ConfigError: the tokens file can't be used.
        """
        object.__setattr__(self, "auth", Auth(self.config.auth.tokens_file))
        object.__setattr__(self, "freshness", FreshnessCache(self.now_ms))
        object.__setattr__(self, "standings", Standings(self.readers))

    def board_now_ms(self) -> int:
        """The boards' time, in ms since 1970: of entries without `at`, and by which windows end."""
        return self.now_ms() if self.clock is None else self.clock.now_ms()
