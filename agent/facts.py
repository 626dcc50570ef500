"""What follows from a fact's row: the slots it implies, and the voids it may come to need. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from agent.crdt import fact
from agent.crdt.cell import Key, Row, row_of
from agent.crdt.slot import Kind, key_in, slot_of_key
from agent.crdt.space import decode_space
from agent.errors import Malformed


def implied(row: Row) -> list[Row]:
    """The slots that a fact implies, as they were after it, with its stamp."""
    space, said = decode_space(row.space), fact.unpack(row.value)
    if space is None or said is None or len(row.slot) < 11:
        return []
    found = []
    for effect in said.effects:
        place = fact.space_of(space.board, said.generation, effect)
        if place is not None:
            kind = Kind.DOWN if effect.amount < 0 else Kind.UP
            slot = bytes([kind]) + row.slot[-8:]
            value = (effect.after, effect.after_ms, b"")
            found.append(row_of((place, row.member, slot, *value, row.inc, row.seq)))
    return found


def voids_of(row: Row) -> Iterable[Key]:
    """The voids that a fact may come to need."""
    space, said = decode_space(row.space), fact.unpack(row.value)
    try:
        key, inc = key_in(row.slot)
    except Malformed:
        return
    if space is not None and said is not None:
        for effect in said.effects:
            place = fact.space_of(space.board, said.generation, effect)
            if place is not None:
                yield (place, row.member, slot_of_key(Kind.VOID, key, inc))
