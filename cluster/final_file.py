"""A file with an exported final: how far it is written, and whether it is what it says.

Nothing is asked of a ring: the rows' digests make the hash, the header holds the hash, and the
signature holds the header (agent/boards/final_lines.py). What is left to the reader is whether the
key is the ring's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from agent.api.signing import is_signed
from agent.boards.final_lines import EndLine, HeaderLine, read_end, read_header, read_row
from agent.boards.final_rows import FinalHash
from agent.crdt.space import decode_space

LINE_BYTES_MAX = 64 * 2**10  # the longest line is far shorter; a file of another kind may have any


class FinalFileError(ValueError):
    """A file is no export, or not the one that was signed. Says which line, and why."""


@dataclass(frozen=True, slots=True)
class Verified:
    """An export that is what its key has signed: its first line and its last."""

    header: HeaderLine
    end: EndLine


@dataclass(frozen=True, slots=True)
class Begun:
    """An export that is written in part.

    rows: how many whole lines of rows there are. size: how many bytes up to there; what follows was
        cut in the middle. complete: whether the last line is there, too.
    """

    header: HeaderLine
    rows: int
    size: int
    complete: bool


def verify(path: Path) -> Verified:
    """Check a whole export.

    Raises:
        FinalFileError: it is not whole, or something in it was changed.
        OSError: it can't be read.
    """
    with path.open("rb") as file:
        first = file.readline(LINE_BYTES_MAX).removesuffix(b"\n")
        header = _header(first)
        space = bytes.fromhex(header.space)
        hash_ = FinalHash(space)
        for number in range(header.members):
            line = file.readline(LINE_BYTES_MAX)
            if not line.endswith(b"\n"):
                raise FinalFileError(f"it ends early, in line {number + 2} of {header.members + 2}")
            try:
                hash_.add(read_row(line, number))
            except ValueError as error:
                raise FinalFileError(
                    f"line {number + 2} is not as it was signed: {error}"
                ) from None
        if hash_.digest().hex() != header.hash:
            raise FinalFileError("the rows do not have the hash that the first line names")
        last = file.readline(LINE_BYTES_MAX)
        if not last:
            raise FinalFileError("it ends early: the signature is not there")
        try:
            end = read_end(last)
        except ValueError as error:
            raise FinalFileError(f"line {header.members + 2} is no signature: {error}") from None
        if file.read(1):
            raise FinalFileError("something follows after the signature")
    if end.rows != header.members or not is_signed(first, end):
        raise FinalFileError("the signature is not one of the first line")
    return Verified(header, end)


def _header(line: bytes) -> HeaderLine:
    try:
        header = read_header(line)
        decoded = decode_space(bytes.fromhex(header.space))
    except ValueError as error:
        raise FinalFileError(f"line 1 is no header of an export: {error}") from None
    named = (header.board, header.generation, header.window)
    if decoded is None or (decoded.board, decoded.generation, decoded.window) != named:
        raise FinalFileError("line 1 names another window than its space does")
    return header


def begun(path: Path, wanted: Mapping[str, object] = MappingProxyType({})) -> Begun | None:
    """How far an export is written; None where there is not even its first line.

    Args:
        wanted: what its header has to say, by field; None: anything.

    Raises:
        FinalFileError: what is there is no export, or one of another final.
        OSError: it can't be read.
    """
    if not path.exists():
        return None
    with path.open("rb") as file:
        first = file.readline(LINE_BYTES_MAX)
        if not first.endswith(b"\n"):
            if first and not b'{"format":"tallyring final'.startswith(first[:26]):
                raise FinalFileError("it is no export of a final")
            return None
        header = _header(first.removesuffix(b"\n"))
        for field, value in wanted.items():
            said = getattr(header, field)
            if value not in (None, said):
                raise FinalFileError(f"it is an export of {field} {said}")
        size, rows = len(first), 0
        while rows < header.members:
            line = file.readline(LINE_BYTES_MAX)
            if not line.endswith(b"\n"):
                return Begun(header, rows, size, complete=False)
            size, rows = size + len(line), rows + 1
        end = file.readline(LINE_BYTES_MAX)
        return Begun(header, rows, size, complete=end.endswith(b"\n"))
