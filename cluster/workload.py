"""What is replayed: the input's rows, each turned into entries of its own region.

Two inputs: the departures of New York's three airports (departures.py), and anybody's file.

Own files are CSV with a header, or JSON lines (`.jsonl`, `.ndjson`, `.json`), plain or `.gz`, with
the columns

    region   the region that takes the write (at most 8; lower-cased, `A-Z a-z 0-9 . _ -`)
    board    the board it is for
    member   the member
    add      an integer, for boards with rule `sum`; or
    score    an integer, for boards with rule `best` or `latest`
    at       optional: RFC 3339 or ms since 1970; without it, 2020-01-01 plus the row's number in ms
    data     optional, beside `score`: JSON, shown with the score

Boards come from a JSON file `{"board": {"rule": ..., "order": ..., "ties": ..., ...}}` in the form
of PUT /v1/boards/{board}; those that it does not name are taken as `sum` (rows with `add`) or
`best` (rows with `score`), with ties `member`. A row that adds 0 is skipped: it changes no total.
"""

from __future__ import annotations

import csv
import gzip
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TextIO

from cluster.expected import BoardSpec, Entry

REGIONS_MAX = 8
COLUMNS = ("region", "board", "member", "add", "score", "at", "data")
_DEFAULT_AT_MS = 1_577_836_800_000
_REGION = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class InputError(Exception):
    """The input can't be replayed; the text names the file, the line and the column."""


class Retry(NamedTuple):
    """An entry with a key that is sent once more, to a region that may have it already."""

    region: str
    entry: Entry


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the input: its region, the entries it makes, the counters it raises by 1."""

    region: str
    entries: tuple[Entry, ...]
    counters: tuple[str, ...] = ()
    retries: tuple[Retry, ...] = ()


@dataclass(frozen=True, slots=True)
class Pace:
    """How the agents' manual clocks go along with rows that are in the order of time.

    starts_ms: what they show before the first row, in ms since 1970.
    step_ms: no request holds entries of a longer time.
    in_flight: how many requests are on their way to one agent at a time.
    rest_ms: how far they go on after the last row.
    """

    starts_ms: int
    step_ms: int
    in_flight: int
    rest_ms: int


class Workload(Protocol):
    """An input: which regions and boards it needs, and its rows in order."""

    @property
    def regions(self) -> tuple[str, ...]:
        """The regions that write."""

    @property
    def boards(self) -> Mapping[str, BoardSpec]:
        """The boards by name."""

    @property
    def rows_total(self) -> int:
        """How many rows there are."""

    @property
    def pace(self) -> Pace | None:
        """How the clocks go along; None: the agents go by the system's."""

    def rows(self) -> Iterator[Row]:
        """All rows, from the first; may be called again."""


class OwnInput:
    """Somebody's own CSV or JSON lines; see this module's text for the columns.

    Raises:
        InputError: the file, or the file of boards, can't be used.
    """

    pace = None

    def __init__(self, path: Path, boards: Path | None = None) -> None:
        given = _read_boards(boards) if boards else {}
        self._rows: list[Row] = []
        self.skipped = 0
        regions: dict[str, None] = {}
        self.boards: dict[str, BoardSpec] = {}
        for line, record in _records(path):
            row = _own_row(record, line, given, self.boards)
            if row is None:
                self.skipped += 1
                continue
            regions.setdefault(row.region)
            self._rows.append(row)
        if not self._rows:
            raise InputError(f"{path}: holds no rows")
        if len(regions) > REGIONS_MAX:
            raise InputError(f"{path}: names {len(regions)} regions, at most {REGIONS_MAX}")
        self.regions: tuple[str, ...] = tuple(regions)
        self.rows_total = len(self._rows)

    def rows(self) -> Iterator[Row]:
        """All rows, in the file's order."""
        return iter(self._rows)


@contextmanager
def _opened(path: Path) -> Iterator[TextIO]:
    if path.suffix == ".gz":
        with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
            yield file
    else:
        with path.open(encoding="utf-8", newline="") as file:
            yield file


def _records(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The file's rows as (place, record)."""
    lines = {".json", ".jsonl", ".ndjson"} & set(path.suffixes)
    try:
        with _opened(path) as file:
            parsed = _json_lines(path, file) if lines else _csv_lines(path, file)
            yield from parsed
    except (OSError, UnicodeDecodeError, EOFError, csv.Error) as error:
        raise InputError(f"{path}: can't be read: {error}") from error


def _json_lines(path: Path, file: Iterable[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    for number, line in enumerate(file, 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except ValueError as error:
            raise InputError(f"{path}:{number}: not JSON: {error}") from error
        if not isinstance(record, dict):
            raise InputError(f"{path}:{number}: not a JSON object")
        yield f"{path}:{number}", record


def _csv_lines(path: Path, file: Iterable[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    reader = csv.DictReader(file)
    for record in reader:
        place = f"{path}:{reader.line_num}"
        if None in record or None in record.values():
            raise InputError(f"{place}: has not as many columns as the header")
        kept: dict[str, Any] = {name: text for name, text in record.items() if text != ""}
        if "data" in kept:
            try:
                kept["data"] = json.loads(kept["data"])
            except ValueError as error:
                raise InputError(f"{place}: data: not JSON: {error}") from error
        yield place, kept


def _own_row(
    record: dict[str, Any],
    place: str,
    given: Mapping[str, BoardSpec],
    boards: dict[str, BoardSpec],
) -> Row | None:
    """One row of an own file; None for one that adds 0. Its board is added to `boards`."""
    unknown = record.keys() - set(COLUMNS)
    if unknown:
        raise InputError(f"{place}: unknown column {min(unknown)!r}; known: {', '.join(COLUMNS)}")
    region = _text(record, "region", place).lower()
    board, member = _text(record, "board", place), _text(record, "member", place)
    if not _REGION.fullmatch(region):
        raise InputError(f"{place}: region: {region!r} is not a name (a-z 0-9 . _ -)")
    if ("add" in record) == ("score" in record):
        raise InputError(f"{place}: either 'add' or 'score' is needed")
    column = "add" if "add" in record else "score"
    rule = "sum" if column == "add" else "best"
    spec = boards.setdefault(board, given.get(board) or BoardSpec(board, rule, ties="member"))
    if (spec.rule == "sum") != (column == "add"):
        raise InputError(f"{place}: {column}: board {board!r} has rule {spec.rule!r}")
    number = _integer(record[column], f"{place}: {column}")
    if column == "add" and number == 0:
        return None
    at_ms = _DEFAULT_AT_MS + int(place.rpartition(":")[2])
    if "at" in record:
        at_ms = _own_time(record["at"], place)
    return Row(region, (Entry(board, member, number, at_ms, record.get("data")),))


def _text(record: Mapping[str, Any], column: str, place: str) -> str:
    value = record.get(column)
    if not isinstance(value, str) or not value:
        raise InputError(f"{place}: {column}: missing, or not text")
    return value


def _integer(value: Any, place: str) -> int:
    try:
        if isinstance(value, str):
            return int(value)
        if not isinstance(value, bool) and value == int(value):
            return int(value)
    except (TypeError, ValueError, OverflowError):
        pass
    raise InputError(f"{place}: {value!r} is not an integer")


def _own_time(value: Any, place: str) -> int:
    text = str(value)
    if re.fullmatch(r"-?\d+", text):
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
        return (moment - _EPOCH) // timedelta(milliseconds=1)
    except (TypeError, ValueError) as error:
        raise InputError(f"{place}: at: {text!r} is not an RFC 3339 time: {error}") from error


def _read_boards(path: Path) -> dict[str, BoardSpec]:
    try:
        document = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: can't be read as JSON: {error}") from error
    if not isinstance(document, dict):
        raise InputError(f"{path}: not a JSON object of boards")
    return {name: _spec(path, name, body) for name, body in document.items()}


def _spec(path: Path, name: str, body: Any) -> BoardSpec:
    known = {"rule", "order", "ties", "grow_only", "score"}
    if not isinstance(body, dict) or body.get("rule") not in ("sum", "best", "latest"):
        raise InputError(f"{path}: {name}: needs a rule: sum, best or latest")
    if body.keys() - known:
        raise InputError(f"{path}: {name}: {min(body.keys() - known)!r} can't be checked here")
    options = dict(body)
    score = options.pop("score", None)
    try:
        bounds = None if score is None else (int(score["min"]), int(score["max"]))
    except (TypeError, KeyError, ValueError) as error:
        raise InputError(f"{path}: {name}: score: needs min and max") from error
    return BoardSpec(name, score=bounds, **options)
