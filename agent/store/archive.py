"""The format of a backup: a SQLite file without its identity, compressed and checksummed.

    backup = "TALLYBAK" | version: 1 byte | SHA-256 of all that follows: 32 bytes
             | length of the header: 4 bytes | header: JSON | the SQLite file, compressed (zstd)

Everything is checked before anything is used.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import IO, TypeAlias

import zstandard

from agent.errors import StoreError

MAGIC = b"TALLYBAK"
SQLITE_MAGIC = b"SQLite format 3\0"
VERSION = 1
_PREAMBLE = struct.Struct(">8sB32s")
_LENGTH = struct.Struct(">I")
HEADER_BYTES_MAX = 64 * 1024
BLOCK_BYTES = 2**20
ZSTD_LEVEL = 3

Progress: TypeAlias = Callable[[str, int, int], None]
"""(what is being done, how much of it is done, of how much); may raise to give up."""


def in_silence(_stage: str, _done: int, _total: int) -> None:
    """A Progress that tells nobody."""


@dataclass(frozen=True, slots=True)
class Backup:
    """What a backup says of itself.

    ring, agent, region: where it was taken.
    inc, seq, log, lsn: as whom that agent wrote, and how far it was. Nothing goes on from these.
    cells: how many cells it holds.
    taken_ms: when, in ms since 1970, by that agent's clock.
    database_bytes: how large the SQLite file is.
    """

    ring: str
    agent: str
    region: str
    inc: int
    seq: int
    log: int
    lsn: int
    cells: int
    taken_ms: int
    database_bytes: int


def is_backup(path: Path) -> bool:
    """Whether a file begins as a backup does.

    Raises:
        StoreError: it can't be read.
    """
    return first_bytes(path, len(MAGIC)) == MAGIC


def first_bytes(path: Path, count: int) -> bytes:
    """How a file begins; less where it is shorter.

    Raises:
        StoreError: it can't be read.
    """
    with _opened(path) as file:
        return file.read(count)


def verify(path: Path, progress: Progress = in_silence) -> tuple[Backup, bytes]:
    """(what a backup says of itself, its SHA-256), after every byte of it was checked.

    Raises:
        StoreError: it is no backup, truncated, damaged, or of a newer version.
    """
    with _opened(path) as file:
        preamble = file.read(_PREAMBLE.size)
        if not preamble.startswith(MAGIC):
            if preamble.startswith(SQLITE_MAGIC):
                raise StoreError(
                    f"{path}: is not a backup, but a database; 'tallyring backup' makes one of it,"
                    " 'tallyring import --quarantine' takes over what it has"
                )
            raise StoreError(f"{path}: is neither a backup nor a tallyring.db")
        if len(preamble) < _PREAMBLE.size:
            raise StoreError(f"{path}: is truncated: {len(preamble)} bytes")
        _, version, digest = _PREAMBLE.unpack(preamble)
        if version > VERSION:
            raise StoreError(
                f"{path}: was written by a newer version (format {version}, this one reads"
                f" {VERSION}); upgrade this agent first"
            )
        if version != VERSION or _digest_of(file, path, progress) != digest:
            raise StoreError(
                f"{path}: is truncated or damaged: it does not fit its checksum; use another backup"
            )
        file.seek(_PREAMBLE.size)
        return _read_header(file, path), digest


def pack(backup: Backup, copy: Path, draft: Path, progress: Progress) -> None:
    """Write a backup of a SQLite file to `draft`, durably.

    Raises:
        OSError: it can't be written.
    """
    header = json.dumps(asdict(backup)).encode()
    digest = hashlib.sha256()
    compressor = zstandard.ZstdCompressor(level=ZSTD_LEVEL).compressobj(size=backup.database_bytes)
    done = 0
    with copy.open("rb") as source, draft.open("wb") as file:

        def write(part: bytes) -> None:
            digest.update(part)
            file.write(part)

        file.write(bytes(_PREAMBLE.size))
        write(_LENGTH.pack(len(header)) + header)
        while block := source.read(BLOCK_BYTES):
            write(compressor.compress(block))
            done += len(block)
            progress("compress", done, backup.database_bytes)
        write(compressor.flush())
        file.seek(0)
        file.write(_PREAMBLE.pack(MAGIC, VERSION, digest.digest()))
        file.flush()
        os.fsync(file.fileno())


def unpack(path: Path, backup: Backup, database: Path, progress: Progress) -> None:
    """Write the SQLite file that is in a verified backup."""
    done = 0
    with path.open("rb") as file, database.open("wb") as target:
        file.seek(_PREAMBLE.size)
        (length,) = _LENGTH.unpack(file.read(_LENGTH.size))
        file.seek(length, os.SEEK_CUR)
        try:
            for block in zstandard.ZstdDecompressor().read_to_iter(file, write_size=BLOCK_BYTES):
                target.write(block)
                done += len(block)
                progress("unpack", done, backup.database_bytes)
        except zstandard.ZstdError as error:
            raise StoreError(f"{path}: can't be decompressed: {error}") from error
    if done != backup.database_bytes:
        raise StoreError(f"{path}: holds {done} bytes of {backup.database_bytes}")


def _digest_of(file: IO[bytes], path: Path, progress: Progress) -> bytes:
    """The digest of the rest of a file."""
    digest, size, done = hashlib.sha256(), path.stat().st_size, file.tell()
    while block := file.read(BLOCK_BYTES):
        digest.update(block)
        done += len(block)
        progress("check", done, size)
    return digest.digest()


def _read_header(file: IO[bytes], path: Path) -> Backup:
    (length,) = _LENGTH.unpack(file.read(_LENGTH.size))
    try:
        said = json.loads(file.read(min(length, HEADER_BYTES_MAX)))
        return Backup(**{field.name: said[field.name] for field in fields(Backup)})
    except (ValueError, KeyError, TypeError) as error:
        raise StoreError(f"{path}: its header can't be read: {error}") from error


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    try:
        with path.open("rb") as file:
            yield file
    except OSError as error:
        raise StoreError(f"{path}: can't be read: {error.strerror or error}") from error
