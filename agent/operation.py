"""Operations: what can happen to an agent's state, and what each of them answers. Pure values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from agent.boards.definition import Definition
from agent.boards.entry import Entry
from agent.boards.tally import Group
from agent.crdt.space import BOARDS_SPACE
from agent.errors import Refused
from agent.exchange import Chunk, VersionVector


@dataclass(frozen=True, slots=True)
class Write:
    """Entries of one client request: at most one group a board; all or nothing."""

    groups: tuple[Group, ...]


@dataclass(frozen=True, slots=True)
class Define:
    """Define a board, or change it. A retired one starts a new generation."""

    board: str
    definition: Definition


@dataclass(frozen=True, slots=True)
class Reset:
    """Start a new generation of a board, with a new definition if one is given."""

    board: str
    definition: Definition | None


@dataclass(frozen=True, slots=True)
class Retire:
    """Retire a board: it takes no entries and has no ranks until it is defined anew."""

    board: str


@dataclass(frozen=True, slots=True)
class Announce:
    """Tell the ring who this agent is, how it is reached, and as which boot it writes."""

    region: str
    url: str
    boot_number: int


@dataclass(frozen=True, slots=True)
class Merge:
    """A peer's chunk, and the version vector that it lets me claim if it reached the head."""

    peer: str
    chunk: Chunk
    vv: VersionVector | None


@dataclass(frozen=True, slots=True)
class Singles:
    """Requests of one entry each for one board, that came one after the other: see `coalesced`."""

    group: Group


Operation: TypeAlias = Write | Define | Reset | Retire | Announce | Merge


@dataclass(frozen=True, slots=True)
class Written:
    """Answer to a Write: by group, the member's score after each entry."""

    scores: tuple[list[int], ...]


@dataclass(frozen=True, slots=True)
class BoardChanged:
    """Answer to Define, Reset and Retire: whether anything changed."""

    changed: bool


@dataclass(frozen=True, slots=True)
class Merged:
    """Answer to a Merge: whether the chunk was contiguous, and how many cells it changed."""

    joined: bool
    changed: int


Answer: TypeAlias = Written | BoardChanged | Merged | Refused


def coalesced(operations: Sequence[Operation]) -> list[Operation | Singles]:
    """The operations with each run of single entries for one board as one `Singles`.

    They are tallied in one pass, which is what a hot key hit by many small requests needs; each is
    still accepted or refused for itself, and answers for itself.
    """
    steps: list[Operation | Singles] = []
    run: list[Entry] = []
    board = ""
    for operation in operations:
        if isinstance(operation, Write) and len(operation.groups) == 1:
            group = operation.groups[0]
            if len(group.entries) == 1:
                if run and group.board != board:
                    steps.append(Singles(Group(board, run, range(len(run)))))
                    run = []
                board = group.board
                run.append(group.entries[0])
                continue
        if run:
            steps.append(Singles(Group(board, run, range(len(run)))))
            run = []
        steps.append(operation)
    if run:
        steps.append(Singles(Group(board, run, range(len(run)))))
    return steps


def changes_catalog(operation: Operation) -> bool:
    """Whether later operations of the batch may meet another catalog than earlier ones."""
    match operation:
        case Define() | Reset() | Retire():
            return True
        case Merge(_, chunk):
            return any(row.space == BOARDS_SPACE for row in chunk.rows)
        case _:
            return False
