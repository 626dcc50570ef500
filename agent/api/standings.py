"""What this agent's own file says of members that are shown: the exact time, and the data.

What several requests show at once is read in one snapshot.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from agent.boards.catalog import Placed
from agent.boards.standing import (
    Standing,
    is_register,
    kinds_of,
    standing_of_register,
    standing_of_total,
)
from agent.crdt.slot import slot_of_one
from agent.projection.reads import Ranked
from agent.projection.together import Together
from agent.store.readers import Readers
from agent.store.snapshot import SqliteSnapshot

TOGETHER_MAX = 256  # requests of which the members are read in one snapshot


class Standings:
    """Reads what the file says of members.

    Args:
        readers: of the agent's file.
    """

    def __init__(self, readers: Readers) -> None:
        self._readers = readers
        self._together: Together[str, _Wish, list[Standing | None]] = Together(
            self._ask, TOGETHER_MAX
        )

    async def of(self, placed: Placed, shown: Sequence[Ranked]) -> list[Standing | None]:
        """What the file says of each member shown; None where it knows nothing of one.

        Raises:
            StoreError: the file can't be read.
        """
        return await self._together.wish("", (placed, shown))

    async def _ask(self, _: str, wishes: Sequence[_Wish]) -> Sequence[list[Standing | None]]:
        def read(snapshot: SqliteSnapshot) -> list[list[Standing | None]]:
            """All members of one window with one statement: each costs this thread its turn."""
            by_space: dict[bytes, list[int]] = {}
            for at, (placed, _) in enumerate(wishes):
                by_space.setdefault(placed.space, []).append(at)
            answers: list[list[Standing | None]] = [[]] * len(wishes)
            for its in by_space.values():
                shown = [ranked for at in its for ranked in wishes[at][1]]
                found = iter(_standings(snapshot, wishes[its[0]][0], shown))
                for at in its:
                    answers[at] = list(islice(found, len(wishes[at][1])))
            return answers

        return await self._readers.read(read)


_Wish = tuple[Placed, Sequence[Ranked]]


def _standings(
    snapshot: SqliteSnapshot, placed: Placed, shown: Sequence[Ranked]
) -> list[Standing | None]:
    definition = placed.board.definition
    assert definition is not None
    keys = [(placed.space, ranked.member.encode(errors="replace")) for ranked in shown]
    if is_register(definition):
        (kind,) = kinds_of(definition)
        slot = slot_of_one(kind)
        values = snapshot.values_of((*key, slot) for key in keys)
        found = (values.get((*key, slot)) for key in keys)
        return [
            None if value is None else standing_of_register(definition, value) for value in found
        ]
    totals = snapshot.totals_of(keys)
    return [standing_of_total(definition, totals.get(key)) for key in keys]
