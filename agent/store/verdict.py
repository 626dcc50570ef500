"""What becomes of a damaged cell: judged from what peers have, and from its fingerprint. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from agent.crdt.cell import Key, Row
from agent.crdt.fact import void
from agent.crdt.fingerprint import Stored, fingerprint, fits
from agent.crdt.slot import Kind
from agent.crdt.total import Total
from agent.exchange import VersionVector
from agent.limits import INT64_MAX, INT64_MIN
from agent.store.scrub import is_row


class CellSnapshot(Protocol):
    """One consistent state, as far as single cells are read from it."""

    @property
    def vv(self) -> VersionVector:
        """The version vector of this state."""

    def cell(self, key: Key) -> tuple[Row, int] | None:
        """One cell as it stands, with the fingerprint stored beside it; None where it is not."""


class Wanted(NamedTuple):
    """A damaged cell that peers are asked for, with the stamp that it bears."""

    key: Key
    inc: int
    seq: int


class Found(NamedTuple):
    """What a peer has of a damaged cell.

    covered: its state includes the write that the damaged cell bears the stamp of.
    row: its cell, if it has one that is not damaged.
    """

    covered: bool
    row: Row | None


def find(snapshot: CellSnapshot, wanted: Sequence[Wanted]) -> list[Found]:
    """What this agent has of cells that are damaged at a peer."""
    vv = snapshot.vv
    found = []
    for key, inc, seq in wanted:
        cell = snapshot.cell(key)
        good = cell is not None and fits(*cell)
        found.append(Found(vv.get(inc, 0) >= seq, cell[0] if cell is not None and good else None))
    return found


class Verdict(NamedTuple):
    """What becomes of a damaged cell.

    row: what takes its place; None: nothing yet.
    why: where `row` comes from, or why there is none.
    lost: no agent has what the cell held; `row` is the best that is known.
    """

    row: Row | None
    why: str
    lost: bool = False


def judge(
    cell: Stored,
    total: Total | None,
    others: Total | None,
    answers: Mapping[str, Found],
    silent: Sequence[str],
    *,
    decide: bool,
) -> Verdict:
    """What becomes of a damaged cell.

    Args:
        total, others: the member's total as it is kept, and what its other cells add up to.
        answers: by agent, what it has.
        silent: the agents that did not answer.
        decide: do not wait for those.
    """
    rows = {name: found.row for name, found in answers.items() if found.row is not None}
    best = max(rows, key=lambda name: rows[name].value, default=None)
    exact = any(
        answers[name].covered or row[6:] == cell.row[6:] or fits(row, cell.mark)
        for name, row in rows.items()
    )
    if best is not None and exact:
        return Verdict(rows[best], f"as {best} has it")
    own = restored(cell) or from_total(cell, total, others)
    if own is not None:
        if best is not None and rows[best].value > own.value:
            return Verdict(rows[best], f"as {best} has it")
        return Verdict(own, "worked out: it fits the fingerprint")
    if silent and not decide:
        return Verdict(None, f"waiting for {', '.join(silent)}, who may have it")
    if best is not None:
        return Verdict(rows[best], f"as {best} has it", lost=True)
    return Verdict(None, "no other agent has it")


def restored(cell: Stored) -> Row | None:
    """The row that a cell held, if one byte of its value, or of its fingerprint, was changed.

    A fingerprint is 64 bits: that another value than the right one fits it by accident is as good
    as impossible.
    """
    row, mark = cell.row, cell.mark
    if not is_row(row):
        return None
    if _bytes_apart(fingerprint(row), mark) == 1:
        return row
    for candidate in _neighbours(row):
        if fits(candidate, mark):
            return candidate
    return None


def _bytes_apart(one: int, two: int) -> int:
    return sum(byte != 0 for byte in ((one ^ two) % 2**64).to_bytes(8))


def _neighbours(row: Row) -> Iterator[Row]:
    """All rows that differ from a row in one byte of its value."""
    for shift in range(0, 64, 8):
        for byte in range(1, 256):
            yield row._replace(major=_signed(row.major ^ byte << shift))
            yield row._replace(minor=_signed(row.minor ^ byte << shift))
    body = bytearray(row.body)
    for at, good in enumerate(row.body):
        for byte in range(256):
            if byte != good:
                body[at] = byte
                yield row._replace(body=bytes(body))
        body[at] = good


def _signed(number: int) -> int:
    return (number - INT64_MIN) % 2**64 + INT64_MIN


def from_total(cell: Stored, total: Total | None, others: Total | None) -> Row | None:
    """The counter slot or void that makes a member's cells add up to its total, if it fits."""
    row = cell.row._replace(body=b"")
    kind = row.slot[0]
    if total is None or kind not in (Kind.UP, Kind.DOWN, Kind.VOID):
        return None
    rest = total.score - (0 if others is None else others.score)
    values = [(-rest if kind == Kind.DOWN else rest, row.minor)]
    if kind == Kind.VOID:
        values = [void(-rest)[:2]]
    else:
        values.append((values[0][0], total.reached_ms))
    for major, minor in values:
        candidate = row._replace(major=major, minor=minor)
        if 0 <= major <= INT64_MAX and fits(candidate, cell.mark):
            return candidate
    return None
