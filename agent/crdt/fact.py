"""Facts and voids: entries with a key count once, in whichever regions they are sent.

A *fact* says that one incarnation counted one key: when, and what it did to which slots, with the
value that each slot had afterwards. It stands in the log before its slots, and whoever joins it
joins these values as well; so whoever has an increment has its fact, and the other way round.
Whoever holds two facts of one key takes the later effect out again, space by space, with a *void*:
a constant that is the same whoever writes it. Any subset of the cells that survives counts each
surviving key once (docs/protocol.md, rules V, O and W).

    F key inc    (hybrid time, at_ms, [content, generation, [[shape, window, amount, after, ms]]])
    V key inc    (what it had added, what it had taken away, b"")

The body is frozen: tests/golden/.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from hashlib import blake2b
from typing import NamedTuple, TypeAlias

import msgpack

from agent.crdt.cell import Value
from agent.crdt.space import Space, encode_space
from agent.errors import Malformed

CONTENT_BYTES = 8


class Effect(NamedTuple):
    """What an entry did in one window.

    amount: what it added; below zero it went into the `-` slot.
    after, after_ms: the slot's value afterwards.
    """

    shape: bytes
    window: str
    amount: int
    after: int
    after_ms: int


class Fact(NamedTuple):
    """One incarnation counted a key.

    hlc: the hybrid time at which it did; the least (hlc, inc) of a space's facts counts there.
    at_ms: the time of the event.
    content: a digest of what the entry said.
    generation: of the board, at that time.
    """

    hlc: int
    at_ms: int
    content: bytes
    generation: int
    effects: tuple[Effect, ...]


EffectParts: TypeAlias = tuple[bytes, str, int, int, int]
FactParts: TypeAlias = tuple[int, int, bytes, int, tuple[Effect, ...]]

effect_of: Callable[[EffectParts], Effect] = partial(tuple.__new__, Effect)
fact_of: Callable[[FactParts], Fact] = partial(tuple.__new__, Fact)
"""From its parts in order, without the cost of a call in Python: for the hot paths."""


class Excess(NamedTuple):
    """An effect that another fact of its key has in the same space already."""

    space: bytes
    inc: int
    amount: int


def content_of(amount: int, at_ms: int) -> bytes:
    """The digest of what an entry says beside its board, member and key."""
    packed: bytes = msgpack.packb((amount, at_ms))
    return blake2b(packed, digest_size=CONTENT_BYTES).digest()


def pack(fact: Fact) -> Value:
    """The cell of a fact."""
    body: bytes = msgpack.packb(fact[2:])
    return (fact.hlc, fact.at_ms, body)


def unpack(value: Value) -> Fact | None:
    """The fact in a cell; None for one that this version can't read."""
    try:
        content, generation, effects = msgpack.unpackb(value[2])
        read = tuple(Effect(*effect) for effect in effects)
    except (ValueError, TypeError, msgpack.UnpackException):
        return None
    for shape, window, *numbers in read:
        if type(shape) is not bytes or type(window) is not str:
            return None
        if any(type(number) is not int or not -(2**63) <= number < 2**63 for number in numbers):
            return None
    if type(content) is not bytes or type(generation) is not int:
        return None
    return Fact(value[0], value[1], content, generation, read)


def space_of(board: str, generation: int, effect: Effect) -> bytes | None:
    """The space of an effect of a fact of this board; None where there can be no such space."""
    try:
        return encode_space(Space(board, generation, effect.shape, effect.window))
    except Malformed:
        return None


def excess(board: str, one: tuple[int, Fact], others: Iterable[tuple[int, Fact]]) -> list[Excess]:
    """The effects that count twice between one fact and others (by incarnation) of its key.

    Of two facts the later one, by (hybrid time, incarnation), gives way in each space that both
    have an effect in. Pair by pair, so that it does not matter which of them met first.
    """
    mine = _by_space(board, one)
    found = []
    for other in others:
        its = _by_space(board, other)
        later = max((one[1].hlc, one[0]), (other[1].hlc, other[0]))[1]
        for space in mine.keys() & its.keys():
            amount = (mine if later == one[0] else its)[space]
            found.append(Excess(space, later, amount))
    return sorted(set(found))


def _by_space(board: str, told: tuple[int, Fact]) -> dict[bytes, int]:
    fact = told[1]
    spaces = ((space_of(board, fact.generation, effect), effect) for effect in fact.effects)
    return {space: effect.amount for space, effect in spaces if space is not None}


def first(facts: Iterable[tuple[int, Fact]]) -> Fact:
    """The fact of a key that stands: the least (hybrid time, incarnation)."""
    return min(((fact.hlc, inc, fact) for inc, fact in facts), key=lambda its: its[:2])[2]


def void(amount: int) -> Value:
    """The void of an effect."""
    return (max(amount, 0), max(-amount, 0), b"")
