"""Going on without an agent that is down: the next version of a window's final."""

from __future__ import annotations

from typing import Any

import click
from rich.table import Table

from cluster.commands.call import Api, api_options, plain, segment, show_table, table


@click.command()
@click.argument("board")
@click.argument("window")
@click.option("--without", multiple=True, help="A region or an agent to leave out; several.")
@click.option("--reason", default="", help="Why, up to 500 characters.")
@click.option("--revise", is_flag=True, help="A new version of a final, with what came late.")
@click.option("--dry-run", is_flag=True, help="Say what would happen, and change nothing.")
@api_options
def certify(
    api: Api,
    board: str,
    window: str,
    without: tuple[str, ...],
    reason: str,
    revise: bool,
    dry_run: bool,
) -> None:
    """Have a closed WINDOW of a BOARD certified without agents that are down.

    Windows are certified by themselves once all agents agree. This begins a version for which only
    those that are left have to. With --dry-run the exit code is 1 where it would be refused.
    """
    path = f"/v1/boards/{segment(board)}/windows/{segment(window)}/certify"
    body = {"without": list(without), "reason": reason, "revise": revise}
    answer = api.send("POST", path, body, {"dry_run": "true"} if dry_run else {})
    if api.as_json:
        api.show(answer, str)
    else:
        refused = answer.get("refuses") is not None
        for sentence in answer["says"][:1] if refused else answer["says"]:  # how far it is
            click.echo(plain(sentence))
        show_table(_agents(answer))
        click.echo(_end(answer))
    if answer.get("refuses") is not None:
        raise SystemExit(1)


def _agents(answer: dict[str, Any]) -> Table:
    made = table("agent", "region", "state", "agrees", "heard from", "includes up to", "")
    for its in answer["agents"]:
        agrees = "" if its["agrees"] is None else ("yes" if its["agrees"] else "no")
        contact = "this agent" if its["contact"] is None else str(its["contact"])
        if its["last_exchange"] is not None and its["contact"] != "ok":
            contact += f", {its['last_exchange']}"
        role = "waited for" if its["waited_for"] else ""
        if its["without"]:
            role = "left out"
        made.add_row(
            plain(its["agent"]),
            plain(its["region"]),
            its["state"],
            agrees,
            contact,
            its["as_of"] or "unknown",
            role,
        )
    return made


def _end(answer: dict[str, Any]) -> str:
    if answer.get("refuses") is not None:
        return f"It would be refused: {plain(answer['refuses'])}. Nothing was changed."
    if answer["dry_run"]:
        return "Nothing was changed."
    where = f"{answer['board']} {answer['window']}"
    return (
        f"version {answer['version']} has begun: 'tallyring final {where}' shows it once certified"
    )
