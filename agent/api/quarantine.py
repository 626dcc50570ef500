"""Importing what a removed agent still had: its cells, joined as this agent's own writes.

Nothing is added up: a cell keeps the greater of its two values, so a second import changes nothing.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from aiohttp import web

from agent.api.bodies import Decoder
from agent.api.route import Call
from agent.crdt.cell import Row, Value
from agent.crdt.document import Status
from agent.crdt.space import RING_SPACE
from agent.errors import Conflict, ExchangeRefused, Malformed
from agent.gossip.wire import read_row
from agent.limits import IMPORT_ROWS_MAX, SPACE_BYTES_MAX
from agent.operation import Import, Merged
from agent.state import State
from agent.store.snapshot import SqliteSnapshot

Cell = tuple[bytes, bytes, bytes, int, int, bytes]


class ImportRows(msgspec.Struct, forbid_unknown_fields=True):
    """Cells of a removed agent's file. Bytes are base64 in JSON.

    ring, agent, incarnation: of the file; the incarnation as hexadecimal digits.
    rows: space, member, slot, major, minor, body.
    dry_run: only tell what would change.
    """

    ring: str
    agent: str
    incarnation: str
    rows: Annotated[list[Cell], msgspec.Meta(max_length=IMPORT_ROWS_MAX)]
    dry_run: bool = False


class ImportedCell(msgspec.Struct):
    """A cell that is greater in the file than here.

    row: its place in the request, from 0.
    here: major and minor of its value here; none where it is not here.
    """

    row: int
    here: tuple[int, int] | None


class ImportAnswer(msgspec.Struct):
    """Which cells of the request are greater than here, and how many were changed."""

    greater: list[ImportedCell]
    changed: int


_import_rows: Decoder[ImportRows] = Decoder(ImportRows)


async def import_rows(call: Call) -> web.Response:
    """POST /v1/ring/import."""
    body = _import_rows.decode(*await call.body())
    services = call.services
    _check_source(body, services.config.ring.name, services.queue.state)
    rows = [_row(index, cell) for index, cell in enumerate(body.rows)]

    def look(snapshot: SqliteSnapshot) -> list[Value | None]:
        return [None if (at := snapshot.cell(row.key)) is None else at[0].value for row in rows]

    here = await services.readers.read(look)
    greater = [
        (index, row, value)
        for index, (row, value) in enumerate(zip(rows, here, strict=True))
        if row.space != RING_SPACE and (value is None or row.value > value)
    ]
    changed = 0
    if greater and not body.dry_run:
        receipt = await services.queue.submit(Import(tuple(row for _, row, _ in greater)))
        assert isinstance(receipt.answer, Merged)
        changed = receipt.answer.changed
    shown = [ImportedCell(i, None if value is None else value[:2]) for i, _, value in greater]
    return call.answer(ImportAnswer(shown, changed))


def _check_source(body: ImportRows, ring: str, state: State) -> None:
    """Refuse another ring's cells, and those of an agent that may still write them.

    Raises:
        Malformed: of another ring, or an incarnation that is none.
        Conflict: (`fork`) the file's agent may still write as its incarnation.
    """
    if body.ring != ring:
        raise Malformed(f"ring: the file is of ring {body.ring[:80]!r}, this agent of {ring!r}")
    try:
        inc = int(body.incarnation, 16)
    except ValueError:
        raise Malformed("incarnation: is not a hexadecimal number") from None
    member = state.ring.members.get(body.agent)
    active = member is not None and member.status != Status.REMOVED
    if active and inc >= state.ring.newest_inc(body.agent):
        raise Conflict(
            "fork",
            f"agent {body.agent!r} is a member of the ring and may still write as the incarnation"
            f" of this file ({body.incarnation}): what only it has comes by itself when it runs",
            hint="start it; or, if it is lost, remove it first: tallyring ring remove"
            f" {body.agent}",
        )


def _row(index: int, cell: Cell) -> Row:
    """A cell as a row, checked as one that a peer sends; its stamp plays no part.

    Raises:
        Malformed: it is none.
    """
    space, *rest = cell
    if len(space) > SPACE_BYTES_MAX:
        raise Malformed(f"rows[{index}]: space of {len(space)} bytes, at most {SPACE_BYTES_MAX}")
    try:
        return read_row((0, *rest, 0, 1), (space,), (1,))
    except ExchangeRefused as error:
        raise Malformed(f"rows[{index}]: {error.detail}") from None
