"""Rebuilding Redis from the command line: `tallyring rebuild`."""

from __future__ import annotations

import sys
import time
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from cluster.commands.call import Api, CommandError, api_options, plain, some

POLL_S = 0.1
AWAY = ("waiting", "refused")  # phases in which another agent is needed


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
    rebuild = answer["rebuild"]
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task("filling", total=None)
        while not no_wait and not rebuild["ended"]:
            time.sleep(POLL_S)
            answer = api.get("/v1/rebuild", id=rebuild["id"])
            rebuild = _known(answer)
            names = ", ".join(map(plain, answer["boards"][:3]))
            progress.update(
                task, completed=rebuild["done"], total=rebuild["total"], description=names or "-"
            )
    said = {**answer, "waited": not no_wait}
    what = ", ".join(map(plain, boards)) or "all boards"
    if no_wait:
        api.show(said, lambda: f"{what}: being filled; see 'tallyring rebuild' again, or /readyz")
        return
    took = time.monotonic() - began
    windows, members = some(rebuild["windows"], "window"), some(rebuild["members"], "member")
    if rebuild["windows"]:
        api.show(said, lambda: f"{what}: filled anew in {took:.1f} s: {windows}, {members}")
    else:
        api.show(said, lambda: f"{what}: no window has a place in Redis, so none was filled")


def _known(answer: dict[str, Any]) -> dict[str, Any]:
    """The state of the rebuild that was asked for, while it is this agent that fills Redis."""
    rebuild: dict[str, Any] | None = answer["rebuild"]
    if rebuild is None:
        raise CommandError(
            "the agent was started again and knows nothing of this rebuild any more",
            hint="what it had begun goes on; run 'tallyring rebuild' again to be sure of all",
        )
    if answer["phase"] in AWAY and not rebuild["ended"]:
        raise CommandError(
            f"this agent does not fill Redis any more (it is {answer['phase']!r})",
            hint="ask the agent of the region that does: GET /readyz of each",
        )
    return rebuild
