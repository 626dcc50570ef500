"""Who may call the public routes: loopback addresses, or the bearers of tokens.

Without `auth.tokens_file` only loopback addresses may call, and may do everything. Requests that a
web page caused are told apart by their Origin and Host and refused. Behind a reverse proxy on the
same machine every caller is a loopback address: use tokens there.

With it, every public route but /healthz and /readyz wants `Authorization: Bearer TOKEN`:

    [[token]]
    name = "game-backend"          # for people
    sha256 = "9f86d081884c7d65..." # of the token, in hex: printf %s "$TOKEN" | sha256sum
    scopes = ["read", "write"]     # and "admin": define, reset and retire boards, set the clock
    boards = "season-*"            # a glob over board names; left out, all boards

The file is looked at again at most once a second, and read again when it changed. While a changed
file can't be read, the tokens from before stay in force and the log says why.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import time
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

import msgspec
import structlog
from aiohttp import web

from agent.errors import ConfigError, Forbidden, Unauthorized

Scope = Literal["read", "write", "admin"]
LOOK_AGAIN_S = 1.0
_BEARER = "bearer "
_log = structlog.get_logger(__name__)


class Token(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One token: what it may do, on which boards. Only its SHA-256 is kept."""

    name: str
    sha256: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
    scopes: frozenset[Scope]
    boards: str = "*"

    def allows(self, board: str) -> bool:
        """Whether it may be used on this board."""
        return self.boards == "*" or fnmatchcase(board, self.boards)


class _TokensFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    token: tuple[Token, ...]


LOOPBACK = Token("loopback", "0" * 64, frozenset({"read", "write", "admin"}))
"""What a caller from this machine may do where no tokens are configured: everything."""


@dataclass(slots=True)
class _Seen:
    """The tokens file as it was last read."""

    mtime_ns: int
    tokens: tuple[Token, ...]
    looked_s: float


def read_tokens(path: Path) -> tuple[Token, ...]:
    """The tokens of a file.

    Raises:
        ConfigError: it can't be read or is not of the form above.
    """
    try:
        document = tomllib.loads(path.read_text())
        return msgspec.convert(document, _TokensFile).token
    except (OSError, ValueError) as error:
        raise ConfigError("auth.tokens_file", f"{path} can't be used: {error}") from error


class Auth:
    """Decides who may call.

    Raises:
        ConfigError: the tokens file can't be used at start.
    """

    def __init__(
        self, tokens_file: Path | None, monotonic_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._path = tokens_file
        self._monotonic_s = monotonic_s
        self._seen = _Seen(0, (), monotonic_s())
        if tokens_file is not None:
            self._seen.tokens = read_tokens(tokens_file)
            self._seen.mtime_ns = tokens_file.stat().st_mtime_ns

    def caller(self, request: web.BaseRequest, scope: Scope) -> Token:
        """Who calls, once that is clear and the scope allows it.

        Raises:
            Unauthorized: no token, or none that is known.
            Forbidden: not from this machine, by a foreign page, or without the scope.
        """
        if self._path is None:
            _check_loopback(request)
            return LOOPBACK
        token = self._token(request.headers.get("Authorization", ""))
        if scope not in token.scopes:
            raise Forbidden(
                f"token {token.name!r} has no scope {scope!r}",
                hint="scopes stand in the agent's tokens file",
            )
        return token

    def _token(self, header: str) -> Token:
        hint = "send the header 'Authorization: Bearer TOKEN'"
        if header[: len(_BEARER)].lower() != _BEARER:
            raise Unauthorized("this route needs a token", hint=hint)
        text = header[len(_BEARER) :].strip()
        digest = hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()
        found = None
        for token in self.tokens():
            # Every token is compared, each in constant time: timing tells nothing.
            if hmac.compare_digest(token.sha256, digest):
                found = token
        if found is None:
            raise Unauthorized("this token is not known", hint=hint)
        return found

    def tokens(self) -> tuple[Token, ...]:
        """The tokens in force. One stat a second, and a read of a small file when it changed."""
        path, now_s = self._path, self._monotonic_s()
        if path is None or now_s - self._seen.looked_s < LOOK_AGAIN_S:
            return self._seen.tokens
        self._seen.looked_s = now_s
        try:
            mtime_ns = path.stat().st_mtime_ns
            if mtime_ns != self._seen.mtime_ns:
                self._seen = _Seen(mtime_ns, read_tokens(path), now_s)
        except (OSError, ConfigError) as error:
            _log.error("tokens_file_unusable", path=str(path), error=str(error))
        return self._seen.tokens


def _check_loopback(request: web.BaseRequest) -> None:
    headers = request.headers
    refusal = _refusal(request.remote or "", headers.get("Host", ""), headers.get("Origin"))
    if refusal is not None:
        raise Forbidden(refusal, hint="configure auth.tokens_file and send a token")


@lru_cache(1024)
def _refusal(remote: str, host: str, origin: str | None) -> str | None:
    """Why a caller without a token may not call; None where it may."""
    if not _is_loopback(remote):
        return "without auth.tokens_file only this machine may call"
    if not _is_address(host):
        # A name that a foreign page made point to this machine (DNS rebinding).
        return f"Host: {host[:80]!r} is not an address of this machine"
    if origin is not None and origin not in (f"http://{host}", f"https://{host}"):
        return f"Origin: a page of {origin[:80]!r} may not call this agent"
    return None


def _is_loopback(host: str) -> bool:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)


def _is_address(host: str) -> bool:
    """Whether a Host header is an address or `localhost`, with or without a port."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
        if name != "localhost":
            ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
