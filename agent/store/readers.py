"""Readers: functions over a snapshot, run on threads of their own, never on the event loop."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from agent.store.schema import open_reader
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

    async def read(self, function: Callable[[SqliteSnapshot], Result]) -> Result:
        """Run `function` over one snapshot and return its result.

        The snapshot is taken after this call began, and ends before it returns.
        """
        return await asyncio.get_running_loop().run_in_executor(
            self._threads, self._in_snapshot, function
        )

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
