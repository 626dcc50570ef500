"""The calling end of an exchange: one HTTP POST, proven in both directions."""

from __future__ import annotations

import asyncio
import json
from http import HTTPStatus

import aiohttp

from agent.config import GossipSection
from agent.errors import ExchangeRefused
from agent.exchange import Reply
from agent.gossip import proof, wire
from agent.gossip.link import Link
from agent.limits import PEER_MESSAGE_BYTES_MAX

PATH = "/v1/peer/exchange"
CONTENT_TYPE = "application/x-tallyring"
# A peer's error is a small problem document; whatever else comes is cut here.
ERROR_BYTES_MAX = 8 * 1024
# Messages above this are unpacked on a thread, so that they do not hold up the event loop.
UNPACK_INLINE_BYTES_MAX = 4 * 1024


class Client:
    """Calls peers. One session for all of them; close it when done."""

    def __init__(self, settings: GossipSection) -> None:
        source = (settings.source_address, 0) if settings.source_address else None
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(local_addr=source, limit_per_host=2),
            timeout=aiohttp.ClientTimeout(
                total=settings.request_timeout_s, connect=settings.connect_timeout_s
            ),
            skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding"),
            auto_decompress=False,
            trust_env=False,
        )

    async def close(self) -> None:
        """Close the session and its connections."""
        await self._session.close()

    async def call(self, link: Link, secret: bytes, payload: bytes) -> Reply:
        """Send one request and return its proven reply.

        Raises:
            ExchangeRefused: `unreachable`, `challenge` (the peer's process is another than thought:
                `link.challenge` is now right, call again), `refused` with the peer's own words, or
                what is wrong with the reply.
        """
        message = proof.seal(secret, proof.request_context(link.challenge), payload)
        link.bytes_sent += len(message)
        try:
            async with self._session.post(
                link.url + PATH,
                data=message,
                headers={"Content-Type": CONTENT_TYPE},
                allow_redirects=False,
            ) as response:
                body = await _read(response)
                status = response.status
        # ValueError: an address that no resolver takes, say `http://eu..example`. It came from a
        # peer by way of the ring, so it must not end this agent.
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            words = str(error) or type(error).__name__
            raise ExchangeRefused("unreachable", words) from error
        link.bytes_received += len(body)
        if status != HTTPStatus.OK:
            _raise_refusal(link, status, body)
        frame = wire.unframe(body)
        request_proof = message[4 : wire.HEADER_BYTES]
        proof.check((secret,), proof.reply_context(request_proof), frame)
        if len(body) <= UNPACK_INLINE_BYTES_MAX:
            return wire.unpack_reply(frame)
        return await asyncio.to_thread(wire.unpack_reply, frame)


async def _read(response: aiohttp.ClientResponse) -> bytes:
    limit = PEER_MESSAGE_BYTES_MAX if response.status == HTTPStatus.OK else ERROR_BYTES_MAX
    parts, size = [], 0
    async for part in response.content.iter_any():
        parts.append(part)
        size += len(part)
        if size > limit:
            raise ExchangeRefused("too_large", f"a reply of more than {limit} bytes")
    return b"".join(parts)


def _raise_refusal(link: Link, status: int, body: bytes) -> None:
    """Turn a peer's problem document into an error; learn its challenge from a 401."""
    try:
        problem = json.loads(body)
        detail = str(problem.get("detail", ""))[:500]
        challenge = int(problem.get("challenge", "0"), 16)
    except (ValueError, AttributeError, TypeError, RecursionError):
        raise ExchangeRefused("refused", f"HTTP status {status} without a reason") from None
    if status == HTTPStatus.UNAUTHORIZED and 0 < challenge < 2**63 and challenge != link.challenge:
        link.challenge = challenge
        raise ExchangeRefused("challenge", "the peer runs as another process than before")
    raise ExchangeRefused("refused", f"HTTP status {status}: {detail}")
