"""Positions: which write of which agent a read must include, as the text that clients carry.

A position names the writer's incarnation, the seq of its commit and its local lsn, in hexadecimal:
`inc-seq-lsn`. Clients treat it as opaque.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from agent.errors import Malformed
from agent.limits import INT64_MAX
from agent.state import State

_FORM = re.compile(r"([0-9a-f]{1,16})-([0-9a-f]{1,16})-([0-9a-f]{1,16})")


class Position(NamedTuple):
    """A point in one incarnation's history: everything up to its commit `seq`, local `lsn`."""

    inc: int
    seq: int
    lsn: int

    def __str__(self) -> str:
        """The text that clients carry."""
        return f"{self.inc:x}-{self.seq:x}-{self.lsn:x}"

    def covered(self, state: State) -> bool:
        """Whether a state includes this write, whichever agent of the ring took it."""
        if self.inc == state.inc:
            return self.lsn <= state.lsn and self.seq <= state.seq
        return state.vv.get(self.inc, 0) >= self.seq


def position_of(state: State) -> str:
    """The position of a state: a read `after` it includes all that the state does."""
    return f"{state.inc:x}-{state.seq:x}-{state.lsn:x}"


def parse_position(text: str) -> Position:
    """The position behind its text.

    Raises:
        Malformed: not what `position_of` writes.
    """
    match = _FORM.fullmatch(text)
    numbers = [int(part, 16) for part in match.groups()] if match else []
    if not numbers or max(numbers) > INT64_MAX:
        raise Malformed(
            f"after: {text[:60]!r} is not a position",
            hint="pass on what a write answered as `position`, unchanged",
        )
    return Position(*numbers)
