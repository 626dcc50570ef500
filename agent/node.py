"""One agent: the composition root. Builds the parts, runs their loops, stops them in reverse."""

from __future__ import annotations

import asyncio
import gc
import logging
import shutil
import signal
import socket
import sqlite3
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import SystemRandom
from typing import NamedTuple

import structlog
import uvloop
from aiohttp import web

from agent.api.app import make_server
from agent.api.clock import ManualClock
from agent.api.services import Services
from agent.beginning import begin, mint_identity
from agent.commit import CommitQueue
from agent.committer import Commit, Committer
from agent.composing import (
    answering_calls,
    certifying,
    keeping,
    patrolling,
    projecting,
    repairing,
)
from agent.config import Config, load
from agent.crdt import hybrid_clock
from agent.errors import ConfigError, Indefinite, Refused, StoreError, Unavailable
from agent.exchange import ChunkLimits
from agent.gossip.bootstrap import bootstrap
from agent.gossip.client import Client
from agent.gossip.gossip import Gossip
from agent.gossip.leaving import Leaving
from agent.gossip.peers import Peers
from agent.gossip.secrets import Secrets
from agent.gossip.snapshots import Shelf
from agent.operation import Announce
from agent.projection.rank_store import RankStore
from agent.projection.reads import Ranks
from agent.store.identity import Identity
from agent.store.lock import DATABASE, locked
from agent.store.readers import Readers
from agent.store.sqlite import SqliteStore
from agent.store.token import Token, file_id, write_token

log = structlog.get_logger("tallyring.node")

# The loop and the writer thread hand work to each other many times a second; at Python's default
# of 5 ms each hand-over may wait that long for the interpreter lock.
SWITCH_INTERVAL_S = 0.0005
# Rows, totals and entries are many, short-lived and without cycles: the cycle collector is let run
# less often than by default, and does not look at what was there at the start.
GC_THRESHOLDS = (20_000, 20, 20)
SHUTDOWN_S = 5.0
DISK_CHECK_S = 5.0
ANNOUNCE_AGAIN_S = 1.0


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
    failure: StoreError | None = None
    try:
        with suppress(asyncio.CancelledError):  # a signal is how an agent is meant to end
            await _run(config)
    except* StoreError as group:
        failure = _first(group)
    if failure is not None:  # not above: what is raised there is put into a group again
        raise failure
    log.info("agent has stopped", agent=config.name)


def _first(group: BaseExceptionGroup[StoreError]) -> StoreError:
    """The first error of a group: what ended the agent, without the tasks that it ended."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, StoreError)
    return error


class _Opened(NamedTuple):
    """What an agent holds before anything of it runs."""

    config: Config
    listening: socket.socket
    secrets: Secrets
    rank_store: RankStore
    store: SqliteStore


async def _open(parts: AsyncExitStack, config: Config) -> _Opened:
    """Take the data folder and the address, and begin: as who this agent was, or as somebody new.

    Raises:
        ConfigError: the configuration can't be used; names the field.
        StoreError: the data folder can't be used, or the ring does not take this agent in.
    """
    folder = config.agent.data_dir
    parts.enter_context(locked(folder))
    ring_secrets = Secrets(config.ring.secret_file, time.monotonic)
    rank_store = await RankStore.open(config)
    parts.push_async_callback(rank_store.close)
    listening = _listening(config)
    parts.callback(listening.close)
    config = _with_port(config, listening.getsockname()[1])
    fresh = partial(_fresh_identity, config)
    await bootstrap(config, ring_secrets, folder / DATABASE, fresh)
    store = SqliteStore(folder / DATABASE, fresh(0))
    parts.callback(store.close)
    await begin(config, store, ring_secrets, rank_store.writes, fresh)
    parts.push(_ending(folder, store))
    return _Opened(config, listening, ring_secrets, rank_store, store)


async def _run(config: Config) -> None:
    """Build the parts from the bottom up, run their loops until cancelled, undo it in reverse."""
    async with AsyncExitStack() as parts:
        config, listening, ring_secrets, rank_store, store = await _open(parts, config)
        folder, now_ms = config.agent.data_dir, _physical_clock(config)
        readers = Readers(folder / DATABASE)
        parts.callback(readers.close)
        committer = Committer(store, mint_identity, config.agent.facts_max)
        clock = _manual_clock(config, committer)
        listeners: list[Callable[[Commit], None]] = []

        def committed(commit: Commit) -> None:
            for listener in listeners:
                listener(commit)

        queue = CommitQueue(committer, clock.now_ms if clock else now_ms, committed)
        queue.start()
        parts.push_async_callback(queue.stop)
        peers = Peers(config, ring_secrets, queue, readers, now_ms)
        projector = projecting(peers, rank_store, clock)
        limits = ChunkLimits(config.gossip.chunk_rows_max, config.gossip.chunk_bytes_max)
        client = Client(config.gossip)
        parts.push_async_callback(client.close)
        gossip = Gossip(peers, client, limits, SystemRandom())
        ranges, repairer, auditor = repairing(parts, peers, client, rank_store, projector)
        keeper = keeping(parts, peers, clock, projector)
        peers.dropping = keeper.dropping
        certifier, finals = certifying(parts, peers, client, clock)
        patrol = patrolling(parts, peers, rank_store, projector)
        shelf = Shelf(peers, folder / DATABASE, now_ms, config.agent.disk_free_min_bytes)
        answering = answering_calls(peers, limits, shelf, ranges, finals)
        services = Services(
            config=config,
            queue=queue,
            readers=readers,
            ranks=Ranks(config, rank_store.reads, readers),
            projector=projector,
            now_ms=now_ms,
            answer=answering.answer,
            peers=peers,
            leaving=Leaving(peers),
            repairer=repairer,
            auditor=auditor,
            keeper=keeper,
            certifier=certifier,
            patrol=patrol,
            clock=clock,
        )
        listeners += [
            gossip.committed,
            services.leaving.committed,
            services.counts.committed,
            projector.committed,
            repairer.committed,
            keeper.committed,
            certifier.committed,
        ]
        announced = await _announce(config, queue)
        await parts.enter_async_context(_serving(services, listening))
        log.info("agent is up", agent=config.name, ring=config.ring.name, url=config.advertise)
        async with asyncio.TaskGroup() as loops:
            for loop in (
                *(queue.watch(), readers.watch(), _watch_disk(config, queue)),
                *(projector.run(), rank_store.run(), services.live.run(), patrol.run()),
                *(gossip.run(), shelf.run(), repairer.run(), auditor.run()),
                *(keeper.run(), certifier.run(), _end_when_left(services.leaving)),
                _announce_again(config, queue, announced),
            ):
                loops.create_task(loop)


async def _announce(config: Config, queue: CommitQueue) -> bool:
    """Tell the ring of this agent; whether that could be written."""
    try:
        await queue.submit(Announce(config.agent.region, config.advertise))
    except (Refused, Indefinite) as error:
        log.warning("the ring is not told of this agent yet", error=str(error))
        return False
    return True


async def _announce_again(config: Config, queue: CommitQueue, done: bool) -> None:
    """Tell it once the disk has room, or the agent's own cell is mended: both need it to run."""
    while not done:
        await asyncio.sleep(ANNOUNCE_AGAIN_S)
        done = await _announce(config, queue)


async def _end_when_left(leaving: Leaving) -> None:
    """An agent that has left the ring ends as after a signal: cleanly, with exit code 0."""
    await leaving.run()
    signal.raise_signal(signal.SIGTERM)


def _physical_clock(config: Config) -> Callable[[], int]:
    """The agent's physical clock; shifted where a test wants it."""
    shift_ms = config.agent.clock_shift_ms
    return (lambda: physical_ms() + shift_ms) if shift_ms else physical_ms


def _fresh_identity(config: Config, above: int) -> Identity:
    """The identity that a new file gets, its incarnation above another one's."""
    inc, log_id = mint_identity(physical_ms() + config.agent.clock_shift_ms, above)
    return Identity(config.ring.name, config.name, config.agent.region, inc, log_id)


def _ending(
    folder: Path, store: SqliteStore
) -> Callable[[type[BaseException] | None, object, object], None]:
    """What notes a clean end, after everything was answered and stored."""

    def end(kind: type[BaseException] | None, _error: object, _trace: object) -> None:
        if kind is None or issubclass(kind, asyncio.CancelledError):
            life = store.life
            try:
                write_token(folder, Token(life.log, life.boot, file_id(store.path)))
                store.end()
            except (OSError, sqlite3.Error) as error:
                log.warning("the end was not noted; the next start mints", why=str(error))

    return end


def _manual_clock(config: Config, committer: Committer) -> ManualClock | None:
    """A manual clock starts where it stood; never before the hybrid clock, which is durable."""
    if config.agent.clock == "system":
        return None
    return ManualClock.open(config.agent.data_dir, hybrid_clock.ms_of(committer.state.hlc))


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
        if free >= least:
            queue.refusing.pop("disk", None)
        else:
            full = f"{free} bytes are free on the disk, {least} are needed"
            if "disk" not in queue.refusing:
                log.error("writes are refused", reason=full)
            queue.refusing["disk"] = Unavailable("busy", full, hint="free space on the disk")
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
