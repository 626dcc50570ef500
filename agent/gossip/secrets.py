"""The ring's secrets: one a line, the first signs, each is accepted; read again when they change.

So a secret is rotated without a stop: the new one is added as a second line at every agent, then
made the first, then the old one is taken out.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import structlog

from agent.config import read_secrets
from agent.errors import ConfigError

log = structlog.get_logger("tallyring.gossip")

LOOK_AGAIN_S = 1.0


def name_of_secret(secret: bytes) -> str:
    """A short name of a secret, safe to show: equal for equal ones, and nothing follows from it."""
    return hashlib.blake2b(secret, digest_size=4, person=b"tallyring secret").hexdigest()


class Secrets:
    """The secrets in a file; a file that can't be used leaves the ones that were read before.

    Raises:
        ConfigError: the file can't be used at the start.
    """

    def __init__(self, path: Path, monotonic_s: Callable[[], float]) -> None:
        self._path = path
        self._monotonic_s = monotonic_s
        self._secrets = read_secrets(path)
        self._mtime_ns = path.stat().st_mtime_ns
        self._looked_s = monotonic_s()

    def current(self) -> tuple[bytes, ...]:
        """The secrets now; the first one signs."""
        now_s = self._monotonic_s()
        if now_s - self._looked_s < LOOK_AGAIN_S:
            return self._secrets
        self._looked_s = now_s
        try:
            mtime_ns = self._path.stat().st_mtime_ns
            if mtime_ns != self._mtime_ns:
                self._secrets = read_secrets(self._path)
                self._mtime_ns = mtime_ns
                log.info("secrets were read again", secrets=len(self._secrets))
        except (OSError, ConfigError) as error:
            log.warning("the file of secrets can't be used; the former ones stand", why=str(error))
        return self._secrets
