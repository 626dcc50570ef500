"""Explaining a score from the command line: `tallyring explain`."""

from __future__ import annotations

from typing import Any

import click
from rich.table import Table

from cluster.commands.call import Api, api_options, plain, segment, show_table, some, table


@click.command()
@click.argument("board")
@click.argument("member")
@click.option("--window", help="Its name (the open one) or id. Default: the first one.")
@api_options
def explain(api: Api, board: str, member: str, window: str | None) -> None:
    """Show everything behind MEMBER's score and rank on BOARD: who added what, where, and when."""
    answer = api.get(f"/v1/explain/{segment(board)}/{segment(member)}", window=window)
    api.show(answer, lambda: _head(answer))
    if api.as_json:
        return
    if answer["parts"]:
        show_table(_parts(answer))
    if answer["keys"]:
        show_table(_keys(answer))
    for line in _lines(answer):
        click.echo(line)


def _head(answer: dict[str, Any]) -> str:
    redis = answer["redis"]
    where = f"{plain(answer['member'])} on {answer['board']}, {answer['window']}"
    if not answer["ranked"]:
        return f"{where}: not ranked: {answer['why'] or redis['problem']}"
    if answer["score"] is None:
        rank = f"rank {redis['rank']} of {redis['total']}"
        return f"{where}: {rank} in Redis, and no entry of it in the agent's file"
    reached = f", reached {answer['reached_at']}" if answer["reached_at"] else ""
    return f"{where}: score {answer['score']}, rank {redis['rank']} of {redis['total']}{reached}"


def _parts(answer: dict[str, Any]) -> Table:
    made = table("region", "agent", "what", ">amount", "when", "key or actor")
    made.title = "cells behind the score"
    for part in answer["parts"]:
        amount = "" if part["amount"] is None else str(part["amount"])
        who = part["region"] or "", part["agent"] or part["incarnation"] or ""
        made.add_row(*who, part["kind"], amount, part["at"] or "", plain(part["name"] or ""))
    made.add_section()
    for kind, total in answer["sums"].items():
        made.add_row("", "", kind, str(total), "in all", "")
    return made


def _keys(answer: dict[str, Any]) -> Table:
    made = table("key", "region", "agent", ">amount", "at", "")
    made.title = "entries with keys"
    for key in answer["keys"]:
        note = "counted elsewhere before" if key["taken_out"] else ""
        who = key["region"] or "", key["agent"] or ""
        made.add_row(plain(key["key"]), *who, str(key["amount"]), key["at"], note)
    return made


def _lines(answer: dict[str, Any]) -> list[str]:
    lines = [
        f"{some(count, name[:-1])} more are not shown" for name, count in answer["more"].items()
    ]
    for ban in answer["bans"]:
        where = ban["board"] or "all boards"
        until = f" until {ban['until']}" if ban["until"] else ""
        lines.append(f"banned on {where}{until} by {plain(ban['by'])}: {plain(ban['reason'])}")
    others = [
        f"{its['window']} {its['score']}" for its in answer["windows"] if its["score"] is not None
    ]
    if others:
        lines.append(f"in other windows: {', '.join(others)}")
    tie, redis = answer["tie"], answer["redis"]
    if tie is not None:
        tick = "" if tie["tick"] is None else f", tick {tie['tick']} of {tie['tick_ms']} ms"
        lines.append(f"ties {tie['ties']}, {tie['order']}: Redis score {tie['composite']}{tick}")
    if redis["problem"]:
        lines.append(f"Redis: {redis['problem']}")
    else:
        held = "nothing" if redis["composite"] is None else redis["composite"]
        said = "agrees" if redis["agrees"] else "a change is on its way"
        if not redis["agrees"] and not redis["settling"]:
            said = "DIFFERS; 'tallyring audit --repair' mends it"
        lines.append(
            f"Redis holds {held} at lsn {redis['lsn']} (the file: {answer['lsn']}): {said}"
        )
    if answer["open_at"]:
        lines.append(f"agents that still take entries for it: {', '.join(answer['open_at'])}")
    return lines
