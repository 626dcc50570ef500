"""The demo's own input: each departure as it is counted, and what is sent again."""

from __future__ import annotations

from collections import Counter

from cluster.departures import AIRPORTS, DEPARTURES_ROWS, KEYED_EVERY, Departures
from cluster.expected import Entry, Expectation
from cluster.workload import Retry, Row

AT_MS = 1_357_035_300_000


def test_a_part_of_the_year_goes_to_its_end() -> None:
    part = Departures(every=40)
    rows = list(part.rows())
    assert len(rows) == part.rows_total == -(-DEPARTURES_ROWS // 40)
    expectation = Expectation(part.boards)
    for row in rows:
        for entry in row.entries:
            expectation.count(entry)
    ids = [window.id for window in expectation.windows("departures")]
    assert len([id for its in ids if its.startswith("month:")]) == 13  # the last evening is in 2014
    assert len([id for its in ids if its.startswith("day:")]) > 360
    places = expectation.places("departures")
    assert sum(place.score for place in places) == len(rows)


def test_the_year_is_whole() -> None:
    year = Departures(every=1)
    by_region = Counter(row.region for row in year.rows())
    assert by_region == {"ewr": 120_835, "jfk": 111_279, "lga": 104_662}
    assert by_region.total() == year.rows_total == DEPARTURES_ROWS


def test_a_departure_makes_its_entries() -> None:
    row = next(Departures(rows_max=1).rows())
    departure = Entry("departures", "UA", 1, AT_MS, key="departure-0")
    assert row == Row(
        "ewr",
        (
            departure,
            Entry("flown", "UA", 1, AT_MS),
            Entry("fastest", "EWR-IAH", 227, AT_MS),
            Entry("miles", "N14228", 1400, AT_MS),
            Entry("last-hop", "N14228", 1400, AT_MS),
            Entry("aircraft", "UA", 0, AT_MS, actor="N14228"),
            Entry("aircraft", "all", 0, AT_MS, actor="N14228"),
        ),
        ("IAH",),
        (Retry("ewr", departure),),
    )


def test_keyed_entries_are_sent_again_here_and_there() -> None:
    keyed = [row for row in Departures(rows_max=40 * KEYED_EVERY).rows() if row.retries]
    assert len(keyed) == 40
    assert all(
        retry.entry == row.entries[0] and retry.entry.key for row in keyed for retry in row.retries
    )
    here = [sum(retry.region == row.region for retry in row.retries) for row in keyed]
    there = [len({retry.region for retry in row.retries} - {row.region}) for row in keyed]
    ways = Counter(zip(here, there, strict=True))
    assert ways == {(1, 0): 10, (0, 1): 10, (0, 2): 10, (1, 1): 10}
    assert {retry.region for row in keyed for retry in row.retries} == set(AIRPORTS)
