"""The command line where no agent is needed: errors that say what to do, and no tracebacks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from cluster.cli import main
from cluster.commands.board import _definition
from cluster.local_agent import free_port

# Each with a subcommand that needs an agent.
CALLS = [
    ["ring", "status"],
    ["ring", "watch", "--times", "1"],
    ["board", "list"],
    ["board", "show", "b"],
    ["board", "define", "b", "--rule", "sum"],
    ["board", "reset", "b"],
    ["board", "retire", "b", "--dry-run"],
    ["add", "b", "m", "1"],
    ["score", "b", "m", "1"],
    ["top", "b"],
    ["rank", "b", "m"],
    ["counter", "c"],
]


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


@pytest.mark.parametrize("arguments", CALLS)
def test_without_an_agent_the_error_says_what_to_do(arguments: list[str]) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    result = invoke(*arguments, "--url", url)
    assert result.exit_code == 1
    assert result.stderr.startswith(f"error: no agent answers at {url}")
    assert "hint:  start one with 'tallyring agent" in result.stderr
    assert "Traceback" not in result.output


def test_an_error_is_json_with_json() -> None:
    result = invoke("top", "b", "--json", "--url", f"http://127.0.0.1:{free_port()}")
    assert result.exit_code == 1
    assert "no agent answers" in json.loads(result.stdout)["error"]["detail"]


@pytest.mark.parametrize("url", ["nonsense", "127.0.0.1:7401", "ftp://127.0.0.1:7401", ""])
def test_a_bad_url_is_an_error(url: str) -> None:
    result = invoke("top", "b", "--url", url)
    assert result.exit_code == 1
    assert "not an http:// or https:// URL" in result.stderr


def test_a_hint_is_printed_once(tmp_path: Path) -> None:
    file = tmp_path / "agent.toml"
    file.write_text("[agent]\nnames = 'eu'\n")
    result = invoke("agent", "--config", str(file))
    assert result.exit_code == 1
    assert result.stderr.count("known: ") == 1


def test_a_config_that_is_not_there_is_an_error() -> None:
    result = invoke("agent", "--config", "nowhere.toml")
    assert result.exit_code == 1
    assert "nowhere.toml can't be read" in result.stderr


def test_half_a_range_is_an_error() -> None:
    result = invoke("board", "define", "b", "--rule", "best", "--min", "0")
    assert result.exit_code == 1
    assert "--min and --max go together" in result.stderr


def test_a_reset_with_options_needs_a_rule() -> None:
    result = invoke("board", "reset", "b", "--ties", "member")
    assert result.exit_code == 1
    assert "--rule: missing" in result.stderr


def test_a_bad_input_of_the_demo_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "own.csv"
    file.write_text("region,board\neu,b\n")
    result = invoke("demo", "--input", str(file))
    assert result.exit_code == 1
    assert "own.csv:2: member: missing" in result.stderr


def test_every_command_has_a_help_text() -> None:
    result = invoke("--help")
    assert result.exit_code == 0
    for name in ("agent", "demo", "ring", "board", "add", "top", "rank", "counter", "simulate"):
        assert name in result.output
        assert invoke(name, "--help").exit_code == 0


def test_the_simulator_repeats_a_seed() -> None:
    results = [invoke("simulate", "--seed", "3", "--steps", "40", "--json") for _ in range(2)]
    assert [result.exit_code for result in results] == [0, 0]
    assert results[0].stdout == results[1].stdout
    document = json.loads(results[0].stdout)
    assert document["failed"] == []
    assert sum(document["faults"].values()) > 0


@pytest.mark.parametrize(
    ("option", "value", "says"),
    [
        ("--window", "day,Europe/Berlin", "'Europe/Berlin' is not NAME=VALUE"),
        ("--rate", "often", "'often' is not ENTRIES/SECONDS"),
        ("--rate", "5/minute", "'5/minute' is not ENTRIES/SECONDS"),
    ],
)
def test_options_of_a_definition_that_are_none(option: str, value: str, says: str) -> None:
    result = invoke("board", "define", "b", "--rule", "sum", option, value)
    assert result.exit_code == 1
    assert says in result.stderr


def test_the_options_make_up_a_definition() -> None:
    assert _definition(
        rule="sum",
        order=None,
        ties="shared",
        grow_only=True,
        windows=("day,zone=Europe/Berlin, keep=8d", "all"),
        rate="10/60",
        keep_results=False,
        key_retention="2h",
        half_life=None,
        score_min=0,
        score_max=9,
    ) == {
        "rule": "sum",
        "ties": "shared",
        "grow_only": True,
        "windows": [{"name": "day", "zone": "Europe/Berlin", "keep": "8d"}, {"name": "all"}],
        "rate": {"per_member": 10, "per_s": 60},
        "key_retention": "2h",
        "score": {"min": 0, "max": 9},
    }
