"""Signing: the key with which every agent of a ring signs exports of finals, and the public half.

The key is Ed25519 (RFC 8032), derived from the ring's secret by HKDF-SHA256 (RFC 5869), so that all
agents sign alike and nothing more is to be kept. With the secret it is rotated: the first one
signs. Nothing follows from the public key about a secret that is random.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import sha256

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from agent.boards.final_lines import SIGNED_PREFIX, EndLine

KEY_BYTES = 32
KEY_NAME_BYTES = 8


class Signer:
    """Signs as the ring."""

    def __init__(self, secret: bytes, ring: str) -> None:
        info = b"tallyring final export " + ring.encode()
        derived = HKDF(SHA256(), KEY_BYTES, salt=None, info=info).derive(secret)
        self._key = Ed25519PrivateKey.from_private_bytes(derived)
        self.public_key = self._key.public_key().public_bytes_raw()

    def end(self, header: bytes, rows: int) -> EndLine:
        """The last line of an export whose first line is `header`, without its end."""
        signature = self._key.sign(SIGNED_PREFIX + header)
        return EndLine(rows, name_of_key(self.public_key), self.public_key.hex(), signature.hex())


@lru_cache(8)
def signer_of(secret: bytes, ring: str) -> Signer:
    """The signer of a secret of a ring."""
    return Signer(secret, ring)


def name_of_key(public_key: bytes) -> str:
    """A short name of a public key."""
    return sha256(public_key).digest()[:KEY_NAME_BYTES].hex()


def is_signed(header: bytes, end: EndLine) -> bool:
    """Whether an export's last line holds the signature of its first one, under its own key."""
    try:
        key = bytes.fromhex(end.public_key)
        if name_of_key(key) != end.key:
            return False
        signature = bytes.fromhex(end.signature)
        Ed25519PublicKey.from_public_bytes(key).verify(signature, SIGNED_PREFIX + header)
    except (ValueError, InvalidSignature):
        return False
    return True
