"""Calling an agent from the command line: options, requests, and errors that say what to do.

Every command prints a table for people, or with `--json` the agent's own answer. Its exit code is 0
only if it did what it says; an error goes to standard error, with `--json` also as JSON to standard
output, and never as a traceback.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import IO, Any, Literal, TypeVar
from urllib.parse import quote

import aiohttp
import click
from rich.console import Console
from rich.table import Table

DEFAULT_URL = "http://127.0.0.1:7401"
REQUEST_S = 30.0
REQUEST_TIME = aiohttp.ClientTimeout(total=REQUEST_S)
DOWNLOAD_TIME = aiohttp.ClientTimeout(total=None, sock_connect=REQUEST_S, sock_read=REQUEST_S)
IN_OTHER_WORDS = {  # what hints of the API say -> what an operator types; --json shows it as it was
    "PUT /v1/boards/{board}": "'tallyring board define'",
    "POST .../reset": "'tallyring board reset'",
    "force removes it": "--force removes it",
    "as_of in GET /v1/ring": "'tallyring ring status'",
    "GET /v1/audit": "'tallyring audit'",
    "POST .../certify": "'tallyring certify'",
}
Command = TypeVar("Command", bound=Callable[..., Any])
Answer = TypeVar("Answer")


class CommandError(click.ClickException):
    """A command did not do what it says.

    Args:
        message: what is wrong.
        hint: what to do next; empty where there is nothing.
        document: what `--json` shows.
    """

    def __init__(
        self, message: str, hint: str = "", document: dict[str, Any] | None = None
    ) -> None:
        super().__init__(message)
        self.hint = hint
        self.document = document or {"detail": message, "hint": hint}
        self.as_json = False

    def show(self, file: IO[Any] | None = None) -> None:
        """Print the error, and the hint below it."""
        if self.as_json:
            click.echo(json.dumps({"error": self.document}))
        click.echo(f"error: {self.message}", file=file, err=file is None)
        if self.hint:
            click.echo(f"hint:  {self.hint}", file=file, err=file is None)


@dataclass(frozen=True, slots=True)
class Api:
    """An agent's HTTP API, as the options name it."""

    url: str
    token: str | None
    as_json: bool

    def get(self, path: str, **query: Any) -> dict[str, Any]:
        """GET; see `send`."""
        return self.send("GET", path, None, query)

    def send(
        self, method: str, path: str, body: Any = None, query: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """One request and its JSON answer. Query values of None are left out.

        Raises:
            CommandError: the agent can't be reached, or answered with a problem document.
        """
        return self._run(self._send(method, path, body, query or {}))

    def download(
        self,
        path: str,
        query: dict[str, Any],
        headers: dict[str, str],
        take: Callable[[bytes], object],
    ) -> None:
        """GET what may be large; `take` is given its bytes as they arrive, none of an error's.

        Raises:
            CommandError: as `send`, also where it ended early: some of it may have been taken.
        """
        self._run(self._download(path, query, headers, take))

    def _run(self, coroutine: Coroutine[Any, Any, Answer]) -> Answer:
        try:
            return asyncio.run(coroutine)
        except CommandError as error:
            error.as_json = self.as_json
            raise

    async def _send(
        self, method: str, path: str, body: Any, query: dict[str, Any]
    ) -> dict[str, Any]:
        async with self._asked(method, path, body, query, {}, REQUEST_TIME) as response:
            answer = await response.json(content_type=None)
            status = response.status
        if not isinstance(answer, dict):
            raise CommandError(f"{self.url} did not answer as an agent does")
        if status >= 400:
            raise _problem(status, answer)
        return answer

    async def _download(
        self,
        path: str,
        query: dict[str, Any],
        headers: dict[str, str],
        take: Callable[[bytes], object],
    ) -> None:
        async with self._asked("GET", path, None, query, headers, DOWNLOAD_TIME) as response:
            await _check(response)
            async for data in response.content.iter_any():
                take(data)

    def listen(
        self, path: str, query: dict[str, Any], take: Callable[[str, dict[str, Any]], None]
    ) -> None:
        """Follow server-sent events until the agent ends them.

        Args:
            take: is given each event's name and data.

        Raises:
            CommandError: as `send`, or nothing was heard for 30 s.
        """
        self._run(self._listen(path, query, take))

    async def _listen(
        self, path: str, query: dict[str, Any], take: Callable[[str, dict[str, Any]], None]
    ) -> None:
        async with self._asked("GET", path, None, query, {}, DOWNLOAD_TIME) as response:
            await _check(response)
            name = ""
            while line := await response.content.readuntil(b"\n"):
                field, _, value = line.decode().rstrip("\n").partition(": ")
                if field == "event":
                    name = value
                elif field == "data":
                    take(name, json.loads(value))

    @asynccontextmanager
    async def _asked(
        self,
        method: str,
        path: str,
        body: Any,
        query: dict[str, Any],
        headers: dict[str, str],
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109 -- aiohttp's own, handed on
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """A response of the agent's; what goes wrong on the way becomes a CommandError."""
        if not self.url.startswith(("http://", "https://")):
            raise CommandError(
                f"--url: {self.url!r} is not an http:// or https:// URL",
                f"for example {DEFAULT_URL}",
            )
        # Whoever types this wants to see what is there now, not what was a second ago.
        headers = {"Cache-Control": "no-cache", **headers}
        if self.token:
            headers["Authorization"] = f"Bearer {self.token}"
        params = {name: str(value) for name, value in query.items() if value is not None}
        try:
            async with (
                aiohttp.ClientSession(timeout=timeout) as session,
                session.request(
                    method, self.url.rstrip("/") + path, json=body, params=params, headers=headers
                ) as response,
            ):
                yield response
        except aiohttp.ClientConnectorError as error:
            raise CommandError(
                f"no agent answers at {self.url}: {error.os_error.strerror or error}",
                "start one with 'tallyring agent --config FILE', or name it with --url or"
                " TALLYRING_URL",
            ) from None
        except aiohttp.InvalidURL:
            raise CommandError(f"--url: {self.url!r} is not an http:// or https:// URL") from None
        except TimeoutError:
            raise CommandError(f"{self.url} did not answer within {REQUEST_S:.0f} s") from None
        except (aiohttp.ClientError, ValueError) as error:
            raise CommandError(f"{self.url} did not answer as an agent does: {error}") from None

    def show(self, answer: dict[str, Any], table: Callable[[], Table | str]) -> None:
        """Print an answer: as it is with `--json`, else as a table or a line."""
        if self.as_json:
            click.echo(json.dumps(answer, ensure_ascii=False))
            return
        shown = table()
        if isinstance(shown, str):
            click.echo(shown)
        else:
            show_table(shown)


async def _check(response: aiohttp.ClientResponse) -> None:
    """Raise the problem that an agent answers with in the place of a stream."""
    if response.status >= 400:
        answer = await response.json(content_type=None)
        raise _problem(response.status, answer if isinstance(answer, dict) else {})


def _problem(status: int, answer: dict[str, Any]) -> CommandError:
    """The error that a problem document tells of."""
    code, detail = answer.get("code", ""), answer.get("detail", "")
    message = f"{detail} ({code}, {status})" if code else f"the agent answered {status}"
    if answer.get("definite") is False:
        message += "; it may have been stored all the same"
    hint = str(answer.get("hint") or "")
    for of_api, of_command in IN_OTHER_WORDS.items():
        hint = hint.replace(of_api, of_command)
    return CommandError(message, hint, answer)


def api_options(command: Command) -> Command:
    """The options --url, --token and --json; the command gets an `Api` as `api`."""

    def wrapped(url: str, token: str | None, as_json: bool, **arguments: Any) -> Any:
        return command(api=Api(url, token, as_json), **arguments)

    wrapped.__doc__ = command.__doc__
    wrapped.__name__ = command.__name__
    wrapped.__click_params__ = list(getattr(command, "__click_params__", []))  # type: ignore[attr-defined]
    decorated: Any = wrapped
    for option in (
        click.option("--json", "as_json", is_flag=True, help="Print JSON."),
        click.option(
            "--token",
            envvar="TALLYRING_TOKEN",
            show_envvar=True,
            help="Token, if the agent needs one.",
        ),
        click.option(
            "--url",
            envvar="TALLYRING_URL",
            show_envvar=True,
            default=DEFAULT_URL,
            show_default=True,
            help="An agent's URL.",
        ),
    ):
        decorated = option(decorated)
    return decorated  # type: ignore[no-any-return]  # the command, with options


def segment(name: str) -> str:
    """A name as one part of a path."""
    return quote(name, safe="")


def table(*columns: str, title: str | None = None) -> Table:
    """An empty table; columns that begin with `>` are numbers, to the right.

    What does not fit on a line goes on in the next: nothing is left out.
    """
    made = Table(title=title, title_justify="left")
    for column in columns:
        right = column.startswith(">")
        justify: Literal["left", "right"] = "right" if right else "left"
        made.add_column(column.lstrip(">"), justify=justify, overflow="fold")
    return made


def show_table(shown: Table) -> None:
    """Print a table, its title as a line of its own: one above a narrow table would be broken."""
    title, shown.title = shown.title, None
    if title is not None:
        click.echo(title)
    Console(markup=False).print(shown, highlight=False)


def some(number: int, what: str) -> str:
    """A number of things for people: `1 row`, `2,000 rows`."""
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def plain(text: str) -> str:
    """A name that somebody else chose, safe for a terminal: control characters are spelled out."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def lag(ms: int | None) -> str:
    """A lag for people."""
    if ms is None:
        return "unknown"
    return f"{ms} ms" if ms < 5_000 else f"{ms / 1000:.0f} s"
