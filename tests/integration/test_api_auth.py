"""Who may call: tokens with scopes and boards, re-read while the agent runs; the manual clock."""

from __future__ import annotations

import hashlib
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from agent.api.auth import LOOK_AGAIN_S, Auth, read_tokens
from agent.api.clock import ManualClock
from agent.errors import ConfigError
from tests.integration.api_node import Answer, Api, running_api

pytestmark = pytest.mark.asyncio(loop_scope="module")

START_MS = 1_700_000_000_000


def token(name: str, scopes: str, boards: str = "*") -> str:
    digest = hashlib.sha256(name.encode()).hexdigest()
    listed = ", ".join(f'"{scope}"' for scope in scopes.split())
    return (
        f'[[token]]\nname = "{name}"\nsha256 = "{digest}"\n'
        f'scopes = [{listed}]\nboards = "{boards}"\n'
    )


TOKENS = (
    token("boss", "read write admin")
    + token("reader", "read")
    + token("writer", "write")
    + token("season", "read write", "season-*")
)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def api(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Api]:
    folder = tmp_path_factory.mktemp("auth")
    (folder / "tokens.toml").write_text(TOKENS)
    clock = ManualClock(START_MS)
    async with running_api(folder, clock=clock, tokens_file="tokens.toml") as running:
        for board in ("season-1", "other"):
            answer = await call(running, "boss", "PUT", f"/v1/boards/{board}", {"rule": "sum"})
            assert answer.status == 200
        yield running


async def call(api: Api, who: str | None, method: str, path: str, body: object = None) -> Answer:
    headers = {} if who is None else {"Authorization": f"Bearer {who}"}
    return await api.call(method, path, body, headers=headers)


ADD = {"member": "m", "add": 1}


@pytest.mark.parametrize(
    ("who", "method", "path", "body", "status"),
    [
        (None, "GET", "/healthz", None, 200),
        (None, "GET", "/v1/ring", None, 401),
        (None, "POST", "/v1/counters/x", {"by": 1}, 401),
        ("nobody", "GET", "/v1/ring", None, 401),
        ("reader", "GET", "/v1/ring", None, 200),
        ("reader", "GET", "/metrics", None, 200),
        ("reader", "POST", "/v1/counters/x", {"by": 1}, 403),
        ("writer", "POST", "/v1/counters/x", {"by": 1}, 200),
        ("writer", "GET", "/v1/counters/x", None, 403),
        ("writer", "PUT", "/v1/boards/new", {"rule": "sum"}, 403),
        ("writer", "POST", "/v1/boards/other/reset", None, 403),
        ("writer", "DELETE", "/v1/boards/other", None, 403),
        ("writer", "POST", "/v1/clock", {"now": START_MS + 1}, 403),
        ("season", "POST", "/v1/boards/season-1/entries", ADD, 200),
        ("season", "POST", "/v1/boards/other/entries", ADD, 403),
        ("season", "GET", "/v1/boards/other", None, 403),
        ("season", "GET", "/v1/boards/other/entries", None, 403),
        ("season", "GET", "/v1/boards/other/entries/m", None, 403),
        ("season", "GET", "/v1/counters/x", None, 403),
        ("season", "POST", "/v1/counters", {"x": 1}, 403),
        ("season", "POST", "/v1/entries", {"entries": [ADD | {"board": "season-1"}]}, 200),
        ("season", "POST", "/v1/entries", {"entries": [ADD | {"board": "other"}]}, 403),
    ],
)
async def test_scopes_and_boards(
    api: Api, who: str | None, method: str, path: str, body: object, status: int
) -> None:
    before = api.queue.state.lsn
    answer = await call(api, who, method, path, body)
    assert answer.status == status, answer
    if status >= 400:
        assert answer.code == {401: "unauthorized", 403: "forbidden"}[status]
        assert api.queue.state.lsn == before
    if status == 401:
        assert answer.headers["WWW-Authenticate"] == "Bearer"


async def test_the_list_shows_the_boards_of_the_token(api: Api) -> None:
    listed = await call(api, "season", "GET", "/v1/boards")
    assert [board["board"] for board in listed.body["boards"]] == ["season-1"]


async def test_peers_need_no_token(api: Api) -> None:
    async with api.session.post(f"{api.url}/v1/peer", data=b"x") as response:
        assert response.status == 200


async def test_the_manual_clock_moves_forward_only(api: Api) -> None:
    moved = await call(api, "boss", "POST", "/v1/clock", {"now": "2024-01-01T00:00:00Z"})
    assert (moved.status, moved.body["now_ms"]) == (200, 1_704_067_200_000)
    body = {"rule": "latest", "ties": "member"}
    await call(api, "boss", "PUT", "/v1/boards/timed", body)
    await call(api, "boss", "POST", "/v1/boards/timed/entries", {"member": "m", "score": 1})
    assert await api.services.projector.wait_for("timed", "all", 60.0, lsn=api.queue.state.lsn)
    shown = await call(api, "boss", "GET", "/v1/boards/timed/entries/m")
    assert shown.body["reached_at"] == "2024-01-01T00:00:00.000Z"
    ahead = {"member": "m", "score": 1, "at": "2024-01-01T00:01:01Z"}
    early = await call(api, "boss", "POST", "/v1/boards/timed/entries", ahead)
    assert (early.status, early.code) == (422, "out_of_range")
    back = await call(api, "boss", "POST", "/v1/clock", {"now": START_MS})
    assert (back.status, back.code) == (422, "out_of_range")
    wrong = await call(api, "boss", "POST", "/v1/clock", {"now": "noon"})
    assert (wrong.status, wrong.code) == (400, "malformed")


async def test_a_changed_file_counts_within_a_second(tmp_path: Path) -> None:
    file = tmp_path / "tokens.toml"
    file.write_text(token("old", "read"))
    now_s = 100.0
    auth = Auth(file, lambda: now_s)
    known = [t.name for t in auth.tokens()]
    assert known == ["old"]
    file.write_text(token("new", "read"))
    os.utime(file, ns=(1, 1))
    now_s += LOOK_AGAIN_S / 2
    assert [t.name for t in auth.tokens()] == ["old"]
    now_s += LOOK_AGAIN_S
    assert [t.name for t in auth.tokens()] == ["new"]
    file.write_text("[[token")
    os.utime(file, ns=(2, 2))
    now_s += 2 * LOOK_AGAIN_S
    assert [t.name for t in auth.tokens()] == ["new"]
    file.unlink()
    now_s += 2 * LOOK_AGAIN_S
    assert [t.name for t in auth.tokens()] == ["new"]


@pytest.mark.parametrize(
    "text",
    ["token = 1", '[[token]]\nname = "x"', token("x", "root"), "token = []\nother = 1"],
)
async def test_a_file_that_can_not_be_used(tmp_path: Path, text: str) -> None:
    file = tmp_path / "tokens.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=r"auth\.tokens_file"):
        read_tokens(file)
    with pytest.raises(ConfigError, match=r"auth\.tokens_file"):
        read_tokens(tmp_path / "absent.toml")
