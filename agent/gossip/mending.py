"""Mending: cells that do not hold what was written to them get it back from the other agents."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import structlog

from agent.crdt.cell import Key, Row
from agent.crdt.fingerprint import Stored
from agent.crdt.slot import COUNTER_KINDS, Kind
from agent.crdt.total import Total
from agent.errors import ExchangeRefused, TallyringError
from agent.gossip.peers import Peers
from agent.gossip.ranges import Ranges
from agent.limits import MEMBER_BYTES_MAX, SLOT_BYTES_MAX
from agent.operation import Burn, Mend
from agent.store.readers import Readers
from agent.store.scrub import Pair, whole
from agent.store.snapshot import SqliteSnapshot
from agent.store.verdict import Found, Verdict, Wanted, judge

log = structlog.get_logger("tallyring.repair")

MEND_CELLS_MAX = 200  # at a time
MEND_AGAIN_S = 5.0  # until what could not be mended is tried again
_TOLD_BY_TOTAL = COUNTER_KINDS | {Kind.VOID}


@dataclass(slots=True)
class RepairCounts:
    """What repair did since the start.

    cells: looked at. passes: over all cells. recounts: of all sums.
    damaged: cells that were found damaged. mended: those that are right again.
    lost: of these, cells of which no agent had what they held.
    repaired: cells that a peer had and this agent should have had. sums: sums put right.
    """

    cells: int = 0
    passes: int = 0
    recounts: int = 0
    damaged: int = 0
    mended: int = 0
    lost: int = 0
    repaired: int = 0
    sums: int = 0


_Look: TypeAlias = tuple[Stored, Total | None, Total | None]


class Mender:
    """Mends what is found damaged until it is cancelled.

    Args:
        peers: what is known of the others, and of damage.
        ranges: how they are asked.
        readers: where cells are read.
        mended: told after something was mended.
    """

    def __init__(
        self, peers: Peers, ranges: Ranges, readers: Readers, mended: Callable[[], None]
    ) -> None:
        self._peers = peers
        self._ranges = ranges
        self._readers = readers
        self._mended = mended
        self._mending = asyncio.Lock()
        self.counts = RepairCounts()

    async def run(self) -> None:
        """Mend for ever what is found."""
        peers = self._peers
        while True:
            peers.damage_found.clear()
            try:
                if peers.damaged:
                    await self.mend(list(peers.damaged)[:MEND_CELLS_MAX])
            except TallyringError as error:  # the writer is busy, say
                log.warning("damaged cells wait", error=str(error))
            try:
                async with asyncio.timeout(MEND_AGAIN_S if peers.damaged else None):
                    await peers.damage_found.wait()
            except TimeoutError:
                pass

    async def mend(self, keys: Sequence[Key], *, decide: bool = False) -> dict[Key, Verdict]:
        """Mend damaged cells from all other agents; what became of each that was damaged.

        Args:
            decide: do not wait for agents that do not answer now, though they may have it.

        Raises:
            Refused, Indefinite: the change was not stored.
            StoreError: the file can't be read.
        """
        async with self._mending:
            cells = await self._readers.read(lambda found: [_look(found, key) for key in keys])
            damaged = {key: look for key, look in zip(keys, cells, strict=True) if look}
            for key in keys:
                if key not in damaged:
                    self._peers.damaged.pop(key, None)  # it is whole again
            verdicts = await self._judge(damaged, decide=decide)
            await self._put(damaged, verdicts)
            self._raise_alarm()
            return verdicts

    async def _judge(self, damaged: dict[Key, _Look], *, decide: bool) -> dict[Key, Verdict]:
        answers, silent = await self._ask_all(damaged)

        def judge_all() -> dict[Key, Verdict]:
            return {
                key: judge(cell, total, others, answers[key], silent, decide=decide)
                for key, (cell, total, others) in damaged.items()
            }

        return await asyncio.to_thread(judge_all)

    async def _ask_all(
        self, damaged: dict[Key, _Look]
    ) -> tuple[dict[Key, dict[str, Found]], list[str]]:
        """(by cell and agent what it has, the agents that do not answer)."""
        wanted = [
            Wanted(key, *(part if type(part) is int else 0 for part in look[0].row[6:8]))
            for key, look in damaged.items()
            if len(key[1]) <= MEMBER_BYTES_MAX and 0 < len(key[2]) <= SLOT_BYTES_MAX
        ]
        others = [member.name for member in self._peers.others()]
        async with asyncio.TaskGroup() as tasks:
            asked = {name: tasks.create_task(self._ask(name, wanted)) for name in others}
        answers: dict[Key, dict[str, Found]] = {key: {} for key in damaged}
        silent = []
        for name, task in asked.items():
            found = task.result()
            if found is None:
                silent.append(name)
                continue
            for each, what in zip(wanted, found, strict=True):
                answers[each.key][name] = what
        return answers, silent

    async def _ask(self, name: str, wanted: Sequence[Wanted]) -> list[Found] | None:
        link = self._peers.link_of(name)
        if link is None:
            return None
        try:
            return await self._ranges.fetch(link, wanted) if wanted else []
        except ExchangeRefused as error:
            log.info("a peer can't be asked for damaged cells", peer=name, error=str(error))
            return None

    async def _put(self, damaged: dict[Key, _Look], verdicts: dict[Key, Verdict]) -> None:
        """Put the rows that were found in place, and say loudly what is lost."""
        peers, queue = self._peers, self._peers.queue
        rows = tuple(verdict.row for verdict in verdicts.values() if verdict.row is not None)
        if rows:
            await queue.submit(Mend(rows))
            self._mended()
        own = queue.state.inc
        for key, verdict in verdicts.items():
            known = peers.damaged.get(key)
            self.counts.damaged += known in (None, "not looked at yet")
            cell, there = damaged[key][0], verdict.row
            said = told(Pair(cell.row, there))
            if there is None:
                if known != verdict.why:
                    log.error("a damaged cell can't be mended", **said, why=verdict.why)
                peers.damaged[key] = verdict.why
                continue
            peers.damaged.pop(key, None)
            self.counts.mended += 1
            if not verdict.lost:
                log.warning("a damaged cell is mended", **said, why=verdict.why)
                continue
            self.counts.lost += 1
            log.error("what a cell held is lost: no agent had it", **said, why=verdict.why)
            peers.alarms["tail_lost"] = (
                f"what {self.counts.lost} damaged cells held had reached no other agent and is"
                f" lost; the last: {said['board']}/{said['member']}"
            )
            if cell.row.inc == own:
                await queue.submit(Burn(own, "a damaged cell of it held what no other agent has"))

    def _raise_alarm(self) -> None:
        damaged = self._peers.damaged
        if not damaged:
            self._peers.alarms.pop("damaged", None)
            return
        (board, member, _), why = named(next(iter(damaged))), next(iter(damaged.values()))
        self._peers.alarms["damaged"] = (
            f"{len(damaged)} cells do not hold what was written to them, the first"
            f" {board}/{member}: {why}; 'tallyring audit --repair' decides with those that answer"
        )


def _look(snapshot: SqliteSnapshot, key: Key) -> _Look | None:
    """A damaged cell, and what may tell what it held: see agent.store.verdict.from_total."""
    space, member, slot = key
    found = snapshot.cell(key)
    if found is None or whole(Stored(*found, 0)):
        return None
    total = others = None
    if slot[:1] and slot[0] in _TOLD_BY_TOTAL:
        kept = snapshot.totals_kept(space, member, member + b"\0")
        total = kept[0][1] if kept else None
        if total is not None:
            others = snapshot.added_up(space, member, without=slot)
    return Stored(*found, 0), total, others


def named(key: Key) -> tuple[str, str, str]:
    """(board, member, slot) of a cell, for people."""
    space, member, slot = key
    board = space[1 : 1 + space[0]].decode(errors="backslashreplace") if space else ""
    return board, member.decode(errors="backslashreplace"), slot.hex()


def told(pair: Pair) -> dict[str, object]:
    """A cell, for the log."""
    row = pair.here or pair.there
    assert row is not None
    board, member, slot = named(row.key)
    return {
        "board": board,
        "member": member,
        "slot": slot,
        "here": _value(pair.here),
        "there": _value(pair.there),
    }


def _value(row: Row | None) -> str:
    if row is None:
        return "nothing"
    return f"{row[3:6]!r} of write {row.inc:x}-{row.seq}"
