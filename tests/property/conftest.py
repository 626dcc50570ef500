"""Hypothesis for this suite: no deadlines (the machine is shared), and failures that repeat."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile(
    "tallyring",
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("tallyring")
