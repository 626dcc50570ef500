"""What a removed agent's file still has: its cells, compared with a living agent's, and sent to it.

The living agent decides which are greater than its own; a cell is never added to another one.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from agent.crdt.cell import Row
from agent.crdt.fingerprint import fingerprint
from agent.crdt.slot import COUNTER_KINDS, Kind
from agent.crdt.space import RING_SPACE, decode_space
from agent.limits import IMPORT_ROWS_MAX
from agent.store.archive import Backup
from agent.store.backup import opened
from agent.store.snapshot import SqliteSnapshot

Send = Callable[[dict[str, Any]], dict[str, Any]]
"""Sends the body of an import to an agent, and returns its answer."""

Told = Callable[[int, int], None]
"""(cells compared so far, of how many)"""


@dataclass(frozen=True, slots=True)
class Difference:
    """One cell that is greater in the file than with the living agent.

    cell: its kind and the rest of its slot, for people.
    there, here: its number in the file and with the agent; `here` is None where it is not there.
    difference: how much it adds, for counters.
    """

    board: str
    window: str
    member: str
    cell: str
    there: int
    here: int | None
    difference: int | None


@dataclass(slots=True)
class Comparison:
    """The outcome.

    compared, greater, changed: how many cells.
    damaged: how many do not fit their fingerprint: they are left out.
    boards: by board, how many cells are greater.
    added: by board, what its counters rise by, decrements taken off.
    differences: the first ones.
    """

    source: Backup
    compared: int = 0
    greater: int = 0
    changed: int = 0
    damaged: int = 0
    boards: dict[str, int] = field(default_factory=dict)
    added: dict[str, int] = field(default_factory=dict)
    differences: list[Difference] = field(default_factory=list)

    def document(self) -> dict[str, Any]:
        """As JSON shows it."""
        said = asdict(self)
        said["source"]["inc"] = f"{self.source.inc:x}"
        said["source"]["log"] = f"{self.source.log:x}"
        return said


def compare(path: Path, send: Send, *, dry_run: bool, shown_max: int, told: Told) -> Comparison:
    """Compare a file with a living agent, and have it take what it lacks unless `dry_run`.

    Raises:
        StoreError: the file can't be used.
        CommandError: the agent can't be reached, or refused. What was sent before stays.
    """
    with opened(path) as (source, snapshot):
        found = Comparison(source)
        cells = _rows(snapshot, found)
        while rows := list(islice(cells, IMPORT_ROWS_MAX)):
            body = {
                "ring": source.ring,
                "agent": source.agent,
                "incarnation": f"{source.inc:x}",
                "dry_run": dry_run,
                "rows": [_encoded(row) for row in rows],
            }
            answer = send(body)
            found.changed += answer["changed"]
            for cell in answer["greater"]:
                _note(found, rows[cell["row"]], cell["here"], shown_max)
            found.compared += len(rows)
            told(found.compared, source.cells)
    return found


def _encoded(row: Row) -> list[str | int]:
    """A cell as JSON carries it."""
    space, member, slot, body = (
        b64encode(part).decode() for part in (row.space, row.member, row.slot, row.body)
    )
    return [space, member, slot, row.major, row.minor, body]


def _rows(snapshot: SqliteSnapshot, found: Comparison) -> Iterator[Row]:
    """All cells but those about the ring's members, which are the ring's own affair."""
    for space in snapshot.spaces():
        member = slot = b""
        while space != RING_SPACE:
            cells = snapshot.cells_after(space, member, slot, IMPORT_ROWS_MAX)
            for row, mark in cells:
                if fingerprint(row) == mark:
                    yield row
                else:
                    found.damaged += 1
            if len(cells) < IMPORT_ROWS_MAX:
                break
            member, slot = cells[-1][0].member, cells[-1][0].slot


def _note(found: Comparison, row: Row, here: list[int] | None, shown_max: int) -> None:
    space = decode_space(row.space)
    board = space.board if space else row.space.hex()
    kind = row.slot[0]
    there, known, difference = row.major, None if here is None else here[0], None
    if kind in COUNTER_KINDS:
        difference = there - (known or 0)
        signed = difference if kind == Kind.UP else -difference
        found.added[board] = found.added.get(board, 0) + signed
    elif kind == Kind.LATEST:
        there, known = row.minor, None if here is None else here[1]
    found.greater += 1
    found.boards[board] = found.boards.get(board, 0) + 1
    if len(found.differences) < shown_max:
        found.differences.append(
            Difference(
                board=board,
                window=space.window if space else "",
                member=row.member.decode(errors="backslashreplace"),
                cell=_cell_name(row.slot),
                there=there,
                here=known,
                difference=difference,
            )
        )


def _cell_name(slot: bytes) -> str:
    """A slot for people: its kind, and the incarnation or the name that it is of."""
    try:
        kind = Kind(slot[0])
    except ValueError:
        return slot.hex()
    if len(slot) >= 9 and kind in (*COUNTER_KINDS, Kind.HLL, Kind.SKETCH, Kind.TOP):
        return f"{kind.name.lower()} of {int.from_bytes(slot[1:9]):x}"
    rest = slot[1:].decode(errors="backslashreplace")
    return f"{kind.name.lower()} {rest}".strip()
