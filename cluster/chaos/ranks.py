"""A region's Redis that can be flushed, killed and failed over: a Valkey behind a fixed address.

It keeps nothing on disk, as a cache-only Redis does. A failover makes a replica, parts it from its
primary while writes go on, and puts it in the primary's place: the tail is lost.
"""

from __future__ import annotations

import asyncio
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import RedisError

from agent.projection.embedded import server_binary
from cluster.local_agent import free_port
from cluster.proxy import Proxy

START_S = 15.0
POLL_S = 0.02
EVIDENCE_S = 5.0  # a replica is parted until it lacks something, at most this long beyond its time


class RankServerError(Exception):
    """A server did not start, or a replica did not follow."""


class RankServer:
    """One region's Redis. `url` stays the same, whichever server stands behind it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._proxy = Proxy(("127.0.0.1", free_port()))
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Where the region's agent and its readers find it; only after `start`."""
        host, port = self._proxy.address
        return f"redis://{host}:{port}/0"

    async def start(self) -> None:
        """Start the first server.

        Raises:
            RankServerError: it does not answer.
        """
        await asyncio.to_thread(self._folder.mkdir, parents=True, exist_ok=True)
        await self._proxy.start()
        self._process = await self._launch(self._proxy.upstream[1])

    async def stop(self) -> None:
        """End the server and the address."""
        await self._proxy.stop()
        self._end(self._process)

    async def flush(self) -> int:
        """FLUSHALL. Returns how many keys there were."""
        async with self._client(self._proxy.upstream[1]) as client:
            keys = int(await client.dbsize())
            await client.flushall()
            return keys

    async def kill(self, seconds: float) -> bool:
        """Kill -9, and start an empty server after a while. Returns whether it did die."""
        port = self._proxy.upstream[1]
        process = self._process
        assert process is not None, "the server does not run"
        process.kill()
        died = await asyncio.to_thread(process.wait) != 0
        await asyncio.sleep(seconds)
        self._process = await self._launch(port)
        return died

    async def fail_over(self, seconds: float) -> bool:
        """Fail over to a replica that has not followed for a while.

        Returns whether the replica lacked something of the primary's when it took its place.
        """
        old_port, port = self._proxy.upstream[1], free_port()
        replica = await self._launch(port)
        try:
            async with self._client(port) as client, asyncio.timeout(START_S):
                await client.replicaof("127.0.0.1", str(old_port))
                while not await _follows(client):  # noqa: ASYNC110 -- a server has no events
                    await asyncio.sleep(POLL_S)
                await client.replicaof("NO", "ONE")
                lost = await self._lacks_tail(old_port, seconds)
        except (RedisError, OSError, TimeoutError) as error:
            self._end(replica)
            raise RankServerError(f"the replica did not follow: {error}") from error
        old, self._process = self._process, replica
        self._proxy.upstream = ("127.0.0.1", port)
        self._end(old)
        return lost

    async def _lacks_tail(self, port: int, seconds: float) -> bool:
        """Wait until a primary has taken something that its replica lacks, and so long at least."""
        loop = asyncio.get_running_loop()
        async with self._client(port) as primary:
            before = (await primary.info("replication"))["master_repl_offset"]
            await asyncio.sleep(seconds)
            deadline_s = loop.time() + EVIDENCE_S
            while True:
                after = (await primary.info("replication"))["master_repl_offset"]
                if after > before or loop.time() > deadline_s:
                    return bool(after > before)
                await asyncio.sleep(POLL_S)

    async def _launch(self, port: int) -> subprocess.Popen[bytes]:
        settings = {
            "bind": "127.0.0.1",
            "port": str(port),
            "dir": str(self._folder),
            "save": "",
            "appendonly": "no",
            "repl-diskless-sync-delay": "0",
            "repl-diskless-load": "swapdb",
            "loglevel": "warning",
            "logfile": str(self._folder / "valkey.log"),
        }
        line = [server_binary()]
        for name, value in settings.items():
            line += (f"--{name}", value)
        process = subprocess.Popen(  # noqa: ASYNC220 -- a fork, not a wait
            line,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            async with self._client(port) as client, asyncio.timeout(START_S):
                while True:
                    with suppress(RedisError, OSError):
                        await client.ping()
                        return process
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            self._end(process)
            raise RankServerError(f"no server came up at port {port}") from None

    @staticmethod
    def _client(port: int) -> Redis:
        return Redis(host="127.0.0.1", port=port, socket_timeout=START_S)

    @staticmethod
    def _end(process: subprocess.Popen[bytes] | None) -> None:
        if process is not None:
            process.kill()
            process.wait()


async def _follows(replica: Redis) -> bool:
    """Whether a replica has all that its primary had when it was made."""
    found: dict[str, Any] = await replica.info("replication")
    return found.get("master_link_status") == "up"
