"""The ring: status and watch."""

from __future__ import annotations

import json
import time
from typing import Any

import click
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from cluster.commands.call import Api, api_options, lag, plain, show_table, table


@click.group()
def ring() -> None:
    """Show the ring of agents."""


@ring.command()
@api_options
def status(api: Api) -> None:
    """Show all agents of the ring as one of them sees it.

    The exit code is 1 if one is down, or was never met.
    """
    answer = api.get("/v1/ring")
    api.show(answer, lambda: _members(answer))
    if not all(_well(member, answer["agent"]) for member in answer["members"]):
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
                live.update(_members(answer), refresh=True)
            else:
                show_table(_members(answer))


def _well(member: dict[str, Any], me: str) -> bool:
    contact = member["contact"]
    if member["name"] == me or member["status"] in ("left", "removed"):
        return True
    return contact is not None and contact["state"] != "down"


def _members(answer: dict[str, Any]) -> Table:
    title = f"ring {answer['ring']}, seen by {answer['agent']}"
    made = table("agent", "region", "status", "state", ">lag", ">rows behind", title=title)
    errors: list[str] = []
    for member in answer["members"]:
        contact = member["contact"] or {}
        me = member["name"] == answer["agent"]
        behind = contact.get("rows_behind")
        made.add_row(
            member["name"],
            member["region"],
            member["status"],
            "this agent" if me else contact.get("state", "not met yet"),
            "" if me else lag(member["lag_ms"]),
            "" if behind is None else str(behind),
        )
        if contact.get("last_error"):
            # With its time: with an agent that is well again it is history.
            at, error = contact["last_error_at"], plain(contact["last_error"])
            errors.append(f"{member['name']}: last error at {at}: {error}")
    if errors:
        made.caption, made.caption_justify = Text("\n".join(errors)), "left"
    return made
