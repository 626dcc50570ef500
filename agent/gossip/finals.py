"""Fetching the rows of finals from other agents: calls of Kind.FINAL.

    final = [space, hash, number]     reply = [sender, chunk or nil]

Whoever asks has a certificate with the hash and checks all rows against it, so a chunk needs no
trust. One that is not here is nil: somebody else may have it.
"""

from __future__ import annotations

import asyncio

from agent.boards.final_rows import CHUNK_BYTES_MAX
from agent.boards.finals import HASH_BYTES
from agent.errors import ExchangeRefused
from agent.gossip.client import Client
from agent.gossip.frame import (
    Call,
    Kind,
    array,
    integer,
    octets,
    pack,
    pack_call,
    pack_sender,
    read_sender,
    unpack,
)
from agent.gossip.link import Link
from agent.gossip.peers import Peers
from agent.limits import SPACE_BYTES_MAX
from agent.store.finals import chunk_of
from agent.store.readers import Readers


class FinalCalls:
    """Makes and answers the calls.

    Args:
        peers: what is known of the others.
        client: the sockets.
        readers: of this agent's file.
    """

    def __init__(self, peers: Peers, client: Client, readers: Readers) -> None:
        self._peers = peers
        self._client = client
        self._readers = readers
        self._last = ""  # who had the last chunk: it has the next one, too

    async def fetch(self, space: bytes, hash_: bytes, number: int) -> bytes | None:
        """A chunk of a final from whoever has it, unchecked; None where nobody does now."""
        names = [member.name for member in self._peers.others()]
        for name in sorted(names, key=lambda name: name != self._last):
            link = self._peers.link_of(name)
            if link is None or not link.log:
                continue
            try:
                chunk = await self._ask(link, space, hash_, number)
            except ExchangeRefused:  # the exchanges with it tell what is wrong with it
                continue
            if chunk is not None:
                self._last = name
                return chunk
        return None

    async def _ask(self, link: Link, space: bytes, hash_: bytes, number: int) -> bytes | None:
        peers = self._peers
        body = [space, hash_, number]
        call = Call(Kind.FINAL, peers.config.ring.name, peers.next_number(), peers.me(), body)
        payload = pack_call(call)
        frame = await self._client.call_again(link, peers.secrets.current(), payload)
        sender, chunk = array(await asyncio.to_thread(unpack, frame), "final", 2)
        if read_sender(sender).agent != link.name:
            raise ExchangeRefused("refused", f"{link.url} is another agent than {link.name!r}")
        return None if chunk is None else octets(chunk, "chunk", CHUNK_BYTES_MAX)

    async def answer(self, call: Call) -> bytes:
        """The payload of the reply to a call.

        Raises:
            ExchangeRefused: malformed; the field is named.
            StoreError: the file can't be read.
        """
        space, hash_, number = array(call.body, "final", 3)
        where = octets(space, "final.space", SPACE_BYTES_MAX)
        which = octets(hash_, "final.hash", HASH_BYTES)
        at = integer(number, "final.number", 0)
        chunk = await self._readers.read(lambda found: chunk_of(found, where, which, at))
        return pack([pack_sender(self._peers.me()), chunk])
