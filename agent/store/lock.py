"""The data folder: its files' names, and the lock that whoever changes its database holds."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from agent.errors import StoreError

DATABASE = "tallyring.db"
LOCK = "tallyring.lock"


@contextmanager
def locked(folder: Path, held: str = "another agent is running on it") -> Iterator[None]:
    """Hold the data folder: two processes on one file would write one incarnation's slots.

    Args:
        held: what to say where another process holds it.

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
            raise StoreError(f"{folder}: {held}") from None
        yield
    finally:
        os.close(handle)
