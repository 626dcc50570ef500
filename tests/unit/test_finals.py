"""What an agent does next about a final: one case for each step, and what keeps it back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from agent.boards.final_rows import (
    FinalHash,
    FinalRow,
    pack_chunk,
    ranked_rows,
    unpack_chunk,
    without_names,
)
from agent.boards.finals import (
    Certificate,
    Final,
    Step,
    content_digest,
    final_of,
    next_step,
    override_body,
    said_key,
    versioned_key,
)
from agent.boards.scale import Scale
from agent.crdt.cell import Value
from agent.crdt.slot import Kind
from agent.crdt.total import NEVER_MS

SPACE = b"\x01b" + bytes(12) + b"day:2026-11-30"
MEMBERS = ("a", "b", "c")
D1, D2 = b"1" * 32, b"2" * 32
HASH = b"h" * 32
SCALE = Scale("first", False, 20, 0, 1)


@dataclass
class Said:
    """What the agents of a ring have said of one window."""

    cells: dict[bytes, Value] = field(default_factory=dict)

    def digest(self, agent: str, digest: bytes, version: int = 0, number: int = 1) -> None:
        self.cells[said_key(Kind.DIGEST, SPACE, agent)[2]] = (version, number, digest)

    def frozen(self, agent: str, said: bytes, version: int = 0) -> None:
        self.cells[said_key(Kind.FROZEN, SPACE, agent)[2]] = (version, 1, said)

    def override(self, agent: str, version: int, *without: str, at_ms: int = 5) -> None:
        key = versioned_key(Kind.OVERRIDE, SPACE, version, agent)
        self.cells[key[2]] = (1, at_ms, override_body(without, "down", "op"))

    def certified(self, agent: str, hash_: bytes = HASH, version: int = 0) -> None:
        told = Certificate(version, hash_, 3, MEMBERS)
        key = versioned_key(Kind.CERTIFICATE, SPACE, version, agent)
        self.cells[key[2]] = (1, 7, told.packed())

    @property
    def final(self) -> Final:
        return final_of(self.cells.items())

    def next(
        self,
        agent: str = "a",
        digest: bytes | None = D1,
        copied: bool = False,
        held: tuple[bytes, ...] = (),
        members: tuple[str, ...] = MEMBERS,
    ) -> Step:
        hashes = {D1: HASH} if copied else {}
        return next_step(self.final, agent, members, digest, hashes, held)


def test_a_window_that_is_not_settled_waits() -> None:
    assert Said().next(digest=None) == Step.WAIT


def test_the_ordinary_way() -> None:
    said = Said()
    assert said.next() == Step.SAY
    said.digest("a", D1)
    assert said.next() == Step.WAIT
    said.digest("b", D1)
    said.digest("c", D2)
    assert said.next() == Step.WAIT
    said.digest("c", D1, number=2)
    assert said.next() == Step.COPY
    assert said.next(copied=True) == Step.COPY  # the copy is not complete
    assert said.next(copied=True, held=(HASH,)) == Step.FREEZE
    for agent in MEMBERS:
        said.frozen(agent, D1 + HASH)
        wanted = Step.CERTIFY if agent == "c" else Step.WAIT
        assert said.next(held=(HASH,)) == wanted
    said.certified("b")
    assert said.final.state("a") == "certified"
    assert said.next(held=(HASH,)) == Step.ADOPT
    said.certified("a")
    assert said.next(held=(HASH,)) == Step.DONE
    assert not said.final.certified_by(MEMBERS)
    said.certified("c")
    assert said.final.certified_by(MEMBERS)


def test_what_changes_is_said_anew() -> None:
    said = Said()
    said.digest("a", D1)
    assert said.next(digest=D2) == Step.SAY


def test_a_frozen_agent_thaws_for_one_that_has_not_frozen_and_for_no_other() -> None:
    said = Said()
    for agent in MEMBERS:
        said.digest(agent, D1)
        said.frozen(agent, D1 + HASH)
    said.digest("b", D2, number=2)  # it has frozen: its digest is of what came late
    assert said.next(held=(HASH,)) == Step.CERTIFY
    said.frozen("b", b"")
    assert said.next(held=(HASH,)) == Step.THAW


def test_a_frozen_agent_without_its_copy_begins_again() -> None:
    said = Said()
    said.digest("a", D1)
    said.frozen("a", D1 + HASH)
    assert said.next() == Step.THAW
    assert said.next(held=(HASH,)) == Step.WAIT


def test_what_was_said_of_an_older_version_counts_no_more() -> None:
    said = Said()
    for agent in MEMBERS:
        said.digest(agent, D1)
        said.frozen(agent, D1 + HASH)
    said.override("b", 1, "c")
    assert said.final.required(MEMBERS) == ["a", "b"]
    assert said.next(held=(HASH,)) == Step.SAY
    assert said.next("c", held=(HASH,)) == Step.WAIT  # it is left out
    for agent in ("a", "b"):
        said.digest(agent, D1, version=1)
        said.frozen(agent, D1 + HASH, version=1)
    assert said.next(held=(HASH,)) == Step.CERTIFY


def test_a_newer_version_leaves_the_older_certificate_in_force_until_it_is_certified() -> None:
    said = Said()
    for agent in MEMBERS:
        said.certified(agent)
    said.override("a", 1)
    told = said.final.in_force
    assert told is not None
    assert (told.version, said.final.version) == (0, 1)
    assert said.next(held=(HASH,)) == Step.SAY
    said.certified("a", b"n" * 32, version=1)
    told = said.final.in_force
    assert told is not None
    assert told.version == 1
    assert len(said.final.certificates) == 4


def test_whoever_lacks_the_rows_fetches_them_before_it_certifies() -> None:
    said = Said()
    said.certified("b")
    assert said.next(digest=None) == Step.FETCH
    assert said.next("c", digest=None, held=(HASH,)) == Step.ADOPT


def test_two_finals_of_one_version_are_a_conflict_until_a_revision() -> None:
    said = Said()
    said.override("a", 1, "c", at_ms=5)
    said.override("c", 1, "a", at_ms=6)
    said.certified("a", version=1)
    assert not said.final.conflict
    said.certified("c", b"x" * 32, version=1)
    final = said.final
    assert final.conflict
    assert final.override is not None
    assert final.override.without == ("a",)  # the later of the two
    assert final.in_force is not None
    assert final.in_force.hash == b"x" * 32  # the greater, everywhere
    assert said.next("a", held=(HASH, b"x" * 32)) == Step.DONE  # its own stays what it is
    said.certified("a", version=2)
    assert not said.final.conflict


@pytest.mark.parametrize("at", range(6))
def test_the_digest_says_everything_that_orders_a_final(at: int) -> None:
    base = (0, ["a", "b"], SCALE, b"k", [b"x"], 7)
    other = (1, ["a"], Scale("last", False, 20, 0, 1), b"l", [b"y"], 8)
    changed = [*base]
    changed[at] = other[at]
    assert content_digest(*base) == content_digest(0, ["b", "a"], SCALE, b"k", [b"x"], 7)
    assert content_digest(*changed) != content_digest(*base)  # type: ignore[arg-type]


def test_cells_that_cannot_be_read_are_passed_over() -> None:
    final = final_of(
        [
            (b"Z", (1, 0, b"")),
            (b"Z\0\0\0\0a", (1, 0, b"\xc1")),
            (b"o\0\0\0\1a", (1, 0, b"\x93")),
            (b"?x", (1, 0, b"")),
        ]
    )
    assert (final.in_force, final.override, final.conflict) == (None, None, False)


ROWS = list(
    ranked_rows([(9, 5, b"p"), (9, 6, b"q"), (4, NEVER_MS, b"r")], SPACE, b"key", shared=False)
)


def hash_of(rows: list[FinalRow]) -> bytes:
    found = FinalHash(SPACE)
    for row in rows:
        found.add(row)
    return found.digest()


def test_ranks_with_and_without_shared_places() -> None:
    assert [row.rank for row in ROWS] == [1, 2, 3]
    assert [row.reached_ms for row in ROWS] == [5, 6, None]
    shared = ranked_rows([(9, 0, b"p"), (9, 0, b"q"), (4, 0, b"r")], SPACE, b"k", shared=True)
    assert [row.rank for row in shared] == [1, 1, 3]


def test_an_erased_name_leaves_the_hash_as_it_was() -> None:
    without = [ROWS[0], ROWS[1].erased(), ROWS[2]]
    assert hash_of(without) == hash_of(ROWS)
    assert without[1].member is None
    assert hash_of([ROWS[0], ROWS[2], ROWS[1]]) != hash_of(ROWS)


@pytest.mark.parametrize("field", ["rank", "score", "reached_ms", "member", "proof"])
def test_whatever_a_row_says_is_in_the_hash(field: str) -> None:
    others: dict[str, Any] = {"rank": 7, "score": 8, "reached_ms": 9, "member": b"z"}
    changed = ROWS[0]._replace(**{field: others.get(field, b"z" * 16)})
    assert hash_of([changed, *ROWS[1:]]) != hash_of(ROWS)


def test_chunks_hold_rows_as_they_are() -> None:
    chunk = pack_chunk([ROWS[0], ROWS[1].erased(), ROWS[2]])
    assert unpack_chunk(chunk) == [ROWS[0], ROWS[1].erased(), ROWS[2]]
    assert without_names(chunk, lambda name: name == b"q") is None
    kept = without_names(chunk, lambda name: name == b"p")
    assert kept is not None
    assert [row.member for row in unpack_chunk(kept)] == [None, None, b"r"]


@pytest.mark.parametrize("data", [b"", b"x", pack_chunk([])[:-1], pack_chunk([(1, 2)])])  # type: ignore[list-item]
def test_what_is_no_chunk_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="final"):
        unpack_chunk(data)
