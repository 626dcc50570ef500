"""The pure parts of the projection: when windows have places, what a log and buckets amount to."""

from __future__ import annotations

from itertools import pairwise

import pytest

from agent.boards.bans import ban_key
from agent.boards.catalog import Board, Catalog, board_of
from agent.boards.definition import Definition, check, to_body
from agent.boards.erasures import tombstone_cell
from agent.boards.marks import cell_of
from agent.boards.windows import WindowSpec, series_of
from agent.crdt.cell import Key, Row, Value, row_of
from agent.crdt.slot import Kind, slot_of_name, slot_of_replica
from agent.crdt.space import BOARDS_SPACE
from agent.crdt.total import NEVER_MS, Total
from agent.projection.agenda import AHEAD_MS, Agenda, next_look_ms, open_windows
from agent.projection.knowledge import Knowledge, ban_in, erases, is_tombstone
from agent.projection.place import EXPIRY_MARGIN_MS, Clock, Place
from agent.projection.sliding import pooled
from agent.projection.source import changes_of, derivation_of

NOW_MS = 1_760_000_000_000  # Thursday, 2025-10-09 08:53:20 UTC
MINUTE_MS, HOUR_MS, DAY_MS = 60_000, 3_600_000, 86_400_000
UP = slot_of_replica(Kind.UP, 7)
SEASON = WindowSpec("season:s1", start="2025-10-09T10:00:00Z", end="2025-10-09T12:00:00Z")


def cells_of(name: str, definition: Definition) -> tuple[Key, Value]:
    slot = slot_of_name(Kind.DEFINITION, "eu-1")
    return (BOARDS_SPACE, name.encode(), slot), (1, 5, to_body(check(definition), {}))


def row(key: Key, value: Value) -> Row:
    return row_of((*key, *value, 7, 1))


def board(*windows: WindowSpec, rule: str = "sum", name: str = "points") -> Board:
    definition = Definition(rule=rule, windows=windows or (WindowSpec("all"),))  # type: ignore[arg-type]
    (_, _, slot), value = cells_of(name, definition)
    return board_of(name, {slot: value})


def ids(spec: WindowSpec, now_ms: int) -> list[str]:
    return [window.id for window in open_windows(series_of(spec), now_ms)]


def test_which_windows_are_open() -> None:
    hour = WindowSpec("hour")
    assert ids(hour, NOW_MS) == ["hour:2025-10-09T08"]
    assert ids(hour, NOW_MS + 7 * MINUTE_MS) == ["hour:2025-10-09T08", "hour:2025-10-09T09"]
    assert ids(hour, NOW_MS + 17 * MINUTE_MS) == ["hour:2025-10-09T09"]
    assert ids(WindowSpec("hour", grace="3h"), NOW_MS) == [
        f"hour:2025-10-09T0{number}" for number in (5, 6, 7, 8)
    ]
    for ms in (0, NOW_MS, 2**45):  # a manual clock begins in 1970
        assert ids(WindowSpec("all"), ms) == ["all"]
    assert ids(SEASON, NOW_MS) == []
    assert ids(SEASON, NOW_MS + 2 * HOUR_MS) == ["season:s1"]
    assert ids(SEASON, NOW_MS + 3 * HOUR_MS + 10 * MINUTE_MS) == ["season:s1"]  # its grace
    assert ids(SEASON, NOW_MS + 4 * HOUR_MS) == []


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin"])
def test_a_board_is_looked_at_whenever_its_windows_change_and_no_sooner(zone: str) -> None:
    windows = (
        WindowSpec("hour", zone=zone),
        WindowSpec("day", zone=zone),
        WindowSpec("week"),
        SEASON,
    )
    mine = board(*windows)

    def places(now_ms: int) -> list[str]:
        return [window.id for c in mine.counted for window in open_windows(c.series, now_ms)]

    now_ms, looks = NOW_MS, [NOW_MS]
    while now_ms < NOW_MS + DAY_MS:
        held = [
            (mine.place(window), False)
            for counted in mine.counted
            for window in open_windows(counted.series, now_ms + AHEAD_MS)
        ]
        found = next_look_ms(mine, held, now_ms)
        assert found is not None
        now_ms = found
        looks.append(now_ms)
    for before, after in pairwise(looks):  # nothing begins or ends in between
        for at_ms in range(before + 1, after - 1, 20 * MINUTE_MS):
            ahead = {*places(at_ms + AHEAD_MS)} - {*places(before + AHEAD_MS)}
            assert not ahead, (before, at_ms)
            assert set(places(before)) <= set(places(at_ms)) | set(places(at_ms + AHEAD_MS))
    assert len(looks) < 24 * 2 + 2 + 8
    assert next_look_ms(board(), [], NOW_MS) is None


def test_an_agenda_has_each_thing_once() -> None:
    agenda: Agenda[str] = Agenda()
    agenda.put("a", 10)
    agenda.put("b", 5)
    agenda.put("a", 7)
    agenda.sooner("b", 9)
    agenda.sooner("c", 3)
    agenda.put("d", 4)
    agenda.put("d", None)
    assert agenda.due(2, 9) == []
    assert agenda.due(7, 2) == ["c", "b"]
    assert agenda.due(7, 9) == ["a"]
    assert agenda.due(100, 9) == []


def test_a_place_has_its_end_where_redis_shares_the_clock() -> None:
    day, whole = board(WindowSpec("day")), board()
    placed = day.place(day.resolve(None, NOW_MS))
    assert placed.expires_ms is not None
    place = Place(placed, stored=False)
    shared = Clock(lambda: NOW_MS)
    assert place.expires_ms(shared) == placed.expires_ms + EXPIRY_MARGIN_MS
    assert place.expires_ms(Clock(lambda: NOW_MS, expiring=False)) is None
    forever = Place(whole.place(whole.resolve(None, NOW_MS)), stored=False)
    assert forever.expires_ms(shared) is None
    assert derivation_of(placed) is None
    sliding = board(WindowSpec("last:2d"))
    assert derivation_of(sliding.place(sliding.resolve(None, NOW_MS))) == "sliding"
    trend = board(rule="trend")
    assert derivation_of(trend.place(trend.resolve(None, NOW_MS))) == "trend"


def test_what_a_log_changes() -> None:
    sums, kept = (
        Definition(rule="sum", windows=(WindowSpec("day"), WindowSpec("last:2h"))),
        (Definition(rule="best", results="keep", windows=(WindowSpec("week"),))),
    )
    catalog = Catalog().with_rows(
        [row(*cells_of("points", sums)), row(*cells_of("cup", check(kept)))]
    )
    points, cup = catalog.board("points"), catalog.board("cup")
    day = points.place(points.resolve("day", NOW_MS))
    hours = points.place(points.resolve("last:2h", NOW_MS))
    hour = hours.counted.space_of(hours.counted.series.recent(NOW_MS, 1)[0])
    week = cup.place(cup.resolve(None, NOW_MS))
    ban = row(ban_key(b"a", ""), (1, 0, b""))
    up = (5, NOW_MS, b"")
    retraction = bytes([Kind.RETRACTION]) + b"k"
    entries = [
        (11, row((day.space, b"a", UP), up), Total(5, NOW_MS, True, 1)),
        (12, row((hour, b"a", UP), up), Total(5, NOW_MS, True, 1)),
        (13, ban, None),
        (14, row((week.space, b"b", retraction), (1, 0, b"")), Total(0, NEVER_MS, False, 4)),
        (15, row((day.space, b"c", UP), up), None),
        (16, row((day.space, b"a", UP), up), Total(9, NOW_MS, True, 1)),
        (17, row((day.space, b"x", b"M"), up), None),  # of a kind that does not count here
        (18, row((b"\x03old" + bytes(12) + b"all", b"a", UP), up), None),
    ]
    changes = changes_of(iter(entries), 10, 18, {7: 1}, catalog)
    assert {(m.space, m.member, m.score, m.composite is None) for m in changes.members} == {
        (day.space, b"a", 9, False),
        (week.space, b"b", 0, True),  # no result of it stands
        (day.space, b"c", 0, True),  # it has no cells any more
    }
    assert changes.own == [ban]
    assert {day.space, hour, week.space} <= changes.spaces
    assert (changes.to, changes.head, changes.vv) == (18, True, {7: 1})
    assert not changes_of(iter(entries[:2]), 10, 18, {}, catalog).head


def test_what_own_spaces_say() -> None:
    days = check(Definition(rule="sum", windows=(WindowSpec("day", keep="2d"),)))
    known = Knowledge().with_rows([row(*cells_of("points", days))])
    mine = known.catalog.board("points")
    placed = mine.place(mine.resolve(None, NOW_MS))
    expires_ms = placed.expires_ms
    assert expires_ms is not None
    assert known.placed(placed.space, expires_ms - 1) == placed
    assert known.placed(placed.space, expires_ms) is None
    closed = row(*cell_of(Kind.CLOSE, placed.counted.marks, "eu-1", placed.window))
    collected = row(*cell_of(Kind.COLLECTED, placed.counted.marks, "eu-1", placed.window))
    assert known.with_rows([closed]).placed(placed.space, NOW_MS) == placed
    assert known.with_rows([collected]).placed(placed.space, NOW_MS) is None

    tombstone = row(tombstone_cell(b"i" * 16), (1, NOW_MS, b"gone"))
    nameless = row(tombstone_cell(b"i" * 16), (2, NOW_MS, b""))
    assert is_tombstone(nameless)
    assert not erases(nameless)
    known = known.with_rows([tombstone])
    assert known.hides(b"gone", "points")
    assert known.gone(b"gone")
    assert known.with_rows([nameless]).hides(b"gone", "points")  # pages read before may hold it
    assert not Knowledge().with_rows([nameless]).hides(b"gone", "points")

    here, everywhere = (
        row(ban_key(b"a", "points"), (1, 0, b"")),
        row(ban_key(b"a", ""), (1, 0, b"")),
    )
    assert (ban_in(here), ban_in(everywhere)) == ((b"a", "points"), (b"a", ""))
    assert ban_in(row((*ban_key(b"a", "points")[:2], b"Cpoints\0\0\1eu-1"), (1, 0, b""))) is None
    assert known.with_rows([here]).hides(b"a", "points")
    assert not known.with_rows([here]).hides(b"a", "other")
    assert known.with_rows([everywhere]).hides(b"a", "other")
    assert not known.gone(b"a")


def test_pooled_buckets() -> None:
    def pool(rule: str, *parts: list[tuple[bytes, Value]], results: str | None = None) -> object:
        definition = Definition(rule=rule, results=results)  # type: ignore[arg-type]
        return pooled(definition, parts)

    one, two = (UP, (5, 1, b"")), (UP, (3, 9, b""))
    assert pool("sum", [one], [two]) == [one, two]
    assert pool("unique", [one], [two]) == [one, two]
    assert pool("best", [(b"M", (7, 1, b""))], [(b"M", (4, 2, b""))]) == [(b"M", (7, 1, b""))]
    assert pool("latest", [(b"L", (7, 1, b""))], [(b"L", (8, 0, b""))]) == [(b"L", (8, 0, b""))]
    on, off = (3, 0, b""), (8, 0, b"")
    for parts in ([[(b"Ca", on)], [(b"Ca", off)]], [[(b"Ca", off)], [(b"Ca", on)]]):
        assert pool("distinct", *parts) == [(b"Ca", on)]
    assert pool("distinct", [(b"Ca", off)], [(b"Cb", on)]) == [(b"Ca", off), (b"Cb", on)]
    kept, taken = (b"Kk1", (1, 5, b"")), (b"Xk1", (1, 0, b""))
    assert pool("sum", [kept, taken], [kept], results="keep") == [kept]
