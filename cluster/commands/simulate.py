"""Replaying the simulator: a seed is a failure."""

from __future__ import annotations

import json

import click

from cluster.commands.call import show_table, some, table
from cluster.simulator import simulate as run_simulation
from cluster.simulator.report import STEPS


@click.command(short_help="Run the protocol in virtual time, with faults, and check it.")
@click.option("--seed", required=True, type=int, help="The first run's seed.")
@click.option("--runs", default=1, show_default=True, type=click.IntRange(1), help="How many.")
@click.option("--steps", default=STEPS, show_default=True, type=click.IntRange(1))
@click.option("--agents", type=click.IntRange(2, 16), help="Agents. Default: the seed decides.")
@click.option("--shrink", is_flag=True, help="Cut a failing run down to its shortest script.")
@click.option("--trace", is_flag=True, help="Also print what happened, step by step.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def simulate(
    seed: int,
    runs: int,
    steps: int,
    agents: int | None,
    shrink: bool,
    trace: bool,
    as_json: bool,
) -> None:
    """Run the real protocol in virtual time, with faults, and check the totals.

    The same seed is the same run. The exit code is 0 only if every run was right.
    """
    reports = [
        run_simulation(number, steps=steps, agents=agents, trace=trace, shrink=shrink)
        for number in range(seed, seed + runs)
    ]
    failed = [report for report in reports if not report.ok]
    faults: dict[str, int] = {}
    for report in reports:
        for name, count in report.faults.items():
            faults[name] = faults.get(name, 0) + count
    if as_json:
        document = {
            "runs": runs,
            "failed": [
                {"command": report.command, "problems": list(report.problems)} for report in failed
            ],
            "faults": faults,
            "trace": [line for report in reports for line in report.trace],
        }
        click.echo(json.dumps(document))
    else:
        for report in reports:
            for line in report.trace:
                click.echo(line)
        made = table("fault", ">times", title=f"{some(runs, 'run')} from seed {seed}")
        for name, count in sorted(faults.items()):
            made.add_row(name, str(count))
        show_table(made)
        for report in failed:
            click.echo(f"FAILED: {report.command}")
            for problem in report.problems:
                click.echo(f"  {problem}")
        click.echo(f"right: {runs - len(failed):,} of {some(runs, 'run')}")
    raise SystemExit(1 if failed else 0)
