"""Entries of sums, with and without a key: each that survives anywhere is counted exactly once.

Rules V, O, W and X of docs/protocol.md. The product writes facts, slots and voids; here is the list
of what was acknowledged, and what must therefore be read. An entry survives where its slot holds at
least what it held after it. Of the entries of one key that survive in a space, the first by (hybrid
time, incarnation) counts there, and for each of the others there is a void. (A fact and its slots
survive together: that is what V and O are for, and it is what is tested.)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from agent.crdt.cell import Key, Row, Value
from cluster.simulator import plain
from cluster.simulator.history import History, show


@dataclass(frozen=True, slots=True)
class Applied:
    """An acknowledged entry in one space.

    slot, after: which slot holds how much because of it.
    key, order, fact: of a keyed one; the first in this order counts.
    """

    slot: Key
    after: int
    amount: int
    inc: int
    key: bytes = b""
    order: tuple[int, int] = (0, 0)
    fact: Key | None = None


class KeyedEntries:
    """All entries of sums in a run, and whether each is counted once."""

    def __init__(self, history: History, seen: Counter[str]) -> None:
        self._history = history
        self._seen = seen
        self._applied: dict[Key, list[Applied]] = {}

    def add(self, applied: Applied) -> None:
        """An entry was acknowledged."""
        self._applied.setdefault(applied.slot, []).append(applied)

    def set_back(self, inc: int, cells: Mapping[Key, Value]) -> None:
        """An incarnation goes on from what its disk holds: what it wrote after that never was."""
        for slot, its in self._applied.items():
            held = cells.get(slot, (0, 0, b""))[0]
            self._applied[slot] = [a for a in its if a.inc != inc or a.after <= held]

    # --- after every step ------------------------------------------------------------------

    def problems_of(
        self, name: str, changed: Iterable[Row], cells: Mapping[Key, Value]
    ) -> list[str]:
        """I6, and no void without a reason, for the rows that have changed on a disk."""
        found = []
        for row in changed:
            kind = row.slot[:1]
            if kind == b"V":
                found += self._void_problem(name, row)
                self._seen["key counted twice"] += 1
            elif kind in b"+-":
                for applied in self._applied.get(row.key, ()):
                    fact = applied.fact
                    if fact is None or applied.after > row.major or fact in cells:
                        continue
                    if not applied.amount:
                        continue  # the slot was there before it
                    # Who joins after facts were collected reads slots without them.
                    if not self._history.was_collected(fact[0]) and not plain.Gone(cells).holds(
                        fact
                    ):
                        found.append(f"I6: {name} has {show(row.key)} at {row.major}, not its fact")
        return found

    def _void_problem(self, name: str, row: Row) -> list[str]:
        key, inc = row.slot[3:-8], int.from_bytes(row.slot[-8:])
        there = [
            applied
            for slot, its in self._applied.items()
            if slot[:2] == row[:2]
            for applied in its
            if applied.key == key
        ]
        mine = [applied for applied in there if applied.inc == inc]
        if not mine or min(applied.order for applied in there) >= mine[0].order:
            return [f"{name}: {show(row.key)} is a void without a reason"]
        amount = mine[0].amount
        if row.value != (max(amount, 0), max(-amount, 0), b""):
            return [f"{name}: {show(row.key)} takes out {row.value}, {amount} was added"]
        return []

    # --- at the end ------------------------------------------------------------------------

    def problems(self, name: str, cells: Mapping[Key, Value]) -> list[str]:
        """Whether every entry that survives here is counted once in each space."""
        exact: dict[tuple[bytes, bytes], int] = {}
        firsts: dict[tuple[bytes, bytes], dict[bytes, Applied]] = {}
        for slot, its in self._applied.items():
            held = cells.get(slot, (-1, 0, b""))[0]
            owner = slot[:2]
            for applied in its:
                if applied.after > held:
                    continue
                if not applied.key:
                    exact[owner] = exact.get(owner, 0) + applied.amount
                    continue
                known = firsts.setdefault(owner, {})
                stands = known.get(applied.key)
                if stands is None or applied.order < stands.order:
                    known[applied.key] = applied
        for owner, by_key in firsts.items():
            more = sum(applied.amount for applied in by_key.values())
            exact[owner] = exact.get(owner, 0) + more
        owners = plain.by_owner(cells)
        found = []
        for owner, wanted in exact.items():
            counted = plain.total(owners.get(owner, {}))
            if counted != wanted:
                window = plain.split(owner[0])[1]
                found.append(
                    f"{name}: {owner[1].decode()} in {window!r} has {counted}, not {wanted}"
                )
        return found
