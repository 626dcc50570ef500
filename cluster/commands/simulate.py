"""Replaying the simulator: a seed is a failure. And soaking: seeds for as long as there is time."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import click

from cluster.commands.call import show_table, some, table
from cluster.simulator import simulate as run_simulation
from cluster.simulator.report import STEPS, Report
from cluster.simulator.rules import RULES
from cluster.simulator.soak import Soak
from cluster.simulator.soak import soak as run_soak
from cluster.simulator.themes import THEMES


def _letters(ctx: click.Context, param: click.Parameter, value: str) -> frozenset[str]:
    """The set of letters in a value; an unknown one is a usage error."""
    letters = frozenset(value.upper().replace(",", ""))
    unknown = sorted(letters - RULES.keys())
    if unknown:
        known = ", ".join(RULES)
        raise click.BadParameter(f"no rule is called {unknown[0]}; there are {known}", ctx, param)
    return letters


@click.command(short_help="Run the protocol in virtual time, with faults, and check it.")
@click.option("--seed", type=int, help="The first run's seed. Default with --soak: 0.")
@click.option("--runs", default=1, show_default=True, type=click.IntRange(1), help="How many.")
@click.option("--steps", default=STEPS, show_default=True, type=click.IntRange(1))
@click.option("--agents", type=click.IntRange(2, 16), help="Agents. Default: the seed decides.")
@click.option(
    "--theme",
    type=click.Choice(sorted(set(THEMES))),
    help="What a run is mostly about. Default: the seed decides.",
)
@click.option(
    "--omit", default="", callback=_letters, metavar="RULE[,RULE]", help="Rules that are left out."
)
@click.option("--shrink", is_flag=True, help="Cut a failing run down to its shortest script.")
@click.option("--trace", is_flag=True, help="Also print what happened, step by step.")
@click.option(
    "--soak",
    type=click.FloatRange(0, min_open=True),
    metavar="MINUTES",
    help="Run seeds until time is up.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def simulate(seed: int | None, runs: int, soak: float | None, *, as_json: bool, **how: Any) -> None:
    """Run the real protocol in virtual time, with faults, and check the totals.

    The same seed is the same run. The exit code is 0 only if every run was right.
    """
    if soak is not None:
        _soak(soak, seed or 0, as_json=as_json)
    if seed is None:
        raise click.UsageError("--seed is missing (or --soak MINUTES)")
    reports = [run_simulation(number, **how) for number in range(seed, seed + runs)]
    failed = [report for report in reports if not report.ok]
    faults: Counter[str] = Counter()
    for report in reports:
        faults.update(report.faults)
    if as_json:
        document = _document(runs, faults, failed)
        document["trace"] = [line for report in reports for line in report.trace]
        click.echo(json.dumps(document))
    else:
        for report in reports:
            for line in report.trace:
                click.echo(line)
        _show_faults(f"{some(runs, 'run')} from seed {seed}", faults)
        for report in failed:
            _show_failed(report)
        click.echo(f"right: {runs - len(failed):,} of {some(runs, 'run')}")
        if how["omit"] and not failed:
            seeds = "this seed does" if runs == 1 else "these seeds do"
            click.echo(f"{seeds} not need rule {', '.join(sorted(how['omit']))}")
    raise SystemExit(1 if failed else 0)


def _soak(minutes: float, first: int, *, as_json: bool) -> None:
    """Run seeds until the time is up, and exit."""

    def tell(found: Soak, failed: list[Report]) -> None:
        if as_json:
            return
        for report in failed:
            _show_failed(report)
        click.echo(
            f"seeds {found.first} to {found.last}: {found.runs:,} runs, {found.writes:,} writes,"
            f" {found.exchanges:,} exchanges, {sum(found.faults.values()):,} faults,"
            f" {len(found.failed)} failed"
        )

    found = run_soak(minutes, first, tell, None)
    if as_json:
        document = _document(found.runs, found.faults, found.failed)
        document |= {"writes": found.writes, "exchanges": found.exchanges}
        click.echo(json.dumps(document))
    else:
        _show_faults(f"{some(found.runs, 'run')} from seed {first}", found.faults)
        click.echo(f"right: {found.runs - len(found.failed):,} of {some(found.runs, 'run')}")
    raise SystemExit(1 if found.failed else 0)


def _document(runs: int, faults: Counter[str], failed: list[Report]) -> dict[str, object]:
    return {
        "runs": runs,
        "failed": [
            {
                "command": report.command,
                "problems": list(report.problems),
                "script": list(report.script),
            }
            for report in failed
        ],
        "faults": dict(sorted(faults.items())),
    }


def _show_faults(title: str, faults: Counter[str]) -> None:
    made = table("fault", ">times", title=title)
    for name, count in sorted(faults.items()):
        made.add_row(name, f"{count:,}")
    show_table(made)


def _show_failed(report: Report) -> None:
    click.echo(f"FAILED: {report.command}")
    for problem in report.problems:
        click.echo(f"  {problem}")
    if report.script:
        click.echo("  the shortest script that fails:")
    for sentence in report.script:
        click.echo(f"  {sentence}")
