"""Trends: what entries do to a `trend` board's sketches and candidates, and its heaviest members.

The sketch (agent/crdt/sketch.py) says how often a member was counted, within the bounds that are
documented there; the candidates (agent/crdt/heaviest.py) say which members to ask it about. A
window's space holds, for each incarnation that counted in it, at most 128 blocks of a sketch and
2,048 candidates, however many members there are. All entries of a batch fold into one new value of
each cell that they touch.

A trend is a sum of its spaces: the cells of several buckets read together are a sliding window.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeAlias

from agent.boards.entry import Entry, integer
from agent.crdt import heaviest, sketch
from agent.crdt.cell import Key, Value
from agent.crdt.decay import Decay
from agent.crdt.sketch import BLOCK, BLOCK_SUM_MAX, SKETCH_MEMBER
from agent.crdt.slot import Kind
from agent.errors import Malformed, OutOfRange
from agent.limits import INT64_MIN, MEMBER_BYTES_MAX, SCORE_MAX

KEEP_MAX = 1_000
"""How many of the heaviest members a board shows at most: they are all recomputed together."""

_TOP = bytes((Kind.TOP,))

Read: TypeAlias = Callable[[Key], Value | None]
"""The value of a cell that `needs` named; None where it was never written."""


def needs(space: bytes, members: Iterable[bytes], incs: Iterable[int], own_inc: int) -> set[Key]:
    """The cells that tallying these members in a space will read.

    The blocks that hold their counters, of all incarnations, and this one's candidates in their
    sets. `incs` are all known incarnations, with or without `own_inc`.
    """
    everyone = {*incs, own_inc}
    slots: set[bytes] = set()
    for member in members:
        place = sketch.place_of(member)
        for row, column in enumerate(place.columns):
            slots.update(sketch.slot_of(inc, row, column) for inc in everyone)
        slots.update(heaviest.slots_of(own_inc, place.set))
    return {(space, SKETCH_MEMBER, slot) for slot in slots}


def amount_of(entry: Entry) -> int:
    """The `add` of an entry for a `trend` board.

    Raises:
        Malformed: no `add`, or a field that such a board does not take.
        OutOfRange: `add` is not in 1 to 2**53 - 1.
    """
    if entry.score is not None:
        raise Malformed("score: a board with rule 'trend' takes 'add'")
    if entry.data is not None:
        raise Malformed("data: a board with rule 'trend' keeps no data with a score")
    if entry.key is not None:
        raise Malformed("key: a board with rule 'trend' counts estimates and remembers no keys")
    if entry.add is None:
        raise Malformed("add: missing; a board with rule 'trend' needs it")
    amount = integer(entry.add, "add")
    if amount <= 0:
        raise OutOfRange("out_of_range", f"add: {amount} on a board with rule 'trend', at least 1")
    return amount


class _Block:
    """A block of this incarnation's sketch with the batch's entries on top.

    An empty block is at the earliest landmark: nothing has to move when it is first written.
    """

    __slots__ = ("changed", "counters", "landmark", "total")

    def __init__(self, value: Value | None, decay: Decay) -> None:
        self.counters = sketch.counters_of(value)
        self.total = sum(self.counters)
        self.landmark = INT64_MIN if value is None else sketch.landmark_of(value, decay)
        self.changed = False

    def raise_to(self, index: int, count: int, landmark: int) -> None:
        """Raise a counter, at a landmark that is not before the block's own."""
        if landmark != self.landmark:
            halvings = landmark - self.landmark
            self.counters = [counter >> halvings for counter in self.counters]
            self.total = sum(self.counters)
            self.landmark = landmark
        self.total += count - self.counters[index]
        self.counters[index] = count
        self.changed = True


class _Member:
    """A member of the batch: its counters here, and what other incarnations counted."""

    __slots__ = ("blocks", "indexes", "others", "set")

    def __init__(
        self, set_: int, blocks: Sequence[_Block], indexes: Sequence[int], others: Sequence[int]
    ) -> None:
        self.set = set_
        self.blocks = blocks
        self.indexes = indexes
        self.others = others  # by row, in the fine units of the time of the batch


class Plan(NamedTuple):
    """What one entry will do.

    member: whose entry it is.
    own: the member's estimate afterwards by this incarnation's sketch alone, at `landmark`.
    estimate: its estimate afterwards over all regions, at the time of the batch.
    """

    member: bytes
    own: int
    landmark: int
    estimate: int


class TrendTally:
    """The entries of one batch in one space of a `trend` board.

    `plan` says what an entry would do, or refuses it, and changes nothing; `apply` does it. So an
    entry that counts in several windows is planned in all of them before it is applied in any. A
    plan is good until the next `apply` here. `values` are the new values of the cells at the end.

    Args:
        space: the window's space.
        read: reads the cells that `needs` named, as they were before the batch.
        own_inc: the incarnation that writes.
        incs: all known incarnations, with or without `own_inc`.
        half_life_ms: the board's; None without decay.
        now_ms: the time for which estimates are made.
    """

    def __init__(
        self,
        space: bytes,
        read: Read,
        own_inc: int,
        incs: Iterable[int],
        half_life_ms: int | None,
        now_ms: int,
    ) -> None:
        self._space = space
        self._read = read
        self._inc = own_inc
        self._others = sorted({*incs} - {own_inc})
        self._decay = Decay(half_life_ms)
        self._now_ms = now_ms
        self._blocks: dict[bytes, _Block] = {}  # of this incarnation, by slot
        self._elsewhere: dict[bytes, list[tuple[int, list[int]]]] = {}  # by the same slot
        self._members: dict[bytes, _Member] = {}
        self._last: dict[bytes, Plan] = {}

    def plan(self, member: bytes, amount: int, at_ms: int) -> Plan:
        """What adding `amount` (1 to 2**53 - 1) at a time would do.

        A time after the batch's own counts as that: no entry weighs more for being ahead.

        Raises:
            OutOfRange: (`out_of_range`) the estimate would be above 2**53 - 1, or a block full.
        """
        mine = self._members.get(member) or self._meet(member)
        decay, now_ms = self._decay, self._now_ms
        at_ms = min(at_ms, now_ms)
        landmark = decay.landmark(at_ms)
        for block in mine.blocks:
            if block.landmark > landmark:
                landmark = block.landmark
        counts = [
            block.counters[index] >> landmark - block.landmark
            for block, index in zip(mine.blocks, mine.indexes, strict=True)
        ]
        own = min(counts) + decay.weigh(amount, at_ms, landmark)
        fine = min(
            decay.fine(own if own > count else count, landmark, now_ms) + others
            for count, others in zip(counts, mine.others, strict=True)
        )
        estimate = decay.shown(fine, now_ms)
        if estimate > SCORE_MAX:
            raise OutOfRange(
                "out_of_range",
                f"add: {amount} would make the score {estimate}, beyond {SCORE_MAX} (2^53 - 1)",
            )
        for block, count in zip(mine.blocks, counts, strict=True):
            total = block.total >> landmark - block.landmark
            if own > count and total + own - count > BLOCK_SUM_MAX:
                raise OutOfRange(
                    "out_of_range",
                    f"add: {amount} would take what this agent counted in one block of its sketch "
                    f"beyond {BLOCK_SUM_MAX} (2^62 - 1)",
                )
        return Plan(member, own, landmark, estimate)

    def apply(self, plan: Plan) -> None:
        """Count what was planned."""
        mine = self._members[plan.member]
        for block, index in zip(mine.blocks, mine.indexes, strict=True):
            if block.counters[index] >> plan.landmark - block.landmark < plan.own:
                block.raise_to(index, plan.own, plan.landmark)
        self._last[plan.member] = plan

    def values(self) -> dict[Key, Value]:
        """The new values of all cells that the applied entries changed."""
        values = {
            self._key(slot): sketch.value_of(block.counters, block.landmark, self._decay)
            for slot, block in self._blocks.items()
            if block.changed
        }
        for member, plan in self._last.items():
            keys = [
                self._key(slot) for slot in heaviest.slots_of(self._inc, self._members[member].set)
            ]
            weight = heaviest.weight_of(plan.own, plan.landmark, self._decay)
            ways = [values.get(key) or self._read(key) for key in keys]
            offered = heaviest.offer(ways, member, weight)
            if offered is not None:
                values[keys[offered[0]]] = offered[1]
        return values

    def _key(self, slot: bytes) -> Key:
        return (self._space, SKETCH_MEMBER, slot)

    def _meet(self, member: bytes) -> _Member:
        place = sketch.place_of(member)
        blocks, others = [], []
        for row, column in enumerate(place.columns):
            slot = sketch.slot_of(self._inc, row, column)
            block = self._blocks.get(slot)
            if block is None:
                block = self._blocks[slot] = _Block(self._read(self._key(slot)), self._decay)
                self._elsewhere[slot] = self._read_others(row, column)
            blocks.append(block)
            others.append(
                sum(
                    self._decay.fine(counters[column % BLOCK], landmark, self._now_ms)
                    for landmark, counters in self._elsewhere[slot]
                )
            )
        indexes = [column % BLOCK for column in place.columns]
        mine = self._members[member] = _Member(place.set, blocks, indexes, others)
        return mine

    def _read_others(self, row: int, column: int) -> list[tuple[int, list[int]]]:
        """(landmark, counters) of the block of a column, of each other incarnation that has it."""
        slots = (sketch.slot_of(inc, row, column) for inc in self._others)
        return [
            (sketch.landmark_of(value, self._decay), sketch.counters_of(value))
            for slot in slots
            if (value := self._read(self._key(slot))) is not None
        ]


class Trend(NamedTuple):
    """What a batch does to a space: new values of cells, and for each entry its answer.

    An answer is the member's estimate after the entry, or why it was refused: it changed nothing.
    """

    values: dict[Key, Value]
    answers: list[int | OutOfRange]


def tally_trend(
    space: bytes,
    entries: Iterable[tuple[bytes, int, int]],
    read: Read,
    own_inc: int,
    incs: Iterable[int],
    half_life_ms: int | None,
    now_ms: int,
) -> Trend:
    """Count entries, (member, amount, at_ms) each, in one space; each stands alone.

    The arguments are those of TrendTally.
    """
    tally = TrendTally(space, read, own_inc, incs, half_life_ms, now_ms)
    answers: list[int | OutOfRange] = []
    for member, amount, at_ms in entries:
        try:
            plan = tally.plan(member, amount, at_ms)
        except OutOfRange as error:
            answers.append(error)
        else:
            tally.apply(plan)
            answers.append(plan.estimate)
    return Trend(tally.values(), answers)


def read_heaviest(
    cells: Iterable[tuple[bytes, Value]],
    now_ms: int,
    half_life_ms: int | None,
    limit: int,
    hidden: Callable[[bytes], bool] = lambda _: False,
) -> list[tuple[bytes, int]]:
    """The heaviest members and their estimates at a time, best first; equal ones as Redis has them.

    That is the greater member bytes first. Members whose estimate has decayed below one half are
    not on the board. In whichever order cells come, and however many spaces they are of (their
    sketches add up), the result is the same.

    Args:
        cells: (slot, value) of all cells of SKETCH_MEMBER; those of other kinds are passed over.
        half_life_ms: the board's; None without decay.
        limit: how many at most; never more than KEEP_MAX.
        hidden: members that are not to be shown, and take no place: banned or erased ones.
    """
    decay = Decay(half_life_ms)
    blocks: dict[tuple[int, int], list[int]] = {}
    members: set[bytes] = set()
    for slot, value in cells:
        spot = sketch.spot_of(slot)
        if spot is not None:
            landmark = sketch.landmark_of(value, decay)
            fine = [decay.fine(count, landmark, now_ms) for count in sketch.counters_of(value)]
            before = blocks.get((spot.row, spot.block))
            if before is not None:
                fine = [one + two for one, two in zip(before, fine, strict=True)]
            blocks[spot.row, spot.block] = fine
        elif slot[:1] == _TOP and 0 < len(value[2]) <= MEMBER_BYTES_MAX:
            members.add(value[2])
    found = [
        (_estimate(member, blocks, decay, now_ms), member)
        for member in members
        if not hidden(member)
    ]
    found.sort(reverse=True)
    return [(member, count) for count, member in found[: min(limit, KEEP_MAX)] if count > 0]


def _estimate(
    member: bytes, blocks: dict[tuple[int, int], list[int]], decay: Decay, now_ms: int
) -> int:
    fine = None
    for row, column in enumerate(sketch.place_of(member).columns):
        block = blocks.get((row, column // BLOCK))
        count = 0 if block is None else block[column % BLOCK]
        fine = count if fine is None or count < fine else fine
    return decay.shown(fine or 0, now_ms)
