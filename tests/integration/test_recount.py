"""The recount: whatever is wrong with kept sums is found, nothing else is, and it is put right."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from agent.boards.tally import MemberKey
from agent.crdt import result
from agent.crdt.cell import Row, Value
from agent.crdt.fact import void
from agent.crdt.slot import Kind, slot_of_key, slot_of_name, slot_of_replica
from agent.crdt.space import BANS_SPACE, MARKS_SPACE, NO_SHAPE, Space, encode_space
from agent.crdt.total import total_of
from agent.store import adding, recount
from agent.store.snapshot import SqliteSnapshot
from agent.store.sqlite import SqliteStore
from tests.integration.store_bench import OTHER, SqliteBench, everything


def of(window: str) -> bytes:
    return encode_space(Space("b", 1, NO_SHAPE, window))


OPEN, COLLECTED = of("day:2026-11-30"), of("day:2026-11-29")


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[SqliteBench]:
    made = SqliteBench(tmp_path / "t.db")
    yield made
    made.close()


def counted(chance: Random, space: bytes, member: bytes) -> list[Row]:
    """Cells of one member on a board that adds up, with voids, facts and an unknown kind."""
    cells: dict[bytes, Value] = {b"~unknown": (1, 1, b"")}
    for inc in range(1, chance.randint(1, 9)):
        cells[slot_of_replica(Kind.UP, inc)] = (chance.randint(0, 99), inc, b"")
        cells[slot_of_replica(Kind.DOWN, inc)] = (chance.randint(0, 99), inc, b"")
        cells[slot_of_key(Kind.VOID, b"k", inc)] = void(chance.randint(-9, 9))
        cells[slot_of_key(Kind.FACT, b"k", inc)] = (1, 1, b"")
    return [Row(space, member, slot, *value, OTHER, 1) for slot, value in cells.items()]


def liked(chance: Random, space: bytes, member: bytes) -> list[Row]:
    """Flags of one member."""
    return [
        Row(space, member, slot_of_name(Kind.FLAG, str(n)), chance.randint(1, 9), 0, b"", OTHER, 1)
        for n in range(chance.randint(1, 20))
    ]


def resulting(chance: Random, space: bytes, member: bytes) -> list[Row]:
    """Results of one member, some of them taken back."""
    rows = []
    for n in range(chance.randint(1, 9)):
        value = result.of(n, chance.randint(-99, 99), "h", n, b"data")
        rows.append(Row(space, member, slot_of_name(Kind.RESULT, str(n)), *value, OTHER, 1))
        if chance.random() < 0.3:
            gone = slot_of_name(Kind.RETRACTION, str(n))
            rows.append(Row(space, member, gone, *result.retraction(n), OTHER, 1))
    return rows


def sketched(chance: Random, space: bytes, member: bytes) -> list[Row]:
    """Segments of a sketch by several incarnations."""
    rows = []
    for inc in range(1, 4):
        for segment in range(3):
            ranks = bytes(chance.randint(0, 20) for _ in range(64))
            slot = slot_of_replica(Kind.HLL, inc, segment.to_bytes(2))
            rows.append(Row(space, member, slot, sum(ranks), 0, ranks, OTHER, 1))
    return rows


MAKERS = (counted, liked, resulting, sketched)


def fill(bench: SqliteBench, seed: int = 3) -> dict[MemberKey, list[Row]]:
    """Boards of all rules with right totals, and bans; returns the rows of members."""
    chance = Random(seed)
    members: dict[MemberKey, list[Row]] = {}
    for space in (OPEN, COLLECTED, of("all")):
        for number in range(30):
            name = b"m%02d" % number
            members[space, name] = MAKERS[number % len(MAKERS)](chance, space, name)
    alone = Row(OPEN, b"single", slot_of_replica(Kind.UP, 9), 4, 5, b"", OTHER, 1)
    members[OPEN, b"single"] = [alone]
    rows = [row for of_member in members.values() for row in of_member]
    totals = {key: total_of((r.slot, r.value) for r in found) for key, found in members.items()}
    facts = sum(row.slot[0] == Kind.FACT for row in rows)
    bans = liked(chance, BANS_SPACE, b"m01")
    bench.put(*rows, *bans, totals=totals, facts=facts)
    return members


def look(bench: SqliteBench) -> recount.Recount:
    snapshot = bench.snapshot()
    assert isinstance(snapshot, SqliteSnapshot)
    return recount.recount(snapshot, lambda _cells: None)


def change(bench: SqliteBench, sql: str, *values: object) -> None:
    assert isinstance(bench.store, SqliteStore)
    assert bench.store._db.execute(sql, values).rowcount > 0


@pytest.mark.parametrize("page", [1, 2, 7, 100, 2000])
def test_whatever_is_wrong_is_found_and_put_right(
    bench: SqliteBench, monkeypatch: pytest.MonkeyPatch, page: int
) -> None:
    monkeypatch.setattr(recount, "PAGE_CELLS", page)
    members = fill(bench)
    whole = look(bench)
    assert not whole
    assert not whole.damaged
    assert (whole.cells, whole.facts) == (bench.store.cells, bench.store.state().facts)
    right = everything(bench)

    change(bench, "UPDATE totals SET score = score + 1 WHERE member IN ('', ?)", b"m00")
    change(bench, "UPDATE totals SET reached_ms = 777 WHERE member = ?", b"m02")
    change(bench, "DELETE FROM totals WHERE member = ?", b"m03")
    change(bench, "UPDATE totals SET slots = slots + 1 WHERE member = ?", b"m29")
    change(bench, "INSERT INTO totals SELECT space, x'6e', 1, 1, 1, 2, 1 FROM totals LIMIT 1")
    change(bench, "UPDATE state SET facts = facts + 7, cells = cells - 1, root = root + 1")
    change(bench, "UPDATE buckets SET print = print + 1 WHERE id = 9")
    found = look(bench)
    names = {b"m00", b"m02", b"m03", b"m29"}
    wrong = {total.member for total in found.totals if total.member[1] != b"n"}
    assert wrong == {key for key in members if key[1] in names}
    assert [total.counted for total in found.totals if total.member[1] == b"n"] == [None]
    assert (found.missing, found.missing_facts, len(found.sums)) == (1, -7, 1)

    lsn = bench.store.state().lsn
    bench.store.mend([], found.correction())
    assert not look(bench)
    told = {row[:2] for _, row in bench.snapshot().log_after(lsn, 1000) if row is not None}
    assert told == wrong
    bench.reopen()
    again = everything(bench)
    assert [again[part] for part in (2, 3)] == [right[part] for part in (2, 3)]


def test_totals_of_collected_spaces_are_nobodys_business(bench: SqliteBench) -> None:
    members = fill(bench)
    some = [key for key in members if key[0] == COLLECTED][:9]
    half = [row for key in some for row in members[key][::2]]
    bench.put(dropped=half, facts=-sum(row.slot[0] == Kind.FACT for row in half))
    assert {wrong.member[0] for wrong in look(bench).totals} == {COLLECTED}
    series = of("day")
    slot = slot_of_name(Kind.COLLECTED, "us")
    bench.put(Row(MARKS_SPACE, series, slot, 9, 0, b"day:2026-11-29", OTHER, 1))
    assert not look(bench)


def test_of_a_member_with_a_damaged_cell_nothing_is_said(bench: SqliteBench) -> None:
    members = fill(bench)
    bad = members[OPEN, b"m01"][0]
    change(bench, "UPDATE cells SET major = 'x' WHERE member = ? AND slot = ?", b"m01", bad.slot)
    change(bench, "UPDATE totals SET score = score + 1 WHERE member IN (?, ?)", b"m01", b"m02")
    found = look(bench)
    assert {cell.row.member for cell in found.damaged} == {b"m01"}
    assert {wrong.member[1] for wrong in found.totals} == {b"m02"}
    # Mending adds the total up anew, though another cell of the member is damaged as well.
    bench.store.mend([bad])
    space = [key for key in members if key[1] == b"m01"]
    kept = bench.snapshot().totals_of(space)
    assert kept[OPEN, b"m01"] == total_of((r.slot, r.value) for r in members[OPEN, b"m01"])


@pytest.mark.parametrize("seed", range(20))
def test_adding_one_by_one_comes_to_what_all_at_once_do(seed: int) -> None:
    """Also where a faulty peer gave a member cells of rules that exclude each other."""
    chance = Random(seed)
    rows = [
        row
        for maker in chance.sample(MAKERS, chance.randint(1, len(MAKERS)))
        for row in maker(chance, OPEN, b"m")
    ]
    rows.sort()
    retracted = {row.slot[1:] for row in rows if row.slot[0] == Kind.RETRACTION}
    asked = []

    def ask(member: bytes) -> set[bytes]:
        asked.append(member)
        return retracted

    added = adding.Adding(b"m", ask)
    for row in rows:
        added.add(row.slot, row.value)
    assert added.total() == total_of((row.slot, row.value) for row in rows)
    assert asked in ([], [b"m"])


def test_nothing_tallied_is_no_total() -> None:
    added = adding.Adding(b"m", lambda _member: set())
    added.add(b"M", (1, 1, b""))
    assert added.total() is total_of([(b"M", (1, 1, b""))]) is None
