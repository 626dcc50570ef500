"""The ring: status and watch, and the commands that change it."""

from __future__ import annotations

import json
import time
from typing import Any

import click
from rich.console import Console
from rich.live import Live

from cluster.commands.add import add
from cluster.commands.call import Api, api_options, plain
from cluster.commands.membership import leave, readdress, remove
from cluster.commands.ring_tables import whole_ring, wrong
from cluster.commands.rotation import rotate_secret


@click.group()
def ring() -> None:
    """Show the ring of agents, and change it."""


@ring.command()
@api_options
def status(api: Api) -> None:
    """Show all agents of the ring as one of them sees it.

    The exit code is 1 if one is down or was never met, or if there is an alarm.
    """
    answer = api.get("/v1/ring")
    if api.as_json:
        click.echo(json.dumps(answer))
    else:
        _show(Console(markup=False), answer)
    if wrong(answer):
        raise SystemExit(1)


@ring.command()
@click.option(
    "--every",
    default=1.0,
    show_default=True,
    type=click.FloatRange(0.05),
    help="Seconds between looks.",
)
@click.option("--times", type=click.IntRange(1), help="Stop after so many looks.")
@api_options
def watch(api: Api, every: float, times: int | None) -> None:
    """Show the ring again and again, until Ctrl-C. With --json, a line a look."""
    looks = 0
    console = Console(markup=False)
    with Live(console=console, auto_refresh=False, screen=False) as live:
        while times is None or looks < times:
            if looks:
                time.sleep(every)
            answer = api.get("/v1/ring")
            looks += 1
            if api.as_json:
                click.echo(json.dumps(answer))
            elif console.is_terminal:
                live.update(whole_ring(answer), refresh=True)
            else:
                _show(console, answer)


def _show(console: Console, answer: dict[str, Any]) -> None:
    click.echo(f"ring {plain(answer['ring'])}, seen by {plain(answer['agent'])}")
    console.print(whole_ring(answer), highlight=False)


for command in (add, leave, readdress, remove, rotate_secret):
    ring.add_command(command)
