"""What SQLite says Redis should hold: functions over a snapshot, for the readers' threads.

Values are absolute and of the newest state in the snapshot, so the order in which the members of
one read are written does not matter, and writing one twice does no harm.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol, assert_never

from agent.boards.catalog import Board, Catalog
from agent.boards.definition import COUNTERS, Definition
from agent.boards.standing import (
    Standing,
    standing_of,
    standing_of_best,
    standing_of_latest,
)
from agent.boards.tally import MemberKey
from agent.crdt import counter
from agent.crdt.cell import Row
from agent.crdt.counter import Total
from agent.crdt.slot import Kind
from agent.crdt.space import BOARDS_SPACE
from agent.exchange import VersionVector
from agent.store.snapshot import SqliteSnapshot

_KINDS = {
    "sum": frozenset({Kind.UP, Kind.DOWN}),
    "best": frozenset({Kind.BEST}),
    "latest": frozenset({Kind.LATEST}),
}
TOTAL_MEMBERS_MAX = 10_000_000  # a count for display stops here


class Projected(NamedTuple):
    """One member as Redis should hold it. `lsn` is that of a change that made it due."""

    lsn: int
    space: bytes
    member: bytes
    composite: bytes
    score: int


@dataclass(frozen=True, slots=True)
class Changes:
    """What changed after an lsn, as of one snapshot.

    members: each once, ordered by lsn.
    definitions: the changed cells of boards.
    to: everything up to it is covered.
    head: nothing lies above `to`; only then `vv` may be claimed.
    """

    members: list[Projected]
    definitions: list[Row]
    to: int
    head: bool
    vv: Mapping[int, int]
    clamped: int


@dataclass(frozen=True, slots=True)
class Members:
    """The next members of a scan: scores and members in turn, as ZADD takes them.

    counters: name and exact value in turn, on the board of counters only.
    last: the member to go on after; None at the end.
    total: how many members the board has, where it was asked for.
    """

    scores_and_members: list[bytes]
    counters: list[bytes]
    last: bytes | None
    clamped: int
    total: int | None


class _SeesBoards(Protocol):
    """A state from which a catalog can be read."""

    def rows_in(self, space: bytes) -> list[Row]:
        """All rows of one of the agents' own spaces."""


def read_catalog(snapshot: _SeesBoards) -> Catalog:
    """The catalog of a snapshot."""
    return Catalog().with_rows(snapshot.rows_in(BOARDS_SPACE))


def read_changes(snapshot: SqliteSnapshot, after: int, limit: int, catalog: Catalog) -> Changes:
    """What changed above the lsn `after`, from at most `limit` log entries of a snapshot."""
    entries = list(snapshot.changes_after(after, limit))
    to = entries[-1][0] if entries else after
    newest_lsn = to if len(entries) == limit else snapshot.newest_lsn
    head = newest_lsn == snapshot.newest_lsn
    vv = snapshot.vv if head else {}
    known = ((lsn, row, total) for lsn, row, total in entries if row is not None)
    changes = changes_of(known, after, newest_lsn, vv, catalog)
    return replace(changes, to=newest_lsn, head=head)


def changes_of(
    entries: Iterable[tuple[int, Row, Total | None]],
    after: int,
    newest_lsn: int,
    vv: VersionVector,
    catalog: Catalog,
) -> Changes:
    """What log entries above the lsn `after` change in Redis, by the boards of a catalog.

    Members of spaces that `catalog` does not have in force are left out: they are either of a past
    generation, or of a board whose definition comes later in the log and then fills the board.

    Args:
        entries: (lsn, row, the member's total where the row is a counter slot), in order.
        newest_lsn, vv: of the state that the entries lead to; if they reach it they are at head.
    """
    standings: dict[MemberKey, tuple[int, Board, Standing]] = {}
    definitions: list[Row] = []
    to = after
    for lsn, row, total in entries:
        to = lsn
        if row.space == BOARDS_SPACE:
            definitions.append(row)
            continue
        board = catalog.board_in(row.space)
        if board is None or board.definition is None:
            continue
        standing = _standing(board.definition, row, total)
        if standing is not None:
            standings[row[:2]] = (lsn, board, standing)
    head = to == newest_lsn
    members, clamped = _projected(standings)
    return Changes(members, definitions, to, head, vv if head else {}, clamped)


def _standing(definition: Definition, row: Row, total: Total | None) -> Standing | None:
    """Where a changed cell puts its member; None where cells of its kind do not count."""
    if row.slot[0] not in _KINDS[definition.rule]:
        return None
    match definition.rule:
        case "sum":
            return None if total is None else Standing(total.score, total.reached_ms)
        case "best":
            return standing_of_best(row.value, low=definition.low)
        case "latest":
            return standing_of_latest(row.value)
        case _:
            assert_never(definition.rule)


def _projected(
    standings: Mapping[MemberKey, tuple[int, Board, Standing]],
) -> tuple[list[Projected], int]:
    members = []
    clamped = 0
    for key, (lsn, board, standing) in standings.items():
        scale = board.scale
        assert scale is not None
        clamped += abs(standing.score) > scale.score_limit
        composite = b"%d" % scale.composite(standing.score, standing.reached_ms)
        members.append(Projected(lsn, *key, composite, standing.score))
    return members, clamped


def read_members(
    snapshot: SqliteSnapshot, board: Board, after: bytes, cells_max: int, *, count: bool
) -> Members:
    """The next members of a board in the order of their names, from about `cells_max` cells."""
    definition, scale = board.definition, board.scale
    assert definition is not None
    assert scale is not None
    total = snapshot.count_members(board.space, TOTAL_MEMBERS_MAX) if count else None
    found = snapshot.members_after(board.space, after, cells_max)
    pairs: list[bytes] = []
    counters: list[bytes] = []
    limit, composite, counting = scale.score_limit, scale.composite, board.name == COUNTERS
    sums, kinds = definition.rule == "sum", _KINDS["sum"]
    clamped = 0
    for member, slots in found:
        kind = slots[0][0][0]
        if sums and len(slots) == 1 and kind in kinds:  # the usual case, without a detour
            score, reached_ms, _, _ = counter.contribution(kind, slots[0][1])
        else:
            standing = standing_of(definition, slots)
            if standing is None:
                continue
            score, reached_ms, _ = standing
        if not -limit <= score <= limit:
            clamped += 1
        pairs += (b"%d" % composite(score, reached_ms), member)
        if counting:
            counters += (member, b"%d" % score)
    return Members(pairs, counters, found[-1][0] if found else None, clamped, total)
