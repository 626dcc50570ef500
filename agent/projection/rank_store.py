"""The region's rank store as one agent uses it: where it is, and its clients."""

from __future__ import annotations

from agent.config import EMBEDDED, Config
from agent.errors import ConfigError
from agent.projection.connection import (
    READ_CONNECTIONS_MAX,
    WRITE_CONNECTIONS_MAX,
    RankClient,
)
from agent.projection.embedded import EmbeddedValkey


class RankStore:
    """The clients of a Redis or Valkey, and the server itself where it is embedded.

    `await RankStore.open(config)` makes one; `run` belongs into the agent's task group; `close`
    goes last, after everything that uses the clients.

    url: where it is.
    writes: for the projector alone. reads: for everything else, so that reads never hold it up.
    """

    def __init__(self, url: str, timeout_s: float, embedded: EmbeddedValkey | None) -> None:
        self.url = url
        self.embedded = embedded
        self.writes = RankClient(url, timeout_s, WRITE_CONNECTIONS_MAX)
        self.reads = RankClient(url, timeout_s, READ_CONNECTIONS_MAX)

    @classmethod
    async def open(cls, config: Config) -> RankStore:
        """Start the embedded server if the configuration wants it; nothing is connected yet.

        Raises:
            ConfigError: the URL can't be used, or the embedded server can't be started.
        """
        embedded = None
        url = config.redis.url
        if url == EMBEDDED:
            embedded = EmbeddedValkey(config.agent.data_dir, config.redis.port)
            await embedded.start()
            url = embedded.url
        try:
            return cls(url, config.redis.timeout_s, embedded)
        except ValueError as error:  # of redis-py: a port that is no number, an unknown option
            raise ConfigError("redis.url", f"can't be used: {error}") from error

    async def run(self) -> None:
        """Keep the embedded server alive until `close`; returns at once without one."""
        if self.embedded is not None:
            await self.embedded.run()

    async def close(self) -> None:
        """Close the clients and end the embedded server."""
        await self.writes.close()
        await self.reads.close()
        if self.embedded is not None:
            await self.embedded.stop()
