"""What stands in Redis is read by others: names, fields and encodings are frozen here."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agent.boards.catalog import Board, board_of
from agent.boards.definition import Definition, ScoreRange, check, to_body
from agent.crdt.slot import Kind, slot_of_name
from agent.projection import keys
from agent.projection.decision import Follow, Rebuild, Refuse, Wait, decide
from agent.projection.keys import Claim, Fields, Watermark

ME = Claim("demo", "eu", "eu-1", 77)
MARK = Watermark(
    claim=ME,
    lsn=41,
    batch=9_007,
    vv={255: 7, 16: 3},
    as_of={"us": None, "eu": 1_760_000_000_123},
    lease_until_ms=1_760_000_010_000,
)
GOLDEN = {
    "ring": "demo",
    "region": "eu",
    "agent": "eu-1",
    "log": "77",
    "lsn": "41",
    "batch": "9007",
    "vv": '{"10":3,"ff":7}',
    "as_of": '{"eu":1760000000123,"us":null}',
    "lease_until_ms": "1760000010000",
    "code": "1",
}


def stored(watermark: Watermark) -> Fields:
    return {name.encode(): value.encode() for name, value in watermark.fields().items()}


def board(definition: Definition, name: str = "speed") -> Board:
    slot = slot_of_name(Kind.DEFINITION, "eu-1")
    return board_of(name, {slot: ((3 << 32) | 1, 5, to_body(check(definition), {}))})


def test_names_of_keys() -> None:
    assert keys.board_key("speed", "all") == "lb:{s0}:speed:all"
    assert keys.meta_key("speed", "all") == "lb:{s0}:speed:all:meta"
    assert keys.filling_key("speed", "all", "a1") == "lb:{s0}:speed:all:new:a1"
    assert keys.counter_key("visits ✓".encode()) == b"ct:{s0}:visits \xe2\x9c\x93"
    assert keys.WATERMARK_KEY == "lb:{s0}:wm"
    assert keys.PROGRESS_KEY == "lb:{s0}:wm:new"


def test_watermark_is_frozen() -> None:
    assert MARK.fields() == GOLDEN
    assert keys.watermark_in(stored(MARK)) == MARK
    assert MARK.guard() == ("demo", "eu", "eu-1", "77", "41", "9007")
    assert keys.guard_in(stored(MARK)) == MARK.guard()
    assert keys.guard_in({}) == keys.ABSENT
    assert set(MARK.steps_of()) | set(MARK.includes()) == {
        "lsn", "batch", "lease_until_ms", "vv", "as_of",
    }  # fmt: skip


def test_meta_is_frozen() -> None:
    low = board(Definition(rule="best", order="low"))
    assert keys.meta_of(low) == {
        "b": "25",
        "ties": "first",
        "epoch_ms": "946684800000",
        "tick_ms": "60000",
        "order": "low",
        "generation": "3",
        "shape": "7156c2cb716c35f3",
    }
    assert tuple(keys.meta_of(low)) == keys.META_FIELDS
    narrow = board(Definition(rule="sum", ties="last", score=ScoreRange(0, 1000)))
    assert keys.meta_of(narrow)["b"] == "43"
    assert keys.meta_of(narrow)["tick_ms"] == "1"
    shared = board(Definition(rule="latest", ties="shared"))
    assert keys.meta_of(shared)["b"] == "0"
    for made in (low, narrow, shared):
        assert keys.scale_in(keys.meta_of(made)) == made.scale


@pytest.mark.parametrize("broken", ["lsn", "log", "vv", "as_of", "batch", "code"])
def test_an_unreadable_watermark_is_none(broken: str) -> None:
    fields = dict(stored(MARK))
    fields[broken.encode()] = b"{x"
    assert keys.watermark_in(fields) is None
    del fields[broken.encode()]
    assert keys.watermark_in(fields) is None


def other_agent(lease_until_ms: int) -> Fields:
    claim = replace(ME, agent="eu-2", log=5)
    return stored(replace(MARK, claim=claim, lease_until_ms=lease_until_ms))


def test_every_case_of_a_found_watermark() -> None:
    def of(live: Fields, progress: Fields | None = None, lsn: int = 41) -> object:
        return decide(live, progress or {}, ME, lsn, 1_000)

    assert of(stored(MARK)) == Follow(MARK)
    assert of(stored(replace(MARK, lsn=3))) == Follow(replace(MARK, lsn=3))
    assert isinstance(of(stored(MARK), lsn=40), Rebuild)
    assert isinstance(of({}), Rebuild)
    assert isinstance(of({b"lsn": b"1"}), Rebuild)
    assert isinstance(of(stored(replace(MARK, claim=replace(ME, log=78)))), Rebuild)
    assert isinstance(of(stored(replace(MARK, code=2))), Rebuild)
    for claim in (replace(ME, ring="prod"), replace(ME, region="us")):
        foreign = stored(replace(MARK, claim=claim))
        for refused in (of(foreign), of({}, foreign), of(stored(MARK), foreign)):
            assert isinstance(refused, Refuse)
            assert repr(claim.ring) in refused.reason
            assert repr(claim.region) in refused.reason
    assert isinstance(of(other_agent(1_001)), Wait)
    assert isinstance(of(other_agent(1_000)), Rebuild)
    waiting = of({}, other_agent(1_001))
    assert isinstance(waiting, Wait)
    assert waiting.rebuilding
    assert isinstance(of({}, other_agent(1_000)), Rebuild)
    assert isinstance(of({}, stored(MARK)), Rebuild)  # my own, from before a restart
