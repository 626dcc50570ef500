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
from collections.abc import Mapping
from dataclasses import dataclass

from agent.errors import ExchangeRefused
from agent.exchange import Boot, Sender
from agent.gossip.frame import PROOF_BYTES, Frame, frame
from agent.gossip.link import SUSPECT_S

CALLERS_MAX = 4096  # processes remembered; each has proven the secret
NUMBERS_BEHIND_MAX = 1024  # how far calls of one process may pass each other on the way
TWIN_RETURNS = 3  # one may be a late message of a process that was followed by another


def seal(secret: bytes, context: bytes, payload: bytes, flags: int = 0) -> bytes:
    """The message for a payload, with its proof for this context."""
    head, payload = frame(payload, flags)
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
class _Process:
    """A process that has called: its highest number, when it last did, how often it took over.

    seen: which of the NUMBERS_BEHIND_MAX numbers up to the highest one were here, as bits.
    """

    number: int
    heard_s: float
    returns: int = 0
    seen: int = 0

    def take(self, number: int) -> bool:
        """Take in a number; returns whether it is new. Calls in flight may pass each other."""
        behind = self.number - number
        if behind < 0:
            kept = self.seen << -behind if -behind < NUMBERS_BEHIND_MAX else 0
            self.seen = (kept | 1) % 2**NUMBERS_BEHIND_MAX
            self.number = number
            return True
        if behind >= NUMBERS_BEHIND_MAX or self.seen >> behind & 1:
            return False
        self.seen |= 1 << behind
        return True


class Callers:
    """Which processes have called: refuses replays and older processes, and notices twins."""

    def __init__(self) -> None:
        self._processes: dict[tuple[str, int], _Process] = {}
        self._latest: dict[str, int] = {}

    def admit(self, sender: Sender, number: int, fences: Mapping[int, Boot], now_s: float) -> None:
        """Accept a proven message once.

        Args:
            fences: by incarnation, its newest process that was heard of.
            now_s: of a clock that only goes on.

        Raises:
            ExchangeRefused: `replay` for a number that was here, `stale_boot` for an older
                process of the same incarnation, `fork` for a second one with the same boot number.
        """
        about = (sender.agent, sender.inc, "")
        fence = fences.get(sender.inc)
        if fence is not None and sender.boot.number < fence.number:
            raise ExchangeRefused(
                "stale_boot",
                f"boot {sender.boot.number} of agent {sender.agent!r} is over: boot"
                f" {fence.number} of its incarnation {sender.inc:x} has been here",
                about=about,
            )
        if fence is not None and sender.boot < fence:
            raise ExchangeRefused(
                "fork",
                f"two processes write as agent {sender.agent!r}, incarnation {sender.inc:x}:"
                " stop one and give it a name and a data_dir of its own",
                about=about,
            )
        key = (sender.agent, sender.boot.nonce)
        known = self._processes.pop(key, None) or _Process(-1, now_s)
        self._processes[key] = known
        if not known.take(number):
            raise ExchangeRefused("replay", f"message {number} was here before")
        known.heard_s = now_s
        if self._latest.get(sender.agent, sender.boot.nonce) != sender.boot.nonce:
            known.returns += 1
        self._latest[sender.agent] = sender.boot.nonce
        if len(self._processes) > CALLERS_MAX:
            del self._processes[next(iter(self._processes))]

    def twin(self, sender: Sender) -> bool:
        """Whether the sender and another process of its name call in turn: both are alive."""
        return self._processes[sender.agent, sender.boot.nonce].returns >= TWIN_RETURNS

    def other_lately(self, sender: Sender, now_s: float) -> bool:
        """Whether another process of the sender's name has called within the last seconds."""
        return any(
            name == sender.agent
            and nonce != sender.boot.nonce
            and now_s - process.heard_s < SUSPECT_S
            for (name, nonce), process in self._processes.items()
        )
