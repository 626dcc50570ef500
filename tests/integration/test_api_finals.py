"""Certified finals over HTTP: pages, what waits, what came after, overrides, metrics."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from agent.api.table import ROUTES
from agent.boards.final_rows import CHUNK_ROWS
from agent.boards.finals import Certificate, versioned_key
from agent.crdt.slot import Kind
from tests.integration.api_node import Answer, Api, merge, row_of
from tests.integration.finals_rig import (
    CERTIFY,
    CLOSED,
    DAY,
    DAYS,
    FINAL,
    GONE,
    LATE,
    NOON,
    add,
    certified,
    certifying_api,
    exported,
    final,
    hash_of,
    late_row,
    listed_late,
    rows_of,
    set_clock,
)


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    async with certifying_api(tmp_path) as running:
        yield running


async def test_one_agent_certifies_a_closed_window(api: Api) -> None:
    await api.define("b", rule="sum", ties="member", windows=DAYS)
    await add(api, ann=3, bob=9, cy=3)
    early = await api.get(FINAL)
    assert (early.status, early.code) == (404, "not_certified")
    assert "is open, and takes entries until 2026-12-01T00:10:00.000Z" in early.body["detail"]
    await set_clock(api, CLOSED)
    shown = await final(api)
    assert rows_of(shown) == [(1, "bob", 9), (2, "cy", 3), (3, "ann", 3)]
    said = shown["certificate"]
    assert (said["version"], said["mode"], said["agents"]) == (0, "unanimous", ["eu-1"])
    assert (said["without"], said["reason"], said["by"]) == ([], "", "")
    assert said["certified_at"].keys() == {"eu-1"}
    assert (shown["history"], shown["pending"], shown["conflict"], shown["late"]) == (
        [],
        None,
        False,
        0,
    )

    days = (await api.get("/v1/boards/b/windows")).body["windows"]
    assert [(its["window"], its["state"]) for its in days] == [
        ("day:2026-12-01", "open"),
        (DAY, "certified"),
        ("all", "open"),
    ]
    assert days[1]["final"] == {
        "version": 0,
        "hash": said["hash"],
        "mode": "unanimous",
        "members": 3,
        "certified_at": said["certified_at"]["eu-1"],
    }
    assert "final" not in days[0]
    assert "waits_for" not in days[1]


async def test_a_final_is_read_in_pages_that_lie_across_chunks(api: Api) -> None:
    members = {f"m{number:05}": number + 1 for number in range(CHUNK_ROWS + 1_200)}
    await certified(api, **members)
    want = [
        (rank, name, score)
        for rank, (name, score) in enumerate(sorted(members.items(), reverse=True), 1)
    ]
    for offset, limit in ((0, 1), (995, 10), (1_990, 300), (150, 1_000), (2_199, 10), (2_200, 5)):
        shown = await final(api, f"offset={offset}&limit={limit}")
        assert rows_of(shown) == want[offset : offset + limit]
        assert (shown["offset"], shown["total"]) == (offset, len(want))
    assert len((await final(api))["entries"]) == 100


async def test_an_etag_is_the_hash(api: Api) -> None:
    hash_ = (await certified(api, ann=1))["certificate"]["hash"]
    first = await api.get(FINAL)
    assert {name.lower(): its for name, its in first.headers.items()}["etag"] == f'"{hash_}"'
    for tags in (f'"{hash_}"', f'"x", W/"{hash_}"', "*"):
        async with api.session.get(api.url + FINAL, headers={"If-None-Match": tags}) as response:
            assert (response.status, await response.read()) == (304, b"")
    same = await api.call("GET", FINAL, headers={"If-None-Match": '"x"', "If-Match": f'"{hash_}"'})
    assert same.status == 200
    other = await api.call("GET", FINAL, headers={"If-Match": '"x"'})
    assert (other.status, other.code) == (412, "final_changed")


@pytest.mark.parametrize(
    ("path", "status", "code", "says"),
    [
        ("/v1/boards/no/windows/all/final", 404, "unknown_board", "'no'"),
        ("/v1/boards/b/windows/week:2026-W49/final", 404, "unknown_window", "no window"),
        ("/v1/boards/b/windows/all/final", 404, "not_certified", "gets no final"),
        ("/v1/boards/b/windows/day/final", 404, "not_certified", "is open"),
        ("/v1/boards/b/windows/day:2026-11-29/final", 404, "not_certified", "nothing was counted"),
        (f"{FINAL}?generation=1", 404, "unknown_generation", "generation 0"),
        (f"{FINAL}?version=1", 404, "not_certified", "certified: 0"),
        (f"{FINAL}?format=csv", 400, "malformed", "neither json nor jsonl"),
        (f"{FINAL}?format=jsonl&limit=3", 400, "malformed", "limit"),
        (f"{FINAL}?format=jsonl&offset=2", 400, "malformed", "beyond the 1 rows"),
        (f"{LATE}?limit=0", 400, "malformed", "limit"),
    ],
)
async def test_what_is_not_there_says_why(
    api: Api, path: str, status: int, code: str, says: str
) -> None:
    await certified(api, ann=1)
    answer = await api.get(path)
    assert (answer.status, answer.code) == (status, code)
    assert says in answer.body["detail"]


async def test_windows_without_certify_and_trends_get_no_final(api: Api) -> None:
    plain = {**DAYS[0], "certify": False}
    defined = await api.define("b", rule="sum", windows=[plain])
    assert defined.body["definition"]["windows"][0]["certify"] is False
    await add(api, ann=1)
    await api.define("t", rule="trend", windows=[{"name": "day"}])
    await set_clock(api, CLOSED)
    for board in ("b", "t"):
        answer = await api.get(f"/v1/boards/{board}/windows/{DAY}/final")
        assert (answer.status, answer.code) == (404, "not_certified")
        assert "gets no final" in answer.body["detail"]
    shown = (await api.get("/v1/boards/b/windows")).body["windows"]
    assert [(its["state"], "waits_for" in its) for its in shown] == [
        ("open", False),
        ("closed", False),
    ]


# --- what comes after -----------------------------------------------------------------------


async def test_a_ban_and_an_erasure_change_no_rank_and_no_hash(api: Api) -> None:
    before = await certified(api, ann=5, bob=4, cy=3)
    assert (await api.call("PUT", "/v1/bans/ann", {"reason": "cheats"})).status == 200
    assert (await api.call("DELETE", "/v1/members/bob")).status == 200

    async def erased() -> bool:
        return bool((await api.get("/v1/members/bob")).body["complete"])

    after = await final(api)
    await api.until(erased)
    assert after["certificate"]["hash"] == before["certificate"]["hash"]
    assert rows_of(after) == [(1, "ann", 5), (2, None, 4), (3, "cy", 3)]
    ann, bob, cy = after["entries"]
    assert (ann["banned"], "banned" in bob, "banned" in cy) == (True, False, False)
    assert len(bytes.fromhex(bob["member_digest"])) == 32
    assert "member_digest" not in ann
    late = (await api.get(LATE)).body
    assert (late["banned"], late["banned_entries"]) == (
        1,
        [{"rank": 1, "member": "ann", "score": 5}],
    )
    header, rows, _ = await exported(api)
    assert [row["member"] for row in rows] == ["ann", None, "cy"]
    assert hash_of(header, rows) == before["certificate"]["hash"]


async def test_what_came_late_is_listed_and_a_revision_takes_it_in(api: Api) -> None:
    first = await certified(api, ann=5, bob=4)
    await late_row(api, "bob", 3)
    await late_row(api, "dan", 1)
    late = await listed_late(api, 2)
    shown = [(its["member"], its["final_score"], its["live_score"]) for its in late["entries"]]
    assert shown == [("bob", 4, 7), ("dan", None, 1)]
    assert (late["version"], late["hash"], late["banned"]) == (0, first["certificate"]["hash"], 0)
    assert [its["member"] for its in (await api.get(f"{LATE}?offset=1")).body["entries"]] == ["dan"]
    kept = await final(api)
    assert (rows_of(kept), kept["late"]) == ([(1, "ann", 5), (2, "bob", 4)], 2)

    again = await api.post(CERTIFY, {"reason": "why not"})
    assert (again.status, again.code) == (409, "final_conflict")
    assert "certified as version 0" in again.body["detail"]
    dry = await api.post(f"{CERTIFY}?dry_run=true", {"revise": True, "reason": "late results"})
    assert (dry.body["version"], dry.body["dry_run"], dry.body["refuses"]) == (1, True, None)
    assert (await final(api))["pending"] is None
    done = await api.post(CERTIFY, {"revise": True, "reason": "late results"})
    assert (done.status, done.body["version"], done.body["dry_run"]) == (200, 1, False)

    second = await final(api, version=1)
    assert rows_of(second) == [(1, "bob", 7), (2, "ann", 5), (3, "dan", 1)]
    said = second["certificate"]
    assert (said["mode"], said["without"], said["reason"]) == ("override", [], "late results")
    assert said["by"] == "loopback"
    assert [(its["version"], its["hash"]) for its in second["history"]] == [
        (0, first["certificate"]["hash"])
    ]
    old = await api.get(f"{FINAL}?version=0")
    assert (rows_of(old.body), old.body["certificate"]) == (rows_of(first), first["certificate"])
    await listed_late(api, 0)


async def test_a_retracted_result_is_a_lower_live_score(api: Api) -> None:
    await api.define("b", rule="best", ties="member", results="keep", windows=DAYS[:1])
    for key, score in (("one", 7), ("two", 9)):
        body = {"member": "ann", "score": score, "key": key, "at": NOON}
        assert (await api.post("/v1/boards/b/entries", body)).status == 200
    await set_clock(api, CLOSED)
    await final(api)
    assert (await api.call("DELETE", "/v1/boards/b/results/ann/two")).body["changed"]
    its = (await listed_late(api, 1))["entries"][0]
    assert (its["member"], its["final_score"], its["live_score"]) == ("ann", 9, 7)
    assert rows_of(await final(api)) == [(1, "ann", 9)]


async def test_finals_stay_when_windows_are_collected_and_boards_reset_or_retired(api: Api) -> None:
    first = await certified(api, ann=5)
    assert (await api.post("/v1/boards/b/reset", None)).status == 200
    shown = await api.get(FINAL)
    assert (shown.status, shown.code) == (404, "not_certified")
    await set_clock(api, GONE)
    for retire in (False, True):
        if retire:
            assert (await api.call("DELETE", "/v1/boards/b")).status == 200
        old = await api.get(f"{FINAL}?generation=0")
        assert (old.status, rows_of(old.body)) == (200, [(1, "ann", 5)])
        assert old.body["certificate"] == first["certificate"]
        windows = (await api.get("/v1/boards/b/windows?generation=0")).body
        assert (windows["generation"], windows["total"]) == (0, 1)
        assert windows["windows"][0]["final"]["hash"] == first["certificate"]["hash"]
        assert windows["windows"][0]["start"] is None
        assert (await api.get(f"{LATE}?generation=0")).body["late"] == 0


async def test_a_final_outlives_its_window(api: Api) -> None:
    first = await certified(api, ann=5)
    await set_clock(api, GONE)

    async def collected() -> bool:
        spaces = await api.readers.read(lambda snapshot: snapshot.spaces())
        return not any(space.endswith(DAY.encode()) for space in spaces)

    await api.until(collected)
    assert (await api.get(f"/v1/boards/b/entries?window={DAY}")).code == "unknown_window"
    assert await final(api) == first
    shown = (await api.get("/v1/boards/b/windows")).body["windows"]
    assert [its["state"] for its in shown if its["window"] == DAY] == ["certified"]
    refused = await api.post(CERTIFY, {"revise": True})
    assert (refused.status, refused.code) == (409, "final_conflict")


# --- an operator's word ---------------------------------------------------------------------


async def test_what_an_operator_may_not_do(api: Api) -> None:
    await api.define("b", rule="sum", ties="member", windows=DAYS)
    await add(api, ann=1)

    async def refused(body: Any, status: int, code: str, says: str) -> None:
        answer = await api.post(CERTIFY, body)
        assert (answer.status, answer.code) == (status, code), answer
        assert says in answer.body["detail"]

    await refused({"without": ["eu-1"]}, 409, "final_conflict", "is not closed here")
    dry = await api.post(f"{CERTIFY}?dry_run=true", {"without": ["eu-1"]})
    assert (dry.status, dry.body["agents"][0]["state"]) == (200, "open")
    assert "is not closed here" in dry.body["refuses"]
    await set_clock(api, CLOSED)
    await final(api)
    await refused({"without": ["us"], "revise": True}, 404, "unknown_agent", "'us'")
    await refused({"without": ["eu"], "revise": True}, 422, "not_excludable", "'eu-1'")
    await refused({"reason": "x" * 501, "revise": True}, 413, "too_large", "reason")
    await refused({"without": ["eu"] * 65}, 413, "too_large", "without")
    await refused({"without": "eu"}, 400, "malformed", "without")
    assert (await final(api))["certificate"]["version"] == 0
    answer = await api.post("/v1/boards/b/windows/all/certify", {"without": ["eu"]})
    assert (answer.status, answer.code) == (409, "final_conflict")


@pytest.mark.parametrize("greater", [False, True])
async def test_two_finals_of_one_version_are_an_alarm(api: Api, greater: bool) -> None:
    """What operators do that override at once in two halves of a ring."""
    mine = (await certified(api, ann=1))["certificate"]["hash"]
    other = (b"\xff" if greater else b"\0") * 32
    told = Certificate(0, other, 1, ("us-1",))
    board = api.queue.state.catalog.board("b")
    space = board.place(board.resolve(DAY, 0)).space
    key = versioned_key(Kind.CERTIFICATE, space, 0, "us-1")
    await merge(api, [row_of(*key, (1, 5, told.packed()), 1)])

    async def noticed() -> bool:
        ring = (await api.get("/v1/ring")).body
        return bool(ring["finals"]["conflicts"] == 1 and ring["finals"]["fetching"] == greater)

    await api.until(noticed)
    assert "two different finals" in (await api.get("/v1/ring")).body["alarms"][0]
    answer = await api.get(FINAL)
    if greater:
        assert (answer.status, answer.code) == (503, "busy")
        assert (await api.get(LATE)).code == "busy"
        return
    assert (answer.body["conflict"], answer.body["certificate"]["hash"]) == (True, mine)
    assert [its["hash"] for its in answer.body["history"]] == [other.hex()]


async def test_metrics(api: Api) -> None:
    await certified(api, ann=1)
    await late_row(api, "ann", 1)
    await listed_late(api, 1)
    async with api.session.get(f"{api.url}/metrics") as response:
        lines = (await response.text()).splitlines()
    found = dict(line.rsplit(" ", 1) for line in lines if line.startswith("tallyring_finals"))
    assert found['tallyring_finals_windows{state="certified"}'] == "1.0"
    assert found["tallyring_finals_certified_total"] == "1.0"
    assert (found["tallyring_finals_late"], found["tallyring_finals_pending"]) == ("1.0", "0.0")
    status: Answer = await api.get("/v1/ring")
    assert (status.body["finals"]["pending"], status.body["finals"]["late"]) == (0, 1)
    assert status.body["alarms"] == []


def test_the_routes_of_finals_are_there() -> None:
    assert {f"{route.method} {route.path}" for route in ROUTES} >= {
        "GET /v1/boards/{board}/windows/{window}/final",
        "GET /v1/boards/{board}/windows/{window}/late",
        "POST /v1/boards/{board}/windows/{window}/certify",
        "GET /v1/ring/keys",
    }
