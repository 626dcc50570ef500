"""Comparing cells with another agent, fetching some of them, offering some: calls of Kind.RANGE.

    compare = [0, space, after, upto, cells, sum, log, read to]
              -> [sender, same, upto, following, read to, damaged, incs, rows]
    fetch   = [1, [[space, member, slot, inc, seq], ...]]
              -> [sender, spaces, incs, [[covered, row], ...]]
    offer   = [2, spaces, incs, rows]
              -> [sender, changed]
    place   = [member, slot]: after, upto (null: the end of the space), each of damaged
    row     = as in an exchange (agent/gossip/wire.py); in an answer to compare with one more part:
              whether the one that asks has read the log beyond it

What the calls mean is in agent/store/scrub.py. A damaged cell is never sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from agent.crdt.cell import Row
from agent.crdt.fingerprint import fits
from agent.errors import ExchangeRefused
from agent.exchange import Sender
from agent.gossip.client import Client
from agent.gossip.frame import (
    Call,
    Frame,
    Kind,
    array,
    boolean,
    integer,
    octets,
    pack,
    pack_call,
    pack_sender,
    read_sender,
    refuse,
    unpack,
)
from agent.gossip.link import Link
from agent.gossip.peers import Peers
from agent.gossip.wire import read_row
from agent.limits import INT64_MIN, MEMBER_BYTES_MAX, SLOT_BYTES_MAX, SPACE_BYTES_MAX
from agent.operation import Merged, Repair
from agent.store.readers import Readers
from agent.store.scrub import Held, Page, PageAnswer, Place, answer_page
from agent.store.snapshot import SqliteSnapshot
from agent.store.verdict import Found, Wanted, find

COMPARE, FETCH, OFFER = 0, 1, 2
CELLS_MAX = 5_000  # in one call


class Ranges:
    """Makes and answers the calls.

    Args:
        peers: what is known of the others.
        client: the sockets.
        readers: where snapshots are read, beside those of the exchanges.

    `repaired` is told when a peer's offer has changed something.
    """

    def __init__(self, peers: Peers, client: Client, readers: Readers) -> None:
        self._peers = peers
        self._client = client
        self._readers = readers
        self.repaired: Callable[[], None] = lambda: None

    # --- calling ---------------------------------------------------------------------------

    async def compare(self, link: Link, page: Page) -> PageAnswer:
        """What a peer has where this agent has a page.

        Raises:
            ExchangeRefused: the peer could not be reached, or one of the two refused.
        """
        upto = None if page.upto is None else list(page.upto)
        body = [COMPARE, page.space, list(page.after), upto, len(page.cells), page.sum]
        frame = await self._call(link, [*body, link.log, page.read_to])
        return await asyncio.to_thread(self._read_compared, link, frame, page.space)

    async def fetch(self, link: Link, wanted: Sequence[Wanted]) -> list[Found]:
        """What a peer has of cells that are damaged here.

        Raises:
            ExchangeRefused: the peer could not be reached, or one of the two refused.
        """
        items = [[*key, inc, seq] for key, inc, seq in wanted]
        frame = await self._call(link, [FETCH, items])
        fields = array(unpack(frame), "answer", 4)
        self._check(link, fields[0])
        spaces, incs = _read_tables(fields[1], fields[2])
        found = []
        for item in array(fields[3], "cells"):
            covered, row = array(item, "cell", 2)
            found.append(
                Found(
                    boolean(covered, "covered"),
                    None if row is None else read_row(row, spaces, incs),
                )
            )
        if len(found) != len(wanted):
            refuse("malformed", f"cells: {len(found)}, asked for {len(wanted)}")
        for (key, _, _), (_, row) in zip(wanted, found, strict=True):
            if row is not None and row.key != key:
                refuse("malformed", "cells: not the one that was asked for")
        return found

    async def offer(self, link: Link, rows: Sequence[Row]) -> int:
        """Tell a peer of cells that it lacks, or that are damaged there; how many it took.

        Raises:
            ExchangeRefused: the peer could not be reached, or one of the two refused.
        """
        frame = await self._call(link, [OFFER, *_with_tables(rows)])
        sender, changed = array(unpack(frame), "answer", 2)
        self._check(link, sender)
        return integer(changed, "changed", 0)

    async def _call(self, link: Link, body: list[Any]) -> Frame:
        peers = self._peers
        call = Call(Kind.RANGE, peers.config.ring.name, peers.next_number(), peers.me(), body)
        payload = await asyncio.to_thread(pack_call, call)
        return await self._client.call_again(link, peers.secrets.current(), payload)

    def _check(self, link: Link, sender: Any) -> Sender:
        who = read_sender(sender)
        if who.agent != link.name:
            raise ExchangeRefused("refused", f"{link.url} is agent {who.agent!r}")
        return who

    def _read_compared(self, link: Link, frame: Frame, space: bytes) -> PageAnswer:
        fields = array(unpack(frame), "answer", 8)
        sender, same, upto, following, read_to, damaged, incs, rows = fields
        self._check(link, sender)
        _, incs = _read_tables((), incs)
        cells = []
        for row in array(rows, "rows"):
            read = read_row(row, (space,), incs)
            cells.append(Held(read, boolean(row[8] if len(row) > 8 else None, "settled")))
        return PageAnswer(
            same=boolean(same, "same"),
            upto=_read_place(upto, "upto"),
            cells=tuple(cells),
            damaged=tuple(_place(each, "damaged") for each in array(damaged, "damaged")),
            read_to=integer(read_to, "read_to", 0),
            following=None
            if following is None
            else octets(following, "following", SPACE_BYTES_MAX),
        )

    # --- answering -------------------------------------------------------------------------

    async def answer(self, call: Call) -> bytes:
        """Answer a call of Kind.RANGE.

        Raises:
            ExchangeRefused: malformed or too_large.
            Refused: the writer is busy.
        """
        what, *parts = call.body or (None,)
        if what == COMPARE:
            return await self._answer_compare(call, array(tuple(parts), "compare", 7))
        if what == FETCH:
            return await self._answer_fetch(array(tuple(parts), "fetch", 1)[0])
        if what != OFFER:
            refuse("malformed", "range: is none of compare, fetch and offer")
        return await self._answer_offer(*array(tuple(parts), "offer", 3))

    async def _answer_compare(self, call: Call, fields: tuple[Any, ...]) -> bytes:
        space, after, upto, count, total, log, read_to = fields
        me = self._peers.me()
        asked = Page(
            space=octets(space, "space", SPACE_BYTES_MAX),
            after=_place(after, "after"),
            upto=_read_place(upto, "upto"),
            cells=(),
            damaged=(),
            sum=integer(total, "sum", INT64_MIN),
            read_to=integer(read_to, "read_to", 0) if log == me.log else 0,
        )
        if integer(count, "cells", 0) > CELLS_MAX:
            refuse("too_large", f"cells: {count}, at most {CELLS_MAX}")

        def build(snapshot: SqliteSnapshot) -> bytes:
            said = answer_page(snapshot, asked, count, call.sender.log)
            _, incs, rows = _with_tables(held.row for held in said.cells)
            for row, held in zip(rows, said.cells, strict=True):
                row[0] = 0
                row.append(held.settled)
            upto = None if said.upto is None else list(said.upto)
            head = [pack_sender(me), said.same, upto, said.following, said.read_to]
            return pack([*head, [list(place) for place in said.damaged], incs, rows])

        return await self._readers.read(build)

    async def _answer_fetch(self, items: Any) -> bytes:
        wanted = []
        for item in _bounded(items, "cells"):
            space, member, slot, inc, seq = array(item, "cell", 5)
            key = (octets(space, "space", SPACE_BYTES_MAX), *_place((member, slot), "cell"))
            wanted.append(
                Wanted(key, integer(inc, "inc", INT64_MIN), integer(seq, "seq", INT64_MIN))
            )
        me = self._peers.me()

        def build(snapshot: SqliteSnapshot) -> bytes:
            found = find(snapshot, wanted)
            spaces, incs, rows = _with_tables(row for _, row in found if row is not None)
            rest = iter(rows)
            cells = [[covered, None if row is None else next(rest)] for covered, row in found]
            return pack([pack_sender(me), spaces, incs, cells])

        return await self._readers.read(build)

    async def _answer_offer(self, spaces: Any, incs: Any, rows: Any) -> bytes:
        spaces, incs = _read_tables(spaces, incs)
        offered = [read_row(row, spaces, incs) for row in _bounded(rows, "rows")]

        def damaged(snapshot: SqliteSnapshot) -> set[tuple[bytes, bytes, bytes]]:
            found = ((row.key, snapshot.cell(row.key)) for row in offered)
            return {key for key, cell in found if cell is not None and not fits(*cell)}

        bad = await self._readers.read(damaged)
        for key in bad:
            self._peers.found_damage(key)
        good = tuple(row for row in offered if row.key not in bad)
        changed = 0
        if good:
            answer = (await self._peers.queue.submit(Repair(good))).answer
            changed = answer.changed if isinstance(answer, Merged) else 0
            if changed:
                self.repaired()
        return pack([pack_sender(self._peers.me()), changed])


def _with_tables(rows: Iterable[Row]) -> tuple[list[bytes], list[int], list[list[Any]]]:
    """(spaces, incarnations, rows that point into these)."""
    spaces: dict[bytes, int] = {}
    incs: dict[int, int] = {}
    packed = [
        [
            spaces.setdefault(row.space, len(spaces)),
            *row[1:6],
            incs.setdefault(row.inc, len(incs)),
            row.seq,
        ]
        for row in rows
    ]
    return list(spaces), list(incs), packed


def _read_tables(spaces: Any, incs: Any) -> tuple[tuple[bytes, ...], tuple[int, ...]]:
    return (
        tuple(octets(space, "spaces", SPACE_BYTES_MAX) for space in array(spaces, "spaces")),
        tuple(integer(inc, "incs", 1) for inc in array(incs, "incs")),
    )


def _read_place(value: Any, field: str) -> Place | None:
    return None if value is None else _place(value, field)


def _place(value: Any, field: str) -> Place:
    member, slot = array(value, field, 2)
    return octets(member, field, MEMBER_BYTES_MAX), octets(slot, field, SLOT_BYTES_MAX)


def _bounded(value: Any, field: str) -> tuple[Any, ...]:
    items = array(value, field)
    if len(items) > CELLS_MAX:
        refuse("too_large", f"{field}: {len(items)}, at most {CELLS_MAX}")
    return items
