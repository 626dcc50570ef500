"""The export of a final: JSON lines that anybody can check without this program. Pure.

    header     which final it is, with its certificate: the same bytes whoever exports it
    rows       one a line, in order, each with what its digest is made of
    end        the signature over the header's bytes

The header holds the hash, the hash holds every row (final_rows.py), and the signature holds the
header: so a line that is changed, left out, added or moved is noticed. Nothing in the lines depends
on when or where they were written, but the names of members that were erased since.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from agent.boards.final_rows import FinalRow

FORMAT: Literal["tallyring final 1"] = "tallyring final 1"
SIGNED_PREFIX = b"tallyring final export 1\n"
"""What stands before the header's bytes in what is signed: the key signs nothing else like it."""


class CertificateLine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How it was certified: `unanimous`, or after an operator's `override`, without whom and why.

    agents: which ones agreed; how many where their names are too long to be kept.
    """

    mode: Literal["unanimous", "override"]
    agents: list[str] | int
    without: list[str]
    reason: str
    by: str


class HeaderLine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The first line. `space` and `hash` are in hexadecimal; `members` counts the rows."""

    format: Literal["tallyring final 1"]
    ring: str
    board: str
    generation: int
    window: str
    space: str
    version: int
    hash: str
    members: int
    certificate: CertificateLine


class RowLine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One row. `row` counts from 0; `salt`, `member_digest` and `digest` are in hexadecimal.

    `member` is null once it was erased: then `member_digest` stands in the place of the salt.
    """

    row: int
    rank: int
    member: str | None
    score: int
    reached_ms: int | None
    digest: str
    salt: str | UnsetType = UNSET
    member_digest: str | UnsetType = UNSET


class EndLine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The last line: how many rows there are, and the signature, in hexadecimal.

    key: names the public key.
    """

    rows: int
    key: str
    public_key: str
    signature: str


_encode = msgspec.json.Encoder().encode
_header = msgspec.json.Decoder(HeaderLine)
_row = msgspec.json.Decoder(RowLine)
_end = msgspec.json.Decoder(EndLine)


def line_of(said: HeaderLine | RowLine | EndLine) -> bytes:
    """The bytes of a line, without its end."""
    return _encode(said)


def lines_of_rows(rows: Iterable[FinalRow], first: int) -> bytes:
    """The lines of rows; `first` is the number of the first one."""
    return b"".join(
        line_of(_line_of_row(row, number)) + b"\n" for number, row in enumerate(rows, first)
    )


def name_of_row(row: FinalRow) -> str | None:
    """The name in a row; None once it was erased, and where it is not UTF-8."""
    try:
        return None if row.member is None else row.member.decode()
    except UnicodeDecodeError:
        return None


def _line_of_row(row: FinalRow, number: int) -> RowLine:
    name = name_of_row(row)
    return RowLine(
        row=number,
        rank=row.rank,
        member=name,
        score=row.score,
        reached_ms=row.reached_ms,
        digest=row.digest.hex(),
        salt=UNSET if name is None else row.proof.hex(),
        member_digest=row.member_digest.hex() if name is None else UNSET,
    )


def read_header(line: bytes) -> HeaderLine:
    """The header behind its line.

    Raises:
        ValueError: it is none.
    """
    said = _header.decode(line)
    _check_bytes(line, said)
    return said


def read_end(line: bytes) -> EndLine:
    """The end behind its line.

    Raises:
        ValueError: it is none.
    """
    said = _end.decode(line)
    _check_bytes(line, said)
    return said


def _check_bytes(line: bytes, said: HeaderLine | RowLine | EndLine) -> None:
    """Check that a line is written as an export writes it.

    Readers of JSON differ in what they make of a key that stands twice.

    Raises:
        ValueError: it is not.
    """
    if line_of(said) != line.rstrip(b"\n"):
        raise ValueError("it is not written as an export writes it")


def read_row(line: bytes, number: int) -> FinalRow:
    """The row behind its line, which is to have this number.

    Raises:
        ValueError: it is none, it is another one, or its digest is not that of what it says.
    """
    said = _row.decode(line)
    _check_bytes(line, said)
    if said.row != number:
        raise ValueError(f"it is row {said.row} where row {number} is next")
    proof = said.salt if said.member is not None else said.member_digest
    if proof is UNSET:
        raise ValueError("it has neither a member with a salt nor a member_digest")
    name = None if said.member is None else said.member.encode()
    row = FinalRow(said.rank, said.score, said.reached_ms, name, bytes.fromhex(proof))
    if row.digest.hex() != said.digest:
        raise ValueError("its digest is not that of what it says")
    return row
