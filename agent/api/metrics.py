"""Metrics: a collector that looks at the other parts, only when somebody asks.

Names begin with `tallyring_`, units stand last.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import fields

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from agent.api.final_metrics import final_metrics
from agent.api.ring_metrics import ring_metrics
from agent.api.services import Services
from agent.gossip.link import PeerStatus
from agent.gossip.mending import RepairCounts
from agent.gossip.repair import DIVERGED_TIMES
from agent.keeping import KeepingCounts, KeepingStatus
from agent.projection.patrol import PatrolCounts
from agent.projection.status import Phase

PEER_COUNTS = ("exchanges", "failures", "bytes_sent", "bytes_received")
PEER_GAUGES = (
    "rows_behind",
    "rows_left",
    "rows_per_s",
    "cursor_lsn",
    "clock_offset_ms",
    "last_success_ms",
)


class AgentCollector(Collector):
    """Collects the metrics of one agent. Nothing is read from disk or from Redis for it."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def collect(self) -> Iterator[Metric]:
        """All metrics, as they are now."""
        yield from self._requests()
        yield from self._commits()
        yield from self._keeping()
        yield from final_metrics(self._services)
        yield from self._projection()
        yield from ring_metrics(self._services)
        yield from _peers(self._services.peers.status())
        yield from self._repair()
        refused = CounterMetricFamily(
            "tallyring_exchanges_refused", "Peers' messages refused, by reason.", labels=["reason"]
        )
        for reason, count in sorted(self._services.peers.refused.items()):
            refused.add_metric([reason], count)
        yield refused

    def _requests(self) -> Iterator[Metric]:
        counts = self._services.counts
        requests = CounterMetricFamily(
            "tallyring_requests",
            "HTTP requests by route and class of status.",
            labels=["route", "status"],
        )
        for route, by_class in sorted(counts.requests.items()):
            for digit, count in enumerate(by_class):
                if count:
                    requests.add_metric([route, f"{digit}xx"], count)
        yield requests
        entries = CounterMetricFamily(
            "tallyring_entries",
            "Entries written, and entries of refused requests.",
            labels=["outcome"],
        )
        entries.add_metric(["accepted"], counts.accepted)
        entries.add_metric(["refused"], counts.refused)
        yield entries
        live = self._services.live
        yield _gauge("tallyring_live_listeners", "Streams of live boards.", live.listeners)
        yield _gauge("tallyring_live_tops", "Different tops listened to.", live.channels)
        yield _counter("tallyring_live_events", "Tops told to listeners.", live.sent)
        dropped = "Listeners dropped, as their sockets took nothing."
        yield _counter("tallyring_live_dropped", dropped, live.dropped)
        limited = "Entries of requests that were over a board's rate."
        yield _counter("tallyring_rate_limited", limited, counts.rate_limited)

    def _commits(self) -> Iterator[Metric]:
        counts, queue = self._services.counts, self._services.queue
        state = queue.state
        yield _counter("tallyring_rows_changed", "Cells changed by commits.", counts.rows)
        waiting = "Entries and rows that wait to be committed."
        yield _gauge("tallyring_queue_waiting", waiting, queue.waiting_cost)
        yield _gauge("tallyring_seq", "Commits of this incarnation.", state.seq)
        yield _gauge("tallyring_lsn", "Newest local change.", state.lsn)
        yield _gauge("tallyring_cells", "Cells stored.", queue.cells)
        yield _gauge("tallyring_boards", "Boards known, retired ones included.", len(state.catalog))
        overruled = sum(len(board.overruled) for board in state.catalog)
        text = "Definitions that lost against others, with entries of their own."
        yield _gauge("tallyring_boards_overruled", text, overruled)
        yield _gauge("tallyring_facts", "Keys of entries remembered.", state.facts)
        late = "Entries that came after their keys were collected: they may count twice."
        yield _counter("tallyring_late_facts", late, counts.late_facts)
        yield _gauge("tallyring_bans", "Bans that stand.", state.bans.standing)
        yield _gauge("tallyring_erasures", "Names that were erased.", len(state.erased))

    def _keeping(self) -> Iterator[Metric]:
        keeper = self._services.keeper
        status = KeepingStatus() if keeper is None else keeper.status()
        waiting = "Collected spaces of which cells are still here."
        yield _gauge("tallyring_collecting_spaces", waiting, status.collecting)
        purging = "Erased names of which something may still be here."
        yield _gauge("tallyring_purging_names", purging, status.purging)
        held = GaugeMetricFamily(
            "tallyring_held_spaces",
            "Closed spaces that are kept because an agent has not closed or read them.",
            labels=["peer"],
        )
        unconfirmed = GaugeMetricFamily(
            "tallyring_unconfirmed_erasures",
            "Erased names that an agent has not confirmed.",
            labels=["peer"],
        )
        for family, by_agent in ((held, status.held), (unconfirmed, status.unconfirmed)):
            for name, count in sorted(by_agent.items()):
                family.add_metric([name], count)
            yield family
        counts = KeepingCounts() if keeper is None else keeper.counts
        for field in fields(counts):
            count = getattr(counts, field.name)
            yield _counter(f"tallyring_keeping_{field.name}", f"Keeping: {field.name}.", count)

    def _projection(self) -> Iterator[Metric]:
        status = self._services.projector.status()
        phase = GaugeMetricFamily(
            "tallyring_projection_phase", "1 for what the projector is doing.", labels=["phase"]
        )
        for each in Phase:
            phase.add_metric([str(each)], float(each == status.phase))
        yield phase
        yield _gauge("tallyring_projection_lsn", "Newest local change in Redis.", status.lsn)
        behind = "How long the oldest commit that is not in Redis has waited."
        yield _gauge("tallyring_projection_behind_seconds", behind, status.behind_s)
        filling = "Boards of which a window is being filled."
        yield _gauge("tallyring_projection_filling", filling, len(status.boards_rebuilding))
        done = "Members of the windows being filled that are in place."
        yield _gauge("tallyring_projection_filling_done", done, status.refill_done)
        if status.refill_total is not None:
            total = "Members of the windows being filled; absent until it is known."
            yield _gauge("tallyring_projection_filling_total", total, status.refill_total)
        patrol = self._services.patrol
        patrolled = PatrolCounts() if patrol is None else patrol.counts
        for field in fields(patrolled):
            count = getattr(patrolled, field.name)
            yield _counter(f"tallyring_patrol_{field.name}", f"Patrol: {field.name}.", count)
        for field in fields(status.counts):
            count = getattr(status.counts, field.name)
            yield _counter(f"tallyring_projection_{field.name}", f"Projector: {field.name}.", count)

    def _repair(self) -> Iterator[Metric]:
        repairer, peers = self._services.repairer, self._services.peers
        wrong = "Cells here that do not hold what was written to them, not mended yet."
        yield _gauge("tallyring_damaged_cells", wrong, len(peers.damaged))
        differing = sum(link.diverged >= DIVERGED_TIMES for link in peers.links.values())
        text = "Peers that claim the same writes and have other cells."
        yield _gauge("tallyring_diverged_peers", text, differing)
        counts = RepairCounts() if repairer is None else repairer.counts
        for field in fields(counts):
            count = getattr(counts, field.name)
            yield _counter(f"tallyring_repair_{field.name}", f"Repair: {field.name}.", count)


def _peers(peers: Iterable[PeerStatus]) -> Iterator[Metric]:
    named = [peer for peer in peers if peer.name]
    for name in PEER_COUNTS:
        counter = CounterMetricFamily(f"tallyring_peer_{name}", f"Gossip: {name}.", labels=["peer"])
        for peer in named:
            counter.add_metric([peer.name], getattr(peer, name))
        yield counter
    for name in PEER_GAUGES:
        gauge = GaugeMetricFamily(f"tallyring_peer_{name}", f"Gossip: {name}.", labels=["peer"])
        for peer in named:
            value = _of_cursor(peer) if name == "cursor_lsn" else getattr(peer, name)
            if value is not None:
                gauge.add_metric([peer.name], value)
        yield gauge


def _of_cursor(peer: PeerStatus) -> int | None:
    return None if peer.cursor is None else peer.cursor.lsn


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(name, text, value=value)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=value)
