"""Trends as a whole: the error bounds on a Zipf stream, decay, merging, and folding."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, pairwise
from math import e, exp
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.boards.trends import read_heaviest, tally_trend
from agent.crdt import heaviest, sketch
from agent.crdt.cell import Key, Value, join
from agent.crdt.decay import Decay
from agent.crdt.slot import Kind, incarnation_of

SPACE = b"space"
INCS = (1, 2, 3)
CELLS_MAX = sketch.ROWS * sketch.WIDTH // sketch.BLOCK + heaviest.SETS * heaviest.WAYS
ADDS, MEMBERS, BATCH = 200_000, 50_000, 2_000
HOUR_MS = 3_600_000
START_MS = 490_000 * HOUR_MS

Entry = tuple[bytes, int, int]
Cells = dict[Key, Value]


def count(
    cells: Cells, entries: Sequence[Entry], inc: int, now_ms: int, half_life_ms: int | None = None
) -> list[int]:
    """Count a batch in `cells`; every new value must be above the one before."""
    values, answers = tally_trend(SPACE, entries, cells.get, inc, INCS, half_life_ms, now_ms)
    assert all(cells[key] < value for key, value in values.items() if key in cells)
    cells.update(values)
    return [answer for answer in answers if isinstance(answer, int)]


def slots(cells: Cells) -> list[tuple[bytes, Value]]:
    return [(key[2], value) for key, value in cells.items()]


def estimator(
    cells: Cells, now_ms: int = START_MS, half_life_ms: int | None = None
) -> Callable[[bytes], int]:
    """Estimates of any member, made by this test: each from all the blocks of all incarnations."""
    decay = Decay(half_life_ms)
    rows = [[0] * sketch.WIDTH for _ in range(sketch.ROWS)]
    for slot, value in slots(cells):
        spot = sketch.spot_of(slot)
        if spot is not None:
            landmark = sketch.landmark_of(value, decay)
            for index, counter in enumerate(sketch.counters_of(value)):
                rows[spot.row][spot.block * sketch.BLOCK + index] += decay.fine(
                    counter, landmark, now_ms
                )

    def estimate(member: bytes) -> int:
        columns = sketch.place_of(member).columns
        return decay.shown(min(row[at] for row, at in zip(rows, columns, strict=True)), now_ms)

    return estimate


def zipf(seed: int, adds: int, members: int) -> list[bytes]:
    """A stream in which member number n comes with a probability in proportion to n**-1.1."""
    weights = list(accumulate(number**-1.1 for number in range(1, members + 1)))
    numbers = Random(seed).choices(range(members), cum_weights=weights, k=adds)
    return [b"member-%d" % number for number in numbers]


@pytest.fixture(scope="module")
def stream() -> list[bytes]:
    return zipf(1, ADDS, MEMBERS)


@pytest.fixture(scope="module")
def cells(stream: list[bytes]) -> Cells:
    """The stream as three replicas counted it that did not hear of each other, then merged."""
    replicas: dict[int, Cells] = {inc: {} for inc in INCS}
    for batch, start in enumerate(range(0, ADDS, BATCH)):
        inc = INCS[batch % len(INCS)]
        entries = [(member, 1, START_MS) for member in stream[start : start + BATCH]]
        count(replicas[inc], entries, inc, START_MS)
    return {key: value for replica in replicas.values() for key, value in replica.items()}


def test_the_error_is_within_its_bounds(stream: list[bytes], cells: Cells) -> None:
    exact = Counter(stream)
    estimate = estimator(cells)
    errors = [estimate(member) - number for member, number in exact.items()]
    assert min(errors) >= 0
    beyond = sum(error > e / sketch.WIDTH * ADDS for error in errors)
    assert beyond <= exp(-sketch.ROWS) * len(errors)
    # Members that never came are estimated too; nothing says that these are 0.
    strangers = [estimate(b"stranger-%d" % number) for number in range(5_000)]
    assert sum(error > e / sketch.WIDTH * ADDS for error in strangers) <= exp(-sketch.ROWS) * 5_000


def test_the_heaviest_are_found_and_in_order(stream: list[bytes], cells: Cells) -> None:
    exact = Counter(stream)
    found = read_heaviest(slots(cells), START_MS, None, 1_000)
    assert len(found) == 1_000
    assert [count for _, count in found] == sorted((count for _, count in found), reverse=True)
    estimate = estimator(cells)
    assert all(estimate(member) == count for member, count in found)
    heaviest_20 = {member for member, _ in exact.most_common(20)}
    assert len(heaviest_20 & {member for member, _ in found[:20]}) >= 19
    heaviest_100 = {member for member, _ in exact.most_common(100)}
    assert len(heaviest_100 & {member for member, _ in found[:100]}) >= 95


def test_memory_does_not_grow_with_the_members(cells: Cells) -> None:
    assert len(cells) <= len(INCS) * CELLS_MAX
    flood: Cells = {}
    for start in range(0, 30_000, BATCH):
        entries = [(b"new-%d" % number, 1, START_MS) for number in range(start, start + BATCH)]
        count(flood, entries, 1, START_MS)
    assert len(flood) == CELLS_MAX  # full, with 30,000 members as with any number


def test_decay_against_an_exact_decayed_count() -> None:
    """20 hours of a changing stream with a half-life of 90 minutes, some entries hours late."""
    random = Random(5)
    half_life_ms = 90 * 60_000
    entries: list[Entry] = []
    for position, member in enumerate(zipf(2, 40_000, 5_000)):
        name = member if position < 20_000 else b"later-" + member
        late_ms = random.choice([0, 0, 0, 5 * HOUR_MS])
        entries.append((name, random.randrange(1, 5), START_MS + position * 1_800 - late_ms))
    replicas: Cells = {}
    for batch, start in enumerate(range(0, len(entries), 500)):
        chunk = entries[start : start + 500]
        now_ms = START_MS + (start + 500) * 1_800
        count(replicas, chunk, INCS[batch % len(INCS)], now_ms, half_life_ms)

    for now_ms in (START_MS + 40_000 * 1_800, START_MS + 30 * HOUR_MS):
        exact: defaultdict[bytes, float] = defaultdict(float)
        for member, amount, at_ms in entries:
            exact[member] += amount * 2 ** ((at_ms - now_ms) / half_life_ms)
        estimate = estimator(replicas, now_ms, half_life_ms)
        errors = [estimate(member) - number for member, number in exact.items()]
        assert min(errors) >= -0.5001  # an estimate is a whole number, halves upwards
        bound = e / sketch.WIDTH * sum(exact.values()) + 0.5
        assert sum(error > bound for error in errors) <= exp(-sketch.ROWS) * len(errors)
        found = dict(read_heaviest(slots(replicas), now_ms, half_life_ms, 25))
        assert all(found[member] == estimate(member) for member in found)
        ranked = sorted(exact, key=lambda member: -exact[member])
        assert len(set(ranked[:20]) & found.keys()) >= 19
        assert ranked[0].startswith(b"later-")


def test_a_quiet_giant_falls_behind_a_busy_newcomer() -> None:
    cells: Cells = {}
    count(cells, [(b"giant", 1_000, START_MS)], 1, START_MS, HOUR_MS)
    for hour in range(1, 8):
        now_ms = START_MS + hour * HOUR_MS
        count(cells, [(b"newcomer", 100, now_ms)], 2, now_ms, HOUR_MS)
    found = read_heaviest(slots(cells), START_MS + 7 * HOUR_MS, HOUR_MS, 10)
    assert found == [(b"newcomer", 198), (b"giant", 8)]


ENTRIES = st.lists(
    st.tuples(
        st.sampled_from([b"m%d" % number for number in range(40)]),
        st.integers(1, 1_000),
        st.integers(-40, 40).map(lambda quarters: START_MS + quarters * HOUR_MS // 4),
    ),
    max_size=40,
)
HALF_LIVES = st.sampled_from([None, HOUR_MS // 4, 10 * HOUR_MS])


def sketch_of(cells: Cells) -> Cells:
    return {key: value for key, value in cells.items() if key[2][0] == Kind.SKETCH}


@given(ENTRIES, HALF_LIVES, st.lists(st.integers(0, 40), max_size=4))
def test_a_batch_folds_to_what_its_entries_do_one_by_one(
    entries: list[Entry], half_life_ms: int | None, cuts: list[int]
) -> None:
    """The sketch and the answers; only versions of candidates tell how many batches there were."""
    now_ms = START_MS + HOUR_MS
    whole: Cells = {}
    answers = count(whole, entries, 1, now_ms, half_life_ms)
    pieces: Cells = {}
    places = [0, *sorted(cuts), len(entries)]
    piecewise = [
        answer
        for start, end in pairwise(places)
        for answer in count(pieces, entries[start:end], 1, now_ms, half_life_ms)
    ]
    assert piecewise == answers
    assert sketch_of(pieces) == sketch_of(whole)


@settings(max_examples=50)
@given(
    st.lists(st.tuples(st.sampled_from(INCS), ENTRIES), max_size=6),
    HALF_LIVES,
    st.randoms(use_true_random=False),
)
def test_replicas_that_merge_in_any_order_read_the_same(
    batches: list[tuple[int, list[Entry]]], half_life_ms: int | None, random: Random
) -> None:
    """Every version of every cell is sent to everyone, in any order, some of them twice."""
    now_ms = START_MS + 10 * HOUR_MS
    sent: list[tuple[Key, Value]] = []
    replicas: dict[int, Cells] = {inc: {} for inc in INCS}
    exact: defaultdict[bytes, float] = defaultdict(float)
    for inc, entries in batches:
        before = dict(replicas[inc])
        for key, value in random.sample(sent, len(sent) // 2):  # what it has heard by now
            if incarnation_of(key[2]) != inc:
                before[key] = join(before.get(key), value)
        values, _ = tally_trend(SPACE, entries, before.get, inc, INCS, half_life_ms, now_ms)
        replicas[inc] = before | values
        sent.extend(values.items())
        for member, amount, at_ms in entries:
            halvings = 0 if half_life_ms is None else (now_ms - at_ms) / half_life_ms
            exact[member] += amount * 2**-halvings
    boards = []
    for replica in replicas.values():
        arriving = sent + random.sample(sent, len(sent) // 3)
        random.shuffle(arriving)
        for key, value in arriving:
            replica[key] = join(replica.get(key), value)
        cells = slots(replica)
        random.shuffle(cells)
        boards.append(read_heaviest(cells, now_ms, half_life_ms, 100))
    assert boards[0] == boards[1] == boards[2]
    _is_at_least(boards[0], exact.items())
    assert {member for member, worth in exact.items() if worth >= 0.501} <= dict(boards[0]).keys()


def _is_at_least(board: list[tuple[bytes, int]], exact: Iterable[tuple[bytes, float]]) -> None:
    found = dict(board)
    # 40 members rarely share a counter in all rows, so the estimate is the count, but for rounding.
    assert all(found.get(member, 0) >= worth - 0.501 for member, worth in exact)
