"""The top page, kept for a second: what thousands of players look at is read once.

A page is kept as its bytes without the lag, which is told by its age. One that is kept is never
served once this agent knows of another definition, ban or erasure, nor to whoever waits for a write
(`after`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from aiohttp import web

from agent.api.answers import PageAnswer
from agent.api.bodies import JSON, encode
from agent.api.etags import is_named
from agent.api.freshness import freshness_of
from agent.state import State

KEPT_MS = 1_000
PAGES_MAX = 256  # about 30 KB each at the most
PAGE_ENTRIES_MAX = 100
BOARDS_MAX = 1_024  # about which it is known since when they are as they are
CACHE_CONTROL = "private, max-age=1"


@dataclass(frozen=True, slots=True)
class _Kept:
    """A page as it was read.

    made_ms: when. of: what it was made from, which must be the same objects still.
    head: its bytes up to the lag. as_of: by region; oldest_ms: the least of it, None where one of
        the regions is not known.
    """

    made_ms: int
    of: tuple[object, ...]
    head: bytes
    tag: str
    as_of: Mapping[str, int | None]
    oldest_ms: int | None


class TopPages:
    """Pages that were read within the last second. For one event loop."""

    def __init__(self) -> None:
        self._pages: dict[tuple[str, str, int], _Kept] = {}
        self._since: dict[str, tuple[tuple[object, ...], int]] = {}

    def since(self, state: State, board: str) -> int:
        """The lsn from which on a page of this board may be kept: what is known of definition, bans
        and erasures now was known then, so a page that includes it has followed them.
        """
        current, before = _of(state, board), self._since.get(board)
        if before is not None and all(
            now is then for now, then in zip(current, before[0], strict=True)
        ):
            return before[1]
        if before is None and len(self._since) >= BOARDS_MAX:
            self._since.clear()
        self._since[board] = current, state.lsn
        return state.lsn

    def find(
        self,
        key: tuple[str, str, int],
        state: State,
        now_ms: int,
        request: web.BaseRequest,
        lag_ms_max: int | None,
    ) -> web.Response | None:
        """The answer with a page that is kept; None where it has to be read.

        Args:
            key: board, window's id, limit.

        Raises:
            Unavailable: (`too_stale`)
        """
        kept = self._pages.get(key)
        if kept is None or not 0 <= now_ms - kept.made_ms < KEPT_MS:
            return None
        if any(now is not then for now, then in zip(_of(state, key[0]), kept.of, strict=True)):
            return None
        oldest_ms = kept.oldest_ms
        if lag_ms_max is not None:
            freshness_of(kept.as_of, now_ms).require(lag_ms_max)
        lag_ms = None if oldest_ms is None else max(0, now_ms - oldest_ms)
        return _response(kept.head, lag_ms, kept.tag, request)

    def answer(
        self,
        key: tuple[str, str, int],
        state: State,
        now_ms: int,
        page: PageAnswer,
        as_of: Mapping[str, int | None],
        request: web.BaseRequest,
        *,
        keep: bool,
    ) -> web.Response:
        """The answer with a page that was just read, which is kept if `keep`: see `since`."""
        tag = tag_of(page)
        whole = encode(page, JSON)
        head = whole[: whole.rindex(b":") + 1]
        if len(self._pages) >= PAGES_MAX:
            self._pages = {its: p for its, p in self._pages.items() if now_ms - p.made_ms < KEPT_MS}
        if keep and len(self._pages) < PAGES_MAX:
            known = [ms for ms in as_of.values() if ms is not None]
            oldest_ms = min(known) if known and len(known) == len(as_of) else None
            self._pages[key] = _Kept(now_ms, _of(state, key[0]), head, tag, as_of, oldest_ms)
        return _response(head, page.max_lag_ms, tag, request)


def tag_of(page: PageAnswer) -> str:
    """The ETag of a page: weak, as `as_of` moves on while nothing else does."""
    said = encode([page.window, page.total, page.offset, page.entries], JSON)
    return f'W/"{hashlib.blake2b(said, digest_size=12).hexdigest()}"'


def not_modified(request: web.BaseRequest, tag: str) -> bool:
    """Whether the caller has this page already."""
    wanted = request.headers.get("If-None-Match")
    return wanted is not None and is_named(tag, wanted)


def _of(state: State, board: str) -> tuple[object, ...]:
    return state.catalog.find(board), state.bans, state.erased


def _response(head: bytes, lag_ms: int | None, tag: str, request: web.BaseRequest) -> web.Response:
    headers = {"ETag": tag, "Cache-Control": CACHE_CONTROL}
    if not_modified(request, tag):
        return web.Response(status=304, headers=headers)
    lag = b"null" if lag_ms is None else b"%d" % lag_ms
    body = b"%b%b}" % (head, lag)
    return web.Response(body=body, headers=headers, content_type=JSON)
