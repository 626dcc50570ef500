"""The identity token: a small file beside the database that no backup holds.

It says which log, in which boot, was written here last, and in which file. A database that was put
back from a copy, or a data folder that was copied, does not agree with it.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

FILE = "identity.token"


@dataclass(frozen=True, slots=True)
class Token:
    """What must agree with the database for its identity to go on.

    log, boot: the log's id and the number of the process that wrote last.
    file: the inode of the database file: a copy has another. (Not the device: its number may change
        when a machine starts again.)
    """

    log: int
    boot: int
    file: str


def file_id(database: Path) -> str:
    """What tells a file from its copies."""
    return f"{database.stat().st_ino:x}"


def read_token(folder: Path) -> Token | None:
    """The token of a data folder; None where there is none that can be read."""
    try:
        said = json.loads((folder / FILE).read_bytes())
        return Token(int(said["log"]), int(said["boot"]), str(said["file"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write_token(folder: Path, token: Token) -> None:
    """Replace the token, durably, all of it or nothing.

    Raises:
        OSError: it could not be written; the old one stands.
    """
    path, draft = folder / FILE, folder / f"{FILE}.new"
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        os.write(handle, json.dumps(asdict(token)).encode())
        os.fsync(handle)
    finally:
        os.close(handle)
    draft.replace(path)
    directory = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
