"""Metrics of the ring: alarms, identity, members, and how far a leaving agent is."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from agent.api.alarms import raised
from agent.api.services import Services
from agent.crdt.document import Status
from agent.gossip.link import PeerStatus

STATES = ("ok", "suspect", "down")


def ring_metrics(services: Services) -> Iterator[Metric]:
    """All of them, as they are now."""
    yield from _alarms(services)
    yield from _identity(services)
    yield from _members(services)
    yield from _leaving(services)
    yield from _joining(services)


def _alarms(services: Services) -> Iterator[Metric]:
    counts = services.counts
    alarms = CounterMetricFamily(
        "tallyring_alarms", "What must never happen; each must stay 0.", labels=["alarm"]
    )
    alarms.add_metric(["covered_changed"], counts.covered_changed)
    alarms.add_metric(["forked"], counts.forked)
    alarms.add_metric(["peer_ahead"], counts.peer_ahead)
    alarms.add_metric(["damaged"], counts.damaged)
    yield alarms
    standing = GaugeMetricFamily(
        "tallyring_alarm_raised", "1 for each alarm that stands now.", labels=["alarm"]
    )
    for name, stands in raised(services).items():
        standing.add_metric([name], float(stands))
    yield standing


def _identity(services: Services) -> Iterator[Metric]:
    state = services.queue.state
    minted = CounterMetricFamily(
        "tallyring_incarnations_minted",
        "Incarnations begun in the place of another, by why.",
        labels=["reason"],
    )
    for reason, count in services.counts.minted.items():
        minted.add_metric([reason], count)
    yield minted
    me = state.ring.members.get(state.agent)
    own = "Incarnations of this agent, in all its life."
    yield GaugeMetricFamily("tallyring_incarnations", own, value=len(me.incs) if me else 0)
    burnt = "1 while the incarnation writes no more; the next write mints another."
    yield GaugeMetricFamily("tallyring_burnt", burnt, value=float(bool(state.burnt)))
    complete = "1 once everything that this agent ever acknowledged is known to be here."
    yield GaugeMetricFamily("tallyring_complete", complete, value=float(state.complete))
    boot = "Number of this process."
    yield GaugeMetricFamily("tallyring_boot", boot, value=state.boot.number)


def _members(services: Services) -> Iterator[Metric]:
    members = GaugeMetricFamily(
        "tallyring_ring_members", "Agents of the ring by status.", labels=["status"]
    )
    known = services.queue.state.ring.members.values()
    for status in Status:
        count = sum(1 for member in known if member.status == status)
        members.add_metric([status.name.lower()], count)
    yield members
    states = GaugeMetricFamily(
        "tallyring_peer_state", "1 for how this agent stands with a peer.", labels=["peer", "state"]
    )
    diverged = GaugeMetricFamily(
        "tallyring_peer_diverged",
        "How often in a row a peer claimed the same writes and had other cells.",
        labels=["peer"],
    )
    for peer in _named(services):
        for state in STATES:
            states.add_metric([peer.name, state], float(peer.state == state))
        diverged.add_metric([peer.name], peer.diverged)
    yield states
    yield diverged


def _leaving(services: Services) -> Iterator[Metric]:
    leaving = services.leaving
    lacking = leaving.lacking() if leaving.phase is not None else {}
    yield GaugeMetricFamily(
        "tallyring_leaving", "1 while this agent leaves.", value=float(leaving.phase is not None)
    )
    waits = "Members that a leaving agent waits for."
    yield GaugeMetricFamily("tallyring_leaving_waits", waits, value=len(lacking))
    rows = "Changes that the slowest of them has still to confirm."
    most = max((left or 0 for left in lacking.values()), default=0)
    yield GaugeMetricFamily("tallyring_leaving_rows", rows, value=most)


def _named(services: Services) -> list[PeerStatus]:
    return [peer for peer in services.peers.status() if peer.name]


def _joining(services: Services) -> Iterator[Metric]:
    """How far new agents are that fetch a snapshot of this one."""
    left = GaugeMetricFamily(
        "tallyring_joiner_rows_left", "Cells that a new agent has still to fetch.", labels=["peer"]
    )
    rate = GaugeMetricFamily(
        "tallyring_joiner_rows_per_s", "Cells that it fetches in a second.", labels=["peer"]
    )
    for joiner in services.peers.joiners():
        left.add_metric([joiner.name], joiner.rows_left)
        rate.add_metric([joiner.name], joiner.rows_per_s)
    yield left
    yield rate
