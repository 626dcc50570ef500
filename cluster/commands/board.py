"""Boards: list, show, define, reset, retire."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import click
from rich.table import Table

from agent.limits import SCORE_MAX
from cluster.commands.call import Api, Command, CommandError, api_options, segment, some, table

DRY_RUN = click.option("--dry-run", is_flag=True, help="Say what would happen, change nothing.")


@click.group()
def board() -> None:
    """List, show, define, reset and retire boards."""


def definition_options(*, required: bool) -> Callable[[Command], Command]:
    """The options that make up a definition; without any, there is none."""

    def decorate(command: Command) -> Command:
        for option in (
            click.option("--max", "score_max", type=int, help="Greatest score."),
            click.option("--min", "score_min", type=int, help="Least score."),
            click.option("--ties", type=click.Choice(["first", "last", "shared", "member"])),
            click.option("--grow-only", is_flag=True, help="A 'sum' board without negative adds."),
            click.option("--order", type=click.Choice(["high", "low"])),
            click.option("--rule", type=click.Choice(["sum", "best", "latest"]), required=required),
        ):
            command = option(command)
        return command

    return decorate


def _definition(
    rule: str | None,
    order: str | None,
    grow_only: bool,
    ties: str | None,
    score_min: int | None,
    score_max: int | None,
) -> dict[str, Any] | None:
    definition: dict[str, Any] = {"rule": rule, "order": order, "ties": ties}
    definition["grow_only"] = True if grow_only else None
    if (score_min is None) != (score_max is None):
        raise CommandError("--min and --max go together")
    if score_min is not None:
        definition["score"] = {"min": score_min, "max": score_max}
    given = {name: value for name, value in definition.items() if value is not None}
    if given and rule is None:
        raise CommandError("--rule: missing", "a definition names its rule: sum, best or latest")
    return given or None


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

    What is left out gets its default: order high, ties first, and a range that goes with the rule.
    """
    definition = _definition(**options)
    query = {"preview": "true"} if dry_run else {}
    answer = api.send("PUT", f"/v1/boards/{segment(name)}", definition, query)
    api.show(answer, lambda: _changed(answer, dry_run))


@board.command(short_help="Start the board NAME anew in every region.")
@click.argument("name")
@definition_options(required=False)
@DRY_RUN
@api_options
def reset(api: Api, name: str, dry_run: bool, **options: Any) -> None:
    """Start the board NAME anew in every region, with a new definition if one is given.

    What was counted so far is no longer shown.
    """
    definition = _definition(**options)
    if dry_run:
        _would(api, name, "start anew, and its scores would no longer be shown")
        return
    answer = api.send("POST", f"/v1/boards/{segment(name)}/reset", definition)
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


def _would(api: Api, name: str, what: str) -> None:
    """Say what a command would do to a board that exists."""
    known = api.get(f"/v1/boards/{segment(name)}")
    page = api.get(f"/v1/boards/{segment(name)}/entries", limit=1)
    answer = {
        "dry_run": True,
        "board": name,
        "generation": known["generation"],
        "members": page["total"],
    }
    api.show(
        answer,
        lambda: f"{name} ({some(page['total'], 'member')}) would {what}. Nothing was changed.",
    )


def _boards(boards: list[dict[str, Any]]) -> Table:
    made = table("board", "rule", "ties", "scores", ">generation")
    for one in boards:
        definition = one["definition"]
        rule = definition["rule"]
        rule += ", low" if definition["order"] == "low" else ""
        rule += ", grows" if definition["grow_only"] else ""
        made.add_row(
            one["board"], rule, definition["ties"], _range(one["score"]), str(one["generation"])
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
        made.add_row(name, value if isinstance(value, str) else json.dumps(value))
    for name in ("score", "tick_ms", "b", "generation", "version", "written_by"):
        made.add_row(f"in force: {name}" if name == "score" else name, json.dumps(answer[name]))
    for lost in answer["overruled"]:
        made.add_row(
            f"overruled: by {lost['agent']}",
            f"version {lost['version']}, {some(lost['members'], 'member')}:"
            f" {json.dumps(lost['definition'])}",
        )
    return made


def _changed(answer: dict[str, Any], dry_run: bool) -> str:
    would = "would be " if dry_run else ""
    what = f"{would}changed" if answer["changed"] else "as it was: nothing to change"
    version = f"generation {answer['generation']}, version {answer['version']}"
    return f"{answer['board']}: {what} ({version})"
