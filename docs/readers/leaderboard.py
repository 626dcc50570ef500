"""Reads ranks and counters straight from a region's Redis, with redis-py. It never writes.

    python leaderboard.py PORT page BOARD WINDOW OFFSET LIMIT
    python leaderboard.py PORT rank BOARD WINDOW MEMBER...
    python leaderboard.py PORT counter NAME

It prints JSON, and ends with code 75 (try again later) while Redis is being filled.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import redis

TRIES = 10
TRY_LATER = 75


class NotFilled(Exception):
    """What was asked for is not in Redis now: being filled, or a window that is no more."""


class Scale:
    """How the numbers of a window are read: what its meta says."""

    def __init__(self, meta: dict[str, str]) -> None:
        self.b = int(meta["b"])
        self.low = meta["order"] == "low"
        self.shared = meta["ties"] == "shared"
        self.epoch_ms, self.tick_ms = int(meta["epoch_ms"]), int(meta["tick_ms"])
        # Ticks are kept as they are where the greater number is to be the better or the worse
        # one anyway; else they are counted down from the greatest.
        self.turned = (meta["ties"] == "last") == self.low

    def decode(self, composite: float) -> tuple[int, int | None]:
        """(score, when it was reached in ms since 1970); None where the board keeps no time."""
        whole = int(composite)
        score, tie = whole >> self.b, whole & ((1 << self.b) - 1)  # floor, also below zero
        if not self.b:
            return score, None
        tick = (1 << self.b) - 1 - tie if self.turned else tie
        return score, self.epoch_ms + tick * self.tick_ms


def page(
    client: redis.Redis, board: str, window: str, offset: int, limit: int
) -> tuple[int, list[dict[str, Any]]]:
    """How many members the window has, and `limit` (at least 1) of them behind the first `offset`.

    Raises:
        NotFilled: ask again in a second.
    """
    key = f"lb:{{s0}}:{board}:{window}"
    # With ties `shared` the rank of a page's first member is 1 + how many are better, and that can
    # only be asked with its number: so what one look finds is counted in the next one, which must
    # find it again. All that one look says is of one moment.
    head = 0
    for _ in range(TRIES):
        with client.pipeline(transaction=True) as look:
            look.hgetall(f"{key}:meta")
            look.zcard(key)
            look.zrange(key, offset, offset + limit - 1, withscores=True)
            look.zrevrange(key, offset, offset + limit - 1, withscores=True)
            look.zcount(key, "-inf", f"({head}")
            look.zcount(key, f"({head}", "+inf")
            meta, total, lowest, highest, below, above = look.execute()
        if not meta:
            raise NotFilled(f"{board} {window}")
        scale = Scale(meta)
        rows = lowest if scale.low else highest
        if not scale.shared or not rows or int(rows[0][1]) == head:
            return total, ranked(scale, rows, offset, below if scale.low else above)
        head = int(rows[0][1])
    raise NotFilled(f"{board} {window}: it changes faster than it is read")


def ranked(
    scale: Scale, rows: list[tuple[str, float]], offset: int, better: int
) -> list[dict[str, Any]]:
    """The lines of a page. `better`: how many are strictly better than its first member."""
    lines: list[dict[str, Any]] = []
    before, rank = None, better + 1
    for position, (member, composite) in enumerate(rows, offset + 1):
        if not scale.shared or (before is not None and composite != before):
            rank = position
        before = composite
        score, reached_ms = scale.decode(composite)
        lines.append({"rank": rank, "member": member, "score": score, "reached_ms": reached_ms})
    return lines


def place(client: redis.Redis, board: str, window: str, member: str) -> dict[str, Any] | None:
    """A member's line; None where it is not ranked: no entry, banned, or erased.

    Raises:
        NotFilled: ask again in a second.
    """
    key = f"lb:{{s0}}:{board}:{window}"
    mine = 0
    for _ in range(TRIES):
        with client.pipeline(transaction=True) as look:
            look.hgetall(f"{key}:meta")
            look.zscore(key, member)
            look.zrank(key, member)
            look.zrevrank(key, member)
            look.zcount(key, "-inf", f"({mine}")
            look.zcount(key, f"({mine}", "+inf")
            meta, composite, from_low, from_high, below, above = look.execute()
        if not meta:
            raise NotFilled(f"{board} {window}")
        if composite is None:
            return None
        scale = Scale(meta)
        position = from_low if scale.low else from_high
        if scale.shared:
            position = below if scale.low else above
        if not scale.shared or int(composite) == mine:
            score, reached_ms = scale.decode(composite)
            return {
                "rank": position + 1,
                "member": member,
                "score": score,
                "reached_ms": reached_ms,
            }
        mine = int(composite)
    raise NotFilled(f"{board} {window}: it changes faster than it is read")


def counter(client: redis.Redis, name: str) -> int:
    """The exact value of a counter; 0 where nothing was ever added.

    Raises:
        NotFilled: ask again in a second.
    """
    with client.pipeline(transaction=True) as look:
        look.get(f"ct:{{s0}}:{name}")
        look.exists("lb:{s0}:counters:all:meta")
        value, complete = look.execute()
    if not complete:
        raise NotFilled("counters")
    return int(value or 0)


def main(arguments: list[str]) -> int:
    """Answer one question from the command line; returns the exit code."""
    if len(arguments) < 3:
        print(__doc__, file=sys.stderr)
        return 2
    port, what, *rest = arguments
    answer: Any
    with redis.Redis(port=int(port), decode_responses=True) as client:
        try:
            if what == "page":
                total, lines = page(client, rest[0], rest[1], int(rest[2]), int(rest[3]))
                answer = {"total": total, "entries": lines}
            elif what == "rank":
                answer = [place(client, rest[0], rest[1], member) for member in rest[2:]]
            else:
                answer = str(counter(client, rest[0]))  # JSON's readers may stop at 2^53
        except NotFilled as error:
            print(f"not filled: {error}", file=sys.stderr)
            return TRY_LATER
    print(json.dumps(answer, ensure_ascii=False))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
