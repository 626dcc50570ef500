"""Operations: what can happen to an agent's state, and what each of them answers. Pure values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from agent.boards.definition import Definition
from agent.boards.entry import Entry
from agent.boards.finals import Discard, MakeHashKey, OverrideFinal, SayFinal, Shelve
from agent.boards.marks import Due
from agent.boards.tally import Group, MemberKey, Note
from agent.crdt.cell import Key, Row
from agent.crdt.document import Status
from agent.crdt.fingerprint import Change
from agent.crdt.space import BOARDS_SPACE
from agent.errors import Refused
from agent.exchange import Boot, Chunk, VersionVector


@dataclass(frozen=True, slots=True)
class Write:
    """Entries of one client request: at most one group a board; all or nothing."""

    groups: tuple[Group, ...]


@dataclass(frozen=True, slots=True)
class Define:
    """Define a board, or change it. A retired one starts a new generation.

    expected: tags of what is to be changed (agent/boards/change.py); None: whatever there is.
    """

    board: str
    definition: Definition
    expected: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class Reset:
    """Start a new generation of a board, with a new definition if one is given."""

    board: str
    definition: Definition | None
    expected: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class Retire:
    """Retire a board: it takes no entries and has no ranks until it is defined anew."""

    board: str
    expected: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class Retract:
    """Take a kept result back, in every window of its board.

    at_ms: the result's time; spaces: where it was found to stand.
    """

    board: str
    member: bytes
    key: bytes
    at_ms: int
    spaces: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class SetBan:
    """Ban a member on a board ("": on all), or change its ban. `until_ms`: None for ever."""

    member: bytes
    board: str
    until_ms: int | None
    reason: str
    by: str


@dataclass(frozen=True, slots=True)
class LiftBan:
    """Lift a ban. `expired`: only if its end has passed."""

    member: bytes
    board: str
    reason: str
    by: str
    expired: bool = False


@dataclass(frozen=True, slots=True)
class Erase:
    """Close a name for good. `key`: 16 random bytes, used where there is no key for hashing yet."""

    name: bytes
    key: bytes


@dataclass(frozen=True, slots=True)
class ConfirmErasures:
    """This agent has nothing of these names any more; by the ids of their tombstones."""

    ids: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class ForgetNames:
    """Take the names out of tombstones that every member has confirmed."""

    ids: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class SetMarks:
    """Say how far series are closed, acknowledged and collected: see agent/boards/marks.py."""

    marks: tuple[Due, ...]


@dataclass(frozen=True, slots=True)
class Drop:
    """Remove cells that may not be here any more: of collected spaces and of erased names.

    Others among them stay. `entries`: of the log, by lsn, to be removed where they lead nowhere:
    they say an erased name.
    """

    keys: tuple[Key, ...]
    entries: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Announce:
    """Tell the ring who this agent is, how it is reached, and as which process it writes."""

    region: str
    url: str


@dataclass(frozen=True, slots=True)
class Mint:
    """Go on under a new incarnation and a new log id; the old ones are never written again."""

    inc: int
    log: int


@dataclass(frozen=True, slots=True)
class Burn:
    """Never write as an incarnation again, for this reason: if it is in use, another is minted."""

    inc: int
    reason: str


@dataclass(frozen=True, slots=True)
class Fence:
    """Remember the newest process of an incarnation: older ones are refused from now on."""

    inc: int
    boot: Boot


@dataclass(frozen=True, slots=True)
class Complete:
    """The logs of all other members were read: nothing that this agent once knew is missing."""


@dataclass(frozen=True, slots=True)
class ChangeMember:
    """An operator's change of a ring member: its status moves on, or its URL is another one."""

    name: str
    status: Status | None = None
    url: str | None = None


@dataclass(frozen=True, slots=True)
class Import:
    """Cells from a removed agent's file, joined as this agent's own writes."""

    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class Correction:
    """What is wrong with the sums over cells that are right themselves.

    buckets: what to add to the kept sums of buckets; the root follows from `flips`.
    flips, cells, facts: what to add to the root, and to the numbers of cells and of facts.
    members: whose totals are to be added up anew.
    """

    buckets: Mapping[int, Change] = field(default_factory=dict)
    flips: int = 0
    cells: int = 0
    facts: int = 0
    members: tuple[MemberKey, ...] = ()


@dataclass(frozen=True, slots=True)
class Mend:
    """What damaged cells held, as peers have it; it takes the place of what stands there.

    A cell that is damaged no more when its turn comes is joined like any other.
    """

    rows: tuple[Row, ...] = ()
    correction: Correction | None = None


@dataclass(frozen=True, slots=True)
class Repair:
    """Cells that a peer holds and I do not, though I have read its log beyond them: joined.

    Each one that changes my state is an alarm (`covered_changed`): an exchange would not bring it.
    """

    rows: tuple[Row, ...]


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


Operation: TypeAlias = (
    Write
    | Define
    | Reset
    | Retire
    | Retract
    | SetBan
    | LiftBan
    | Erase
    | ConfirmErasures
    | ForgetNames
    | SetMarks
    | SayFinal
    | OverrideFinal
    | MakeHashKey
    | Shelve
    | Discard
    | Drop
    | Announce
    | Burn
    | Mint
    | Fence
    | Complete
    | ChangeMember
    | Import
    | Mend
    | Merge
    | Repair
)


@dataclass(frozen=True, slots=True)
class Written:
    """Answer to a Write: by group, the member's scores after each entry, by window.

    notes: by group and place in it, what else is to be said of an entry.
    """

    scores: tuple[list[dict[str, int]], ...]
    notes: tuple[Mapping[int, Note], ...] = ()


@dataclass(frozen=True, slots=True)
class BoardChanged:
    """Answer to what changes boards, members and the ring: whether anything changed."""

    changed: bool


@dataclass(frozen=True, slots=True)
class Merged:
    """Answer to Merge, Import, Mend, Repair: whether it was joined, and how many cells changed."""

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


def writes(operation: Operation) -> bool:
    """Whether an operation makes this agent's own changes, which need an incarnation to write as.

    An `Announce` does only where it changes the member's cell, a `Merge` and a `Repair` only where
    something follows from their rows: see agent/committer.py.
    """
    return not isinstance(
        operation,
        Announce | Burn | Mint | Fence | Complete | Mend | Merge | Repair | Shelve | Discard,
    )


def changes_catalog(operation: Operation) -> bool:
    """Whether an operation is a transaction of its own: what comes after it may meet another
    catalog, or write as another incarnation."""
    match operation:
        case Define() | Reset() | Retire() | Burn() | Mint() | Mend() | Repair():
            return True
        case Shelve() | Discard():
            return True
        case Import(rows):
            return any(row.space == BOARDS_SPACE for row in rows)
        case Merge(_, chunk):
            return any(row.space == BOARDS_SPACE for row in chunk.rows)
        case _:
            return False
