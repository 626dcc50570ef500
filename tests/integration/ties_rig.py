"""Every view of a board, compared with what the plain history says (tests/property/tie_oracle)."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import redis

from agent.boards.entry import rfc3339
from tests.integration.fault_rig import eventually
from tests.integration.regions_rig import HOLDS_S, REGIONS, Regions, path
from tests.property.tie_oracle import Line, Rules, Said, lines_of

READER = Path(__file__).resolve().parents[2] / "docs" / "readers" / "leaderboard.py"


def load_reader() -> Any:
    """The documentation's reader of Redis, as a module."""
    spec = importlib.util.spec_from_file_location("leaderboard_reader", READER)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@dataclass
class Board:
    """A board, and by region what is written there."""

    name: str
    rules: Rules
    window: str = "all"
    said: dict[str, list[Said]] = field(default_factory=dict)

    def lines(self, regions: Sequence[str] = REGIONS, hidden: Sequence[str] = ()) -> list[Line]:
        """What it must show of what these regions wrote."""
        history = [one for name in regions for one in self.said.get(name, [])]
        return lines_of(self.rules, history, hidden)

    def entries(self, region: str) -> list[dict[str, Any]]:
        """What is written in a region, as the API takes it."""
        return [
            entry_of(self.rules, one, f"{region}-{at}")
            for at, one in enumerate(self.said.get(region, []))
        ]


def entry_of(rules: Rules, one: Said, key: str) -> dict[str, Any]:
    """An entry as the API takes it. Kept results carry a key."""
    entry: dict[str, Any] = {"member": one.member, "at": one.at_ms}
    if rules.rule in ("distinct", "unique"):
        entry["actor"] = one.actor
        if not one.present:
            entry["present"] = False
    elif rules.rule == "sum":
        entry["add"] = one.number
    else:
        entry["score"] = one.number
    if rules.kept:
        entry["key"] = key
    return entry


async def write_all(regions: Regions, name: str, boards: Sequence[Board]) -> None:
    """Write what is to be written in one region, each entry's score in the answer checked."""
    for board in boards:
        entries = board.entries(name)
        if entries:
            where = path("boards", board.name, "entries")
            await regions.send(name, "POST", where, {"entries": entries})


async def shows(regions: Regions, name: str, board: Board, lines: Sequence[Line]) -> None:
    """Wait until the page of one region is this."""
    want = [in_api(line) for line in lines]
    found: Any = None

    async def equal() -> bool:
        nonlocal found
        query = f"?limit=1000&window={quote(board.window)}"
        status, page = await regions.ask(name, "GET", path("boards", board.name, "entries") + query)
        found = [shown(entry) for entry in page["entries"]] if status == 200 else page
        return bool(found == want)

    try:
        async with asyncio.timeout(HOLDS_S):
            await eventually(equal)
    except TimeoutError:
        raise AssertionError(f"{name} {board.name} {board.rules}\n{found}\n{want}") from None


def shown(entry: dict[str, Any]) -> tuple[Any, ...]:
    """What is compared of an entry in an answer."""
    return entry["rank"], entry["member"], entry["score"], entry["reached_at"]


def in_api(line: Line) -> tuple[Any, ...]:
    """The same of a line of the oracle."""
    reached_at = None if line.reached_ms is None else rfc3339(line.reached_ms)
    return line.rank, line.member, line.score, reached_at


async def agree(regions: Regions, name: str, board: Board, lines: Sequence[Line]) -> None:
    """Every view of one region must be this; its page is already."""
    want = [in_api(line) for line in lines]
    where, window = path("boards", board.name, "entries"), f"window={quote(board.window)}"
    for offset in range(len(lines) + 1):
        query = f"?{window}&offset={offset}&limit=3"
        page = await regions.send(name, "GET", where + query)
        assert [shown(entry) for entry in page["entries"]] == want[offset : offset + 3], board
        assert page["total"] == len(lines)
    for position, line in enumerate(lines):
        member = f"{where}/{quote(line.member, safe='')}?{window}&neighbors=2"
        mine = await regions.send(name, "GET", member)
        assert shown(mine) == want[position], board
        around = [*want[max(0, position - 2) : position], *want[position + 1 : position + 3]]
        assert [shown(entry) for entry in mine["neighbors"]] == around, board
    await _among(regions, name, board, lines)
    agent = regions.ring[name]
    await asyncio.to_thread(_direct, agent.redis_url, board, lines)


async def _among(regions: Regions, name: str, board: Board, lines: Sequence[Line]) -> None:
    """Friends rank among themselves in the same order, with ties as on the board."""
    friends = lines[::2]
    where = f"{path('boards', board.name, 'among')}?window={quote(board.window)}"
    names = [line.member for line in friends]
    answer = await regions.send(name, "POST", where, {"members": [*sorted(names), "nobody"]})
    ranks: list[int] = []
    for position, line in enumerate(friends):
        tied = position and line.rank == friends[position - 1].rank
        ranks.append(ranks[-1] if tied else position + 1)
    want = [(rank, *in_api(line)[1:]) for rank, line in zip(ranks, friends, strict=True)]
    assert [shown(entry) for entry in answer["entries"]] == want, board
    assert answer["missing"] == ["nobody"]


def _direct(url: str, board: Board, lines: Sequence[Line]) -> None:
    """Straight from Redis, as the documentation says."""
    reader = load_reader()
    want = [
        {"rank": rank, "member": member, "score": board.rules.carried(score), "reached_ms": tick_ms}
        for rank, member, score, _, tick_ms in lines
    ]
    with redis.Redis.from_url(url, decode_responses=True) as client:
        for offset in range(len(lines) + 1):
            total, found = reader.page(client, board.name, board.window, offset, 3)
            assert (total, found) == (len(lines), want[offset : offset + 3]), board
        for line in want:
            assert reader.place(client, board.name, board.window, line["member"]) == line, board


async def everywhere(regions: Regions, boards: Sequence[Board], hidden: Sequence[str] = ()) -> None:
    """Wait until all regions show what was written, then compare every view of each."""
    for name in REGIONS:
        for board in boards:
            await shows(regions, name, board, board.lines(hidden=hidden))
    for name in REGIONS:
        for board in boards:
            await agree(regions, name, board, board.lines(hidden=hidden))
