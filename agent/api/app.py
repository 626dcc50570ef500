"""The HTTP server of an agent, made from the route table: routing, errors, counts.

There are no middlewares and no application around it: a hot request passes through one coroutine
between aiohttp's parser and its handler.
"""

from __future__ import annotations

from dataclasses import dataclass

from aiohttp import web

from agent.api.auth import LOOPBACK
from agent.api.connections import BoundedServer
from agent.api.metrics import AgentCollector
from agent.api.problem import problem_response
from agent.api.route import Call, Route
from agent.api.router import Router
from agent.api.services import Services
from agent.api.table import ROUTES
from agent.errors import Malformed

UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class _Target:
    """A route as it is served: with the query of a request without one, and its counts."""

    route: Route
    no_query: dict[str, int | bool | str | None]
    counts: list[int]


def make_server(services: Services) -> web.Server:
    """The server of an agent, for a `web.ServerRunner`.

    The limits on bodies are the routes' own (agent/api/bodies.py); aiohttp's is not used.
    """
    services.registry.register(AgentCollector(services))
    router = Router(
        (route.method, route.path, _Target(route, route.defaults(), services.counts.of(route.path)))
        for route in ROUTES
    )
    auth, unknown = services.auth, services.counts.of(UNKNOWN)

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        counts = unknown
        server.spoke(request.protocol)
        try:
            path, _, text = request.raw_path.partition("?")
            target, values = router.find(request.method, path)
            counts, route = target.counts, target.route
            caller = LOOPBACK if route.scope is None else auth.caller(request, route.scope)
            query = route.parse_query(text) if text else target.no_query
            route.check_body(request)
            if "Expect" in request.headers:
                await _expected(request)
            response = await route.handler(Call(services, request, caller, values, query))
        except Exception as error:  # noqa: BLE001 -- every error becomes an answer, and is logged
            response = problem_response(error)
            _end_body(request, response)
        counts[response.status // 100] += 1
        return response

    server = BoundedServer(handle)
    services.live.keep = server.spoke
    return server


async def _expected(request: web.BaseRequest) -> None:
    """Tell a client that waits before it sends its body that the head was all right."""
    if request.headers["Expect"].lower() != "100-continue":
        raise Malformed("Expect: only 100-continue is known")
    if request.transport is not None:
        request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")


def _end_body(request: web.BaseRequest, response: web.StreamResponse) -> None:
    """After a refusal: a connection with the rest of a body in it is not used again.

    Of a body whose encoding is broken there is no rest that could be read.
    """
    content = request.content
    if content.exception() is not None:
        response.force_close()
        content.feed_eof()
    elif not content.is_eof():
        response.force_close()
