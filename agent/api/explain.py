"""Explain: everything behind one member's score and rank, by region, of one snapshot.

The cells with what each adds, the keys that were counted and those that were taken out again, bans,
the windows, who has closed them, the tie, and what Redis holds. Where it is cut it says how much
more there is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import NamedTuple

from aiohttp import web

from agent.api.explain_answers import (
    BanPart,
    ExplainAnswer,
    KeyPart,
    RedisPart,
    TiePart,
    WindowPart,
    WriterPart,
)
from agent.api.freshness import freshness_of
from agent.api.route import Call
from agent.api.services import Services
from agent.api.slot_pages import check_open, spaces_of
from agent.boards.catalog import Board, Placed
from agent.boards.entry import name_bytes, rfc3339
from agent.boards.explaining import Keyed, Part, keyed_of, parts_of
from agent.boards.marks import place_of
from agent.boards.standing import Standing
from agent.boards.windows import KEYS, is_sliding
from agent.crdt.cell import Row, Value
from agent.crdt.slot import Kind
from agent.crdt.space import NO_SHAPE, Space, decode_space, encode_space
from agent.crdt.total import NEVER_MS
from agent.errors import Unavailable
from agent.projection.reads import MemberView
from agent.projection.source import is_computed, read_standings
from agent.state import State
from agent.store.snapshot import SqliteSnapshot

PARTS_MAX = 200  # shown of a list; whoever has more is told how many
CELLS_MAX = 20_000  # of the member in one window: read to be explained
KEYS_AROUND_MS = 3_600_000  # facts stand by the time of their entries, with the bucket's neighbours
LOOKS = 3  # at file and Redis, until they are of one moment


class _Read(NamedTuple):
    """What one snapshot says of a member in a window."""

    lsn: int
    standing: Standing | None
    parts: list[Part]
    keys: list[Keyed]
    windows: list[tuple[str, int | None]]
    cells: int


async def explain(call: Call) -> web.Response:
    """GET /v1/explain/{board}/{member}."""
    services = call.services
    placed, member = call.placed(), call.path("member")
    name = name_bytes(member)
    state = services.queue.state
    check_open(state, name)
    read, view, problem = await _look(services, placed, member, name)
    return call.answer(_answer(services, state, placed, member, read, view, problem))


async def _look(
    services: Services, placed: Placed, member: str, name: bytes
) -> tuple[_Read, MemberView | None, str | None]:
    """File and Redis, of one moment if that can be had in a few looks."""
    now_ms = services.board_now_ms()
    looks = LOOKS
    while True:
        read = await services.readers.read(lambda found: _read(found, placed, name, now_ms))
        try:
            view = await services.ranks.member(placed, member, 0)
        except Unavailable as error:
            return read, None, f"{error.detail} ({error.code})"
        looks -= 1
        if view.lsn == read.lsn or not looks:
            return read, view, None


def _read(snapshot: SqliteSnapshot, placed: Placed, name: bytes, now_ms: int) -> _Read:
    definition = placed.board.definition
    assert definition is not None
    computed = is_sliding(placed.window.name) or definition.rule == "trend"
    rows: list[Row] = []
    for space in spaces_of(placed, now_ms):
        rows += snapshot.rows_of_member(space, name, CELLS_MAX)
    parts = parts_of(definition, rows)
    keys: list[Keyed] = []
    if definition.rule == "sum" and not definition.results:
        facts = _facts(snapshot, placed, name)
        voids = {row.slot for row in rows if row.slot[0] == Kind.VOID}
        for space in spaces_of(placed, now_ms):
            keys += keyed_of(space, placed.board.name, facts, voids)
    standing = None if computed else read_standings(snapshot, placed, [name])[0]
    windows = [
        (other.window.id, _score(snapshot, other, name))
        for other in islice(_kept(snapshot, placed.board), PARTS_MAX)
        if other.window.id != placed.window.id
    ]
    return _Read(snapshot.newest_lsn, standing, parts, keys, windows, len(rows))


def _facts(snapshot: SqliteSnapshot, placed: Placed, name: bytes) -> list[tuple[bytes, Value]]:
    """The member's facts of the times of a window, as far as keys are remembered."""
    prefix = encode_space(Space(placed.board.name, 0, NO_SHAPE, ""))
    start_ms = placed.window.start_ms - KEYS_AROUND_MS
    end_ms = placed.window.end_ms + KEYS_AROUND_MS
    found: list[tuple[bytes, Value]] = []
    for space in snapshot.spaces_of(prefix + KEYS.name.encode()):
        decoded = decode_space(space)
        bucket = None if decoded is None else KEYS.window(decoded.window)
        if bucket is not None and bucket.start_ms < end_ms and bucket.end_ms > start_ms:
            fact = bytes([Kind.FACT])
            found += snapshot.slots_from(space, name, fact, b"", CELLS_MAX - len(found))
        if len(found) >= CELLS_MAX:
            break
    return found


def _kept(snapshot: SqliteSnapshot, board: Board) -> Iterable[Placed]:
    """The windows of a board that hold cells."""
    for counted in board.counted:
        if counted.shown:
            for space in snapshot.spaces_of(counted.prefix):
                place = place_of(space)
                window = None if place is None else counted.series.window(place.window)
                if window is not None and place is not None and place.series == counted.marks:
                    yield board.place(window)


def _score(snapshot: SqliteSnapshot, placed: Placed, name: bytes) -> int | None:
    definition = placed.board.definition
    assert definition is not None
    if definition.rule == "trend":
        return None
    (standing,) = read_standings(snapshot, placed, [name])
    return None if standing is None else standing.score


def _answer(
    services: Services,
    state: State,
    placed: Placed,
    member: str,
    read: _Read,
    view: MemberView | None,
    problem: str | None,
) -> ExplainAnswer:
    definition, board = placed.board.definition, placed.board
    assert definition is not None
    standing, entry = read.standing, None if view is None else view.entry
    computed = is_computed(state.catalog, board.name, placed.window.id)
    hidden = state.bans.hides(member.encode(), board.name)
    score = entry.score if entry is not None and computed else None
    score = standing.score if standing is not None else score
    reached = None if standing is None or standing.reached_ms == NEVER_MS else standing.reached_ms
    fresh = freshness_of(state.as_of(services.now_ms()), services.now_ms())
    more = {
        name: len(its) - PARTS_MAX
        for name, its in (("parts", read.parts), ("keys", read.keys))
        if len(its) > PARTS_MAX
    }
    if read.cells >= CELLS_MAX:
        more["cells"] = 1
    return ExplainAnswer(
        board=board.name,
        generation=board.generation,
        version=board.version,
        rule=definition.rule,
        window=placed.window.id,
        member=member,
        ranked=entry is not None,
        why=_why(state, placed, read, hidden=hidden, ranked=entry is not None),
        score=score,
        reached_at=None if reached is None else rfc3339(reached),
        parts=[_part(state, its) for its in read.parts[:PARTS_MAX]],
        sums=_sums(read.parts),
        keys=[_key(state, its) for its in read.keys[:PARTS_MAX]],
        more=more,
        bans=_bans(state, member.encode(), board.name),
        windows=[WindowPart(*its) for its in read.windows],
        open_at=_open_at(state, placed),
        tie=None if standing is None else _tie(placed, standing),
        redis=_redis(placed, read, view, problem, hidden=hidden, computed=computed),
        lsn=read.lsn,
        as_of=fresh.as_of,
        max_lag_ms=fresh.max_lag_ms,
    )


def _why(state: State, placed: Placed, read: _Read, *, hidden: bool, ranked: bool) -> str | None:
    if ranked:
        return None
    if hidden:
        return "it is banned"
    if state.marks.collects(placed.space):
        return "the window is collected"
    if read.standing is None and not read.parts:
        return "it has no entry in this window"
    if read.standing is None:
        return "none of its results stands, or it is not among the heaviest"
    return "Redis does not show it yet"


def _sums(parts: Sequence[Part]) -> dict[str, int]:
    sums: dict[str, int] = {}
    for part in parts:
        if part.amount is not None:
            sums[part.kind] = sums.get(part.kind, 0) + part.amount
    return sums


def _writer(state: State, inc: int | None) -> tuple[str | None, str | None]:
    """(region, agent) of an incarnation."""
    agent = None if inc is None else state.ring.agents.get(inc)
    member = None if agent is None else state.ring.members.get(agent)
    return None if member is None else member.region, agent


def _part(state: State, part: Part) -> WriterPart:
    return WriterPart(
        part.kind,
        *_writer(state, part.inc),
        None if part.inc is None else f"{part.inc:x}",
        part.amount,
        None if part.at_ms is None or part.at_ms == NEVER_MS else rfc3339(part.at_ms),
        part.name,
    )


def _key(state: State, its: Keyed) -> KeyPart:
    return KeyPart(its.key, rfc3339(its.at_ms), *_writer(state, its.inc), its.amount, its.voided)


def _bans(state: State, member: bytes, board: str) -> list[BanPart]:
    return [
        BanPart(
            ban.board or None,
            None if ban.until_ms is None else rfc3339(ban.until_ms),
            ban.reason,
            ban.by,
            rfc3339(ban.at_ms),
        )
        for ban in state.bans.of(member)
        if ban.on and ban.board in ("", board)
    ]


def _open_at(state: State, placed: Placed) -> list[str]:
    if is_sliding(placed.window.name) or placed.counted.series.keep_ms is None:
        return sorted(member.name for member in state.ring.active())
    series, window = placed.counted.marks, placed.window.id
    return sorted(
        member.name
        for member in state.ring.active()
        if not state.marks.closed_by(member.name, series, window)
    )


def _tie(placed: Placed, standing: Standing) -> TiePart:
    scale = placed.scale
    composite = scale.composite(standing.score, standing.reached_ms)
    reached = scale.reached_ms_of(composite)
    return TiePart(
        ties=scale.ties,
        order="low" if scale.low else "high",
        b=scale.b,
        epoch_ms=scale.epoch_ms,
        tick_ms=scale.tick_ms,
        tick=None if reached is None else (reached - scale.epoch_ms) // scale.tick_ms,
        composite=composite,
    )


def _redis(
    placed: Placed,
    read: _Read,
    view: MemberView | None,
    problem: str | None,
    *,
    hidden: bool,
    computed: bool,
) -> RedisPart:
    if view is None:
        return RedisPart(None, None, None, None, agrees=False, settling=False, problem=problem)
    entry, standing = view.entry, read.standing
    want = None
    if standing is not None and not hidden:
        want = placed.scale.composite(standing.score, standing.reached_ms)
    held = None if entry is None else entry.composite
    agrees = computed or held == want
    return RedisPart(
        composite=held,
        rank=None if entry is None else entry.rank,
        total=view.total,
        lsn=view.lsn,
        agrees=agrees,
        settling=not agrees and view.lsn != read.lsn,
        problem=None,
    )
