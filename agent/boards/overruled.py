"""Definitions that lost against one they did not know of, and where their entries are.

Two regions may define a board at the same moment, each without the other. Both take entries until
they meet, under definitions of different shapes, so in spaces of their own: one definition is in
force then, and what was counted under the other stays where it is. Its region may meanwhile have
heard of resets, so it may have counted in any generation from the definition's own to the board's.
"""

from __future__ import annotations

from dataclasses import dataclass

from agent.boards import definition as definitions
from agent.boards.definition import Definition
from agent.boards.series import Series
from agent.boards.windows import Window
from agent.crdt.cell import Value
from agent.crdt.slot import name_of
from agent.crdt.space import Space, encode_space
from agent.errors import Malformed

GENERATION_SHIFT = 32


@dataclass(frozen=True, slots=True)
class Overruled:
    """A definition that lost against one it did not know of.

    generation: the one it was written in. `present` is the board's when this was made.
    """

    board: str
    agent: str
    generation: int
    version: int
    definition: Definition
    present: int

    @property
    def generations(self) -> tuple[int, ...]:
        """Where its entries are looked for: its own generation, and the board's, if it is newer."""
        return tuple(sorted({self.generation, self.present}))

    def series(self) -> tuple[Series, ...]:
        """What its entries are counted in: its windows, then the buckets of sliding ones."""
        return tuple(series for series, _ in self.definition.counted())

    def prefix(self, series: Series, generation: int) -> bytes:
        """What the spaces of a series begin with in a generation; a window's id follows.

        Raises:
            Malformed: a generation that no space has.
        """
        shape = definitions.shape_of(self.definition, series)
        return encode_space(Space(self.board, generation, shape, ""))

    def window(self, text: str | None, now_ms: int) -> tuple[Series, Window] | None:
        """A window that entries are counted in: by id or name as of a board, or the first one.

        None: the definition has none such. Of a sliding window there are its days or hours.
        """
        for series in self.series():
            wanted = series.name if text is None else text
            found = series.at(now_ms) if series.name == wanted else None
            if found is None:  # by its id; that of a season is its name, also when it is over
                found = series.window(wanted)
            if found is not None:
                return series, found
        return None


def overruled_of(
    board: str, slot: bytes, value: Value, winner: Definition | None, present: int
) -> Overruled | None:
    """What an overruled definition's cell says; None where it says what the winner does, retires
    the board, or can't be read.

    Args:
        winner: the definition in force; None where the board is retired.
        present: the board's generation.
    """
    content = definitions.from_body(value[2])
    if content.definition is None or content.definition == winner:
        return None
    generation, version = divmod(value[0], 1 << GENERATION_SHIFT)
    lost = Overruled(board, name_of(slot), generation, version, content.definition, present)
    try:
        for number in lost.generations:
            lost.prefix(lost.series()[0], number)
    except Malformed:  # a generation beyond 32 bits has no space
        return None
    return lost
