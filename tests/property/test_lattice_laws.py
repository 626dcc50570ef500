"""One law suite for all types of cells: the join is a semilattice, and deltas are operations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.boards import definition as definitions
from agent.boards.definition import Definition
from agent.crdt import (
    counter,
    flag,
    hybrid_clock,
    hyperloglog,
    lww_register,
    max_register,
    result,
)
from agent.crdt.cell import Value, join
from agent.crdt.slot import Kind, slot_of_replica
from agent.crdt.total import total_of

TIMES = st.integers(0, 30)
SCORES = st.integers(-9, 9)
DATA = st.sampled_from([b"", b"a", b"b", b"ab"])


@dataclass(frozen=True)
class Type:
    """A CRDT type: its operations, and how one is applied to a cell's value.

    single_writer: the operation depends on what it has seen, so its delta is the new value. (A flag
    has many writers: what two of them make of the same value is the same.)
    """

    operations: st.SearchStrategy[Any]
    apply: Callable[[Value | None, Any], Value]
    single_writer: bool = False


def add(current: Value | None, operation: tuple[int, int]) -> Value:
    return counter.add(current, *operation)


def offer(*, low: bool) -> Callable[[Value | None, tuple[int, int, bytes]], Value]:
    return lambda current, operation: max_register.offer(current, *operation, low=low)


def write(current: Value | None, operation: tuple[int, int, bytes]) -> Value:
    return lww_register.write(current, *operation)


def document(current: Value | None, operation: tuple[int, int, Definition | None]) -> Value:
    version, hlc, content = operation
    return join(current, (version, hlc, definitions.to_body(content, {})))


def switch(current: Value | None, operation: bool) -> Value:
    """A flag that is not so can't be taken away: nothing changes."""
    new = flag.on(current) if operation else flag.off(current)
    return new or current or (0, 0, b"")


def accept(current: Value | None, operation: tuple[int, int, int, bytes]) -> Value:
    hlc, score, at_ms, data = operation
    return join(current, result.of(hlc, score, "h", at_ms, data))


def see(current: Value | None, operation: tuple[int, int]) -> Value:
    new = hyperloglog.offer(current, *operation)
    return new or current or (0, 0, b"")


DOCUMENTS = st.sampled_from([None, Definition(rule="sum"), Definition(rule="best")])
TYPES = {
    "counter slot": Type(st.tuples(st.integers(0, 9), TIMES), add, single_writer=True),
    "best, high": Type(st.tuples(SCORES, TIMES, DATA), offer(low=False)),
    "best, low": Type(st.tuples(SCORES, TIMES, DATA), offer(low=True)),
    "latest": Type(st.tuples(TIMES, SCORES, DATA), write),
    "flag": Type(st.booleans(), switch, single_writer=True),
    "result": Type(st.tuples(TIMES, SCORES, TIMES, DATA), accept),
    "registers": Type(st.tuples(st.integers(0, 63), st.integers(1, 51)), see, single_writer=True),
    "document": Type(st.tuples(st.integers(1, 4), TIMES, DOCUMENTS), document),
}


@st.composite
def values(draw: st.DrawFn, kind: Type) -> Value:
    """A value that some writer's operations made."""
    value: Value | None = None
    for operation in draw(st.lists(kind.operations, min_size=1, max_size=5)):
        value = kind.apply(value, operation)
    assert value is not None
    return value


@pytest.fixture(params=TYPES, scope="module")
def kind(request: pytest.FixtureRequest) -> Type:
    return TYPES[request.param]


@given(data=st.data())
def test_the_join_is_associative_commutative_and_idempotent(
    kind: Type, data: st.DataObject
) -> None:
    a, b, c = (data.draw(values(kind)) for _ in range(3))
    assert join(a, b) == join(b, a)
    assert join(join(a, b), c) == join(a, join(b, c))
    assert join(a, a) == a
    assert join(None, a) == a


@given(data=st.data())
def test_the_order_is_total_and_the_join_is_one_of_its_inputs(
    kind: Type, data: st.DataObject
) -> None:
    a, b = data.draw(values(kind)), data.draw(values(kind))
    assert (a < b) + (a == b) + (b < a) == 1
    joined = join(a, b)
    assert joined in (a, b)
    assert joined >= a
    assert joined >= b


@given(data=st.data())
def test_operations_only_raise_a_value(kind: Type, data: st.DataObject) -> None:
    before = data.draw(values(kind))
    assert kind.apply(before, data.draw(kind.operations)) >= before


@given(data=st.data())
def test_a_delta_joined_equals_the_operation_applied(kind: Type, data: st.DataObject) -> None:
    replica = data.draw(values(kind))
    operation = data.draw(kind.operations)
    after = kind.apply(replica, operation)
    # A slot of one writer has its new value as delta; other types make a delta of nothing.
    delta = after if kind.single_writer else kind.apply(None, operation)
    assert join(replica, delta) == after
    other = replica if kind.single_writer else data.draw(values(kind))
    assert join(other, after) == join(join(other, replica), delta)


@given(
    st.lists(
        st.tuples(
            st.integers(1, 3), st.sampled_from([Kind.UP, Kind.DOWN]), st.integers(1, 9), TIMES
        ),
        max_size=20,
    ),
    st.randoms(use_true_random=False),
)
def test_replicas_of_a_counter_converge_in_any_order_of_arrival(
    operations: list[tuple[int, Kind, int, int]], chance: Any
) -> None:
    """Identity is an argument: three writers of one member never touch each other's slots."""
    slots: dict[bytes, Value] = {}
    deltas: list[tuple[bytes, Value]] = []
    for inc, kind, amount, at_ms in operations:
        slot = slot_of_replica(kind, inc)
        slots[slot] = counter.add(slots.get(slot), amount, at_ms)
        deltas.append((slot, slots[slot]))
    arrived: dict[bytes, Value] = {}
    chance.shuffle(deltas)
    for slot, value in [*deltas, *deltas[:3]]:
        arrived[slot] = join(arrived.get(slot), value)
    assert arrived == slots
    total = total_of(arrived.items())
    plain = sum(n if kind == Kind.UP else -n for _, kind, n, _ in operations)
    assert (total.score if total else 0) == plain


def test_counter_zero_belongs_to_entries_with_a_time_of_their_own() -> None:
    assert hybrid_clock.hear(0, hybrid_clock.of_ms(5), 5) == 0
    assert hybrid_clock.hear(0, hybrid_clock.of_ms(5) + 1, 5) == hybrid_clock.of_ms(5) + 1
    assert hybrid_clock.tick(0, 5) == hybrid_clock.of_ms(5) + 1
    full = hybrid_clock.of_ms(6) - 1
    assert hybrid_clock.tick(full, 0) == hybrid_clock.of_ms(6) + 1


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 2**41)), max_size=30))
def test_a_hybrid_clock_only_rises_and_stays_near_the_physical_ones(
    steps: list[tuple[bool, int]],
) -> None:
    clock, fastest = 0, 0
    for hears, ms in steps:
        before = clock
        if hears:
            now_ms = max(0, ms - 90_000)
            clock = hybrid_clock.hear(clock, hybrid_clock.of_ms(ms) + 1, now_ms)
            fastest = max(fastest, now_ms)
            assert clock >= before
        else:
            clock = hybrid_clock.tick(clock, ms)
            fastest = max(fastest, ms)
            assert clock > before
            assert hybrid_clock.ms_of(clock) >= ms
        assert hybrid_clock.ms_of(clock) <= fastest + 60_000
