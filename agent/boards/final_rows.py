"""The rows of finals: their order, their hash, and how they are kept. Pure.

A final is a list of rows, best first, in chunks of CHUNK_ROWS. Its hash goes over every row's rank,
score, time and the salted digest of its member, so that an erased member's name and salt can be
dropped from a row without changing the hash, and whoever has the rows can check it:

    member's digest   sha256(salt + name)
    row's digest      sha256(msgpack [rank, score, reached_ms or nil, member's digest])
    hash              sha256("tallyring final 1" + space + all rows' digests)

A salt follows from the name and a key that only the ring has, so that all agents make the same rows
and nobody else can guess names from digests.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from hashlib import blake2b, sha256
from typing import Any, NamedTuple

import msgpack
import zstandard

from agent.boards.scale import Scale
from agent.boards.standing import Standing
from agent.crdt.total import NEVER_MS

CHUNK_ROWS = 1_000
CHUNK_BYTES_MAX = 2**20  # unpacked: names of 256 bytes and all numbers are less than half of it
SALT_BYTES = 16
SUM_MODULUS = 2**256  # of the sum over the digests of live standings
_HEADER = b"tallyring final 1"
_NUMBERS = struct.Struct(">qq")


class FinalRow(NamedTuple):
    """One member of a final.

    reached_ms: when its score was reached; None on boards that keep no time.
    member: its name; None once it was erased.
    proof: the salt of its name; the member's digest itself once it was erased.
    """

    rank: int
    score: int
    reached_ms: int | None
    member: bytes | None
    proof: bytes

    @property
    def member_digest(self) -> bytes:
        """What of the member goes into the row's digest."""
        return self.proof if self.member is None else sha256(self.proof + self.member).digest()

    @property
    def digest(self) -> bytes:
        """The digest of the row."""
        said = [self.rank, self.score, self.reached_ms, self.member_digest]
        return sha256(msgpack.packb(said)).digest()

    def erased(self) -> FinalRow:
        """The row without its name."""
        return self._replace(member=None, proof=self.member_digest)


def standing_digest(member: bytes, standing: Standing | None) -> int:
    """What one member adds to the sum over the live standings of a window, modulo SUM_MODULUS."""
    if standing is None:
        return 0
    said = _NUMBERS.pack(standing.score, standing.reached_ms) + member
    return int.from_bytes(blake2b(said, digest_size=32).digest())


def tie_of(scale: Scale, standing: Standing) -> int:
    """What orders equal scores, before the name does; 0 where only the name does."""
    if not scale.b:
        return 0
    return scale.composite(0, standing.reached_ms)


def salt_of(space: bytes, member: bytes, key: bytes) -> bytes:
    """The salt of a member in a window's final."""
    return blake2b(space + b"\0" + member, digest_size=SALT_BYTES, key=key).digest()


def ranked_rows(
    ordered: Iterable[tuple[int, int, bytes]], space: bytes, key: bytes, *, shared: bool
) -> Iterator[FinalRow]:
    """The rows of a final.

    Args:
        ordered: (score, time reached, member), best first.
        shared: whether equal scores share the best of their ranks.
    """
    rank, before = 0, None
    for place, (score, reached_ms, member) in enumerate(ordered, 1):
        if not shared or score != before:
            rank = place
        before = score
        reached = None if reached_ms == NEVER_MS else reached_ms
        yield FinalRow(rank, score, reached, member, salt_of(space, member, key))


class FinalHash:
    """The hash of a final, row by row."""

    def __init__(self, space: bytes) -> None:
        self._hash = sha256(_HEADER + space)
        self.members = 0

    def add(self, row: FinalRow) -> None:
        """Add the next row."""
        self._hash.update(row.digest)
        self.members += 1

    def digest(self) -> bytes:
        """The hash of all rows so far: 32 bytes."""
        return self._hash.digest()


def pack_chunk(rows: Iterable[FinalRow]) -> bytes:
    """The bytes under which rows are kept and sent."""
    return zstandard.ZstdCompressor(level=3).compress(msgpack.packb(list(rows)))


def unpack_chunk(data: bytes) -> list[FinalRow]:
    """The rows in a chunk.

    Raises:
        ValueError: it is no chunk of rows.
    """
    try:
        packed = zstandard.ZstdDecompressor().decompress(data, max_output_size=CHUNK_BYTES_MAX)
        found = msgpack.unpackb(packed)
    except (zstandard.ZstdError, msgpack.UnpackException, ValueError) as error:
        raise ValueError(f"a chunk of a final can't be read: {error}") from error
    if not isinstance(found, list) or len(found) > CHUNK_ROWS:
        raise ValueError("a chunk of a final holds no rows, or too many")
    return [_row(each) for each in found]


def _row(said: Any) -> FinalRow:
    match said:
        case [int(rank), int(score), int() | None as reached, bytes() | None as name, bytes(proof)]:
            return FinalRow(rank, score, reached, name, proof)
    raise ValueError("a row of a final can't be read")


def without_names(data: bytes, erased: Callable[[bytes], bool]) -> bytes | None:
    """A chunk without the names that were erased; None where it holds none of them.

    Raises:
        ValueError: it is no chunk of rows.
    """
    rows = unpack_chunk(data)
    kept = [row.erased() if row.member is not None and erased(row.member) else row for row in rows]
    return None if kept == rows else pack_chunk(kept)
