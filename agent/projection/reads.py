"""Reading ranks: one script call a read, so that a page and its `as_of` are of one moment.

Scores are decoded with the meta that stands in Redis beside them, from the very numbers that made
the order: a page never contradicts itself. Where Redis can't say for sure, the read is refused,
never answered from anywhere else.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from redis.exceptions import RedisError

from agent.boards.catalog import Board
from agent.boards.scale import Scale
from agent.config import Config
from agent.errors import Unavailable
from agent.projection.connection import RankClient
from agent.projection.keys import META_FIELDS, WATERMARK_KEY, board_key, meta_key, meta_of, scale_in
from agent.projection.refill import WINDOW
from agent.projection.scripts import RANKS


@dataclass(frozen=True, slots=True)
class Ranked:
    """One member on a board.

    rank: from 1; with ties `shared`, equal scores share the best of their ranks (1, 2, 2, 4).
    reached_ms: the start of the tick in which the score was reached; None with ties `shared` and
        `member`, which keep no time.
    clamped: the score stands at the end of what Redis carries; the true one may lie beyond.
    """

    rank: int
    member: str
    score: int
    reached_ms: int | None
    clamped: bool


@dataclass(frozen=True, slots=True)
class View:
    """A part of a board at one moment.

    total: how many members the board has.
    lsn, as_of: what the whole view includes; `as_of` by region, in ms since 1970, None where
        nothing is known of a region yet.
    """

    entries: tuple[Ranked, ...]
    total: int
    lsn: int
    as_of: Mapping[str, int | None]


@dataclass(frozen=True, slots=True)
class MemberView:
    """A member's place. `entry` is None where it is not on the board.

    around: the neighbours and the member itself, best first.
    """

    entry: Ranked | None
    around: tuple[Ranked, ...]
    total: int
    lsn: int
    as_of: Mapping[str, int | None]


class Ranks:
    """Reads ranks from Redis.

    All methods raise `Unavailable`: `rank_store_down` where Redis does not answer, `rebuilding`
    where it does not hold the board as it is defined now.
    """

    def __init__(self, config: Config, client: RankClient) -> None:
        self._config = config
        self._client = client

    async def page(self, board: Board, offset: int, limit: int) -> View:
        """At most `limit` members after the best `offset`, best first."""
        return await self._view(board, "", offset, limit)

    async def size(self, board: Board) -> View:
        """No entries, but how many there are."""
        return await self._view(board, "", 0, 0)

    async def member(self, board: Board, member: str, neighbors: int) -> MemberView:
        """A member, with up to `neighbors` others on each side. `member` is not empty."""
        view = await self._view(board, member, 0, neighbors)
        entry = next((entry for entry in view.entries if entry.member == member), None)
        return MemberView(entry, view.entries, view.total, view.lsn, view.as_of)

    async def _view(self, board: Board, member: str, offset: int, limit: int) -> View:
        keys = (WATERMARK_KEY, board_key(board.name, WINDOW), meta_key(board.name, WINDOW))
        try:
            found = await RANKS.call(self._client, keys, (member.encode(), offset, limit))
        except (RedisError, OSError) as error:
            raise Unavailable(
                "rank_store_down",
                f"the rank store does not answer: {error}",
                hint="writes go on; ranks are back as soon as it is",
            ) from error
        lsn, as_of = self._included(found[0])
        scale = _scale(board, found[1])
        total, first, better, flat = found[2:]
        return View(_ranked(scale, first, better, flat), total, lsn, as_of)

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


def _scale(board: Board, fields: Sequence[bytes | None]) -> Scale:
    """The scale of the numbers in Redis, where they are those of the board as it is now."""
    meta = {
        name: field.decode()
        for name, field in zip(META_FIELDS, fields, strict=True)
        if field is not None
    }
    if meta != meta_of(board):
        raise _rebuilding(f"board {board.name!r} is being filled")
    return scale_in(meta)


def _rebuilding(detail: str) -> Unavailable:
    return Unavailable(
        "rebuilding", detail, hint="writes go on; try again in a second, see /readyz for progress"
    )


def _ranked(scale: Scale, first: int, better: int, flat: Sequence[Any]) -> tuple[Ranked, ...]:
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
            )
        )
    return tuple(entries)
