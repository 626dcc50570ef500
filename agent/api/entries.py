"""Writing entries: one, a batch on one board, or a batch over several boards; and counters.

The hot path of the agent. The body's structure is checked here, what entries mean is checked where
they are applied (agent/boards/rules.py), and the answer is given when they are durable.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from aiohttp import web

from agent.api.answers import CounterAnswer, CountersAnswer, EntryAnswer, WriteAnswer
from agent.api.bodies import Decoder, path_of, refuse
from agent.api.choosing import window_of
from agent.api.freshness import Freshness
from agent.api.position import position_of
from agent.api.ranks import ranks_of
from agent.api.route import Call
from agent.api.writing import answers_of, refuse_single, submit
from agent.boards.definition import COUNTERS
from agent.boards.entry import BoardEntry, Entry
from agent.boards.tally import Group
from agent.commit import Receipt
from agent.errors import EntryError, Malformed, Refused
from agent.limits import BATCH_ENTRIES_MAX

KEY_HEADER = "Idempotency-Key"
_Many = msgspec.Meta(min_length=1, max_length=BATCH_ENTRIES_MAX)


class EntryBatch(msgspec.Struct, forbid_unknown_fields=True):
    """Entries for one board: all are counted, or none."""

    entries: Annotated[list[Entry], _Many]


class BoardEntryBatch(msgspec.Struct, forbid_unknown_fields=True):
    """Entries for several boards, each naming its own: all are counted, or none."""

    entries: Annotated[list[BoardEntry], _Many]


class CounterAdd(msgspec.Struct, forbid_unknown_fields=True):
    """An addition to a counter; `by` may be negative.

    `key` counts it once, in whichever regions it is sent; it goes with `at`, the time of the event
    (RFC 3339 or ms since 1970), unless it is a UUIDv7 or a ULID, which hold their time.
    """

    by: int | float
    key: str | None = None
    at: int | float | str | None = None


CounterBatch = Annotated[dict[str, int | float], _Many]
"""Additions to several counters, by name: all are counted, or none."""

_entry: Decoder[Entry] = Decoder(Entry)
_entry_batch: Decoder[EntryBatch] = Decoder(EntryBatch)
_board_entry_batch: Decoder[BoardEntryBatch] = Decoder(BoardEntryBatch)
_counter_add: Decoder[CounterAdd] = Decoder(CounterAdd)
_any_values: Decoder[dict[str, Any]] = Decoder(dict[str, Any])
_counter_batch: Decoder[dict[str, int | float]] = Decoder(CounterBatch)


async def write_entries(call: Call) -> web.Response:
    """POST /v1/boards/{board}/entries."""
    board = call.board_name()
    data, media = await call.body()
    body = _one_or_many(data, media)
    key = call.request.headers.get(KEY_HEADER)
    if isinstance(body, Entry):
        entries = [body]
        if key is not None:
            _take_key(body, key)
    else:
        entries = body.entries
        if key is not None:
            raise Malformed(f"{KEY_HEADER}: goes with a single entry; a batch has `key` in each")
    if call.query["rank"]:
        _check_window(call, board)
    elif call.query["window"] is not None:
        raise Malformed("window: goes with rank=true, whose ranks are those of one window")
    group = Group(board, entries, range(len(entries)))
    try:
        receipt = await submit(call, group)
    except Refused as error:
        if isinstance(body, Entry):
            refuse_single(error)
        raise
    (answers,) = answers_of(receipt, group)
    if call.query["rank"]:
        names = {entry.member for entry in entries}
        window = call.query["window"]
        ranks = await ranks_of(call.services, board, window, names, receipt.state)
        for answer in answers:
            answer.rank = ranks.get(answer.member, msgspec.UNSET)
    return _written(call, receipt, answers)


async def write_entries_of_boards(call: Call) -> web.Response:
    """POST /v1/entries."""
    data, media = await call.body()
    entries = _board_entry_batch.decode(data, media).entries
    if KEY_HEADER in call.request.headers:
        raise Malformed(f"{KEY_HEADER}: goes with a single entry; a batch has `key` in each")
    grouped: dict[str, tuple[list[BoardEntry], list[int]]] = {}
    for index, entry in enumerate(entries):
        if entry.board not in grouped:
            _check_board(call, entry.board, index)
            grouped[entry.board] = ([], [])
        mine, indexes = grouped[entry.board]
        mine.append(entry)
        indexes.append(index)
    groups = tuple(Group(board, *its) for board, its in grouped.items())
    receipt = await submit(call, *groups)
    answers: list[EntryAnswer | None] = [None] * len(entries)
    for group, its in zip(groups, answers_of(receipt, *groups), strict=True):
        for index, answer in zip(group.indexes, its, strict=True):
            answers[index] = answer
    return _written(call, receipt, [answer for answer in answers if answer is not None])


async def add_to_counter(call: Call) -> web.Response:
    """POST /v1/counters/{name}."""
    call.allow(COUNTERS)
    data, media = await call.body()
    body = _counter_add.decode(data, media)
    entry = Entry(call.path("name"), body.by, key=body.key, at=body.at)
    key = call.request.headers.get(KEY_HEADER)
    if key is not None:
        _take_key(entry, key)
    group = Group(COUNTERS, (entry,), (0,))
    try:
        receipt = await submit(call, group)
    except Refused as error:
        refuse_single(error, "by", "name")
    fresh = call.services.freshness.of(receipt.state)
    answer = _counters(receipt, group, fresh)[0]
    answer.position = position_of(receipt.state)
    return call.answer(answer)


async def add_to_counters(call: Call) -> web.Response:
    """POST /v1/counters."""
    call.allow(COUNTERS)
    data, media = await call.body()
    try:
        body = _counter_batch.decode(data, media)
    except Malformed:
        _refuse_amount(data, media)
        raise
    if KEY_HEADER in call.request.headers:
        raise Malformed(f"{KEY_HEADER}: goes with a single counter")
    group = Group(COUNTERS, [Entry(name, by) for name, by in body.items()], range(len(body)))
    try:
        receipt = await submit(call, group)
    except Refused as error:
        _name_counter(error, list(body))
        raise
    counters = _counters(receipt, group, call.services.freshness.of(receipt.state))
    return call.answer(CountersAnswer(position_of(receipt.state), counters))


def _one_or_many(data: bytes, media: str) -> Entry | EntryBatch:
    """A single entry, or a batch; which of the two is seen from the bytes.

    Both types are strict, so at most one fits. Where neither does, the error shown is that of the
    one which got further than the body's own names.
    """
    if b"entries" not in data:
        return _entry.decode(data, media)
    try:
        return _entry_batch.parse(data, media)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        as_batch: Exception = error
    try:
        return _entry.parse(data, media)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as as_single:
        if path_of(as_single) and not path_of(as_batch):
            refuse(as_single, Entry)
        refuse(as_batch, EntryBatch)


def _take_key(entry: Entry, key: str) -> None:
    if entry.key not in (None, key):
        raise Malformed(f"{KEY_HEADER}: differs from the entry's own `key`")
    entry.key = key


def _check_board(call: Call, board: str, index: int) -> None:
    """Refuse a batch over several boards early, naming the first entry of a board."""
    try:
        call.allow(board)
        call.services.queue.state.catalog.board(board)
    except Refused as error:
        error.errors = (EntryError(index, error.code, error.detail, error.hint),)
        raise


def _refuse_amount(data: bytes, media: str) -> None:
    """Refuse a batch of counters that has a value which is no number, naming the counter."""
    try:
        body = _any_values.parse(data, media)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return
    for index, (name, value) in enumerate(body.items()):
        if type(value) not in (int, float):
            detail = f"{name[:80]!r}: expected an integer, got `{type(value).__name__}`"
            raise Malformed(detail, errors=(EntryError(index, "malformed", detail),))


def _name_counter(error: Refused, names: list[str]) -> None:
    """Name the counter, instead of the field of the entry that stands for it."""
    if error.errors:
        name = names[error.errors[0].index][:80]
        error.detail = f"{name!r}: {error.detail.partition(': ')[2]}"


def _check_window(call: Call, board: str) -> None:
    """Refuse a write whose ranks are asked for in a window that is not there; an unknown board is
    for the queue to refuse.

    Raises:
        NotFound: (`unknown_window`)
    """
    state = call.services.queue.state
    found = state.catalog.find(board)
    if found is not None and found.definition is not None:
        window_of(call.services, state, found, call.query["window"])


def _counters(receipt: Receipt, group: Group, fresh: Freshness) -> list[CounterAnswer]:
    return [
        CounterAnswer(
            its.member,
            its.score["all"],
            *fresh,
            duplicate=its.duplicate,
            counted_at=its.counted_at,
        )
        for its in answers_of(receipt, group)[0]
    ]


def _written(call: Call, receipt: Receipt, answers: list[EntryAnswer]) -> web.Response:
    fresh = call.services.freshness.of(receipt.state)
    return call.answer(WriteAnswer(position_of(receipt.state), answers, *fresh))
