"""Metrics: counts that the routes keep, and a collector that looks at the other parts.

Requests are counted in plain integers, which costs a hot request next to nothing; they become
metrics only when somebody asks. Names begin with `tallyring_`, units stand last.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import fields
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from agent.commit import Commit
from agent.gossip.link import PeerStatus
from agent.projection.status import Phase

if TYPE_CHECKING:  # the collector looks at the services, which hold the counts
    from agent.api.services import Services

PEER_COUNTS = ("exchanges", "failures", "bytes_sent", "bytes_received")
PEER_GAUGES = ("rows_behind", "cursor_lsn", "clock_offset_ms", "last_success_ms")


class Counts:
    """What happened since the start. Owned by the event loop.

    accepted, refused: entries, by what became of their request.
    rows, covered_changed, forked, peer_ahead: of commits (agent/apply.py); the last three stay 0.
    """

    def __init__(self) -> None:
        self.accepted = 0
        self.refused = 0
        self.rows = 0
        self.covered_changed = 0
        self.forked = 0
        self.peer_ahead = 0
        self.requests: dict[str, list[int]] = {}

    def of(self, route: str) -> list[int]:
        """The counts of a route's requests, by the first digit of their status."""
        return self.requests.setdefault(route, [0] * 6)

    def committed(self, commit: Commit) -> None:
        """Count a commit; to be called for each."""
        self.rows += commit.rows
        self.covered_changed += commit.alarms.covered_changed
        self.forked += commit.alarms.forked
        self.peer_ahead += commit.alarms.peer_ahead


class AgentCollector(Collector):
    """Collects the metrics of one agent. Nothing is read from disk or from Redis for it."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def collect(self) -> Iterator[Metric]:
        """All metrics, as they are now."""
        yield from self._requests()
        yield from self._commits()
        yield from self._projection()
        yield from _peers(self._services.peers())
        refused = CounterMetricFamily(
            "tallyring_exchanges_refused", "Peers' messages refused, by reason.", labels=["reason"]
        )
        for reason, count in sorted(self._services.refusals().items()):
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

    def _commits(self) -> Iterator[Metric]:
        counts, queue = self._services.counts, self._services.queue
        state = queue.state
        yield _counter("tallyring_rows_changed", "Cells changed by commits.", counts.rows)
        alarms = CounterMetricFamily(
            "tallyring_alarms", "What must never happen; each must stay 0.", labels=["alarm"]
        )
        alarms.add_metric(["covered_changed"], counts.covered_changed)
        alarms.add_metric(["forked"], counts.forked)
        alarms.add_metric(["peer_ahead"], counts.peer_ahead)
        yield alarms
        waiting = "Entries and rows that wait to be committed."
        yield _gauge("tallyring_queue_waiting", waiting, queue.waiting_cost)
        yield _gauge("tallyring_seq", "Commits of this incarnation.", state.seq)
        yield _gauge("tallyring_lsn", "Newest local change.", state.lsn)
        yield _gauge("tallyring_cells", "Cells stored.", queue.cells)
        yield _gauge("tallyring_boards", "Boards known, retired ones included.", len(state.catalog))

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
        filling = "Boards that are being filled."
        yield _gauge("tallyring_projection_filling", filling, len(status.boards_rebuilding))
        for field in fields(status.counts):
            count = getattr(status.counts, field.name)
            yield _counter(f"tallyring_projection_{field.name}", f"Projector: {field.name}.", count)


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
            value = getattr(peer, name)
            if value is not None:
                gauge.add_metric([peer.name], value)
        yield gauge


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(name, text, value=value)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=value)
