"""Actors of a run: who visited whom, who likes whom, and what was taken back at the same time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from agent.crdt.cell import Key, Value
from cluster.simulator import plain
from cluster.simulator.history import History, show


@dataclass(frozen=True, slots=True)
class _Visit:
    """An acknowledged visit: the cell that held its register then, and what it held."""

    owner: tuple[bytes, bytes]
    register: int
    rho: int
    witness: Key
    value: Value


class Actors:
    """What was acknowledged of actors, and whether it is there."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._visits: list[_Visit] = []
        self._said: list[tuple[Key, Value]] = []

    def visited(self, owner: tuple[bytes, bytes], actor: str, cells: Mapping[Key, Value]) -> None:
        """A visit was acknowledged; `cells` are those of the disk after it."""
        register, rho = plain.place_of(actor)
        segment = (register // 64).to_bytes(2)
        for key, value in cells.items():
            if key[:2] != owner or key[2][:1] != b"H" or key[2][9:] != segment:
                continue
            if plain.registers_of({key[2]: value}).get(register, 0) >= rho:
                self._visits.append(_Visit(owner, register, rho, key, value))
                return
        self._visits.append(_Visit(owner, register, rho, (*owner, b"H nowhere"), (0, 0, b"")))

    def said_again(self, key: Key, value: Value) -> None:
        """A like stands although it was taken away elsewhere at the same time."""
        self._said.append((key, value))

    def problems(self, name: str, cells: Mapping[Key, Value]) -> list[str]:
        """Whether the registers are exactly those of the visits that survive here."""
        wanted: dict[tuple[bytes, bytes], dict[int, int]] = {}
        gone = plain.Gone(cells)
        found = []
        for visit in self._visits:
            if visit.witness[2] == b"H nowhere":
                found.append(f"{name}: a visit to {visit.owner[1]!r} was counted in no cell")
            held = cells.get(visit.witness)
            if held is not None and held >= visit.value:
                registers = wanted.setdefault(visit.owner, {})
                registers[visit.register] = max(visit.rho, registers.get(visit.register, 0))
        for owner, slots in plain.by_owner(cells).items():
            if any(slot[:1] == b"H" for slot in slots) and not owner[0].startswith(b"\x06sketch"):
                registers = plain.registers_of(slots)
                if registers != wanted.get(owner, {}):
                    found.append(f"{name}: {owner[1]!r} has {registers}, not {wanted.get(owner)}")
        for key, value in self._said:
            cell = self._history.cells.get(key)
            kept = None if cell is None else cell.kept
            if kept is None or kept < value or gone.holds(key):
                continue  # lost with a disk, or gone
            if cells.get(key, (0, 0, b""))[0] % 2 == 0:
                found.append(f"{name}: {show(key)} was said here and taken back there, and is off")
        return found
