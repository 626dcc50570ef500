"""A ring on this machine: agents as real processes, links between them that can be cut.

    folder/ring.secret
    folder/NAME/agent.toml, data/, agent.log

With `links=True` every agent is reached by its peers through a proxy of its own, which is the URL
that it advertises. Each agent calls from a loopback address of its own (`gossip.source_address`),
so that a proxy can tell who calls: cutting an agent off is to refuse everybody at its proxy, and to
refuse its own calls at all others. Clients reach each agent directly, whatever is cut. Where a
system has one loopback address only (macOS), a cut parts all agents from each other.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast
from urllib.parse import quote

import aiohttp
from redis import Redis
from redis.exceptions import RedisError

from cluster.checker import Region
from cluster.proxy import Proxy

ROOT = Path(__file__).resolve().parents[1]  # agents are started from here: `python -m agent`
READY_S = 30.0
STOP_S = 15.0
POLL_S = 0.05
LOG_SHOWN_LINES = 30


class RingError(Exception):
    """An agent did not start or stop as it should; the text ends with the end of its log."""


def has_loopback_addresses() -> bool:
    """Whether this system lets a socket call from another loopback address than 127.0.0.1."""
    try:
        with socket.socket() as caller:
            caller.bind(("127.0.0.11", 0))
            return True
    except OSError:
        return False


def free_port() -> int:
    """A TCP port on 127.0.0.1 that nobody listens on right now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
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
        uri = f"file:{quote(str(self.data_dir / 'tallyring.db'))}?mode=ro"
        with closing(sqlite3.connect(uri, uri=True)) as file:
            count: int = file.execute("SELECT cells FROM state").fetchone()[0]
            return count

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


class LocalRing:
    """Starts and stops agents as processes. Use it with `async with`; leaving stops everything.

    Args:
        names: the agents' names, which are their regions too.
        folder: where everything is kept; a temporary folder, removed at the end, by default.
        links: put a proxy in front of each agent.
        redis_urls: by name, a Redis to use instead of an embedded Valkey.
        settings: more settings for every agent: {"section": {"field": value}}.
    """

    def __init__(
        self,
        names: Sequence[str],
        *,
        folder: Path | None = None,
        links: bool = False,
        redis_urls: Mapping[str, str] | None = None,
        settings: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        self._own_folder = folder is None
        self.folder = folder or Path(tempfile.mkdtemp(prefix="tallyring-"))
        self._links = links
        self._redis_urls = dict(redis_urls or {})
        self._settings = dict(settings or {})
        self._names = tuple(names)
        self.agents: dict[str, LocalAgent] = {}

    def __getitem__(self, name: str) -> LocalAgent:
        return self.agents[name]

    async def __aenter__(self) -> Self:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            _require_empty(self.folder)
            secret = self.folder / "ring.secret"
            secret.write_text(secrets.token_hex(32))
            secret.chmod(0o600)
            for name in self._names:
                await self.add(name, start=False)
            await asyncio.gather(*(self.start(name) for name in self._names))
        except BaseException:  # whatever happened, no process may be left behind
            await self._close()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._close()

    async def add(self, name: str, *, start: bool = True) -> LocalAgent:
        """Add an agent that is seeded with those that are there, and start it."""
        own_source = self._links and has_loopback_addresses()
        agent = LocalAgent(
            name=name,
            folder=self.folder / name,
            port=free_port(),
            source=f"127.0.0.{len(self.agents) + 11}" if own_source else "",
            redis_url=self._redis_urls.get(name) or f"redis://127.0.0.1:{free_port()}/0",
        )
        agent.folder.mkdir(parents=True, exist_ok=True)
        if self._links:
            agent.proxy = Proxy(("127.0.0.1", agent.port))
            await agent.proxy.start()
        seeds = [other.advertise for other in self.agents.values()]
        agent.settings = self._settings_of(agent, seeds)
        (agent.folder / "agent.toml").write_text(_toml(agent.settings))
        self.agents[name] = agent
        if start:
            await self.start(name)
        return agent

    def _settings_of(self, agent: LocalAgent, seeds: list[str]) -> dict[str, dict[str, Any]]:
        settings: dict[str, dict[str, Any]] = {
            "agent": {
                "name": agent.name,
                "region": agent.name,
                "listen": f"127.0.0.1:{agent.port}",
                "data_dir": "data",
            },
            "ring": {
                "name": "local",
                "secret_file": "../ring.secret",
                "advertise": agent.advertise,
                "seeds": seeds,
            },
            "gossip": {"source_address": agent.source},
        }
        if agent.name in self._redis_urls:
            settings["redis"] = {"url": agent.redis_url}
        else:
            port = int(agent.redis_url.rpartition(":")[2].partition("/")[0])
            settings["redis"] = {"url": "embedded", "port": port}
        for section, fields in self._settings.items():
            settings[section] = {**settings.get(section, {}), **fields}
        return settings

    async def start(self, name: str) -> None:
        """Start an agent, also one that was killed, and wait until it is ready.

        Raises:
            RingError: it ended, or was not ready in time.
        """
        agent = self.agents[name]
        config = agent.folder / "agent.toml"
        command = [sys.executable, "-m", "agent", "--config", str(config)]
        with agent.log.open("ab") as log:
            # A session of its own: Ctrl-C reaches this process alone, which then stops them all.
            agent.process = subprocess.Popen(  # noqa: ASYNC220 -- a fork, not a wait
                command,
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            async with asyncio.timeout(READY_S), aiohttp.ClientSession() as session:
                while not await _is_ready(session, agent):
                    if agent.process.poll() is not None:
                        raise RingError(
                            f"agent {name} ended with code {agent.process.returncode} at its start"
                            f"\n{_end_of(agent.log)}"
                        )
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            raise RingError(
                f"agent {name} was not ready after {READY_S:.0f} s\n{_end_of(agent.log)}"
            ) from None

    def kill(self, name: str) -> None:
        """SIGKILL an agent: what was not durable is gone. Its Valkey lives on, as a Redis would."""
        agent = self.agents[name]
        assert agent.process is not None, f"{name} does not run"
        agent.process.kill()
        agent.process.wait()
        agent.process = None

    def pause(self, name: str) -> None:
        """SIGSTOP an agent: it hangs with open connections."""
        self._signal(name, signal.SIGSTOP)

    def resume(self, name: str) -> None:
        """SIGCONT an agent that was paused."""
        self._signal(name, signal.SIGCONT)

    def _signal(self, name: str, number: signal.Signals) -> None:
        process = self.agents[name].process
        assert process is not None, f"{name} does not run"
        process.send_signal(number)

    async def stop(self, name: str) -> int:
        """Stop an agent cleanly (SIGTERM) and return its exit code; SIGKILL after STOP_S.

        Raises:
            RingError: it had to be killed.
        """
        agent = self.agents[name]
        process, agent.process = agent.process, None
        if process is None:
            return 0
        process.send_signal(signal.SIGCONT)
        process.terminate()
        try:
            async with asyncio.timeout(STOP_S):
                while process.poll() is None:  # noqa: ASYNC110 -- a process has no event to await
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            process.kill()
            process.wait()
            raise RingError(
                f"agent {name} did not stop in {STOP_S:.0f} s\n{_end_of(agent.log)}"
            ) from None
        return process.returncode

    def cut_off(self, name: str) -> None:
        """Cut all links of one agent, both ways. Its clients and its Redis are not touched."""
        for other in self.agents.values():
            assert other.proxy is not None, "a ring without links can't be cut"
            source = self.agents[name].source
            (lambda *_: None)(None if other.name == name or not source else [source])

    def heal(self) -> None:
        """Heal all links."""
        for agent in self.agents.values():
            if agent.proxy is not None:
                agent.proxy.heal()

    @property
    def refused(self) -> tuple[int, int]:
        """(connections refused or reset, bytes refused) by all cuts so far."""
        traffic = [agent.proxy.traffic for agent in self.agents.values() if agent.proxy]
        return (
            sum(t.refused_connections + t.reset_connections for t in traffic),
            sum(t.refused_bytes for t in traffic),
        )

    @property
    def wire_bytes(self) -> int:
        """Bytes that agents have exchanged through the proxies, HTTP included."""
        traffic = [agent.proxy.traffic for agent in self.agents.values() if agent.proxy]
        return sum(t.forwarded_up + t.forwarded_down for t in traffic)

    @property
    def regions(self) -> list[Region]:
        """All regions, for the checker."""
        return [agent.region for agent in self.agents.values()]

    async def _close(self) -> None:
        """Stop everything; report the first agent that did not stop, after all are gone."""
        failed: RingError | None = None
        stops = [self.stop(name) for name in self.agents]
        for outcome in await asyncio.gather(*stops, return_exceptions=True):
            if isinstance(outcome, RingError):
                failed = failed or outcome
            elif isinstance(outcome, BaseException):
                raise outcome
        for agent in self.agents.values():
            if agent.proxy is not None:
                await agent.proxy.stop()
            if agent.name not in self._redis_urls:
                await asyncio.to_thread(_end_valkey, agent)
        if self._own_folder:
            shutil.rmtree(self.folder, ignore_errors=True)
        if failed is not None:
            raise failed


def _require_empty(folder: Path) -> None:
    if any(folder.iterdir()):
        raise RingError(f"{folder} is not empty; a new ring needs a folder of its own")


async def _is_ready(session: aiohttp.ClientSession, agent: LocalAgent) -> bool:
    with suppress(aiohttp.ClientConnectionError, TimeoutError):
        async with session.get(f"{agent.url}/readyz") as response:
            return response.status == 200
    return False


def _end_valkey(agent: LocalAgent) -> None:
    """End the Valkey of an agent that was killed and could not do it itself.

    By now another server may listen on the port, so it is asked for its folder first.
    """
    with (
        suppress(RedisError, OSError),
        Redis.from_url(agent.redis_url, socket_timeout=1.0, decode_responses=True) as server,
    ):
        folder = cast("dict[str, str]", server.config_get("dir"))["dir"]
        if Path(folder).is_relative_to(agent.data_dir.resolve()):
            server.shutdown(nosave=True)


def _end_of(log: Path) -> str:
    with suppress(OSError):
        return "\n".join(log.read_text(errors="replace").splitlines()[-LOG_SHOWN_LINES:])
    return "(no log)"


def _toml(settings: Mapping[str, Mapping[str, Any]]) -> str:
    """The settings as TOML; strings, numbers and lists of strings are written as in JSON."""
    lines = []
    for section, fields in settings.items():
        lines.append(f"[{section}]")
        lines += [f"{name} = {json.dumps(value)}" for name, value in fields.items()]
        lines.append("")
    return os.linesep.join(lines)
