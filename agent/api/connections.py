"""Connections: how many there may be, and what is answered to bytes that are no HTTP.

Whoever can reach the port can open connections, without having proven anything. So their number is
bounded: where one more comes, the one that has been silent the longest makes room. Those that are
used, by clients and by peers, are never that one for long.
"""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Awaitable, Callable

import structlog
from aiohttp import web

from agent.api.problem import problem_response
from agent.errors import Malformed

# Each holds about 20 KB; half of the descriptors that the system grants is left for everything
# else.
CONNECTIONS_MAX = 16_384
LINGER_S = 2.0
"""After a refusal the rest of a body is still read for so long, so that the client sees it."""

_log = structlog.get_logger(__name__)


class BoundedServer(web.Server):
    """A server that keeps `connections_max` connections at the most, by default what fits."""

    def __init__(
        self,
        handler: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]],
        connections_max: int | None = None,
    ) -> None:
        super().__init__(handler)
        self._connections_max = connections_max or min(CONNECTIONS_MAX, _descriptors() // 2)
        self._silent: dict[web.RequestHandler, None] = {}  # the longest first

    def __call__(self) -> web.RequestHandler:
        """The protocol of a new connection."""
        loop = asyncio.get_running_loop()
        return _Connection(
            self,
            loop=loop,
            access_log=None,  # type: ignore[arg-type]  # None is how it is turned off
            lingering_time=LINGER_S,
        )

    def connection_made(self, handler: web.RequestHandler, transport: asyncio.Transport) -> None:
        """Take note of a new connection; close another one where that is one too many."""
        super().connection_made(handler, transport)
        self._silent[handler] = None
        if len(self._silent) > self._connections_max:
            oldest = next(iter(self._silent))
            del self._silent[oldest]
            oldest.force_close()

    def connection_lost(
        self, handler: web.RequestHandler, exc: BaseException | None = None
    ) -> None:
        """Forget a connection."""
        super().connection_lost(handler, exc)
        self._silent.pop(handler, None)

    def spoke(self, handler: web.RequestHandler) -> None:
        """A request came over this connection: of all, it was silent for the shortest time."""
        if handler in self._silent:
            del self._silent[handler]
            self._silent[handler] = None


class _Connection(web.RequestHandler):
    """One connection. What can't be parsed is answered with a problem, and is one line of log."""

    __slots__ = ()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """The answer to bytes that are no HTTP request; the connection ends with it."""
        if status != 400 or request.writer.output_size > 0:
            return super().handle_error(request, status, exc, message)
        what = " ".join((message or "").split())[:200]
        _log.debug("not_http", remote=request.remote, error=what)
        response = problem_response(Malformed(f"this is not HTTP as it should be: {what}"))
        response.force_close()
        return response


def _descriptors() -> int:
    """How many open files and connections the system lets this process have."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 2 * CONNECTIONS_MAX if soft == resource.RLIM_INFINITY else soft
