"""How many entries of one member are taken: a bucket that fills up again, all or nothing."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from agent.api.rates import Rates
from agent.api.rounding import rounded
from agent.boards import change
from agent.boards.catalog import Catalog
from agent.boards.definition import Definition, Rate
from agent.boards.entry import Entry
from agent.boards.tally import Group
from agent.crdt.cell import Row
from agent.errors import RateLimited


def catalog_with(**rates: Rate | None) -> Catalog:
    catalog = Catalog()
    for board, rate in rates.items():
        definition = Definition(rule="sum", rate=rate)
        cells = change.define(catalog, "eu-1", board, definition, 1 << 16)
        catalog = catalog.with_rows(Row(*key, *value, 1, 1) for key, value in cells)
    return catalog


CATALOG = catalog_with(slow=Rate(per_member=5, per_s=10), free=None)


class Limited:
    """Rates with a clock that the test moves."""

    def __init__(self, members_max: int = 100) -> None:
        self.now_s = 1_000_000.0
        self.rates = Rates(lambda: self.now_s, members_max)

    def take(self, *members: str, board: str = "slow") -> list[tuple[tuple[str, str], float]]:
        return self.rates.take(CATALOG, [group_of(members, board)])


def group_of(members: Sequence[str], board: str = "slow") -> Group:
    return Group(board, [Entry(member, add=1) for member in members], range(len(members)))


def test_a_bucket_empties_and_fills_up_again() -> None:
    limited = Limited()
    for _ in range(5):
        limited.take("m")
    with pytest.raises(RateLimited) as caught:
        limited.take("m")
    assert caught.value.retry_after_s == 2
    assert "5 entries in 10 s" in caught.value.detail
    limited.take("other")
    limited.now_s += 0.9
    with pytest.raises(RateLimited):
        limited.take("m")
    limited.now_s += 1.1
    limited.take("m")
    with pytest.raises(RateLimited):
        limited.take("m")
    limited.now_s += 100
    for _ in range(5):
        limited.take("m")
    with pytest.raises(RateLimited):
        limited.take("m")


def test_a_batch_takes_all_or_nothing_and_names_the_entries() -> None:
    limited = Limited()
    limited.take("m", "m", "m")
    with pytest.raises(RateLimited) as caught:
        limited.take("a", "m", "b", "m", "m")
    assert [error.index for error in caught.value.errors] == [1, 3, 4]
    assert len(limited.rates) == 1
    limited.take("m", "m")
    limited.take("a", "a", "a", "a", "a")


def test_several_boards_are_one_request() -> None:
    limited = Limited()
    full = [group_of(["x"] * 5), group_of(["x"] * 50, "free"), group_of(["x"], "unheard-of")]
    limited.rates.take(CATALOG, full)
    with pytest.raises(RateLimited):
        limited.take("x")
    assert limited.take("x", board="free") == []


def test_more_at_once_than_the_bucket_holds_says_so() -> None:
    limited = Limited()
    with pytest.raises(RateLimited) as caught:
        limited.take(*["m"] * 6)
    assert "this request alone has 6" in caught.value.detail
    assert caught.value.hint == "send fewer at once"


def test_what_is_refused_for_something_else_is_given_back() -> None:
    limited = Limited()
    limited.take("m", "m")
    taken = limited.take("m", "m", "n")
    limited.rates.give_back(taken)
    assert len(limited.rates) == 1
    limited.take("m", "m", "m")
    with pytest.raises(RateLimited):
        limited.take("m")


def test_the_memory_is_bounded() -> None:
    limited = Limited(members_max=3)
    limited.take("a", "a", "a", "a")
    limited.take("b", "b", "b", "b", "b")
    for name in ("c", "a", "d"):  # "b" is the one that was longest ago
        limited.take(name)
    assert len(limited.rates) == 3
    with pytest.raises(RateLimited):
        limited.take("a")
    limited.take("b")  # forgotten, so it has a full bucket
    limited.take("x" * 257)  # no member's name: refused elsewhere, and not kept
    assert len(limited.rates) == 3


def test_many_small_additions_lose_nothing() -> None:
    catalog = catalog_with(fast=Rate(per_member=100_000, per_s=1))
    limited = Limited()
    for _ in range(1_000):
        limited.rates.take(catalog, [group_of(["m"] * 100, "fast")])
    with pytest.raises(RateLimited):
        limited.rates.take(catalog, [group_of(["m"], "fast")])


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0"),
        (999, "999"),
        (1_000, "1K"),
        (1_234, "1.2K"),
        (1_999, "1.9K"),
        (9_999, "9.9K"),
        (10_000, "10K"),
        (12_999, "12K"),
        (123_456, "123K"),
        (999_999, "999K"),
        (1_000_000, "1M"),
        (1_290_000, "1.2M"),
        (5 * 10**9, "5B"),
        (2**53 - 1, "9007T"),
        (-1_234, "-1.2K"),
    ],
)
def test_counts_are_shown_like_likes(number: int, text: str) -> None:
    assert rounded(number) == text
