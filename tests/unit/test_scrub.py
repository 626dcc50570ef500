"""Scrubbing without agents: what a page shows, what becomes of a damaged cell, a recount."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest

from agent.crdt.cell import Key, Row
from agent.crdt.fact import void
from agent.crdt.fingerprint import Stored, fingerprint
from agent.crdt.slot import Kind, slot_of_key, slot_of_replica
from agent.crdt.total import Total
from agent.gossip.mending import named
from agent.store.scrub import (
    START,
    Findings,
    Page,
    PageAnswer,
    Place,
    answer_page,
    compare,
    end_of,
    read_page,
)
from agent.store.verdict import Found, from_total, judge, restored

SPACE = b"\x01bspace"
EU, US = 5, 6


class Cells:
    """A snapshot made of cells alone; `read` is how far the other one's log is read."""

    def __init__(
        self, cells: Sequence[Stored], read: int = 10**6, collected: Sequence[bytes] = ()
    ) -> None:
        self.collected = collected
        self.cells = sorted(cells, key=lambda cell: cell.row.key)
        self.read = read
        self.vv = {EU: 100, US: 100}

    def space_after(self, space: bytes) -> bytes | None:
        return min((c.row.space for c in self.cells if c.row.space > space), default=None)

    def collects(self, space: bytes) -> bool:
        return space in self.collected

    def read_to(self, log: int) -> int | None:
        return self.read if log else None

    def cell(self, key: Key) -> tuple[Row, int] | None:
        return next(((c.row, c.mark) for c in self.cells if c.row.key == key), None)

    def stored_after(
        self, space: bytes, after: Place, upto: Place | None, limit: int
    ) -> list[Stored]:
        found = [c for c in self.cells if c.row.space == space and c.row[1:3] > after]
        return [c for c in found if upto is None or c.row[1:3] <= upto][:limit]


def cell(member: str, major: int, *, seq: int = 1, lsn: int = 1, body: bytes = b"d") -> Stored:
    row = Row(SPACE, member.encode(), b"M", major, -major, body, EU, seq)
    return Stored(row, fingerprint(row), lsn)


def walk(mine: Cells, theirs: Cells, limit: int = 3) -> Findings:
    """A whole walk over one space in pages of `limit`, as two agents make it."""
    after, all_found = START, Findings()
    while True:
        page = read_page(mine, SPACE, after, 1, limit=limit)
        bare = replace(page, cells=(), damaged=())
        answer = answer_page(theirs, bare, len(page.cells), 2, limit=limit)
        found = compare(page, answer)
        for name in Findings.__slots__:
            getattr(all_found, name).extend(getattr(found, name))
        end = end_of(page, answer)
        if end is None:
            return all_found
        assert end > after
        after = end


@pytest.mark.parametrize("seed", range(30))
def test_a_walk_finds_exactly_what_differs(seed: int) -> None:
    random = Random(seed)
    names = [f"m{number:02}" for number in range(random.randrange(30))]
    base = {name: cell(name, random.randrange(9), seq=number) for number, name in enumerate(names)}
    mine, theirs = dict(base), dict(base)
    lacking, lacking_there = set(), set()
    for name in names:
        match random.randrange(6):
            case 0:
                del mine[name]
                lacking.add(name)
            case 1:
                theirs[name] = cell(name, base[name].row.major - 1, seq=77)
                lacking_there.add(name)
            case 2:
                mine[name] = base[name]._replace(row=base[name].row._replace(inc=US))  # same value
    found = walk(Cells(list(mine.values())), Cells(list(theirs.values())))
    assert {p.there.member.decode() for p in found.lacking if p.there} == lacking
    assert {p.here.member.decode() for p in found.lacking_there if p.here} == lacking_there
    assert (found.damaged, found.damaged_there, found.forked) == ([], [], [])


def test_what_lies_above_the_cursor_is_on_its_way() -> None:
    old, new = cell("m", 1, lsn=4), cell("m", 2, seq=2, lsn=9)
    assert walk(Cells([old], read=9), Cells([new])).lacking
    assert not walk(Cells([old], read=8), Cells([new]))
    assert walk(Cells([new]), Cells([old], read=9)).lacking_there
    assert not walk(Cells([new]), Cells([old], read=8))


def test_damage_and_forks_are_told_apart() -> None:
    good = cell("m", 5)
    bad = good._replace(row=good.row._replace(major=9))
    assert [c.row.major for c in walk(Cells([bad]), Cells([good])).damaged] == [9]
    assert walk(Cells([good]), Cells([bad])).damaged_there == [good.row.key]
    fork = cell("m", 9)
    found = walk(Cells([good]), Cells([fork]))
    assert found.forked
    assert found.lacking
    text = good._replace(row=good.row._replace(major="x"))  # type: ignore[arg-type]
    assert walk(Cells([text]), Cells([good])).damaged


def test_a_space_that_is_collected_at_one_of_the_two_is_passed_over() -> None:
    some, other = [cell("m", 1), cell("n", 2)], [cell("m", 3), cell("o", 2)]
    assert walk(Cells(some), Cells(other))
    assert not walk(Cells(some, collected=[SPACE]), Cells(other))
    assert not walk(Cells(some), Cells(other, collected=[SPACE]))
    assert not walk(Cells(some), Cells(other, collected=[SPACE]), limit=1)
    # What is damaged there is still found: the cells may stay for a while.
    bad = some[0]._replace(mark=3)
    assert walk(Cells([bad], collected=[SPACE]), Cells(other)).damaged == [bad]
    beyond = Stored(some[0].row._replace(space=SPACE + b"2"), 0, 1)
    page = Page(SPACE, START, None, (), (), 0)
    answer = answer_page(Cells([*some, beyond], collected=[SPACE]), page, 0, 2)
    assert answer == PageAnswer(True, following=SPACE + b"2")


def test_an_answer_is_bounded_and_goes_on_where_it_was_cut() -> None:
    big = [cell(f"m{number:03}", number, body=bytes(1024)) for number in range(900)]
    page = Page(SPACE, START, None, (), (), 0, 10**6)
    answer = answer_page(Cells(big), page, 0, 2)
    assert len(answer.cells) < 500
    assert answer.upto == answer.cells[-1].row[1:3]
    assert {p.there.member for p in walk(Cells([]), Cells(big), 500).lacking if p.there} == {
        c.row.member for c in big
    }
    assert answer_page(Cells([]), page, 0, 2) == PageAnswer(True)


def test_every_single_byte_is_worked_out() -> None:
    random = Random(4)
    right = cell("m", 123_456, body=b"some data").row
    mark = fingerprint(right)
    assert restored(Stored(right, mark ^ 0x7F00, 1)) == right
    for _ in range(40):
        byte, shift = random.randrange(1, 256), 8 * random.randrange(8)
        signed = ((right.major ^ byte << shift) + 2**63) % 2**64 - 2**63
        assert restored(Stored(right._replace(major=signed), mark, 1)) == right
        body = bytearray(right.body)
        body[random.randrange(len(body))] ^= byte
        assert restored(Stored(right._replace(body=bytes(body)), mark, 1)) == right
    assert restored(Stored(right._replace(major=9, minor=9), mark, 1)) is None


def test_a_slot_is_what_its_total_leaves() -> None:
    right = Row(SPACE, b"m", slot_of_replica(Kind.UP, EU), 7, 50, b"", EU, 1)
    bad = Stored(right._replace(major=10**9, minor=3), fingerprint(right), 1)
    assert from_total(bad, Total(4, 50, True, 2), Total(-3, 9, False, 1)) == right
    assert from_total(bad, Total(5, 50, True, 2), Total(-3, 9, False, 1)) is None
    assert from_total(bad, None, None) is None


@pytest.mark.parametrize("amount", [5, -5])
def test_a_void_is_what_its_total_leaves(amount: int) -> None:
    slot = slot_of_key(Kind.VOID, b"k", EU)
    right = Row(SPACE, b"m", slot, *void(amount), EU, 1)
    bad = Stored(right._replace(major=10**9, minor=3), fingerprint(right), 1)
    others = Total(20, 9, True, 2)
    assert from_total(bad, Total(20 - amount, 9, True, 4), others) == right
    assert from_total(bad, Total(19 - amount, 9, True, 4), others) is None


def test_a_verdict_waits_for_whoever_may_know() -> None:
    right = cell("m", 5, seq=9).row
    bad = Stored(right._replace(major=10**9, minor=2), fingerprint(right), 1)
    older, newer = cell("m", 3, seq=4).row, cell("m", 8, seq=12).row
    said = {"us": Found(False, older), "ap": Found(False, None)}
    assert judge(bad, None, None, said, ["jp"], decide=False).row is None
    assert "jp" in judge(bad, None, None, said, ["jp"], decide=False).why
    lost = judge(bad, None, None, said, ["jp"], decide=True)
    assert (lost.row, lost.lost) == (older, True)
    for found in (Found(True, right), Found(False, right), Found(True, newer)):
        verdict = judge(bad, None, None, {**said, "jp": found}, [], decide=False)
        assert (verdict.row, verdict.lost) == (found.row, False)
    nobody = judge(bad, None, None, {"us": Found(True, None)}, [], decide=True)
    assert (nobody.row, nobody.lost) == (None, False)
    assert named(right.key)[1] == "m"
