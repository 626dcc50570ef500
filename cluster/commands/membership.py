"""Leave, remove and re-address: an operator changes the ring, and waits until all know."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from cluster.commands.call import Api, CommandError, api_options, plain, segment
from cluster.commands.ring_tables import leaving_line

LOOK_S = 0.2

dry_run_option = click.option(
    "--dry-run", is_flag=True, help="Say what would happen, and change nothing."
)
wait_option = click.option(
    "--wait",
    default=300.0,
    show_default=True,
    type=click.FloatRange(0),
    help="Seconds to wait until everybody has confirmed.",
)


@click.command()
@dry_run_option
@wait_option
@api_options
def leave(api: Api, dry_run: bool, wait: float) -> None:
    """Have the agent at --url leave the ring: it hands over everything, then ends.

    From now on it refuses writes, also after a restart: leaving is not taken back. If the wait
    ends first, the exit code is 1 and the agent goes on leaving.
    """
    answer = api.send("POST", "/v1/ring/leave", {"dry_run": dry_run})
    _say(api, answer)
    if dry_run:
        api.show(answer, lambda: "Nothing was changed.")
        return
    last = _drain(api, time.monotonic() + wait)
    if last is not None:
        raise _not_yet(api, leaving_line(last), last)
    api.show({**answer, "left": True}, lambda: f"{plain(answer['name'])} has left the ring")


@click.command()
@click.argument("name")
@click.option("--force", is_flag=True, help="Also an agent that was heard from lately.")
@dry_run_option
@wait_option
@api_options
def remove(api: Api, name: str, force: bool, dry_run: bool, wait: float) -> None:
    """Remove a dead agent from the ring, for ever. What the others have of it stays.

    The exit code is 0 once every active agent has confirmed it.
    """
    path = f"/v1/ring/members/{segment(name)}/remove"
    answer = api.send("POST", path, {"dry_run": dry_run, "force": force})
    _finish(api, answer, wait, "is removed, and every active agent knows it")


@click.command()
@click.argument("name")
@click.argument("address")
@dry_run_option
@wait_option
@api_options
def readdress(api: Api, name: str, address: str, dry_run: bool, wait: float) -> None:
    """Tell the ring that the agent NAME is reached at the URL ADDRESS."""
    path = f"/v1/ring/members/{segment(name)}/url"
    answer = api.send("PUT", path, {"url": address, "dry_run": dry_run})
    _finish(api, answer, wait, f"is reached at {address}, and every active agent knows it")


def _say(api: Api, answer: dict[str, Any]) -> None:
    """What happens, on standard error where standard output is for JSON."""
    for sentence in answer["says"]:
        click.echo(plain(sentence), err=api.as_json)


def _finish(api: Api, answer: dict[str, Any], wait: float, done: str) -> None:
    """Wait until everybody has confirmed a change, and say so."""
    name = answer["name"]
    _say(api, answer)
    if answer["dry_run"]:
        change = "Nothing was changed." if answer["changed"] else "There is nothing to change."
        api.show(answer, lambda: change)
        return
    waits = _confirmed(api, name, time.monotonic() + wait)
    if waits:
        who = ", ".join(map(plain, waits))
        raise _not_yet(api, f"{name}: changed here; {who} has not confirmed it", answer)
    api.show({**answer, "waits_for": []}, lambda: f"{plain(name)} {done}")


def _confirmed(api: Api, name: str, until_s: float) -> list[str]:
    """Wait for a member's news to be with everybody; who has not confirmed it when time is up."""

    def look() -> list[str]:
        for member in api.get("/v1/ring")["members"]:
            if member["name"] == name:
                waits: list[str] = member["unconfirmed"]
                return waits
        return []

    return _until_empty(look, until_s)


def _until_empty(look: Callable[[], list[str]], until_s: float) -> list[str]:
    while (waits := look()) and time.monotonic() < until_s:
        time.sleep(LOOK_S)
    return waits


def _drain(api: Api, until_s: float) -> dict[str, Any] | None:
    """Watch an agent leave; None once it has, else how far it was when time was up."""
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[rows]}"))
    with Progress(*columns, console=Console(stderr=True, markup=False), transient=True) as shown:
        task = shown.add_task("draining", total=None, rows="")
        most = 0
        while True:
            leaving: dict[str, Any] | None = api.get("/v1/ring")["leaving"]
            if leaving is None:
                raise CommandError(f"{api.url} does not leave the ring")
            if leaving["phase"] == "left":
                return None
            left = sum(each["rows"] or 0 for each in leaving["waits_for"])
            most = max(most, left)
            what = leaving_line(leaving)
            shown.update(
                task,
                description=what,
                total=most or None,
                completed=most - left,
                rows=f"{left:,} rows",
            )
            if time.monotonic() > until_s:
                return leaving
            time.sleep(LOOK_S)


def _not_yet(api: Api, what: str, document: dict[str, Any]) -> CommandError:
    error = CommandError(
        what,
        "it goes on by itself: 'tallyring ring status' shows how far it is; an agent that does not"
        " come back has to be removed",
        {"detail": what, "state": document},
    )
    error.as_json = api.as_json
    return error
