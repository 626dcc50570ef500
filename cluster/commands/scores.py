"""Writing and reading scores: add, score, top, rank, counter."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import click
from rich.table import Table

from cluster.commands.call import Api, CommandError, api_options, lag, plain, segment, some, table

# So that "-2" is a number and not an option.
NUMBERS = {"ignore_unknown_options": True}


@click.command(
    context_settings=NUMBERS, short_help="Add AMOUNT to MEMBER on a 'sum' or 'trend' BOARD."
)
@click.argument("board")
@click.argument("member")
@click.argument("amount", type=int)
@click.option("--at", help="Time of the event: RFC 3339. Default: now.")
@click.option("--key", help="Counts once, however often and wherever it is sent; with --at.")
@api_options
def add(api: Api, board: str, member: str, amount: int, at: str | None, key: str | None) -> None:
    """Add AMOUNT, which may be negative, to MEMBER on a BOARD with rule 'sum' or 'trend'."""
    _write(api, board, {"member": member, "add": amount, "at": at, "key": key})


@click.command(context_settings=NUMBERS, short_help="Submit VALUE for MEMBER on a BOARD.")
@click.argument("board")
@click.argument("member")
@click.argument("value", type=int)
@click.option("--at", help="Time of the event: RFC 3339. Default: now.")
@click.option("--data", help="JSON, up to 1 KiB, shown with the score.")
@click.option("--key", help="Under which a board that keeps its results keeps it; with --at.")
@api_options
def score(
    api: Api,
    board: str,
    member: str,
    value: int,
    at: str | None,
    data: str | None,
    key: str | None,
) -> None:
    """Submit VALUE for MEMBER on a BOARD with rule 'best' or 'latest'."""
    try:
        parsed = None if data is None else json.loads(data)
    except ValueError as error:
        raise CommandError(
            f"--data: not JSON: {error}", "quote text twice: --data '\"text\"'"
        ) from None
    _write(api, board, {"member": member, "score": value, "at": at, "data": parsed, "key": key})


def _write(api: Api, board: str, entry: dict[str, Any]) -> None:
    body = {name: value for name, value in entry.items() if value is not None}
    path = f"/v1/boards/{segment(board)}/entries"
    answer = api.send("POST", path, body, {"rank": "true"})
    one = answer["entries"][0]
    rank = f", rank {one['rank']}" if one.get("rank") else ""
    by_window = one["score"]
    shown = ", ".join(
        f"{score}" if len(by_window) == 1 else f"{score} ({window})"
        for window, score in by_window.items()
    )
    late = f"; late for {', '.join(one['late'])}" if one.get("late") else ""
    before = f"; counted before, at {one['counted_at']}" if one.get("duplicate") else ""
    api.show(answer, lambda: f"{plain(one['member'])}: {shown or 'no score'}{rank}{late}{before}")


WINDOW = click.option("--window", help="Its name (the open one) or id. Default: the first one.")


@click.command()
@click.argument("board")
@WINDOW
@click.option("--limit", default=10, show_default=True, type=click.IntRange(1, 1000))
@click.option("--offset", default=0, show_default=True, type=click.IntRange(0))
@click.option("--live", is_flag=True, help="Go on, and show it whenever it changes.")
@api_options
def top(api: Api, board: str, window: str | None, limit: int, offset: int, live: bool) -> None:
    """Show the best of BOARD."""
    path = f"/v1/boards/{segment(board)}"
    if live:
        if offset:
            raise CommandError("--offset: does not go with --live, which shows the top")
        _follow(api, board, f"{path}/live", {"window": window, "limit": limit})
        return
    answer = api.get(f"{path}/entries", window=window, limit=limit, offset=offset)
    api.show(answer, lambda: _page(board, answer))


def _page(board: str, answer: dict[str, Any]) -> Table:
    behind = lag(answer["max_lag_ms"])
    members = some(answer["total"], "member")
    title = f"{_of_window(board, answer)}: {members}, at most {behind} behind"
    return _ranked(answer["entries"], title)


def _follow(api: Api, board: str, path: str, query: dict[str, Any]) -> None:
    """Show a top whenever it changes, until the agent or Ctrl-C ends it; JSON a line each."""

    def show(name: str, data: dict[str, Any]) -> None:
        if name == "top":
            api.show(data, lambda: _page(board, data))
        elif name == "stale":
            click.echo(f"{data['detail']} ({data['code']})", err=True)
        else:
            raise CommandError(f"{data['detail']} ({data['code']})", data["hint"], data)

    with suppress(KeyboardInterrupt):
        api.listen(path, query, show)


@click.command()
@click.argument("board")
@click.argument("member")
@WINDOW
@click.option("--neighbors", default=2, show_default=True, type=click.IntRange(0, 100))
@click.option("--previous", is_flag=True, help="Also its rank in the window before.")
@api_options
def rank(
    api: Api, board: str, member: str, window: str | None, neighbors: int, previous: bool
) -> None:
    """Show MEMBER's rank on BOARD, and who stands around it."""
    path = f"/v1/boards/{segment(board)}/entries/{segment(member)}"
    answer = api.get(
        path, window=window, neighbors=neighbors, previous="true" if previous else None
    )
    title = (
        f"{plain(member)} is {answer['rank']} of {answer['total']} on {_of_window(board, answer)}"
        f" (top {answer['top_percent']:.4g} %)"
    )
    if previous:
        before = answer["previous"]
        title += (
            ", not ranked in the window before"
            if before is None
            else f", {before['rank']} of {before['total']} in {before['window']}"
        )
    around = [line for line in answer["neighbors"] if line["member"] != member]
    lines = sorted([*around, answer], key=lambda line: int(line["rank"]))
    api.show(answer, lambda: _ranked(lines, title))


@click.command()
@click.argument("name")
@click.option("--by", type=int, help="How much; may be negative.")
@api_options
def counter(api: Api, name: str, by: int | None) -> None:
    """Show the counter NAME, or with --by add to it first."""
    path = f"/v1/counters/{segment(name)}"
    answer = api.get(path) if by is None else api.send("POST", path, {"by": by})
    api.show(answer, lambda: f"{plain(answer['name'])}: {answer['value']}")


def _of_window(board: str, answer: dict[str, Any]) -> str:
    """The board, and the window where there are others than `all`."""
    return board if answer["window"] == "all" else f"{board}, {answer['window']}"


def _ranked(lines: list[dict[str, Any]], title: str) -> Table:
    with_data = any(line["data"] is not None for line in lines)
    rounds = any("rounded" in line for line in lines)
    more = [*[">rounded"] * rounds, "reached", *["data"] * with_data]
    made = table(">rank", "member", ">score", *more, title=title)
    for line in lines:
        data = [] if line["data"] is None else [plain(json.dumps(line["data"], ensure_ascii=False))]
        cells = [line.get("rounded", "")] * rounds + [line["reached_at"] or ""]
        made.add_row(str(line["rank"]), plain(line["member"]), str(line["score"]), *cells, *data)
    return made
