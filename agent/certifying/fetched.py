"""Fetched rows: chunks of a final from others, checked against its certificate. Without I/O."""

from __future__ import annotations

from collections.abc import Callable

from agent.boards.final_rows import CHUNK_ROWS, FinalHash, unpack_chunk, without_names
from agent.boards.finals import Certificate, Shelve


class Fetched:
    """The rows of one certificate, as they come: `take` each chunk from number 0 to `last`.

    Args:
        erased: whether a name was erased: it is not kept.
        chunk_rows: how many rows a chunk has.
    """

    def __init__(
        self,
        space: bytes,
        told: Certificate,
        erased: Callable[[bytes], bool],
        chunk_rows: int = CHUNK_ROWS,
    ) -> None:
        self._space = space
        self._told = told
        self._erased = erased
        self._checking = FinalHash(space)
        self.last = max(0, -(-told.members // chunk_rows) - 1)

    def take(self, number: int, chunk: bytes) -> Shelve:
        """What keeps the next chunk; with the last one the final is complete.

        Raises:
            ValueError: it can't be read, or the rows are not those of the certificate.
        """
        told = self._told
        rows = unpack_chunk(chunk)
        kept = without_names(chunk, self._erased) or chunk
        for row in rows:
            self._checking.add(row)
        if number < self.last:
            return Shelve(self._space, told.hash, ((number, kept),), late=True)
        if (self._checking.digest(), self._checking.members) != (told.hash, told.members):
            raise ValueError("the rows do not fit the certificate")
        return Shelve(self._space, told.hash, ((number, kept),), told.members, late=True)
