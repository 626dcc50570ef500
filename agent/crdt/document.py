"""Documents: board definitions and ring members, as cells with a body.

A document is (version, tie-breaking number, body): the greatest is in force. Where each writing
agent has a slot of its own (definitions), what lost is still there to be listed.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import TypeVar

from agent.crdt.cell import Value

SlotValue = TypeVar("SlotValue", bound=tuple[bytes, Value])


class Status(IntEnum):
    """A ring member's status: the minor of its cell, so that at one epoch it only moves on."""

    ACTIVE = 0
    LEAVING = 1
    REMOVED = 2


def in_force(documents: Iterable[SlotValue]) -> SlotValue | None:
    """The (slot, value) with the greatest value, then slot; None where there is no document."""
    return max(documents, key=lambda document: (document[1], document[0]), default=None)
