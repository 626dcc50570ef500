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
import resource
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import aiohttp

from cluster.checker import Region
from cluster.local_agent import LocalAgent, free_port, has_loopback_addresses
from cluster.proxy import Proxy

ROOT = Path(__file__).resolve().parents[1]  # agents are started from here: `python -m agent`
READY_S = 60.0
STOP_S = 15.0
POLL_S = 0.05


class RingError(Exception):
    """An agent did not start or stop as it should; the text ends with the end of its log."""


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
        agent.write_config()
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
        command = [sys.executable, "-m", "agent", "--config", str(agent.config)]
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
                while not await agent.is_ready(session):
                    if agent.process.poll() is not None:
                        raise RingError(
                            f"agent {name} ended with code {agent.process.returncode} at its start"
                            f"\n{agent.end_of_log}"
                        )
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            raise RingError(
                f"agent {name} was not ready after {READY_S:.0f} s\n{agent.end_of_log}"
            ) from None

    def kill(self, name: str) -> None:
        """SIGKILL an agent: what was not durable is gone; an embedded Valkey ends with it."""
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

    def limit_files(self, name: str, size: int | None) -> None:
        """Let an agent's files grow to `size` bytes at most, as on a disk that is full; None: any.

        Linux only (`prlimit`): writes beyond fail, and go through again once the limit is lifted.
        """
        process = self.agents[name].process
        assert process is not None, f"{name} does not run"
        _, hard = resource.prlimit(process.pid, resource.RLIMIT_FSIZE)
        limit = hard if size is None else size
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (limit, hard))

    def use_redis(self, name: str, url: str) -> None:
        """Have an agent that is not added yet use this Redis, instead of an embedded Valkey."""
        self._redis_urls[name] = url

    def change(self, name: str, section: str, field: str, value: Any) -> None:
        """Change a setting of an agent; it takes effect at its next start."""
        agent = self.agents[name]
        agent.settings.setdefault(section, {})[field] = value
        agent.write_config()

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
                f"agent {name} did not stop in {STOP_S:.0f} s\n{agent.end_of_log}"
            ) from None
        return process.returncode

    def cut_off(self, name: str) -> None:
        """Cut all links of one agent, both ways. Its clients and its Redis are not touched."""
        for other in self.agents.values():
            assert other.proxy is not None, "a ring without links can't be cut"
            source = self.agents[name].source
            other.proxy.cut(None if other.name == name or not source else [source])

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
                await asyncio.to_thread(agent.end_valkey)
        if self._own_folder:
            shutil.rmtree(self.folder, ignore_errors=True)
        if failed is not None:
            raise failed


def _require_empty(folder: Path) -> None:
    if any(folder.iterdir()):
        raise RingError(f"{folder} is not empty; a new ring needs a folder of its own")
