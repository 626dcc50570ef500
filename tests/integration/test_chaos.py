"""Chaos, short: every fault under writes, and every total judged. `tallyring chaos` goes on."""

from __future__ import annotations

import pytest

from cluster.chaos.faults import available
from cluster.chaos.run import Options, run

SEED, SECONDS = 28, 20.0
ACKNOWLEDGED_MIN = 500


@pytest.mark.timeout(300)  # on a busy machine agents take long to start, and there are many starts
async def test_nothing_acknowledged_is_lost_or_doubled_under_chaos() -> None:
    options = Options(SEED, SECONDS, 3, tuple(available()))
    report = await run(options)
    assert not report.findings, "\n".join([*report.findings, options.command])
    assert report.right
    assert report.judgement.acknowledged > ACKNOWLEDGED_MIN
    assert report.ledger.reads > ACKNOWLEDGED_MIN
    planned = {step.fault for step in report.plan}
    assert planned == set(available())
    assert set(report.struck) | set(report.idle) == planned
    assert len(report.struck) > len(planned) - 3
