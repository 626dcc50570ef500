"""Bans and erasures over the API: what stands, who did it, what a token may do."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from agent.api import bans
from agent.api.clock import ManualClock
from agent.boards.erasures import confirmation_cell
from agent.crdt.document import Status
from agent.crdt.slot import Kind, slot_of_one
from agent.crdt.space import RING_SPACE
from agent.membership import pack_member
from agent.operation import ConfirmErasures, ForgetNames
from tests.integration.api_node import Answer, Api, merge, page, row_of, running_api

NOON_MS = 1_764_504_000_000  # 2025-11-30T12:00:00Z
NOON = "2025-11-30T12:00:00.000Z"
EVENING = "2025-11-30T18:00:00.000Z"


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    async with running_api(tmp_path, clock=ManualClock(NOON_MS)) as opened:
        await opened.define("b", rule="sum", ties="member")
        await opened.define("c", rule="sum", ties="member")
        yield opened


async def add(api: Api, member: str, amount: int = 1, board: str = "b") -> Answer:
    return await api.post(f"/v1/boards/{board}/entries", {"member": member, "add": amount})


async def shown(api: Api, board: str = "b") -> list[str]:
    return [entry["member"] for entry in (await page(api, board))["entries"]]


async def test_a_ban_hides_until_it_is_lifted_and_keeps_its_history(api: Api) -> None:
    await add(api, "ann", 5)
    await add(api, "bob", 9)
    path = "/v1/boards/b/bans/bob"
    none = (await api.get(path)).body
    assert (none["banned"], none["hidden"], none["at"], none["history"]) == (False, False, None, [])
    done = (await api.call("PUT", path, {"reason": "aimbot", "until": EVENING})).body
    assert (done["changed"], done["banned"], done["hidden"]) == (True, True, True)
    assert (done["board"], done["until"], done["reason"]) == ("b", EVENING, "aimbot")
    assert (done["by"], done["at"]) == ("loopback", NOON)
    assert await shown(api) == ["ann"]
    await add(api, "bob", 1)
    assert await shown(api) == ["ann"]
    same = (await api.call("PUT", path, {"reason": "aimbot", "until": EVENING})).body
    assert (same["changed"], len(same["history"])) == (False, 1)
    longer = (await api.call("PUT", path)).body
    assert (longer["changed"], longer["until"], longer["reason"]) == (True, None, "")
    lifted = (await api.call("DELETE", f"{path}?reason=appeal")).body
    assert (lifted["changed"], lifted["banned"], lifted["hidden"]) == (True, False, False)
    assert await shown(api) == ["bob", "ann"]
    history = [(its["banned"], its["reason"], its["until"]) for its in lifted["history"]]
    assert history == [(False, "appeal", None), (True, "", None), (True, "aimbot", EVENING)]
    again = (await api.call("DELETE", path)).body
    assert (again["changed"], len(again["history"])) == (False, 3)


async def test_a_ban_on_all_boards_is_another_one(api: Api) -> None:
    await add(api, "bob", board="b")
    await add(api, "bob", board="c")
    all_boards = (await api.call("PUT", "/v1/bans/bob", {"reason": "spam"})).body
    assert (all_boards["board"], all_boards["banned"]) == (None, True)
    on_b = (await api.get("/v1/boards/b/bans/bob")).body
    assert (on_b["banned"], on_b["hidden"], on_b["history"]) == (False, True, [])
    assert await shown(api, "b") == await shown(api, "c") == []
    await api.call("PUT", "/v1/boards/b/bans/bob")
    lifted = (await api.call("DELETE", "/v1/bans/bob")).body
    assert (lifted["banned"], lifted["hidden"]) == (False, False)
    assert await shown(api, "b") == []
    assert await shown(api, "c") == ["bob"]


async def test_the_list_is_paged_by_member(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    for member in ("m1", "m2", "m3", "m4"):
        await api.call("PUT", f"/v1/boards/b/bans/{member}", {"reason": member})
    await api.call("PUT", "/v1/boards/c/bans/m1")
    await api.call("PUT", "/v1/bans/m5", {"until": NOON_MS + 1})
    await api.call("DELETE", "/v1/boards/b/bans/m2")

    async def listed(query: str) -> list[tuple[str, str | None]]:
        found, after = [], ""
        while True:
            body = (await api.get(f"/v1/bans?{query}{after}")).body
            found += [(its["member"], its["board"]) for its in body["bans"]]
            if body["next"] is None:
                return found
            after = f"&after={body['next']}"

    everybody = [("m1", "b"), ("m1", "c"), ("m3", "b"), ("m4", "b"), ("m5", None)]
    for limit in (1, 2, 100):
        assert await listed(f"limit={limit}") == everybody
    first = (await api.get("/v1/bans?limit=1")).body
    assert (len(first["bans"]), first["next"]) == (2, "m1")
    assert await listed("board=c") == [("m1", "c"), ("m5", None)]
    monkeypatch.setattr(bans, "PAGE_CELLS_MAX", 1)
    assert await listed("limit=100") == everybody
    one = (await api.get("/v1/bans?board=b&limit=100")).body["bans"][0]
    assert one == {
        "member": "m1",
        "board": "b",
        "at": NOON,
        "by": "loopback",
        "until": None,
        "reason": "m1",
    }


async def test_what_is_refused(api: Api) -> None:
    for method, path, body, status, code in (
        ("PUT", "/v1/boards/nowhere/bans/m", {}, 404, "unknown_board"),
        ("GET", "/v1/boards/nowhere/bans/m", None, 404, "unknown_board"),
        ("DELETE", "/v1/boards/nowhere/bans/m", None, 404, "unknown_board"),
        ("PUT", "/v1/bans/m", {"until": NOON}, 422, "out_of_range"),
        ("PUT", "/v1/bans/m", {"until": NOON_MS - 1}, 422, "out_of_range"),
        ("PUT", "/v1/bans/m", {"until": "tomorrow"}, 400, "malformed"),
        ("PUT", "/v1/bans/m", {"why": "x"}, 400, "malformed"),
        ("PUT", "/v1/bans/m", {"reason": "x" * 501}, 413, "too_large"),
        ("PUT", "/v1/bans/m", {"reason": "\u4e00" * 400}, 413, "too_large"),
        ("PUT", "/v1/bans/%00", {}, 400, "malformed"),
        ("DELETE", f"/v1/bans/m?reason={'x' * 501}", None, 413, "too_large"),
    ):
        refused = await api.call(method, path, body)
        assert (refused.status, refused.code) == (status, code), (path, body)
    assert (await api.get("/v1/bans")).body["bans"] == []
    longest = await api.call("PUT", "/v1/bans/m", {"reason": "\u00e9" * 450})
    assert longest.body["reason"] == "\u00e9" * 450


async def test_a_retired_boards_ban_can_be_lifted(api: Api) -> None:
    await api.call("PUT", "/v1/boards/b/bans/bob")
    await api.call("DELETE", "/v1/boards/b")
    lifted = await api.call("DELETE", "/v1/boards/b/bans/bob")
    assert (lifted.status, lifted.body["changed"]) == (200, True)


async def with_us(api: Api) -> None:
    """Have another agent in the ring, of another region."""
    value = (1, int(Status.ACTIVE), pack_member("us", "http://10.0.0.2:7401"))
    await merge(api, [row_of(RING_SPACE, b"us-1", slot_of_one(Kind.MEMBER), value, 11)])


async def test_a_rehearsed_erasure_counts_and_changes_nothing(api: Api) -> None:
    await add(api, "ann")
    await add(api, "ann", -2)
    await add(api, "ann", board="c")
    await api.call("PUT", "/v1/bans/ann")
    before = api.queue.state
    dry = (await api.call("DELETE", "/v1/members/ann?dry_run=true")).body
    assert (dry["changed"], dry["dry_run"], dry["erased_at"]) == (True, True, None)
    assert dry["cells"] == {"b": 2, "c": 1, "~bans": 2}
    assert api.queue.state is before
    missing = await api.get("/v1/members/ann")
    assert (missing.status, missing.code) == (404, "not_erased")


async def test_the_receipt_says_who_has_confirmed(api: Api) -> None:
    await with_us(api)
    await api.define("likes", rule="distinct")
    await add(api, "ann")
    done = (await api.call("DELETE", "/v1/members/ann")).body
    assert (done["changed"], done["complete"], done["erased_at"]) == (True, False, NOON)
    waiting = [
        {"agent": "eu-1", "region": "eu", "confirmed_at": None},
        {"agent": "us-1", "region": "us", "confirmed_at": None},
    ]
    assert done["confirmations"] == waiting
    tombstone = api.queue.state.erased.find(b"ann")
    assert tombstone is not None
    await api.queue.submit(ConfirmErasures((tombstone.id,)))
    half = (await api.get("/v1/members/ann")).body
    assert (half["complete"], half["confirmations"][0]["confirmed_at"]) == (False, NOON)
    space, member, slot = confirmation_cell(tombstone.id, "us-1")
    await merge(api, [row_of(space, member, slot, (1, NOON_MS + 5, b""), 12)])
    whole = (await api.get("/v1/members/ann")).body
    assert (whole["complete"], whole["confirmations"][1]["confirmed_at"]) == (
        True,
        "2025-11-30T12:00:00.005Z",
    )
    await api.queue.submit(ForgetNames((tombstone.id,)))
    assert (await api.get("/v1/members/ann")).body == whole
    again = (await api.call("DELETE", "/v1/members/ann")).body
    assert (again["changed"], again["erased_at"]) == (False, NOON)
    rehearsed = (await api.call("DELETE", "/v1/members/ann?dry_run=true")).body
    assert (rehearsed["changed"], rehearsed["complete"]) == (False, True)


async def test_an_erased_name_is_closed(api: Api) -> None:
    await api.define("likes", rule="distinct")
    windows = [{"name": "day"}]
    await api.define("runs", rule="best", results="keep", windows=windows)
    await api.call("DELETE", "/v1/members/ann")
    for method, path, body in (
        ("POST", "/v1/boards/b/entries", {"member": "ann", "add": 1}),
        ("PUT", "/v1/boards/likes/actors/post/ann", None),
        ("PUT", "/v1/boards/likes/actors/ann/bob", None),
        ("GET", "/v1/boards/likes/actors/post/ann", None),
        ("GET", "/v1/boards/likes/actors/ann", None),
        ("GET", "/v1/boards/runs/results/ann", None),
        ("DELETE", "/v1/boards/runs/results/ann/k", None),
        ("PUT", "/v1/boards/b/bans/ann", {}),
        ("PUT", "/v1/bans/ann", {}),
        ("GET", "/v1/bans/ann", None),
        ("DELETE", "/v1/bans/ann", None),
    ):
        refused = await api.call(method, path, body)
        assert (refused.status, refused.code) == (410, "member_erased"), path


def token(name: str, scopes: str, boards: str = "*") -> str:
    digest = hashlib.sha256(name.encode()).hexdigest()
    listed = ", ".join(f'"{scope}"' for scope in scopes.split())
    return (
        f'[[token]]\nname = "{name}"\nsha256 = "{digest}"\n'
        f'scopes = [{listed}]\nboards = "{boards}"\n'
    )


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def guarded(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Api]:
    folder = tmp_path_factory.mktemp("guarded")
    (folder / "tokens.toml").write_text(
        token("boss", "read write admin")
        + token("backend", "read write")
        + token("referee", "read admin", "season-*")
    )
    async with running_api(folder, tokens_file="tokens.toml") as running:
        for board in ("season-1", "other"):
            answer = await _as(running, "boss", "PUT", f"/v1/boards/{board}", {"rule": "distinct"})
            assert answer.status == 200
        yield running


async def _as(api: Api, who: str, method: str, path: str, body: object = None) -> Answer:
    return await api.call(method, path, body, headers={"Authorization": f"Bearer {who}"})


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    ("who", "method", "path", "status"),
    [
        ("backend", "PUT", "/v1/boards/other/actors/m/a", 200),
        ("backend", "GET", "/v1/boards/other/actors/m", 200),
        ("referee", "PUT", "/v1/boards/season-1/actors/m/a", 403),
        ("backend", "PUT", "/v1/boards/other/bans/m", 403),
        ("backend", "GET", "/v1/boards/other/bans/m", 403),
        ("backend", "GET", "/v1/bans", 403),
        ("backend", "DELETE", "/v1/members/m", 403),
        ("backend", "GET", "/v1/members/m", 403),
        ("backend", "DELETE", "/v1/boards/other/results/m/k", 403),
        ("referee", "PUT", "/v1/boards/season-1/bans/m", 200),
        ("referee", "PUT", "/v1/boards/other/bans/m", 403),
        ("referee", "GET", "/v1/bans?board=other", 403),
        ("referee", "GET", "/v1/bans", 200),
        ("referee", "PUT", "/v1/bans/m", 403),
        ("referee", "DELETE", "/v1/bans/m", 403),
        ("referee", "DELETE", "/v1/members/m", 403),
        ("referee", "GET", "/v1/members/m", 403),
    ],
)
async def test_scopes_and_boards(
    guarded: Api, who: str, method: str, path: str, status: int
) -> None:
    answer = await _as(guarded, who, method, path)
    assert answer.status == status, answer
    if status == 403:
        assert answer.code == "forbidden"


@pytest.mark.asyncio(loop_scope="module")
async def test_the_history_names_the_token(guarded: Api) -> None:
    done = await _as(guarded, "referee", "PUT", "/v1/boards/season-1/bans/cheat", {"reason": "x"})
    assert done.body["history"][0]["by"] == "referee"
    await _as(guarded, "boss", "PUT", "/v1/boards/other/bans/cheat")
    await _as(guarded, "boss", "PUT", "/v1/bans/cheat")
    seen = (await _as(guarded, "referee", "GET", "/v1/bans")).body["bans"]
    its = {ban["board"] for ban in seen if ban["member"] == "cheat"}
    assert its == {"season-1", None}
