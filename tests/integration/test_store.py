"""One conformance suite for every store: SQLite through its readers, and the one in memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from agent.boards.tally import MemberKey, SlotGroup
from agent.crdt import flag, result
from agent.crdt.cell import Key, Row, Value
from agent.crdt.fact import void
from agent.crdt.fingerprint import fingerprint
from agent.crdt.slot import (
    Kind,
    prefix_of_key,
    slot_of_key,
    slot_of_name,
    slot_of_replica,
)
from agent.crdt.space import BANS_SPACE, MARKS_SPACE, NO_SHAPE, Space, encode_space
from agent.crdt.total import Total, total_of
from agent.exchange import Chunk, Reading
from agent.operation import Merge
from tests.integration.store_bench import (
    INC,
    OTHER,
    SPACE,
    Bench,
    MemoryBench,
    SqliteBench,
    cell,
    everything,
    fill,
    log_of,
)


@pytest.fixture(params=["sqlite", "memory"])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    made = SqliteBench(tmp_path / "t.db") if request.param == "sqlite" else MemoryBench()
    yield made
    made.close()


def test_what_was_never_written_is_none(bench: Bench) -> None:
    keys: list[Key] = [(SPACE, b"m", b"M"), (bench.space, b"m", b"M")]
    loaded = bench.store.load(keys, [(SPACE, b"m"), (bench.space, b"m")])
    assert dict(loaded.cells) == dict.fromkeys(keys)
    assert dict(loaded.totals) == {(SPACE, b"m"): None, (bench.space, b"m"): None}


def test_what_was_committed_is_loaded(bench: Bench) -> None:
    rows = [cell(f"m{i}", i, space=SPACE + bytes([i % 3])) for i in range(700)]
    bench.merge(*rows)
    wanted = [row.key for row in rows] + [(SPACE, b"no", b"M")]
    loaded = bench.store.load(wanted, [])
    assert dict(loaded.cells) == {row.key: row for row in rows} | {(SPACE, b"no", b"M"): None}
    assert bench.store.cells == 700


def test_a_snapshot_is_not_changed_by_later_commits(bench: Bench) -> None:
    bench.merge(cell("a", 1))
    bench.add("m", 1)
    before = bench.snapshot()
    seen = (before.newest_lsn, dict(before.vv), log_of(before), before.rows_in(SPACE))
    bench.merge(cell("a", 2, seq=2), cell("b", 1), to=7)
    bench.add("m", 1)
    again = (before.newest_lsn, dict(before.vv), log_of(before), before.rows_in(SPACE))
    assert again == seen
    after = bench.snapshot()
    assert after.newest_lsn == 5
    assert (dict(after.vv), dict(after.cursors)) == ({INC: 2}, {60: Reading("us", 7)})


def test_the_log_is_in_order_and_superseded_entries_are_empty(bench: Bench) -> None:
    for number, member in enumerate("abcab", start=1):
        bench.merge(cell(member, number, seq=number))
    snapshot = bench.snapshot()
    assert [(lsn, row.member) for lsn, row in log_of(snapshot)] == [(3, b"c"), (4, b"a"), (5, b"b")]
    entries = list(snapshot.log_after(0, 100))
    assert [lsn for lsn, _ in entries] == sorted(lsn for lsn, _ in entries)
    assert [row.major for _, row in log_of(snapshot, lsn=3)] == [4, 5]
    assert len(list(snapshot.log_after(0, 2))) == 2
    assert list(snapshot.log_after(5, 10)) == []


def test_totals_equal_what_all_slots_add_up_to(bench: Bench) -> None:
    chance = Random(1)
    for step in range(60):
        member = chance.choice("abc")
        if chance.random() < 0.5:
            bench.add(member, chance.randint(-5, 5))
        else:
            kind = chance.choice((Kind.UP, Kind.DOWN))
            inc = chance.choice((OTHER, OTHER + 1))
            slot = slot_of_replica(kind, inc)
            bench.merge(cell(member, step + 1, slot, step + 1, bench.space))
        members = [(bench.space, m) for m in (b"a", b"b", b"c", b"d")]
        snapshot = bench.snapshot()
        plain = {}
        for key in members:
            total = total_of(snapshot.slots_of(*key))
            if total is not None:
                plain[key] = total
        assert snapshot.totals_of(members) == plain
        loaded = bench.store.load([], members).totals
        assert {key: total for key, total in loaded.items() if total is not None} == plain


def test_other_kinds_of_a_member_are_not_in_its_total(bench: Bench) -> None:
    bench.add("m", 3)
    for slot in (b"*x", b".x", b"/x", b"M", b"~", b"Sx", b"Fx"):
        bench.merge(cell("m", 9, slot, space=bench.space))
    (total,) = bench.store.load([], [(bench.space, b"m")]).totals.values()
    assert total is not None
    assert (total.score, total.slots) == (3, 1)
    assert bench.snapshot().totals_of([(bench.space, b"m")]) == {(bench.space, b"m"): total}


@pytest.mark.parametrize("cells_max", [1, 2, 3, 4, 7, 100])
def test_a_scan_meets_every_member_once_with_all_of_its_cells(bench: Bench, cells_max: int) -> None:
    rows = [cell(m, i, slot, i) for i, m in enumerate("abcdef", 1) for slot in (b"M", b"L", b"C1")]
    rows = [row for row in rows if row.member != b"c" or row.slot == b"M"]
    bench.merge(*rows, cell("z", 1, space=SPACE + b"2"))
    snapshot = bench.snapshot()
    scanned: list[tuple[bytes, list[tuple[bytes, Value]]]] = []
    last = b""
    while chunk := snapshot.members_after(SPACE, last, cells_max):
        scanned += chunk
        last = chunk[-1][0]
    assert [name for name, _ in scanned] == [b"a", b"b", b"c", b"d", b"e", b"f"]
    expected = {
        m: sorted((row.slot, row.value) for row in rows if row.member == m) for m, _ in scanned
    }
    assert {name: sorted(slots) for name, slots in scanned} == expected
    assert snapshot.members_after(b"\xfenowhere", b"", 9) == []
    assert snapshot.count_members(SPACE, 100) == 6
    assert snapshot.count_members(SPACE, 4) == 4


def test_opening_it_again_keeps_everything_and_counts_the_boot(bench: Bench) -> None:
    fill(bench)
    bench.run(Merge("us", Chunk(60, 12, 12, True, (), {"us": 9}), {OTHER: 1}))
    before, boot = everything(bench), bench.store.life.boot
    bench.reopen()
    assert everything(bench) == before
    assert bench.store.life.boot == boot + 1
    assert bench.committer.state.times == {}, "learned again"
    bench.add("m", 1)
    assert bench.committer.state.seq == before[0][3] + 1


def tallied(member: str, chance: Random, space: bytes = SPACE) -> Row:
    """Any cell that a total is made of."""
    inc = chance.randint(1, 3)
    match chance.choice("udvf"):
        case "u":
            slot, value = slot_of_replica(Kind.UP, inc), (chance.randint(0, 9), 5, b"")
        case "d":
            slot, value = slot_of_replica(Kind.DOWN, inc), (chance.randint(0, 9), 5, b"")
        case "v":
            slot = slot_of_key(Kind.VOID, b"k%d" % chance.randint(0, 3), inc)
            value = void(chance.randint(-9, 9))
        case _:
            slot = slot_of_name(Kind.FLAG, f"actor{chance.randint(0, 9)}")
            value = flag.on((chance.randint(0, 5), 0, b""))
    return Row(space, member.encode(), slot, *value, OTHER, 1)


def test_a_group_is_every_cell_of_a_member_whose_slot_begins_so(bench: Bench) -> None:
    chance = Random(4)
    keys = [b"", b"k", b"k\xff", b"\xff", b"\xff\xff", b"key"]
    rows = {
        row.key: row
        for member in ("a", "b", "c")
        for key in keys
        for inc in range(1, 4)
        if chance.random() < 0.7
        for row in [cell(member, inc, slot_of_key(Kind.FACT, key, inc))]
    }
    rows |= {row.key: row for row in (cell("a", 1, b"\xff"), cell("a", 2, b"\xff\xff"))}
    bench.put(*rows.values(), cell("a", 1), cell("ab", 1, b"F"))
    members = (b"a", b"b", b"c", b"nobody")
    groups: list[SlotGroup] = [
        (SPACE, member, prefix_of_key(Kind.FACT, key)) for member in members for key in keys
    ]
    groups += [(SPACE, b"a", first) for first in (b"", b"F", b"F\x00", b"\xff", b"\xff\xff")]
    groups += [(b"\xffno space", b"a", b"F")] + groups[:3] * 100
    loaded = bench.store.load([cell("a", 1).key, cell("z", 1).key], [], groups)
    everything_there = [row for row, _ in bench.snapshot().cells_after(SPACE, b"", b"", 1000)]
    for group in groups:
        space, member, first = group
        expected = [
            row
            for row in everything_there
            if row[:2] == (space, member) and row.slot.startswith(first)
        ]
        assert loaded.groups[group] == tuple(expected), group
        assert all(loaded.cells[row.key] == row for row in expected)
    assert any(len(found) > 1 for found in loaded.groups.values())
    assert len(loaded.groups) == len(set(groups))
    assert loaded.cells[cell("a", 1).key] == cell("a", 1)
    assert loaded.cells[cell("z", 1).key] is None
    assert all(loaded.prints[k] == fingerprint(loaded.cells[k]) for k in loaded.prints)  # type: ignore[arg-type]


def test_a_members_slots_of_one_kind_are_paged_through(bench: Bench) -> None:
    rows = [cell("m", n, slot_of_name(Kind.RESULT, f"r{n:03}")) for n in range(25)]
    bench.put(*rows, cell("m", 1, b"J"), cell("m", 1, b"L"), cell("n", 1, b"K"))
    snapshot = bench.snapshot()
    for limit in (1, 7, 25, 26):
        paged: list[tuple[bytes, Value]] = []
        while page := snapshot.slots_from(SPACE, b"m", b"K", paged[-1][0] if paged else b"", limit):
            assert len(page) <= limit
            paged += page
        assert paged == [(row.slot, row.value) for row in rows]
    assert snapshot.slots_from(b"\xffno space", b"m", b"K", b"", 9) == []


def test_spaces_are_found_by_what_they_begin_with(bench: Bench) -> None:
    spaces = [b"\xffa", b"\xffab", b"\xffab\xff", b"\xffac", b"\xffb"]
    bench.put(*[cell("m", 1, space=space) for space in spaces])
    snapshot = bench.snapshot()
    assert snapshot.spaces() == snapshot.spaces_of(b"") == spaces
    assert snapshot.spaces_of(b"\xffab") == [b"\xffab", b"\xffab\xff"]
    assert snapshot.spaces_of(b"\xffab\xff") == [b"\xffab\xff"]
    assert snapshot.spaces_of(b"\xffzz") == []
    after = [snapshot.space_after(space) for space in (b"", *spaces)]
    assert after == [*spaces, None]


def test_some_keys_of_a_space_end_with_a_whole_member_where_they_can(bench: Bench) -> None:
    rows = [cell("a", 1, bytes([slot])) for slot in range(65, 70)]
    rows += [cell("b", 1, b"M"), cell("b", 1, b"N"), cell("c", 1, b"M")]
    bench.put(*rows)
    snapshot = bench.snapshot()
    keys = [row.key for row in rows]
    cut = {limit: len(snapshot.keys_in(SPACE, limit)) for limit in range(1, 10)}
    assert cut == {1: 1, 2: 2, 3: 3, 4: 4, 5: 5, 6: 5, 7: 5, 8: 7, 9: 8}
    assert all(snapshot.keys_in(SPACE, limit) == keys[:n] for limit, n in cut.items())
    assert snapshot.keys_in(b"\xffno space", 9) == []


def test_what_is_dropped_is_gone_with_its_totals(bench: Bench) -> None:
    """Random writes and drops, of single cells, members and spaces, against plain dicts."""
    chance = Random(7)
    plain: dict[Key, Row] = {}
    spaces = [SPACE + bytes([number]) for number in range(4)]
    emptied: set[bytes] = set()
    again = 0
    for step in range(150):
        rows = {}
        for _ in range(chance.randint(0, 6)):
            row = tallied(chance.choice("abc"), chance, chance.choice(spaces))
            if row.key not in plain or row.value > plain[row.key].value:
                rows[row.key] = row
        which: object = chance.choice([None, "cell", "member", "space"])
        victim = chance.choice(sorted(plain)) if plain and which else (b"", b"", b"")
        length = {"cell": 3, "member": 2, "space": 1}.get(str(which), 3)
        dropped = [row for key, row in plain.items() if key[:length] == victim[:length]]
        rows = {key: row for key, row in rows.items() if key[:length] != victim[:length]}
        again += sum(row.space in emptied for row in rows.values())
        for row in dropped:
            del plain[row.key]
        plain |= rows
        totals: dict[MemberKey, Total | None] = {}
        for member in {row[:2] for row in (*rows.values(), *dropped)}:
            totals[member] = total_of(
                (row.slot, row.value) for row in plain.values() if row[:2] == member
            )
        bench.put(*rows.values(), dropped=dropped, totals=totals)
        emptied = set(spaces) - {key[0] for key in plain}
        if step % 30 == 29:
            bench.reopen()
        check(bench, plain, [(space, m) for space in spaces for m in (b"a", b"b", b"c")])
    assert again > 5, "what was emptied is written to again"


def check(bench: Bench, plain: dict[Key, Row], members: list[MemberKey]) -> None:
    """A store holds just these cells, and what hangs on them."""
    snapshot, store = bench.snapshot(), bench.store
    assert store.cells == len(plain)
    assert {row.key: row for _, row in log_of(snapshot)} == plain
    assert len(log_of(snapshot)) == len(plain)
    assert snapshot.spaces() == sorted({key[0] for key in plain})
    totals = {
        member: total_of((row.slot, row.value) for row in plain.values() if row[:2] == member)
        for member in members
    }
    assert dict(store.load([], members).totals) == totals
    known = {member: total for member, total in totals.items() if total is not None}
    assert snapshot.totals_of(members) == known
    assert sum(cells for _, cells in snapshot.buckets()) == len(plain)
    root = 0
    for row in plain.values():
        root ^= fingerprint(row)
    assert store.state().root == snapshot.root == root


def test_a_cell_that_is_dropped_and_written_at_once_stays(bench: Bench) -> None:
    old, other = cell("m", 1), cell("n", 1)
    bench.put(old, other)
    new = cell("m", 2, seq=2)
    bench.put(new, dropped=[old, other])
    check(bench, {new.key: new}, [(SPACE, b"m"), (SPACE, b"n")])
    bench.reopen()
    check(bench, {new.key: new}, [(SPACE, b"m"), (SPACE, b"n")])


def test_how_many_facts_there_are_is_kept(bench: Bench) -> None:
    row = cell("m", 1, slot_of_key(Kind.FACT, b"k", 5))
    bench.put(row, facts=1)
    assert (bench.store.state().facts, bench.snapshot().facts) == (1, 1)
    bench.reopen()
    assert (bench.store.state().facts, bench.snapshot().facts) == (1, 1)
    bench.put(dropped=[row], facts=-1)
    bench.reopen()
    assert (bench.store.state().facts, bench.snapshot().facts) == (0, 0)
    assert bench.snapshot().spaces() == []


def test_own_spaces_have_no_totals(bench: Bench) -> None:
    slot = slot_of_name(Kind.FLAG, "board")
    own = (slot, slot_of_replica(Kind.UP, 1))
    rows = [Row(BANS_SPACE, b"m", its, 1, 0, b"", OTHER, 1) for its in own]
    bench.put(*rows, cell("m", 1, slot))
    members = [(BANS_SPACE, b"m"), (SPACE, b"m")]
    bench.put(totals={(SPACE, b"m"): Total(1, -(2**63), False, 2)})
    assert bench.snapshot().totals_of(members).keys() == {(SPACE, b"m")}


def test_a_space_is_collected_up_to_the_newest_mark_of_any_agent(bench: Bench) -> None:
    def of(window: str) -> bytes:
        return encode_space(Space("b", 1, NO_SHAPE, window))

    series = of("day")
    for agent, window in (("eu", "day:2026-11-29"), ("us", "day:2026-11-30")):
        slot = slot_of_name(Kind.COLLECTED, agent)
        bench.put(Row(MARKS_SPACE, series, slot, 9, 0, window.encode(), OTHER, 1))
    bench.put(Row(MARKS_SPACE, series, slot_of_name(Kind.CLOSE, "eu"), 9, 0, b"day:2027", OTHER, 2))
    snapshot = bench.snapshot()
    days = [snapshot.collects(of(f"day:2026-{day}")) for day in ("11-29", "11-30", "12-01")]
    assert days == [True, True, False]
    assert not snapshot.collects(of("all"))
    assert not snapshot.collects(MARKS_SPACE)
    assert not snapshot.collects(b"\xffwhat no version reads")


def test_results_and_their_retractions_add_up(bench: Bench) -> None:
    rows = [
        Row(SPACE, b"m", slot_of_name(Kind.RESULT, key), *result.of(9, score, "h", 7, b""), 5, 1)
        for key, score in (("a", 900), ("b", 700), ("c", 100))
    ]
    rows.append(Row(SPACE, b"m", slot_of_name(Kind.RETRACTION, "a"), *result.retraction(7), 5, 1))
    bench.put(*rows)
    total = total_of((row.slot, row.value) for row in rows)
    assert total is not None
    bench.put(totals={(SPACE, b"m"): total})
    bench.reopen()
    assert bench.store.load([], [(SPACE, b"m")]).totals[SPACE, b"m"] == total
    assert bench.snapshot().totals_of([(SPACE, b"m")]) == {(SPACE, b"m"): total}
    assert (total.score, total.slots) == (700, 8)
