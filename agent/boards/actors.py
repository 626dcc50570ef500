"""Actors: entries that say who does something to a member: likes (`distinct`), visits (`unique`).

`distinct` keeps a causal-length flag for each actor, so it can be taken back and listed; `unique`
keeps a sketch (HyperLogLog) of who was there, of bounded size however many they are.
"""

from __future__ import annotations

from collections.abc import Sequence

from agent.boards.catalog import Board
from agent.boards.entry import Entry, key_bytes, name_bytes, settled_ms, time_in
from agent.boards.erasures import ERASED_ACTOR
from agent.boards.placing import Placing
from agent.boards.tally import Needs, Tallying, Writer, refuse_fields
from agent.crdt import flag, hyperloglog
from agent.crdt.cell import Key, Value
from agent.crdt.slot import Kind, slot_of_replica
from agent.crdt.total import Total, grown, with_registers
from agent.errors import Malformed


def actor_slot(actor: bytes) -> bytes:
    """The slot of an actor's flag."""
    return bytes([Kind.FLAG]) + actor


def needs(board: Board, entries: Sequence[Entry], writer: Writer, into: Needs) -> None:
    """Add what `tally_distinct` or `tally_unique` will read for these entries."""
    assert board.definition is not None
    placing = Placing(board, writer.marks, writer.agent, writer.now_ms)
    flags = board.definition.rule == "distinct"
    for entry in entries:
        if entry.actor is None:
            continue
        member = entry.member.encode(errors="replace")
        actor = entry.actor.encode(errors="replace")
        segment = b"" if flags else hyperloglog.place(actor)[0].to_bytes(2)
        for spot in placing.at(settled_ms(entry, writer.now_ms)).open:
            into.totals.add((spot.space, member))
            if flags:
                into.cells.add((spot.space, member, actor_slot(actor)))
                continue
            into.cells.update((spot.space, member, slot) for slot in _slots(segment, writer))


def _slots(segment: bytes, writer: Writer) -> list[bytes]:
    incs = {*writer.incs, writer.inc}
    return [slot_of_replica(Kind.HLL, inc, segment) for inc in sorted(incs)]


def _checked(tallying: Tallying, entry: Entry, rule: str) -> tuple[bytes, bytes]:
    """(member, actor) of an entry, once nothing is wrong with it but its time."""
    member = name_bytes(entry.member)
    refuse_fields(entry, rule, "add", "score", "data")
    if entry.actor is None:
        raise Malformed(f"actor: missing; a board with rule {rule!r} needs it")
    actor = name_bytes(entry.actor, "actor")
    if actor.startswith(ERASED_ACTOR):
        raise Malformed("actor: names that begin with '~erased:' stand for erased ones")
    tallying.check_member(member)
    tallying.check_member(actor, "actor")
    if entry.key is not None:
        key_bytes(entry.key)
        if entry.at is None:
            entry.at = time_in(entry.key)
    return member, actor


def tally_distinct(tallying: Tallying) -> None:
    """Count the entries of a group on a `distinct` board."""
    cells, effect = tallying.cells, tallying.effect

    def count(place: int, entry: Entry) -> dict[str, int]:
        member, actor = _checked(tallying, entry, "distinct")
        spots = tallying.spots(place, tallying.time_of(entry))
        scores = {}
        for spot in spots.open:
            key, owner = (spot.space, member, actor_slot(actor)), (spot.space, member)
            current = effect.values.get(key) or cells.value(key)
            total = effect.totals.get(owner) or cells.total(owner)
            new = flag.off(current) if entry.present is False else flag.on(current)
            if new is not None:
                effect.values[key] = new
                total = effect.totals[owner] = grown(total, Kind.FLAG, current, new)
            if spot.shown:
                scores[spot.window] = 0 if total is None else total.score
        return scores

    tallying.each(count)


def tally_unique(tallying: Tallying) -> None:
    """Count the entries of a group on a `unique` board."""
    cells, effect, writer = tallying.cells, tallying.effect, tallying.writer

    def current(key: Key) -> Value | None:
        return effect.values.get(key) or cells.value(key)

    def count(place: int, entry: Entry) -> dict[str, int]:
        member, actor = _checked(tallying, entry, "unique")
        refuse_fields(entry, "unique", "present")
        spots = tallying.spots(place, tallying.time_of(entry))
        segment, index, rho = hyperloglog.place(actor)
        slots = _slots(segment.to_bytes(2), writer)
        mine = slot_of_replica(Kind.HLL, writer.inc, segment.to_bytes(2))
        scores = {}
        for spot in spots.open:
            owner = (spot.space, member)
            values = {slot: current((*owner, slot)) for slot in slots}
            known = [value for value in values.values() if value is not None]
            before = hyperloglog.merged(known)
            total: Total | None = effect.totals.get(owner) or cells.total(owner)
            # What another replica has seen needs no cell here; a member's first entry does.
            if before[index] < rho or total is None:
                new = hyperloglog.offer(values[mine], index, rho)
                assert new is not None
                after = hyperloglog.merged([*known, new])
                effect.values[*owner, mine] = new
                fresh = values[mine] is None
                total = effect.totals[owner] = with_registers(total, before, after, new=fresh)
            if spot.shown:
                scores[spot.window] = hyperloglog.estimate(total.score, total.reached_ms)
        return scores

    tallying.each(count)
