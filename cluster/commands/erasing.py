"""Erasing a member, for privacy law: erase."""

from __future__ import annotations

import time
from typing import Any

import click
from rich.table import Table

from cluster.commands.call import Api, CommandError, api_options, plain, segment, some, table

LOOK_S = 0.2


@click.command()
@click.argument("member")
@click.option("--dry-run", is_flag=True, help="Say what would go, and change nothing.")
@click.option("--receipt", is_flag=True, help="Only show who has confirmed, of an erased name.")
@click.option(
    "--wait",
    default=0.0,
    show_default=True,
    type=click.FloatRange(0),
    help="Seconds to wait until every agent has confirmed.",
)
@api_options
def erase(api: Api, member: str, dry_run: bool, receipt: bool, wait: float) -> None:
    """Erase MEMBER everywhere, and close its name for good. This is not taken back.

    Its scores, keys, data, bans and name leave every region. With --wait the exit code is 0 only
    once every agent has confirmed.
    """
    if dry_run and receipt:
        raise CommandError("--dry-run and --receipt do not go together")
    path = f"/v1/members/{segment(member)}"
    if dry_run:
        answer = api.send("DELETE", path, None, {"dry_run": "true"})
        api.show(answer, lambda: _would(answer))
        return
    answer = api.get(path) if receipt else api.send("DELETE", path)
    until_s = time.monotonic() + wait
    while wait and not answer["complete"] and time.monotonic() < until_s:
        time.sleep(LOOK_S)
        answer = api.get(path)
    if wait and not answer["complete"]:
        error = CommandError(
            f"{plain(member)}: erased here; {', '.join(map(plain, _missing(answer)))} has not"
            " confirmed it",
            "it goes on by itself: 'tallyring erase MEMBER --receipt' shows how far it is",
            answer,
        )
        error.as_json = api.as_json
        raise error
    api.show(answer, lambda: _receipt(answer))


def _missing(answer: dict[str, Any]) -> list[str]:
    return [its["agent"] for its in answer["confirmations"] if its["confirmed_at"] is None]


def _would(answer: dict[str, Any]) -> str:
    name = plain(answer["member"])
    if not answer["changed"]:
        return f"{name} was erased at {answer['erased_at']}: there is nothing to change."
    lines = [f"{name} would be erased in every region, and its name closed for good:"]
    lines += [f"  {board}: {some(count, 'cell')}" for board, count in answer["cells"].items()]
    if not answer["cells"]:
        lines.append("  this agent has no cells of it as a member")
    lines.append("Where it is somebody's actor it goes on counting, without its name.")
    lines.append("Nothing was changed.")
    return "\n".join(lines)


def _receipt(answer: dict[str, Any]) -> Table:
    missing = len(_missing(answer))
    state = "complete" if answer["complete"] else f"{some(missing, 'agent')} to confirm"
    title = f"{plain(answer['member'])}: erased at {answer['erased_at']}, {state}"
    made = table("agent", "region", "confirmed", title=title)
    for its in answer["confirmations"]:
        made.add_row(its["agent"], its["region"] or "", its["confirmed_at"] or "not yet")
    return made
