"""When an incarnation may be kept: everything must agree, and each thing that does not, shows."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agent.crdt.document import Status
from agent.exchange import Boot
from agent.identity import (
    Confirmation,
    Evidence,
    newest_inc,
    removed_by,
    was_set_back,
    why_burnt,
)
from agent.store.identity import Life
from agent.store.token import Token

LIFE = Life(inc=50, log=7, boot=3, nonce=33, clean=True, burnt="", seq=60, lsn=90)
CONFIRMED = Confirmation(seen=60, boot=Boot(3, 33), newest_inc=50, read_to=90, status=Status.ACTIVE)
GOOD = Evidence(
    life=LIFE,
    file="inode",
    token=Token(7, 3, "inode"),
    sentinel=(7, 3),
    boot=Boot(4, 44),
    answers={"us": CONFIRMED, "ap": replace(CONFIRMED, seen=12, read_to=0, boot=Boot(0, 0))},
)


def with_answer(**changes: object) -> Evidence:
    return replace(GOOD, answers={"us": replace(CONFIRMED, **changes)})  # type: ignore[arg-type]


def test_an_identity_is_kept_where_everything_agrees() -> None:
    assert why_burnt(GOOD) == ""
    assert why_burnt(replace(GOOD, sentinel=None)) == "", "a flushed Redis says nothing"
    assert why_burnt(replace(GOOD, answers={})) == "", "the first agent has nobody else to ask"
    assert why_burnt(with_answer(boot=Boot(4, 44))) == "", "my own question was heard before"
    new = replace(LIFE, boot=0, nonce=0, clean=False, seq=0, lsn=0)
    assert why_burnt(replace(GOOD, life=new, token=None, sentinel=(1, 9))) == ""


@pytest.mark.parametrize(
    ("evidence", "why"),
    [
        (replace(GOOD, life=replace(LIFE, clean=False)), "did not end cleanly"),
        (replace(GOOD, life=replace(LIFE, burnt="known more of")), "known more of"),
        (replace(GOOD, token=None), "no identity token"),
        (replace(GOOD, token=Token(7, 4, "inode")), "not the one that the identity token"),
        (replace(GOOD, token=Token(8, 3, "inode")), "not the one that the identity token"),
        (replace(GOOD, token=Token(7, 3, "other")), "is a copy"),
        (replace(GOOD, sentinel=None, answers={}), "nobody is there to confirm it"),
        (replace(GOOD, sentinel=(7, 4)), "Redis has seen another process"),
        (replace(GOOD, sentinel=(8, 3)), "Redis has seen another process"),
        (replace(GOOD, answers={"us": "can't be asked"}), "us: can't be asked"),
        (with_answer(seen=61), "us: holds its commit 61, this file ends with 60"),
        (with_answer(read_to=91), "us: has read its log to 91, this file ends with 90"),
        (with_answer(boot=Boot(4, 99)), "us: has heard of boot 4, this file ends with 3"),
        (with_answer(boot=Boot(5, 1)), "us: has heard of boot 5, this file ends with 3"),
        (with_answer(boot=Boot(3, 34)), "us: has heard of another process with boot 3"),
        (with_answer(newest_inc=51), "us: knows a newer incarnation"),
    ],
)
def test_whatever_does_not_agree_burns_it(evidence: Evidence, why: str) -> None:
    assert why in why_burnt(evidence)


def test_a_new_file_that_was_minted_with_a_clock_behind_is_minted_again() -> None:
    new = replace(LIFE, boot=0, nonce=0, clean=False)
    assert "clock was behind" in why_burnt(replace(with_answer(newest_inc=51), life=new))
    assert why_burnt(replace(with_answer(newest_inc=49), life=new)) == ""


def test_one_member_that_knows_of_the_removal_is_enough() -> None:
    assert removed_by(GOOD.answers) == ""
    removed = replace(CONFIRMED, status=Status.REMOVED)
    assert removed_by({"us": "can't be asked", "ap": CONFIRMED, "uk": removed}) == "uk"


def test_only_what_shows_that_writes_are_missing_makes_a_file_incomplete() -> None:
    assert not was_set_back(GOOD)
    killed = replace(GOOD, life=replace(LIFE, clean=False))
    for silent in (killed, replace(GOOD, token=None), replace(GOOD, answers={"us": "silence"})):
        assert why_burnt(silent)
        assert not was_set_back(silent)
    for ahead in (
        with_answer(seen=61),
        with_answer(read_to=91),
        with_answer(boot=Boot(4, 99)),
        replace(GOOD, token=Token(7, 4, "inode")),
        replace(GOOD, sentinel=(7, 4)),
    ):
        assert was_set_back(ahead)
        assert not was_set_back(replace(ahead, life=replace(LIFE, boot=0)))


def test_the_newest_incarnation_of_a_name_is_the_greatest_that_a_member_knows() -> None:
    assert newest_inc(GOOD) == 50
    assert newest_inc(replace(GOOD, answers={"us": "can't be asked"})) == 0
