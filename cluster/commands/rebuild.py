"""Rebuilding Redis from the command line: `tallyring rebuild`."""

from __future__ import annotations

import sys
import time
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from cluster.commands.call import Api, api_options, plain, some

POLL_S = 0.1


@click.command()
@click.argument("boards", nargs=-1)
@click.option("--no-wait", is_flag=True, help="Begin it, and don't wait for its end.")
@api_options
def rebuild(api: Api, boards: tuple[str, ...], no_wait: bool) -> None:
    """Fill the region's Redis anew from the agent's file: BOARDS, or all.

    What is in Redis is served until its replacement is complete.
    """
    began = time.monotonic()
    answer = api.send("POST", "/v1/rebuild", {"boards": list(boards)})
    members = 0
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task("filling", total=None)
        while not no_wait and _busy(answer, boards):
            time.sleep(POLL_S)
            answer = api.get("/v1/rebuild")
            members = max(members, answer["done"])
            names = ", ".join(map(plain, answer["boards"][:3]))
            progress.update(
                task, completed=answer["done"], total=answer["total"], description=names or "-"
            )
    said = {**answer, "waited": not no_wait, "members": members}
    what = ", ".join(map(plain, boards)) or "all boards"
    if no_wait:
        api.show(said, lambda: f"{what}: being filled; see 'tallyring rebuild' again, or /readyz")
        return
    took = time.monotonic() - began
    api.show(said, lambda: f"{what}: filled anew in {took:.1f} s, {some(members, 'member')}")


def _busy(answer: dict[str, Any], boards: tuple[str, ...]) -> bool:
    filling = set(answer["boards"])
    if answer["phase"] != "following":
        return True
    return bool(filling & set(boards)) if boards else bool(filling)
