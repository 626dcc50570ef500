"""A total that is kept up to date slot by slot equals the one that is added up anew."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from agent.crdt import counter
from agent.crdt.cell import Value
from agent.crdt.slot import Kind, slot_of_replica
from agent.crdt.total import Total, combine, contribution, grown, total_of

# (slot, amount, at): slots 0..2 are `+` and 3..5 `-`; an entry of 0 makes a new `+` slot.
GROWTHS = st.lists(
    st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(-5, 30)), max_size=25
)


def kind_of(slot: int) -> Kind:
    return Kind.UP if slot < 3 else Kind.DOWN


def plain_total(slots: dict[int, Value]) -> Total | None:
    """The docstring of agent/crdt/counter.py, in plain Python."""
    if not slots:
        return None
    ups = [value for slot, value in slots.items() if slot < 3]
    downs = [value for slot, value in slots.items() if slot >= 3]
    rises = [value[1] for value in ups if value[0]]
    return Total(
        score=sum(value[0] for value in ups) - sum(value[0] for value in downs),
        reached_ms=max(rises or [value[1] for value in slots.values()]),
        rose=bool(rises),
        slots=len(slots),
    )


@given(GROWTHS)
def test_an_incremental_total_equals_the_recomputed_one(
    growths: list[tuple[int, int, int]],
) -> None:
    slots: dict[int, Value] = {}
    total: Total | None = None
    for slot, amount, at_ms in growths:
        if not amount and slot >= 3:
            continue  # a `-` slot never begins at 0
        old = slots.get(slot)
        new = counter.add(old, amount, at_ms)
        if new != old:
            slots[slot] = new
            total = grown(total, kind_of(slot), old, new)
        assert total == plain_total(slots)
        assert total == total_of((slot_of_replica(kind_of(s), s + 1), v) for s, v in slots.items())


@given(GROWTHS, st.randoms(use_true_random=False))
def test_the_order_in_which_slots_arrive_never_matters(
    growths: list[tuple[int, int, int]], chance: Random
) -> None:
    versions: dict[int, list[Value]] = {}
    for slot, amount, at_ms in growths:
        if amount or slot < 3:
            history = versions.setdefault(slot, [])
            history.append(counter.add(history[-1] if history else None, amount, at_ms))
    arrivals = [(slot, value) for slot, history in versions.items() for value in history]
    chance.shuffle(arrivals)
    slots: dict[int, Value] = {}
    total: Total | None = None
    for slot, value in arrivals:
        old = slots.get(slot)
        if old is None or value > old:
            total = grown(total, kind_of(slot), old, value)
            slots[slot] = value
    assert total == plain_total({slot: history[-1] for slot, history in versions.items()})


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 9), st.integers(0, 9)), min_size=3))
def test_combining_is_associative_and_commutative(parts: list[tuple[bool, int, int]]) -> None:
    totals = [contribution(Kind.UP if up else Kind.DOWN, (n, t, b"")) for up, n, t in parts]
    forwards = backwards = None
    for total in totals:
        forwards = combine(forwards, total)
    for total in reversed(totals):
        backwards = combine(backwards, total)
    assert forwards == backwards
    a, b, c = totals[:3]
    assert combine(combine(a, b), c) == combine(a, combine(b, c))
