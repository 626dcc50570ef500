"""Parts of the API that need no socket: positions, freshness, decoding errors, queries."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

import msgspec
import pytest

from agent.api.auth import _refusal
from agent.api.bodies import JSON, MSGPACK, Decoder
from agent.api.freshness import FreshnessCache, freshness_of
from agent.api.position import Position, parse_position, position_of
from agent.api.route import Query
from agent.api.router import Router
from agent.boards.catalog import Catalog
from agent.errors import (
    Malformed,
    MethodNotAllowed,
    NotFound,
    Refused,
    TooLarge,
    Unavailable,
)
from agent.membership import Ring
from agent.state import State

STATE = State("eu-1", 0xABC, 5, 3, 9, 0, {0xABC: 3, 0x63: 4}, {}, {}, Catalog(), Ring())


class Item(msgspec.Struct, forbid_unknown_fields=True):
    member: str
    add: int | float | None = None


class Items(msgspec.Struct, forbid_unknown_fields=True):
    entries: Annotated[list[Item], msgspec.Meta(min_length=1, max_length=3)]


def test_a_position_survives_its_text() -> None:
    assert position_of(STATE) == "abc-3-9"
    assert parse_position("abc-3-9") == Position(0xABC, 3, 9)
    assert str(Position(0xABC, 3, 9)) == "abc-3-9"


@pytest.mark.parametrize(
    "text", ["", "abc", "1-2", "1-2-3-4", "-1-2-3", "1-2-G", "ABC-1-2", "f" * 17 + "-1-1"]
)
def test_a_bad_position_is_malformed(text: str) -> None:
    with pytest.raises(Malformed, match="after"):
        parse_position(text)


@pytest.mark.parametrize(
    ("position", "covered"),
    [
        (Position(0xABC, 3, 9), True),
        (Position(0xABC, 4, 10), False),
        (Position(0xABC, 3, 10), False),
        (Position(0x63, 4, 900), True),
        (Position(0x63, 5, 1), False),
        (Position(0x64, 1, 1), False),
    ],
)
def test_a_position_is_covered_by_the_state(position: Position, covered: bool) -> None:
    assert position.covered(STATE) is covered


def test_freshness_is_that_of_the_stalest_region() -> None:
    fresh = freshness_of({"eu": 10_000, "us": 9_400}, 10_000)
    assert fresh.as_of == {"eu": "1970-01-01T00:00:10.000Z", "us": "1970-01-01T00:00:09.400Z"}
    assert fresh.max_lag_ms == 600
    fresh.require(None)
    fresh.require(600)
    with pytest.raises(Unavailable, match="600 ms behind"):
        fresh.require(599)


def test_an_unknown_region_is_staler_than_any_limit() -> None:
    fresh = freshness_of({"eu": 10_000, "us": None}, 10_000)
    assert fresh.as_of["us"] is None
    assert fresh.max_lag_ms is None
    with pytest.raises(Unavailable, match="nothing is known yet of us"):
        fresh.require(10**9)
    assert freshness_of({}, 10_000).max_lag_ms is None


def test_a_clock_that_is_ahead_is_not_a_negative_lag() -> None:
    assert freshness_of({"eu": 10_500}, 10_000).max_lag_ms == 0


def test_the_cache_follows_time_and_state() -> None:
    clock = [1_000]
    cache = FreshnessCache(lambda: clock[0])
    first = cache.of(STATE)
    assert cache.of(STATE) is first
    clock[0] = 1_001
    second = cache.of(STATE)
    assert second is not first
    assert cache.of(replace(STATE, times={"us-1": 5})) is not second


@pytest.mark.parametrize(
    ("body", "detail", "index"),
    [
        (b'{"entries": [{"member": "m"}, {"member": 1}]}', "entries[1].member: expected", 1),
        (b'{"entries": [{"add": 1}]}', "entries[0]: object missing", 0),
        (b'{"entries": []}', "entries: expected `array` of length >= 1", None),
        (b'{"entires": []}', "object contains unknown field `entires`", None),
        (b"[]", "expected `object`", None),
        (b"{", "input data was truncated", None),
    ],
)
def test_decoding_errors_name_the_field(body: bytes, detail: str, index: int | None) -> None:
    with pytest.raises(Malformed) as caught:
        Decoder(Items).decode(body, JSON)
    assert caught.value.detail.startswith(detail)
    assert [error.index for error in caught.value.errors] == ([] if index is None else [index])


class Nested(msgspec.Struct, forbid_unknown_fields=True):
    items: list[Items]
    by_name: dict[str, Items | None] = {}


@pytest.mark.parametrize(
    ("type_", "body", "hint"),
    [
        (Items, {"entires": []}, "known here: entries"),
        (Items, {"entries": [{"member": "m", "ad": 1}]}, "known here: member, add"),
        (Nested, {"items": [{"entries": [{"member": "m"}, {"name": "m"}]}]}, "member, add"),
        (Nested, {"items": [], "by_name": {"x": {"entry": []}}}, "known here: entries"),
        (Nested, {"items": [], "by_names": {}}, "known here: items, by_name"),
    ],
)
def test_an_unknown_field_is_told_which_ones_are_known(type_: Any, body: Any, hint: str) -> None:
    with pytest.raises(Malformed, match="unknown field") as caught:
        Decoder(type_).decode(msgspec.json.encode(body), JSON)
    assert caught.value.hint.endswith(hint)


def test_too_many_items_are_too_large() -> None:
    many = {"entries": [{"member": "m"}] * 4}
    for media, encode in ((JSON, msgspec.json.encode), (MSGPACK, msgspec.msgpack.encode)):
        with pytest.raises(TooLarge, match="entries: more than 3"):
            Decoder(Items).decode(encode(many), media)


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ("integer", "7", 7),
        ("integer", "07", 7),
        ("integer", "-1", None),
        ("integer", "10", None),
        ("integer", "٣", None),
        ("integer", "", None),
        ("boolean", "true", True),
        ("boolean", "false", False),
        ("boolean", "1", None),
        ("string", "", ""),
    ],
)
def test_query_parameters(kind: Any, text: str, value: Any) -> None:
    query = Query("q", kind, "", least=0, greatest=9)
    if value is None:
        with pytest.raises(Refused, match="q"):
            query.parse(text)
    else:
        assert query.parse(text) == value


@pytest.mark.parametrize(
    ("remote", "host", "origin", "allowed"),
    [
        ("127.0.0.1", "127.0.0.1:7401", None, True),
        ("127.8.0.1", "localhost:7401", None, True),
        ("::1", "[::1]:7401", None, True),
        ("::ffff:127.0.0.1", "127.0.0.1", None, True),
        ("127.0.0.1", "127.0.0.1:7401", "http://127.0.0.1:7401", True),
        ("127.0.0.1", "127.0.0.1:7401", "http://127.0.0.1:80", False),
        ("127.0.0.1", "127.0.0.1:7401", "null", False),
        ("127.0.0.1", "evil.example:7401", None, False),
        ("127.0.0.1", "", None, False),
        ("127.0.0.1", "[::1", None, False),
        ("10.0.0.1", "10.0.0.2:7401", None, False),
        ("", "127.0.0.1", None, False),
    ],
)
def test_who_may_call_without_a_token(
    remote: str, host: str, origin: str | None, allowed: bool
) -> None:
    assert (_refusal(remote, host, origin) is None) is allowed


ROUTER = Router(
    [
        ("GET", "/v1/boards", "list"),
        ("PUT", "/v1/boards/{board}", "define"),
        ("GET", "/v1/boards/{board}", "show"),
        ("GET", "/v1/boards/{board}/entries/{member}", "member"),
    ]
)


@pytest.mark.parametrize(
    ("method", "path", "target", "values"),
    [
        ("GET", "/v1/boards", "list", {}),
        ("HEAD", "/v1/boards", "list", {}),
        ("PUT", "/v1/boards/x", "define", {"board": "x"}),
        ("GET", "/v1/boards/entries", "show", {"board": "entries"}),
        ("GET", "/v1/boards/x/entries/a%2Fb", "member", {"board": "x", "member": "a/b"}),
        ("GET", "/v1/boards/x/entries/..", "member", {"board": "x", "member": ".."}),
        ("GET", "/v1/boards/x/entries/%252F", "member", {"board": "x", "member": "%2F"}),
        ("GET", "/v1/boards/x/entries/a+b", "member", {"board": "x", "member": "a+b"}),
    ],
)
def test_routes_are_found(method: str, path: str, target: str, values: dict[str, str]) -> None:
    assert ROUTER.find(method, path) == (target, values)


@pytest.mark.parametrize(
    "path", ["", "/", "/v1", "/v1/boards/", "/v1/boards/x/entries", "/v1/boards/x/entries/m/n"]
)
def test_other_paths_are_not(path: str) -> None:
    with pytest.raises(NotFound):
        ROUTER.find("GET", path)


def test_the_methods_of_a_path() -> None:
    with pytest.raises(MethodNotAllowed) as caught:
        ROUTER.find("POST", "/v1/boards/x")
    assert caught.value.allow == "GET, HEAD, PUT"
    with pytest.raises(Malformed, match="UTF-8"):
        ROUTER.find("GET", "/v1/boards/%ff")
