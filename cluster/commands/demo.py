"""The demo as a command: what a person sees while it runs."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

import aiohttp
import click
import uvloop
from redis.exceptions import RedisError
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from cluster import demo as story
from cluster import replay
from cluster.clocks import ClockError
from cluster.commands.call import CommandError, lag
from cluster.commands.demo_tables import day, document, show
from cluster.demo import Options
from cluster.demo_result import Result
from cluster.departures import EVERY, Departures
from cluster.local_ring import LocalRing, RingError
from cluster.workload import InputError, OwnInput, Workload

LOOK_S = 0.5


@click.command(short_help="Replay real input in three regions, cut a link, check everything.")
@click.option("--all", "whole_year", is_flag=True, help="All 336,776 departures, not one in 12.")
@click.option("--rows", type=click.IntRange(8), help="Only the first so many rows.")
@click.option("--keep", is_flag=True, help="Leave the ring up afterwards, until Ctrl-C.")
@click.option(
    "--input",
    "input_file",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Replay your own CSV or JSON lines; docs/cli.md has the columns.",
)
@click.option(
    "--boards",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="With --input: JSON, by board the body of its PUT.",
)
@click.option(
    "--seed",
    default=1,
    show_default=True,
    help="Decides which region is cut off, and who taps what.",
)
@click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False),
    help="Keep the agents' files and logs here. Default: a temporary folder.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON; progress to standard error.")
def demo(
    whole_year: bool,
    rows: int | None,
    keep: bool,
    input_file: Path | None,
    boards: Path | None,
    seed: int,
    folder: Path | None,
    as_json: bool,
) -> None:
    """Start three regions, replay real input, cut a link, heal it, and check everything.

    The exit code is 0 only if every score and every rank in every region is right.
    """
    console = Console(stderr=as_json)
    options = Options(_workload(whole_year, rows, input_file, boards), seed, folder)
    try:
        result = run(options, console, keep=keep)
    except (RingError, replay.ReplayError, ClockError, aiohttp.ClientError, RedisError) as error:
        raise CommandError(str(error)) from None
    except TimeoutError:
        raise CommandError("the ring did not get ready in time; its agents' logs say why") from None
    except asyncio.CancelledError:
        raise CommandError("stopped by SIGTERM") from None
    if as_json:
        click.echo(json.dumps(document(result)))
    raise SystemExit(0 if result.good else 1)


def _workload(
    whole_year: bool, rows: int | None, input_file: Path | None, boards: Path | None
) -> Workload:
    if input_file is None:
        if boards is not None:
            raise CommandError("--boards goes with --input")
        return Departures(every=1 if whole_year else EVERY, rows_max=rows)
    if whole_year or rows is not None:
        raise CommandError("--all and --rows are for the departures, not for --input")
    try:
        return OwnInput(input_file, boards)
    except InputError as error:
        raise CommandError(
            str(error), "'tallyring demo' in docs/cli.md describes both files"
        ) from None


def run(options: Options, console: Console, *, keep: bool = False) -> Result:
    """Run the demo, print what happens and the table of its result.

    Raises:
        RingError, ReplayError, ClockError, aiohttp.ClientError, RedisError, TimeoutError: it
            could not be run to its end.
        asyncio.CancelledError: SIGTERM; everything was stopped.
    """
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=16),  # a line fits on 80 columns
        TextColumn("{task.completed:,}/{task.total:,} {task.fields[state]}"),
        TimeElapsedColumn(),
        console=console,
    )

    async def watch(progress: replay.Progress, ring: LocalRing) -> None:
        task = bar.add_task("replay", total=progress.rows_total, state="rows")

        def state(said: str) -> str:
            reached = "" if options.workload.pace is None else f"{day(progress.at_ms)}  "
            return f"rows  {reached}{said}"

        async with aiohttp.ClientSession() as session:
            try:
                while True:
                    lags = [await _lag(session, agent.url) for agent in ring.agents.values()]
                    worst = max((ms for ms in lags if ms is not None), default=None)
                    text = state(f"lag {lag(worst)}")
                    bar.update(task, completed=progress.rows, state=text)
                    await asyncio.sleep(LOOK_S)
            finally:
                said = state(f"{progress.entries_per_s:,.0f} entries/s")
                bar.update(task, completed=progress.rows, state=said)

    def told(done: int, total: int) -> None:
        tasks = [task.id for task in bar.tasks if task.description == "check "]
        task = tasks[0] if tasks else bar.add_task("check ", total=total, state="windows")
        bar.update(task, completed=done)

    async def linger(ring: LocalRing, result: Result) -> None:
        bar.stop()
        show(result, console)
        if keep:
            await _stay(ring, options, console)

    async def whole() -> Result:
        task = asyncio.current_task()
        assert task is not None
        # SIGTERM takes the same way out as Ctrl-C: nothing is left running.
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        with bar:
            return await story.run(options, bar.console.print, watch, linger, told)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(whole())


async def _lag(session: aiohttp.ClientSession, url: str) -> int | None:
    with suppress(aiohttp.ClientError, TimeoutError, KeyError):
        async with session.get(f"{url}/v1/boards/probe/entries?limit=1") as response:
            ms: int | None = (await response.json())["max_lag_ms"]
            return ms
    return None


async def _stay(ring: LocalRing, options: Options, console: Console) -> None:
    """Say what can be tried on the ring that is still up, and wait for Ctrl-C."""
    first, last = next(iter(ring.agents.values())), list(ring.agents.values())[-1]
    board, spec = next(iter(options.workload.boards.items()))
    member = "AA" if board == "departures" else "somebody"
    field = "add" if spec.rule == "sum" else "score"
    path = f"/v1/boards/{quote(board)}/entries"
    body = json.dumps({"member": member, field: 1})
    lines = [
        f"curl '{first.url}{path}?limit=5'",
        f"curl {first.url}{path} -H 'Content-Type: application/json' -d '{body}'",
        f"curl {last.url}{path}/{member}",
    ]
    if options.workload.pace is not None:
        lines.append(f"curl '{last.url}{path}?window=month:2013-12&limit=5'")
    port = last.redis_url.rpartition(":")[2].partition("/")[0]
    read = "zrange" if spec.low else "zrevrange"
    redis = (
        f'{sys.executable} -c "import redis; print(redis.Redis(port={port})'
        f".{read}('lb:{{s0}}:{board}:all', 0, 4))\""
    )
    console.print(f"\nThe ring is up, its files are in {ring.folder}. Try:", highlight=False)
    for line in [*lines, redis]:
        console.print(f"  {line}", markup=False, highlight=False, soft_wrap=True)
    if first is not last:
        console.print(
            f"A write to {first.name} is in {last.name} a moment later. Ctrl-C stops the ring.",
            highlight=False,
        )
    else:
        console.print("Ctrl-C stops the ring.", highlight=False)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    await stop.wait()
