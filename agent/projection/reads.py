"""Reading ranks: one script call, so that a page and its `as_of` are of one moment.

What is asked of one window at once goes in one call (together.py).

Scores are decoded with the meta that stands in Redis beside them, from the very numbers that made
the order: a page never contradicts itself. Where Redis can't say for sure, the read is refused,
never answered from anywhere else.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from redis.exceptions import RedisError

from agent.boards.catalog import Placed
from agent.boards.scale import Scale
from agent.config import Config
from agent.errors import Unavailable, words_of
from agent.projection.connection import RankClient
from agent.projection.keys import (
    AS_OF,
    META_FIELDS,
    WATERMARK_KEY,
    as_of_in,
    board_key,
    fits,
    meta_key,
    scale_in,
)
from agent.projection.scripts import AMONG, RANKS, Script
from agent.projection.scripts import Part as Argument
from agent.projection.together import Together
from agent.store.readers import Readers
from agent.store.snapshot import SqliteSnapshot

PARTS_MAX = 256  # of one call: Redis serves nobody else meanwhile
AMONG_MAX = 5_000  # members of one call; Lua's `unpack` takes 8,000


class Ranked(NamedTuple):
    """One member on a board.

    rank: from 1; with ties `shared`, equal scores share the best of their ranks (1, 2, 2, 4).
    reached_ms: the start of the tick in which the score was reached; None with ties `shared` and
        `member`, which keep no time.
    clamped: the score stands at the end of what Redis carries; the true one may lie beyond.
    composite: the Redis score.
    """

    rank: int
    member: str
    score: int
    reached_ms: int | None
    clamped: bool
    composite: int


class View(NamedTuple):
    """A part of a window at one moment.

    total: how many members it has. first: how many stand before the first entry.
    lsn, as_of: what the whole view includes; `as_of` by region, in ms since 1970, None where
        nothing is known of a region yet. The lsn is that of all windows, also where a window that
        is computed now and then is behind: its `as_of` says so.
    """

    entries: tuple[Ranked, ...]
    total: int
    lsn: int
    as_of: Mapping[str, int | None]
    first: int = 0


class MemberView(NamedTuple):
    """A member's place. `entry` is None where it is not on the board.

    around: the neighbours and the member itself, best first.
    """

    entry: Ranked | None
    around: tuple[Ranked, ...]
    total: int
    lsn: int
    as_of: Mapping[str, int | None]


@dataclass(frozen=True, slots=True)
class Look:
    """What a script saw of a window at one moment, as `View`; `scale` decodes its numbers.

    rest: what the script returned behind watermark and meta; empty where the window is.
    """

    lsn: int
    as_of: Mapping[str, int | None]
    scale: Scale
    rest: Sequence[Any]


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a page, as a place to go on from: it is found by these two, wherever it stands."""

    composite: int
    member: bytes


class Part(NamedTuple):
    """What is wanted of a window: the arguments of ranks.lua."""

    what: str
    one: bytes | int
    other: bytes
    many: int


@dataclass(frozen=True, slots=True)
class _Subject:
    """A window of a board, as it was defined when it was asked for."""

    placed: Placed

    def __hash__(self) -> int:
        return hash((self.placed.board.name, self.placed.window.id))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Subject):
            return False
        mine, its = self.placed, other.placed
        return mine.board is its.board and mine.window == its.window


@dataclass(frozen=True, slots=True)
class _Seen:
    """What one look says to one of those who asked."""

    look: Look
    total: int
    part: Sequence[Any]


class Ranks:
    """Reads ranks from Redis.

    All methods raise `Unavailable`: `rank_store_down` where Redis does not answer, `rebuilding`
    where it does not hold the window as its board is defined now. A window that has no place in
    Redis as nothing was ever counted in it is an empty one.

    Args:
        readers: of the agent's file, which says whether anything was; without it, every window
            that has no place is `rebuilding`.
    """

    def __init__(self, config: Config, client: RankClient, readers: Readers | None = None) -> None:
        self._config = config
        self._client = client
        self._readers = readers
        self._together: Together[_Subject, Part, _Seen] = Together(self._ask, PARTS_MAX)

    async def page(self, placed: Placed, offset: int, limit: int) -> View:
        """At most `limit` members after the best `offset`, best first."""
        return await self._view(placed, Part("page", offset, b"", limit))

    async def size(self, placed: Placed) -> View:
        """No entries, but how many there are."""
        return await self.page(placed, 0, 0)

    async def page_from(self, placed: Placed, row: Row, limit: int, *, backward: bool) -> View:
        """At most `limit` members behind a row, or before it; best first both ways."""
        what = "before" if backward else "after"
        return await self._view(placed, Part(what, row.composite, row.member, limit))

    async def member(self, placed: Placed, member: str, neighbors: int) -> MemberView:
        """A member, with up to `neighbors` others on each side. `member` is not empty."""
        view = await self._view(placed, Part("member", member.encode(), b"", neighbors))
        entry = next((entry for entry in view.entries if entry.member == member), None)
        return MemberView(entry, view.entries, view.total, view.lsn, view.as_of)

    async def members(self, placed: Placed, members: Sequence[str]) -> list[MemberView]:
        """Several members without neighbours, at most PARTS_MAX, of one look."""
        assert len(members) <= PARTS_MAX
        parts = [Part("member", member.encode(), b"", 0) for member in members]
        seen = await self._ask(_Subject(placed), parts)
        views = [_view_of(each) for each in seen]
        return [
            MemberView(
                next(iter(view.entries), None), view.entries, view.total, view.lsn, view.as_of
            )
            for view in views
        ]

    async def among(self, placed: Placed, members: Sequence[bytes]) -> View:
        """Some members, at most AMONG_MAX and each once, ranked among themselves.

        `total` is how many of them are on the board.
        """
        assert 0 < len(members) <= AMONG_MAX
        look = await self.look(AMONG, placed, members)
        if not look.rest:
            return View((), 0, look.lsn, look.as_of)
        _, scores = look.rest
        there = [
            (int(float(score)), name)
            for name, score in zip(members, scores, strict=True)
            if score is not None
        ]
        there.sort(reverse=not look.scale.low)
        flat = [part for score, name in there for part in (name, score)]
        return View(ranked(look.scale, 0, 0, flat), len(there), look.lsn, look.as_of)

    async def _view(self, placed: Placed, part: Part) -> View:
        return _view_of(await self._together.wish(_Subject(placed), part))

    async def _ask(self, subject: _Subject, parts: Sequence[Part]) -> list[_Seen]:
        arguments = [argument for part in parts for argument in part]
        look = await self.look(RANKS, subject.placed, arguments)
        if not look.rest:
            return [_Seen(look, 0, ())] * len(parts)
        total, seen = look.rest
        return [_Seen(look, total, its) for its in seen]

    async def look(self, script: Script, placed: Placed, arguments: Sequence[Argument]) -> Look:
        """Run a script on a window's watermark, sorted set and meta, and say what that is worth.

        It returns watermark and meta fields first, as ranks.lua does, and no more without them.
        """
        name, window = placed.board.name, placed.window.id
        keys = (WATERMARK_KEY, board_key(name, window), meta_key(name, window))
        try:
            found = await script.call(self._client, keys, arguments)
        except (RedisError, OSError) as error:
            raise Unavailable(
                "rank_store_down",
                f"the rank store does not answer: {words_of(error)}",
                hint="writes go on; ranks are back as soon as it is",
            ) from error
        lsn, as_of = self._included(found[0])
        meta = {
            field: value.decode()
            for field, value in zip((*META_FIELDS, AS_OF), found[1], strict=True)
            if value is not None
        }
        if not meta and await self._is_empty(placed):
            return Look(lsn, as_of, placed.scale, ())
        scale = _scale(placed, meta)
        if AS_OF in meta:
            as_of = as_of_in(meta[AS_OF])
        return Look(lsn, as_of, scale, found[2:])

    async def _is_empty(self, placed: Placed) -> bool:
        """Whether nothing was ever counted in a window, as far as the agent's file knows."""
        if self._readers is None:
            return False
        counted, window = placed.counted, placed.window
        single = window.name == counted.series.name
        start = placed.space if single else counted.prefix

        def spaces(snapshot: SqliteSnapshot) -> list[bytes]:
            return snapshot.spaces_of(start)

        found = await self._readers.read(spaces)
        return start not in found if single else not found

    def _included(self, fields: Sequence[bytes | None]) -> tuple[int, Mapping[str, int | None]]:
        """The lsn and as_of of a watermark that may be served."""
        if any(field is None for field in fields):
            raise _rebuilding("the rank store is being filled")
        ring, region, _, _, lsn, as_of = (field.decode() for field in fields if field)
        config = self._config
        if (ring, region) != (config.ring.name, config.agent.region):
            raise _rebuilding(f"the rank store is of ring {ring!r}, region {region!r}")
        try:
            return int(lsn), {str(name): ms for name, ms in json.loads(as_of).items()}
        except (ValueError, AttributeError):
            raise _rebuilding("the watermark in the rank store can't be read") from None


def _view_of(seen: _Seen) -> View:
    look = seen.look
    if not seen.part:
        return View((), 0, look.lsn, look.as_of)
    first, better, flat = seen.part
    entries = ranked(look.scale, first, better, flat)
    return View(entries, seen.total, look.lsn, look.as_of, first)


def _scale(placed: Placed, meta: Mapping[str, str]) -> Scale:
    """The scale of the numbers in Redis, where they are those of the board as it is now."""
    if not fits(meta, placed):
        raise _rebuilding(
            f"window {placed.window.id!r} of board {placed.board.name!r} is being filled"
        )
    return scale_in(meta)


def _rebuilding(detail: str) -> Unavailable:
    return Unavailable(
        "rebuilding", detail, hint="writes go on; try again in a second, see /readyz for progress"
    )


def ranked(scale: Scale, first: int, better: int, flat: Sequence[Any]) -> tuple[Ranked, ...]:
    """The entries of a page that begins at position `first`, counted from 0."""
    shared = scale.ties == "shared"
    limit = scale.score_limit
    entries = []
    rank, before = better + 1, None
    for at in range(0, len(flat), 2):
        # Redis may write large scores with an exponent; as doubles they are exact.
        composite = int(float(flat[at + 1]))
        position = first + at // 2 + 1
        if not shared or (before is not None and composite != before):
            rank = position
        before = composite
        score = scale.score_of(composite)
        entries.append(
            Ranked(
                rank=rank,
                member=flat[at].decode(errors="replace"),
                score=score,
                reached_ms=scale.reached_ms_of(composite),
                clamped=abs(score) >= limit,
                composite=composite,
            )
        )
    return tuple(entries)
