"""For whom a window's final waits, and for what."""

from __future__ import annotations

import pytest

from agent.boards.final_waits import Lack, Waits, stage_of, waits_of
from agent.boards.finals import Certificate, Final, Override, Said

ALL = ("a", "b", "c")
ONE, TWO = b"1" * 32, b"2" * 32
HASH = b"h" * 32


def waits(final: Final, *closed: str) -> Waits:
    return waits_of(final, ALL, lambda name: name in closed)


def said(version: int = 0, **digests: bytes) -> dict[str, Said]:
    return {name: Said(version, 1, digest) for name, digest in digests.items()}


def certificate(version: int) -> Certificate:
    return Certificate(version, HASH, 1, ALL)


@pytest.mark.parametrize(
    ("final", "closed", "want"),
    [
        (Final(), "", Waits(Lack.CLOSE, ALL)),
        (Final(), "ab", Waits(Lack.CLOSE, ("c",))),
        (Final(), "abc", Waits(Lack.SETTLE, ALL)),
        (Final(said(a=ONE, c=ONE)), "abc", Waits(Lack.SETTLE, ("b",))),
        (Final(said(a=ONE, b=TWO, c=ONE)), "abc", Waits(Lack.AGREE, ("b",))),
        (
            Final(said(a=ONE, b=ONE, c=ONE), said(a=ONE + HASH, b=b"")),
            "abc",
            Waits(Lack.FREEZE, ("b", "c")),
        ),
        (
            Final(said(a=ONE, b=ONE, c=ONE), said(a=ONE + HASH, b=ONE + HASH, c=TWO + HASH)),
            "abc",
            Waits(Lack.FREEZE, ("c",)),
        ),
        (
            Final(said(a=ONE, b=ONE, c=ONE), said(a=ONE + HASH, b=ONE + HASH, c=ONE + HASH)),
            "abc",
            Waits(Lack.CERTIFY, ALL),
        ),
        (Final(certificates={(0, "a"): (5, certificate(0))}), "abc", Waits(Lack.NOTHING)),
    ],
)
def test_a_final_waits_for_those_who_are_behind(final: Final, closed: str, want: Waits) -> None:
    assert waits(final, *closed) == want


def test_an_override_waits_for_those_who_are_left_and_say_everything_anew() -> None:
    final = Final(said(a=ONE, b=ONE), overrides={(1, "a"): Override(1, 5, ("c",), "", "")})
    assert waits(final, "a", "b") == Waits(Lack.SETTLE, ("a", "b"))
    final.digests = said(1, a=ONE, b=ONE)
    assert waits(final, "a", "b") == Waits(Lack.FREEZE, ("a", "b"))
    final.certificates[1, "b"] = 6, certificate(1)
    assert waits(final, "a", "b") == Waits(Lack.NOTHING)


def test_nobody_is_left_to_wait_for() -> None:
    final = Final(overrides={(1, "a"): Override(1, 5, ALL, "", "")})
    assert waits(final) == Waits(Lack.CERTIFY, ())


def test_stages() -> None:
    final = Final()
    assert stage_of(final, "a", closed=False) == "open"
    assert stage_of(final, "a", closed=True) == "closed"
    final.digests = said(a=ONE)
    assert stage_of(final, "a", closed=True) == "settled"
    final.frozen = said(a=b"")
    assert stage_of(final, "a", closed=True) == "settled"
    final.frozen = said(a=ONE + HASH)
    assert stage_of(final, "a", closed=True) == "frozen"
    final.certificates[0, "a"] = 5, certificate(0)
    assert stage_of(final, "a", closed=True) == "certified"
    assert stage_of(final, "b", closed=True) == "closed"
    final.overrides[1, "b"] = Override(1, 5, (), "", "")
    assert stage_of(final, "a", closed=True) == "closed"  # it has said nothing of version 1
