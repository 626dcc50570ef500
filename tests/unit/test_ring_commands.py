"""The ring's commands without a ring: files of secrets, tables, reasons, and rosters as bytes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from rich.console import Console

from agent.api.counts import REASON_CLASSES, class_of
from agent.config import read_secrets
from agent.crdt.cell import Row
from agent.crdt.document import Status
from agent.errors import ExchangeRefused
from agent.exchange import Boot, Sender
from agent.gossip import frame
from agent.gossip.mending import told
from agent.gossip.roster import Seat, unpack_roster
from agent.gossip.secrets import name_of_secret
from agent.identity import Confirmation, Evidence, why_burnt
from agent.store.identity import Life
from agent.store.scrub import Pair
from agent.store.token import Token
from cluster.commands.call import _problem
from cluster.commands.ring import ring
from cluster.commands.ring_tables import whole_ring, wrong
from cluster.commands.simulate import simulate

OLD = b"the secret of old, long enough"
NEW = b"the new secret, long enough too"
MARK = b"# new: " + name_of_secret(NEW).encode()
LIFE = Life(inc=9, log=5, boot=3, nonce=8, clean=True, burnt="", seq=10, lsn=20)
GOOD = Confirmation(10, Boot(3, 8), 9, 20, Status.ACTIVE)


# --- rotating the secret ----------------------------------------------------------------


def rotate(file: Path, *arguments: str) -> Result:
    return CliRunner().invoke(ring, ["rotate-secret", "--secret-file", str(file), *arguments])


def test_a_secret_is_added_and_switched_to(tmp_path: Path) -> None:
    file, new = tmp_path / "ring.secret", tmp_path / "new"
    file.write_bytes(OLD + b"\n")
    new.write_bytes(NEW + b"\n")
    assert rotate(file, "--step", "add", "--new-from", str(new), "--dry-run").exit_code == 0
    assert file.read_bytes() == OLD + b"\n"
    for _ in range(2):  # a step that is given again does nothing
        said = rotate(file, "--step", "add", "--new-from", str(new))
        assert said.exit_code == 0, said.output
        assert file.read_bytes().split(b"\n") == [MARK, OLD, NEW, b""]
    for to in ((), (), ("--to", name_of_secret(NEW))):
        said = rotate(file, "--step", "switch", *to)
        assert said.exit_code == 0, said.output
        assert file.read_bytes().split(b"\n") == [MARK, NEW, OLD, b""]
    again = rotate(file, "--step", "switch")
    assert f"signs with {name_of_secret(NEW)} already" in again.output
    assert read_secrets(file) == (NEW, OLD)
    assert file.stat().st_mode & 0o777 == 0o600
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new", "ring.secret"]


def test_a_fresh_secret_is_long_and_is_added_once(tmp_path: Path) -> None:
    file = tmp_path / "ring.secret"
    file.write_bytes(OLD)
    assert rotate(file, "--step", "add").exit_code == 0
    held, (_, new) = file.read_bytes(), read_secrets(file)
    assert len(new) == 64
    again = rotate(file, "--step", "add")
    assert (again.exit_code, file.read_bytes()) == (0, held)
    assert f"the new secret {name_of_secret(new)} is there already" in again.output


@pytest.mark.parametrize(
    "theirs",
    [(NEW,), (OLD, NEW), (NEW, OLD), (MARK, OLD, NEW), (MARK, NEW, OLD)],
)
def test_the_new_secret_of_another_machine_is_taken(
    tmp_path: Path, theirs: tuple[bytes, ...]
) -> None:
    file, new = tmp_path / "ring.secret", tmp_path / "new"
    file.write_bytes(OLD)
    new.write_bytes(b"\n".join(theirs))
    said = rotate(file, "--step", "add", "--new-from", str(new))
    assert f"the new secret {name_of_secret(NEW)} is from {new}" in said.output
    assert file.read_bytes().split(b"\n") == [MARK, OLD, NEW, b""]
    new.write_bytes(OLD)  # a copy that is of before
    assert rotate(file, "--step", "add", "--new-from", str(new)).exit_code == 0
    assert file.read_bytes().split(b"\n") == [MARK, OLD, NEW, b""]
    new.write_bytes(b"the third one, long enough too")
    refused = rotate(file, "--step", "add", "--new-from", str(new))
    assert (refused.exit_code, "a second secret already" in refused.output) == (1, True)


def test_a_file_that_was_made_by_hand_needs_the_name_of_the_new_one(tmp_path: Path) -> None:
    file = tmp_path / "ring.secret"
    file.write_bytes(NEW + b"\n" + OLD)
    refused = rotate(file, "--step", "switch")
    assert (refused.exit_code, "does not say which" in refused.output) == (1, True)
    assert rotate(file, "--step", "add").exit_code == 1
    assert file.read_bytes() == NEW + b"\n" + OLD
    assert rotate(file, "--step", "switch", "--to", name_of_secret(OLD)).exit_code == 0
    assert read_secrets(file) == (OLD, NEW)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--step", "switch"), "begin with --step add"),
        (("--step", "switch", "--to", "abc"), "holds no secret abc"),
        (("--step", "switch", "--new-from", "x"), "goes with --step add"),
        (("--step", "add", "--new-from", "/nowhere/new"), "can't be read"),
    ],
)
def test_a_wrong_step_changes_nothing(
    tmp_path: Path, arguments: tuple[str, ...], says: str
) -> None:
    file = tmp_path / "ring.secret"
    file.write_bytes(OLD)
    result = rotate(file, *arguments)
    assert (result.exit_code, file.read_bytes()) == (1, OLD)
    assert says in result.output


# --- adding an agent --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "more", "says"),
    [
        ("no name", (), "is not a name"),
        ("ap", ("--listen", "7401"), "is not HOST:PORT"),
        ("ap", ("--data-dir", "."), "is not empty"),
        ("ap", ("--config", "ring.secret"), "is there already"),
        ("ap", (), "is it running"),
    ],
)
def test_an_agent_that_can_t_be_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, more: tuple[str, ...], says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ring.secret").write_bytes(OLD)
    line = ["add", name, "--seed", "http://127.0.0.1:1", "--secret-file", "ring.secret"]
    result = CliRunner().invoke(ring, [*line, "--ring", "r", "--region", "ap", *more])
    assert result.exit_code == 1, result.output
    assert says in result.output
    assert [path.name for path in tmp_path.iterdir()] == ["ring.secret"]


# --- what is shown ----------------------------------------------------------------------


def member(name: str, **more: Any) -> dict[str, Any]:
    contact = {
        "state": "ok",
        "last_exchange": "2026-11-30T15:22:00.240Z",
        "last_error": "",
        "last_error_at": None,
        "rows_behind": 3,
        "rows_left": 0,
        "rows_per_s": 0.0,
    }
    made: dict[str, Any] = {
        "name": name,
        "region": name,
        "status": "active",
        "incarnations": ["1"],
        "boot": 2,
        "lag_ms": 120,
        "unconfirmed": [],
        "cursor": {"log": "bdab1eaed5eef1e", "lsn": 16},
        "contact": None if name == "eu" else {**contact, **more.pop("contact", {})},
    }
    return {**made, **more}


def answer(*members: dict[str, Any], **more: Any) -> dict[str, Any]:
    identity = {
        "incarnation": "1f",
        "log": "2a",
        "boot": 2,
        "since": "2026-11-30T15:21:40.101Z",
        "minted": None,
        "burnt": "",
        "complete": True,
        "unread": [],
        "secrets": ["5f0c1d2e"],
    }
    return {
        "ring": "demo",
        "agent": "eu",
        "identity": {**identity, **more.pop("identity", {})},
        "alarms": [],
        "refuses": {},
        "finals": {
            "pending": 0,
            "waiting": {},
            "fetching": 0,
            "disagreeing": 0,
            "late": 0,
            "conflicts": 0,
            "trouble": "",
        },
        "leaving": None,
        "joining": [],
        "members": [member("eu"), *members],
        "matrix": [
            {"region": "eu", "of": "us", "lag_ms": 120, "rows": 4, "age_ms": 0},
            {"region": "us", "of": "eu", "lag_ms": None, "rows": None, "age_ms": 61_000},
        ],
        **more,
    }


def shown(document: dict[str, Any], width: int = 100) -> str:
    out = StringIO()
    Console(file=out, width=width, markup=False).print(whole_ring(document), highlight=False)
    return out.getvalue()


def test_a_ring_is_shown_whole() -> None:
    text = shown(
        answer(
            member("us", contact={"rows_left": 5_000, "rows_per_s": 250.0}, unconfirmed=["ap"]),
            alarms=["something \x1b[2J is wrong"],
            refuses={"leaving": "this agent is leaving the ring"},
            leaving={"phase": "draining", "waits_for": [{"name": "us", "rows": 12}]},
            identity={"complete": False, "unread": ["us"], "minted": "a member knew more"},
        )
    )
    for part in (
        "this agent",
        "120 ms, 4 rows",
        "unknown, rows unknown (61 s ago)",
        "5,000 rows (250 a second) still to read",
        "not confirmed by ap",
        "ALARM: something \\x1b[2J is wrong",
        "writes are refused (leaving)",
        "leaving: draining, waits for us (12 rows)",
        "still to read: us",
        "a new incarnation was begun: a member knew more",
    ):
        assert part in text, text


def test_eighty_columns_are_enough() -> None:
    long = {"incarnation": "17deb90f7c1a2b3c", "log": "9c6b1a2f3d4e5f60", "boot": 1234}
    long["secrets"] = ["5f0c1d2e", "0a1b2c3d"]
    members = member("us", status="leaving"), member("ap", status="removed")
    text = shown(answer(*members, identity=long), 80)
    who = "incarnation 17deb90f7c1a2b3c since 2026-11-30T15:21:40.101Z, boot 1234\n"
    held = "log 9c6b1a2f3d4e5f60, secret 5f0c1d2e, 0a1b2c3d\n"
    for part in ("bdab:16", "leaving, ok", "removed", "to send"):
        assert part in text, text
    for part in (who, held):
        assert part in "".join(line.rstrip() + "\n" for line in text.splitlines()), text


@pytest.mark.parametrize(
    ("state", "at", "told"),
    [
        ("ok", "2026-11-30T15:20:00.000Z", False),
        ("ok", "2026-11-30T15:21:30.000Z", True),
        ("suspect", "2026-11-30T15:20:00.000Z", True),
    ],
)
def test_an_error_that_is_history_is_not_shown(state: str, at: str, told: bool) -> None:
    contact = {"state": state, "last_error": "timed out", "last_error_at": at}
    assert ("last error" in shown(answer(member("us", contact=contact)))) is told


def test_ages_are_in_seconds_from_5_s_on() -> None:
    cell = {"region": "eu", "of": "us", "lag_ms": 6_000, "rows": 1, "age_ms": 5_000}
    text = shown(answer(matrix=[cell]))
    assert "6 s, 1 row (5 s ago)" in text


def test_hints_of_the_api_are_in_the_command_line_s_words() -> None:
    hint = "define it with PUT /v1/boards/{board}; a new definition may still be on its way"
    problem = {"code": "unknown_board", "detail": "no", "hint": hint}
    error = _problem(404, problem)
    assert error.hint.startswith("define it with 'tallyring board define';")
    assert error.document["hint"] == hint
    conflict = _problem(409, {"hint": "loses nothing; force removes it all the same"})
    assert conflict.hint == "loses nothing; --force removes it all the same"


def test_a_write_is_called_in_the_log_as_everywhere() -> None:
    row = Row(b"\x01b", b"m", b"+", 5, 6, b"", 0x17DEB90F, 3)
    assert told(Pair(row, None))["here"] == "(5, 6, b'') of write 17deb90f-3"


def test_seeds_that_are_right_without_a_rule_are_said_not_to_need_it() -> None:
    result = CliRunner().invoke(simulate, ["--seed", "3", "--steps", "5", "--omit", "G"])
    assert result.exit_code == 0, result.output
    assert "this seed does not need rule G" in result.output


def test_what_is_wrong_decides_the_exit_code() -> None:
    assert wrong(answer(member("us"))) == []
    assert wrong(answer(member("us", contact={"state": "suspect"}))) == []
    assert wrong(answer(member("us", contact={"state": "down"}))) == ["us is down"]
    never = {"last_exchange": None}
    assert wrong(answer(member("us", contact=never))) == ["us was never met"]
    assert wrong(answer(member("us", status="removed", contact={"state": "down"}))) == []
    assert wrong(answer(alarms=["x"])) == ["x"]


# --- reasons and rosters ----------------------------------------------------------------


def reasons() -> Iterator[tuple[str, str]]:
    """(class, what the code says) for each way to lose an incarnation."""
    good = Evidence(LIFE, "f", Token(5, 3, "f"), None, Boot(4, 1), {"us": GOOD})
    assert why_burnt(good) == ""
    new = replace(LIFE, boot=0)
    for name, evidence in (
        ("unclean", replace(good, life=replace(LIFE, clean=False))),
        ("clock", replace(good, life=new, answers={"us": replace(GOOD, newest_inc=10)})),
        ("file", replace(good, token=None)),
        ("file", replace(good, token=Token(5, 2, "f"))),
        ("file", replace(good, file="another")),
        ("redis", replace(good, sentinel=(5, 4))),
        ("behind", replace(good, answers={"us": replace(GOOD, seen=11)})),
        ("behind", replace(good, answers={"us": replace(GOOD, read_to=21)})),
        ("behind", replace(good, answers={"us": replace(GOOD, newest_inc=10)})),
        ("twin", replace(good, answers={"us": replace(GOOD, boot=Boot(3, 9))})),
        ("unconfirmed", replace(good, answers={"us": "did not answer within 3 s"})),
    ):
        yield name, why_burnt(evidence)
    yield "twin", "another process writes as it"


def test_every_reason_for_a_new_incarnation_has_its_class() -> None:
    found = list(reasons())
    for name, why in found:
        assert class_of(why) == name, why
    assert {name for name, _ in found} == set(REASON_CLASSES)


def roster(*seat: object) -> frame.Frame:
    me = frame.pack_sender(Sender("eu", 1, 2, Boot(3, 4)))
    payload = frame.pack([me, 17, [list(seat)]])
    head, body = frame.frame(payload)
    return frame.Frame(head, b"", body)


def test_a_roster_is_read_and_checked() -> None:
    good = ("us", "us", "http://10.0.0.2:7401", 0, "ok")
    assert unpack_roster(roster(*good)).seats == (Seat(*good[:3], Status.ACTIVE, "ok"),)
    for place, bad in ((0, ""), (1, 5), (2, None), (2, "x" * 2_000), (3, 9), (4, "well")):
        seat: list[object] = list(good)
        seat[place] = bad
        with pytest.raises(ExchangeRefused):
            unpack_roster(roster(*seat))


def test_what_waits_to_be_certified_is_said() -> None:
    quiet = answer()["finals"]
    assert "certified" not in shown(answer())
    waiting = {"us": 3, "ap": 1}
    busy = {**quiet, "pending": 3, "waiting": waiting, "fetching": 1, "late": 2, "trouble": "full"}
    text = shown(answer(finals=busy))
    assert "3 closed windows not certified here yet; waits for us (3), ap (1)" in text
    assert "the rows of 1 final are being fetched" in text
    assert "2 finals of which something came later" in text
    assert "certifying waits: full" in text
