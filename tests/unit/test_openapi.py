"""The OpenAPI document says what the routes do."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from agent.api.openapi import codes_of
from agent.api.problem import CODES, problem_of
from agent.api.table import OPENAPI, ROUTES
from agent.errors import Refused, Unavailable
from tests.integration.json_schema import faults

DOCUMENT: dict[str, Any] = msgspec.json.decode(OPENAPI)


def refs(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        yield from (value for key, value in node.items() if key == "$ref")
        for value in node.values():
            yield from refs(value)
    elif isinstance(node, list):
        for value in node:
            yield from refs(value)


def operation(method: str, path: str) -> dict[str, Any]:
    found: dict[str, Any] = DOCUMENT["paths"][path][method]
    return found


def test_every_route_is_described_once() -> None:
    listed = {
        (method.upper(), path)
        for path, operations in DOCUMENT["paths"].items()
        for method in operations
    }
    assert listed == {(route.method, route.path) for route in ROUTES}
    assert len(listed) == len(ROUTES)
    ids = [o["operationId"] for its in DOCUMENT["paths"].values() for o in its.values()]
    assert len(ids) == len(set(ids))


def test_every_reference_resolves() -> None:
    found = set(refs(DOCUMENT))
    assert found
    known = {f"#/components/schemas/{name}" for name in DOCUMENT["components"]["schemas"]}
    assert found <= known


def test_every_path_part_is_a_required_parameter() -> None:
    for path, operations in DOCUMENT["paths"].items():
        for described in operations.values():
            parts = [p["name"] for p in described["parameters"] if p["in"] == "path"]
            assert parts == re.findall(r"\{(\w+)\}", path)
            assert all(p["required"] for p in described["parameters"] if p["in"] == "path")


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.path}")
def test_every_code_of_a_route_is_known(route: Any) -> None:
    assert set(codes_of(route)) <= CODES.keys()
    assert route.handler.__doc__.startswith(f"{route.method} {route.path}")


def test_a_code_and_its_status_agree_with_the_error_classes() -> None:
    for kind in Refused.__subclasses__():
        assert kind.status in CODES.values(), kind
    problem = problem_of(Unavailable("too_stale", "x"))
    assert (problem.status, problem.definite) == (CODES["too_stale"], True)
    problem = problem_of(ValueError("secret"))
    assert (problem.code, problem.status, problem.definite) == ("internal", 500, False)
    assert "secret" not in problem.detail


@pytest.mark.parametrize(
    ("value", "fits"),
    [
        ({"member": "m", "add": 1}, True),
        ({"member": "m", "add": 236.0}, True),
        ({"member": "m", "score": -1, "at": "2026-11-30T13:00:00Z", "data": {"a": []}}, True),
        ({"entries": [{"member": "m", "add": 1}]}, True),
        ({"member": "m", "actor": "a", "present": False, "key": "k", "at": 5}, True),
        ({"member": "m", "actor": "a", "present": "no"}, False),
        ({"member": "m", "actor": 7}, False),
        ({"member": "m", "add": "1"}, False),
        ({"member": "m", "more": 1}, False),
        ({"add": 1}, False),
        ({"entries": []}, False),
        ({"entries": [{"member": "m"}] * 10_001}, False),
    ],
)
def test_the_schema_of_entries_fits_what_is_taken(value: Any, fits: bool) -> None:
    content = operation("post", "/v1/boards/{board}/entries")["requestBody"]["content"]
    assert (not faults(content["application/json"]["schema"], value, DOCUMENT)) is fits


@pytest.mark.parametrize(
    ("status", "codes"),
    [
        ("404", {"unknown_board", "unknown_window"}),
        ("409", {"key_conflict", "fork", "leaving"}),
        ("410", {"key_expired", "member_erased"}),
        ("422", {"grow_only", "out_of_range", "window_closed"}),
        ("429", {"rate_limited"}),
    ],
)
def test_what_an_entry_can_meet_is_described(status: str, codes: set[str]) -> None:
    described = operation("post", "/v1/boards/{board}/entries")["responses"][status]
    listed = described["description"].partition(": ")[2].split(", ")
    assert set(listed) == codes


def test_an_answer_to_an_entry_may_say_more_than_the_score() -> None:
    schema = {"$ref": "#/components/schemas/EntryAnswer"}
    plain = {"member": "m", "score": {"day:2026-11-30": 1}}
    more = {"late": ["hour:2026-11-30T12"], "duplicate": True, "rounded": {"all": "1.2K"}}
    for value in (plain, plain | more | {"counted_at": "2026-11-30T13:00:00.000Z", "rank": 1}):
        assert not faults(schema, value, DOCUMENT)
    for wrong in ({"late": "hour"}, {"duplicate": 1}, {"rounded": "1.2K"}):
        assert faults(schema, plain | wrong, DOCUMENT)
