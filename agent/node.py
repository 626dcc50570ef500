"""One agent: the composition root. Builds the parts, runs their loops, stops them in reverse."""

from __future__ import annotations

import asyncio
import fcntl
import gc
import logging
import os
import secrets
import shutil
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from random import SystemRandom

import structlog
import uvloop
from aiohttp import web

from agent.api.app import make_server
from agent.api.clock import ManualClock
from agent.api.services import Services
from agent.commit import Commit, CommitQueue, Committer
from agent.config import Config, load, read_secret
from agent.crdt import hybrid_clock, incarnation
from agent.errors import ConfigError, StoreError
from agent.exchange import Boot
from agent.gossip.gossip import Gossip
from agent.operation import Announce
from agent.projection.projector import Projector
from agent.projection.rank_store import RankStore
from agent.projection.reads import Ranks
from agent.store.identity import Identity
from agent.store.readers import Readers
from agent.store.sqlite import SqliteStore

log = structlog.get_logger("tallyring.node")

DATABASE = "tallyring.db"
LOCK = "tallyring.lock"
# The loop and the writer thread hand work to each other many times a second; at Python's default
# of 5 ms each hand-over may wait that long for the interpreter lock.
SWITCH_INTERVAL_S = 0.0005
# Rows, totals and entries are many, short-lived and without cycles: the cycle collector is let run
# less often than by default, and does not look at what was there at the start.
GC_THRESHOLDS = (20_000, 20, 20)
SHUTDOWN_S = 5.0
DISK_CHECK_S = 5.0


def physical_ms() -> int:
    """The machine's clock, in ms since 1970."""
    return time.time_ns() // 1_000_000


def run_agent(path: Path) -> None:
    """Run the agent of a configuration file until SIGTERM or SIGINT.

    Raises:
        ConfigError: the configuration can't be used; names the field.
        StoreError: the data folder can't be used.
    """
    config = load(path)
    _configure_logging(config.agent.log_level)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_until_told(config))


async def _until_told(config: Config) -> None:
    running = asyncio.current_task()
    assert running is not None
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, running.cancel)
    with suppress(asyncio.CancelledError):  # a signal is how an agent is meant to end
        await _run(config)
    log.info("agent has stopped", agent=config.name)


async def _run(config: Config) -> None:
    """Build the parts from the bottom up, run their loops until cancelled, undo it in reverse."""
    async with AsyncExitStack() as parts:
        folder = config.agent.data_dir
        parts.enter_context(_locked(folder))
        secret = read_secret(config.ring.secret_file)
        store = SqliteStore(folder / DATABASE, _fresh_identity(config))
        parts.callback(store.close)
        readers = Readers(folder / DATABASE)
        parts.callback(readers.close)
        committer = Committer(store)
        clock = _manual_clock(config, committer)
        listeners: list[Callable[[Commit], None]] = []

        def committed(commit: Commit) -> None:
            for listener in listeners:
                listener(commit)

        queue = CommitQueue(committer, clock.now_ms if clock else physical_ms, committed)
        queue.start()
        parts.push_async_callback(queue.stop)

        rank_store = await RankStore.open(config)
        parts.push_async_callback(rank_store.close)
        projector = Projector(config, readers, lambda: queue.state, rank_store.writes, physical_ms)

        listening = _listening(config)
        config = _with_port(config, listening.getsockname()[1])
        boot = Boot(store.boot_number, secrets.randbits(62) + 1)
        gossip = Gossip(config, (secret,), boot, queue, readers, physical_ms, SystemRandom())
        services = Services(
            config=config,
            queue=queue,
            readers=readers,
            ranks=Ranks(config, lambda: queue.state, rank_store.reads),
            projector=projector,
            now_ms=physical_ms,
            exchange=gossip.answer,
            peers=gossip.peers,
            refusals=lambda: gossip.refused,
            clock=clock,
        )
        listeners += [gossip.committed, services.counts.committed, projector.committed]
        await queue.submit(Announce(config.agent.region, config.advertise, store.boot_number))
        await parts.enter_async_context(_serving(services, listening))
        log.info("agent is up", agent=config.name, ring=config.ring.name, url=config.advertise)
        async with asyncio.TaskGroup() as loops:
            loops.create_task(queue.watch())
            loops.create_task(projector.run())
            loops.create_task(gossip.run())
            loops.create_task(_watch_disk(config, queue))
            loops.create_task(rank_store.run())


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the data folder: two processes on one file would write one incarnation's slots.

    Raises:
        StoreError: another process holds it, or it can't be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder / LOCK, os.O_CREAT | os.O_RDWR, 0o600)
    except OSError as error:
        raise StoreError(f"{folder}: can't be used: {error.strerror}") from error
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StoreError(f"{folder}: another agent is running on it") from None
        yield
    finally:
        os.close(handle)


def _fresh_identity(config: Config) -> Identity:
    """The identity that a new file gets; an existing one keeps its own."""
    return Identity(
        ring=config.ring.name,
        agent=config.name,
        region=config.agent.region,
        inc=incarnation.mint(physical_ms(), secrets.randbits(incarnation.RANDOM_BITS)),
        log=secrets.randbits(62) + 1,
    )


def _manual_clock(config: Config, committer: Committer) -> ManualClock | None:
    """A manual clock starts where it stood: the hybrid clock is durable."""
    if config.agent.clock == "system":
        return None
    return ManualClock(hybrid_clock.ms_of(committer.state.hlc))


def _listening(config: Config) -> socket.socket:
    """The listening socket, bound before anything is told to the ring.

    Raises:
        ConfigError: the address can't be had.
    """
    host, port = config.listen
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=1024)
    except OSError as error:
        raise ConfigError("agent.listen", f"{config.agent.listen}: {error.strerror}") from error


def _with_port(config: Config, port: int) -> Config:
    """The configuration with the port that port 0 became."""
    if config.listen[1] == port:
        return config
    listen = f"{config.agent.listen.rpartition(':')[0]}:{port}"
    return replace(config, agent=replace(config.agent, listen=listen))


@asynccontextmanager
async def _serving(services: Services, listening: socket.socket) -> AsyncIterator[None]:
    """The HTTP server on a socket, while the context lasts."""
    runner = web.ServerRunner(make_server(services))
    await runner.setup()
    try:
        await web.SockSite(runner, listening, shutdown_timeout=SHUTDOWN_S).start()
        yield
    finally:
        await runner.cleanup()


async def _watch_disk(config: Config, queue: CommitQueue) -> None:
    """Refuse writes while the disk is nearly full, so that reads can go on."""
    least = config.agent.disk_free_min_bytes
    while True:
        free = (await asyncio.to_thread(shutil.disk_usage, config.agent.data_dir)).free
        full = f"{free} bytes are free on the disk, {least} are needed" if free < least else ""
        if full and not queue.refusing:
            log.error("writes are refused", reason=full)
        queue.refusing = full
        await asyncio.sleep(DISK_CHECK_S)


def _configure_logging(level: str) -> None:
    """One JSON object a line on standard error."""
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
