"""Readers: functions over a snapshot, run on threads of their own, never on the event loop."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from agent.errors import StoreError
from agent.store.schema import damage, is_damage, open_reader
from agent.store.snapshot import SqliteSnapshot

Result = TypeVar("Result")
THREADS = 2  # gossip, projection and the API can each read at once; more only contend


class Readers:
    """A bounded pool of threads, each with a read-only connection to the agent's file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._threads = ThreadPoolExecutor(THREADS, "tallyring-reader")
        self._local = threading.local()
        self._connections: list[sqlite3.Connection] = []
        self.damage: StoreError | None = None
        self._damaged = asyncio.Event()

    async def read(self, function: Callable[[SqliteSnapshot], Result]) -> Result:
        """Run `function` over one snapshot and return its result.

        The snapshot is taken after this call began, and ends before it returns.

        Raises:
            StoreError: the file can't be read, now or (see `watch`) at all.
            Exception: what `function` raises.
        """
        try:
            return await asyncio.get_running_loop().run_in_executor(
                self._threads, self._in_snapshot, function
            )
        except sqlite3.Error as error:
            failure = StoreError(f"{self._path}: {damage(error)}")
            if is_damage(error):
                self.damage = failure
                self._damaged.set()
            raise failure from error

    async def watch(self) -> None:
        """Wait until the file is found damaged.

        Raises:
            StoreError: it is; says what to do.
        """
        await self._damaged.wait()
        assert self.damage is not None
        raise self.damage

    def _in_snapshot(self, function: Callable[[SqliteSnapshot], Result]) -> Result:
        db = getattr(self._local, "db", None)
        if db is None:
            db = self._local.db = open_reader(self._path)
            self._connections.append(db)
        db.execute("BEGIN")
        try:
            return function(SqliteSnapshot(db))
        finally:
            db.execute("ROLLBACK")

    def close(self) -> None:
        """Wait for the running reads and close the connections."""
        self._threads.shutdown(wait=True)
        for connection in self._connections:
            connection.close()
