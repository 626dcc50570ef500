"""Snapshots for new regions: the seed's side, and the calls that both sides make.

    snapshot = [want, id]             reply = [sender, cells, lsn, vv, id, bytes]
    part     = [id, offset, length]   reply = [bytes in all, bytes of the part]

`want` 0 only asks what is here; 1 asks for a copy of everything, and is asked again until the reply
has an id: the SHA-256 of a backup (agent/store/archive.py) that was made for it. `vv` is given for
`want` 0. The parts may be asked for from any byte on; 0 bytes in all: that copy is gone.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from agent.errors import StoreError, Unavailable
from agent.exchange import Sender, VersionVector
from agent.gossip.frame import (
    Call,
    Frame,
    array,
    integer,
    octets,
    pack,
    pack_sender,
    read_sender,
    refuse,
    unpack,
)
from agent.gossip.link import Joiner
from agent.gossip.peers import Peers
from agent.store.archive import verify
from agent.store.backup import write_backup

log = structlog.get_logger("tallyring.gossip")

FOLDER = "snapshots"
ID_BYTES = 32
PART_BYTES_MAX = 2**20
LOOK, WANT = 0, 1
# A copy is offered for so long, and kept for so long after it was last read.
KEPT_S = 600.0
# Why a copy could not be made is told for so long before it is tried again.
TROUBLE_S = 30.0
# Beside the copy there is for a moment an uncompressed one.
ROOM_FACTOR = 2


@dataclass(frozen=True, slots=True)
class Offer:
    """What a seed has: as much as it says of itself, and a copy of it if one is made.

    id: of the copy; empty while there is none.
    size: of the copy, in bytes.
    """

    sender: Sender
    cells: int
    lsn: int
    vv: VersionVector
    id: bytes
    size: int


def unpack_offer(parts: Frame) -> Offer:
    """The reply to a snapshot call.

    Raises:
        ExchangeRefused: malformed, truncated or too_large; the field is named.
    """
    sender, cells, lsn, vv, id_, size = array(unpack(parts), "offer", 6)
    pairs = [integer(part, "offer.vv", 1) for part in array(vv, "offer.vv")]
    if len(pairs) % 2:
        refuse("malformed", "offer.vv: is not made of pairs")
    return Offer(
        read_sender(sender),
        integer(cells, "offer.cells", 0),
        integer(lsn, "offer.lsn", 0),
        dict(zip(pairs[::2], pairs[1::2], strict=True)),
        octets(id_, "offer.id", ID_BYTES),
        integer(size, "offer.bytes", 0),
    )


def unpack_part(parts: Frame) -> tuple[int, bytes]:
    """(bytes in all, the part's bytes) of the reply to a part call.

    Raises:
        ExchangeRefused: malformed, truncated or too_large; the field is named.
    """
    size, data = array(unpack(parts), "part", 2)
    return integer(size, "part.bytes", 0), octets(data, "part.data", PART_BYTES_MAX)


@dataclass(slots=True)
class _Copy:
    """A copy that joiners read. Times are the event loop's.

    began: by joiner, when and from which byte on it began to read.
    """

    id: bytes
    path: Path
    size: int
    made_s: float
    read_s: float
    began: dict[str, tuple[float, int]] = field(default_factory=dict)


class Shelf:
    """Makes a copy of this agent's state when a joiner wants one, and keeps it for a while.

    One copy at a time, made on a thread, in the data folder; what is left of a former process is
    removed at the start.

    Args:
        peers: this agent.
        database: its file.
        now_ms: the agent's clock.
        room: how much must stay free on the disk, in bytes.
    """

    def __init__(self, peers: Peers, database: Path, now_ms: Callable[[], int], room: int) -> None:
        self._peers = peers
        self._database = database
        self._folder = database.parent / FOLDER
        self._now_ms = now_ms
        self._room = room
        self._copy: _Copy | None = None
        self._wanted = asyncio.Event()
        self._trouble = ""
        self._trouble_until = 0.0
        self._stopping = False
        self._made = 0

    async def run(self) -> None:
        """Make and remove copies until cancelled."""
        await asyncio.to_thread(shutil.rmtree, self._folder, True)
        try:
            while True:
                try:
                    async with asyncio.timeout(KEPT_S / 10):
                        await self._wanted.wait()
                except TimeoutError:
                    await self._expire()
                    continue
                await self._make()
                self._wanted.clear()
        finally:
            await asyncio.to_thread(shutil.rmtree, self._folder, True)

    async def offer(self, call: Call) -> bytes:
        """Answer a snapshot call.

        Raises:
            ExchangeRefused: malformed.
            Unavailable: (`busy`) no copy can be made.
        """
        want, has = array(tuple(call.body), "snapshot", 2)
        integer(want, "snapshot.want", LOOK)
        has = octets(has, "snapshot.id", ID_BYTES)
        state = self._peers.state
        id_, size = b"", 0
        if want:
            copy = self._current(has)
            if copy is None:
                self._want()
            else:
                id_, size = copy.id, copy.size
        vv = [] if want else [part for pair in sorted(state.vv.items()) for part in pair]
        sender = pack_sender(self._peers.me())
        return pack([sender, self._peers.queue.cells, state.lsn, vv, id_, size])

    async def part(self, call: Call) -> bytes:
        """Answer a part call.

        Raises:
            ExchangeRefused: malformed.
        """
        id_, offset, length = array(tuple(call.body), "part", 3)
        octets(id_, "part.id", ID_BYTES)
        integer(offset, "part.offset", 0)
        integer(length, "part.length", 1)
        copy = self._copy
        if copy is None or copy.id != id_:
            return pack([0, b""])
        copy.read_s = asyncio.get_running_loop().time()
        self._note(call.sender.agent, copy, offset)
        data = await asyncio.to_thread(_read_at, copy.path, offset, min(length, PART_BYTES_MAX))
        return pack([copy.size if data is not None else 0, data or b""])

    def _note(self, name: str, copy: _Copy, offset: int) -> None:
        """Note how far a joiner is."""
        now = copy.read_s
        began_s, began_at = copy.began.setdefault(name, (now, offset))
        share = self._peers.queue.cells / copy.size
        left = round(max(0, copy.size - offset) * share)
        rate = max(0, offset - began_at) * share / (now - began_s) if now > began_s else 0.0
        self._peers.joining[name] = Joiner(name, left, rate, now)

    def _current(self, has: bytes) -> _Copy | None:
        """The copy to offer to a joiner that has begun to read `has`."""
        copy = self._copy
        now = asyncio.get_running_loop().time()
        if copy is None or (copy.id != has and now - copy.made_s > KEPT_S):
            return None
        copy.read_s = now
        return copy

    def _want(self) -> None:
        if asyncio.get_running_loop().time() < self._trouble_until:
            raise Unavailable("busy", f"no snapshot can be made: {self._trouble}")
        self._wanted.set()

    async def _make(self) -> None:
        loop = asyncio.get_running_loop()
        making = loop.run_in_executor(None, self._write)
        try:
            path, id_, size = await asyncio.shield(making)
        except asyncio.CancelledError:
            self._stopping = True  # the thread gives up at its next step
            await asyncio.wait([making])
            raise
        except (StoreError, OSError) as error:
            self._trouble, self._trouble_until = str(error), loop.time() + TROUBLE_S
            log.warning("no snapshot can be made", why=str(error))
            return
        former, self._copy = self._copy, _Copy(id_, path, size, loop.time(), loop.time())
        if former is not None:
            await asyncio.to_thread(former.path.unlink, missing_ok=True)
        log.info("a snapshot was made", bytes=size, cells=self._peers.queue.cells)

    def _write(self) -> tuple[Path, bytes, int]:
        """Make the copy; on a thread, one at a time. The one before stands until it is made."""
        self._folder.mkdir(exist_ok=True)
        self._made += 1
        path = self._folder / f"snapshot-{self._made}"
        needed = ROOM_FACTOR * self._database.stat().st_size + self._room
        if shutil.disk_usage(self._folder).free < needed:
            raise StoreError(f"{needed} bytes free on the disk are needed")
        write_backup(self._database, path, self._now_ms(), progress=self._told)
        _, id_ = verify(path, self._told)
        return path, id_, path.stat().st_size

    def _told(self, _stage: str, _done: int, _total: int) -> None:
        if self._stopping:
            raise StoreError("the agent is stopping")

    async def _expire(self) -> None:
        copy = self._copy
        if copy is not None and asyncio.get_running_loop().time() - copy.read_s > KEPT_S:
            self._copy = None
            await asyncio.to_thread(shutil.rmtree, self._folder, True)


def _read_at(path: Path, offset: int, length: int) -> bytes | None:
    """Bytes of a file from anywhere; None where it is gone, or there is no such place in a file."""
    try:
        handle = os.open(path, os.O_RDONLY)
        try:
            return os.pread(handle, length, offset)
        finally:
            os.close(handle)
    except OSError:
        return None
