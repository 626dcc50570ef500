"""Routes: what a path takes and gives. The router and the OpenAPI document read the same table."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias
from urllib.parse import parse_qsl

from aiohttp import web

from agent.api.auth import Scope, Token
from agent.api.bodies import answer_media, encode, media_of, read_body
from agent.api.services import Services
from agent.boards.catalog import Placed
from agent.errors import Forbidden, Malformed
from agent.limits import REQUEST_BYTES_MAX

QueryValue: TypeAlias = int | bool | str | None


@dataclass(frozen=True, slots=True)
class Query:
    """A query parameter. Integers are within least..greatest; booleans are `true` or `false`."""

    name: str
    kind: Literal["integer", "boolean", "string"]
    summary: str
    default: QueryValue = None
    least: int = 0
    greatest: int = 2**53 - 1

    def parse(self, text: str) -> QueryValue:
        """The value behind its text.

        Raises:
            Malformed: not of its kind, or out of its bounds.
        """
        if self.kind == "string":
            return text
        if self.kind == "boolean":
            if text not in ("true", "false"):
                raise Malformed(f"{self.name}: {text[:40]!r} is neither true nor false")
            return text == "true"
        if not (text.isascii() and text.isdigit() and len(text) <= 16):
            raise Malformed(f"{self.name}: {text[:40]!r} is not an integer")
        number = int(text)
        if not self.least <= number <= self.greatest:
            raise Malformed(f"{self.name}: {number} is outside {self.least}..{self.greatest}")
        return number


class Call:
    """One request, on its way through a handler."""

    __slots__ = ("caller", "parts", "query", "request", "services")

    def __init__(
        self,
        services: Services,
        request: web.BaseRequest,
        caller: Token,
        parts: Mapping[str, str],
        query: Mapping[str, Any],
    ) -> None:
        self.services = services
        self.request = request
        self.caller = caller
        self.parts = parts
        self.query = query

    def path(self, name: str) -> str:
        """A part of the path, decoded."""
        return self.parts[name]

    def board_name(self) -> str:
        """The board that the path names.

        Raises:
            Forbidden: not a board of the caller's token.
        """
        name = self.parts["board"]
        self.allow(name)
        return name

    def placed(self) -> Placed:
        """The window that path and query name, of a board in use.

        Raises:
            Forbidden: not a board of the caller's token.
            NotFound: (`unknown_board`, `unknown_window`)
        """
        return self.placed_in(self.board_name(), self.query["window"])

    def placed_in(self, board: str, window: str | None) -> Placed:
        """A window, as `placed`, of a board that the caller may use.

        Raises:
            NotFound: (`unknown_board`, `unknown_window`)
        """
        services = self.services
        return services.windows.find(services, services.queue.state, board, window)

    def allow(self, board: str) -> None:
        """Check that the caller may use a board.

        Raises:
            Forbidden: its token is for other boards.
        """
        if not self.caller.allows(board):
            raise Forbidden(
                f"token {self.caller.name!r} is not for board {board[:80]!r}",
                hint=f"its boards: {self.caller.boards}",
            )

    async def body(self) -> tuple[bytes, str]:
        """The body and its media type.

        Raises:
            UnsupportedMedia, TooLarge, Malformed: see agent/api/bodies.py.
        """
        media = media_of(self.request)
        return await read_body(self.request, REQUEST_BYTES_MAX), media

    def answer(self, answer: object, status: int = 200) -> web.Response:
        """The response that carries an answer, as JSON or msgpack."""
        media = answer_media(self.request)
        return web.Response(body=encode(answer, media), status=status, content_type=media)


Handler: TypeAlias = Callable[[Call], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class Route:
    """One method of one path.

    scope: what a token needs; None for routes that everybody may call.
    answer: the type of the answer; None where it is not JSON.
    bodies: the types of which the body is one; none where there is no body.
    codes: the errors that it has beside those that every route has.
    media: of an answer without a type.
    streamed: another media type in which the answer is had as a stream; empty where there is none.
    headers: what of the request's head is heeded beside Accept, and for what.
    statuses: those that come with the answer; of 304 only its head does.
    """

    method: Literal["GET", "PUT", "POST", "DELETE"]
    path: str
    handler: Handler
    scope: Scope | None
    summary: str
    answer: Any = None
    bodies: tuple[Any, ...] = ()
    body_required: bool = True
    query: tuple[Query, ...] = ()
    codes: tuple[str, ...] = ()
    media: str = "application/json"
    streamed: str = ""
    headers: tuple[tuple[str, str], ...] = ()
    statuses: tuple[int, ...] = (200,)

    def check_body(self, request: web.BaseRequest) -> None:
        """Refuse a body where there is none: what it asks for would be passed over.

        Raises:
            Malformed: it has one.
        """
        if not self.bodies and self.method != "POST" and request.can_read_body:
            raise Malformed(f"the body: {self.method} of this path takes none")

    def defaults(self) -> dict[str, QueryValue]:
        """The query of a request without one."""
        return {query.name: query.default for query in self.query}

    def parse_query(self, text: str) -> dict[str, QueryValue]:
        """The query of a request.

        Raises:
            Malformed: an unknown or repeated parameter, or one that is not of its kind.
        """
        known = {query.name: query for query in self.query}
        values = self.defaults()
        seen = set()
        try:
            pairs = parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=32)
        except ValueError as error:
            raise Malformed(f"query: {error}") from error
        for name, value in pairs:
            query = known.get(name)
            if query is None:
                hint = f"known here: {', '.join(known)}" if known else "this route takes none"
                raise Malformed(f"query: unknown parameter {name[:80]!r}", hint=hint)
            if name in seen:
                raise Malformed(f"query: {name} is given twice")
            seen.add(name)
            values[name] = query.parse(value)
        return values
