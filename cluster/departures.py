"""The demo's own input: every departure from New York's three airports in 2013.

Each airport's departures are written in its own region. Some of them are sent again, as a client
does that got no answer: a part of the entries carries a `key`, and goes to its own region twice, to
other regions, or both. Each counts once.
"""

from __future__ import annotations

import csv
import gzip
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path

from cluster.expected import BoardSpec, Entry
from cluster.windows import DAY_MS, WindowSpec
from cluster.workload import Pace, Retry, Row

DEPARTURES = Path(__file__).with_name("data") / "departures-2013.csv.gz"
DEPARTURES_ROWS = 336_776
EVERY = 12  # of so many departures one is taken, unless all are
KEYED_EVERY = 20  # of so many rows one carries a key
AIRPORTS = ("ewr", "jfk", "lga")
ZONE = "Europe/Berlin"
LIKES = "likes"
ALL_CARRIERS = "all"

# A request holds departures of three days at most, one at a time is on its way to an agent, whose
# clock stands at its newest one, and what is sent again is one request late. So no entry comes
# later than six days, and neither a window nor a key may be over before.
_STEP_MS = 3 * DAY_MS
_GRACE_DAYS = 7
# Days and weeks are kept so long that a part of them is gone at the end of the year.
_WINDOWS = (
    WindowSpec("all"),
    WindowSpec("day", ZONE, _GRACE_DAYS, 113),
    WindowSpec("week", ZONE, _GRACE_DAYS, 193),
    WindowSpec("month", ZONE, _GRACE_DAYS, 400),
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Departures:
    """Every departure from EWR, JFK and LGA in 2013, or one of so many of them.

    departures: flights by carrier, by day, week and month of Berlin too; a part of the entries has
    a key. flown: the same, less those that never flew. miles, last-hop: by aircraft. fastest:
    minutes in the air by route, by month too. aircraft: by carrier, and of all, how many different
    ones, each counted once wherever it took off. likes: of carriers; not by rows. Counters: flights
    by destination.

    Args:
        every: one of so many departures.
        rows_max: stop after this many rows; None for all of the year.
    """

    regions = AIRPORTS
    boards: Mapping[str, BoardSpec] = {
        spec.name: spec
        for spec in (
            BoardSpec("departures", "sum", grow_only=True, windows=_WINDOWS, key_retention="7d"),
            BoardSpec("flown", "sum"),
            BoardSpec("miles", "sum", grow_only=True),
            BoardSpec(
                "fastest",
                "best",
                order="low",
                score=(0, 4095),
                windows=(_WINDOWS[0], _WINDOWS[3]),
            ),
            BoardSpec("last-hop", "latest"),
            BoardSpec("aircraft", "unique", ties="member"),
            BoardSpec(LIKES, "distinct", ties="member"),
        )
    }
    pace = Pace(starts_ms=1_356_998_400_000, step_ms=_STEP_MS, in_flight=1, rest_ms=8 * DAY_MS)

    def __init__(self, *, every: int = EVERY, rows_max: int | None = None) -> None:
        self._every = every
        total = -(-DEPARTURES_ROWS // every)
        self.rows_total = total if rows_max is None else min(total, rows_max)

    def rows(self) -> Iterator[Row]:
        """All rows of the year, in time order."""
        with gzip.open(DEPARTURES, "rt", encoding="utf-8", newline="") as file:
            body = csv.reader(file)
            next(body)
            taken = islice(body, 0, self._every * self.rows_total, self._every)
            for number, columns in enumerate(taken):
                yield _row(number, columns)


def _row(number: int, columns: list[str]) -> Row:
    at, airport, carrier, aircraft, destination, minutes, miles = columns
    at_ms = (datetime.fromisoformat(at) - _EPOCH) // timedelta(milliseconds=1)
    region = airport.lower()
    key = f"departure-{number}" if number % KEYED_EVERY == 0 else None
    departure = Entry("departures", carrier, 1, at_ms, key=key)
    entries = [departure, Entry("flown", carrier, 1, at_ms)]
    if minutes:
        entries.append(Entry("fastest", f"{airport}-{destination}", int(minutes), at_ms))
    else:
        entries.append(Entry("flown", carrier, -1, at_ms))
    if aircraft:
        entries.append(Entry("miles", aircraft, int(miles), at_ms))
        entries.append(Entry("last-hop", aircraft, int(miles), at_ms))
        entries.append(Entry("aircraft", carrier, 0, at_ms, actor=aircraft))
        entries.append(Entry("aircraft", ALL_CARRIERS, 0, at_ms, actor=aircraft))
    retries = _retries(number // KEYED_EVERY, region, departure) if key else ()
    return Row(region, tuple(entries), (destination,), retries)


def _retries(number: int, region: str, entry: Entry) -> tuple[Retry, ...]:
    """Where a keyed entry is sent again: here, there, there and there, or here and there."""
    others = [other for other in AIRPORTS if other != region]
    here, there = [region], [others[number // 4 % 2]]
    where = (here, there, others, here + there)[number % 4]
    return tuple(Retry(name, entry) for name in where)
