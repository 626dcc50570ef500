"""Fingerprints: 64 bits that stand for a cell's key and value, and their sums over many cells.

A cell's fingerprint is BLAKE2b (RFC 7693), 8 bytes, over its key and value, each part with its
length. The stamp and the lsn are no part of it: equal values may carry different stamps. Cells are
dealt into BUCKETS by their key; a bucket's fingerprint is the XOR of its cells', the root that of
all. They are sums that need only the old and the new value of what changed, so they are kept in
the transaction that changes a cell, and show what no version vector can: rows that were dropped,
edited or decayed. Against accidents, not against an adversary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from struct import Struct, error
from typing import NamedTuple
from zlib import crc32

from agent.crdt.cell import Key, Row, RowParts

BUCKETS = 1024
_head = Struct(">HHHqq").pack


class Change(NamedTuple):
    """What a transaction does to one bucket: the XOR of its changes, and how many cells it adds."""

    flips: int
    cells: int


class Stored(NamedTuple):
    """A cell as a store holds it: its row, the fingerprint stored beside it, and its lsn."""

    row: Row
    mark: int
    lsn: int


def bucket_of(key: Key) -> int:
    """The bucket of a cell, 0 to BUCKETS - 1. (By member and slot: spaces are few.)"""
    return crc32(key[2], crc32(key[1])) % BUCKETS


def fingerprint(row: Row | RowParts) -> int:
    """The fingerprint of a row's key and value, as a signed 64-bit integer."""
    space, member, slot, major, minor, body = row[:6]
    head = _head(len(space), len(member), len(slot), major, minor)
    digest = blake2b(head + space + member + slot + body, digest_size=8).digest()
    return int.from_bytes(digest, signed=True)


def fits(row: Row, mark: int) -> bool:
    """Whether a row is what its fingerprint says. A file may hold anything: a text as major."""
    try:
        return fingerprint(row) == mark
    except (TypeError, ValueError, error):
        return False


def changes_of(
    rows: Sequence[Row],
    before: Mapping[Key, Row | None],
    known: Mapping[Key, int],
    dropped: Sequence[Row] = (),
) -> tuple[list[int], dict[int, Change], int]:
    """(each row's fingerprint, the changes by bucket, the change of the root).

    Args:
        rows: the new rows of cells, each cell once.
        before: what those cells held; None for new ones.
        known: fingerprints of what they held, where they need not be made again.
        dropped: cells that cease to exist, as they were.
    """
    prints = [fingerprint(row) for row in rows]
    flips: dict[int, int] = {}
    new: dict[int, int] = {}
    for row, flip in zip(rows, prints, strict=True):
        key = row[:3]
        bucket = bucket_of(key)
        was = before[key]
        if was is None:
            new[bucket] = new.get(bucket, 0) + 1
        else:
            flip ^= known.get(key) or fingerprint(was)  # noqa: PLW2901 -- the hot path
        flips[bucket] = flips.get(bucket, 0) ^ flip
    for row in dropped:
        bucket = bucket_of(row[:3])
        new[bucket] = new.get(bucket, 0) - 1
        flips[bucket] = flips.get(bucket, 0) ^ (known.get(row[:3]) or fingerprint(row))
    root = 0
    for flip in flips.values():
        root ^= flip
    return (
        prints,
        {bucket: Change(flip, new.get(bucket, 0)) for bucket, flip in flips.items()},
        root,
    )
