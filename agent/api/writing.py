"""Writing: from a request's entries to their answers, for every route that takes entries.

Rates are looked at first, then the commit queue decides; an answer says what the entry did.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NoReturn

from agent.api.answers import EntryAnswer
from agent.api.rounding import ROUNDED_RULES, rounded
from agent.api.route import Call
from agent.boards.entry import Entry, rfc3339
from agent.boards.tally import Group, Note
from agent.commit import Receipt
from agent.errors import Malformed, NotFound, NotReplicated, RateLimited, Refused, Unavailable
from agent.operation import Write, Written


async def submit(call: Call, *groups: Group) -> Receipt:
    """Have entries counted, all or none. `ack` is looked for in the call's query.

    Raises:
        Refused: nothing was stored, and nothing was taken from anybody's rate.
        Indefinite: they may have been stored.
    """
    services, counts = call.services, call.services.counts
    entries = sum(len(group.entries) for group in groups)
    ack = call.query.get("ack", "local")
    if ack not in ("local", "replicated"):
        raise Malformed(f"ack: {ack[:20]!r} is neither 'local' nor 'replicated'")
    try:
        taken = services.rates.take(services.queue.state.catalog, groups)
        try:
            _check_clock(call, groups)
            receipt = await services.queue.submit(Write(groups))
        except Refused:
            if taken:
                services.rates.give_back(taken)
            raise
    except Refused as error:
        counts.refused += entries
        if isinstance(error, RateLimited):
            counts.rate_limited += entries
        raise
    counts.accepted += entries
    if ack == "replicated":
        state, timeout_s = receipt.state, services.config.gossip.replicated_s
        if not await services.peers.replicated(state.inc, state.seq, timeout_s):
            raise NotReplicated(
                f"stored in this region; no other one has confirmed it within {timeout_s:g} s",
                hint="it will be replicated; sent again with its `key` and `at` it counts once,"
                " without one it would count twice",
            )
    return receipt


def refuse_single(error: Refused, add: str = "add", member: str = "member") -> NoReturn:
    """Raise a refusal as of an entry that stood alone, with the request's own names of fields."""
    if error.errors and not isinstance(error, NotFound):
        error.errors = ()
        field, _, rest = error.detail.removeprefix("entries[0].").partition(":")
        named = {"add": add, "member": member}.get(field, field)
        error.detail = f"{named}:{rest}"
    raise error


def _check_clock(call: Call, groups: Sequence[Group]) -> None:
    """Refuse entries whose time this agent would have to give, where its clock is far off.

    Raises:
        Unavailable: (`clock_off`)
    """
    off_ms = call.services.peers.clock_off_ms()
    if not off_ms:
        return
    for group in groups:
        board = call.services.queue.state.catalog.find(group.board)
        latest = board is not None and board.definition and board.definition.rule == "latest"
        if latest and any(entry.at is None for entry in group.entries):
            raise Unavailable(
                "clock_off",
                f"this agent's clock is {off_ms / 1000:+.0f} s off the median of the other agents',"
                f" and board {group.board!r} goes by time",
                hint="set the machine's clock; entries with an `at` of their own are taken",
            )


def answers_of(receipt: Receipt, *groups: Group) -> list[list[EntryAnswer]]:
    """What became of the entries, by group."""
    written = receipt.answer
    assert isinstance(written, Written)
    notes: tuple[Mapping[int, Note], ...] = written.notes or ({},) * len(groups)
    return [
        _answers(receipt, group, scores, its)
        for group, scores, its in zip(groups, written.scores, notes, strict=True)
    ]


def _answers(
    receipt: Receipt, group: Group, scores: list[dict[str, int]], notes: Mapping[int, Note]
) -> list[EntryAnswer]:
    entries: Sequence[Entry] = group.entries
    answers = [
        EntryAnswer(entry.member, by_window)
        for entry, by_window in zip(entries, scores, strict=True)
    ]
    for place, note in notes.items():
        answer = answers[place]
        if note.late:
            answer.late = list(note.late)
        if note.counted_ms is not None:
            answer.duplicate, answer.counted_at = True, rfc3339(note.counted_ms)
    board = receipt.state.catalog.find(group.board)
    if board is not None and board.definition and board.definition.rule in ROUNDED_RULES:
        for answer in answers:
            answer.rounded = {window: rounded(n) for window, n in answer.score.items()}
    return answers
