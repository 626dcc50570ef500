"""Certified finals: show one, export it for payouts, check an export, list what came after."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from cluster.commands.call import (
    Api,
    CommandError,
    api_options,
    plain,
    segment,
    show_table,
    some,
    table,
)

PUBLIC_KEY = re.compile("[0-9a-fA-F]{64}")
generation_option = click.option(
    "--generation", type=click.IntRange(0), help="Of the board. Default: the present one."
)


class _ShowsByDefault(click.Group):
    """A group in which `final BOARD WINDOW` is `final show BOARD WINDOW`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ("-h", "--help"):
            args = ["show", *args]
        return super().parse_args(ctx, args)


@click.group(cls=_ShowsByDefault)
def final() -> None:
    """Show, export and check certified finals; 'final BOARD WINDOW' shows one."""


@final.command()
@click.argument("board")
@click.argument("window")
@generation_option
@click.option("--version", type=click.IntRange(0), help="Of the final. Default: the one in force.")
@click.option("--offset", default=0, show_default=True, type=click.IntRange(0))
@click.option("--limit", default=100, show_default=True, type=click.IntRange(1, 1000))
@click.option(
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Export all of it to this file, signed; one that is written in part is gone on with.",
)
@api_options
def show(
    api: Api,
    board: str,
    window: str,
    generation: int | None,
    version: int | None,
    offset: int,
    limit: int,
    output: Path | None,
) -> None:
    """Show the certified final of a WINDOW of a BOARD, such as 'day:2026-11-30'.

    The word 'show' may be left out. With --output the exit code is 0 only if the file is whole and
    its hash and signature are right.
    """
    path = _path(board, window, "final")
    query = {"generation": generation, "version": version}
    if output is not None:
        _export(api, path, query, output, {"board": board, "window": window, **query})
        return
    answer = api.get(path, **query, offset=offset, limit=limit)
    if api.as_json:
        click.echo(json.dumps(answer, ensure_ascii=False))
        return
    for line in _certificate(answer):
        click.echo(line)
    show_table(_rows(answer))


@final.command()
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--key", help="The ring's public key, in hexadecimal: that one must have signed.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def verify(file: Path, key: str | None, as_json: bool) -> None:
    """Check the hash and the signature of an exported FILE, without asking any agent.

    Without --key it says which key has signed: compare it with GET /v1/ring/keys.
    """
    answer = _verified(file, key, as_json=as_json)
    if as_json:
        click.echo(json.dumps(answer, ensure_ascii=False))
        return
    click.echo(_is_right(answer))
    if key is None:
        click.echo(f"signed with the key {answer['key']}: {answer['public_key']}")
        click.echo("whether that is the ring's key, --key or GET /v1/ring/keys tells")


@final.command()
@click.argument("board")
@click.argument("window")
@generation_option
@click.option("--offset", default=0, show_default=True, type=click.IntRange(0))
@click.option("--limit", default=100, show_default=True, type=click.IntRange(1, 1000))
@api_options
def late(
    api: Api, board: str, window: str, generation: int | None, offset: int, limit: int
) -> None:
    """List what came after the final of a WINDOW of a BOARD: other scores, and bans."""
    path = _path(board, window, "late")
    answer = api.get(path, generation=generation, offset=offset, limit=limit)
    api.show(answer, lambda: _late(answer))


def _path(board: str, window: str, what: str) -> str:
    return f"/v1/boards/{segment(board)}/windows/{segment(window)}/{what}"


# --- exporting -----------------------------------------------------------------------------


def _export(
    api: Api, path: str, query: dict[str, Any], output: Path, wanted: dict[str, Any]
) -> None:
    from cluster.final_file import FinalFileError  # noqa: PLC0415 -- its libraries are large

    try:
        offset, held = _go_on(output, wanted)
        if offset is None:
            _check_newest(api, path, query, output, held)
        else:
            query = {**query, "format": "jsonl", "offset": offset}
            headers = {} if held is None else {"If-Match": f'"{held}"'}
            with output.open("ab") as file:
                api.download(path, query, headers, file.write)
    except FinalFileError as error:
        raise _wrong(api.as_json, output, str(error), "give another file") from None
    except OSError as error:
        raise _wrong(api.as_json, output, error.strerror or str(error), "") from None
    answer = _verified(output, None, as_json=api.as_json)
    api.show(answer, lambda: f"{_is_right(answer)}\nwritten to {output}")


def _go_on(output: Path, wanted: dict[str, Any]) -> tuple[int | None, str | None]:
    """From which row an export goes on (None where it is whole), and the hash of its final.

    What was cut in the middle is taken off the file.
    """
    from cluster.final_file import begun  # noqa: PLC0415 -- as above

    found = begun(output, wanted)
    if found is None:
        output.write_bytes(b"")
        return 0, None
    if found.complete:
        return None, found.header.hash
    with output.open("r+b") as file:
        file.truncate(found.size)
    return found.rows, found.header.hash


def _check_newest(
    api: Api, path: str, query: dict[str, Any], output: Path, held: str | None
) -> None:
    """Check that a whole file has the final that is asked for, and not one before it."""
    told = api.get(path, **query, limit=1)["certificate"]
    if held != told["hash"]:
        why = f"it has another final than the one in force, which is version {told['version']}"
        raise _wrong(api.as_json, output, why, "give another file")


def _verified(path: Path, key: str | None, *, as_json: bool) -> dict[str, Any]:
    """What is in an export that is right."""
    from cluster.final_file import FinalFileError, verify  # noqa: PLC0415 -- as above

    try:
        found = verify(path)
    except FinalFileError as error:
        hint = "it was changed, or is not whole: export to another file"
        raise _wrong(as_json, path, str(error), hint) from None
    except OSError as error:
        raise _wrong(as_json, path, error.strerror or str(error), "") from None
    header, end = found.header, found.end
    if key is not None and not PUBLIC_KEY.fullmatch(key.strip()):
        hint = "GET /v1/ring/keys has them as 'public_key'"
        raise _wrong(as_json, path, "--key: a public key has 64 hexadecimal digits", hint)
    if key is not None and key.strip().lower() != end.public_key:
        text = f"it is signed with the key {end.key}, not with the one of --key"
        hint = "the ring's secret was rotated since, or somebody else has signed it"
        raise _wrong(as_json, path, text, hint)
    return {
        "ring": header.ring,
        "board": header.board,
        "generation": header.generation,
        "window": header.window,
        "version": header.version,
        "mode": header.certificate.mode,
        "hash": header.hash,
        "members": header.members,
        "key": end.key,
        "public_key": end.public_key,
    }


def _wrong(as_json: bool, path: Path, why: str, hint: str) -> CommandError:
    error = CommandError(f"{path}: {plain(why)}", hint)
    error.as_json = as_json
    return error


def _is_right(answer: dict[str, Any]) -> str:
    return (
        f"{plain(answer['board'])} {plain(answer['window'])}, version {answer['version']}"
        f" ({answer['mode']}): {some(answer['members'], 'row')}, hash {answer['hash']};"
        " hash and signature are right"
    )


# --- tables --------------------------------------------------------------------------------


def _certificate(answer: dict[str, Any]) -> list[str]:
    """What is to be said above the rows."""
    said = answer["certificate"]
    agents = said["agents"] if isinstance(said["agents"], list) else [f"{said['agents']} agents"]
    where = f"{answer['board']} {answer['window']}"
    anew = said["mode"] == "override" and not said["without"]
    lines = [
        f"{where}: certified, version {said['version']}, {some(answer['total'], 'member')}",
        f"hash {said['hash']}",
        f"{'made anew' if anew else said['mode']}: agreed by {', '.join(map(plain, agents))}",
    ]
    if said["mode"] == "override":
        without = ", without " + ", ".join(map(plain, said["without"])) if said["without"] else ""
        why = f": {plain(said['reason'])}" if said["reason"] else ""
        lines.append(f"begun at {said['began_at']} by {plain(said['by'])}{without}{why}")
    lines += [_other(said["version"], its) for its in answer["history"]]
    pending = answer["pending"]
    if pending is not None:
        waits = ", ".join(map(plain, pending["waits_for"]))
        lines.append(f"version {pending['version']} is being made; it waits for {waits}")
    if answer["conflict"]:
        lines.append("CONFLICT: agents have certified different finals under one version")
    if answer["late"]:
        lines.append(f"{some(answer['late'], 'live score')} differ by now: 'tallyring final late'")
    return lines


def _other(shown: int, its: dict[str, Any]) -> str:
    """What is to be said about another certified version than the one shown."""
    version = its["version"]
    how = (
        "in force is" if version > shown else "before it was" if version < shown else "beside it is"
    )
    return f"{how} version {version}: {its['hash']} ({its['mode']})"


def _rows(answer: dict[str, Any]) -> Table:
    made = table(">rank", "member", ">score", "reached", "")
    for row in answer["entries"]:
        name = row["member"]
        made.add_row(
            str(row["rank"]),
            "(erased)" if name is None else plain(name),
            str(row["score"]),
            row["reached_at"] or "",
            "banned now" if row.get("banned") else "",
        )
    return made


def _late(answer: dict[str, Any]) -> Table | str:
    where = f"{answer['board']} {answer['window']}"
    if not answer["late"] and not answer["banned"]:
        return f"{where}: nothing came after its final"
    title = f"{where}: {answer['late']} other scores, {answer['banned']} banned since"
    made = table("member", ">in the final", ">now", "reached", "", title=title)
    for its in answer["entries"]:
        made.add_row(
            plain(its["member"]),
            _score(its["final_score"]),
            _score(its["live_score"]),
            its["reached_at"] or "",
            "",
        )
    for its in answer["banned_entries"]:
        made.add_row(plain(its["member"]), str(its["score"]), "", "", "banned now")
    return made


def _score(score: int | None) -> str:
    return "not there" if score is None else str(score)
