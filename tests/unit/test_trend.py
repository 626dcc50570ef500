"""Trends, part by part: bytes that are frozen, decay, candidates, refusals, what is read."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agent.boards import trends
from agent.boards.entry import Entry
from agent.boards.trends import TrendTally, amount_of, read_heaviest, tally_trend
from agent.crdt import heaviest, sketch
from agent.crdt.cell import Key, Value
from agent.crdt.decay import FRACTION_BITS, Decay
from agent.crdt.sketch import BLOCK, SKETCH_MEMBER, Spot
from agent.crdt.slot import Kind, slot_of_replica
from agent.errors import Malformed, OutOfRange, Refused
from agent.limits import BODY_BYTES_MAX, SCORE_MAX

GOLDEN: dict[str, Any] = json.loads(
    (Path(__file__).parents[1] / "golden" / "trend-v1.json").read_text("utf-8")
)
SPACE = b"space"
ONE = 1 << FRACTION_BITS
HOUR_MS = 3_600_000
NOW_MS = 490_000 * HOUR_MS
NO_DECAY = Decay()


def count(
    cells: dict[Key, Value],
    *entries: tuple[bytes, int, int],
    inc: int = 1,
    incs: Iterable[int] = (1, 2),
    half_life_ms: int | None = None,
    now_ms: int = NOW_MS,
) -> list[int | OutOfRange]:
    """Count a batch in `cells`, reading nothing that `needs` did not name."""
    needed = trends.needs(SPACE, {member for member, _, _ in entries}, incs, inc)
    trend = tally_trend(
        SPACE,
        entries,
        {key: cells.get(key) for key in needed}.__getitem__,
        inc,
        incs,
        half_life_ms,
        now_ms,
    )
    assert trend.values.keys() <= needed
    assert all(cells[key] < new for key, new in trend.values.items() if key in cells)
    cells.update(trend.values)
    return trend.answers


def top(
    cells: dict[Key, Value],
    now_ms: int = NOW_MS,
    half_life_ms: int | None = None,
    limit: int = 10,
) -> list[tuple[bytes, int]]:
    return read_heaviest(
        [(key[2], value) for key, value in cells.items()], now_ms, half_life_ms, limit
    )


@pytest.mark.parametrize("golden", GOLDEN["places"], ids=lambda golden: golden["member"])
def test_places_are_frozen(golden: dict[str, Any]) -> None:
    place = sketch.place_of(golden["member"].encode())
    assert [list(place.columns), place.set] == [golden["columns"], golden["set"]]


@pytest.mark.parametrize("golden", GOLDEN["blocks"], ids=lambda golden: golden["name"])
def test_blocks_are_frozen(golden: dict[str, Any]) -> None:
    counters = [0] * BLOCK
    for index, counter in golden["counters"]:
        counters[index] = counter
    body = bytes.fromhex(golden["body"])
    total = sum(counters)
    assert sketch.value_of(counters, 0, NO_DECAY) == (total, 0, body)
    assert sketch.value_of(counters, 7, Decay(1)) == (7, total, body)
    assert sketch.counters_of((total, 0, body)) == counters


def test_slots_are_frozen() -> None:
    inc = int(GOLDEN["slots"]["incarnation"], 16)
    assert sketch.slot_of(inc, 3, 2047).hex() == GOLDEN["slots"]["sketch row 3, column 2047"]
    assert [slot.hex() for slot in heaviest.slots_of(inc, 255)] == GOLDEN["slots"]["set 255"]


def test_candidates_are_frozen() -> None:
    decay = Decay(HOUR_MS)
    for golden in GOLDEN["weights"]:
        assert heaviest.weight_of(golden["count"], 0, NO_DECAY) == golden["weight"]
        assert heaviest.weight_of(golden["count"], 9, decay) == golden["weight"] - 7 * 2**16
    assert heaviest.offer([None] * 4, b"m", 65536) == (0, (1, 65536, b"m"))


def test_a_slot_says_which_block_it_is() -> None:
    for row in range(sketch.ROWS):
        for column in range(0, sketch.WIDTH, BLOCK):
            assert sketch.spot_of(sketch.slot_of(5, row, column)) == Spot(5, row, column // BLOCK)


@pytest.mark.parametrize(
    "slot",
    [
        b"",
        heaviest.slots_of(5, 0)[0],
        slot_of_replica(Kind.SKETCH, 5, b"\x00"),
        slot_of_replica(Kind.SKETCH, 5, b"\x04\x00"),
        slot_of_replica(Kind.SKETCH, 5, b"\x00\x20"),
        slot_of_replica(Kind.SKETCH, 5, b"\x00\x00\x00"),
    ],
)
def test_other_slots_are_no_blocks(slot: bytes) -> None:
    assert sketch.spot_of(slot) is None


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\x01",
        b"\x03" + bytes(8),
        b"\x01" + b"\x80" + bytes(7),
        b"\x02" + b"\x80" + bytes(7) + b"\x01",
        b"\x01" + bytes(8) + b"\x01",
    ],
)
def test_a_body_that_cannot_be_read_counts_nothing(body: bytes) -> None:
    assert sketch.counters_of((1, 0, body)) == [0] * BLOCK


def test_a_body_is_small_while_counts_are_and_bounded_always() -> None:
    one = [0] * BLOCK
    one[63] = 200
    assert len(sketch.value_of(one, 0, NO_DECAY)[2]) == 10
    full = [sketch.BLOCK_SUM_MAX // BLOCK] * BLOCK
    assert len(sketch.value_of(full, 0, NO_DECAY)[2]) == 9 + 8 * BLOCK <= BODY_BYTES_MAX


def test_a_half_life_halves() -> None:
    decay = Decay(HOUR_MS)
    at_ms = 3 * HOUR_MS
    assert decay.weigh(5, at_ms, 3) == 5 * ONE
    assert decay.weigh(5, at_ms - HOUR_MS, 3) == 5 * ONE // 2
    assert decay.weigh(1, at_ms + HOUR_MS // 2, 3) == pytest.approx(2**0.5 * ONE, abs=1)
    fine = decay.fine(1000 * ONE, 3, at_ms)
    shown = [decay.shown(decay.fine(1000 * ONE, 3, ms), ms) for ms in (at_ms, at_ms + HOUR_MS)]
    assert shown == [1000, 500]
    assert decay.shown(fine, at_ms + HOUR_MS // 2) == 707


def test_what_is_counted_long_ago_makes_a_count_grow_all_the_same() -> None:
    assert Decay(HOUR_MS).weigh(1, -(10**13), 10**6) == 1


def test_a_landmark_from_far_ahead_fills_no_memory() -> None:
    assert Decay(1000).fine(1, 2**62, NOW_MS).bit_length() < 200
    assert Decay(1000).fine(2**62, -(2**62), NOW_MS) == 0


def test_a_member_takes_a_free_way_then_the_lightest() -> None:
    ways: list[Value | None] = [(1, 50, b"a"), (4, 20, b"b"), None, (1, 30, b"c")]
    assert heaviest.offer(ways, b"x", 1) == (2, (1, 1, b"x"))
    ways[2] = (1, 40, b"d")
    assert heaviest.offer(ways, b"x", 20) is None
    assert heaviest.offer(ways, b"x", 21) == (1, (5, 21, b"x"))


def test_a_candidate_is_written_anew_once_it_has_grown() -> None:
    ways: list[Value | None] = [None, (3, 100, b"a"), None, None]
    assert heaviest.offer(ways, b"a", 100 + heaviest.REFRESH - 1) is None
    assert heaviest.offer(ways, b"a", 100 + heaviest.REFRESH) == (
        1,
        (4, 100 + heaviest.REFRESH, b"a"),
    )


def test_a_vacated_way_is_free_and_nameless() -> None:
    vacated = heaviest.vacated((3, 100, b"a"))
    assert vacated == (4, 0, b"")
    assert heaviest.offer([(1, 9, b"b"), vacated], b"c", 1) == (1, (5, 1, b"c"))
    assert read_heaviest([(heaviest.slots_of(1, 0)[0], vacated)], NOW_MS, None, 10) == []


@pytest.mark.parametrize(
    ("fields", "error", "word"),
    [
        ({}, Malformed, "add"),
        ({"add": 1, "key": "k"}, Malformed, "key"),
        ({"add": 1, "data": {}}, Malformed, "data"),
        ({"score": 1}, Malformed, "score"),
        ({"add": 1.5}, Malformed, "add"),
        ({"add": 0}, OutOfRange, "add"),
        ({"add": -1}, OutOfRange, "add"),
        ({"add": SCORE_MAX + 1}, OutOfRange, "add"),
    ],
)
def test_an_entry_that_is_refused(fields: dict[str, Any], error: type[Refused], word: str) -> None:
    with pytest.raises(error, match=f"^{word}:"):
        amount_of(msgspec.convert({"member": "m", **fields}, Entry))


def test_an_entry_that_is_taken() -> None:
    assert amount_of(Entry("m", add=3.0)) == 3
    assert amount_of(Entry("m", add=SCORE_MAX)) == SCORE_MAX


def test_an_estimate_beyond_the_limit_is_refused_and_changes_nothing() -> None:
    cells: dict[Key, Value] = {}
    count(cells, (b"m", SCORE_MAX - 1, 0), inc=2)
    first, refused, second = count(cells, (b"m", 1, 0), (b"m", 1, 0), (b"n", 5, 0))
    assert (first, second) == (SCORE_MAX, 5)
    assert isinstance(refused, OutOfRange)
    assert top(cells) == [(b"m", SCORE_MAX), (b"n", 5)]


def test_a_full_block_refuses_and_changes_nothing() -> None:
    cells: dict[Key, Value] = {}
    full = [0] * BLOCK
    full[(sketch.place_of(b"m").columns[2] + 1) % BLOCK] = sketch.BLOCK_SUM_MAX - 5
    key = (SPACE, SKETCH_MEMBER, sketch.slot_of(1, 2, sketch.place_of(b"m").columns[2]))
    cells[key] = sketch.value_of(full, 0, NO_DECAY)
    before = dict(cells)
    assert isinstance(count(cells, (b"m", 6, 0))[0], OutOfRange)
    assert cells == before
    assert count(cells, (b"m", 5, 0)) == [5]


def test_with_decay_a_block_that_is_full_has_room_again_later() -> None:
    cells: dict[Key, Value] = {}
    huge = 2**45
    refused: list[int | OutOfRange] = []
    for hours in (0, 0, 4):
        now_ms = NOW_MS + hours * HOUR_MS
        refused += count(cells, (b"m", huge, now_ms), half_life_ms=HOUR_MS, now_ms=now_ms)
    assert [isinstance(answer, OutOfRange) for answer in refused] == [False, True, False]


def test_a_plan_changes_nothing() -> None:
    cells: dict[Key, Value] = {}
    tally = TrendTally(SPACE, cells.get, 1, (1,), None, NOW_MS)
    plan = tally.plan(b"m", 3, NOW_MS)
    assert plan.estimate == 3
    assert tally.values() == {}
    assert tally.plan(b"m", 3, NOW_MS) == plan
    tally.apply(plan)
    assert len(tally.values()) == sketch.ROWS + 1


def test_a_restart_under_a_new_incarnation_adds() -> None:
    cells: dict[Key, Value] = {}
    assert count(cells, (b"m", 3, 0), (b"m", 1, 0), inc=1) == [3, 4]
    assert count(cells, (b"m", 2, 0), inc=2) == [6]
    assert top(cells) == [(b"m", 6)]


def test_the_spaces_of_a_sliding_window_add_up() -> None:
    days: list[dict[Key, Value]] = [{}, {}]
    count(days[0], (b"m", 3, 0), (b"n", 4, 0))
    count(days[1], (b"m", 2, 0))
    cells = [(key[2], value) for day in days for key, value in day.items()]
    assert read_heaviest(cells, NOW_MS, None, 10) == [(b"m", 5), (b"n", 4)]


def test_the_best_come_first_and_equal_ones_as_redis_has_them() -> None:
    cells: dict[Key, Value] = {}
    count(cells, (b"a", 2, 0), (b"c", 2, 0), (b"b", 2, 0), (b"d", 9, 0), (b"e", 1, 0))
    assert top(cells, limit=4) == [(b"d", 9), (b"c", 2), (b"b", 2), (b"a", 2)]
    assert top(cells, limit=0) == []


def test_a_hidden_member_takes_no_place() -> None:
    cells: dict[Key, Value] = {}
    count(cells, (b"a", 3, 0), (b"b", 2, 0), (b"c", 1, 0))
    slots = [(key[2], value) for key, value in cells.items()]
    assert read_heaviest(slots, NOW_MS, None, 2, {b"a"}.__contains__) == [(b"b", 2), (b"c", 1)]


def test_decay_by_the_time_of_the_entry_and_of_the_reading() -> None:
    cells: dict[Key, Value] = {}
    late = (b"late", 1000, NOW_MS - 3 * HOUR_MS)
    ahead = (b"ahead", 1000, NOW_MS + 60_000)
    answers = count(cells, (b"now", 1000, NOW_MS), late, ahead, half_life_ms=HOUR_MS)
    assert answers == [1000, 125, 1000]
    later_ms = NOW_MS + HOUR_MS
    assert top(cells, later_ms, HOUR_MS) == [(b"now", 500), (b"ahead", 500), (b"late", 63)]
    assert top(cells, NOW_MS + 9 * HOUR_MS, HOUR_MS) == [(b"now", 2), (b"ahead", 2)]
    assert top(cells, NOW_MS + 99 * HOUR_MS, HOUR_MS) == []


def test_the_order_of_candidates_does_not_change_with_time() -> None:
    """Of 4 ways that are taken, the one whose decayed count is least gives place."""
    decay = Decay(HOUR_MS)
    # Landmark 0: 100 units; at landmark 6 these are worth less than 2.
    old, new = heaviest.weight_of(100 * ONE, 0, decay), heaviest.weight_of(2 * ONE, 6, decay)
    assert new > old
    assert heaviest.offer([(1, old, b"old")], b"new", new) == (0, (2, new, b"new"))
