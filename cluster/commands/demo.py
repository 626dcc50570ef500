"""The demo as a command: what a person sees of it, and its result as a table or as JSON."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp
import click
import uvloop
from redis.exceptions import RedisError
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from cluster import demo as story
from cluster import replay
from cluster.commands.call import CommandError, lag, some, table
from cluster.demo import Options, Result
from cluster.local_ring import LocalRing, RingError
from cluster.probe import Latencies
from cluster.workload import Departures, InputError, OwnInput, Workload

LOOK_S = 0.5


@click.command(short_help="Replay real input in three regions, cut a link, check everything.")
@click.option("--all", "whole_year", is_flag=True, help="All 336,776 departures of the year.")
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
@click.option("--seed", default=1, show_default=True, help="Decides which region is cut off.")
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
    except (RingError, replay.ReplayError, aiohttp.ClientError, RedisError) as error:
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
        return Departures(whole_year=whole_year, rows_max=rows)
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
        RingError, ReplayError, aiohttp.ClientError, RedisError, TimeoutError: it could not be
            run to its end.
        asyncio.CancelledError: SIGTERM; everything was stopped.
    """
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=16),  # a line fits on 80 columns
        TextColumn("{task.completed:,}/{task.total:,} rows  {task.fields[state]}"),
        TimeElapsedColumn(),
        console=console,
    )

    async def watch(progress: replay.Progress, ring: LocalRing) -> None:
        task = bar.add_task("replay", total=progress.rows_total, state="")
        async with aiohttp.ClientSession() as session:
            try:
                while True:
                    lags = [await _lag(session, agent.url) for agent in ring.agents.values()]
                    worst = max((ms for ms in lags if ms is not None), default=None)
                    state = f"{progress.entries_per_s:,.0f} entries/s  lag {lag(worst)}"
                    bar.update(task, completed=progress.rows, state=state)
                    await asyncio.sleep(LOOK_S)
            finally:
                state = f"{progress.entries_per_s:,.0f} entries/s"
                bar.update(task, completed=progress.rows, state=state)

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
            return await story.run(options, bar.console.print, watch, linger)

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


def document(result: Result) -> dict[str, Any]:
    """The result as `--json` prints it. Times in seconds or ms, sizes in bytes, by the name."""
    cut = result.cut
    return {
        "ok": result.good,
        "regions": list(result.regions),
        "rows": result.rows,
        "entries": result.entries,
        "replay_s": round(result.replay_s, 3),
        "entries_per_s": round(result.entries / max(result.replay_s, 1e-9)),
        "cut": {
            "region": cut.region,
            "seconds": round(cut.seconds, 3),
            "rows_written": cut.rows_written,
            "lag_ms": cut.lag_ms,
            "refused_connections": cut.refused_connections,
            "refused_bytes": cut.refused_bytes,
            "caught_up_s": cut.caught_up_s,
        },
        "converged_s": result.converged_s,
        "visible_ms": {"replaying": _quantiles(result.loaded), "calm": _quantiles(result.calm)},
        "wire_bytes": result.wire_bytes,
        "wire_bytes_per_entry": round(result.wire_bytes_per_entry, 2),
        "cells": result.cells,
        "resident_bytes": result.resident_bytes,
        "check": {
            "equal": result.verdict.equal,
            "compared": result.verdict.compared,
            "differences": result.verdict.differences,
            "first": result.verdict.shown,
        },
    }


def _quantiles(latencies: Latencies) -> dict[str, Any]:
    return {
        "probes": len(latencies.ms),
        "lost": latencies.lost,
        "p50": latencies.quantile(0.5),
        "p99": latencies.quantile(0.99),
    }


def show(result: Result, console: Console) -> None:
    """Print the result as a table a person can read, and what was wrong."""
    cut, verdict = result.cut, result.verdict
    made = table("", "", title="what happened")
    made.show_header = False
    made.add_row(
        "replayed",
        f"{some(result.rows, 'row')}, {result.entries:,} entries in {result.replay_s:.1f} s"
        f" = {result.entries / max(result.replay_s, 1e-9):,.0f} entries/s",
    )
    if cut.region:
        made.add_row(
            f"{cut.region} was cut off",
            f"for {cut.seconds:.1f} s; took {some(cut.rows_written, 'row')} meanwhile; refused:"
            f" {some(cut.refused_connections, 'connection')}, {cut.refused_bytes:,} bytes",
        )
        made.add_row("caught up after the heal", _seconds(cut.caught_up_s))
    made.add_row("converged after the last write", _seconds(result.converged_s))
    for name, latencies in (
        ("at full load, all on one machine", result.loaded),
        ("calm", result.calm),
    ):
        if latencies.ms or latencies.lost:
            made.add_row(
                f"acknowledged to visible elsewhere, {name}",
                f"p50 {latencies.quantile(0.5) or 0:.0f} ms, p99"
                f" {latencies.quantile(0.99) or 0:.0f} ms ({some(len(latencies.ms), 'probe')},"
                f" {latencies.lost} lost)",
            )
    made.add_row(
        "on the wire", f"{result.wire_bytes_per_entry:.1f} bytes per entry and peer, HTTP included"
    )
    made.add_row("cells", ", ".join(f"{name} {n:,}" for name, n in result.cells.items()))
    made.add_row(
        "memory",
        ", ".join(f"{name} {n / 2**20:.0f} MiB" for name, n in result.resident_bytes.items()),
    )
    equal = "all equal" if verdict.equal else f"{verdict.differences:,} DIFFERENCES"
    made.add_row("checked", f"{verdict.compared:,} scores and ranks in every region: {equal}")
    console.print(made, highlight=False)
    for line in verdict.shown:
        console.print(f"  {line}", markup=False, highlight=False)
    if not result.proven:
        console.print("The cut refused nothing: this run proves nothing about it.")
    if result.good:
        console.print("right", style="green")
    else:
        console.print("WRONG (--folder DIR keeps the agents' files and logs)", style="red")


def _seconds(value: float | None) -> str:
    return "not in time" if value is None else f"{value:.2f} s"
