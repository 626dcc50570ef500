"""Composing: the parts of an agent that are built of several others. No logic."""

from __future__ import annotations

from contextlib import AsyncExitStack

from agent.api.auditor import Auditor
from agent.api.clock import ManualClock
from agent.certifying.certifier import Certifier
from agent.exchange import ChunkLimits
from agent.gossip.answering import Answering
from agent.gossip.client import Client
from agent.gossip.finals import FinalCalls
from agent.gossip.frame import Kind
from agent.gossip.peers import Peers
from agent.gossip.ranges import Ranges
from agent.gossip.repair import Repairer
from agent.gossip.roster import roster_handler
from agent.gossip.snapshots import Shelf
from agent.keeping import Keeper
from agent.projection.patrol import Patrol
from agent.projection.projector import Projector
from agent.projection.rank_store import RankStore
from agent.projection.status import Phase
from agent.store.lock import DATABASE
from agent.store.readers import Readers


def repairing(
    parts: AsyncExitStack,
    peers: Peers,
    client: Client,
    rank_store: RankStore,
    projector: Projector,
) -> tuple[Ranges, Repairer, Auditor]:
    """What looks at cells again, with readers of its own."""
    readers = _own_readers(parts, peers)
    ranges = Ranges(peers, client, readers)
    repairer = Repairer(peers, ranges, readers, peers.config.repair)
    auditor = Auditor(peers, repairer, ranges, readers, rank_store.reads, projector, peers.now_ms)
    return ranges, repairer, auditor


def projecting(peers: Peers, rank_store: RankStore, clock: ManualClock | None) -> Projector:
    """What fills the region's Redis."""
    queue = peers.queue
    return Projector(
        peers.config,
        peers.readers,
        lambda: queue.state,
        rank_store.writes,
        peers.now_ms,
        board_now_ms=clock.now_ms if clock else None,
        identity=lambda: (queue.state.log, queue.state.boot.number),
    )


def keeping(
    parts: AsyncExitStack, peers: Peers, clock: ManualClock | None, projector: Projector
) -> Keeper:
    """What keeps house, with readers of its own."""

    def shown(lsn: int) -> bool:
        status = projector.status()
        follows = status.phase == Phase.FOLLOWING and status.lsn >= lsn
        return follows or status.phase == Phase.WAITING  # another agent fills this Redis

    return Keeper(
        peers.queue,
        _own_readers(parts, peers),
        peers.config.agent.data_dir / DATABASE,
        clock.now_ms if clock else peers.now_ms,
        peers.config.keeping.interval_s,
        clock_off_ms=peers.clock_off_ms if clock is None else lambda: 0,
        shown=shown,
    )


def patrolling(
    parts: AsyncExitStack, peers: Peers, rank_store: RankStore, projector: Projector
) -> Patrol:
    """What compares Redis with SQLite all the time, with readers of its own."""
    config = peers.config
    return Patrol(
        _own_readers(parts, peers),
        rank_store.reads,
        projector,
        lambda: peers.queue.state,
        peers.now_ms,
        round_s=config.projection.patrol_s,
        scan_s=config.projection.scan_s,
        expires=config.agent.clock == "system" and not config.agent.clock_shift_ms,
    )


def certifying(
    parts: AsyncExitStack, peers: Peers, client: Client, clock: ManualClock | None
) -> tuple[Certifier, FinalCalls]:
    """What certifies finals, with readers of its own: it scans whole windows."""
    readers = _own_readers(parts, peers)
    calls = FinalCalls(peers, client, peers.readers)

    def promises() -> bool:
        return clock is not None or not peers.clock_off_ms()

    interval_s = peers.config.keeping.interval_s
    return Certifier(peers.queue, readers, promises, calls.fetch, interval_s), calls


def answering_calls(
    peers: Peers, limits: ChunkLimits, shelf: Shelf, ranges: Ranges, finals: FinalCalls
) -> Answering:
    """What answers other agents' calls, of every kind."""
    return Answering(
        peers,
        limits,
        {
            Kind.ROSTER: roster_handler(peers),
            Kind.SNAPSHOT: shelf.offer,
            Kind.PART: shelf.part,
            Kind.RANGE: ranges.answer,
            Kind.FINAL: finals.answer,
        },
    )


def _own_readers(parts: AsyncExitStack, peers: Peers) -> Readers:
    """Readers of the agent's file that nobody else waits for."""
    readers = Readers(peers.config.agent.data_dir / DATABASE)
    parts.callback(readers.close)
    return readers
