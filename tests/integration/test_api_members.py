"""The routes that change the ring, on one agent: what they refuse, and that `dry_run` is dry."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agent.crdt.document import Status
from agent.crdt.slot import Kind, slot_of_one
from agent.crdt.space import RING_SPACE
from agent.gossip.link import Link
from agent.membership import pack_member
from tests.integration.api_node import Api, merge, row_of, running_api

US = "http://10.0.0.2:7401"


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    async with running_api(tmp_path) as opened:
        yield opened


async def with_us(api: Api, status: Status = Status.ACTIVE) -> None:
    """Have another agent in the ring, of which nothing was heard."""
    value = (1, int(status), pack_member("us", US))
    await merge(api, [row_of(RING_SPACE, b"us-1", slot_of_one(Kind.MEMBER), value, 11)])


def status_of(api: Api, name: str) -> Status:
    return api.queue.state.ring.members[name].status


async def test_the_only_agent_does_not_leave(api: Api) -> None:
    for body in ({}, {"dry_run": True}):
        answer = await api.post("/v1/ring/leave", body)
        assert (answer.status, answer.code) == (409, "ring_conflict")
    assert (await api.post("/v1/counters/x", {"by": 1})).status == 200
    assert status_of(api, "eu-1") == Status.ACTIVE


async def test_leaving_refuses_writes_and_serves_reads(api: Api) -> None:
    await with_us(api)
    dry = await api.post("/v1/ring/leave", {"dry_run": True})
    assert (dry.status, dry.body["waits_for"], dry.body["status"]) == (200, ["us-1"], "active")
    assert (await api.post("/v1/counters/x", {"by": 1})).status == 200
    begun = await api.call("POST", "/v1/ring/leave")
    assert (begun.status, begun.body["status"]) == (200, "leaving")
    refused = await api.post("/v1/counters/x", {"by": 1})
    assert (refused.status, refused.code, refused.body["definite"]) == (409, "leaving", True)
    assert (await api.call("PUT", "/v1/boards/b", {"rule": "sum"})).code == "leaving"
    assert (await api.get("/v1/counters/x")).body["value"] == 1
    shown = (await api.get("/v1/ring")).body
    assert shown["leaving"] == {
        "phase": "draining",
        "waits_for": [{"name": "us-1", "rows": None}],
    }
    assert list(shown["refuses"]) == ["leaving"]
    assert (await api.get("/readyz")).status == 503
    again = await api.post("/v1/ring/leave", {})
    assert again.status == 200


async def test_a_removal_is_final_and_its_rehearsal_changes_nothing(api: Api) -> None:
    await with_us(api)
    path = "/v1/ring/members/us-1/remove"
    before = api.queue.state
    dry = await api.post(path, {"dry_run": True})
    assert (dry.status, dry.body["changed"], dry.body["status"]) == (200, True, "active")
    assert "never heard from" in dry.body["says"][0]
    assert api.queue.state is before
    done = await api.call("POST", path)
    assert (done.body["status"], done.body["changed"]) == ("removed", True)
    assert status_of(api, "us-1") == Status.REMOVED
    again = await api.post(path, {})
    assert (again.status, again.body["changed"]) == (200, False)
    moved = await api.call("PUT", "/v1/ring/members/us-1/url", {"url": "http://10.0.0.9:1"})
    assert (moved.status, moved.code) == (403, "removed")


async def test_an_agent_that_was_heard_from_is_removed_by_force_alone(api: Api) -> None:
    await with_us(api)
    heard_ms = api.services.now_ms() - 2_000
    api.links[US] = Link(US, "us-1", last_success_ms=heard_ms)
    path = "/v1/ring/members/us-1/remove"
    refused = await api.post(path, {})
    assert (refused.status, refused.code) == (409, "ring_conflict")
    assert "leave" in refused.body["hint"]
    assert (await api.post(path, {"force": True, "dry_run": True})).status == 200
    api.links[US].last_success_ms = heard_ms - 30_000
    assert (await api.post(path, {})).body["status"] == "removed"


async def test_members_that_are_not_there_and_urls_that_are_none(api: Api) -> None:
    await with_us(api)
    for method, path, body, code in (
        ("POST", "/v1/ring/members/nobody/remove", {}, "unknown_agent"),
        ("POST", "/v1/ring/members/eu-1/remove", {}, "ring_conflict"),
        ("PUT", "/v1/ring/members/nobody/url", {"url": "http://10.0.0.9:1"}, "unknown_agent"),
        ("PUT", "/v1/ring/members/eu-1/url", {"url": US}, "ring_conflict"),
        ("PUT", "/v1/ring/members/eu-1/url", {"url": "ftp://x"}, "malformed"),
        ("PUT", "/v1/ring/members/eu-1/url", {"url": "http://[::1"}, "malformed"),
        ("PUT", "/v1/ring/members/eu-1/url", {"url": "http://a b/"}, "malformed"),
        ("PUT", "/v1/ring/members/eu-1/url", {}, "malformed"),
        ("POST", "/v1/ring/leave", {"force": True}, "malformed"),
    ):
        before = api.queue.state
        answer = await api.call(method, path, body)
        assert answer.code == code, (path, body)
        assert api.queue.state is before


async def test_a_removed_agent_says_so(api: Api) -> None:
    value = (2**32 + 1, int(Status.REMOVED), pack_member("eu", "http://127.0.0.1:1"))
    await with_us(api)
    await merge(api, [row_of(RING_SPACE, b"eu-1", slot_of_one(Kind.MEMBER), value, 12)])
    refused = await api.post("/v1/counters/x", {"by": 1})
    assert (refused.status, refused.code) == (403, "removed")
    assert "quarantine" in refused.body["hint"]
    shown = (await api.get("/v1/ring")).body
    assert shown["alarms"]
    assert list(shown["refuses"]) == ["removed"]
    text = (await api.get("/metrics")).body.decode()
    assert 'tallyring_alarm_raised{alarm="removed"} 1.0' in text
    assert 'tallyring_ring_members{status="removed"} 1.0' in text
    assert (await api.post("/v1/ring/leave", {})).code == "removed"
