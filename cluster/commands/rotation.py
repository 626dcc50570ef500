"""Rotating the ring's secret, with no stop: `add` a new one everywhere, `switch`, `drop` the old.

The file of secrets holds one a line; an agent signs with the first, accepts each, and reads the
file again within a second when it has changed. While it holds two, a line `# new: NAME`, which
agents pass over, says which one is the new: so a step that is given again changes nothing.
"""

from __future__ import annotations

import os
import secrets as random_secrets
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import click

from agent.config import read_secrets
from agent.errors import ConfigError
from agent.gossip.secrets import name_of_secret
from cluster.commands.call import Api, CommandError, api_options, plain
from cluster.commands.membership import dry_run_option

STEPS = ("add", "switch", "drop")
MARK = b"# new: "


class Held(NamedTuple):
    """A file of secrets: the first one signs; `new` is the one that the ring goes to, if known."""

    secrets: tuple[bytes, ...]
    new: bytes | None

    def names(self) -> list[str]:
        """The secrets' names, in order."""
        return [name_of_secret(secret) for secret in self.secrets]

    def named(self, name: str | None) -> bytes | None:
        """The secret of this name, or None."""
        return next((each for each in self.secrets if name_of_secret(each) == name), None)


@click.command("rotate-secret")
@click.option(
    "--secret-file",
    required=True,
    type=click.Path(path_type=Path, dir_okay=False),
    help="The file of the ring's secrets on this machine.",
)
@click.option("--step", required=True, type=click.Choice(STEPS), help="What to do with it.")
@click.option(
    "--new-from",
    type=click.Path(path_type=Path, dir_okay=False),
    help="With add: a file that has the new secret; by default one is generated.",
)
@click.option(
    "--to",
    help="With switch: a secret's name, as add shows it; by default the one that add has added.",
)
@dry_run_option
@api_options
def rotate_secret(
    api: Api, secret_file: Path, step: str, new_from: Path | None, to: str | None, dry_run: bool
) -> None:
    """Rotate the ring's secret on this machine, a step at a time, with no stop.

    Do each step on every machine before the next one; one that is given again changes nothing.
    `drop` asks the agent at --url whether every member that it can reach knows the new secret, and
    refuses where one does not.
    """
    try:
        now = _read(secret_file)
        after, says = _steps(api, now, step, new_from, to)
        if not dry_run and after != now:
            _write(secret_file, after)
    except CommandError as error:
        error.as_json = api.as_json
        raise
    except OSError as error:
        raise CommandError(f"--secret-file: {secret_file}: {error.strerror}") from None
    answer = {
        "secret_file": str(secret_file),
        "step": step,
        "dry_run": dry_run,
        "changed": after != now and not dry_run,
        "before": now.names(),
        "after": after.names(),
        "says": says,
    }
    api.show(answer, lambda: _text(answer))


def _steps(
    api: Api, now: Held, step: str, new_from: Path | None, to: str | None
) -> tuple[Held, list[str]]:
    """The file after a step, and what to do next."""
    if step == "add":
        return _add(now, new_from)
    if new_from is not None:
        raise CommandError(f"--new-from: goes with --step add, not with {step}")
    if step == "switch":
        return _switch(now, to)
    if len(now.secrets) == 1:
        return now, ["there is one secret already; nothing to drop"]
    return Held(now.secrets[:1], None), _known_by_all(api, now.names()[0])


def _add(now: Held, new_from: Path | None) -> tuple[Held, list[str]]:
    if new_from is None:
        new, says = random_secrets.token_hex(32).encode(), []
        if now.new is not None:
            return now, [f"the new secret {name_of_secret(now.new)} is there already", _next(now)]
    else:
        new = _new_in(new_from, now)
        says = [f"the new secret {name_of_secret(new)} is from {new_from}"]
        if new in now.secrets and (now.new is not None or len(now.secrets) == 1):
            return now, [f"the secret {name_of_secret(new)} of {new_from} is there already"]
    if len(now.secrets) > 1 and new not in now.secrets:
        raise CommandError(
            f"there is a second secret already: {_names(now)}",
            "finish with --step switch and --step drop first; --step drop alone keeps the first",
        )
    after = Held(tuple(dict.fromkeys((*now.secrets, new))), new)
    return after, [
        *says,
        "copy this file to every machine, whole (or there: --step add --new-from FILE)",
        _next(after),
    ]


def _new_in(path: Path, mine: Held) -> bytes:
    """The new secret in another machine's file.

    The one that it says is new; else the one that it signs with, unless that is here already; else
    the one that is not here.
    """
    there = _read(path)
    if there.new is not None or len(there.secrets) == 1:
        return there.new or there.secrets[0]
    unknown = [secret for secret in there.secrets if secret not in mine.secrets]
    if there.secrets[0] in unknown or len(unknown) == 1:
        return unknown[0]
    raise CommandError(
        f"--new-from: {path} does not say which of its secrets is new: {_names(there)}",
        "--step add there says it, with the file of the new one as --new-from",
    )


def _switch(now: Held, to: str | None) -> tuple[Held, list[str]]:
    if to is None and len(now.secrets) == 1:
        raise CommandError("there is no second secret to switch to", "begin with --step add")
    new = now.new if to is None else now.named(to)
    if new is None and to is None:
        raise CommandError(
            f"the file does not say which of its secrets is new: {_names(now)}",
            "--to NAME: the name that --step add showed",
        )
    if new is None:
        raise CommandError(
            f"--to: the file holds no secret {to}", f"it holds {', '.join(now.names())}"
        )
    if new == now.secrets[0]:
        return now, [f"it signs with {name_of_secret(new)} already", _DROP]
    after = (new, *(secret for secret in now.secrets if secret != new))
    return Held(after, new), [_DROP]


_DROP = "do this on every machine; then, on each: --step drop"


def _next(now: Held) -> str:
    return _DROP if now.new == now.secrets[0] else "then, on each: --step switch"


def _names(held: Held) -> str:
    first, *others = held.names()
    return f"it signs with {first}, and accepts {', '.join(others)}"


def _known_by_all(api: Api, name: str) -> list[str]:
    """Check that every member that can be reached knows a secret; what to do about the others."""
    answer = api.get("/v1/ring")
    if name not in answer["identity"]["secrets"]:
        raise CommandError(
            f"the agent at {api.url} does not know this file's first secret",
            "its ring.secret_file is another file, or it has not read it again yet",
        )
    unknowing, away = [], []
    for member in answer["members"]:
        contact: dict[str, Any] = member["contact"] or {}
        if member["name"] == answer["agent"] or member["status"] == "removed":
            continue
        if contact.get("state") != "ok":
            away.append(plain(member["name"]))
        elif contact["secret"] != name:
            unknowing.append(plain(member["name"]))
    if unknowing:
        who = ", ".join(unknowing)
        raise CommandError(
            f"{who}: has not proven itself with the new secret {name} yet",
            "--step add and --step switch there (and switch here) first; an exchange later it has",
        )
    return [
        *(f"{who} can't be asked: give it the new file before it starts" for who in away),
        "do this on every machine; the old secret is of no use then",
    ]


def _read(path: Path) -> Held:
    try:
        secrets = read_secrets(path)
        marks = [line for line in path.read_bytes().splitlines() if line.startswith(MARK)]
    except ConfigError as error:
        raise CommandError(f"{error.detail}", error.hint) from None
    held = Held(secrets, None)
    if len(secrets) == 1 or not marks:
        return held
    return held._replace(new=held.named(marks[-1].removeprefix(MARK).strip().decode("latin-1")))


def _write(path: Path, held: Held) -> None:
    """Replace a file at once and durably, readable by its owner alone."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            if held.new is not None:
                file.write(MARK + name_of_secret(held.new).encode() + b"\n")
            file.write(b"".join(secret + b"\n" for secret in held.secrets))
            file.flush()
            os.fsync(file.fileno())
        Path(name).chmod(0o600)
        Path(name).replace(path)
    except OSError:
        Path(name).unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _text(answer: dict[str, Any]) -> str:
    would = "would hold" if answer["dry_run"] else "holds"
    first, *more = answer["after"]
    others = f", and accepts {', '.join(more)}" if more else ""
    lines = [f"{answer['secret_file']} {would}: signs with {first}{others}", *answer["says"]]
    if answer["dry_run"]:
        lines.append("Nothing was changed.")
    return "\n".join(lines)
