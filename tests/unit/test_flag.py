"""Causal-length flags: what outlives what."""

from __future__ import annotations

from agent.crdt import flag


def test_saying_so_raises_to_the_next_odd_length_above() -> None:
    first = flag.on(None)
    assert first == (1, 0, b"")
    assert [flag.on((length, 0, b""))[0] for length in (1, 2, 3, 4)] == [3, 3, 5, 5]
    assert all(flag.is_on(flag.on((length, 0, b""))) for length in range(9))


def test_taking_away_takes_away_what_it_has_seen() -> None:
    assert flag.off(None) is None
    assert flag.off((2, 0, b"")) is None
    assert flag.off((3, 0, b"")) == (4, 0, b"")


def test_a_like_there_survives_an_unlike_here_that_has_not_seen_it() -> None:
    liked = flag.on(None)
    unliked_here, liked_there = flag.off(liked), flag.on(liked)
    assert unliked_here is not None
    assert flag.is_on(max(unliked_here, liked_there))
    seen = flag.off(liked_there)
    assert seen is not None
    assert not flag.is_on(max(unliked_here, liked_there, seen))
