"""Exporting a final: JSON lines that are signed, checked by anybody, and resumed at any row.

The rows are those of one copy, found by its hash, whatever becomes of the window meanwhile. They
are read a chunk at a time, on a reader's thread, and the next one only when the client has taken
this one: a slow client costs no memory, and one that stands still is let go.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import structlog
from aiohttp import web

from agent.api.final_answers import KeyAnswer, KeysAnswer
from agent.api.final_choosing import Chosen, certificate_answer
from agent.api.route import Call
from agent.api.signing import Signer, name_of_key, signer_of
from agent.boards.final_lines import (
    FORMAT,
    CertificateLine,
    HeaderLine,
    line_of,
    lines_of_rows,
)
from agent.boards.final_rows import CHUNK_ROWS, unpack_chunk
from agent.boards.finals import Certificate
from agent.errors import Malformed, StoreError, Unavailable
from agent.store.finals import chunk_of
from agent.store.snapshot import SqliteSnapshot

JSON_LINES = "application/x-ndjson"
EXPORTS_MAX = 8  # at once: more would only take the readers' threads from each other
TAKE_S = 60.0  # within which a client takes a chunk

log = structlog.get_logger("tallyring.api")


def is_export(call: Call) -> bool:
    """Whether JSON lines are asked for, by `format` or by Accept.

    Raises:
        Malformed: `format` is not known.
    """
    asked = call.query["format"]
    if asked not in (None, "json", "jsonl"):
        raise Malformed(f"format: {asked[:40]!r} is neither json nor jsonl")
    return asked == "jsonl" or (
        asked is None and JSON_LINES in call.request.headers.get("Accept", "")
    )


async def export(
    call: Call, chosen: Chosen, told: Certificate, headers: Mapping[str, str]
) -> web.StreamResponse:
    """Send a final from row `offset` on: the header before row 0, the signature after the last.

    Raises:
        Malformed: there is no such row, nor does it follow the last one.
        Unavailable: (`busy`) too many are being sent.
    """
    offset, counts = call.query["offset"], call.services.counts
    if offset > told.members:
        raise Malformed(f"offset: {offset} is beyond the {told.members} rows of this final")
    if counts.exporting >= EXPORTS_MAX:
        raise Unavailable("busy", f"{EXPORTS_MAX} exports are being sent: try again in a second")
    counts.exporting += 1
    try:
        return await _send(call, chosen, told, headers)
    finally:
        counts.exporting -= 1


async def _send(
    call: Call, chosen: Chosen, told: Certificate, headers: Mapping[str, str]
) -> web.StreamResponse:
    services, offset = call.services, call.query["offset"]
    response = web.StreamResponse(headers={**headers, "Content-Type": JSON_LINES})
    await response.prepare(call.request)
    if call.request.method == "HEAD":
        return response
    ring = services.config.ring.name
    header = line_of(_header(ring, chosen, told))
    signer = signer_of(services.peers.secrets.current()[0], ring)
    try:
        if offset == 0:
            await _write(response, header + b"\n")
        for number in range(offset // CHUNK_ROWS, -(-told.members // CHUNK_ROWS)):
            erased = services.queue.state.erased.closed
            lines = await services.readers.read(
                _reader(chosen.space, told.hash, number, offset, erased)
            )
            await _write(response, lines)
        await _write(response, _end(signer, header, told))
        await response.write_eof()
    except (StoreError, ValueError, TimeoutError, ConnectionError) as error:
        # The head is sent already: only a connection that ends early tells that this is not all.
        log.warning("an export ended early", window=chosen.window, why=str(error) or "too slow")
        if call.request.transport is not None:
            call.request.transport.abort()
    return response


async def _write(response: web.StreamResponse, data: bytes) -> None:
    async with asyncio.timeout(TAKE_S):
        await response.write(data)


def _reader(
    space: bytes, hash_: bytes, number: int, offset: int, erased: Callable[[bytes], bool]
) -> Callable[[SqliteSnapshot], bytes]:
    """Reads the lines of one chunk of a copy, those before `offset` left out."""

    def read(snapshot: SqliteSnapshot) -> bytes:
        chunk = chunk_of(snapshot, space, hash_, number)
        if chunk is None:
            raise ValueError(f"chunk {number} of the final is not here any more")
        first = number * CHUNK_ROWS
        skipped = max(0, offset - first)
        rows = unpack_chunk(chunk)[skipped:]
        shown = (
            row.erased() if row.member is not None and erased(row.member) else row for row in rows
        )
        return lines_of_rows(shown, first + skipped)

    return read


def _header(ring: str, chosen: Chosen, told: Certificate) -> HeaderLine:
    said = certificate_answer(chosen.final, told)
    return HeaderLine(
        format=FORMAT,
        ring=ring,
        board=chosen.board.name,
        generation=chosen.generation,
        window=chosen.window,
        space=chosen.space.hex(),
        version=told.version,
        hash=said.hash,
        members=told.members,
        certificate=CertificateLine(said.mode, said.agents, said.without, said.reason, said.by),
    )


def _end(signer: Signer, header: bytes, told: Certificate) -> bytes:
    return line_of(signer.end(header, told.members)) + b"\n"


async def show_keys(call: Call) -> web.Response:
    """GET /v1/ring/keys."""
    services = call.services
    ring = services.config.ring.name
    keys = [signer_of(secret, ring).public_key for secret in services.peers.secrets.current()]
    return call.answer(
        KeysAnswer(
            ring,
            [KeyAnswer(name_of_key(key), key.hex(), not n) for n, key in enumerate(keys)],
        )
    )
