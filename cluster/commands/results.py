"""Kept results: results, retract."""

from __future__ import annotations

import json
from typing import Any

import click
from rich.table import Table

from cluster.commands.call import Api, api_options, plain, segment, table


@click.command()
@click.argument("board")
@click.argument("member")
@click.option("--window", help="The window's name or id. Default: the board's first one.")
@click.option("--after", help="Go on after this key.")
@click.option("--limit", default=100, show_default=True, type=click.IntRange(1, 1000))
@api_options
def results(
    api: Api, board: str, member: str, window: str | None, after: str | None, limit: int
) -> None:
    """List the results of MEMBER that a BOARD with 'results: keep' has, for review."""
    path = f"/v1/boards/{segment(board)}/results/{segment(member)}"
    answer = api.get(path, window=window, after=after, limit=limit)
    api.show(answer, lambda: _list(answer))


@click.command()
@click.argument("board")
@click.argument("member")
@click.argument("key")
@click.option("--dry-run", is_flag=True, help="Say what would fall, and change nothing.")
@api_options
def retract(api: Api, board: str, member: str, key: str, dry_run: bool) -> None:
    """Take the result KEY of MEMBER on BOARD back, in every region and window, for good.

    A sum falls by it, a best falls back to the next best.
    """
    path = f"/v1/boards/{segment(board)}/results/{segment(member)}/{segment(key)}"
    answer = api.send("DELETE", path, None, {"dry_run": "true"} if dry_run else {})
    api.show(answer, lambda: _retracted(answer))


def _list(answer: dict[str, Any]) -> Table | str:
    name, more = plain(answer["member"]), answer["next"]
    where = f"{answer['board']}, {answer['window']}"
    if not answer["results"] and more is None:
        return f"{name} has no results here ({where})"
    title = f"{name} ({where})"
    if more is not None:
        title += f"; there may be more: --after '{plain(more)}'"
    made = table("key", ">score", "at", "accepted", "data", "", title=title)
    for its in answer["results"]:
        data = "" if its["data"] is None else json.dumps(its["data"], ensure_ascii=False)
        made.add_row(
            plain(its["key"]),
            str(its["score"]),
            its["at"],
            its["accepted_at"],
            plain(data),
            "taken back" if its["retracted"] else "",
        )
    return made


def _retracted(answer: dict[str, Any]) -> str:
    name, key = plain(answer["member"]), plain(answer["key"])
    if not answer["changed"]:
        return f"{name}: the result {key} was taken back already: there is nothing to change."
    scores = ", ".join(
        f"{window}: {'no result left' if score is None else score}"
        for window, score in answer["score"].items()
    )
    if answer["dry_run"]:
        windows = ", ".join(answer["windows"]) or "the buckets of sliding windows"
        return (
            f"{name}: the result {key} would be taken back in {windows}; the score now is"
            f" {scores or 'not in a window of its own'}. Nothing was changed."
        )
    return f"{name}: the result {key} is taken back. {scores}".rstrip()
