"""Adding an agent: look at the ring first, then write the new agent's configuration."""

from __future__ import annotations

import asyncio
import json
import os
import secrets as random_secrets
import time
import tomllib
from pathlib import Path
from typing import Any

import click

from agent.config import Config, GossipSection, parse, read_secrets
from agent.crdt.document import Status
from agent.crdt.incarnation import RANDOM_BITS, mint
from agent.errors import ConfigError, ExchangeRefused
from agent.exchange import Boot, Sender
from agent.gossip.client import Client
from agent.gossip.roster import Roster, Seat, ask_roster
from cluster.commands.call import CommandError, plain, some
from cluster.commands.membership import dry_run_option

# No agent can have this name: the ring knows it for a command, and takes it for nobody's twin.
ASKER = "~ring-add"
PATH = click.Path(path_type=Path, dir_okay=False)


@click.command()
@click.argument("name")
@click.option("--seed", required=True, help="The URL of any living agent, as its peers call it.")
@click.option("--secret-file", required=True, type=PATH, help="The file of the ring's secret.")
@click.option("--ring", "ring_name", required=True, help="The ring's name.")
@click.option("--region", required=True, help="The region of the new agent.")
@click.option(
    "--listen", default="127.0.0.1:7401", show_default=True, help="Its address, HOST:PORT."
)
@click.option("--advertise", help="Its URL, as its peers call it; by default http:// and --listen.")
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path, file_okay=False),
    help="Its folder, empty or not there yet; by default NAME beside --config.",
)
@click.option(
    "--redis", default="embedded", show_default=True, help="Its Redis, a URL or 'embedded'."
)
@click.option("--config", type=PATH, help="The file to write; by default NAME.toml.")
@dry_run_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def add(config: Path | None, dry_run: bool, as_json: bool, **options: Any) -> None:
    """Check that a new agent can join by a seed, and write its configuration file.

    It is started with `tallyring agent --config FILE`. Nothing is changed in the ring before.
    """
    name, seed = options["name"], options["seed"].rstrip("/")
    file = config or Path(f"{name}.toml")
    document = _document(file, seed, options)
    try:
        made = _checked(document, file)
        roster = _ask(made, seed)
        says = [*_refuse(made, roster), *_joining(roster)]
        if not dry_run:
            _write(file, document)
    except CommandError as error:
        error.as_json = as_json
        raise
    start = f"tallyring agent --config {file}"
    answer = {
        "name": name,
        "config": str(file),
        "dry_run": dry_run,
        "members": [_shown(seat) for seat in roster.seats],
        "cells": roster.cells,
        "says": says,
        "start": start,
    }
    if as_json:
        click.echo(json.dumps(answer))
        return
    for sentence in says:
        click.echo(plain(sentence))
    click.echo("Nothing was changed." if dry_run else f"{file} is written. Start it with:\n{start}")


def _document(file: Path, seed: str, options: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The new agent's configuration, as it is written."""
    name, listen = options["name"], options["listen"]
    return {
        "agent": {
            "name": name,
            "region": options["region"],
            "listen": listen,
            "data_dir": str((options["data_dir"] or file.parent / name).absolute()),
        },
        "ring": {
            "name": options["ring_name"],
            "secret_file": str(options["secret_file"].absolute()),
            "advertise": (options["advertise"] or f"http://{listen}").rstrip("/"),
            "seeds": [seed],
        },
        "redis": {"url": options["redis"]},
    }


def _checked(document: dict[str, dict[str, Any]], file: Path) -> Config:
    """The new agent's configuration, if an agent would take it and nothing is in its way."""
    try:
        made = parse(document, file.parent.absolute(), {})
        read_secrets(made.ring.secret_file)
    except ConfigError as error:
        raise CommandError(f"{error.field}: {error.detail}", error.hint) from None
    if file.exists():
        raise CommandError(f"{file} is there already", "name another file with --config")
    folder = made.agent.data_dir
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise CommandError(
            f"{folder} is not empty", "a new agent begins with an empty data_dir: --data-dir"
        )
    return made


def _ask(made: Config, seed: str) -> Roster:
    """The ring, as the seed sees it; the seed and this command prove the secret to each other."""
    now_ms = time.time_ns() // 1_000_000
    inc = mint(now_ms, random_secrets.randbits(RANDOM_BITS))
    boot = Boot(1, random_secrets.randbits(62) + 1)
    me = Sender(ASKER, inc, random_secrets.randbits(62) + 1, boot)

    async def ask() -> Roster:
        client = Client(GossipSection())
        try:
            secrets = read_secrets(made.ring.secret_file)
            return await ask_roster(client, seed, secrets, made.ring.name, me)
        finally:
            await client.close()

    try:
        return asyncio.run(ask())
    except ExchangeRefused as error:
        hints = {
            "unreachable": "is it running, and is --seed the URL that its peers call?",
            "unauthorized": "--secret-file is not the ring's secret",
            "other_ring": "--ring is another ring's name",
        }
        raise CommandError(f"{seed}: {error}", hints.get(error.reason, "")) from None


def _refuse(made: Config, roster: Roster) -> list[str]:
    """Refuse a name or a URL that is somebody's; what is fine is said."""
    for seat in roster.seats:
        if seat.name == made.name:
            gone = seat.status == Status.REMOVED
            raise CommandError(
                f"agent {made.name!r} was removed from the ring, which is final"
                if gone
                else f"the ring has an agent {made.name!r} already, at {seat.url}",
                "choose another name",
            )
        if seat.url == made.advertise and seat.status != Status.REMOVED:
            raise CommandError(
                f"--advertise: {seat.url} is the URL of agent {seat.name!r}", "choose another one"
            )
    return [f"{roster.sender.agent} answers, and knows the secret"]


def _joining(roster: Roster) -> list[str]:
    """What joining will be like: how much is read, and whom it waits for."""
    says = [
        f"{seat.name} can't be reached ({seat.contact}): joining waits for it or its removal."
        " The new agent takes writes and reads everything from the others at once; until it has"
        f" read {seat.name}'s own log its answers have no as_of for its region, and their"
        " max_lag_ms is null"
        for seat in roster.seats
        if seat.contact not in ("self", "ok") and seat.status != Status.REMOVED
    ]
    by_snapshot = roster.cells >= GossipSection().snapshot_cells_min
    how = "by a snapshot, then row by row" if by_snapshot else "row by row"
    return [*says, f"it will read {some(roster.cells, 'cell')} {how}"]


def _write(file: Path, document: dict[str, dict[str, Any]]) -> None:
    """Write a configuration file; never over one that is there."""
    lines = []
    for section, fields in document.items():
        lines.append(f"[{section}]")
        lines += [f"{name} = {json.dumps(value)}" for name, value in fields.items()]
        lines.append("")
    text = "\n".join(lines)
    assert tomllib.loads(text) == document, "strings and lists of them are TOML as they are JSON"
    try:
        handle = os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        with os.fdopen(handle, "w") as out:
            out.write(text)
    except FileExistsError:
        raise CommandError(f"{file} is there already", "name another file with --config") from None
    except OSError as error:
        raise CommandError(f"{file}: can't be written: {error.strerror}") from None


def _shown(seat: Seat) -> dict[str, str]:
    return {
        "name": seat.name,
        "region": seat.region,
        "url": seat.url,
        "status": seat.status.name.lower(),
        "contact": seat.contact,
    }
