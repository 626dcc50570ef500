"""What SQLite says Redis should hold: functions over a snapshot, for the readers' threads.

Values are absolute and of the newest state in the snapshot, so the order in which the members of
one read are written does not matter, and writing one twice does no harm.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, TypeAlias

from agent.boards.catalog import Catalog, Placed
from agent.boards.definition import COUNTERS, Definition
from agent.boards.standing import (
    Standing,
    is_register,
    kinds_of,
    standing_of,
    standing_of_register,
    standing_of_total,
)
from agent.boards.tally import MemberKey
from agent.boards.windows import is_sliding
from agent.crdt.cell import Row
from agent.crdt.slot import Kind
from agent.crdt.total import NEVER_MS, Total, contribution
from agent.exchange import VersionVector
from agent.projection.knowledge import FOLLOWED
from agent.store.snapshot import SqliteSnapshot

TOTAL_MEMBERS_MAX = 10_000_000  # a count for display stops here

Hides: TypeAlias = Callable[[bytes, str], bool]
"""Whether a (member, board) is in no set: banned or erased."""


class Projected(NamedTuple):
    """One member as Redis should hold it. `lsn` is that of a change that made it due.

    composite: its score in the set; None: it has none, and is not in it.
    """

    lsn: int
    space: bytes
    member: bytes
    composite: bytes | None
    score: int


@dataclass(frozen=True, slots=True)
class Changes:
    """What changed after an lsn, as of one snapshot.

    members: each once, ordered by lsn.
    own: the changed cells of boards, bans, marks and erasures.
    spaces: all boards' spaces in which anything changed.
    to: everything up to it is covered.
    head: nothing lies above `to`; only then `vv` may be claimed.
    """

    members: list[Projected]
    own: list[Row]
    spaces: frozenset[bytes]
    to: int
    head: bool
    vv: Mapping[int, int]
    clamped: int


@dataclass(frozen=True, slots=True)
class Members:
    """The next members of a scan: scores and members in turn, as ZADD takes them.

    counters: name and exact value in turn, on the board of counters only.
    last: the member to go on after; None at the end.
    """

    scores_and_members: list[bytes]
    counters: list[bytes]
    last: bytes | None
    clamped: int = 0


class _Line(NamedTuple):
    """How the cells of one space count."""

    placed: Placed
    definition: Definition
    kinds: frozenset[Kind]
    register: bool


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
    generation, or of a board whose definition comes later in the log and then fills the board. So
    are those of windows that are made of others, and of buckets that are no window.

    Args:
        entries: (lsn, row, the member's total where the row is of a tallied kind), in order.
        newest_lsn, vv: of the state that the entries lead to; if they reach it they are at head.
    """
    found: dict[MemberKey, tuple[int, _Line, Standing | None]] = {}
    lines: dict[bytes, _Line | None] = {}
    own: list[Row] = []
    to = after
    for lsn, row, total in entries:
        to = lsn
        space = row[0]
        if space not in lines:
            if space in FOLLOWED:
                own.append(row)
                continue
            lines[space] = _line_of(space, catalog)
        line = lines[space]
        if line is None or row[2][0] not in line.kinds:
            continue
        if line.register:
            standing: Standing | None = standing_of_register(line.definition, row.value)
        else:
            standing = standing_of_total(line.definition, total)
        found[row[:2]] = (lsn, line, standing)
    head = to == newest_lsn
    members, clamped = _projected(found)
    spaces = frozenset(lines)
    return Changes(members, own, spaces, to, head, vv if head else {}, clamped)


def _line_of(space: bytes, catalog: Catalog) -> _Line | None:
    """How the cells of a space count; None where no set follows them by itself."""
    placed = catalog.placed(space)
    definition = None if placed is None else placed.board.definition
    if placed is None or definition is None or definition.rule == "trend":
        return None
    if not placed.counted.shown:
        return None
    return _Line(placed, definition, kinds_of(definition), is_register(definition))


def _projected(
    found: Mapping[MemberKey, tuple[int, _Line, Standing | None]],
) -> tuple[list[Projected], int]:
    members = []
    clamped = 0
    for key, (lsn, line, standing) in found.items():
        if standing is None:
            members.append(Projected(lsn, *key, None, 0))
            continue
        scale, score = line.placed.scale, standing.score
        clamped += abs(score) > scale.score_limit
        composite = b"%d" % scale.composite(score, standing.reached_ms)
        members.append(Projected(lsn, *key, composite, score))
    return members, clamped


def scanned_by_totals(definition: Definition) -> bool:
    """Whether a board's members are read from their totals: their cells are too many."""
    return definition.rule in ("distinct", "unique") or definition.results is not None


def read_members(
    snapshot: SqliteSnapshot,
    placed: Placed,
    after: bytes,
    cells_max: int,
    hides: Hides,
) -> Members:
    """The next members of a window in the order of their names, from about `cells_max` cells."""
    definition, scale, space = placed.board.definition, placed.scale, placed.space
    assert definition is not None
    if scanned_by_totals(definition):
        return _read_totals(snapshot, placed, after, cells_max, hides)
    found = snapshot.members_after(space, after, cells_max)
    pairs: list[bytes] = []
    counters: list[bytes] = []
    name = placed.board.name
    limit, composite, counting = scale.score_limit, scale.composite, name == COUNTERS
    kinds = kinds_of(definition) if definition.rule == "sum" else frozenset[Kind]()
    clamped = 0
    for member, slots in found:
        kind = slots[0][0][0]
        if len(slots) == 1 and kind in kinds:  # the usual case, without a detour
            score, reached_ms, _, _ = contribution(kind, slots[0][1])
        else:
            standing = standing_of(definition, slots)
            if standing is None:
                continue
            score, reached_ms, _ = standing
        if counting:  # exact values are no ranks: a ban does nothing to them
            counters += (member, b"%d" % score)
        if hides(member, name):
            continue
        if not -limit <= score <= limit:
            clamped += 1
        pairs += (b"%d" % composite(score, reached_ms), member)
    return Members(pairs, counters, found[-1][0] if found else None, clamped)


def _read_totals(
    snapshot: SqliteSnapshot, placed: Placed, after: bytes, limit: int, hides: Hides
) -> Members:
    definition = placed.board.definition
    assert definition is not None
    found = snapshot.totals_after(placed.space, after, limit)
    standings = [(member, standing_of_total(definition, total)) for member, total in found]
    pairs, clamped = scored(placed, standings, hides)
    return Members(pairs, [], found[-1][0] if found else None, clamped)


def scored(
    placed: Placed, standings: Iterable[tuple[bytes, Standing | None]], hides: Hides
) -> tuple[list[bytes], int]:
    """Composite scores and members in turn, as ZADD takes them, and how many were clamped."""
    scale, board = placed.scale, placed.board.name
    pairs: list[bytes] = []
    clamped = 0
    for member, standing in standings:
        if standing is None or hides(member, board):
            continue
        clamped += abs(standing.score) > scale.score_limit
        pairs += (b"%d" % scale.composite(standing.score, standing.reached_ms), member)
    return pairs, clamped


def read_standings(
    snapshot: SqliteSnapshot, placed: Placed, members: Sequence[bytes]
) -> list[Standing | None]:
    """What a state says of some members of a window whose members have cells of their own."""
    definition = placed.board.definition
    assert definition is not None
    if is_register(definition):
        slots = [snapshot.slots_of(placed.space, member) for member in members]
        return [standing_of(definition, its) for its in slots]
    keys = [(placed.space, member) for member in members]
    totals = snapshot.totals_of(keys)
    return [standing_of_total(definition, totals.get(key)) for key in keys]


class Home(NamedTuple):
    """A window, and a member that belongs there again: see `read_projected`."""

    placed: Placed
    member: bytes


def read_projected(snapshot: SqliteSnapshot, homes: Sequence[Home]) -> list[Projected]:
    """These members of these windows, as Redis should hold them; those that have no score, too."""
    found = []
    for placed, member in homes:
        (standing,) = read_standings(snapshot, placed, [member])
        if standing is None:
            found.append(Projected(0, placed.space, member, None, 0))
        else:
            composite = placed.scale.composite(standing.score, standing.reached_ms)
            found.append(Projected(0, placed.space, member, b"%d" % composite, standing.score))
    return found


def count_scanned(snapshot: SqliteSnapshot, placed: Placed) -> int:
    """How many members a scan of a window by `read_members` goes through; banned ones, too."""
    definition = placed.board.definition
    assert definition is not None
    if scanned_by_totals(definition):
        return snapshot.count_totals(placed.space, NEVER_MS)
    return snapshot.count_members(placed.space, TOTAL_MEMBERS_MAX)


def count_ranked(
    snapshot: SqliteSnapshot,
    placed: Placed,
    hidden: frozenset[bytes],
    erased: Callable[[bytes], bool],
) -> int:
    """How many members a window's set should have.

    Args:
        hidden: who is banned on the board. erased: whether a name was.
    """
    definition, space = placed.board.definition, placed.space
    assert definition is not None
    if definition.results:
        count = snapshot.count_totals(space, NEVER_MS)
    else:
        count = snapshot.count_members(space, TOTAL_MEMBERS_MAX)
    away = [name for name in hidden if not erased(name)]
    standings = read_standings(snapshot, placed, away)
    return count - sum(standing is not None for standing in standings)


Derivation: TypeAlias = Literal["trend", "sliding"]


def derivation_of(placed: Placed) -> Derivation | None:
    """How a window is computed now and then; None where its set follows the log."""
    definition = placed.board.definition
    assert definition is not None
    if definition.rule == "trend":
        return "trend"
    return "sliding" if placed.window.name.startswith("last:") else None


def is_computed(catalog: Catalog, board: str, window: str) -> bool:
    """Whether a window, by its id, is computed now and then."""
    found = catalog.find(board)
    definition = None if found is None else found.definition
    return (definition is not None and definition.rule == "trend") or is_sliding(window)
