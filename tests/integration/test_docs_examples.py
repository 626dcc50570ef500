"""The examples of the documentation, run: the API's pages, README by hand, the Redis snippet."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import aiohttp
import msgpack
import pytest

from cluster.local_agent import free_port
from cluster.local_ring import LocalRing
from tests.unit.documents import ROOT, differences, fences, page, rows, sections, ticked

WAIT_S = 60.0
POLL_S = 0.05
JSON = {"Content-Type": "application/json"}
# (board, definition, member -> score): every way in which a composite is made
DECODED: list[tuple[str, dict[str, Any], dict[str, int]]] = [
    ("laps", {"rule": "best", "order": "low"}, {"ann": 61234, "bob": 60999, "cy": 61234}),
    ("high", {"rule": "best"}, {"ann": 5, "bob": 7}),
    ("high-last", {"rule": "best", "ties": "last"}, {"ann": 5, "bob": 7}),
    ("low-last", {"rule": "latest", "order": "low", "ties": "last"}, {"ann": -5, "bob": 7}),
    ("shared", {"rule": "latest", "ties": "shared"}, {"ann": -(2**53) + 1, "bob": 2**53 - 1}),
]


@pytest.fixture
async def ring() -> AsyncIterator[LocalRing]:
    """Two regions whose clocks stand at the time that the pages show."""
    settings = {"agent": {"clock": "manual"}, "ring": {"name": "demo"}}
    async with LocalRing(("eu", "us"), settings=settings) as made:
        async with aiohttp.ClientSession() as session:
            for agent in made.agents.values():
                now = {"now": "2026-11-30T13:00:00Z"}
                async with session.post(f"{agent.url}/v1/clock", json=now) as response:
                    assert response.status == 200
            for path in ("/v1/counters/x", "/v1/boards/counters/entries"):
                await _until(session, made["eu"].url + path, _knows_every_region)
        yield made


def _knows_every_region(status: int, answer: Any) -> list[str]:
    known = status == 200 and len(answer["as_of"]) == 2 and answer["max_lag_ms"] is not None
    return [] if known else [f"{status} {answer}"]


async def _until(
    session: aiohttp.ClientSession, url: str, wrong: Callable[[int, Any], list[str]]
) -> None:
    """GET until nothing is wrong with the answer; fails with what is."""
    found: list[str] = ["nothing was tried"]
    try:
        async with asyncio.timeout(WAIT_S):
            while found:
                async with session.get(url) as response:
                    found = wrong(response.status, await response.json(content_type=None))
                if found:
                    await asyncio.sleep(POLL_S)
    except TimeoutError:
        pytest.fail(f"{url}: {found}")


def api_examples() -> list[tuple[str, str, str | None, int, Any]]:
    """(method, path, body, status, answer) of every example on the API's page."""
    blocks = [f for f in fences(page("docs/api.md")) if f.info == "http" or f.info[:4] == "json"]
    examples = []
    for asked, answered in zip(blocks[::2], blocks[1::2], strict=True):
        first, _, body = asked.body.partition("\n")
        method, path = first.split()
        status = int(answered.info.removeprefix("json").strip() or 200)
        examples.append((method, path, body.strip() or None, status, json.loads(answered.body)))
    return examples


async def test_the_api_answers_as_its_page_shows(ring: LocalRing) -> None:
    url = ring["eu"].url
    async with aiohttp.ClientSession() as session:
        for method, path, body, status, shown in api_examples():

            def wrong(
                got: int, answer: Any, status: int = status, shown: object = shown
            ) -> list[str]:
                return differences(shown, answer) if got == status else [f"{got}: {answer}"]

            if method == "GET":
                await _until(session, url + path, wrong)
                continue
            headers = JSON if body else {}
            async with session.request(method, url + path, data=body, headers=headers) as response:
                answer = await response.json(content_type=None)
                assert wrong(response.status, answer) == [], f"{method} {path}"
            if method == "PUT" and path.count("/") == 3:
                # A board's ranks may be asked for next: they are there when it is filled.
                board = f"{url}{path.partition('?')[0]}/entries"
                await _until(session, board, lambda got, answer: [] if got == 200 else [answer])


def test_a_wrong_example_is_noticed() -> None:
    shown = {"rank": 1, "as_of": {"eu": "2026-11-30T15:21:57.916Z"}, "max_lag_ms": 3}
    later = {"rank": 1, "as_of": {"eu": "2026-12-01T15:21:57.916Z"}, "max_lag_ms": 9}
    assert differences(shown, later) == []
    for mistake in (
        {"rank": 2},
        {"max_lag_ms": None},
        {"as_of": {"eu": None}},
        {"as_of": {"us": "2026-11-30T15:21:57.916Z"}},
        {"more": 1},
    ):
        assert differences(shown, later | mistake) != [], mistake


async def test_msgpack_metrics_and_tables_are_as_documented(ring: LocalRing) -> None:
    url = ring["eu"].url
    async with aiohttp.ClientSession() as session:
        body = msgpack.packb({"by": 3})
        headers = {"Content-Type": "application/msgpack"}
        async with session.post(f"{url}/v1/counters/c", data=body, headers=headers) as response:
            assert response.content_type == "application/msgpack"
            assert msgpack.unpackb(await response.read())["value"] == 3
        async with session.get(f"{url}/metrics") as response:
            text = await response.text()
    real = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))
    metrics = page("docs/metrics.md")
    of_kind = [row for row in rows(metrics) if row[1] in ("counter", "gauge")]
    assert {ticked(row[0])[0]: row[1] for row in of_kind} == real
    labels = re.findall(r'[{,](\w+)="([^"]*)"', text)
    listed = ",".join(re.findall(r"`tallyring_\w+` \{([a-z, ]+)\}", metrics))
    assert {name for name, _ in labels} == set(listed.replace(" ", "").split(","))
    for name, value in labels:
        if name in ("phase", "alarm", "outcome"):
            assert f"`{value}`" in metrics or f'alarm="{value}"' in metrics, value

    operations = sections(page("docs/operations.md"), 2)["Inspect the file"]
    file = ring["eu"].data_dir / "tallyring.db"
    for command in fences(operations)[0].body.splitlines():
        program, *arguments = command.split()
        arguments = [str(file) if name == "data/eu/tallyring.db" else name for name in arguments]
        line = [sys.executable, "-m", Path(program).name.replace("-", "_"), *arguments]
        done = await asyncio.to_thread(subprocess.run, line, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        if "tables" in arguments:
            tables = {row.split()[0] for row in done.stdout.splitlines()[2:]}
            on_page = {ticked(row[0])[0] for row in rows(operations) if ticked(row[0])}
            assert tables - {"_sqlite_migrations"} == on_page


async def test_the_redis_snippet_reads_what_the_api_shows(ring: LocalRing) -> None:
    agent = ring["eu"]
    port = agent.redis_url.rpartition(":")[2].partition("/")[0]
    snippet = next(f.body for f in fences(page("docs/redis.md")) if f.info == "python")
    async with aiohttp.ClientSession() as session:
        for board, definition, scores in DECODED:
            url = f"{agent.url}/v1/boards/{board}"
            async with session.put(url, json=definition) as response:
                tick_ms = (await response.json())["windows"][0]["tick_ms"]
            entries = [
                {"member": member, "score": score, "at": f"2026-11-0{day}T10:20:30.456Z"}
                for day, (member, score) in enumerate(scores.items(), 1)
            ]
            async with session.post(f"{url}/entries", json={"entries": entries}) as response:
                assert response.status == 200, await response.text()
                position = (await response.json())["position"]
            await _until(
                session,
                f"{url}/entries?after={position}",
                lambda got, answer: [] if got == 200 else [str(answer)],
            )
            async with session.get(f"{url}/entries") as response:
                ranked = (await response.json())["entries"]
            code = snippet.replace("port=6379", f"port={port}").replace('"laps"', f'"{board}"')
            line = [sys.executable, "-c", code]
            done = await asyncio.to_thread(subprocess.run, line, capture_output=True, text=True)
            assert done.stdout == "".join(_line(entry, tick_ms) for entry in ranked), done.stderr
            assert len(ranked) == len(scores)


def _line(entry: dict[str, Any], tick_ms: int | None) -> str:
    """What the snippet prints for an entry of the API: its time is that of its tick."""
    reached_ms = None
    if tick_ms is not None:
        exact_ms = round(datetime.fromisoformat(entry["reached_at"]).timestamp() * 1000)
        reached_ms = exact_ms // tick_ms * tick_ms
    return f"{entry['rank']} {entry['member']} {entry['score']} {reached_ms}\n"


@pytest.mark.timeout(300)  # a dozen of commands, each a process of its own
@pytest.mark.skipif(shutil.which("curl") is None, reason="the README's lines need curl")
def test_the_readme_by_hand(tmp_path: Path) -> None:
    text = sections(page("README.md"), 2)["By hand"]
    for name in ("7401", "7402", "7411", "7412"):
        text = text.replace(name, str(free_port()))
    text = text.replace("/tmp/tallyring", shlex.quote(str(tmp_path)))  # noqa: S108 -- the page's
    text = text.replace(".venv/bin/python", sys.executable)
    blocks = fences(text.replace(".venv/bin/tallyring", f"{sys.executable} -m cluster.cli"))
    running: list[subprocess.Popen[bytes]] = []
    try:
        for block, following in zip(blocks, [*blocks[1:], None], strict=True):
            if block.info != "sh":
                continue
            if "agent --config" in block.body:
                running.append(subprocess.Popen(shlex.split(block.body), cwd=ROOT))
                config = Path(shlex.split(block.body)[-1]).read_text()
                address = re.findall(r'listen = "(.*)"', config)[0]
                _says(f"curl -s {address}/readyz || true", "text", '{"ready":true,"reasons":[]}')
            elif following is not None and following.info != "sh":
                _says(block.body, following.info, following.body)
            else:
                assert '"status":4' not in _shell(block.body)
    finally:
        for process in running:
            process.terminate()
        codes = [process.wait(WAIT_S) for process in running]
    assert codes == [0, 0]


def _shell(script: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],  # noqa: S607 -- the README is for a shell
        check=False,
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, f"{script}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def _says(script: str, form: str, shown: str) -> None:
    """Run a command that only reads until it says what the page shows."""
    wrong: list[str] = []
    for _ in range(100):
        real = _shell(script)
        if form == "json":
            wrong = differences(json.loads(shown), json.loads(real))
        else:
            wrong = [] if real == shown else [f"{script}: {real!r}, the page shows {shown!r}"]
        if not wrong:
            return
        time.sleep(POLL_S)
    pytest.fail(str(wrong))
