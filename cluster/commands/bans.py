"""Hiding members: ban, unban, bans."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click
from rich.table import Table

from cluster.commands.call import Api, Command, CommandError, api_options, plain, segment, table


def _board_option(meaning: str) -> Callable[[Command], Command]:
    return click.option("--board", help=meaning)


def _path(board: str | None, member: str) -> str:
    where = "" if board is None else f"/boards/{segment(board)}"
    return f"/v1{where}/bans/{segment(member)}"


@click.command()
@click.argument("member")
@_board_option("Hide it from this board only; default: from all.")
@click.option("--until", help="When it ends by itself: RFC 3339. Default: when it is lifted.")
@click.option("--reason", default="", help="Why, up to 500 characters.")
@api_options
def ban(api: Api, member: str, board: str | None, until: str | None, reason: str) -> None:
    """Hide MEMBER from all boards, or from one, in every region; or change its ban.

    Its scores go on being counted: lifting the ban brings them back.
    """
    body = {"until": until, "reason": reason}
    answer = api.send("PUT", _path(board, member), body)
    api.show(answer, lambda: _line(answer, "is hidden", "was hidden so already"))


@click.command()
@click.argument("member")
@_board_option("Lift the ban on this board; default: the one on all boards.")
@click.option("--reason", help="Why, up to 500 characters.")
@api_options
def unban(api: Api, member: str, board: str | None, reason: str | None) -> None:
    """Lift the ban of MEMBER on all boards, or the one on one board.

    They are two bans: lifting one leaves the other. The exit code is 1 where the member stays
    hidden by the other one.
    """
    answer = api.send("DELETE", _path(board, member), None, {"reason": reason})
    if answer["hidden"]:
        error = CommandError(
            f"{plain(member)}: still hidden by its ban on all boards",
            f"'tallyring unban {plain(member)}' lifts that one",
            answer,
        )
        error.as_json = api.as_json
        raise error
    api.show(answer, lambda: _line(answer, "is not hidden any more", "was not banned"))


@click.command()
@_board_option("Only bans that hide on this board: its own, and those on all boards.")
@click.option("--member", help="One member's ban, with its history: on --board, else on all.")
@click.option("--after", help="Go on after this member.")
@click.option("--limit", default=100, show_default=True, type=click.IntRange(1, 1000))
@api_options
def bans(api: Api, board: str | None, member: str | None, after: str | None, limit: int) -> None:
    """List who is hidden, from which board, since when, until when and why."""
    if member is not None:
        answer = api.get(_path(board, member))
        api.show(answer, lambda: _history(answer))
        return
    answer = api.get("/v1/bans", board=board, after=after, limit=limit)
    api.show(answer, lambda: _list(answer))


def _where(board: str | None) -> str:
    return "all boards" if board is None else board


def _line(answer: dict[str, Any], done: str, already: str) -> str:
    what = done if answer["changed"] else already
    until = f", until {answer['until']}" if answer["banned"] and answer["until"] else ""
    return f"{plain(answer['member'])}: {what} ({_where(answer['board'])}{until})"


def _history(answer: dict[str, Any]) -> Table | str:
    name, where = plain(answer["member"]), _where(answer["board"])
    if not answer["history"]:
        return f"{name} was never banned on {where}"
    state = "banned" if answer["banned"] else "not banned"
    made = table("at", "what", "by", "until", "reason", title=f"{name} is {state} on {where}")
    for change in answer["history"]:
        what = "banned" if change["banned"] else "lifted"
        until = change["until"] or ""
        made.add_row(change["at"], what, plain(change["by"]), until, plain(change["reason"]))
    return made


def _list(answer: dict[str, Any]) -> Table | str:
    more = answer["next"]
    if not answer["bans"] and more is None:
        return "nobody is banned"
    title = None if more is None else f"there may be more: --after '{plain(more)}'"
    made = table("member", "board", "since", "by", "until", "reason", title=title)
    for its in answer["bans"]:
        made.add_row(
            plain(its["member"]),
            _where(its["board"]),
            its["at"],
            plain(its["by"]),
            its["until"] or "",
            plain(its["reason"]),
        )
    return made
