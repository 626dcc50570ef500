"""Explaining: the cells behind one member's score, each with what it adds, so that a person can add
them up again. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from agent.boards.definition import Definition
from agent.boards.standing import kinds_of
from agent.crdt import fact, flag, lww_register, max_register, result
from agent.crdt.cell import Row, Value
from agent.crdt.slot import Kind, incarnation_of, key_in, name_of
from agent.errors import Malformed

WORDS = {
    Kind.UP: "added",
    Kind.DOWN: "taken away",
    Kind.VOID: "counted twice",
    Kind.BEST: "best",
    Kind.LATEST: "latest",
    Kind.FLAG: "actor",
    Kind.HLL: "registers",
    Kind.RESULT: "result",
    Kind.RETRACTION: "taking back",
}


class Part(NamedTuple):
    """One cell behind a score.

    kind: what it is, in words. inc: the incarnation whose it is; of a cell that all may write, the
        one that wrote what stands. None where nobody can tell.
    amount: what it adds to the score; None where it does not add up by itself.
    at_ms: when it rose, was reached, or happened; None where it says nothing of that.
    name: the key, or the actor.
    """

    kind: str
    inc: int | None
    amount: int | None
    at_ms: int | None
    name: str | None


class Keyed(NamedTuple):
    """A key that was counted for a member, by one incarnation.

    amount: what it added in the window that is explained. voided: whether it was taken out again
        there, as another one counted the same key earlier.
    """

    key: str
    at_ms: int
    inc: int
    amount: int
    voided: bool


def parts_of(definition: Definition, rows: Iterable[Row]) -> list[Part]:
    """What each cell of a member is, as far as it counts on a board of this rule."""
    kinds = kinds_of(definition)
    cells = [row for row in rows if row.slot[0] in kinds]
    retracted = {row.slot[1:] for row in cells if row.slot[0] == Kind.RETRACTION}
    return [_part(definition, row, retracted) for row in cells]


def _part(definition: Definition, row: Row, retracted: set[bytes]) -> Part:
    slot, value, writer = row.slot, row.value, row.inc
    major, minor, _ = value
    kind = Kind(slot[0])
    word = WORDS[kind]
    match kind:
        case Kind.UP | Kind.DOWN:
            amount = major if kind == Kind.UP else -major
            return Part(word, incarnation_of(slot), amount, minor, None)
        case Kind.VOID:
            name, inc = _keyed(slot)
            return Part(word, inc, minor - major, None, name)
        case Kind.BEST:
            score = max_register.score_of(value, low=definition.low)
            return Part(word, writer, score, max_register.reached_ms_of(value), None)
        case Kind.LATEST:
            score = lww_register.score_of(value)
            return Part(word, writer, score, lww_register.reached_ms_of(value), None)
        case Kind.FLAG:
            on = flag.is_on(value)
            return Part(word if on else "actor, gone", writer, int(on), None, name_of(slot))
        case Kind.HLL:
            return Part(word, incarnation_of(slot), None, None, None)
        case Kind.RESULT:
            said = result.unpack(value)
            if slot[1:] in retracted:
                return Part("result, taken back", writer, None, said.at_ms, name_of(slot))
            return Part(word, writer, minor, said.at_ms, name_of(slot))
        case _:
            return Part(word, writer, None, minor, name_of(slot))


def _keyed(slot: bytes) -> tuple[str | None, int | None]:
    try:
        key, inc = key_in(slot)
    except Malformed:
        return None, None
    return key.decode(errors="backslashreplace"), inc


def keyed_of(
    space: bytes,
    board: str,
    facts: Iterable[tuple[bytes, Value]],
    voids: Iterable[bytes],
) -> list[Keyed]:
    """The keys that were counted in one window.

    Args:
        facts: cells of the member's facts. voids: the slots of its voids in the window.
    """
    taken_out = {_keyed(slot) for slot in voids}
    found = []
    for slot, value in facts:
        said, (key, inc) = fact.unpack(value), _keyed(slot)
        if said is None or key is None or inc is None:
            continue
        for effect in said.effects:
            if fact.space_of(board, said.generation, effect) == space:
                voided = (key, inc) in taken_out
                found.append(Keyed(key, said.at_ms, inc, effect.amount, voided))
    return sorted(found, key=lambda its: (its.at_ms, its.key, its.inc))
