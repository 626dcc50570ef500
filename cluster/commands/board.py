"""Boards: list, show, define, reset, retire."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, get_args

import click
from rich.table import Table

from agent.boards.definition import Order, Rule, Ties
from agent.limits import SCORE_MAX
from cluster.commands.call import (
    Api,
    Command,
    CommandError,
    api_options,
    plain,
    segment,
    some,
    table,
)

DRY_RUN = click.option("--dry-run", is_flag=True, help="Say what would happen, change nothing.")


@click.group()
def board() -> None:
    """List, show, define, reset and retire boards."""


def definition_options(*, required: bool) -> Callable[[Command], Command]:
    """The options that make up a definition; without any, there is none."""

    def decorate(command: Command) -> Command:
        for option in (
            click.option("--half-life", help="'trend': after this time an entry counts half."),
            click.option("--key-retention", help="How long keys are remembered, such as 1h."),
            click.option("--keep-results", is_flag=True, help="Results can be taken back by key."),
            click.option("--rate", help="Entries of a member in seconds, such as 10/60."),
            click.option("--max", "score_max", type=int, help="Greatest score."),
            click.option("--min", "score_min", type=int, help="Least score."),
            click.option(
                "--window",
                "windows",
                multiple=True,
                help="Such as 'day,zone=Europe/Berlin,grace=10m,keep=8d'; several are possible.",
            ),
            click.option("--ties", type=click.Choice(get_args(Ties))),
            click.option("--grow-only", is_flag=True, help="A 'sum' board without negative adds."),
            click.option("--order", type=click.Choice(get_args(Order))),
            click.option("--rule", type=click.Choice(get_args(Rule)), required=required),
        ):
            command = option(command)
        return command

    return decorate


def _definition(
    *,
    rule: str | None,
    grow_only: bool,
    windows: tuple[str, ...],
    rate: str | None,
    keep_results: bool,
    score_min: int | None,
    score_max: int | None,
    **plain: str | None,
) -> dict[str, Any] | None:
    definition: dict[str, Any] = {"rule": rule, **plain}
    definition["grow_only"] = True if grow_only else None
    definition["windows"] = [_window(text) for text in windows] or None
    definition["rate"] = None if rate is None else _rate(rate)
    definition["results"] = "keep" if keep_results else None
    if (score_min is None) != (score_max is None):
        raise CommandError("--min and --max go together")
    if score_min is not None:
        definition["score"] = {"min": score_min, "max": score_max}
    given = {name: value for name, value in definition.items() if value is not None}
    if given and rule is None:
        raise CommandError(
            "--rule: missing", f"a definition names its rule: {', '.join(get_args(Rule))}"
        )
    return given or None


_TRUTH = {"true": True, "false": False}  # no name, time or zone is one of these


def _window(text: str) -> dict[str, Any]:
    """A window: its name, then its settings as NAME=VALUE; which there are is for the agent."""
    name, *settings = text.split(",")
    window: dict[str, Any] = {"name": name.strip()}
    for setting in settings:
        field, equals, value = setting.partition("=")
        if not equals:
            raise CommandError(
                f"--window: {setting!r} is not NAME=VALUE",
                "for example --window day,zone=Europe/Berlin,keep=8d",
            )
        word = value.strip()
        window[field.strip()] = _TRUTH.get(word, word)
    return window


def _rate(text: str) -> dict[str, int]:
    entries, _, seconds = text.partition("/")
    if not entries.isdecimal() or not (seconds or "1").isdecimal():
        raise CommandError(
            f"--rate: {text!r} is not ENTRIES/SECONDS", "for example 10/60: ten in a minute"
        )
    return {"per_member": int(entries), "per_s": int(seconds or "1")}


@board.command("list")
@api_options
def list_boards(api: Api) -> None:
    """List all boards in use."""
    boards: list[dict[str, Any]] = []
    while True:
        answer = api.get("/v1/boards", offset=len(boards) or None)
        boards += answer["boards"]
        if not answer["boards"] or len(boards) >= answer["total"]:
            break
    api.show({**answer, "boards": boards, "offset": 0}, lambda: _boards(boards))


@board.command()
@click.argument("name")
@api_options
def show(api: Api, name: str) -> None:
    """Show the board NAME, and the definitions that it overrules."""
    answer = api.get(f"/v1/boards/{segment(name)}")
    api.show(answer, lambda: _one(answer))


@board.command()
@click.argument("name")
@definition_options(required=True)
@DRY_RUN
@api_options
def define(api: Api, name: str, dry_run: bool, **options: Any) -> None:
    """Define the board NAME in every region, or change it.

    What is left out gets its default: order high, the window 'all', and ties and a range that go
    with the rule.
    """
    definition = _definition(**options)
    before = _windows_of(api, name)
    query = {"preview": "true"} if dry_run else {}
    answer = api.send("PUT", f"/v1/boards/{segment(name)}", definition, query)
    api.show(answer, lambda: _changed(answer, dry_run) + _left_out(before, answer, dry_run))


@board.command(short_help="Start the board NAME anew in every region.")
@click.argument("name")
@definition_options(required=False)
@DRY_RUN
@api_options
def reset(api: Api, name: str, dry_run: bool, **options: Any) -> None:
    """Start the board NAME anew in every region, with a new definition if one is given.

    What was counted so far is no longer shown. Windows that are closed and not certified by then
    get no final.
    """
    definition = _definition(**options)
    path = f"/v1/boards/{segment(name)}/reset"
    if dry_run:
        planned = api.send("POST", path, definition, {"preview": "true"})
        what = (
            "start anew, and its scores would no longer be shown; windows that are closed and not"
            " certified by then get no final"
        )
        _would(api, name, what, _changes(planned))
        return
    answer = api.send("POST", path, definition)
    api.show(answer, lambda: _changed(answer, False))


@board.command(short_help="Retire the board NAME in every region.")
@click.argument("name")
@DRY_RUN
@api_options
def retire(api: Api, name: str, dry_run: bool) -> None:
    """Retire the board NAME in every region: it takes no entries and shows no ranks."""
    if dry_run:
        _would(api, name, "be retired: its keys in every region's Redis would be removed")
        return
    answer = api.send("DELETE", f"/v1/boards/{segment(name)}")
    api.show(answer, lambda: f"{name}: retired")


@board.command(short_help="What was counted under a definition that lost.")
@click.argument("name")
@click.argument("agent")
@click.option("--window", help="Its name or id. Default: the first one of that definition.")
@click.option("--generation", type=int, help="Default: the newest that holds any of it.")
@click.option("--after", help="Go on after this member.")
@click.option("--limit", default=100, show_default=True, type=click.IntRange(1, 1000))
@api_options
def overruled(
    api: Api,
    name: str,
    agent: str,
    window: str | None,
    generation: int | None,
    after: str | None,
    limit: int,
) -> None:
    """Show what was counted on the board NAME under the definition of AGENT, which lost."""
    path = f"/v1/boards/{segment(name)}/overruled/{segment(agent)}/entries"
    answer = api.get(path, window=window, generation=generation, after=after, limit=limit)
    api.show(answer, lambda: _lost(answer))


def _lost(answer: dict[str, Any]) -> Table:
    made = table("member", ">score", "reached")
    where = f"{answer['board']}, {answer['window']}, generation {answer['generation']}"
    made.title = f"{where}, as {answer['agent']} had defined it"
    for line in answer["entries"]:
        made.add_row(plain(line["member"]), str(line["score"]), line["reached_at"] or "")
    return made


def _would(api: Api, name: str, what: str, changes: tuple[str, ...] = ()) -> None:
    """Say what a command would do to a board that exists, and to its definition."""
    known = api.get(f"/v1/boards/{segment(name)}")
    page = api.get(f"/v1/boards/{segment(name)}/entries", limit=1)
    answer = {
        "dry_run": True,
        "board": name,
        "generation": known["generation"],
        "members": page["total"],
    }
    said = f"{name} ({some(page['total'], 'member')}) would {what}. Nothing was changed."
    api.show(answer, lambda: "\n".join((said, *changes)))


def _boards(boards: list[dict[str, Any]]) -> Table:
    made = table("board", "rule", "windows", "ties", "scores", ">generation")
    for one in boards:
        definition = one["definition"]
        rule = definition["rule"]
        rule += ", low" if definition["order"] == "low" else ""
        rule += ", grows" if definition["grow_only"] else ""
        made.add_row(
            one["board"],
            rule,
            ", ".join(window["name"] for window in definition["windows"]),
            definition["ties"],
            _range(one["score"]),
            str(one["generation"]),
        )
    return made


def _range(score: dict[str, int]) -> str:
    """A board's range; the widest as the documents write it."""
    least, greatest = score["min"], score["max"]
    widest = -least == greatest == SCORE_MAX
    return "+-(2^53 - 1)" if widest else f"{least} to {greatest}"


def _one(answer: dict[str, Any]) -> Table:
    made = table("", "", title=answer["board"])
    made.show_header = False
    for name, value in answer["definition"].items():
        if name != "windows":
            made.add_row(name, value if isinstance(value, str) else json.dumps(value))
    for name in ("score", "generation", "version", "written_by"):
        made.add_row(f"in force: {name}" if name == "score" else name, json.dumps(answer[name]))
    for defined, now in zip(answer["definition"]["windows"], answer["windows"], strict=True):
        made.add_row(f"window {defined['name']}", _window_text(defined, now))
    for lost in answer["overruled"]:
        made.add_row(
            f"overruled: by {lost['agent']}",
            f"generation {lost['generation']}, version {lost['version']},"
            f" {some(lost['members'], 'member')}, of which nothing is"
            f" lost: 'tallyring board overruled {answer['board']} {lost['agent']}';"
            f" {json.dumps(lost['definition'])}",
        )
    return made


def _window_text(defined: dict[str, Any], now: dict[str, Any]) -> str:
    """A window as it is defined, and the one that is open, in lines."""
    settings = [
        f"{name} {value}"
        for name, value in defined.items()
        if value and name not in ("name", "certify")
    ]
    if defined.get("certify") is False:
        settings.append("no finals")
    said = [", ".join(settings)]
    said.append(f"open: {now['window']}" if now["window"] else "none is open")
    if now["next_reset"]:
        said.append(f"next reset: {now['next_reset']}")
    if now["tick_ms"] is not None:
        said.append(f"times in {now['tick_ms']} ms, {now['b']} bits")
    return "\n".join(said)


def _windows_of(api: Api, name: str) -> list[str]:
    """The windows that a board has before it is changed; none where it is new."""
    try:
        answer = api.get(f"/v1/boards/{segment(name)}")
    except CommandError:
        return []
    return [window["name"] for window in answer["definition"]["windows"]]


def _left_out(before: list[str], answer: dict[str, Any], dry_run: bool) -> str:
    """What is to be said where windows of before are not in a definition any more."""
    now = {window["name"] for window in answer["definition"]["windows"]}
    gone = [name for name in before if name not in now]
    if not gone:
        return ""
    are = "would be" if dry_run else "are"
    return (
        f"\n{', '.join(gone)}: {are} left out, with their ranks; added again, a window begins anew"
        " at its next beginning, and 'all' or a season that has begun can't be"
    )


def _changed(answer: dict[str, Any], dry_run: bool) -> str:
    would = "would be " if dry_run else ""
    what = f"{would}changed" if answer["changed"] else "as it was: nothing to change"
    version = f"generation {answer['generation']}, version {answer['version']}"
    lines = [f"{answer['board']}: {what} ({version})"]
    if dry_run:
        lines += _changes(answer)
    return "\n".join(lines)


def _changes(answer: dict[str, Any]) -> tuple[str, ...]:
    """What a definition changes, a line for each field, and for each window."""
    lines: list[str] = []
    for its in answer.get("changes", ()):
        if its["field"] == "windows":
            lines += _window_changes(its["before"], its["after"])
        else:
            lines.append(
                f"  {its['field']}: {json.dumps(its['before'])} -> {json.dumps(its['after'])}"
            )
    return tuple(lines)


def _window_changes(before: list[dict[str, Any]], after: list[dict[str, Any]]) -> list[str]:
    """What becomes of each window, and their order where nothing else is changed."""
    was, will = ({its["name"]: its for its in windows} for windows in (before, after))
    lines = [f"  window {name}: taken away" for name in was if name not in will]
    for name, its in will.items():
        if name not in was:
            lines.append(f"  window {name}: added")
        lines += [
            f"  window {name}: {field} {json.dumps(was[name].get(field))} -> {json.dumps(value)}"
            for field, value in its.items()
            if name in was and was[name].get(field) != value
        ]
    if not lines:
        lines.append(f"  windows: {', '.join(was)} -> {', '.join(will)}")
    return lines
