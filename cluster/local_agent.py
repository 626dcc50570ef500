"""One agent of a local ring: its files, its addresses, its process, and what can be seen of it."""

from __future__ import annotations

import json
import socket
import sqlite3
import subprocess
from collections import deque
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import SystemRandom
from typing import Any, cast
from urllib.parse import quote

import aiohttp
from redis import Redis
from redis.exceptions import RedisError

from cluster.checker import Region
from cluster.proxy import Proxy

LOG_SHOWN_LINES = 30


PORTS = (10_240, 32_000)
_random = SystemRandom()
HELD_MAX = 64  # more than a ring has
_held: deque[socket.socket] = deque()


def has_loopback_addresses() -> bool:
    """Whether this system lets a socket call from another loopback address than 127.0.0.1."""
    try:
        with socket.socket() as caller:
            caller.bind(("127.0.0.11", 0))
            return True
    except OSError:
        return False


def free_port() -> int:
    """A TCP port on 127.0.0.1 that nobody uses right now.

    From below the range that systems give to outgoing connections: one of those would else take it
    before it is listened on. It stays bound here for a while, which keeps other searches away, but
    not a server, which may listen on an address that nobody else listens on.
    """
    while True:
        port = _random.randint(*PORTS)
        holder = socket.socket()
        try:
            holder.bind(("127.0.0.1", port))
        except OSError:
            holder.close()
            continue
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        _held.append(holder)
        while len(_held) > HELD_MAX:
            _held.popleft().close()
        return port


@dataclass(slots=True)
class LocalAgent:
    """One agent of a local ring: its files, its addresses, and its process while it runs."""

    name: str
    folder: Path
    port: int
    source: str
    redis_url: str
    proxy: Proxy | None = None
    process: subprocess.Popen[bytes] | None = None
    settings: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def url(self) -> str:
        """Where clients reach it."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def advertise(self) -> str:
        """Where its peers reach it: its proxy, or itself."""
        if self.proxy is None:
            return self.url
        host, port = self.proxy.address
        return f"http://{host}:{port}"

    @property
    def log(self) -> Path:
        """The file that holds its output, of all its starts."""
        return self.folder / "agent.log"

    @property
    def config(self) -> Path:
        """Its configuration file."""
        return self.folder / "agent.toml"

    @property
    def data_dir(self) -> Path:
        """Its SQLite file, and its Valkey's files."""
        return self.folder / "data"

    @property
    def region(self) -> Region:
        """Where the checker can read it."""
        return Region(self.name, self.url, self.redis_url)

    @property
    def cells(self) -> int:
        """How many cells its SQLite file holds, also while it runs."""
        return self._count("cells")

    @property
    def facts(self) -> int:
        """How many of its cells are facts, each a key that was counted in a region."""
        return self._count("facts")

    def _count(self, column: str) -> int:
        uri = f"file:{quote(str(self.data_dir / 'tallyring.db'))}?mode=ro"
        with closing(sqlite3.connect(uri, uri=True)) as file:
            count: int = file.execute(f"SELECT {column} FROM state").fetchone()[0]  # noqa: S608
            return count

    @property
    def end_of_log(self) -> str:
        """The last lines of its log."""
        with suppress(OSError):
            lines = self.log.read_text(errors="replace").splitlines()
            return "\n".join(lines[-LOG_SHOWN_LINES:])
        return "(no log)"

    @property
    def resident_bytes(self) -> int:
        """How much memory its process holds; 0 where that can't be told or it does not run."""
        if self.process is None:
            return 0
        with suppress(OSError):
            for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
                if line.startswith("VmRSS:"):
                    return int(line.split()[1]) * 1024
        return 0

    async def is_ready(self, session: aiohttp.ClientSession) -> bool:
        """Whether it says that it can serve everything."""
        with suppress(aiohttp.ClientConnectionError, TimeoutError):
            async with session.get(f"{self.url}/readyz") as response:
                if response.status != 200:
                    return False
            async with session.get(f"{self.url}/v1/ring") as response:  # it, and nobody else
                return bool((await response.json())["agent"] == self.name)
        return False

    def write_config(self) -> None:
        """Write its settings as TOML; strings, numbers and lists of strings are as in JSON."""
        lines = []
        for section, fields in self.settings.items():
            lines.append(f"[{section}]")
            lines += [f"{name} = {json.dumps(value)}" for name, value in fields.items()]
            lines.append("")
        self.config.write_text("\n".join(lines))

    def end_valkey(self) -> None:
        """End the Valkey that it left behind when it was killed.

        By now another server may listen on the port, so it is asked for its folder first.
        """
        with (
            suppress(RedisError, OSError),
            Redis.from_url(self.redis_url, socket_timeout=1.0, decode_responses=True) as server,
        ):
            folder = cast("dict[str, str]", server.config_get("dir"))["dir"]
            if Path(folder).is_relative_to(self.data_dir.resolve()):
                server.shutdown(nosave=True)
