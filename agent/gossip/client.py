"""The calling end of an exchange: one HTTP POST, proven in both directions."""

from __future__ import annotations

import asyncio
import json
from http import HTTPStatus

import aiohttp

from agent.config import GossipSection
from agent.errors import ExchangeRefused, words_of
from agent.exchange import Reply, Sender
from agent.gossip import proof, wire
from agent.gossip.calls import unpack_confirmation
from agent.gossip.frame import HEADER_BYTES, Call, Frame, pack_call, unframe, unpack_refusal
from agent.gossip.link import Link
from agent.gossip.secrets import name_of_secret
from agent.identity import Confirmation
from agent.limits import PEER_MESSAGE_BYTES_MAX

PATH = "/v1/peer"
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

    async def call(self, link: Link, secrets: tuple[bytes, ...], payload: bytes) -> Frame:
        """Send one call and return its proven reply.

        It is signed with the first secret that the peer accepts; `link.secret` names it then.

        Raises:
            ExchangeRefused: `unreachable`, `challenge` (the peer's process is another than thought:
                `link.challenge` is now right, call again), the peer's own reason where it has
                proven it (`proven`), `refused` with its words where not, or what is wrong with the
                reply.
        """
        refused: ExchangeRefused | None = None
        for secret in secrets:
            try:
                frame = await self._call(link, secret, payload)
            except ExchangeRefused as error:
                if error.reason != "unauthorized":
                    raise
                refused = error
                continue
            link.secret = name_of_secret(secret)
            return frame
        assert refused is not None
        raise refused

    async def _call(self, link: Link, secret: bytes, payload: bytes) -> Frame:
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
                proven = response.content_type == CONTENT_TYPE
        # ValueError: an address that no resolver takes, say `http://eu..example`. It came from a
        # peer by way of the ring, so it must not end this agent.
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            raise ExchangeRefused("unreachable", _why(error)) from error
        link.bytes_received += len(body)
        if not proven:
            _raise_refusal(link, status, body)
        frame = unframe(body)
        request_proof = message[4:HEADER_BYTES]
        proof.check((secret,), proof.reply_context(request_proof), frame)
        if frame.refused:
            said = unpack_refusal(frame)
            raise ExchangeRefused(
                said.code, said.detail, about=(said.agent, said.inc, said.url), proven=True
            )
        return frame

    async def confirm(
        self, link: Link, secrets: tuple[bytes, ...], call: Call
    ) -> tuple[Sender, Confirmation]:
        """Ask a member what it knows of me; an older process of mine is refused from then on.

        Raises:
            ExchangeRefused: see `call`.
        """
        return unpack_confirmation(await self.call_again(link, secrets, pack_call(call)))

    async def call_again(self, link: Link, secrets: tuple[bytes, ...], payload: bytes) -> Frame:
        """A call, once more where the peer's process is another than thought.

        Raises:
            ExchangeRefused: see `call`.
        """
        try:
            return await self.call(link, secrets, payload)
        except ExchangeRefused as error:
            if error.reason != "challenge":
                raise
        return await self.call(link, secrets, payload)


async def unpack_reply(frame: Frame) -> Reply:
    """The reply to an exchange; a long one is unpacked on a thread.

    Raises:
        ExchangeRefused: malformed, truncated or too_large; the field is named.
    """
    if len(frame.payload) <= UNPACK_INLINE_BYTES_MAX:
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


def _why(error: Exception) -> str:
    """Why somebody can't be reached, without what the library adds (`ssl:default`, always)."""
    if isinstance(error, aiohttp.ClientConnectorError):
        error = error.os_error
    return getattr(error, "strerror", None) or words_of(error)


def _raise_refusal(link: Link, status: int, body: bytes) -> None:
    """Turn a peer's problem document into an error; learn its challenge from a 401."""
    try:
        problem = json.loads(body)
        detail = str(problem.get("detail", ""))[:500]
        challenge = int(problem.get("challenge", "0"), 16)
    except (ValueError, AttributeError, TypeError, RecursionError):
        raise ExchangeRefused("refused", f"HTTP status {status} without a reason") from None
    if status == HTTPStatus.UNAUTHORIZED and 0 < challenge < 2**63:
        if challenge != link.challenge:
            link.challenge = challenge
            raise ExchangeRefused("challenge", "the peer runs as another process than before")
        raise ExchangeRefused("unauthorized", f"HTTP status {status}: {detail}")
    raise ExchangeRefused("refused", f"HTTP status {status}: {detail}")
