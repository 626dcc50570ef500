"""The public routes, on an agent whose store, queue, rank store and socket are real."""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec
import pytest
import pytest_asyncio

from agent.api.position import parse_position
from agent.boards.entry import rfc3339
from agent.crdt.slot import Kind, slot_of_one, slot_of_replica
from agent.crdt.space import RING_SPACE
from agent.gossip.link import Link
from agent.membership import pack_member
from tests.integration.api_node import (
    DOCUMENT,
    Api,
    is_ready,
    merge,
    page,
    row_of,
    running_api,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def api(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Api]:
    async with running_api(tmp_path_factory.mktemp("api")) as running:
        await running.until(lambda: is_ready(running))
        yield running


# --- counters ----------------------------------------------------------------------------


async def test_counters_count_and_are_read_at_once(api: Api) -> None:
    first = await api.post("/v1/counters/visits", {"by": 3})
    assert (first.status, first.body["name"], first.body["value"]) == (200, "visits", 3)
    second = await api.post("/v1/counters/visits", {"by": -5.0})
    assert second.body["value"] == -2
    read = await api.get("/v1/counters/visits")
    assert read.body["value"] == -2
    assert "position" not in read.body
    assert set(read.body["as_of"]) == {"eu"}
    assert read.body["max_lag_ms"] == 0


async def test_a_counter_that_nobody_wrote_is_zero(api: Api) -> None:
    read = await api.get("/v1/counters/nobody")
    assert (read.status, read.body["value"]) == (200, 0)


async def test_a_batch_of_counters_keeps_its_order(api: Api) -> None:
    answer = await api.post("/v1/counters", {"zeta": 1, "alpha": 2.0, "ünï/çode": 3})
    found = [(counter["name"], counter["value"]) for counter in answer.body["counters"]]
    assert found == [("zeta", 1), ("alpha", 2), ("ünï/çode", 3)]
    read = await api.get("/v1/counters/%C3%BCn%C3%AF%2F%C3%A7ode")
    assert (read.body["name"], read.body["value"]) == ("ünï/çode", 3)


async def test_names_survive_the_path(api: Api) -> None:
    for name, sent in (("{}", "%7B%7D"), ("a b", "a%20b"), ("50%", "50%25"), ("%2F", "%252F")):
        written = await api.post(f"/v1/counters/{sent}", {"by": 1})
        assert written.body["name"] == name


# --- entries and ranks -------------------------------------------------------------------


@pytest.mark.usefixtures("patient")
async def test_a_single_entry_and_its_rank(api: Api) -> None:
    await api.define("laps", rule="best", order="low")
    answer = await api.post(
        "/v1/boards/laps/entries?rank=true",
        {"member": "ada", "score": 92_000, "data": {"car": 7}},
    )
    assert answer.body["entries"] == [{"member": "ada", "score": {"all": 92_000}, "rank": 1}]
    worse = await api.post("/v1/boards/laps/entries", {"member": "ada", "score": 93_000})
    assert worse.body["entries"] == [{"member": "ada", "score": {"all": 92_000}}]
    found = await page(api, "laps")
    assert found["entries"][0]["data"] == {"car": 7}
    better = await api.post(
        "/v1/boards/laps/entries?rank=true",
        {"entries": [{"member": "bob", "score": 91_000}, {"member": "ada", "score": 95_000}]},
    )
    assert [(e["member"], e["rank"]) for e in better.body["entries"]] == [("bob", 1), ("ada", 2)]


async def test_more_than_100_entries_get_no_rank(api: Api) -> None:
    await api.define("many", rule="sum")
    entries = [{"member": f"m{i}", "add": i} for i in range(101)]
    answer = await api.post("/v1/boards/many/entries?rank=true", {"entries": entries})
    assert len(answer.body["entries"]) == 101
    assert all("rank" not in entry for entry in answer.body["entries"])


async def test_one_call_for_several_boards(api: Api) -> None:
    await api.define("points", rule="sum")
    await api.define("speed", rule="best")
    entries = [
        {"board": "points", "member": "x", "add": 5},
        {"board": "speed", "member": "x", "score": 80},
        {"board": "points", "member": "x", "add": -2},
        {"board": "counters", "member": "several", "add": 1},
    ]
    answer = await api.post("/v1/entries", {"entries": entries})
    assert [entry["score"]["all"] for entry in answer.body["entries"]] == [5, 80, 3, 1]
    assert (await api.get("/v1/counters/several")).body["value"] == 1


async def test_latest_goes_up_and_down(api: Api) -> None:
    await api.define("temperature", rule="latest")
    for score, at in ((20, "2026-11-01T10:00:00Z"), (12, "2026-11-01T11:00:00Z")):
        await api.post("/v1/boards/temperature/entries", {"member": "t", "score": score, "at": at})
    late = {"member": "t", "score": 99, "at": "2026-11-01T10:30:00+00:00"}
    answer = await api.post("/v1/boards/temperature/entries", late)
    assert answer.body["entries"][0]["score"] == {"all": 12}
    found = (await page(api, "temperature"))["entries"][0]
    assert (found["score"], found["reached_at"]) == (12, "2026-11-01T11:00:00.000Z")


@pytest.mark.parametrize(
    ("ties", "members", "ranks"),
    [
        ("first", ["c", "a", "b", "d"], [1, 2, 3, 4]),
        ("last", ["c", "b", "a", "d"], [1, 2, 3, 4]),
        ("shared", ["c", "b", "a", "d"], [1, 2, 2, 4]),
        ("member", ["c", "b", "a", "d"], [1, 2, 3, 4]),
    ],
)
async def test_ties(api: Api, ties: str, members: list[str], ranks: list[int]) -> None:
    board = f"ties-{ties}"
    await api.define(board, rule="best", ties=ties)
    day = "2026-11-0{}T00:00:00Z".format
    entries = [
        {"member": "a", "score": 10, "at": day(1)},
        {"member": "b", "score": 10, "at": day(2)},
        {"member": "c", "score": 20, "at": day(3)},
        {"member": "d", "score": 5, "at": day(1)},
    ]
    await api.post(f"/v1/boards/{board}/entries", {"entries": entries})
    found = await page(api, board)
    assert [entry["member"] for entry in found["entries"]] == members
    assert [entry["rank"] for entry in found["entries"]] == ranks
    times = {entry["member"]: entry["reached_at"] for entry in found["entries"]}
    assert times["b"] == "2026-11-02T00:00:00.000Z"


async def test_pages_and_neighbours(api: Api) -> None:
    await api.define("ladder", rule="sum")
    entries = [{"member": f"m{i:02}", "add": 100 - i} for i in range(30)]
    await api.post("/v1/boards/ladder/entries", {"entries": entries})
    found = await page(api, "ladder", "offset=10&limit=3")
    assert [entry["rank"] for entry in found["entries"]] == [11, 12, 13]
    assert [entry["score"] for entry in found["entries"]] == [90, 89, 88]
    assert (found["total"], found["offset"], found["window"]) == (30, 10, "all")
    member = (await api.get("/v1/boards/ladder/entries/m05?neighbors=2")).body
    assert (member["rank"], member["exact"], member["score"]) == (6, True, 95)
    assert (member["total"], member["top_percent"]) == (30, 20.0)
    assert [entry["rank"] for entry in member["neighbors"]] == [4, 5, 7, 8]
    alone = (await api.get("/v1/boards/ladder/entries/m00")).body
    assert (alone["rank"], alone["neighbors"]) == (1, [])
    absent = await api.get("/v1/boards/ladder/entries/nobody")
    assert (absent.status, absent.code, absent.body["total"]) == (404, "not_ranked", 30)
    assert "30" in absent.body["detail"]
    past = await page(api, "ladder", "offset=1000")
    assert (past["entries"], past["total"]) == ([], 30)


async def test_other_windows_are_unknown(api: Api) -> None:
    await api.define("w", rule="sum")
    answer = await api.get("/v1/boards/w/entries?window=day")
    assert (answer.status, answer.code) == (404, "unknown_window")
    assert (await page(api, "w", "window=all"))["entries"] == []


async def test_a_score_beyond_redis_is_shown_exactly(api: Api) -> None:
    """Two regions together carry a total over the range: Redis clamps, the page does not."""
    await api.define("huge", rule="sum", score={"min": 0, "max": 2**28 - 1})
    most = 2**28 - 1
    await api.post("/v1/boards/huge/entries", {"member": "m", "add": most})
    board = api.queue.state.catalog.board("huge")
    await merge(api, [row_of(board.space, b"m", slot_of_replica(Kind.UP, 99), (most, 5, b""), 1)])
    found = await page(api, "huge")
    assert found["entries"][0]["score"] == 2 * most
    member = (await api.get("/v1/boards/huge/entries/m")).body
    assert (member["score"], member["rank"]) == (2 * most, 1)


async def test_an_idempotency_key_goes_with_one_entry(api: Api) -> None:
    await api.define("keyed", rule="best")
    one = {"member": "m", "score": 1}
    header = {"Idempotency-Key": "k1"}
    path = "/v1/boards/keyed/entries"
    assert (await api.call("POST", path, one, headers=header)).status == 200
    assert (await api.call("POST", path, one | {"key": "k1"}, headers=header)).status == 200
    differs = await api.call("POST", path, one | {"key": "k2"}, headers=header)
    batch = await api.call("POST", path, {"entries": [one]}, headers=header)
    counter = await api.call("POST", "/v1/counters/keyed", {"by": 1}, headers=header)
    for refused in (differs, batch, counter):
        assert (refused.status, refused.code) == (400, "malformed")


# --- msgpack -----------------------------------------------------------------------------


async def test_msgpack_in_and_out(api: Api) -> None:
    raw = msgspec.msgpack.encode({"by": 4})
    packed = {"Content-Type": "application/msgpack"}
    answer = await api.call("POST", "/v1/counters/packed", raw=raw, headers=packed)
    assert answer.headers["Content-Type"] == "application/msgpack"
    assert answer.body["value"] == 4
    wanted = {"Accept": "application/msgpack"}
    answer = await api.call("GET", "/v1/counters/packed", headers=wanted)
    assert answer.headers["Content-Type"] == "application/msgpack"
    plain = {"Accept": "application/json", **packed}
    answer = await api.call("POST", "/v1/counters/packed", raw=raw, headers=plain)
    assert answer.headers["Content-Type"] == "application/json"
    assert answer.body["value"] == 8
    await api.define("packed", rule="best")
    raw = msgspec.msgpack.encode({"entries": [{"member": "m", "score": 1.0, "data": [None]}]})
    answer = await api.call("POST", "/v1/boards/packed/entries", raw=raw, headers=packed)
    assert answer.body["entries"] == [{"member": "m", "score": {"all": 1}}]


async def test_an_entry_about_entries(api: Api) -> None:
    """A single entry may hold the word that tells a batch."""
    await api.define("words", rule="best")
    one = {"member": "entries", "score": 1, "data": {"entries": []}}
    answer = await api.post("/v1/boards/words/entries", one)
    assert (answer.status, len(answer.body["entries"])) == (200, 1)
    wrong = await api.post("/v1/boards/words/entries", one | {"score": "1"})
    assert "score" in wrong.body["detail"]


# --- freshness ---------------------------------------------------------------------------


async def test_positions_and_staleness(api: Api) -> None:
    written = await api.post("/v1/counters/fresh", {"by": 1})
    position = written.body["position"]
    assert str(parse_position(position)) == position
    read = await api.get(f"/v1/counters/fresh?after={position}&max_lag_ms=0")
    assert read.body["value"] == 1
    space = api.queue.state.catalog.board("counters").space
    row = row_of(space, b"fresh", slot_of_replica(Kind.UP, 99), (41, 5, b""), 10)
    await merge(api, [row], seq=10)
    read = await api.get("/v1/counters/fresh?after=63-a-7")  # incarnation 99, seq 10
    assert read.body["value"] == 42
    ranked = await api.get("/v1/boards/counters/entries/fresh?after=63-a-7")
    assert ranked.body["score"] == 42


async def test_a_write_that_never_arrives_is_waited_for_two_seconds(api: Api) -> None:
    for path in ("/v1/counters/fresh", "/v1/boards/counters/entries"):
        answer = await api.get(f"{path}?after=63-ffff-1")
        assert (answer.status, answer.code) == (503, "too_stale")
        assert answer.headers["Retry-After"]


# --- the agent itself --------------------------------------------------------------------


async def test_openapi_describes_every_route(api: Api) -> None:
    answer = await api.get("/openapi.json")
    assert answer.body == DOCUMENT
    assert answer.body["openapi"].startswith("3.1")


async def test_health_and_metrics(api: Api) -> None:
    assert (await api.get("/healthz")).body == {"status": "ok"}
    await api.post("/v1/counters/measured", {"by": 1})
    await api.post("/v1/counters/measured", {"by": 1.5})
    text = (await api.get("/metrics")).body.decode()
    for part in (
        'tallyring_requests_total{route="/v1/counters/{name}",status="2xx"}',
        'tallyring_entries_total{outcome="accepted"}',
        'tallyring_entries_total{outcome="refused"}',
        'tallyring_alarms_total{alarm="forked"} 0.0',
        'tallyring_projection_phase{phase="following"} 1.0',
        "tallyring_queue_waiting 0.0",
    ):
        assert part in text


async def test_a_client_may_ask_before_it_sends(api: Api) -> None:
    """curl does so with large bodies, and would wait a second for each."""
    async with api.session.post(
        f"{api.url}/v1/counters/asked", json={"by": 1}, expect100=True
    ) as response:
        assert response.status == 200
    headers = {"Expect": "miracles"}
    answer = await api.call("POST", "/v1/counters/asked", {"by": 1}, headers=headers)
    assert (answer.status, answer.code) == (400, "malformed")


async def test_head_has_no_body(api: Api) -> None:
    async with api.session.head(f"{api.url}/healthz") as response:
        assert response.status == 200
        assert await response.read() == b""


async def test_the_clock_of_the_system_is_not_set(api: Api) -> None:
    answer = await api.post("/v1/clock", {"now": 1})
    assert (answer.status, answer.code) == (404, "unknown_route")


async def test_peers_have_a_door_of_their_own(api: Api) -> None:
    async with api.session.post(f"{api.url}/v1/peer", data=b"hello") as response:
        assert await response.read() == b"hello"
        assert response.headers["Content-Type"] == "application/octet-stream"


async def test_a_page_of_another_site_may_not_call(api: Api) -> None:
    for headers in ({"Origin": "http://evil.example"}, {"Host": "rebound.example"}):
        answer = await api.call("POST", "/v1/counters/x", {"by": 1}, headers=headers)
        assert (answer.status, answer.code) == (403, "forbidden")
    own = {"Origin": api.url}
    assert (await api.call("POST", "/v1/counters/x", {"by": 1}, headers=own)).status == 200


async def test_the_ring_shows_members_and_contact(api: Api) -> None:
    """Last in this module: from here on a region is known of which nothing was heard."""
    body = pack_member("us", "http://10.0.0.2:7401")
    await merge(api, [row_of(RING_SPACE, b"us-1", slot_of_one(Kind.MEMBER), (1, 0, body), 11)])
    url = "http://10.0.0.2:7401"
    api.links[url] = Link(
        url, "us-1", began=-60.0, last_error="refused", last_error_ms=1_000, failures=2
    )
    shown = (await api.get("/v1/ring")).body
    mine, theirs = shown["members"]
    assert (mine["name"], mine["contact"], mine["lag_ms"]) == ("eu-1", None, 0)
    assert (theirs["region"], theirs["as_of"], theirs["lag_ms"]) == ("us", None, None)
    assert theirs["contact"]["state"] == "down"
    assert theirs["contact"]["last_error_at"] == rfc3339(1_000)
    read = await api.get("/v1/counters/fresh")
    assert read.body["as_of"]["us"] is None
    assert read.body["max_lag_ms"] is None
    for path in ("/v1/counters/fresh", "/v1/boards/counters/entries"):
        stale = await api.get(f"{path}?max_lag_ms=100000")
        if stale.status == 200:  # the rank store may still be from before that region was known
            continue
        assert (stale.status, stale.code) == (503, "too_stale")
    assert 'tallyring_peer_failures_total{peer="us-1"} 2.0' in str(
        (await api.get("/metrics")).body.decode()
    )
