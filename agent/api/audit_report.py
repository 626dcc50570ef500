"""What an audit tells: its report, and cells, sums and scores in words."""

from __future__ import annotations

from dataclasses import dataclass, field

from agent.boards.scale import Scale
from agent.crdt.cell import Row
from agent.crdt.slot import KINDS_OF_NAME, KINDS_OF_REPLICA, Kind, incarnation_of, name_of
from agent.gossip.mending import named
from agent.membership import Ring
from agent.projection.audit import Held
from agent.store.recount import Recount


@dataclass(frozen=True, slots=True)
class Wish:
    """What an audit is to do.

    boards: only differences of these; empty: of all.
    limit: how many differences are listed; all are counted.
    """

    repair: bool = False
    boards: tuple[str, ...] = ()
    limit: int = 100


@dataclass(slots=True)
class Difference:
    """One difference.

    kind: damaged, damaged_there, lacking, lacking_there, forked, bucket, total or rank.
    other: with whom it was compared; empty: with itself.
    """

    kind: str
    board: str
    member: str
    slot: str
    other: str
    here: str
    there: str
    mended: bool = False
    note: str = ""


@dataclass(slots=True)
class Part:
    """One peer, or one board in Redis: how much was compared, and why not all."""

    name: str
    compared: int = 0
    differences: int = 0
    skipped: str = ""


@dataclass(slots=True)
class Report:
    """An audit. `state` is never, running, done or failed; times are ms since 1970."""

    state: str = "never"
    wish: Wish = field(default_factory=Wish)
    began_ms: int = 0
    ended_ms: int = 0
    step: str = ""
    progress: float = 0.0
    found: int = 0
    mended: int = 0
    cells: int = 0
    peers: list[Part] = field(default_factory=list)
    boards: list[Part] = field(default_factory=list)
    differences: list[Difference] = field(default_factory=list)
    error: str = ""

    def add(self, difference: Difference) -> None:
        """Count a difference, and list it if there is room."""
        self.found += 1
        self.mended += difference.mended
        if len(self.differences) < self.wish.limit:
            self.differences.append(difference)


def wrong_sums(found: Recount) -> dict[tuple[str, str, str], tuple[str, str]]:
    """What a recount found: (board, member, what) -> (as kept, as counted)."""
    wrong: dict[tuple[str, str, str], tuple[str, str]] = {}
    for bucket, kept, counted in found.sums:
        wrong["", "", f"bucket {bucket}"] = (_sum_text(kept), _sum_text(counted))
    for (space, member), was, is_ in found.totals:
        board, name, _ = named((space, member, b""))
        texts = ["none" if total is None else f"score {total.score}" for total in (was, is_)]
        wrong[board, name, "total"] = (texts[0], texts[1])
    if found.flips and not found.sums:
        wrong["", "", "root"] = ("wrong", "the XOR of all cells")
    if found.missing and not found.sums:
        wrong["", "", "number of cells"] = (f"{found.cells - found.missing}", f"{found.cells}")
    return wrong


def _sum_text(part: tuple[int, int]) -> str:
    return f"{part[0] % 2**64:016x} of {part[1]} cells"


def held_text(scale: Scale, held: Held) -> str:
    """What Redis holds of a member, for people."""
    parts = []
    if held.composite is not None:
        parts.append(f"score {scale.score_of(held.composite)} ({held.composite} in Redis)")
    if held.text is not None:
        parts.append(f"counter {held.text[:40]}")
    return ", ".join(parts) or "nothing"


def slot_name(slot: bytes, ring: Ring) -> str:
    """A slot spelled out: its kind, and whose it is."""
    try:
        kind = Kind(slot[0])
    except (ValueError, IndexError):
        return f"unknown {slot.hex()}"
    word = kind.name.lower()
    if kind in KINDS_OF_REPLICA and len(slot) >= 9:
        inc = incarnation_of(slot)
        owner = next((m.name for m in ring.members.values() if inc in m.incs), "")
        return f"{word} of {owner or 'an agent'}, incarnation {inc:x}"
    return f"{word} of {name_of(slot)}" if kind in KINDS_OF_NAME else word


def value_text(row: Row | None) -> str:
    """A cell's value and the write that made it, for people."""
    if row is None:
        return "nothing"
    more = f", {len(row.body)} bytes" if row.body else ""
    by = f"{row.inc:x}-{row.seq}" if type(row.inc) is int else f"{row.inc!r}"
    return f"{row.major}, {row.minor}{more} (write {by})"
