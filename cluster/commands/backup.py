"""Backup, restore, and the import of what a removed agent still had."""

from __future__ import annotations

import json
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from agent.boards.entry import rfc3339
from agent.config import Config, load
from agent.errors import ConfigError, StoreError
from agent.store.archive import Backup
from agent.store.backup import adopt, write_backup
from agent.store.lock import DATABASE, locked
from cluster.commands.call import Api, CommandError, api_options, plain, show_table, some, table
from cluster.quarantine import Comparison, Difference, compare
from cluster.restoring import Outlook, fresh_identity, look_ahead

Command = TypeVar("Command", bound=Callable[..., Any])
config_option = click.option(
    "--config",
    "config_file",
    required=True,
    type=click.Path(path_type=Path, dir_okay=False),
    help="The agent's TOML file.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
SHOWN_DEFAULT = 20


@click.command(short_help="Copy an agent's state into one file, also while it runs.")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@config_option
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
@json_option
def backup(file: Path, config_file: Path, force: bool, as_json: bool) -> None:
    """Copy an agent's state into FILE: one snapshot, without its identity, compressed.

    It is checksummed, and works while the agent runs.
    """
    with _errors(as_json):
        config = load(config_file)
        began = time.monotonic()
        with _progress() as told:
            done = write_backup(
                config.agent.data_dir / DATABASE,
                file,
                time.time_ns() // 1_000_000,
                progress=told,
                overwrite=force,
            )
        took_s = time.monotonic() - began
        size = file.stat().st_size
    document = {**_shown(done), "file": str(file), "bytes": size, "seconds": round(took_s, 3)}
    line = (
        f"{file}: {some(done.cells, 'cell')} of agent {done.agent} in {size:,} bytes"
        f" ({done.database_bytes:,} in the database), {took_s:.1f} s"
    )
    click.echo(json.dumps(document) if as_json else line)


@click.command(short_help="Make an agent's database from a backup.")
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@config_option
@click.option("--dry-run", is_flag=True, help="Say what would happen, and change nothing.")
@click.option("--url", help="With --dry-run: ask this member only, not all that FILE names.")
@json_option
def restore(file: Path, config_file: Path, dry_run: bool, url: str | None, as_json: bool) -> None:
    """Make an agent's database from the backup FILE, while the agent is stopped.

    The agent gets a new incarnation and a new log, and reads from the others what the backup has
    not. A database that is there is moved aside.
    """
    with _errors(as_json):
        config = load(config_file)
        database = config.agent.data_dir / DATABASE
        held = f"agent {config.name} is running on it: stop it first"
        with locked(config.agent.data_dir, held):
            if dry_run:
                outlook = look_ahead(config, file, database, url)
                _show_outlook(outlook, config, as_json)
                return
            with _progress() as told:
                done = adopt(file, database, partial(fresh_identity, config), told)
    moved_to = None if done.moved_to is None else str(done.moved_to)
    document = {
        "backup": _shown(done.backup),
        "incarnation": f"{done.identity.inc:x}",
        "moved_to": moved_to,
    }
    taken_at = rfc3339(done.backup.taken_ms)
    lines = [
        f"agent {done.identity.agent}: {some(done.backup.cells, 'cell')} restored, of {taken_at}",
        f"it will write as the new incarnation {done.identity.inc:x}",
    ]
    if moved_to is not None:
        lines.append(f"the former database is now {moved_to}")
        lines.append(
            "once the agent runs, what only that one had, if it can be read, is taken over by:"
        )
        lines.append(_import_command(moved_to))
    click.echo(json.dumps(document) if as_json else "\n".join(lines))


@click.command("import", short_help="Take over what a removed agent's file still has.")
@click.option(
    "--quarantine",
    "file",
    required=True,
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="A removed agent's tallyring.db, or a backup of it.",
)
@click.option("--dry-run", is_flag=True, help="List what only FILE has, and change nothing.")
@click.option(
    "--show",
    default=SHOWN_DEFAULT,
    show_default=True,
    type=click.IntRange(0),
    help="How many differences to list.",
)
@api_options
def import_rows(api: Api, file: Path, dry_run: bool, show: int) -> None:
    """Compare a removed agent's file with a living agent, which takes over what it lacks.

    A cell keeps the greater of both values, so a second import changes nothing.
    """

    def send(body: dict[str, Any]) -> dict[str, Any]:
        return api.send("POST", "/v1/ring/import", body)

    with _errors(api.as_json), _progress() as told:
        found = compare(
            file, send, dry_run=dry_run, shown_max=show, told=lambda d, of: told("compare", d, of)
        )
    if api.as_json:
        click.echo(json.dumps({**found.document(), "dry_run": dry_run}, ensure_ascii=False))
        return
    if found.differences:
        show_table(_differences(found.differences))
        if found.greater > len(found.differences):
            click.echo(f"and {found.greater - len(found.differences):,} more")
    for line in _summary(found, dry_run):
        click.echo(line)


def _summary(found: Comparison, dry_run: bool) -> Iterator[str]:
    for board in sorted(found.boards):
        added = f", {found.added[board]:+,}" if board in found.added else ""
        yield f"board {board}: {some(found.boards[board], 'cell')}{added}"
    source = found.source
    yield (
        f"{some(found.compared, 'cell')} of agent {source.agent} compared,"
        f" {found.greater:,} only there or greater there,"
        + (" nothing changed (--dry-run)" if dry_run else f" {found.changed:,} taken over")
    )
    if found.damaged:
        yield f"{some(found.damaged, 'cell')} of the file damaged, and left out"


def _differences(differences: list[Difference]) -> Table:
    made = table("board", "window", "member", "cell", ">there", ">here", ">difference")
    for each in differences:
        made.add_row(
            each.board,
            plain(each.window),
            plain(each.member),
            plain(each.cell),
            str(each.there),
            "" if each.here is None else str(each.here),
            "" if each.difference is None else f"{each.difference:+}",
        )
    return made


def _show_outlook(outlook: Outlook, config: Config, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(outlook.document()))
        return
    made = table("what", "would be")
    for what, how in _outlook_lines(outlook, config):
        made.add_row(what, Text(plain(how)))
    show_table(made)
    if outlook.to_import:
        click.echo("once the agent runs, what only the present database has is taken over by:")
        click.echo(_import_command(outlook.moved_to))
    click.echo("nothing was changed (--dry-run)")


def _import_command(file: object) -> str:
    return f"tallyring import --quarantine {shlex.quote(str(file))}"


def _outlook_lines(outlook: Outlook, config: Config) -> Iterator[tuple[str, str]]:
    taken = outlook.backup
    yield "backup", f"of agent {taken.agent}, region {taken.region}, {rfc3339(taken.taken_ms)}"
    yield "cells", f"{taken.cells:,}"
    yield (
        "minted",
        f"a new incarnation of {config.name}"
        + (f", above {outlook.newest_inc:x}" if outlook.newest_inc else "")
        + ", and a new log",
    )
    yield "moved aside", "nothing" if outlook.moved_to is None else str(outlook.moved_to)
    for url, said in outlook.asked.items():
        yield f"asked {url}", said if isinstance(said, str) else some(said, "cell")
    if outlook.removed:
        yield (
            "refused",
            (
                f"agent {config.name} was removed from the ring: it would not be let in again;"
                " use 'tallyring import --quarantine'"
            ),
        )
    if outlook.unreadable:
        yield "the present database", f"what only it has is lost: {outlook.unreadable}"
    if outlook.cells_beyond is None:
        yield "beyond it", "not known: no member could be asked (--url names one)"
        return
    for region, commits in sorted(outlook.beyond.items()):
        yield f"beyond it, {region}", f"{some(commits, 'commit')}, to be read from the ring"
    if not outlook.beyond:
        yield "beyond it", "nothing: the ring knows no more than the backup"
    if outlook.cells_beyond:
        yield "cells beyond it", f"{outlook.cells_beyond:,}"
    if outlook.only_here is not None and outlook.to_import:
        yield (
            "only in the present database",
            (
                f"{some(outlook.only_here.commits, 'commit')},"
                f" {some(outlook.only_here.cells, 'cell')}: lost, unless imported afterwards"
            ),
        )
    elif outlook.only_here is not None:
        yield "only in the present database", "nothing"


def _shown(taken: Backup) -> dict[str, Any]:
    return {
        "ring": taken.ring,
        "agent": taken.agent,
        "region": taken.region,
        "taken_at": rfc3339(taken.taken_ms),
        "cells": taken.cells,
        "lsn": taken.lsn,
        "database_bytes": taken.database_bytes,
    }


@contextmanager
def _errors(as_json: bool) -> Iterator[None]:
    """Errors of files and settings as those of a command."""
    try:
        yield
    except ConfigError as error:
        failed = CommandError(f"{error.field}: {error.detail}", error.hint)
    except StoreError as error:
        failed = CommandError(str(error))
    else:
        return
    failed.as_json = as_json
    raise failed from None


@contextmanager
def _progress() -> Iterator[Callable[[str, int, int], None]]:
    """A progress bar on standard error, where that is a terminal."""
    console = Console(file=sys.stderr)
    if not console.is_terminal:
        yield lambda _stage, _done, _total: None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=None)

        def told(stage: str, done: int, total: int) -> None:
            bar.update(task, description=stage, completed=done, total=total)

        yield told
