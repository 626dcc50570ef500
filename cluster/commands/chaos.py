"""Chaos as a command: what a person sees of it, and its report as a table or as JSON."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path
from random import SystemRandom
from typing import Any

import aiohttp
import click
import uvloop
from redis.exceptions import RedisError
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from cluster.chaos import run as story
from cluster.chaos.faults import available
from cluster.chaos.ledger import Outcome
from cluster.chaos.plan import Fault
from cluster.chaos.ranks import RankServerError
from cluster.chaos.run import Options, Report, Watched
from cluster.commands.call import CommandError, some, table
from cluster.local_ring import RingError

LOOK_S = 0.25
SEEDS = 2**31


@click.command(short_help="Break a ring of real processes under writes, and check the totals.")
@click.option("--seed", type=int, help="Draws the plan of faults. Default: a random one.")
@click.option(
    "--seconds",
    default=60.0,
    show_default=True,
    type=click.FloatRange(5),
    help="How long faults strike.",
)
@click.option(
    "--regions",
    default=3,
    show_default=True,
    type=click.IntRange(2, len(story.NAMES)),
    help="How many regions write.",
)
@click.option("--faults", "chosen", help="Only these, with commas. Default: all.")
@click.option(
    "--keep",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    help="Keep the agents' files and logs in this empty folder.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON; progress to standard error.")
def chaos(
    seed: int | None,
    seconds: float,
    regions: int,
    chosen: str | None,
    folder: Path | None,
    as_json: bool,
) -> None:
    """Write to all regions without end while faults strike; then heal, and check every total.

    The exit code is 0 only if nothing acknowledged was lost, nothing was doubled, and every agent
    came back.
    """
    if folder is not None and folder.exists() and any(folder.iterdir()):
        raise CommandError(f"--keep: {folder} is not empty")
    seed = SystemRandom().randrange(SEEDS) if seed is None else seed
    options = Options(seed, seconds, regions, _faults(chosen), folder)
    console = Console(stderr=as_json)
    try:
        report = _run(options, console)
    except (RingError, RankServerError, aiohttp.ClientError, RedisError) as error:
        raise CommandError(str(error)) from None
    except TimeoutError:
        raise CommandError("the ring did not get ready in time; its agents' logs say why") from None
    except asyncio.CancelledError:
        raise CommandError("stopped by SIGTERM") from None
    if as_json:
        click.echo(json.dumps(story.document(report)))
    else:
        show(report, console)
    raise SystemExit(0 if report.right else 1)


def _faults(chosen: str | None) -> tuple[Fault, ...]:
    possible = available()
    if chosen is None:
        return tuple(possible)
    named = [name.strip() for name in chosen.split(",") if name.strip()]
    for name in named:
        if name not in possible:
            raise CommandError(f"--faults: {name!r} is none", f"there are: {', '.join(possible)}")
    if not named:
        raise CommandError("--faults: names none", f"there are: {', '.join(possible)}")
    return tuple(fault for fault in possible if fault in named)


def _run(options: Options, console: Console) -> Report:
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=16),
        TextColumn("{task.fields[state]}"),
        TimeElapsedColumn(),
        console=console,
    )

    async def whole() -> Report:
        task = asyncio.current_task()
        assert task is not None
        # SIGTERM takes the same way out as Ctrl-C: nothing is left running.
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        shown = bar.add_task("starting", total=options.seconds, state="")
        watched: list[Watched] = []

        async def refresh() -> None:
            while True:
                for seen in watched:
                    counts = seen.ledger.counts
                    state = f"{counts[Outcome.OK]:,} acknowledged  {', '.join(seen.now)}"
                    bar.update(shown, description=seen.phase, completed=seen.passed_s, state=state)
                await asyncio.sleep(LOOK_S)

        with bar:
            async with asyncio.TaskGroup() as group:
                refreshing = group.create_task(refresh())
                try:
                    return await story.run(options, bar.console.print, watched.append)
                finally:
                    refreshing.cancel()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            return runner.run(whole())
        except ExceptionGroup as group:
            raise _first(group) from group


def _first(group: ExceptionGroup[Any]) -> Exception:
    """The first error of a group: the others followed from it."""
    first = group.exceptions[0]
    return _first(first) if isinstance(first, ExceptionGroup) else first


def show(report: Report, console: Console) -> None:
    """Print the report as a table that a person can read, and all that was wrong."""
    ledger, judgement = report.ledger, report.judgement
    struck = table("fault", ">struck", ">without effect", title="faults")
    for fault in sorted(report.struck.keys() | report.idle.keys()):
        struck.add_row(fault, str(report.struck.get(fault, 0)), str(report.idle.get(fault, 0)))
    console.print(struck, highlight=False)
    made = table("", "")
    made.show_header = False
    counts = ledger.counts
    made.add_row(
        "writes",
        f"{counts[Outcome.OK]:,} acknowledged, {counts[Outcome.REFUSED]:,} refused,"
        f" {counts[Outcome.INDEFINITE]:,} in doubt",
    )
    made.add_row(
        "checked",
        f"{some(judgement.acknowledged, 'acknowledged write')} of {some(judgement.keys, 'key')};"
        f" {report.verdict.compared:,} scores, ranks and counters in every region",
    )
    made.add_row(
        "lost, doubled, impossible",
        f"{judgement.lost:,}, {judgement.doubled:,}, {judgement.other:,} keys",
    )
    made.add_row(
        "lost with right",
        f"{judgement.forgiven:,} in all, with {some(len(ledger.losses), 'disk')} put back or"
        " emptied before anybody had it",
    )
    made.add_row("reads", f"{ledger.reads:,}, {ledger.wrong_reads:,} wrong")
    equal = "never" if report.converged_s is None else f"{report.converged_s:.1f} s"
    made.add_row("all regions equal after", equal)
    if report.alarms:
        alarms = ", ".join(f"{name} {count:.0f}" for name, count in report.alarms.items())
        made.add_row("alarms", alarms)
    console.print(made, highlight=False)
    for line in report.findings:
        console.print(f"  {line}", markup=False, highlight=False)
    console.print(f"the same plan: {report.options.command}", highlight=False, soft_wrap=True)
    if report.right:
        console.print("right", style="green")
    else:
        console.print("WRONG (--keep FOLDER keeps the agents' files and logs)", style="red")
