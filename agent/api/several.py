"""Several reads in one request, over any boards: each is answered, or says why it is not."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated

import msgspec
from aiohttp import web

from agent.api.answers import ReadsAnswer
from agent.api.bodies import Decoder
from agent.api.problem import problem_of
from agent.api.ranks import member_answer, member_answers, page_answer
from agent.api.route import Call
from agent.boards.catalog import Placed
from agent.boards.entry import name_bytes
from agent.errors import Refused
from agent.limits import NEIGHBORS_MAX

READS_MAX = 100
TOP_MAX = 100  # members of one page


class Read(msgspec.Struct, forbid_unknown_fields=True):
    """One read: a member's rank, with neighbours and its rank in the window before if wanted, or
    without `member` the top of a window. `window` as in other reads."""

    board: str
    window: str | None = None
    member: str | None = None
    neighbors: Annotated[int, msgspec.Meta(ge=0, le=NEIGHBORS_MAX)] = 0
    previous: bool = False
    limit: Annotated[int, msgspec.Meta(ge=1, le=TOP_MAX)] = 10


class ReadsRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Reads, answered in this order."""

    reads: Annotated[list[Read], msgspec.Meta(min_length=1, max_length=READS_MAX)]


_reads: Decoder[ReadsRequest] = Decoder(ReadsRequest)


async def show_several(call: Call) -> web.Response:
    """POST /v1/ranks."""
    reads = _reads.decode(*await call.body()).reads
    alone: dict[tuple[str, str | None], list[int]] = {}  # members and nothing more, by window
    others = []
    for at, read in enumerate(reads):
        if read.member is not None and not read.neighbors and not read.previous:
            alone.setdefault((read.board, read.window), []).append(at)
        else:
            others.append(at)
    answers: list[object] = [None] * len(reads)
    async with asyncio.TaskGroup() as group:
        tasks = {at: group.create_task(_one(call, reads[at])) for at in others}
        many = [
            (its, group.create_task(_members(call, [reads[at] for at in its])))
            for its in alone.values()
        ]
    for at, task in tasks.items():
        answers[at] = task.result()
    for its, found in many:
        for at, answer in zip(its, found.result(), strict=True):
            answers[at] = answer
    return call.answer(ReadsAnswer(answers))


async def _one(call: Call, read: Read) -> object:
    try:
        placed = _placed(call, read)
        if read.member is None:
            return (await page_answer(call.services, placed, 0, read.limit))[0]
        name_bytes(read.member)
        return await member_answer(
            call.services, placed, read.member, read.neighbors, previous=read.previous
        )
    except Refused as error:
        return problem_of(error)


async def _members(call: Call, reads: Sequence[Read]) -> list[object]:
    """Members of one window, of one look."""
    names = {at: read.member for at, read in enumerate(reads) if read.member is not None}
    answers: list[object] = [None] * len(reads)
    for at, name in list(names.items()):
        try:
            name_bytes(name)
        except Refused as error:
            answers[at] = problem_of(error)
            del names[at]
    found: Sequence[object]
    try:
        placed = _placed(call, reads[0])
        found = await member_answers(call.services, placed, list(names.values()))
    except Refused as error:
        found = [error] * len(names)
    for at, answer in zip(names, found, strict=True):
        answers[at] = problem_of(answer) if isinstance(answer, Refused) else answer
    return answers


def _placed(call: Call, read: Read) -> Placed:
    call.allow(read.board)
    return call.placed_in(read.board, read.window)
