"""`tallyring`: the command line."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import click

from agent.errors import ConfigError, StoreError
from cluster.commands.audit import audit
from cluster.commands.backup import backup, import_rows, restore
from cluster.commands.bans import ban, bans, unban
from cluster.commands.board import board
from cluster.commands.call import CommandError
from cluster.commands.certify import certify
from cluster.commands.chaos import chaos
from cluster.commands.demo import demo
from cluster.commands.erasing import erase
from cluster.commands.explain import explain
from cluster.commands.final import final
from cluster.commands.rebuild import rebuild
from cluster.commands.results import results, retract
from cluster.commands.ring import ring
from cluster.commands.scores import add, counter, rank, score, top
from cluster.commands.simulate import simulate


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="tallyring", prog_name="tallyring")
def main() -> None:
    """Tallyring: counters and leaderboards that many regions write and each ranks locally."""


@main.command()
@click.option(
    "--config",
    required=True,
    type=click.Path(path_type=Path, dir_okay=False),
    help="The agent's TOML file.",
)
def agent(config: Path) -> None:
    """Run one agent until SIGTERM or Ctrl-C."""
    from agent.node import run_agent  # noqa: PLC0415 -- the server's libraries, for this alone

    try:
        run_agent(config)
    except ConfigError as error:
        raise CommandError(f"{error.field}: {error.detail}", error.hint) from None
    except StoreError as error:
        raise CommandError(str(error)) from None


@main.command(context_settings={"ignore_unknown_options": True, "help_option_names": []})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def bench(arguments: tuple[str, ...]) -> None:
    """Measure this machine beside Valkey; in a checkout."""
    root = Path(__file__).resolve().parents[1]
    if importlib.util.find_spec("bench") is None and not (root / "bench").is_dir():
        raise CommandError("the benchmark is not installed", "run it in a checkout: make bench")
    done = subprocess.run([sys.executable, "-m", "bench", *arguments], cwd=root, check=False)
    raise SystemExit(done.returncode)


COMMANDS = (
    add,
    audit,
    backup,
    ban,
    bans,
    board,
    certify,
    chaos,
    counter,
    demo,
    erase,
    explain,
    final,
    import_rows,
    rank,
    rebuild,
    restore,
    results,
    retract,
    ring,
    score,
    simulate,
    top,
    unban,
)
for command in COMMANDS:
    main.add_command(command)

if __name__ == "__main__":
    main()
