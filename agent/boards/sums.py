"""Sums: entries that add to a counter, once a key where they carry one.

An entry is counted in the slots of this incarnation, one `+` and one `-` in each window. With a key
it also writes a fact (agent/crdt/fact.py), and is not counted where a fact of its key is known.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NoReturn

from agent.boards.catalog import Board, keys_space
from agent.boards.count import Count
from agent.boards.entry import Entry, integer, key_bytes, name_bytes, settled_ms, time_in
from agent.boards.marks import keys_series
from agent.boards.placing import Placing, Spot
from agent.boards.tally import (
    Needs,
    Note,
    SlotGroup,
    Tallying,
    Writer,
    facts_are_full,
    refuse_fields,
    refuse_range,
)
from agent.boards.windows import FACTS_MS, KEYS
from agent.crdt import fact, hybrid_clock
from agent.crdt.cell import Value
from agent.crdt.fact import Fact, effect_of, fact_of
from agent.crdt.slot import Kind, prefix_of_key, slot_of_replica
from agent.errors import Conflict, Gone, Malformed, OutOfRange, Refused
from agent.limits import COUNTER_SLOT_MAX, KEY_BYTES_MAX, SCORE_MAX

_NOTHING: Value = (0, 0, b"")


def needs(board: Board, entries: Sequence[Entry], writer: Writer, into: Needs) -> None:
    """Add what `tally_sums` will read for these entries."""
    placing = Placing(board, writer.marks, writer.agent, writer.now_ms)
    up = slot_of_replica(Kind.UP, writer.inc)
    down = slot_of_replica(Kind.DOWN, writer.inc)
    inc = writer.inc.to_bytes(8)
    cells, totals = into.cells, into.totals
    seen: set[str] = set()  # members with an entry of now: all of those need the same
    for entry in entries:
        if entry.at is None and entry.key is None and (entry.add is None or entry.add >= 0):
            if entry.member in seen:
                continue
            seen.add(entry.member)
        member = entry.member.encode(errors="replace")
        at_ms = settled_ms(entry, writer.now_ms)
        spots = placing.at(at_ms)
        for spot in spots.open:
            space = spot.space
            totals.add((space, member))
            cells.add((space, member, up))
            if entry.add is not None and entry.add < 0:
                cells.add((space, member, down))
        if entry.key is not None:
            for spot in spots.closed:
                totals.add((spot.space, member))
            key = entry.key.encode(errors="replace")
            if at_ms < 0 or len(key) > KEY_BYTES_MAX:
                continue  # refused: before 1970 there are no facts
            groups = fact_groups(board.name, member, key, at_ms)
            cells.add((keys_space(board.name, at_ms), member, groups[0][2] + inc))
            into.groups.update(groups)


def fact_groups(board: str, member: bytes, key: bytes, at_ms: int) -> list[SlotGroup]:
    """Where the facts of a key are: around its time, so that another one is noticed."""
    prefix = prefix_of_key(Kind.FACT, key)
    return [(space, member, prefix) for space in _spaces_near(board, at_ms // FACTS_MS)]


@lru_cache(4096)
def _spaces_near(board: str, bucket: int) -> tuple[bytes, ...]:
    """The spaces of facts of a bucket and of its neighbours."""
    times = ((bucket + near) * FACTS_MS for near in (-1, 0, 1))
    return tuple(keys_space(board, ms) for ms in times if KEYS.at(ms) is not None)


def tally_sums(tallying: Tallying) -> None:
    """Count the entries of a group on a `sum` board."""
    _Sums(tallying).run()


class _Sums:
    def __init__(self, tallying: Tallying) -> None:
        self._tallying = tallying
        self._cells = tallying.cells
        self._effect = tallying.effect
        self._board = tallying.board
        self._grow_only = tallying.definition.grow_only
        self._least, self._greatest = tallying.definition.score_range()
        inc = tallying.writer.inc
        self._up = slot_of_replica(Kind.UP, inc)
        self._down = slot_of_replica(Kind.DOWN, inc)
        self._inc = inc.to_bytes(8)
        self._counts: dict[bytes, dict[str, Count]] = {}
        self._spots: tuple[Spot, ...] = ()
        self._windows: list[str] = []  # of these spots
        self._known: dict[str, list[Count]] = {}  # by member, its counts in these spots
        self._retention_ms = tallying.definition.key_retention_ms
        # What this agent has closed it never takes again, whatever its clock says; nor what was
        # collected before it joined.
        marks, series = tallying.writer.marks, keys_series(self._board.name)
        closed = max(
            marks.window(Kind.CLOSE, series, tallying.writer.agent), marks.collected(series)
        )
        bucket = KEYS.window(closed) if closed else None
        self._closed_to_ms = -1 if bucket is None else bucket.end_ms - 1
        self._all_shown = all(counted.shown for counted in self._board.counted)
        self._names: dict[str, bytes] = {}  # of the members that were checked
        self._new: dict[tuple[bytes, bytes], list[tuple[bytes, Fact]]] = {}

    def run(self) -> None:
        """Count all entries."""
        tallying, effect = self._tallying, self._effect
        scores, now_ms = effect.scores, tallying.writer.now_ms
        current = tallying.placing.at(now_ms)
        for place, entry in enumerate(tallying.group.entries):
            try:
                amount = entry.add
                if (
                    type(amount) is not int
                    or not -SCORE_MAX <= amount <= SCORE_MAX
                    or entry.score is not None
                    or entry.data is not None
                    or entry.actor is not None
                    or entry.present is not None
                ):
                    amount = _amount(entry)
                if entry.key is not None:
                    scores.append(self._count_once(place, entry, amount, key_bytes(entry.key)))
                    continue
                if entry.at is None:
                    at_ms, spots = now_ms, current
                else:
                    at_ms = tallying.time_of(entry)
                    spots = tallying.placing.at(at_ms)
                if spots.closed or not spots.open:
                    spots = tallying.spots(place, at_ms)
                scores.append(self._add(entry.member, amount, at_ms, spots.open))
            except Refused as error:
                effect.refused.append((tallying.group.indexes[place], error))
                scores.append({})
        for tables in self._counts.values():
            for count in tables.values():
                count.settle((self._up, self._down), effect)

    def _add(
        self, name: str, amount: int, at_ms: int, spots: tuple[Spot, ...], *, told: bool = False
    ) -> dict[str, int]:
        """Count an entry in all of these windows, or in none. `told`: a fact names its slots."""
        if spots is not self._spots:
            self._spots, self._known = spots, {}
            self._windows = [spot.window for spot in spots]
        counts = self._known.get(name)
        if counts is None:
            counts = self._known[name] = [self._of(name, spot.space) for spot in spots]
        if amount > 0:
            for count in counts:
                score = count.score + amount
                if score > self._greatest:
                    refuse_range("add", amount, score, self._least, self._greatest)
                if count.up + amount > count.room:
                    _slot_is_full()
            for count in counts:
                count.up += amount
                count.score += amount
                if at_ms > count.up_ms:
                    count.up_ms = at_ms
        else:
            for count in counts:
                self._check_down(count, -amount)
            for count in counts:
                count.take(-amount, at_ms, told=told)
                count.score += amount
        if self._all_shown:
            if len(counts) == 1:
                return {self._windows[0]: counts[0].score}
            return dict(zip(self._windows, [count.score for count in counts], strict=True))
        return {s.window: c.score for s, c in zip(spots, counts, strict=True) if s.shown}

    def _check_down(self, count: Count, amount: int) -> None:
        if not amount:
            return
        score = count.score - amount
        # Concurrent regions may have carried the total out of the range: back is allowed.
        if score < self._least and not self._grow_only:
            refuse_range("add", -amount, score, self._least, self._greatest)
        if self._grow_only:
            raise OutOfRange(
                "grow_only", f"add: {-amount} on board {self._board.name!r}, which only grows"
            )
        if count.down_base is None:
            count.down_base = self._cells.value((count.space, count.member, self._down))
        if count.down + amount > COUNTER_SLOT_MAX - (count.down_base or _NOTHING)[0]:
            _slot_is_full()

    def _of(self, name: str, space: bytes) -> Count:
        table = self._counts.setdefault(space, {})
        count = table.get(name)
        if count is None:
            member = self._names.get(name)
            if member is None:
                member = name_bytes(name)
                self._tallying.check_member(member)
                self._names[name] = member
            total = self._cells.total((space, member))
            up = self._cells.value((space, member, self._up))
            count = table[name] = Count(space, member, total, up)
        return count

    # --- once a key ------------------------------------------------------------------------

    def _count_once(self, place: int, entry: Entry, amount: int, key: bytes) -> dict[str, int]:
        tallying, writer = self._tallying, self._tallying.writer
        member = self._names.get(entry.member) or name_bytes(entry.member)
        at_ms = self._time_of_key(entry)
        groups = fact_groups(self._board.name, member, key, at_ms)
        known = self._cells.facts(groups)
        for space, said in self._new.get(groups[0][1:], ()):
            if any(space == near for near, _, _ in groups):
                known.append((writer.inc, said))
        content = fact.content_of(amount, at_ms)
        if known:
            first = fact.first(known)
            if first.content != content:
                raise Conflict(
                    "key_conflict",
                    f"key: {entry.key!r} was counted for this member with other content",
                    hint="a key names one entry: the same `add` and the same `at` in every retry",
                )
            tallying.check_member(member)
            spots = tallying.placing.at(at_ms)
            group = (keys_space(self._board.name, at_ms), member, groups[0][2])
            self._complete(known, group, amount, at_ms, content, entry.member, spots.open)
            self._effect.notes[place] = Note((), hybrid_clock.ms_of(first.hlc))
            return {
                spot.window: self._of(entry.member, spot.space).score
                for spot in (*spots.open, *spots.closed)
                if spot.shown
            }
        if len(self._effect.facts) >= writer.facts_left:
            series = keys_series(self._board.name)
            raise facts_are_full(writer.facts_held_by(series), writer.facts_max)
        spots = tallying.placing.at(at_ms)
        if spots.closed or not spots.open:
            spots = tallying.spots(place, at_ms)
        scores = self._add(entry.member, amount, at_ms, spots.open, told=True)
        group = (keys_space(self._board.name, at_ms), member, groups[0][2])
        self._tell(group, amount, at_ms, content, entry.member)
        return scores

    def _complete(
        self,
        known: list[tuple[int, Fact]],
        group: SlotGroup,
        amount: int,
        at_ms: int,
        content: bytes,
        name: str,
        spots: tuple[Spot, ...],
    ) -> None:
        """Count a retry in the windows that no region that counted its key knew of.

        A definition that was on its way then has arrived. One incarnation has one fact of a key.
        """
        writer, generation = self._tallying.writer, self._board.generation
        if any(inc == writer.inc or said.generation != generation for inc, said in known):
            return
        counted = {(effect.shape, effect.window) for _, said in known for effect in said.effects}
        missing = tuple(spot for spot in spots if (spot.shape, spot.window) not in counted)
        if not missing or len(self._effect.facts) >= writer.facts_left:
            return
        try:
            self._add(name, amount, at_ms, missing, told=True)
        except OutOfRange:
            return  # what was counted stays counted; these windows have no room for it
        self._tell(group, amount, at_ms, content, name)

    def _time_of_key(self, entry: Entry) -> int:
        """The time of a keyed entry, while its key can still be told from others.

        Raises:
            Malformed: it has none.
            Gone: (`key_expired`)
        """
        writer = self._tallying.writer
        if entry.at is None:
            assert entry.key is not None
            entry.at = time_in(entry.key)
        if entry.at is None:
            raise Malformed(
                "at: missing; an entry with a `key` carries the time of its event",
                hint="the same `at` in every retry, or a key that holds a time (UUIDv7, ULID)",
            )
        at_ms = self._tallying.time_of(entry)
        if at_ms <= max(writer.now_ms - self._retention_ms, self._closed_to_ms):
            raise Gone(
                "key_expired",
                f"at: {writer.now_ms - at_ms} ms ago; keys of this board are remembered for"
                f" {self._retention_ms} ms",
                hint="whether it was counted can't be told any more; without a key it counts anew",
            )
        return at_ms

    def _tell(self, group: SlotGroup, amount: int, at_ms: int, content: bytes, name: str) -> None:
        """Write the fact of an entry that was just counted, in the group of its key."""
        effect = self._effect
        effect.hlc = hybrid_clock.tick(effect.hlc, self._tallying.writer.now_ms)
        effects = tuple(
            [
                effect_of((spot.shape, spot.window, amount, *count.after(amount)))
                for spot, count in zip(self._spots, self._known[name], strict=True)
            ]
        )
        said = fact_of((effect.hlc, at_ms, content, self._board.generation, effects))
        space, member, prefix = group
        effect.facts.append(((space, member, prefix + self._inc), said))
        self._new.setdefault((member, prefix), []).append((space, said))


def _slot_is_full() -> NoReturn:
    raise OutOfRange(
        "out_of_range",
        f"add: what this agent added to the member would be over {COUNTER_SLOT_MAX} in all",
    )


def _amount(entry: Entry) -> int:
    """The `add` of an entry for a `sum` board, once the quick check did not pass it."""
    refuse_fields(entry, "sum", "actor", "present")
    if entry.score is not None:
        raise Malformed("score: a board with rule 'sum' takes 'add'")
    if entry.data is not None:
        raise Malformed("data: a board with rule 'sum' keeps no data with a score")
    if entry.add is None:
        raise Malformed("add: missing; a board with rule 'sum' needs it")
    return integer(entry.add, "add")
