"""The application: the router and the error handling, made from the route table.

There is no middleware: each route is wrapped once, when the application is made, so that a hot
request passes through one coroutine only.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable

from aiohttp import web

from agent.api.auth import LOOPBACK
from agent.api.metrics import AgentCollector
from agent.api.problem import problem_response
from agent.api.route import Call, Route
from agent.api.services import Services
from agent.api.table import ROUTES
from agent.errors import MethodNotAllowed, NotFound

AioHandler = Callable[[web.Request], Awaitable[web.StreamResponse]]
UNKNOWN = "unknown"


def make_app(services: Services) -> web.Application:
    """The HTTP application of an agent. Serve it without an access log.

    The limits on bodies are the routes' own (agent/api/bodies.py); aiohttp's is not used.
    """
    app = web.Application()
    services.registry.register(AgentCollector(services))
    for route in ROUTES:
        handler = _dispatched(services, route)
        resource = app.router.add_resource(_PART.sub(r"{\1:[^/]+}", route.path))
        resource.add_route(route.method, handler)
        if route.method == "GET":
            resource.add_route("HEAD", handler)
    app.router.add_route("*", "/{rest:.*}", _unmatched(services, ROUTES))
    return app


_PART = re.compile(r"\{(\w+)\}")


def _dispatched(services: Services, route: Route) -> AioHandler:
    """The route's handler with what surrounds it: who calls, the query, errors, counts."""
    handler, scope = route.handler, route.scope
    no_query = route.defaults()
    auth, counts = services.auth, services.counts.of(route.path)

    async def dispatch(request: web.Request) -> web.StreamResponse:
        try:
            caller = LOOPBACK if scope is None else auth.caller(request, scope)
            text = request.rel_url.raw_query_string
            query = route.parse_query(text) if text else no_query
            response = await handler(Call(services, request, caller, query))
        except Exception as error:  # noqa: BLE001 -- every error becomes an answer, and is logged
            response = problem_response(error)
        counts[response.status // 100] += 1
        return response

    return dispatch


def _unmatched(services: Services, routes: Iterable[Route]) -> AioHandler:
    """Answers what no route takes: 405 where the path has other methods, else 404."""
    counts = services.counts.of(UNKNOWN)
    paths = [(re.compile(_PART.sub(r"[^/]+", r.path)), r.method) for r in routes]

    async def unmatched(request: web.Request) -> web.StreamResponse:
        path = request.rel_url.raw_path
        methods: set[str] = {method for pattern, method in paths if pattern.fullmatch(path)}
        if "GET" in methods:
            methods.add("HEAD")
        if methods:
            allow = ", ".join(sorted(methods))
            response = problem_response(
                MethodNotAllowed(f"{request.method[:20]} is no method of this path", allow)
            )
        else:
            response = problem_response(
                NotFound(
                    "unknown_route",
                    f"there is no route {path[:200]!r}",
                    hint="GET /openapi.json lists them all",
                )
            )
        counts[response.status // 100] += 1
        return response

    return unmatched
