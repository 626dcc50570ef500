"""Comparing what SQLite says with what Redis holds, of one window, while both go on changing.

Two passes: over the members in SQLite, and over those in Redis, so that what either side lacks is
found. A page in which something differs proves nothing yet: the change may be on its way. So what
differs is looked at again when the watermark has passed the state that it was compared with, and is
reported only where SQLite said the same before and after, and Redis held something else, twice.

Only the agent that projects can compare: the watermark speaks of its log. Windows that are computed
now and then are not compared: they are behind by intention, and are made anew all the time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple, TypeAlias

from agent.boards.catalog import Placed
from agent.boards.definition import COUNTERS
from agent.projection.connection import RankClient
from agent.projection.keys import (
    TENURE,
    WATERMARK_KEY,
    Watermark,
    board_key,
    counter_key,
    fits,
    meta_key,
    texts,
    watermark_in,
)
from agent.projection.source import (
    Hides,
    count_ranked,
    derivation_of,
    read_members,
    read_standings,
)
from agent.state import State
from agent.store.readers import Readers
from agent.store.snapshot import SqliteSnapshot

DIFFERENCES_MAX = 100  # listed; all are counted
LOOKS = 5  # at what differs, until it is either settled or still on its way
AGREEING_LOOKS = 2  # that must find the same difference
SETTLE_S = 10.0  # for the watermark to pass the state that was compared
LOOK_S = 0.02


class Held(NamedTuple):
    """What one side holds of a member: its composite score, its counter's string; None: nothing."""

    composite: int | None
    text: str | None


NOTHING = Held(None, None)
_Sides: TypeAlias = dict[bytes, Held]


class _Look(NamedTuple):
    """What the last look at a member found (expected, found), and how many in a row found it."""

    pair: tuple[Held, Held] | None
    agreeing: int


@dataclass(frozen=True, slots=True)
class Difference:
    """A member of which Redis holds something else than SQLite says.

    score: what SQLite says, before it is put into a composite; None where it knows no such member.
    """

    board: str
    window: str
    member: bytes
    score: int | None
    expected: Held
    found: Held

    def __str__(self) -> str:
        """One line for an operator."""
        name = self.member.decode(errors="backslashreplace")
        said = "not a member" if self.score is None else f"score {self.score}"
        where = f"{self.board}/{self.window}/{name}"
        return f"{where}: SQLite: {said} {self.expected}, Redis: {self.found}"


@dataclass(slots=True)
class Comparison:
    """What came of comparing one window.

    members: how many SQLite has.
    differences: the first DIFFERENCES_MAX of `count`.
    unsettled: members that changed at every look, or whose change never arrived in time.
    skipped: why nothing was compared; empty otherwise.
    """

    board: str
    window: str
    members: int = 0
    count: int = 0
    differences: list[Difference] = field(default_factory=list)
    unsettled: int = 0
    skipped: str = ""


async def compare_window(
    readers: Readers,
    client: RankClient,
    placed: Placed,
    state: Callable[[], State],
    *,
    page: int = 1_000,
    settle_s: float = SETTLE_S,
    rest_s: float = 0.0,
) -> Comparison:
    """Compare a window of a board in use, page by page; nothing is changed.

    Args:
        state: this agent's state now: its log is compared, by its bans and erasures.
        page: how many cells, or members of Redis, are compared at a time.
        rest_s: after each page.

    Raises:
        redis.exceptions.RedisError, OSError: Redis does not answer.
    """
    found = Comparison(placed.board.name, placed.window.id)
    audit = _Audit(readers, client, placed, state, settle_s)
    found.skipped = await audit.unfit()
    if found.skipped:
        return found
    after: bytes | None = b""
    while after is not None:
        members, after = await audit.stored(after, page)
        await audit.compare(members, found)
        found.members += len(members)
        await asyncio.sleep(rest_s)
    cursor = -1
    while cursor != 0:
        cursor, members = await audit.ranked(max(cursor, 0), page)
        await audit.compare(members, found, strangers=True)
        await asyncio.sleep(rest_s)
    # A window that began to be filled in the middle: nothing that was found is worth telling.
    unfit = await audit.unfit()
    return Comparison(found.board, found.window, skipped=unfit) if unfit else found


class Counting(NamedTuple):
    """How many members a window has in SQLite and in Redis, at one watermark."""

    stored: int
    ranked: int


class Sampling:
    """Compares a part of a window: the best members of either side, and some at random.

    Args:
        state: this agent's state now: its log is compared, by its bans and erasures.

    All methods raise redis.exceptions.RedisError or OSError where Redis does not answer.
    """

    def __init__(
        self,
        readers: Readers,
        client: RankClient,
        placed: Placed,
        state: Callable[[], State],
        settle_s: float = SETTLE_S,
    ) -> None:
        self._audit = _Audit(readers, client, placed, state, settle_s)
        self._client = client
        self._placed = placed
        self._key = board_key(placed.board.name, placed.window.id)

    async def compare(self, top: int, sample: int, random: Random) -> Comparison:
        """Compare the best `top` members, and `sample` at random, of which Redis has half."""
        found = Comparison(self._placed.board.name, self._placed.window.id)
        found.skipped = await self._audit.unfit()
        if found.skipped:
            return found
        way = () if self._placed.scale.low else ("REV",)
        best = await self._client.command("ZRANGE", self._key, 0, top - 1, *way)
        some = await self._client.command("ZRANDMEMBER", self._key, sample // 2)
        # And some of which SQLite knows, from anywhere: what Redis lacks is in none of its own.
        start = random.choice([b"", *some])
        stored, _ = await self._audit.stored(start, sample // 2)
        members = [*dict.fromkeys([*best, *some, *stored[: sample // 2]])]
        await self._audit.compare(members, found)
        found.members = len(members)
        unfit = await self._audit.unfit()
        return Comparison(found.board, found.window, skipped=unfit) if unfit else found

    async def differ(self, members: Sequence[bytes]) -> bool:
        """Whether any of these members differs."""
        found = Comparison(self._placed.board.name, self._placed.window.id)
        await self._audit.compare(members, found)
        return found.count > 0

    async def count(self) -> Counting | None:
        """The sizes of both sides; None where the watermark moves all the time."""
        for _ in range(LOOKS):
            before = await self._audit.watermark()
            stored, lsn = await self._audit.size()
            ranked = int(await self._client.command("ZCARD", self._key))
            after = await self._audit.watermark()
            if before is None or after is None or before.claim.log != self._audit.log:
                return None
            if before.lsn == after.lsn == lsn and before.batch == after.batch:
                return Counting(stored, ranked)
            await asyncio.sleep(LOOK_S)
        return None


class _Audit:
    def __init__(
        self,
        readers: Readers,
        client: RankClient,
        placed: Placed,
        state: Callable[[], State],
        settle_s: float,
    ) -> None:
        self._readers = readers
        self._client = client
        self._placed = placed
        self._state = state
        self.log = state().log
        self._settle_s = settle_s
        self._board = placed.board.name
        self._key = board_key(self._board, placed.window.id)

    async def unfit(self) -> str:
        """Why this window can't be compared now; empty if it can."""
        if derivation_of(self._placed) is not None:
            return "it is computed now and then, and not compared"
        keys = [WATERMARK_KEY, meta_key(self._board, self._placed.window.id)]
        fields, found = await self._client.hashes(keys)
        watermark = watermark_in(fields)
        if watermark is None:
            return "Redis is being filled"
        if watermark.claim.log != self.log:
            return f"agent {watermark.claim.agent!r} projects from another log"
        meta = texts(found)
        if not meta:
            return "the window is being filled, or it is not open and holds nothing"
        if meta.get(TENURE, "") != watermark.tenure or not fits(meta, self._placed):
            return "the window is being filled"
        return ""

    def _hides(self) -> Hides:
        """Who is in no set now. Taken before a snapshot, so that what it says is in that."""
        state = self._state()

        def hides(member: bytes, board: str) -> bool:
            return state.bans.hides(member, board) or state.erased.closed(member)

        return hides

    async def stored(self, after: bytes, page: int) -> tuple[list[bytes], bytes | None]:
        """The next members in SQLite, and where to go on; None at the end."""
        placed, hides = self._placed, self._hides()
        members = await self._readers.read(
            lambda snapshot: read_members(snapshot, placed, after, page, hides)
        )
        return [*dict.fromkeys((*members.scores_and_members[1::2], *members.counters[::2]))], (
            members.last
        )

    async def ranked(self, cursor: int, page: int) -> tuple[int, list[bytes]]:
        """The next members in Redis, and where to go on; 0 at the end."""
        found = await self._client.command("ZSCAN", self._key, cursor, "COUNT", page)
        return int(found[0]), [member for member, _ in found[1]]

    async def compare(
        self, members: Sequence[bytes], into: Comparison, *, strangers: bool = False
    ) -> None:
        """Compare some members, look again at those that differ, and report what stays.

        Args:
            strangers: only members that SQLite does not know.
        """
        looked: dict[bytes, _Look] = dict.fromkeys(members, _Look(None, 0))
        for look in range(LOOKS):
            before, lsn = await self._expected(looked)
            if look and not await self._passed(lsn):
                break
            found = await self._found(looked)
            names = [
                name
                for name in looked
                if found[name] != before[name] and not (strangers and before[name] != NOTHING)
            ]
            after, _ = await self._expected(names)
            still: dict[bytes, _Look] = {}
            for name in names:
                pair = (before[name], found[name])
                if found[name] == after[name]:
                    continue
                if not look or before[name] != after[name]:
                    still[name] = _Look(None, 0)
                    continue
                agreeing = looked[name].agreeing + 1 if looked[name].pair in (None, pair) else 1
                if agreeing < AGREEING_LOOKS:
                    still[name] = _Look(pair, agreeing)
                else:
                    self._report(name, pair, into)
            looked = still
            if not looked:
                return
        into.unsettled += len(looked)

    def _report(self, member: bytes, pair: tuple[Held, Held], into: Comparison) -> None:
        into.count += 1
        if len(into.differences) >= DIFFERENCES_MAX:
            return
        composite = pair[0].composite
        score = None if composite is None else self._placed.scale.score_of(composite)
        into.differences.append(
            Difference(self._board, self._placed.window.id, member, score, *pair)
        )

    async def _expected(self, members: Iterable[bytes]) -> tuple[_Sides, int]:
        """What SQLite says of members, and the lsn of that state."""
        placed, wanted, hides = self._placed, list(members), self._hides()
        return await self._readers.read(
            lambda snapshot: (_expected(snapshot, placed, wanted, hides), snapshot.newest_lsn)
        )

    async def _found(self, members: Iterable[bytes]) -> _Sides:
        """What Redis holds of members."""
        wanted = list(members)
        if not wanted:
            return {}
        scores = await self._client.command("ZMSCORE", self._key, *wanted)
        texts: Sequence[bytes | None] = [None] * len(wanted)
        if self._board == COUNTERS:
            texts = await self._client.command("MGET", *map(counter_key, wanted))
        return {
            name: Held(
                None if score is None else int(float(score)),
                None if text is None else text.decode(errors="replace"),
            )
            for name, score, text in zip(wanted, scores, texts, strict=True)
        }

    async def _passed(self, lsn: int) -> bool:
        """Wait until Redis includes my log up to `lsn`."""
        try:
            async with asyncio.timeout(self._settle_s):
                while not self._includes(await self.watermark(), lsn):  # noqa: ASYNC110 -- moved from afar
                    await asyncio.sleep(LOOK_S)
        except TimeoutError:
            return False
        return True

    async def size(self) -> tuple[int, int]:
        """How many members SQLite says are in the set, and the lsn of that state."""
        placed, state = self._placed, self._state()
        hidden = frozenset(state.bans.hidden(self._board))
        return await self._readers.read(
            lambda snapshot: (
                count_ranked(snapshot, placed, hidden, state.erased.closed),
                snapshot.newest_lsn,
            )
        )

    async def watermark(self) -> Watermark | None:
        """The watermark as it is."""
        (fields,) = await self._client.hashes([WATERMARK_KEY])
        return watermark_in(fields)

    def _includes(self, watermark: Watermark | None, lsn: int) -> bool:
        return watermark is not None and watermark.claim.log == self.log and watermark.lsn >= lsn


def _expected(
    snapshot: SqliteSnapshot, placed: Placed, members: Sequence[bytes], hides: Hides
) -> _Sides:
    """What a state says of each member."""
    scale, board = placed.scale, placed.board.name
    found: dict[bytes, Held] = {}
    standings = read_standings(snapshot, placed, members)
    for member, standing in zip(members, standings, strict=True):
        if standing is None:
            found[member] = NOTHING
            continue
        hidden = hides(member, board)
        composite = None if hidden else scale.composite(standing.score, standing.reached_ms)
        found[member] = Held(composite, str(standing.score) if board == COUNTERS else None)
    return found
