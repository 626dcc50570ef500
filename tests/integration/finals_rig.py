"""A board whose day is certified by one agent alone, by a clock that is moved by hand."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgpack

from agent.api.clock import ManualClock
from agent.boards.entry import time_ms
from agent.crdt.slot import Kind, slot_of_replica
from agent.limits import TIME_MS_MAX
from tests.integration.api_node import Api, is_ready, merge, row_of, running_api

NOON, EVENING = "2026-11-30T12:00:00Z", "2026-11-30T20:00:00Z"
CLOSED, GONE = "2026-12-01T00:20:00Z", "2026-12-05T00:00:00Z"
DAY = "day:2026-11-30"
DAYS = [{"name": "day", "keep": "2d"}, {"name": "all"}]
FINAL, LATE = f"/v1/boards/b/windows/{DAY}/final", f"/v1/boards/b/windows/{DAY}/late"
CERTIFY = f"/v1/boards/b/windows/{DAY}/certify"
LINES = {"Accept": "application/x-ndjson"}


def ms(text: str) -> int:
    return time_ms(text, TIME_MS_MAX)


async def set_clock(api: Api, now: str) -> None:
    assert (await api.post("/v1/clock", {"now": now})).status == 200


async def add(api: Api, **scores: int) -> None:
    entries = [{"member": name, "add": score} for name, score in scores.items()]
    answer = await api.post("/v1/boards/b/entries", {"entries": entries})
    assert answer.status == 200, answer


async def final(api: Api, query: str = "", *, version: int = 0) -> Any:
    """The final, once that version is in force."""

    async def there() -> bool:
        answer = await api.get(FINAL)
        return answer.status == 200 and answer.body["certificate"]["version"] == version

    await api.until(there)
    answer = await api.get(f"{FINAL}?{query}")
    assert answer.status == 200, answer
    return answer.body


async def certified(api: Api, **scores: int) -> Any:
    """A board of sums of which a day is certified with these scores."""
    await api.define("b", rule="sum", ties="member", windows=DAYS)
    await add(api, **scores)
    await set_clock(api, CLOSED)
    return await final(api)


async def late_row(api: Api, member: str, amount: int) -> None:
    """What another agent wrote for the day, which arrives now."""
    board = api.queue.state.catalog.board("b")
    space = board.place(board.resolve(DAY, ms(NOON))).space
    slot = slot_of_replica(Kind.UP, 99)
    await merge(api, [row_of(space, member.encode(), slot, (amount, ms(NOON), b""), 1)])


async def listed_late(api: Api, members: int) -> Any:
    async def there() -> bool:
        return bool((await api.get(LATE)).body["late"] == members)

    await api.until(there)
    return (await api.get(LATE)).body


def rows_of(answer: Any) -> list[tuple[int, str | None, int]]:
    return [(row["rank"], row["member"], row["score"]) for row in answer["entries"]]


@asynccontextmanager
async def certifying_api(folder: Path) -> AsyncIterator[Api]:
    """An agent that certifies, at NOON."""
    async with running_api(folder, clock=ManualClock(ms(NOON)), keeps=True) as running:
        await running.until(lambda: is_ready(running))
        yield running


async def raw_export(api: Api, query: str = "", **headers: str) -> tuple[int, bytes, Any]:
    async with api.session.get(f"{api.url}{FINAL}?{query}", headers=LINES | headers) as response:
        return response.status, await response.read(), dict(response.headers)


async def exported(api: Api) -> tuple[Any, list[Any], Any]:
    """The header, the rows and the end of an export."""
    status, content, headers = await raw_export(api)
    assert (status, headers["Content-Type"]) == (200, "application/x-ndjson")
    assert content.endswith(b"\n")
    header, *rows, end = [json.loads(line) for line in content.splitlines()]
    return header, rows, end


def hash_of(header: Any, rows: list[Any]) -> str:
    """The hash of rows, as docs/finals.md has it: nothing of the agent's code is used."""
    whole = sha256(b"tallyring final 1" + bytes.fromhex(header["space"]))
    for row in rows:
        member = row.get("member_digest")
        if member is None:
            member = sha256(bytes.fromhex(row["salt"]) + row["member"].encode()).hexdigest()
        said = [row["rank"], row["score"], row["reached_ms"], bytes.fromhex(member)]
        digest = sha256(msgpack.packb(said)).digest()
        assert digest.hex() == row["digest"]
        whole.update(digest)
    return whole.hexdigest()
