"""Configurations that used to be taken, or to end in a traceback, and what is said of them now."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agent.config import parse
from agent.errors import ConfigError
from agent.projection.rank_store import RankStore


def _parsed(**sections: dict[str, Any]) -> Any:
    document = {
        "agent": {"region": "eu"},
        "ring": {"name": "test", "secret_file": "ring.secret", **sections.pop("ring", {})},
        **sections,
    }
    return parse(document, Path("/nowhere"), {})


@pytest.mark.parametrize(
    "url",
    [
        "http://eu..example:7401",  # no resolver takes it: every peer would be told of it
        "http://.",
        "http://[::1",
        "http://eu.example:99999",
        "http://eu.example:port",
        "http://eu example",
        "ftp://eu.example",
        "http://",
    ],
)
@pytest.mark.parametrize("setting", ["advertise", "seeds"])
def test_an_address_that_nobody_can_call_is_refused_at_start(url: str, setting: str) -> None:
    with pytest.raises(ConfigError, match=f"ring.{setting}"):
        _parsed(ring={setting: [url] if setting == "seeds" else url})


@pytest.mark.parametrize(
    "url", ["http://10.0.0.1:7401", "http://[::1]:7401", "https://bücher.example/", "http://a:0"]
)
def test_an_address_that_can_be_called_is_taken(url: str) -> None:
    assert _parsed(ring={"advertise": url}).advertise == url.rstrip("/")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 0.0, -1.0])
def test_a_time_that_never_comes_is_refused(value: float) -> None:
    with pytest.raises(ConfigError, match=r"gossip\.interval_s"):
        _parsed(gossip={"interval_s": value})


async def test_an_address_of_redis_that_cant_be_used_is_refused_without_its_password() -> None:
    with pytest.raises(ConfigError) as scheme:
        _parsed(redis={"url": "redi://:hunter2@127.0.0.1:6379/0"})
    config = _parsed(redis={"url": "redis://:hunter2@127.0.0.1:port/0"})
    with pytest.raises(ConfigError) as port:
        await RankStore.open(config)
    for found in (scheme, port):
        assert "redis.url" in str(found.value)
        assert "hunter2" not in str(found.value)
