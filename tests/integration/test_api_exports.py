"""Exports of finals: checked by anybody, changes noticed, resumed, bounded."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import aiohttp
import pytest

from agent.api.final_export import EXPORTS_MAX
from agent.api.signing import is_signed
from agent.boards.final_lines import read_end
from agent.boards.final_rows import CHUNK_ROWS
from agent.store.lock import DATABASE
from cluster.final_file import FinalFileError, begun, verify
from tests.integration.api_node import Api
from tests.integration.finals_rig import (
    CERTIFY,
    DAY,
    FINAL,
    LINES,
    certified,
    certifying_api,
    exported,
    final,
    hash_of,
    late_row,
    raw_export,
    rows_of,
)
from tests.unit.documents import fences, page


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    async with certifying_api(tmp_path) as running:
        yield running


async def test_an_export_can_be_checked_by_anybody(api: Api, tmp_path: Path) -> None:
    shown = await certified(api, ann=5, **{"bób": 4, 'cy\n"': 4})
    header, rows, end = await exported(api)
    said = shown["certificate"]
    assert (header["ring"], header["board"], header["window"]) == ("test", "b", DAY)
    assert (header["hash"], header["members"], header["version"]) == (said["hash"], 3, 0)
    assert header["certificate"]["agents"] == ["eu-1"]
    assert [(row["row"], row["rank"], row["member"], row["score"]) for row in rows] == [
        (row, rank, name, score) for row, (rank, name, score) in enumerate(rows_of(shown))
    ]
    assert hash_of(header, rows) == said["hash"]
    keys = (await api.get("/v1/ring/keys")).body
    signing = [key for key in keys["keys"] if key["signs"]]
    assert [(key["key"], key["public_key"]) for key in signing] == [(end["key"], end["public_key"])]
    content = (await raw_export(api))[1]
    first, last = content.splitlines()[0], content.splitlines()[-1]
    assert is_signed(first, read_end(last))
    assert not is_signed(first + b" ", read_end(last))
    file = tmp_path / "final.jsonl"
    file.write_bytes(content)
    assert verify(file).header.hash == said["hash"]


CHANGES = {
    "a score": (b'"score":4', b'"score":9'),
    "a rank": (b'"rank":2', b'"rank":1'),
    "a name": (b'"bob"', b'"rob"'),
    "a time": (b'"reached_ms":17', b'"reached_ms":16'),
    "the window": (b"day:2026-11-30", b"day:2026-11-29"),
    "the ring": (b'"ring":"test"', b'"ring":"best"'),
    "the mode": (b'"unanimous"', b'"override"'),
    "the signature": (b'"signature":"', b'"signature":"00'),
    "how many rows": (b'"members":2', b'"members":1'),
    "a digest": (b'"digest":"', b'"digest":"00'),
    "two lines": (b'\n{"row":1', b'\n{"row":0'),
    "a key that stands twice": (b'"rank":2', b'"rank":9,"rank":2'),
    "the end": (b'{"rows":2', b'{"rows":3'),
    "the key": (b'"public_key":"', b'"public_key":"11'),
    "something more": (b'"}\n', b'"}\n{}\n'),
}


@pytest.mark.parametrize("what", CHANGES)
async def test_a_changed_export_is_noticed(api: Api, tmp_path: Path, what: str) -> None:
    await certified(api, ann=5, bob=4)
    content = (await raw_export(api))[1]
    file = tmp_path / "final.jsonl"
    file.write_bytes(content)
    verify(file)
    right, wrong = CHANGES[what]
    at = content.rindex(right)
    file.write_bytes(content[:at] + wrong + content[at + len(right) :])
    with pytest.raises(FinalFileError):
        verify(file)
    file.write_bytes(content[: len(content) // 2])
    with pytest.raises(FinalFileError):
        verify(file)


async def test_the_pages_own_check_says_true_and_false(api: Api, tmp_path: Path) -> None:
    snippet = next(each.body for each in fences(page("docs/finals.md")) if each.info == "python")
    await certified(api, ann=5, bob=4, cy=3)
    assert (await api.call("DELETE", "/v1/members/bob")).status == 200
    content = (await raw_export(api))[1]
    assert b'"member":null' in content
    file = tmp_path / "final.jsonl"
    for said, text in (("True", content), ("False", content.replace(b'"score":3', b'"score":8'))):
        file.write_bytes(text)
        line = [sys.executable, "-c", snippet, str(file)]
        done = await asyncio.to_thread(subprocess.run, line, capture_output=True, text=True)
        assert done.stdout.strip() == said, done.stderr


async def test_an_export_goes_on_where_it_was_cut(api: Api, tmp_path: Path) -> None:
    members = {f"m{number:05}": number + 1 for number in range(CHUNK_ROWS + 200)}
    tag = f'"{(await certified(api, **members))["certificate"]["hash"]}"'
    whole = (await raw_export(api))[1]
    lines = whole.splitlines(keepends=True)
    assert len(lines) == len(members) + 2
    file = tmp_path / "final.jsonl"
    for cut in (0, 5, len(lines[0]), len(lines[0]) + 3, len(whole) // 2, len(whole) - 7):
        file.write_bytes(whole[:cut])
        found = begun(file)
        rows, size = (0, 0) if found is None else (found.rows, found.size)
        status, rest, _ = await raw_export(api, f"offset={rows}", **{"If-Match": tag})
        assert status == 200
        if found is not None and rows == 0:
            rest = rest[len(lines[0]) :]
        assert whole[:size] + rest == whole, cut
    file.write_bytes(whole)
    found = begun(file)
    assert found is not None
    assert (found.rows, found.complete) == (len(members), True)
    file.write_bytes(b"something else\n")
    with pytest.raises(FinalFileError):
        begun(file)

    await late_row(api, "new", 10**6)
    assert (await api.post(CERTIFY, {"revise": True})).status == 200
    await final(api, version=1)
    status, problem, _ = await raw_export(api, "offset=5", **{"If-Match": tag})
    assert (status, json.loads(problem)["code"]) == (412, "final_changed")
    status, rest, _ = await raw_export(api, "offset=1200&version=0", **{"If-Match": tag})
    assert (status, rest) == (200, lines[-1])


async def test_an_export_whose_rows_are_lost_ends_without_an_end(api: Api, tmp_path: Path) -> None:
    members = {f"m{number:05}": 1 for number in range(CHUNK_ROWS + 200)}
    await certified(api, **members)
    with closing(sqlite3.connect(tmp_path / DATABASE)) as db:
        db.execute("DELETE FROM final_chunks WHERE number = 1")
        db.commit()
    with pytest.raises(aiohttp.ClientPayloadError):
        await raw_export(api)
    assert api.services.counts.exporting == 0
    assert (await api.get("/healthz")).status == 200


async def test_exports_at_once_are_bounded(api: Api) -> None:
    await certified(api, ann=1)
    api.services.counts.exporting = EXPORTS_MAX
    status, problem, headers = await raw_export(api)
    assert (status, json.loads(problem)["code"]) == (503, "busy")
    assert headers["Retry-After"] == "1"
    api.services.counts.exporting = 0
    assert (await raw_export(api))[0] == 200
    async with api.session.head(api.url + FINAL, headers=LINES) as response:
        assert (response.status, await response.read()) == (200, b"")
    assert api.services.counts.exporting == 0
