"""The audit from the command line: `tallyring audit`, for an operator and for cron."""

from __future__ import annotations

import sys
import time
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn
from rich.table import Table
from rich.text import Text

from cluster.commands.call import Api, CommandError, api_options, plain, some, table

DIFFERENCES, COULD_NOT = 1, 2
POLL_S = 0.2
SHOWN_MAX = 1_000


class AuditFailed(CommandError):
    """The audit could not be made."""

    exit_code = COULD_NOT


@click.command()
@click.option("--repair", is_flag=True, help="Mend what is found.")
@click.option(
    "--board", "boards", multiple=True, help="Only differences of this board (more than once)."
)
@click.option(
    "--limit",
    default=100,
    show_default=True,
    type=click.IntRange(0, SHOWN_MAX),
    help="How many differences to list; all are counted.",
)
@click.option(
    "--background", is_flag=True, help="Begin none: show what is found all the time in Redis."
)
@api_options
def audit(api: Api, repair: bool, boards: tuple[str, ...], limit: int, background: bool) -> None:
    """Compare an agent's cells with the other agents', and with Redis.

    The exit code is 0 if nothing differs or all of it was mended, 1 if something differs, and 2 if
    not everything could be compared.
    """
    if background:
        found = api.get("/v1/audit")["background"]
        api.show(found, lambda: _background(found))
        return
    try:
        answer = _run(api, {"repair": repair, "boards": list(boards), "limit": limit})
    except CommandError as error:
        failed = AuditFailed(error.message, error.hint, error.document)
        failed.as_json = error.as_json
        raise failed from None
    api.show(answer, lambda: _differences(answer))
    if not api.as_json:
        click.echo(_summary(answer))
    if answer["found"] > answer["mended"]:
        raise SystemExit(DIFFERENCES)
    if answer["state"] != "done" or _not_compared(answer):
        raise SystemExit(COULD_NOT)


def _run(api: Api, wish: dict[str, Any]) -> dict[str, Any]:
    """Begin an audit and wait for its end, with a bar where somebody is looking."""
    began = api.send("POST", "/v1/audit", wish)["began_at"]
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task("audit", total=1.0)
        while True:
            answer = api.get("/v1/audit")
            if answer["began_at"] != began:
                raise CommandError(
                    "the agent has begun anew, and the audit is gone", "run it again"
                )
            progress.update(task, completed=answer["progress"], description=answer["step"] or "-")
            if answer["state"] != "running":
                return answer
            time.sleep(POLL_S)


def _not_compared(answer: dict[str, Any]) -> list[str]:
    """What could not be compared. A board that another agent projects is that one's to compare."""
    return [
        f"{part['name']}: {part['skipped']}"
        for part in (*answer["peers"], *answer["boards"])
        if part["skipped"] and "projects from another log" not in part["skipped"]
    ]


def _differences(answer: dict[str, Any]) -> Table | str:
    if not answer["differences"]:
        return "no differences are listed" if answer["found"] else "no differences"
    made = table("what", "cell", "values", "mended")
    for each in answer["differences"]:
        place = f"{each['board']}/{each['member']}" if each["board"] else ""
        cell = "\n".join(plain(part) for part in (place, each["slot"]) if part)
        other = each["other"] or "right"
        values = f"here: {plain(each['here'])}"
        if each["other"] or each["there"] != "nothing":
            values += f"\n{other}: {plain(each['there'])}"
        mended = "yes" if each["mended"] else "no"
        note = f"\n{plain(each['note'])}" if each["note"] else ""
        made.add_row(each["kind"], Text(cell), Text(values), mended + note)
    return made


def _background(found: dict[str, Any]) -> str:
    round_at, scan_at = found["round_ended_at"] or "-", found["scan_ended_at"] or "-"
    ended = (
        f"{some(found['rounds'], 'round')}, the last at {round_at};"
        f" every member: {some(found['scans'], 'time')}, the last at {scan_at}"
    )
    compared = (
        f"compared {some(found['members'], 'member')} of {some(found['windows'], 'window')}:"
        f" {some(found['differences'], 'difference')};"
        f" written anew: {some(found['repaired'], 'member')}, the keys of"
        f" {some(found['keys'], 'window')}; filled anew: {some(found['refilled'], 'window')}"
    )
    return "\n".join([ended, compared, *map(plain, found["recent"])])


def _summary(answer: dict[str, Any]) -> str:
    peers = some(len(answer["peers"]), "agent")
    members = sum(part["compared"] for part in answer["boards"])
    compared = (
        f"compared {some(answer['cells'], 'cell')} with {peers},"
        f" {some(members, 'member')} with Redis: {some(answer['found'], 'difference')},"
        f" {answer['mended']:,} mended"
    )
    lines = [compared]
    lines += [f"not compared: {plain(text)}" for text in _not_compared(answer)]
    if answer["error"]:
        lines.append(f"the audit failed: {plain(answer['error'])}")
    return "\n".join(lines)
