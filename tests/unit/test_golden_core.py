"""The encodings of the core are frozen: bytes that were written once are read for ever."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agent import membership
from agent.boards import body, definition
from agent.boards.definition import Definition, ScoreRange
from agent.boards.scale import scale_of
from agent.boards.windows import Series, WindowSpec, series_of
from agent.crdt.cell import Row
from agent.crdt.slot import (
    COUNTER_SLOTS_BEFORE,
    COUNTER_SLOTS_FROM,
    KINDS_OF_KEY,
    KINDS_OF_NAME,
    KINDS_OF_ONE,
    KINDS_OF_REPLICA,
    Kind,
    incarnation_of,
    name_of,
    slot_of_key,
    slot_of_name,
    slot_of_one,
    slot_of_replica,
)
from agent.crdt.space import BOARDS_SPACE, RING_SPACE, Space, decode_space, encode_space, own_space
from agent.errors import Malformed

GOLDEN: dict[str, Any] = json.loads(
    (Path(__file__).parents[1] / "golden" / "core-v1.json").read_text("utf-8")
)
INC = int(GOLDEN["slots"]["incarnation"], 16)
WITHOUT_PART = (Kind.UP, Kind.DOWN, Kind.INCARNATION)
ALL: Series = series_of(WindowSpec("all"))
DEFINITIONS: dict[str | None, Definition | None] = {
    None: None,
    "sum": Definition(rule="sum"),
    "grow_only": Definition(rule="sum", grow_only=True, ties="shared"),
    "best low last": Definition(rule="best", order="low", ties="last", score=ScoreRange(0, 1000)),
    "latest": Definition(rule="latest", ties="member"),
}
SCALES = {
    "sum high first": Definition(rule="sum"),
    "sum high last": Definition(rule="sum", ties="last"),
    "best low first": Definition(rule="best", order="low"),
    "best low last": Definition(rule="best", order="low", ties="last"),
    "shared": Definition(rule="sum", ties="shared"),
    "member": Definition(rule="latest", ties="member"),
    "narrow": Definition(rule="best", score=ScoreRange(0, 999)),
}


@pytest.mark.parametrize("golden", GOLDEN["spaces"], ids=lambda golden: golden["board"][:8])
def test_spaces(golden: dict[str, Any]) -> None:
    space = Space(
        golden["board"], golden["generation"], bytes.fromhex(golden["shape"]), golden["window"]
    )
    encoded = bytes.fromhex(golden["bytes"])
    assert encode_space(space) == encoded
    assert decode_space(encoded) == space


def test_the_agents_own_spaces() -> None:
    frozen = {golden["board"]: bytes.fromhex(golden["bytes"]) for golden in GOLDEN["spaces"]}
    assert frozen["~boards"] == BOARDS_SPACE
    assert frozen["~ring"] == RING_SPACE == own_space("~ring")


@pytest.mark.parametrize(
    "space",
    [
        Space("", 0, bytes(8), "all"),
        Space("Upper", 0, bytes(8), "all"),
        Space("x" * 65, 0, bytes(8), "all"),
        Space("-a", 0, bytes(8), "all"),
        Space("a\n", 0, bytes(8), "all"),
        Space("a", 2**32, bytes(8), "all"),
        Space("a", -1, bytes(8), "all"),
        Space("a", 0, bytes(7), "all"),
        Space("a", 0, bytes(8), "w" * 81),
    ],
)
def test_spaces_outside_their_form_are_refused(space: Space) -> None:
    with pytest.raises(Malformed):
        encode_space(space)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00",
        b"\x05abc",
        b"\x01A" + bytes(12),
        b"\x01\xff" + bytes(12),
        b"\x01a" + bytes(12) + b"\xff",
        b"\x01a" + bytes(12) + b"w" * 81,
    ],
)
def test_spaces_of_another_form_are_no_error(data: bytes) -> None:
    assert decode_space(data) is None


@pytest.mark.parametrize("kind", Kind, ids=lambda kind: kind.name)
def test_slots_of_every_kind(kind: Kind) -> None:
    frozen = bytes.fromhex(GOLDEN["slots"]["bytes"][kind.name])
    if kind in KINDS_OF_ONE:
        assert slot_of_one(kind) == frozen
    elif kind in KINDS_OF_REPLICA:
        part = b"" if kind in WITHOUT_PART else b"\x01\x02"
        assert slot_of_replica(kind, INC, part) == frozen
        assert incarnation_of(frozen) == INC
    elif kind in KINDS_OF_KEY:
        assert slot_of_key(kind, b"order-1", INC) == frozen
    else:
        assert slot_of_name(kind, "eu-1") == frozen
        assert name_of(frozen) == "eu-1"


def test_every_kind_has_one_form_and_its_own_byte() -> None:
    forms = [KINDS_OF_ONE, KINDS_OF_REPLICA, KINDS_OF_KEY, KINDS_OF_NAME]
    assert sum(map(len, forms)) == len(frozenset().union(*forms)) == len(Kind)
    assert set(GOLDEN["slots"]["bytes"]) == {kind.name for kind in Kind}
    between = range(COUNTER_SLOTS_FROM[0], COUNTER_SLOTS_BEFORE[0])
    assert [kind for kind in Kind if kind in between] == [Kind.UP, Kind.DOWN]


def test_slots_over_their_limit_or_too_short() -> None:
    with pytest.raises(Malformed):
        slot_of_name(Kind.FLAG, "x" * 512)
    with pytest.raises(Malformed):
        incarnation_of(b"+1234567")
    assert name_of(b"D\xff") == "\\xff"


@pytest.mark.parametrize("name", GOLDEN["shapes"])
def test_shapes(name: str) -> None:
    rule, order = name.split()
    known = msgspec.convert({"rule": rule, "order": order}, Definition)
    assert definition.shape_of(known, ALL).hex() == GOLDEN["shapes"][name]


def test_a_shape_depends_on_nothing_that_may_change() -> None:
    one = Definition(rule="sum", grow_only=True, ties="last", score=ScoreRange(0, 5))
    assert definition.shape_of(one, ALL) == definition.shape_of(Definition(rule="sum"), ALL)


@pytest.mark.parametrize("golden", GOLDEN["definitions"], ids=lambda golden: golden["definition"])
def test_definitions(golden: dict[str, Any]) -> None:
    known = DEFINITIONS[golden["definition"]]
    frozen = bytes.fromhex(golden["body"])
    assert definition.to_body(known, golden["seen"]) == frozen
    content = definition.from_body(frozen)
    assert content == definition.DefinitionBody(known, golden["seen"])
    assert content.readable


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        b"\x81\x90\x01",
        b"\x91" * 1024,
        b"\x93abc",
        body.pack({"definition": {"rule": "sum", "from": "the future"}}, "x", 99),
        body.pack({"definition": {"rule": "median"}}, "x", 99),
        body.pack({"definition": {"rule": "best", "grow_only": True}}, "x", 99),
        body.pack({"definition": {"rule": "sum", "score": {"min": 0, "max": 2**60}}}, "x", 99),
        body.pack({"definition": {"rule": "sum"}, "seen": {"a": "b"}}, "x", 99),
        body.pack({"definition": {"rule": "sum", "score": {"min": 0, "max": 1.5}}}, "x", 99),
    ],
)
def test_definitions_that_can_not_be_read_are_shown_so(data: bytes) -> None:
    content = definition.from_body(data)
    assert (content.definition, content.readable) == (None, False)


def test_ring_members() -> None:
    golden = GOLDEN["ring_member"]
    frozen = bytes.fromhex(golden["body"])
    assert membership.pack_member(golden["region"], golden["url"]) == frozen
    ring = membership.Ring().with_rows([Row(RING_SPACE, b"eu-1", b"R", 3, 1, frozen, INC, 1)])
    member = ring.members["eu-1"]
    assert (member.region, member.url) == (golden["region"], golden["url"])
    assert (member.epoch, member.status) == (3, 1)


@pytest.mark.parametrize(("name", "score", "at_ms", "frozen"), GOLDEN["composites"])
def test_composites(name: str, score: int, at_ms: int, frozen: str) -> None:
    window = ALL.at(at_ms)
    assert window is not None
    scale = scale_of(SCALES[name], window, ALL.span_ms)
    assert str(scale.composite(score, at_ms)) == frozen
