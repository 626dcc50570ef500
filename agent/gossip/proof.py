"""Proof of the ring's secret: keyed hashes over messages, and the refusal of replays.

The secret is never sent. A request's proof is HMAC-SHA256 (RFC 2104, truncated to 128 bits as its
section 5 allows) over the answering process's challenge and the whole message; a reply's is over
the request's proof and the whole reply, so a reply belongs to one request of one process (rule E).
No clock is involved: agents whose clocks are a day apart still exchange.

A challenge is the random nonce of the answering process, told in a 401 to whoever does not have it.
Within a process, each caller's messages carry a number that must rise; so a recorded message is
refused by the same process for its number, and by any other for its challenge.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass

from agent.errors import ExchangeRefused
from agent.exchange import Boot, Sender
from agent.gossip.wire import PROOF_BYTES, Frame, frame

CALLERS_MAX = 4096  # incarnations remembered; each has proven the secret


def seal(secret: bytes, context: bytes, payload: bytes) -> bytes:
    """The message for a payload, with its proof for this context."""
    head, payload = frame(payload)
    return head + _proof(secret, context, head, payload) + payload


def check(secrets: tuple[bytes, ...], context: bytes, parts: Frame) -> bytes:
    """Check a message's proof; returns the secret that it was made with.

    Raises:
        ExchangeRefused: (unauthorized) it was not made with any of these secrets.
    """
    for secret in secrets:
        if hmac.compare_digest(_proof(secret, context, parts.head, parts.payload), parts.proof):
            return secret
    raise ExchangeRefused(
        "unauthorized", "the sender has not proven that it knows the ring's secret"
    )


def request_context(challenge: int) -> bytes:
    """What a request's proof is bound to: the process that it is meant for."""
    return b"tallyring request" + challenge.to_bytes(8)


def reply_context(request_proof: bytes) -> bytes:
    """What a reply's proof is bound to: the request that it answers."""
    return b"tallyring reply" + request_proof


def _proof(secret: bytes, context: bytes, head: bytes, payload: bytes) -> bytes:
    mac = hmac.new(secret, context + head, hashlib.sha256)
    mac.update(payload)
    return mac.digest()[:PROOF_BYTES]


@dataclass(slots=True)
class _Caller:
    boot: Boot
    number: int


class Callers:
    """Which processes have called, and the highest number of each: refuses replays."""

    def __init__(self) -> None:
        self._callers: dict[tuple[str, int], _Caller] = {}

    def admit(self, sender: Sender, number: int) -> None:
        """Accept a proven message once.

        Raises:
            ExchangeRefused: `replay` for a number that does not rise, `stale_boot` for an older
                process of the same incarnation, `fork` for a second one with the same boot number.
        """
        key = (sender.agent, sender.inc)
        known = self._callers.pop(key, None)
        if known is not None:
            self._callers[key] = known
            if sender.boot.number < known.boot.number:
                raise ExchangeRefused(
                    "stale_boot",
                    f"boot {sender.boot.number} of agent {sender.agent!r} is over: boot"
                    f" {known.boot.number} has been here",
                )
            if sender.boot.number == known.boot.number:
                if sender.boot.nonce != known.boot.nonce:
                    raise ExchangeRefused(
                        "fork",
                        f"two processes write as agent {sender.agent!r}, incarnation"
                        f" {sender.inc:x}: stop one and give it a data_dir of its own",
                    )
                if number <= known.number:
                    raise ExchangeRefused("replay", f"message {number} was here before")
        self._callers.pop(key, None)
        self._callers[key] = _Caller(sender.boot, number)
        if len(self._callers) > CALLERS_MAX:
            del self._callers[next(iter(self._callers))]
