"""What stands in Redis is read by others: names, fields and encodings are frozen here."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agent.boards.catalog import Placed, board_of
from agent.boards.definition import Definition, ScoreRange, check, to_body
from agent.boards.windows import WindowSpec
from agent.crdt.slot import Kind, slot_of_name
from agent.projection import keys
from agent.projection.decision import Follow, Rebuild, Refuse, TakeOver, Wait, decide
from agent.projection.keys import Claim, Fields, Watermark
from agent.projection.lease import Patience

NOW_MS = 1_760_000_000_000
ME = Claim("demo", "eu", "eu-1", 77)
MARK = Watermark(
    claim=ME,
    lsn=41,
    batch=9_007,
    vv={255: 7, 16: 3},
    as_of={"us": None, "eu": 1_760_000_000_123},
    lease_until_ms=1_760_000_010_000,
    tenure="5eaf",
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
    "code": "2",
    "tenure": "5eaf",
}


def stored(watermark: Watermark) -> Fields:
    return {name.encode(): value.encode() for name, value in watermark.fields().items()}


def placed(definition: Definition, window: str | None = None, name: str = "speed") -> Placed:
    slot = slot_of_name(Kind.DEFINITION, "eu-1")
    board = board_of(name, {slot: ((3 << 32) | 1, 5, to_body(check(definition), {}))})
    return board.place(board.resolve(window, NOW_MS))


def test_names_of_keys() -> None:
    assert keys.board_key("speed", "all") == "lb:{s0}:speed:all"
    assert keys.meta_key("speed", "all") == "lb:{s0}:speed:all:meta"
    assert keys.filling_key("speed", "all", "a1") == "lb:{s0}:speed:all:new:a1"
    assert keys.counter_key("visits ✓".encode()) == b"ct:{s0}:visits \xe2\x9c\x93"
    assert keys.WATERMARK_KEY == "lb:{s0}:wm"
    assert keys.PROGRESS_KEY == "lb:{s0}:wm:new"
    assert keys.sentinel_key("eu-1") == "tr:{s0}:agent:eu-1"


def test_watermark_is_frozen() -> None:
    assert MARK.fields() == GOLDEN
    assert keys.watermark_in(stored(MARK)) == MARK
    assert MARK.guard() == ("demo", "eu", "eu-1", "77", "41", "9007")
    assert keys.guard_in(stored(MARK)) == MARK.guard()
    assert keys.guard_in({}) == keys.ABSENT
    before_tenures = {name: value for name, value in stored(MARK).items() if name != b"tenure"}
    assert keys.watermark_in(before_tenures) == replace(MARK, tenure="")
    assert set(MARK.steps_of()) | set(MARK.includes()) == {
        "lsn", "batch", "lease_until_ms", "vv", "as_of",
    }  # fmt: skip


def test_meta_is_frozen() -> None:
    low = placed(Definition(rule="best", order="low"))
    assert keys.meta_of(low) == {
        "b": "25",
        "ties": "first",
        "epoch_ms": "946684800000",
        "tick_ms": "60000",
        "order": "low",
        "generation": "3",
        "shape": "7156c2cb716c35f3",
        "window": "all",
        "start_ms": "946684800000",
        "end_ms": "2934835200000",
    }
    assert tuple(keys.meta_of(low)) == keys.META_FIELDS
    narrow = placed(Definition(rule="sum", ties="last", score=ScoreRange(0, 1000)))
    assert keys.meta_of(narrow)["b"] == "43"
    assert keys.meta_of(narrow)["tick_ms"] == "1"
    shared = placed(Definition(rule="latest", ties="shared"))
    assert keys.meta_of(shared)["b"] == "0"
    for made in (low, narrow, shared):
        assert keys.scale_in(keys.meta_of(made)) == made.scale
        assert keys.fits(keys.meta_of(made) | {"tenure": "x"}, made)
        assert not keys.fits(keys.meta_of(made) | {"start_ms": "1"}, made)
        assert not keys.fits({}, made)


def test_the_meta_of_windows() -> None:
    windows = (WindowSpec("day", zone="Europe/Berlin"), WindowSpec("last:7d", zone="Europe/Berlin"))
    definition = Definition(rule="sum", windows=windows)
    day = keys.meta_of(placed(definition, "day"))
    assert (day["window"], day["start_ms"]) == ("day:2025-10-09", "1759960800000")
    assert (day["end_ms"], day["epoch_ms"]) == ("1760047200000", "1759960800000")
    assert (day["b"], day["tick_ms"]) == ("25", "1000")
    sliding = placed(definition, "last:7d")
    meta = keys.meta_of(sliding)
    assert (meta["window"], meta["start_ms"]) == ("last:7d", "1759442400000")
    moved = meta | {"start_ms": "1", "end_ms": "2", "epoch_ms": "1"}
    assert keys.fits(moved, sliding)  # the window has moved on, and means the same
    assert not keys.fits(moved | {"generation": "9"}, sliding)


def test_whose_a_key_may_be() -> None:
    def of(rest: str) -> list[tuple[str, str]]:
        return keys.places_in(b"lb:{s0}:" + rest.encode())

    assert of("speed:day:2026-11-30") == [("speed", "day:2026-11-30")]
    assert ("speed", "day:2026-11-30") in of("speed:day:2026-11-30:meta")
    assert ("speed", "day:2026-11-30") in of("speed:day:2026-11-30:new:1f")
    assert ("speed", "season:meta") in of("speed:season:meta")
    assert ("speed", "season:new") in of("speed:season:new:new:1f")


@pytest.mark.parametrize("broken", ["lsn", "log", "vv", "as_of", "batch", "code"])
def test_an_unreadable_watermark_is_none(broken: str) -> None:
    fields = dict(stored(MARK))
    fields[broken.encode()] = b"{x"
    assert keys.watermark_in(fields) is None
    del fields[broken.encode()]
    assert keys.watermark_in(fields) is None


def other_agent(lease_until_ms: int = 1) -> Fields:
    claim = replace(ME, agent="eu-2", log=5)
    return stored(replace(MARK, claim=claim, lease_until_ms=lease_until_ms))


def test_every_case_of_a_found_watermark() -> None:
    def of(
        live: Fields,
        progress: Fields | None = None,
        lsn: int = 41,
        *,
        lapsed: bool = False,
        deposed: bool = False,
    ) -> object:
        return decide(live, progress or {}, ME, lsn, lapsed=lapsed, deposed=deposed)

    assert of(stored(MARK)) == Follow(MARK)
    assert of(stored(MARK), lapsed=True, deposed=True) == Follow(MARK)
    assert of(stored(replace(MARK, lsn=3))) == Follow(replace(MARK, lsn=3))
    assert isinstance(of(stored(MARK), lsn=40), TakeOver)
    assert isinstance(of({}), Rebuild)
    assert isinstance(of({b"lsn": b"1"}), Rebuild)
    assert isinstance(of(stored(replace(MARK, code=3))), Rebuild)
    for claim in (replace(ME, ring="prod"), replace(ME, region="us")):
        foreign = stored(replace(MARK, claim=claim))
        for refused in (of(foreign), of({}, foreign), of(stored(MARK), foreign)):
            assert isinstance(refused, Refuse)
            assert repr(claim.ring) in refused.reason
            assert repr(claim.region) in refused.reason
    assert isinstance(of(stored(replace(MARK, claim=replace(ME, agent="eu-2"), code=3)),
                         lapsed=True), Rebuild)  # fmt: skip
    assert isinstance(of({}, stored(MARK)), Rebuild)  # my own, from before a restart


def test_another_agents_watermark_is_waited_for_and_taken_over() -> None:
    def of(live: Fields, progress: Fields | None = None, *, lapsed: bool = False) -> object:
        return decide(live, progress or {}, ME, 41, lapsed=lapsed, deposed=False)

    # However old or new its time is by my clock: only that it stands still counts, or a 0.
    for until_ms in (1, MARK.lease_until_ms, 2**62):
        found = of(other_agent(until_ms))
        assert isinstance(found, Wait)
        assert "'eu-2'" in found.reason
        taken = of(other_agent(until_ms), lapsed=True)
        assert isinstance(taken, TakeOver)
        assert taken.watermark.claim.agent == "eu-2"
    assert isinstance(of(other_agent(0)), TakeOver)
    waiting = of({}, other_agent())
    assert isinstance(waiting, Wait)
    assert waiting.rebuilding
    assert isinstance(of({}, other_agent(), lapsed=True), Rebuild)
    assert isinstance(of({}, other_agent(0)), Rebuild)


def test_another_log_of_my_name_is_taken_over_unless_it_took_over_from_me() -> None:
    found = stored(replace(MARK, claim=replace(ME, log=78)))
    for lapsed, deposed in ((False, False), (True, False), (True, True)):
        assert isinstance(decide(found, {}, ME, 41, lapsed=lapsed, deposed=deposed), TakeOver)
    waiting = decide(found, {}, ME, 41, lapsed=False, deposed=True)
    assert isinstance(waiting, Wait)
    assert "stop one" in waiting.reason


def test_patience_is_by_what_is_seen_and_by_my_own_clock() -> None:
    patience = Patience(4.0)
    assert not patience.lapsed(other_agent(7), 100.0)
    assert not patience.lapsed(other_agent(7), 103.9)
    assert patience.lapsed(other_agent(7), 104.0)
    assert not patience.lapsed(other_agent(8), 104.1)  # a sign of life
    assert not patience.lapsed(stored(replace(MARK, batch=1)), 108.2)
    patience.forget()
    assert not patience.lapsed(stored(replace(MARK, batch=1)), 200.0)
    assert patience.lapsed(stored(replace(MARK, batch=1)), 204.0)


def test_what_two_agents_both_include() -> None:
    assert keys.least_vv({1: 5, 2: 3, 3: 1}, {1: 4, 2: 9}) == {1: 4, 2: 3}
    least = keys.least_as_of({"eu": 5, "us": None, "ap": 7}, {"eu": 3, "us": 4, "af": 1})
    assert least == {"af": None, "ap": None, "eu": 3, "us": None}
