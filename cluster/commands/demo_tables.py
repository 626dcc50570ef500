"""The demo's result: as tables for people, and as JSON."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Any

from rich.console import Console
from rich.table import Table

from cluster.actor_checker import LIKES, SIGMA, SIGMAS, UNIQUES
from cluster.checker import COUNTERS, GONE, SUBJECTS, Verdict
from cluster.commands.call import plain, some, table
from cluster.demo_result import Result
from cluster.final_checker import FINALS
from cluster.probe import Latencies

ORDER = (*SUBJECTS.values(), GONE, FINALS, COUNTERS, LIKES, UNIQUES)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def document(result: Result) -> dict[str, Any]:
    """The result as `--json` prints it. Times in seconds or ms, sizes in bytes, by the name."""
    cut = result.cut
    return {
        "ok": result.good,
        "proven": result.proven,
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
        "keyed": {
            "keys": result.keyed.keys,
            "resent": result.keyed.resent,
            "answered_duplicate": result.keyed.answered,
            "taken_back": result.keyed.taken_back,
            "late": result.keyed.late,
            "remembered": result.keyed.facts,
        },
        "board_times": [_time(ms) for ms in result.times] if result.times else None,
        "likes": asdict(result.taps) if result.taps else None,
        "finals": [asdict(final) for final in result.finals],
        "uniques": {**asdict(result.estimates), "allowed": SIGMAS * SIGMA},
        "check": {
            "equal": result.verdict.equal,
            "seconds": round(result.check_s, 3),
            "parts": {name: asdict(part) for name, part in result.verdict.parts.items()},
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
    """Print the result as tables a person can read, and what was wrong."""
    console.print(_happened(result), highlight=False)
    console.print(_compared(result.verdict), highlight=False)
    if result.finals:
        console.print(_finals(result), highlight=False)
    verdict = result.verdict
    for line in verdict.shown:
        console.print(f"  {line}", markup=False, highlight=False)
    if not result.proven:
        console.print("The cut refused nothing: this run proves nothing about it.")
    if result.good:
        console.print("right", style="green")
    else:
        console.print("WRONG (--folder DIR keeps the agents' files and logs)", style="red")


def _happened(result: Result) -> Table:
    cut, made = result.cut, table("", "", title="what happened")
    made.show_header = False
    made.add_row(
        "replayed",
        f"{some(result.rows, 'row')}, {result.entries:,} entries in {result.replay_s:.1f} s"
        f" = {result.entries / max(result.replay_s, 1e-9):,.0f} entries/s",
    )
    if result.times is not None:
        first, last = (day(ms) for ms in result.times)
        made.add_row("the boards' clocks", f"moved along, from {first} to {last}")
    if cut.region:
        made.add_row(
            f"{cut.region} was cut off",
            f"for {cut.seconds:.1f} s; took {some(cut.rows_written, 'row')} meanwhile; refused:"
            f" {some(cut.refused_connections, 'connection')}, {cut.refused_bytes:,} bytes",
        )
        made.add_row("caught up after the heal", _seconds(cut.caught_up_s))
    made.add_row("converged after the last write", _seconds(result.converged_s))
    _add_members(result, made)
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
    return made


def _add_members(result: Result, made: Table) -> None:
    """What was sent again, what was liked, and how near estimates are."""
    keyed, taps, estimates = result.keyed, result.taps, result.estimates
    if keyed.keys:
        made.add_row(
            "entries with a key",
            f"{keyed.keys:,}, sent {keyed.keys + keyed.resent:,} times, to up to"
            f" {len(result.regions)} regions: {keyed.answered:,} answered `duplicate`,"
            f" {keyed.taken_back:,} counted twice until the regions met",
        )
    if taps is not None:
        made.add_row(
            "likes",
            f"{taps.taps:,} taps, {taps.doubled:,} of them double, {taps.unlikes:,} unlikes;"
            f" {taps.across:,} likes tapped on both sides of the cut",
        )
    if estimates.counted:
        made.add_row(
            "uniques",
            f"{some(estimates.counted, 'estimate')}, up to {estimates.greatest:,}: at most"
            f" {estimates.worst:.2%} off (stated: {SIGMA:.2%}, allowed: {SIGMAS} times that)",
        )


def _compared(verdict: Verdict) -> Table:
    """What was compared with plain Python, in every region."""
    made = table("in every region", ">how many", ">compared", "result")
    made.title = "what was compared with plain Python, over HTTP and in Redis"
    for name in sorted(verdict.parts, key=ORDER.index):
        part = verdict.parts[name]
        right = "within the error" if name == UNIQUES else "equal"
        result = f"{part.differences:,} DIFFERENCES" if part.differences else right
        made.add_row(name, f"{part.things:,}", f"{part.compared:,}", result)
    result = "all right" if verdict.equal else f"{verdict.differences:,} DIFFERENCES"
    made.add_section()
    made.add_row("", "", f"{verdict.compared:,}", result)
    return made


def _finals(result: Result) -> Table:
    """The certified finals, equal in every region."""
    made = table("board", "month", ">members", "first", "hash, equal in every region")
    made.title = "certified finals"
    for final in result.finals:
        its = (final.board, final.window, f"{final.members:,}", plain(final.winner))
        made.add_row(*its, f"{final.hash[:16]}...")
    return made


def day(ms: int | None) -> str:
    """The day of a time in ms since 1970, in UTC."""
    return "" if ms is None else _time(ms)[:10]


def _time(ms: int) -> str:
    return (_EPOCH + timedelta(milliseconds=ms)).isoformat().replace("+00:00", "Z")


def _seconds(value: float | None) -> str:
    return "not in time" if value is None else f"{value:.2f} s"
