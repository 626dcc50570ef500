"""Counts: what a group of entries adds to one member of a `sum` board in one window."""

from __future__ import annotations

from agent.boards.tally import Effect
from agent.crdt import counter
from agent.crdt.cell import Value
from agent.crdt.total import Total, grown
from agent.limits import COUNTER_SLOT_MAX


class Count:
    """What a group adds to one member in one window."""

    __slots__ = (
        "down",
        "down_base",
        "down_ms",
        "first_ms",
        "member",
        "room",
        "score",
        "space",
        "total",
        "up",
        "up_base",
        "up_ms",
    )

    def __init__(self, space: bytes, member: bytes, total: Total | None, up: Value | None) -> None:
        self.space = space
        self.member = member
        self.total = total
        self.score = 0 if total is None else total.score
        self.up_base = up
        self.room = COUNTER_SLOT_MAX - (0 if up is None else up[0])  # left in the `+` slot
        self.down_base: Value | None = None  # read when something is taken away
        self.up = self.down = 0
        self.up_ms = self.down_ms = -(2**63)
        self.first_ms: int | None = None  # of an entry that adds 0 to an unknown member

    def take(self, amount: int, at_ms: int, *, told: bool) -> None:
        """Take an amount away, or nothing at all.

        An entry that adds 0 makes an unknown member known; a slot that a fact names must exist.
        """
        if amount:
            self.down += amount
            self.down_ms = max(self.down_ms, at_ms)
        elif self.up_base is None and not self.up and self.first_ms is None:
            unknown = self.total is None and not self.down
            self.first_ms = at_ms if told or unknown else None

    def after(self, amount: int) -> tuple[int, int]:
        """(value, time) of the slot that an amount was counted in, as it is now."""
        if amount < 0:
            value = counter.add(self.down_base, self.down, self.down_ms)
        elif self.up:
            value = counter.add(self.up_base, self.up, self.up_ms)
        else:
            first_ms = -(2**63) if self.first_ms is None else self.first_ms
            value = counter.add(self.up_base, 0, first_ms)
        return value[0], value[1]

    def settle(self, slots: tuple[bytes, bytes], effect: Effect) -> None:
        """Turn what was counted into new values of the two slots, and a new total."""
        total = self.total
        if self.up or self.first_ms is not None:
            at_ms = self.up_ms if self.up or self.first_ms is None else self.first_ms
            total = self._grow(slots[0], self.up_base, self.up, at_ms, total, effect)
        if self.down:
            total = self._grow(slots[1], self.down_base, self.down, self.down_ms, total, effect)
        if total is not None and total is not self.total:
            effect.totals[self.space, self.member] = total

    def _grow(
        self,
        slot: bytes,
        old: Value | None,
        amount: int,
        at_ms: int,
        total: Total | None,
        effect: Effect,
    ) -> Total:
        new = counter.add(old, amount, at_ms)
        effect.values[self.space, self.member, slot] = new
        return grown(total, slot[0], old, new)
