"""The judge of chaos finds what is wrong, and forgives exactly what can be shown to be lost."""

from __future__ import annotations

import pytest

from agent.crdt.slot import Kind, slot_of_one, slot_of_replica
from cluster.chaos.clients import BESTS, COUNTERS, LATEST, outcome_of
from cluster.chaos.disks import only_on
from cluster.chaos.judge import Judgement, judge, reachable
from cluster.chaos.ledger import WRITES_MAX, Key, Ledger, Loss, Outcome
from cluster.chaos.plan import LASTS_S, PARTS, REST_S, Fault, draw

OK, REFUSED, DOUBT = Outcome.OK, Outcome.REFUSED, Outcome.INDEFINITE
ENDED, RUNNING = 11, 12
AGENTS = ("eu", "us", "ap")


def written(
    *writes: tuple[int, Outcome], rule: str = "sum", agent: str = "eu"
) -> tuple[Ledger, Key]:
    """A ledger with one key, and its writes at 1 s, 2 s, ..."""
    ledger = Ledger()
    board = {"sum": COUNTERS, "best": BESTS, "latest": LATEST}[rule]
    key = ledger.key(board, "k", rule, owner=f"{agent}-0")
    for at, (number, outcome) in enumerate(writes, 1):
        ledger.end(key, ledger.begin(key, agent, number, float(at)), outcome, at + 0.5)
    return ledger, key


def judged(
    ledger: Ledger, key: Key, value: int | None, cells: dict[bytes, int] | None = None
) -> Judgement:
    values = {} if value is None else {key.name: value}
    now = {(*key.name, slot): major for slot, major in (cells or {}).items()}
    return judge(ledger, values, now, {f"{RUNNING:x}"})


def counts(found: Judgement) -> tuple[int, int, int]:
    return found.lost, found.doubled, found.other


RIGHT, LOST, DOUBLED, IMPOSSIBLE = (0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1)


@pytest.mark.parametrize(
    ("value", "what"),
    [
        (8, RIGHT),  # 3 + 5
        (15, RIGHT),  # and the one in doubt
        (7, LOST),  # less than any subset
        (5, LOST),  # the 3 is lost
        (None, LOST),
        (18, DOUBLED),  # the 3 counted twice, and the one in doubt
        (115, DOUBLED),  # what was refused counted
        (11, IMPOSSIBLE),  # the 3 counted twice
        (12, IMPOSSIBLE),  # the 3 is lost, the one in doubt counted
    ],
)
def test_a_sum_is_all_that_was_acknowledged_and_any_of_the_rest(
    value: int | None, what: tuple[int, int, int]
) -> None:
    ledger, key = written((3, OK), (5, OK), (100, REFUSED), (7, DOUBT))
    found = judged(ledger, key, value)
    assert counts(found) == what
    assert found.right == (what == RIGHT)
    assert len(found.shown) == sum(what)


def test_nothing_judged_is_not_right() -> None:
    assert not judge(Ledger(), {}, {}, set()).right


def test_an_invented_member_is_found() -> None:
    ledger, key = written((3, OK))
    found = judge(ledger, {key.name: 3, (COUNTERS, "nobody"): 1}, {}, set())
    assert counts(found) == IMPOSSIBLE


def test_subsets_are_all_of_them() -> None:
    assert reachable(10, [1, -2, 4]) == {10, 11, 8, 9, 14, 15, 12, 13}


def test_a_key_is_left_when_a_write_is_in_doubt_and_when_it_is_full() -> None:
    ledger, key = written((3, OK), (7, DOUBT))
    assert ledger.key(COUNTERS, "k", "sum", owner="eu-0") is not key
    ledger, key = written(*[(1, OK)] * (WRITES_MAX - 1))
    assert ledger.key(COUNTERS, "k", "sum", owner="eu-0") is key
    ledger, key = written(*[(1, OK)] * WRITES_MAX)
    assert ledger.key(COUNTERS, "k", "sum", owner="eu-0") is not key


# --- what was lost with right --------------------------------------------------------------

UP, DOWN = slot_of_replica(Kind.UP, ENDED), slot_of_replica(Kind.DOWN, ENDED)


@pytest.mark.parametrize(
    ("value", "slot_now", "what"),
    [
        (60, 60, RIGHT),  # 40 were on the lost disk alone
        (63, 63, RIGHT),  # a message with 3 of them was under way
        (61, 60, DOUBLED),
        (59, 60, LOST),
        (100, 60, DOUBLED),
        (55, 55, (1, 0, 1)),  # less than another disk held: both the slot and the sum tell
    ],
)
def test_what_only_a_lost_disk_had_is_forgiven_and_no_more(
    value: int, slot_now: int, what: tuple[int, int, int]
) -> None:
    ledger, key = written(*[(1, OK)] * 100)
    ledger.disk_changed(Loss("eu", 200.0, {(*key.name, UP): (100, 60)}))
    assert counts(judged(ledger, key, value, {UP: slot_now})) == what


def test_a_lost_decrement_leaves_more() -> None:
    ledger, key = written((10, OK), (-4, OK))
    ledger.disk_changed(Loss("eu", 9.0, {(*key.name, DOWN): (4, None)}))
    assert judged(ledger, key, 10).right
    assert counts(judged(ledger, key, 6)) == LOST


def test_two_disks_lost_one_after_the_other_are_forgiven_once() -> None:
    ledger, key = written(*[(1, OK)] * 10)
    ledger.disk_changed(Loss("eu", 20.0, {(*key.name, UP): (10, 7)}))
    ledger.disk_changed(Loss("us", 21.0, {(*key.name, UP): (7, 5)}))
    assert judged(ledger, key, 5, {UP: 5}).right
    assert counts(judged(ledger, key, 7, {UP: 5})) == DOUBLED


def test_the_slot_of_an_incarnation_that_goes_on_is_not_taken_as_what_is_left() -> None:
    slot = slot_of_replica(Kind.UP, RUNNING)
    ledger, key = written(*[(1, OK)] * 10)
    ledger.disk_changed(Loss("eu", 20.0, {(*key.name, slot): (10, 6)}))
    ledger.end(key, ledger.begin(key, "eu", 3, 21.0), OK, 22.0)
    assert judged(ledger, key, 9, {slot: 9}).right
    assert counts(judged(ledger, key, 8, {slot: 8})) == LOST


def test_only_what_no_other_disk_has_is_lost() -> None:
    a, b, c = ((COUNTERS, name, UP) for name in "abc")
    gone = {a: 5, b: 5, c: 5}
    assert only_on(gone, [{a: 5, b: 3}, {a: 9, b: 4}]) == {b: (5, 4), c: (5, None)}


@pytest.mark.parametrize(
    ("value", "what"), [(9, RIGHT), (12, RIGHT), (5, LOST), (None, LOST), (7, DOUBLED)]
)
def test_the_best_is_one_that_was_sent_and_none_below_the_acknowledged(
    value: int | None, what: tuple[int, int, int]
) -> None:
    ledger, key = written((5, OK), (9, OK), (12, DOUBT), (7, REFUSED), rule="best")
    assert counts(judged(ledger, key, value)) == what


@pytest.mark.parametrize(("value", "what"), [(5, RIGHT), (9, RIGHT), (None, LOST), (4, DOUBLED)])
def test_a_best_that_only_a_lost_disk_had_is_forgiven(
    value: int | None, what: tuple[int, int, int]
) -> None:
    ledger, key = written((5, OK), (9, OK), rule="best")
    cell = (*key.name, slot_of_one(Kind.BEST))
    ledger.disk_changed(Loss("eu", 9.0, {cell: (9, 5)}))
    assert counts(judged(ledger, key, value)) == what


def test_a_best_that_another_agent_took_may_be_lost_with_the_last_disk_that_had_it() -> None:
    ledger, key = written((5, OK), (9, OK), rule="best", agent="us")
    ledger.disk_changed(Loss("us", 8.0, {}))  # eu has it still
    ledger.disk_changed(Loss("eu", 9.0, {(*key.name, slot_of_one(Kind.BEST)): (9, 5)}))
    ledger.end(key, ledger.begin(key, "us", 7, 10.0), OK, 11.0)  # after that
    assert judged(ledger, key, 7).right
    assert counts(judged(ledger, key, 5)) == LOST


@pytest.mark.parametrize(
    ("value", "what"), [(9, RIGHT), (12, RIGHT), (5, LOST), (None, LOST), (7, DOUBLED)]
)
def test_the_latest_is_the_last_acknowledged_or_one_in_doubt(
    value: int | None, what: tuple[int, int, int]
) -> None:
    ledger, key = written((12, DOUBT), (5, OK), (9, OK), (7, REFUSED), rule="latest")
    assert counts(judged(ledger, key, value)) == what


# --- reads and answers ---------------------------------------------------------------------


def test_a_read_that_falls_or_shows_too_much_is_wrong() -> None:
    ledger, key = written((3, OK), (5, OK))
    ledger.saw(ledger.looking("us", key), 3)
    ledger.saw(ledger.looking("us", key), 8)
    before_that = ledger.looking("ap", key)
    ledger.saw(ledger.looking("ap", key), 8)
    ledger.saw(before_that, 3)  # it was sent before the 8 was shown
    assert (ledger.reads, ledger.wrong_reads) == (4, 0)
    ledger.saw(ledger.looking("us", key), 3)
    assert ledger.wrong_reads == 1
    ledger.saw(ledger.looking("us", key), 9)
    assert ledger.wrong_reads == 2


def test_a_read_may_fall_when_the_disk_was_put_back() -> None:
    ledger, key = written((3, OK), (5, OK))
    ledger.saw(ledger.looking("us", key), 8)
    under_way = ledger.looking("us", key)
    ledger.disk_changed(Loss("us", 9.0, {}))
    ledger.saw(under_way, 3)
    ledger.saw(ledger.looking("us", key), 0)
    assert (ledger.reads, ledger.wrong_reads) == (2, 0)


@pytest.mark.parametrize(
    ("status", "document", "outcome"),
    [
        (200, {}, OK),
        (422, {"definite": True}, REFUSED),
        (503, {"definite": True}, REFUSED),
        (503, {"definite": False}, DOUBT),
        (502, {}, DOUBT),
        (500, "text", DOUBT),
    ],
)
def test_only_a_definite_answer_says_that_nothing_was_stored(
    status: int, document: object, outcome: Outcome
) -> None:
    assert outcome_of(status, document) is outcome


# --- the plan ------------------------------------------------------------------------------


def test_a_seed_is_a_plan_and_a_longer_run_begins_with_it() -> None:
    plan = draw(7, 60.0, AGENTS, list(Fault))
    assert plan == draw(7, 60.0, AGENTS, list(Fault)) != draw(8, 60.0, AGENTS, list(Fault))
    longer = draw(7, 120.0, AGENTS, list(Fault))
    assert longer[: len(plan)] == plan
    assert len(longer) > len(plan)


@pytest.mark.parametrize("seed", range(20))
def test_all_kinds_come_and_no_part_is_struck_twice_at_once(seed: int) -> None:
    plan = draw(seed, 90.0, AGENTS, list(Fault))
    assert {step.fault for step in plan} == set(Fault)
    assert [step.at_s for step in plan] == sorted(step.at_s for step in plan)
    free_at: dict[tuple[str, str], float] = {}
    for step in plan:
        low, high = LASTS_S[step.fault]
        assert low <= step.seconds <= high
        assert step.at_s >= free_at.get(step.part, 0.0) - 0.002  # times are rounded to 1 ms
        free_at[step.part] = step.at_s + step.seconds + REST_S
        assert step.at_s + step.seconds <= 90.0


def test_faults_of_redis_and_links_may_meet_those_of_the_process() -> None:
    assert {PARTS.get(fault, "process") for fault in Fault} == {"process", "links", "redis"}
