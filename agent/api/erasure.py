"""Erasure of a member, for privacy law: its name is closed for good, and everything under it goes.

The tombstone is written at once and spreads like any cell; each agent then removes what it holds,
keeps it from coming back, and says so. The receipt shows who has (agent/boards/erasures.py).
"""

from __future__ import annotations

from secrets import token_bytes

from aiohttp import web

from agent.api.bans import check_every_board
from agent.api.member_answers import ErasureAnswer, ErasureConfirmation
from agent.api.route import Call
from agent.boards.entry import name_bytes, rfc3339
from agent.boards.erasures import KEY_BYTES, Tombstone
from agent.crdt.space import BANS_SPACE, decode_space, is_own
from agent.errors import NotFound
from agent.operation import BoardChanged, Erase
from agent.state import State
from agent.store.snapshot import SqliteSnapshot

CELLS_COUNTED_MAX = 10_001  # of a board: a count beyond this says "many", and stays cheap
BANS = "~bans"


async def erase_member(call: Call) -> web.Response:
    """DELETE /v1/members/{member}."""
    check_every_board(call)
    services, name = call.services, call.path("member")
    member = name_bytes(name)
    if call.query["dry_run"]:
        cells = await services.readers.read(lambda snapshot: cells_of(snapshot, member))
        tombstone = services.queue.state.erased.find(member)
        answer = receipt_of(services.queue.state, name, tombstone)
        answer.changed, answer.dry_run, answer.cells = tombstone is None, True, cells
        return call.answer(answer)
    receipt = await services.queue.submit(Erase(member, token_bytes(KEY_BYTES)))
    assert isinstance(receipt.answer, BoardChanged)
    answer = receipt_of(receipt.state, name, receipt.state.erased.find(member))
    answer.changed, answer.dry_run = receipt.answer.changed, False
    return call.answer(answer)


async def show_erasure(call: Call) -> web.Response:
    """GET /v1/members/{member}."""
    check_every_board(call)
    name, state = call.path("member"), call.services.queue.state
    tombstone = state.erased.find(name_bytes(name))
    if tombstone is None:
        raise NotFound(
            "not_erased",
            f"member: {name[:80]!r} was not erased, as far as this agent knows",
            hint="DELETE /v1/members/{member} erases a name for good",
        )
    return call.answer(receipt_of(state, name, tombstone))


def receipt_of(state: State, name: str, tombstone: Tombstone | None) -> ErasureAnswer:
    """The receipt of a name; of one that is not erased, who would have to confirm.

    Once all had confirmed, the name was dropped from the tombstone: agents that came later never
    had anything of it and are not listed.
    """
    confirmed = {} if tombstone is None else dict(tombstone.confirmed)
    over = tombstone is not None and tombstone.name is None
    waiting = [] if over else [member.name for member in state.ring.active()]
    confirmations = []
    for agent in sorted({*confirmed, *waiting}):
        member, at_ms = state.ring.members.get(agent), confirmed.get(agent)
        confirmations.append(
            ErasureConfirmation(
                agent=agent,
                region=None if member is None else member.region,
                confirmed_at=None if at_ms is None else rfc3339(at_ms),
            )
        )
    complete = over or (tombstone is not None and all(agent in confirmed for agent in waiting))
    erased_at = None if tombstone is None else rfc3339(tombstone.erased_ms)
    return ErasureAnswer(name, erased_at, complete, confirmations)


def cells_of(snapshot: SqliteSnapshot, member: bytes) -> dict[str, int]:
    """By board, how many cells stand under a name as a member, each counted up to a bound.

    `~bans`, which no board is called, counts what is kept of its bans. What it did to others as
    their actor is not looked for: that can't be found by name.
    """
    counts: dict[str, int] = {}
    for space in snapshot.spaces():
        if is_own(space) and space != BANS_SPACE:
            continue
        decoded = decode_space(space)
        if decoded is None:
            continue
        board = BANS if space == BANS_SPACE else decoded.board
        left = CELLS_COUNTED_MAX - counts.get(board, 0)
        if left > 0:
            found = len(snapshot.slots_from(space, member, b"", b"", left))
            if found:
                counts[board] = counts.get(board, 0) + found
    return counts
