"""What is replayed: own files as they are counted, with clear errors."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from cluster.expected import BoardSpec, Entry
from cluster.workload import InputError, OwnInput


def test_own_csv(tmp_path: Path) -> None:
    file = tmp_path / "own.csv.gz"
    with gzip.open(file, "wt") as out:
        out.write("region,board,member,add,score,at,data\n")
        out.write("EU,likes,ann,3,,2026-01-01T00:00:00Z,\n")
        out.write('us,laps,bob,,71,1000,"{""kart"": 4}"\n')
        out.write("us,likes,ann,0,,,\n")
    own = OwnInput(file)
    assert own.regions == ("eu", "us")
    assert (own.rows_total, own.skipped) == (2, 1)
    assert own.boards == {
        "likes": BoardSpec("likes", "sum", ties="member"),
        "laps": BoardSpec("laps", "best", ties="member"),
    }
    assert [row.entries[0] for row in own.rows()] == [
        Entry("likes", "ann", 3, 1_767_225_600_000),
        Entry("laps", "bob", 71, 1000, {"kart": 4}),
    ]


def test_own_json_lines_with_boards(tmp_path: Path) -> None:
    file, boards = tmp_path / "own.jsonl", tmp_path / "boards.json"
    file.write_text('\n{"region": "eu", "board": "laps", "member": "ann", "score": 71.0}\n')
    definition = {"rule": "best", "order": "low", "score": {"min": 0, "max": 99}}
    boards.write_text(json.dumps({"laps": definition}))
    own = OwnInput(file, boards)
    assert own.boards["laps"] == BoardSpec("laps", "best", order="low", score=(0, 99))
    assert own.boards["laps"].document() == {**definition, "ties": "first"}


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ('{"region": "eu", "board": "b", "member": "m"}', "either 'add' or 'score'"),
        ('{"region": "eu", "board": "b", "member": "m", "add": 1.5}', "1.5 is not an integer"),
        ('{"region": "eu", "board": "b", "member": "m", "add": true}', "True is not an integer"),
        ('{"region": "eu", "board": "b", "add": 1}', "member: missing"),
        ('{"region": "e u", "board": "b", "member": "m", "add": 1}', "region: 'e u'"),
        ('{"region": "eu", "board": "b", "member": "m", "add": 1, "at": "soon"}', "RFC 3339"),
        ('{"region": "eu", "board": "b", "member": "m", "add": 1, "x": 1}', "unknown column 'x'"),
        ("[1]", "not a JSON object"),
        ("{", "not JSON"),
        ("", "holds no rows"),
    ],
)
def test_a_bad_row_is_named(tmp_path: Path, line: str, text: str) -> None:
    file = tmp_path / "own.jsonl"
    file.write_text(line)
    with pytest.raises(InputError, match=r"own\.jsonl") as raised:
        OwnInput(file)
    assert text in str(raised.value)


def test_entries_must_fit_the_board(tmp_path: Path) -> None:
    file = tmp_path / "own.csv"
    file.write_text("region,board,member,add,score\neu,b,m,1,\neu,b,m,,1\n")
    with pytest.raises(InputError, match=r"own\.csv:3: score: board 'b' has rule"):
        OwnInput(file)
