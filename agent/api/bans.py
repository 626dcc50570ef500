"""Bans: hide a member from one board or from all, lift that, and see who is hidden and why.

A ban wins over any score, in every region, whatever arrives later; how: agent/boards/bans.py.
"""

from __future__ import annotations

import msgspec
from aiohttp import web

from agent.api.bodies import Decoder
from agent.api.member_answers import BanAnswer, BanChange, BansAnswer, ListedBan
from agent.api.position import position_of
from agent.api.route import Call
from agent.api.slot_pages import check_open
from agent.boards.bans import EVERYWHERE, Ban, ban_of, history_of
from agent.boards.entry import name_bytes, rfc3339, time_ms
from agent.commit import Receipt
from agent.crdt import flag
from agent.crdt.slot import Kind
from agent.crdt.space import BANS_SPACE
from agent.errors import Forbidden, Malformed, OutOfRange, TooLarge
from agent.limits import HISTORY_BANS_MAX, TIME_MS_MAX
from agent.operation import BoardChanged, LiftBan, SetBan
from agent.state import State
from agent.store.snapshot import SqliteSnapshot

REASON_CHARACTERS_MAX = 500
REASON_BYTES_MAX = 900  # of UTF-8: it shares a cell's 1,024 bytes with who and when
BY_CHARACTERS_MAX = 24  # of a token's name, at most 96 bytes
PAGE_CELLS_MAX = 20_000  # looked at for one page of the list


class BanRequest(msgspec.Struct, forbid_unknown_fields=True):
    """A ban: until a time (RFC 3339, or ms since 1970; left out: until it is lifted), and why."""

    until: int | float | str | None = None
    reason: str = ""


_request: Decoder[BanRequest] = Decoder(BanRequest)


async def put_ban(call: Call) -> web.Response:
    """PUT /v1/boards/{board}/bans/{member}."""
    board = call.board_name()
    call.services.queue.state.catalog.board(board)
    return await _set(call, board)


async def put_ban_everywhere(call: Call) -> web.Response:
    """PUT /v1/bans/{member}."""
    check_every_board(call)
    return await _set(call, EVERYWHERE)


async def delete_ban(call: Call) -> web.Response:
    """DELETE /v1/boards/{board}/bans/{member}."""
    return await _lift(call, _board_or_its_ban(call))


async def delete_ban_everywhere(call: Call) -> web.Response:
    """DELETE /v1/bans/{member}."""
    check_every_board(call)
    return await _lift(call, EVERYWHERE)


async def show_ban(call: Call) -> web.Response:
    """GET /v1/boards/{board}/bans/{member}."""
    return await _show(call, _board_or_its_ban(call))


async def show_ban_everywhere(call: Call) -> web.Response:
    """GET /v1/bans/{member}."""
    return await _show(call, EVERYWHERE)


def check_every_board(call: Call) -> None:
    """Refuse a token that is for some boards where all of them are meant.

    Raises:
        Forbidden
    """
    if call.caller.boards != "*":
        raise Forbidden(
            f"token {call.caller.name!r} is not for all boards",
            hint=f"its boards: {call.caller.boards}",
        )


def _board_or_its_ban(call: Call) -> str:
    """The board of the path: known, or at least the member was banned on it once."""
    name = call.board_name()
    state = call.services.queue.state
    member = name_bytes(call.path("member"))
    if not any(ban.board == name for ban in state.bans.of(member)):
        state.catalog.board(name)
    return name


async def _set(call: Call, board: str) -> web.Response:
    request = BanRequest()
    if call.request.can_read_body:
        request = _request.decode(*await call.body())
    member = name_bytes(call.path("member"))
    until_ms = _until_ms(request.until, call.services.board_now_ms())
    reason = checked_reason(request.reason)
    operation = SetBan(member, board, until_ms, reason, call.caller.name[:BY_CHARACTERS_MAX])
    return await _changed(call, board, await call.services.queue.submit(operation))


async def _lift(call: Call, board: str) -> web.Response:
    member = name_bytes(call.path("member"))
    check_open(call.services.queue.state, member)
    reason = checked_reason(call.query["reason"] or "")
    operation = LiftBan(member, board, reason, call.caller.name[:BY_CHARACTERS_MAX])
    return await _changed(call, board, await call.services.queue.submit(operation))


async def _changed(call: Call, board: str, receipt: Receipt) -> web.Response:
    assert isinstance(receipt.answer, BoardChanged)
    answer = await _answer(call, board, receipt.state)
    answer.changed = receipt.answer.changed
    answer.position = position_of(receipt.state)
    return call.answer(answer)


async def _show(call: Call, board: str) -> web.Response:
    state = call.services.queue.state
    check_open(state, name_bytes(call.path("member")))
    return call.answer(await _answer(call, board, state))


async def _answer(call: Call, board: str, state: State) -> BanAnswer:
    """The ban as a state has it, with its history as the file has it, which is no older."""
    member = name_bytes(call.path("member"))
    start = bytes([Kind.FLAG]) + board.encode() + b"\0"
    most = HISTORY_BANS_MAX * max(1, len(state.ring.members))
    slots = await call.services.readers.read(
        lambda snapshot: snapshot.slots_from(BANS_SPACE, member, start, b"", most)
    )
    standing = {ban.board: ban for ban in state.bans.of(member)}
    ban = standing.get(board)
    hiding = [its for its in (ban, standing.get(EVERYWHERE)) if its is not None and its.on]
    return BanAnswer(
        board=board or None,
        member=call.path("member"),
        banned=ban is not None and ban.on,
        hidden=bool(hiding),
        until=None if ban is None else _until(ban),
        reason=None if ban is None else ban.reason,
        by=None if ban is None else ban.by,
        at=None if ban is None else rfc3339(ban.at_ms),
        history=[
            BanChange(its.on, rfc3339(its.at_ms), its.by, _until(its), its.reason)
            for its in history_of(slots, board)
        ],
    )


async def list_bans(call: Call) -> web.Response:
    """GET /v1/bans."""
    board, after = call.query["board"], call.query["after"]
    if board is not None:
        call.allow(board)
    start = b"" if after is None else name_bytes(after, "after")
    limit = call.query["limit"]
    state = call.services.queue.state

    def shown(member: bytes, ban: Ban) -> bool:
        if not ban.on or state.erased.closed(member):
            return False
        return ban.board == EVERYWHERE or (
            call.caller.allows(ban.board) if board is None else ban.board == board
        )

    def look(snapshot: SqliteSnapshot) -> BansAnswer:
        answer, member, looked = BansAnswer([], None), start, 0
        while members := snapshot.members_after(BANS_SPACE, member, 1_000):
            for member, slots in members:
                looked += len(slots)
                for slot, value in sorted(slots):
                    if slot[0] == Kind.FLAG and b"\0" not in slot and flag.is_on(value):
                        ban = ban_of(slot[1:].decode(errors="replace"), value)
                        if shown(member, ban):
                            answer.bans.append(_listed(member, ban))
                if len(answer.bans) >= limit or looked >= PAGE_CELLS_MAX:
                    answer.next = member.decode(errors="replace")
                    return answer
        return answer

    return call.answer(await call.services.readers.read(look))


def _listed(member: bytes, ban: Ban) -> ListedBan:
    return ListedBan(
        member=member.decode(errors="replace"),
        board=ban.board or None,
        at=rfc3339(ban.at_ms),
        by=ban.by,
        until=_until(ban),
        reason=ban.reason,
    )


def _until(ban: Ban) -> str | None:
    return None if ban.until_ms is None else rfc3339(ban.until_ms)


def _until_ms(until: int | float | str | None, now_ms: int) -> int | None:
    """When a ban ends by itself.

    Raises:
        Malformed: not a time.
        OutOfRange: not in the future.
    """
    if until is None:
        return None
    ms = time_ms(until, TIME_MS_MAX, "until")
    if ms <= now_ms:
        raise OutOfRange(
            "out_of_range",
            f"until: {rfc3339(ms)} is not after {rfc3339(now_ms)}, this agent's time",
            hint="leave it out for a ban until it is lifted",
        )
    return ms


def checked_reason(reason: str) -> str:
    """A reason that fits.

    Raises:
        Malformed, TooLarge
    """
    try:
        size = len(reason.encode())
    except UnicodeEncodeError:
        raise Malformed("reason: not valid Unicode (an unpaired surrogate)") from None
    if len(reason) > REASON_CHARACTERS_MAX:
        raise TooLarge(f"reason: {len(reason)} characters, at most {REASON_CHARACTERS_MAX}")
    if size > REASON_BYTES_MAX:
        raise TooLarge(f"reason: {size} bytes of UTF-8, at most {REASON_BYTES_MAX}")
    return reason
