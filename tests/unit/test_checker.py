"""The checker finds what is wrong; a checker that can't find anything proves nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cluster.checker import (
    Verdict,
    compare_board,
    compare_counters,
    compare_meta,
    from_redis,
    place_of,
)
from cluster.expected import BoardSpec, Place, ranked

SPEC = BoardSpec("b", "best", order="low", score=(0, 4095))
T0 = 1_360_000_000_123
EXPECTED = ranked(SPEC, [(f"m{i:02}", i // 2, T0 + i) for i in range(20)])


def found(seen: list[Place]) -> list[str]:
    verdict = Verdict()
    compare_board("here", EXPECTED, seen, verdict)
    assert verdict.equal == (not verdict.shown)
    return verdict.shown


def test_the_right_board_is_equal() -> None:
    verdict = Verdict()
    compare_board("here", EXPECTED, list(EXPECTED), verdict)
    assert verdict.equal
    assert verdict.compared == 2 * len(EXPECTED)


def test_nothing_compared_is_not_equal() -> None:
    assert not Verdict().equal


def _swap(seen: list[Place]) -> list[Place]:
    one, two = seen[4], seen[5]
    seen[4], seen[5] = two._replace(rank=one.rank), one._replace(rank=two.rank)
    return seen


@pytest.mark.parametrize(
    ("spoil", "text"),
    [
        (lambda s: [s[0]._replace(score=99), *s[1:]], "'m00' has 99, expected 0"),
        (lambda s: [*s[:3], s[3]._replace(rank=9), *s[4:]], "'m03' has rank 9, expected 4"),
        (_swap, "'m05' stands where 'm04' belongs"),
        (lambda s: s[:-1], "'m19' is missing"),
        (lambda s: [*s, Place(21, "x", 77, None)], "'x' (77) should not be there"),
        (lambda s: [*s, s[0]], "1 members are shown twice"),
        (lambda s: [s[0]._replace(tick=1), *s[1:]], "reached at tick 1"),
        (lambda s: [s[1], s[0], *s[2:]], "stands where"),
    ],
)
def test_a_spoiled_board_is_found(spoil: Callable[[list[Place]], list[Place]], text: str) -> None:
    assert any(text in line for line in found(spoil(list(EXPECTED))))


def test_one_missing_member_is_not_reported_as_a_shift_of_all() -> None:
    seen = [place for place in EXPECTED if place.member != "m03"]
    assert found(seen) == ["here: 'm03' is missing (rank 4, 1)"]


@pytest.mark.parametrize("seen", [{"a": 1}, {"a": 2, "b": 3}, {"a": None}, {}])
def test_a_wrong_counter_is_found(seen: dict[str, int | None]) -> None:
    verdict = Verdict()
    compare_counters("here", {"a": 2}, seen, verdict)
    assert not verdict.equal


def test_a_board_is_read_from_redis_scores() -> None:
    rows = [
        (place.member.encode(), float(place.score * 2**SPEC.tie_bits + (place.tick or 0)))
        for place in EXPECTED
    ]
    assert from_redis(SPEC, rows) == EXPECTED


def test_shared_ranks_are_counted_from_redis_scores() -> None:
    spec = BoardSpec("b", "sum", ties="shared")
    rows = [(b"a", 5.0), (b"c", 3.0), (b"b", 3.0), (b"d", -1.0)]
    assert [place.rank for place in from_redis(spec, rows)] == [1, 2, 2, 4]


def test_wrong_meta_is_found() -> None:
    meta = {
        b"b": b"41",
        b"ties": b"first",
        b"order": b"low",
        b"epoch_ms": b"946684800000",
        b"tick_ms": b"1",
    }
    for name in [None, *meta]:
        verdict = Verdict()
        compare_meta("here", SPEC, {**meta, **({name: b"7"} if name else {})}, verdict)
        assert verdict.equal == (name is None)


def test_an_answer_is_read_with_its_time_in_ticks() -> None:
    answer = {"rank": 1, "member": "m", "score": 3, "reached_at": "2013-02-04T17:46:40.123Z"}
    assert place_of(SPEC, answer) == Place(1, "m", 3, SPEC.tick_of(T0))
    assert place_of(BoardSpec("b", "sum", ties="member"), answer).tick is None
