"""Metrics of finals: what waits to be certified and for whom, what was done, what came after."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from agent.api.alarms import certifying_status
from agent.api.services import Services
from agent.certifying.status import CertifyingCounts


def final_metrics(services: Services) -> Iterator[Metric]:
    """All of them, as they are now."""
    status = certifying_status(services)
    states = GaugeMetricFamily(
        "tallyring_finals_windows",
        "Windows that are closed here and kept, by this agent's state.",
        labels=["state"],
    )
    for state, count in sorted(status.by_state.items()):
        states.add_metric([state], count)
    yield states
    waiting = GaugeMetricFamily(
        "tallyring_finals_waiting", "Windows that wait for an agent.", labels=["peer"]
    )
    for name, count in sorted(status.waiting.items()):
        waiting.add_metric([name], count)
    yield waiting
    for name, text in (
        ("pending", "Closed windows that are not certified here."),
        ("fetching", "Certificates whose rows are not here yet."),
        ("disagreeing", "Windows whose digests have differed for 5 minutes."),
        ("late", "Windows of which something came after their final."),
        ("conflicts", "Windows with two different finals under one version."),
    ):
        yield GaugeMetricFamily(f"tallyring_finals_{name}", text, value=getattr(status, name))
    exporting = "Finals that are being exported."
    yield GaugeMetricFamily("tallyring_finals_exporting", exporting, services.counts.exporting)
    certifier = services.certifier
    counts = CertifyingCounts() if certifier is None else certifier.counts
    for field in fields(counts):
        count = getattr(counts, field.name)
        text = f"Certifying: {field.name}."
        yield CounterMetricFamily(f"tallyring_finals_{field.name}", text, value=count)
