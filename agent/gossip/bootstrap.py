"""A new agent's beginning: where its ring is large, it fetches a snapshot instead of every row.

Below `gossip.snapshot_cells_min` cells the ordinary exchange is as fast. Above, a seed makes a
backup of itself, which is fetched in parts, checked and made this agent's file; what was written
since comes by ordinary exchange. What was fetched stays where it is when a process ends, and the
next one goes on from that byte. Whatever fails, the ordinary exchange does it.
"""

from __future__ import annotations

import asyncio
import json
import secrets as random
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from pathlib import Path

import structlog

from agent.config import Config
from agent.errors import ExchangeRefused, StoreError
from agent.exchange import Boot, Sender
from agent.gossip.client import Client
from agent.gossip.frame import Call, Frame, Kind, pack_call
from agent.gossip.link import Link
from agent.gossip.secrets import Secrets
from agent.gossip.snapshots import (
    LOOK,
    PART_BYTES_MAX,
    WANT,
    Offer,
    unpack_offer,
    unpack_part,
)
from agent.store.backup import adopt
from agent.store.identity import Identity

log = structlog.get_logger("tallyring.gossip")

PART, NOTE = "bootstrap.part", "bootstrap.json"
PATIENCE_S = 20.0  # without one byte of progress, before a seed is given up
MAKING_S = 300.0  # for a seed to make its copy
ASK_AGAIN_S = 0.25
PART_BYTES_MIN = 16 * 1024  # on a link where larger ones do not arrive in time
TOLD_EVERY_S = 2.0


class Asking:
    """Snapshot calls of an agent that has not begun yet.

    Close it when done.

    Args:
        name: who asks.
        inc: an incarnation that nobody has written as.
    """

    def __init__(self, config: Config, ring_secrets: Secrets, name: str, inc: int) -> None:
        self._secrets = ring_secrets
        self._ring = config.ring.name
        self._me = Sender(name, inc, _random_id(), Boot(1, _random_id()))
        self._numbers = count(1)
        self._client = Client(config.gossip)
        self._look_s = config.ring.confirm_s

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

    async def look(self, link: Link) -> Offer:
        """What a member has.

        Raises:
            ExchangeRefused: it can't be asked, or refuses; `removed` where this agent was.
        """
        try:
            async with asyncio.timeout(self._look_s):
                return await self.offer(link, LOOK, b"")
        except TimeoutError:
            raise ExchangeRefused("unreachable", f"no answer within {self._look_s:g} s") from None

    async def offer(self, link: Link, want: int, id_: bytes) -> Offer:
        """One snapshot call.

        Raises:
            ExchangeRefused: see `Client.call`.
        """
        return unpack_offer(await self._call(link, Kind.SNAPSHOT, [want, id_]))

    async def part(self, link: Link, id_: bytes, offset: int, length: int) -> tuple[int, bytes]:
        """One part call.

        Raises:
            ExchangeRefused: see `Client.call`.
        """
        return unpack_part(await self._call(link, Kind.PART, [id_, offset, length]))

    async def _call(self, link: Link, kind: Kind, body: list[object]) -> Frame:
        call = Call(kind, self._ring, next(self._numbers), self._me, body)
        payload = pack_call(call)
        try:
            return await self._client.call(link, self._secrets.current(), payload)
        except ExchangeRefused as error:
            if error.reason != "challenge":
                raise
        return await self._client.call(link, self._secrets.current(), payload)


async def bootstrap(
    config: Config,
    ring_secrets: Secrets,
    database: Path,
    identity_above: Callable[[int], Identity],
) -> bool:
    """Begin with a snapshot of a seed, where there is no database yet and the ring is large.

    Returns whether there is a database now. If not, the log says why, and the ordinary exchange
    brings everything.
    """
    urls = [url for seed in config.ring.seeds if (url := seed.rstrip("/")) != config.advertise]
    fetching = _Fetching(database.parent)
    if not urls or await asyncio.to_thread(database.exists):
        fetching.forget()
        return False
    asking = Asking(config, ring_secrets, config.name, identity_above(0).inc)
    try:
        for link in await _large_seeds(config, asking, urls, fetching):
            if await _fetched(config, asking, link, fetching):
                began = await _adopted(fetching.part, database, identity_above)
                fetching.forget()
                return began
        fetching.forget()
        return False
    finally:
        await asking.close()


class _Fetching:
    """The part of a snapshot that is here, and the note of whose it is."""

    def __init__(self, folder: Path) -> None:
        self.part, self._note = folder / PART, folder / NOTE
        self.id, self.url = b"", ""
        with suppress(OSError, ValueError, KeyError, TypeError):
            said = json.loads(self._note.read_bytes())
            self.id, self.url = bytes.fromhex(said["id"]), str(said["url"])

    @property
    def done(self) -> int:
        """How many bytes are here."""
        return self.part.stat().st_size if self.id and self.part.exists() else 0

    def begin(self, id_: bytes, url: str) -> None:
        """Go on with this snapshot, or begin with it."""
        if id_ != self.id:
            self.part.write_bytes(b"")
        self.id, self.url = id_, url
        self._note.write_text(json.dumps({"id": id_.hex(), "url": url}))

    def append(self, data: bytes) -> None:
        """Add the next bytes."""
        with self.part.open("ab") as file:
            file.write(data)

    def forget(self) -> None:
        """Remove what is here."""
        self.id = b""
        for path in (self.part, self._note):
            path.unlink(missing_ok=True)


async def _large_seeds(
    config: Config, asking: Asking, urls: list[str], fetching: _Fetching
) -> list[Link]:
    """The seeds that have enough cells for a snapshot; first the one that was begun with."""
    found: list[tuple[bool, int, Link]] = []
    for url in urls:
        link = Link(url)
        try:
            offer = await asking.look(link)
        except ExchangeRefused as error:
            log.info("a seed has no snapshot", seed=url, why=str(error))
            continue
        link.name = offer.sender.agent
        if offer.cells >= config.gossip.snapshot_cells_min:
            found.append((url == fetching.url, offer.cells, link))
    return [link for *_, link in sorted(found, key=lambda each: each[:2], reverse=True)]


async def _fetched(config: Config, asking: Asking, link: Link, fetching: _Fetching) -> bool:
    """Fetch a seed's snapshot, from the byte on that is missing; whether all of it is here."""
    loop = asyncio.get_running_loop()
    began_s, began_at = loop.time(), fetching.done
    last_s = told_s = began_s
    largest = length = max(1, min(config.gossip.chunk_bytes_max, PART_BYTES_MAX))
    size = 0
    while True:
        try:
            if not size:
                offer = await _made(asking, link, fetching.id)
                await asyncio.to_thread(fetching.begin, offer.id, link.url)
                size, began_at = offer.size, fetching.done
                last_s = loop.time()
            if fetching.done >= size:
                break
            size, data = await asking.part(link, fetching.id, fetching.done, length)
            await asyncio.to_thread(fetching.append, data)
            last_s, length = loop.time(), min(2 * length, largest)
        except (ExchangeRefused, OSError) as error:
            if loop.time() - last_s > PATIENCE_S or _for_good(error):
                log.warning("no snapshot from this seed", seed=link.url, why=str(error))
                return False
            length = max(length // 2, min(PART_BYTES_MIN, largest))
            await asyncio.sleep(ASK_AGAIN_S)
        if loop.time() - told_s > TOLD_EVERY_S:
            told_s = loop.time()
            rate = (fetching.done - began_at) / (told_s - began_s)
            left = size - fetching.done
            log.info("fetching a snapshot", seed=link.name, bytes_left=left, bytes_per_s=int(rate))
    log.info(
        "a snapshot was fetched",
        seed=link.name,
        bytes=size,
        went_on_from=began_at,
        seconds=round(loop.time() - began_s, 2),
    )
    return True


def _for_good(error: Exception) -> bool:
    """Whether there is no use in asking this seed again."""
    return not isinstance(error, ExchangeRefused) or error.reason != "unreachable"


async def _made(asking: Asking, link: Link, has: bytes) -> Offer:
    """The seed's offer, once its copy is made."""
    ends = asyncio.get_running_loop().time() + MAKING_S
    while not (offer := await asking.offer(link, WANT, has)).id:
        if asyncio.get_running_loop().time() > ends:
            raise ExchangeRefused("busy", f"no snapshot was made within {MAKING_S:.0f} s")
        await asyncio.sleep(ASK_AGAIN_S)
    return offer


async def _adopted(path: Path, database: Path, identity_above: Callable[[int], Identity]) -> bool:
    """Make the snapshot this agent's file; whether it could be."""
    try:
        done = await asyncio.to_thread(adopt, path, database, identity_above)
    except StoreError as error:
        log.warning("the snapshot can't be used", why=str(error))
        return False
    log.info("began with a snapshot", of=done.backup.agent, cells=done.backup.cells)
    return True


def _random_id() -> int:
    return random.randbits(62) + 1
